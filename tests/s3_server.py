"""An S3 server on loopback, with the faults that a store has: run as a process, prints its port.

moto answers the protocol. In front of it, requests that are not signed are refused, as S3 does,
and `POST /-/FAULT/N/PATTERN` has the next N requests whose method and path contain PATTERN fail:
busy ones are answered with 503, those of a full server as MinIO does, and slow ones too late.
"""

import logging
import time
from threading import Lock
from urllib.parse import unquote

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

ERROR = (
    '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{0}</Code><Message>{0}</Message></Error>'
)
FAULTS = {
    "busy": ("503 Slow Down", "SlowDown"),
    "full": ("507 Insufficient Storage", "XMinioStorageFull"),
    "slow": ("400 Bad Request", "TooLate"),  # which nobody would ask again for
}
LATE = 20  # seconds


class Faulty:
    def __init__(self):
        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock, self._left, self._pattern, self._refused = Lock(), 0, "", 0
        self._fault = "busy"

    def __call__(self, environ, start):
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path.startswith("/-/"):
            fault, count, pattern = path.removeprefix("/-/").split("/", 2)
            with self._lock:
                self._fault = fault
                refused, self._refused = self._refused, 0
                self._left, self._pattern = int(count), unquote(pattern)
            start("200 OK", [("Content-Type", "text/plain")])
            return [str(refused).encode()]
        if "HTTP_AUTHORIZATION" not in environ:
            return self._error(start, "403 Forbidden", "AccessDenied")
        with self._lock:
            failing = self._left > 0 and self._pattern in f"{method} {path}"
            self._left -= failing
            self._refused += failing
            fault = self._fault
        if failing:
            time.sleep(LATE if fault == "slow" else 0)
            return self._error(start, *FAULTS[fault])
        return self._app(environ, start)

    @staticmethod
    def _error(start, status, code):
        start(status, [("Content-Type", "application/xml")])
        return [ERROR.format(code).encode()]


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = make_server("127.0.0.1", 0, Faulty(), threaded=True)
    print(server.port, flush=True)
    server.serve_forever()
