"""The ASGI application: HTTP requests become messages, calls become answers in JSON.

Each call goes through the gate and the method that gRPC's goes through.
"""

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from multigate.runtime.tensorflow_messages import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
)
from multigate.serving.core.calls import CallGate
from multigate.serving.core.loop import Threads
from multigate.serving.core.status import (
    AdmissionError,
    InvalidRequestError,
    RequestError,
    TooLateError,
    status_of,
)
from multigate.serving.core.tracing import step
from multigate.serving.rest.documents import write
from multigate.serving.rest.messages import (
    metadata_answer,
    rank_answer,
    recommend_answer,
    to_json,
)
from multigate.serving.rest.methods import Methods
from multigate.serving.rest.parser import JsonReader
from multigate.serving.rest.tensors import predict_answer
from multigate.serving.versions.ranker_version import RankerVersion

METRICS = ("/monitoring/prometheus/metrics", "/metrics")
BODY_SECONDS = 10.0
"""Within which a body must arrive."""
_MODEL = re.compile(r"/v1/models/([^/:]+)(?:/versions/([^/:]+)|/labels/([^/:]+))?(/metadata|:\w+)?")
_AUTHORITY = re.compile(r"\Ahttps?://[^/]*", re.IGNORECASE)
"""What a target begins with where a proxy sent it: its host (RFC 9112, section 3.2.2)."""
_VERSION = re.compile("[0-9]{1,19}")
_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])")
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_JSON_TYPES = {
    "application/json",
    "application/x-www-form-urlencoded",  # what curl -d says, also in TensorFlow Serving's examples
    "text/plain",
    "",
}
_METHODS = {"GET": ("GET", "HEAD"), "POST": ("POST",)}
"""What a path of each method allows; of an answer to HEAD, uvicorn sends the head alone."""
_HTTP = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""By the name of a gRPC status, as google.rpc.Code says and TensorFlow Serving does; others 500."""
_REFUSED = {
    404: "UNIMPLEMENTED",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    415: "INVALID_ARGUMENT",
}
"""What the metrics call requests that are no calls."""
_UNREAD = {408, 413, 415}
"""Answers before the body was read: their connections are closed."""
_CLOSE = (b"connection", b"close")
_LINGER = (1.0, 16 << 20)
"""Seconds and bytes for which a refused body is still read."""
_SHORT_ANSWER = 1 << 13
"""Bytes of a message that the loop itself writes as JSON, in some 1 ms."""
_JSON = b"application/json"
_RANKING, _PREDICTION = "/multigate.RankingService/", "/tensorflow.serving.PredictionService/"

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[str, str]]


@dataclass(frozen=True)
class _Target:
    """The model that a path names."""

    model: str
    version: int | None
    label: str


@dataclass(frozen=True)
class _Failure:
    """An answer that is an error."""

    status: int
    message: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True)
class _Answer:
    """An answer with its content type."""

    body: bytes
    kind: bytes = _JSON


class _Caller:
    """How long an HTTP client waits."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def time_remaining(self) -> float:
        """Seconds until the deadline."""
        return self._until - time.monotonic()


Work = Callable[[_Target, bytes, _Caller], Awaitable[bytes]]


