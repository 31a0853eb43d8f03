"""What a server tells or asks may hang: its collector, its store, the reader of its metrics.

That costs a counter: no call is late or wrong for it, and SIGTERM ends the server as ever.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from tests.ports import free_port

from multigate.jobs.publication.base_folder import Base
from multigate.jobs.publication.upload import upload
from multigate.serving.client import RankClient
from multigate.serving.observe.exporter import PATH

ROOT = Path(__file__).parents[3]

# Its page of metrics is larger than what the kernel takes from a writer whose reader does not read,
# and a look at a store that hangs is over after seconds.
SERVE = """
import sys
from multigate.__main__ import main
from multigate.configs import storage
from multigate.serving.core.metrics import ServerMetrics
storage._ATTEMPTS = 2
init = ServerMetrics.__init__
def large(self):
    init(self)
    for number in range(80_000):
        self.ids.add("large", f"a feature with the number {number}", "seen")
ServerMetrics.__init__ = large
sys.argv = ["multigate", "serve", *sys.argv[1:]]
sys.exit(main())
"""


class Relay:
    """A port that passes connections on to another one until it hangs.

    Then nothing passes any more: those who connect are accepted, and never answered.
    """

    def __init__(self, port=None):
        self.hangs = threading.Event()
        self.left_waiting = 0
        self._to = port
        self._open = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        for one in (self._server, *self._open):
            one.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:  # closed
                return
            self._open.append(client)
            if self.hangs.is_set():
                self.left_waiting += 1
                continue
            there = socket.create_connection(("127.0.0.1", self._to))
            self._open.append(there)
            for ends in ((client, there), (there, client)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source, sink):
        try:
            while data := source.recv(1 << 16):
                if self.hangs.is_set():
                    self.left_waiting += 1
                    return
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # closed
            return


def reader_that_does_not_read(port):
    """A connection that has asked for a page of metrics, whose beginning is there."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.settimeout(240)
    reader.connect(("127.0.0.1", port))
    reader.sendall(f"GET {PATH} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    assert reader.recv(1, socket.MSG_PEEK)
    return reader


@pytest.mark.slow
def test_what_hangs_costs_counters_and_no_call(tmp_path, publish, bucket, until):
    base = tmp_path / "models"
    base.mkdir()
    publish(base, 1)
    upload(Base(base), bucket.address / "models")
    models = tmp_path / "models.txt"
    models.write_text(
        f'model_config_list {{ config {{ name: "small" base_path: "{base}" }}'
        f' config {{ name: "stored" base_path: "{bucket.address}/models" }} }}'
    )
    store = Relay(int(bucket.endpoint.rpartition(":")[2]))
    collector = Relay()
    collector.hangs.set()
    metrics_port, readers = free_port(), []
    flags = {
        "port": "0",
        "rest_api_port": "0",
        "metrics_port": str(metrics_port),
        "model_config_file": str(models),
        "model_config_file_poll_wait_seconds": "1",
        "store_poll_wait_seconds": "0.05",
        "otlp_endpoint": collector.address,
        "otlp_sampling_rate": "1",
    }
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE, *(f"--{name}={value}" for name, value in flags.items())],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ
        | {"PYTHONPATH": str(ROOT / "src"), "AWS_ENDPOINT_URL": store.address}
        | {"TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    try:
        line = server.stdout.readline()
        assert line, server.communicate(timeout=120)[1]
        port, rest_port = map(int, re.findall(r":(\d+)\b", line))

        def count(metric, **labels):
            """Of a sample, by its labels in the page's order."""
            with urllib.request.urlopen(f"http://127.0.0.1:{rest_port}{PATH}", timeout=240) as page:
                text = page.read().decode()
            said = ",".join(f'{name}="{value}"' for name, value in labels.items())
            found = re.search(rf"^{re.escape(f'{metric}{{{said}}}')} (\S+)$", text, re.MULTILINE)
            return float(found[1]) if found else 0

        with RankClient(f"127.0.0.1:{port}", timeout=240) as client:

            def answers():
                return [
                    client.rank(
                        model,
                        user={"user_id": "u1"},
                        context={"hour": 9},
                        item_ids=["i1", "i2", "i3"],
                        columns={"length": [1.0, 2.0, 3.0]},
                    )
                    for model in ("small", "stored")
                ]

            first = answers()
            assert first[0] == first[1]
            store.hangs.set()
            readers += [reader_that_does_not_read(one) for one in (metrics_port, rest_port) * 3]

            def counted():
                assert answers() == first
                failed = count("multigate_spans_total", result="failed")
                looks = count("multigate_store_looks_total", model="stored", result="failed")
                return failed and looks

            until(counted, "spans and looks at the store that failed")
            assert collector.left_waiting
            assert store.left_waiting
            assert answers() == first
            assert count("multigate_requests_total", method="Rank", model="stored",
                         signature="rank", status="OK", version="1") >= 3  # fmt: skip
        waiting = store.left_waiting
        until(lambda: store.left_waiting > waiting, "another look at the store")
        server.send_signal(signal.SIGTERM)
        errors = server.communicate(timeout=240)[1]
        assert server.returncode == 0, errors  # 1: it did not end in time and was killed
    finally:
        server.kill()
        server.communicate(timeout=120)
        for one in (store, collector, *readers):
            one.close()
