"""The log's lines carry the call that they belong to."""

import io
import json
import logging
import subprocess
import sys
import threading
from functools import partial

import grpc
import pytest

from multigate.configs.errors import ServingError
from multigate.serving.core import calls, logs
from multigate.serving.core.options import ServerOptions
from multigate.serving.protos import ranking_pb2


@pytest.fixture
def stream(monkeypatch):
    """What `logs.configure` writes; what it changes is put back afterwards.

    A stream of its own: `capsys` loses what another thread writes while it is read.
    """
    stream = io.StringIO()
    monkeypatch.setattr(logging, "StreamHandler", partial(logging.StreamHandler, stream))
    loggers = [logging.getLogger(name) for name in ("multigate", "asyncio")]
    before = [(one.handlers, one.level, one.propagate) for one in loggers]
    hook = threading.excepthook
    yield stream
    threading.excepthook = hook
    for one, state in zip(loggers, before, strict=True):
        one.handlers, one.level, one.propagate = state


def test_a_caller_cannot_write_lines_of_text(stream):
    logs.configure("text")
    logging.getLogger("multigate.serving").warning("call id=%s", "a\nERROR b\r\x1b[2J\u2028c ü")
    try:
        raise ValueError("of two\nlines")
    except ValueError:
        logging.getLogger("multigate.serving").exception("x")
    first, second, *trace = stream.getvalue().splitlines()
    assert first.endswith(r"WARNING call id=a\nERROR b\r\x1b[2J\u2028c ü")
    assert second.endswith("ERROR x")
    assert trace[0].startswith("Traceback")


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_every_call_has_a_line_of_json_with_its_request_id(
    tmp_path, publish, run_server, stream, until
):
    publish(tmp_path, 1)
    logs.configure("json")
    with run_server(tmp_path, log_calls=1.0) as running:
        request = ranking_pb2.RankRequest(request_id='one "quoted"')
        request.model.name = "small"
        request.user["user_id"].text = "u"
        request.context["hour"].integer = 3
        request.candidates.item_id.texts.values.extend(["i1", "i2"])
        request.candidates.columns["length"].numbers.values.extend([1, 2])
        running.ranking.Rank(request, timeout=120)
        request.request_id = ""
        del request.context["hour"]
        with pytest.raises(grpc.RpcError):
            running.ranking.Rank(request, timeout=120)
        until(lambda: len([line for line in lines(stream) if "method" in line]) == 2)
    good, bad = [line for line in lines(stream) if "method" in line]
    assert (good["method"], good["status"], good["level"]) == ("Rank", "OK", "INFO")
    assert (good["request_id"], good["model"], good["version"]) == ('one "quoted"', "small", 1)
    assert good["candidates"] == 2
    assert 0 < good["run_seconds"] < good["seconds"]
    assert bad["status"] == "INVALID_ARGUMENT"
    assert "run_seconds" not in bad
    assert "'hour': expected a value" in bad["error"]
    assert len(bad["request_id"]) == 32
    assert any("is available after" in line["message"] for line in lines(stream))


@pytest.mark.parametrize("how", logs.FORMATS)
@pytest.mark.parametrize("message", ["", "100 % of 'ü'\n: expected \"a\""])
def test_the_line_of_a_call_is_as_logging_would_write_it(stream, how, message):
    logs.configure(how)
    fields = {"request_id": "a %s b", "version": 1, "run_seconds": 0.001, "other": ("ü", None)}
    calls._log("Rank", grpc.StatusCode.OK, 0.00123456, message, fields)
    fields = {"method": "Rank", "status": "OK", "seconds": 0.001235, **fields}
    fields |= {"error": message} if message else {}
    text = " ".join(f"{name}={value}" for name, value in fields.items())
    log = logging.getLogger("multigate.serving")
    log.info("call %s", text, extra={"fields": fields})
    ours, theirs = stream.getvalue().splitlines()
    if how == "json":
        ours, theirs = json.loads(ours), json.loads(theirs)
        assert ours.pop("time")[:16] <= theirs.pop("time")[:16]
        assert [*ours.items()] == [*theirs.items()]
        assert ours["message"] == f"call {text}"
    else:
        assert ours.split(" ", 2)[2:] == theirs.split(" ", 2)[2:]
    log.setLevel(logging.WARNING)
    calls._log("Rank", grpc.StatusCode.OK, 0.1, message, fields)
    log.setLevel(logging.NOTSET)
    assert len(stream.getvalue().splitlines()) == 2


def test_lines_within_a_call_carry_its_id_and_others_none(stream):
    logs.configure("json")
    log = logging.getLogger("multigate.serving")
    logs.begin()
    logs.say(request_id="r1")
    log.error("inside")
    elsewhere = threading.Thread(target=log.error, args=("another thread",))
    elsewhere.start()
    elsewhere.join()
    assert logs.end() == {"request_id": "r1"}
    try:
        raise ValueError("reason")
    except ValueError:
        log.exception("outside")
    inside, other, outside = lines(stream)
    assert (inside["message"], inside["request_id"]) == ("inside", "r1")
    assert "request_id" not in other
    assert "request_id" not in outside
    assert "ValueError: reason" in outside["exception"]


def test_text_is_one_line(stream):
    logs.configure("text")
    logging.getLogger("multigate.serving").info("hello")
    assert stream.getvalue().endswith(" INFO hello\n")


def test_a_thread_that_dies_has_a_line():
    """In a process of its own, because pytest watches threads itself."""
    code = (
        "import threading\n"
        "from multigate.serving.core import logs\n"
        "logs.configure('json')\n"
        "thread = threading.Thread(target=lambda: 1 / 0, name='doomed')\n"
        "thread.start()\n"
        "thread.join()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = [json.loads(one) for one in done.stderr.splitlines()]
    assert (line["level"], line["message"]) == ("CRITICAL", "thread doomed ended by an error")
    assert "ZeroDivisionError" in line["exception"]


def test_an_unknown_format_is_refused():
    with pytest.raises(ServingError, match="--log_format: expected text or json, received 'xml'"):
        ServerOptions(model_name="m", model_base_path="models", log_format="xml")