class RestApp:
    """The application; `__call__` is ASGI's interface."""

    def __init__(
        self,
        gate: CallGate,
        methods: Methods,
        use: Callable[[str, int | None, str], AbstractContextManager[RankerVersion]],
        metrics_page: Callable[[], bytes],
        reader: JsonReader,
        threads: Threads,
        max_body: int,
        max_reading: int,
        timeout: float,
    ) -> None:
        """Make the application of a server.

        Args:
            gate: what all calls pass.
            methods: what answers.
            use: holds a version of a model for a call, as `Models.use` does.
            metrics_page: writes the metrics; may take long.
            reader: reads bodies.
            threads: for what takes long, such as answers of thousands of numbers.
            max_body: most bytes of a body.
            max_reading: most bodies that arrive in pieces at once.
            timeout: seconds of a call without a deadline of its own, and the longest deadline.
        """
        self._gate = gate
        self._methods = methods
        self._use = use
        self._metrics_page = metrics_page
        self._reader = reader
        self._threads = threads
        self._max_body = max_body
        self._max_reading = max_reading
        self._reading = 0
        self._timeout = timeout
        self._running: set[asyncio.Task[Any]] = set()
        self._calls: dict[str, tuple[str, str, Work]] = {
            ":predict": ("Predict", _PREDICTION, self._predict),
            ":rank": ("Rank", _RANKING, self._rank),
            ":recommend": ("Recommend", _RANKING, self._recommend),
            ":explain": ("Explain", _RANKING, self._explain),
        }

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            return
        answer: _Answer | _Failure | None
        try:
            answer = await self._answer(scope, receive)
        except Exception as error:
            code, message = status_of("REST", error)
            answer = _Failure(_HTTP.get(code.name, 500), message, (_CLOSE,))
        if answer is not None:
            await _send(answer, receive, send)

    async def _answer(self, scope: dict[str, Any], receive: Receive) -> "_Failure | _Answer | None":
        """The answer to a request; None where its client is gone."""
        path = _AUTHORITY.sub("", scope["raw_path"].decode("latin-1"))
        headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"]]
        if path in METRICS:
            return await self._metrics(scope["method"], headers)
        found = _MODEL.fullmatch(path)
        verb = found[4] or "" if found else ""
        wanted = "POST" if verb.startswith(":") else "GET"
        if found is None or (verb.startswith(":") and verb not in self._calls):
            return self._refused(
                404,
                f"{path[:200]}: expected /v1/models/NAME[/versions/N|/labels/LABEL] with "
                f"{', '.join(self._calls)}, /metadata or nothing, or {METRICS[0]}",
            )
        if scope["method"] not in _METHODS[wanted]:
            return self._other_method(f"{path[:200]}: ", wanted, scope["method"])
        if wanted == "POST":
            method, service, work = self._calls[verb]
        elif verb:
            method, service, work = "GetModelMetadata", _PREDICTION, self._metadata
        else:
            method, service, work = (
                "GetModelStatus",
                "/tensorflow.serving.ModelService/",
                self._status,
            )
        try:
            self._gate.authorize(service + method, headers)
            caller = _Caller(min(_timeout(headers), self._timeout))
            body = await self._body(headers, receive, caller) if wanted == "POST" else b""
        except RequestError as error:
            self._gate.refused(error, "REST")
            return _failure(error)
        if not isinstance(body, bytes):
            return body
        handled = self._handle(service + method, headers, caller, work, found, body)
        return await self._until_done(handled, caller, receive)

    async def _until_done(
        self, handled: "Coroutine[Any, Any, _Answer | _Failure]", caller: _Caller, receive: Receive
    ) -> "_Answer | _Failure | None":
        """The answer of a call; None where its client goes away before."""
        call, gone = asyncio.create_task(handled), asyncio.create_task(_gone(receive))
        self._running.add(call)
        call.add_done_callback(self._running.discard)
        try:
            await asyncio.wait(
                [call, gone],
                timeout=max(caller.time_remaining(), 0.0),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if call.done():
                return call.result()
            if gone.done():
                return None
            return _failure(TooLateError("the deadline passed"))
        finally:
            gone.cancel()
            # It may need a while to end, as a run of the model does; the client need not wait.
            call.cancel()

    async def _handle(
        self,
        path: str,
        headers: Headers,
        caller: _Caller,
        work: Work,
        found: re.Match[str],
        body: bytes,
    ) -> "_Answer | _Failure":
        """One call, in a task of its own that the gate admits."""
        try:
            self._gate.admit(path, headers)
        except RequestError as error:
            self._gate.refused(error, "REST")
            return _failure(error)
        answer = b""
        with self._gate.handle(path, "REST", caller) as call:
            call.refuse_if_draining()
            answer = await work(_target(found), body, caller)
        if answer:
            return _Answer(answer)
        return _Failure(_HTTP.get(call.code.name, 500), call.message)

    async def _body(
        self, headers: Headers, receive: Receive, caller: _Caller
    ) -> "bytes | _Failure | None":
        """A request's body; None where its client goes away.

        Raises:
            AdmissionError: too many bodies are arriving.
        """
        named = dict(headers)
        kind = named.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in _JSON_TYPES:
            return self._refused(
                415, f"content-type: expected application/json, received {kind[:100]}"
            )
        if named.get("content-encoding", "identity").strip().lower() != "identity":
            return self._refused(415, "content-encoding: expected none; send the JSON itself")
        if int(named.get("content-length", "0")) > self._max_body:  # h11 has checked the number
            return self._refused(413, f"body: expected at most {self._max_body} bytes")
        if self._reading >= self._max_reading:
            raise AdmissionError(
                f"{self._reading} bodies are arriving already; try again later, or call another "
                "server"
            )
        self._reading += 1
        try:
            async with asyncio.timeout(min(BODY_SECONDS, max(caller.time_remaining(), 0.0))):
                return await self._read(receive)
        except TimeoutError:
            return self._refused(408, "body: did not arrive in time")
        finally:
            self._reading -= 1

    async def _read(self, receive: Receive) -> "bytes | _Failure | None":
        parts, size = [], 0
        while True:
            event = await receive()
            if event["type"] != "http.request":
                return None
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            if size > self._max_body:
                return self._refused(413, f"body: expected at most {self._max_body} bytes")
            if not event.get("more_body"):
                return b"".join(parts)

    def _refused(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> _Failure:
        """An answer to a request that is no call; its connection may hold the rest of a body."""
        self._gate.metrics.answered("refused", _REFUSED[status], 0.0, "REST")
        more = (_CLOSE,) if status in _UNREAD else ()
        return _Failure(status, message, (*headers, *more))

    def _other_method(self, where: str, wanted: str, method: str) -> _Failure:
        """An answer to a request whose path has another method."""
        allowed = ", ".join(_METHODS[wanted]).encode()
        message = f"{where}expected {wanted}, received {method[:20]}"
        return self._refused(405, message, (b"allow", allowed))

    async def _metrics(self, method: str, headers: Headers) -> "_Answer | _Failure":
        """The page for Prometheus, of all workers."""
        if method not in _METHODS["GET"]:
            return self._other_method("", "GET", method)
        try:
            self._gate.authorize("/metrics", headers)
        except RequestError as error:
            self._gate.refused(error, "REST")
            return _failure(error)
        page = await self._threads.run(self._metrics_page)
        return _Answer(page, CONTENT_TYPE_PLAIN_0_0_4.encode())

    async def _rank(self, target: _Target, body: bytes, caller: _Caller) -> bytes:
        request = await self._reader.message(body, "RankRequest")
        _set_model(request, target)
        return await self._write(rank_answer, await self._methods.rank(request, caller))

    async def _recommend(self, target: _Target, body: bytes, caller: _Caller) -> bytes:
        request = await self._reader.message(body, "RecommendRequest")
        _set_model(request, target)
        return await self._write(recommend_answer, await self._methods.recommend(request, caller))

    async def _explain(self, target: _Target, body: bytes, caller: _Caller) -> bytes:
        request = await self._reader.message(body, "ExplainRequest")
        _set_model(request.ranking, target)
        return await self._write(to_json, await self._methods.explain(request, caller))

    async def _predict(self, target: _Target, body: bytes, caller: _Caller) -> bytes:
        # Held from here to the answer: the inputs' types are this version's.
        with self._use(target.model, target.version, target.label) as ranker:
            signatures = {
                name: signature.inputs for name, signature in ranker.saved_model.signatures.items()
            }
            request, rows = await self._reader.predict(body, signatures)
            response = await self._methods.predict(ranker, request, caller)
        return await self._write(predict_answer, response, rows)

    async def _metadata(self, target: _Target, body: bytes, caller: _Caller) -> bytes:
        request = get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=_tf_model_spec(target), metadata_field=["signature_def"]
        )
        return await self._write(metadata_answer, await self._methods.metadata(request, caller))

    async def _status(self, target: _Target, body: bytes, caller: _Caller) -> bytes:
        request = get_model_status_pb2.GetModelStatusRequest(model_spec=_tf_model_spec(target))
        return await self._write(to_json, await self._methods.status(request, caller))

    async def _write(self, make: Callable[..., Any], response: Any, *given: Any) -> bytes:
        """A message's JSON, made in a thread where it holds many thousands of numbers."""
        with step("write"):
            large = response.ByteSize() > _SHORT_ANSWER
            return await self._threads.run_if(large, lambda: write(make(response, *given)))


async def _gone(receive: Receive) -> None:
    """Wait until the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(answer: "_Answer | _Failure", receive: Receive, send: Send) -> None:
    if isinstance(answer, _Failure):
        body = write({"error": " ".join(answer.message.split())})
        status, kind, headers = answer.status, _JSON, answer.headers
    else:
        body, status, kind, headers = answer.body, 200, answer.kind, ()
    length = str(len(body)).encode()
    head = [(b"content-type", kind), (b"content-length", length), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    unread = isinstance(answer, _Failure) and answer.status in _UNREAD
    await send({"type": "http.response.body", "body": body, "more_body": unread})
    if unread:
        await _drop(receive)
        await send({"type": "http.response.body", "body": b""})


async def _drop(receive: Receive) -> None:
    """Read the rest of a refused body for a while, and drop it.

    A connection that is closed with unread data is reset, and its client never sees the answer.
    """
    seconds, most = _LINGER
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while most > 0:
                event = await receive()
                if not event.get("more_body"):
                    return
                most -= len(event["body"])


def _failure(error: RequestError) -> _Failure:
    """The answer to a call that is refused or fails."""
    headers = ((b"www-authenticate", b"Bearer"),) if _HTTP[error.code.name] == 401 else ()
    return _Failure(_HTTP[error.code.name], str(error), headers)


def _timeout(headers: Headers) -> float:
    """Seconds that a client waits; infinite where it does not say.

    Raises:
        InvalidRequestError: the header is not as gRPC writes it.
    """
    text = dict(headers).get("grpc-timeout")
    if text is None:
        return math.inf
    if (found := _TIMEOUT.fullmatch(text)) is None:
        raise InvalidRequestError(
            f"grpc-timeout: expected digits and a unit, such as 500m, received {text[:20]!r}"
        )
    return int(found[1]) * _UNITS[found[2]]


def _target(found: re.Match[str]) -> _Target:
    """The model that a path names.

    Raises:
        InvalidRequestError: its version is no number.
    """
    model, version, label, _ = (None if part is None else unquote(part) for part in found.groups())
    if version is not None and not (_VERSION.fullmatch(version) and int(version) < 1 << 63):
        raise InvalidRequestError(
            f"versions/{version[:40]}: expected a number (int64); a label is named by /labels/LABEL"
        )
    return _Target(model or "", None if version is None else int(version), label or "")


def _set_model(request: Any, target: _Target) -> None:
    """Put the model of the path into a request.

    Raises:
        InvalidRequestError: the body names one.
    """
    if request.HasField("model"):
        raise InvalidRequestError("model: expected in the path, received in the body as well")
    request.model.name = target.model
    if target.version is not None:
        request.model.version = target.version
    elif target.label:
        request.model.version_label = target.label


def _tf_model_spec(target: _Target) -> Any:
    spec = model_pb2.ModelSpec(name=target.model)
    if target.version is not None:
        spec.version.value = target.version
    elif target.label:
        spec.version_label = target.label
    return spec
