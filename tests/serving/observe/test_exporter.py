"""Metrics over HTTP."""

import socket
import struct
import urllib.error
import urllib.request

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from multigate.configs.errors import ServingError
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.observe.exporter import PATH, labelled_by_worker, start_exporter

OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


@pytest.fixture
def serve():
    """Start an exporter of these metrics; the URL of its root."""
    closes = []

    def start(metrics, host="127.0.0.1"):
        port, close = start_exporter(host, 0, metrics)
        closes.append(close)
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    yield start
    for close in closes:
        close()


def get(url, **headers):
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_the_page_is_the_text_format_whatever_is_preferred(serve):
    metrics = ServerMetrics()
    metrics.answered("Rank", "OK", 0.002)
    kind, page = get(serve(metrics.registry) + PATH, Accept=OPEN_METRICS)
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    ours, others = (
        [line for line in text.splitlines() if not line.startswith("process_")]  # of two moments
        for text in (page, metrics.text())
    )
    assert ours == others
    assert len(ours) < len(page.splitlines())


def test_other_paths_are_not_found(serve):
    with pytest.raises(urllib.error.HTTPError) as raised:
        get(serve(ServerMetrics().registry) + "/metrics")
    with raised.value as error:
        assert (error.code, error.read().decode()) == (404, f"see {PATH}\n")


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_it_listens_on_ipv6(serve):
    assert "multigate_model_version" in get(serve(ServerMetrics().registry, "::1") + PATH)[1]


def test_a_port_that_is_taken_is_named(serve):
    port = int(serve(ServerMetrics().registry).rpartition(":")[2])
    with pytest.raises(ServingError, match=f":{port}: cannot serve metrics there.*--metrics_port"):
        start_exporter("127.0.0.1", port, ServerMetrics().registry)


class Broken(Collector):
    """Fails once."""

    fails = True

    def collect(self):
        if self.fails:
            self.fails = False
            raise RuntimeError("planted")
        return [GaugeMetricFamily("fine", "f", 1)]


def test_a_page_that_fails_is_logged_and_the_next_one_served(serve, caplog):
    url = serve(Broken()) + PATH
    with pytest.raises(urllib.error.HTTPError) as raised:
        get(url)
    with raised.value as error:
        assert error.code == 500
    assert "planted" in caplog.text
    assert "fine 1.0\n" in get(url)[1]


def test_a_prometheus_that_goes_away_or_does_not_read_holds_nobody_up(serve, caplog):
    url = serve(ServerMetrics().registry)
    address, ask = ("127.0.0.1", int(url.rpartition(":")[2])), f"GET {PATH} HTTP/1.1\r\n\r\n"
    silent, half, greedy = (socket.create_connection(address) for _ in range(3))
    with silent, half:
        half.sendall(ask[:20].encode())
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        greedy.sendall(ask.encode())
        greedy.close()  # with a reset, while its page is made
        for _ in range(3):
            assert "multigate_model_version" in get(url + PATH)[1]
    assert not [one for one in caplog.records if one.levelname in {"ERROR", "CRITICAL"}]


def test_workers_become_one_page():
    workers = {name: ServerMetrics() for name in ("0", "1")}
    for name, metrics in workers.items():
        metrics.version.set(3 + int(name), "m")
        metrics.requests.add("Rank", "", "OK")

    class Page:
        def collect(self):
            return labelled_by_worker(
                {name: metrics.registry.collect() for name, metrics in workers.items()}
            )

    page = generate_latest(Page()).decode()
    assert page.count("# TYPE multigate_model_version gauge\n") == 1
    assert (
        'multigate_model_version{model="m",worker="0"} 3.0\n'
        'multigate_model_version{model="m",worker="1"} 4.0\n'
    ) in page
    assert 'request_count{method="Rank",model_name="",status="OK",worker="1"} 1.0\n' in page
    assert "worker" not in workers["0"].text()
