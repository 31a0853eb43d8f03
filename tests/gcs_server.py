"""A server that speaks Google Cloud Storage's protocol, run as a process; prints its port."""

import logging

from gcp_storage_emulator.server import create_server

logging.disable()
server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="test-bucket")
server.start()
print(server._api._httpd.server_address[1], flush=True)
