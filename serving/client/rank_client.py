"""A client for Rank, Recommend, Explain and health that needs grpcio and protobuf only.

with RankClient("localhost:8500") as client:
    for item in client.rank("demo", user={"user_id": "u1"}, item_ids=["a", "b"]):
        print(item["item_id"], item["score"], item["tasks"])
"""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

import grpc

from multigate.configs.errors import ServingError
from multigate.serving.client.packing import (
    Feature,
    add_counts,
    add_floors,
    add_weights,
    model_spec,
    naming,
    rank_request,
    recommend_request,
)
from multigate.serving.core.credentials import client_credentials, token_metadata
from multigate.serving.protos import health_pb2, ranking_pb2, ranking_pb2_grpc

_AGAINST = {"examples": ranking_pb2.EXAMPLES, "candidates": ranking_pb2.CANDIDATES}

# Retries stop when fewer than nine calls in ten succeed: they would add to an overload.  The budget
# covers the calls that one connection to a dying worker loses: 50 at once.
SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],  # over all addresses of the target
    "methodConfig": [
        {
            "name": [{"service": "multigate.RankingService"}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.05s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
    "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1},
}

_TARGET = re.compile(
    r"(?:[^\s:/\[\]]+|\[[^\s/\[\]]+\]):(?P<port>[0-9]{1,5})"
    r"|(?:dns|ipv4|ipv6|unix|unix-abstract|vsock|xds):.+"
)
"""host:port, or an address with a scheme of gRPC's own, which gRPC reads."""

_MAX_MESSAGE = 64 << 20  # bytes

CHANNEL_OPTIONS = [
    ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
    ("grpc.max_receive_message_length", _MAX_MESSAGE),
    ("grpc.max_send_message_length", _MAX_MESSAGE),
    # Channels of one process to one target would share a connection.
    ("grpc.use_local_subchannel_pool", 1),
    # A connection may reach a dying worker: the next attempt reaches another one.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # Notice a server that has vanished, so that the next call connects anew.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
]


class CallError(ServingError):
    """A call that failed."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code
        """Name of the gRPC status, such as INVALID_ARGUMENT."""


class RankedItem(TypedDict):
    """One ranked item."""

    index: int
    """Its place among the candidates as they were sent."""
    item_id: str | int
    score: float
    """Combined."""
    tasks: dict[str, float]
    """Score of each task: a probability, or a value in the label's own units."""


class Ranking(list[RankedItem]):
    """Ranked items, best first, with version, schema, request id and warnings."""

    def __init__(self, response: Any) -> None:
        ids = getattr(response.item_id, response.item_id.WhichOneof("values") or "texts").values
        columns = {task: scores.values for task, scores in response.task_scores.items()}
        super().__init__(
            {
                "index": index,
                "item_id": ids[place],
                "score": response.score[place],
                "tasks": {task: values[place] for task, values in sorted(columns.items())},
            }
            for place, index in enumerate(response.item_index)
        )
        self.model_version: int = response.model_version
        self.schema: str = response.schema
        self.request_id: str = response.request_id
        self.warnings: list[str] = list(response.warnings)
        self.unscored: list[int] = list(response.unscored_index)
        """Places of the candidates that lack a required feature, and so have no score."""


class Recommendation(Ranking):
    """Ranked items that the server found, and their source.

    An item's `index` is its place among the retrieved candidates.
    """

    def __init__(self, response: Any) -> None:
        super().__init__(response.ranking)
        self.source: str = ranking_pb2.Source.Name(response.source)
        """RETRIEVED, or POPULAR if popular items replaced them; `warnings` says why."""
        self.candidates_name: str = response.candidates_name
        self.candidates_version: int | None = (
            response.candidates_version if response.HasField("candidates_version") else None
        )
        """None if no version of the candidate model serves."""


class RankClient:
    """Calls a ranking server; safe to share between threads."""

    def __init__(
        self,
        target: str,
        *,
        timeout: float = 5.0,
        tls: bool = False,
        ca: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        token: str = "",
        connections: int = 1,
    ) -> None:
        """Connect on the first call.

        Args:
            target: host:port of the server, or an address that gRPC knows by its scheme, such as
                dns:///host:port.
            timeout: seconds that a call may take, retries included.
            tls: whether to encrypt; `ca` and `certificate` imply it.
            ca: PEM file of the certificates to trust; None: the system's.
            certificate: PEM file of the client's certificate.
            key: PEM file of the certificate's private key.
            token: bearer token sent with every call.
            connections: used in turn; with several workers, each serves some connections.

        Raises:
            ServingError: a file cannot be read, or the target is no address of a gRPC server.
        """
        found = _TARGET.fullmatch(target)
        if found is None or not 1 <= int(found["port"] or 1) <= 65535:
            raise ServingError(f"target: expected host:port of a gRPC server, received {target!r}")
        if connections < 1:
            raise ServingError(f"connections: expected 1 or more, received {connections}")
        self._target = target
        self._timeout = timeout
        self._metadata = token_metadata(token)
        options = CHANNEL_OPTIONS
        if tls or ca or certificate or key:
            credentials = client_credentials(ca, certificate, key)
            self._channels = [
                grpc.secure_channel(target, credentials, options) for _ in range(connections)
            ]
        else:
            self._channels = [grpc.insecure_channel(target, options) for _ in range(connections)]
        stubs = [ranking_pb2_grpc.RankingServiceStub(channel) for channel in self._channels]
        # Thread-safe: next() is one step of the interpreter.
        self._stubs = itertools.cycle(stubs)
        self._health_checks = itertools.cycle(
            [
                channel.unary_unary(
                    "/grpc.health.v1.Health/Check",
                    request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                    response_deserializer=health_pb2.HealthCheckResponse.FromString,
                )
                for channel in self._channels
            ]
        )

    def rank(
        self,
        model: str,
        *,
        user: Mapping[str, Feature | None] | None = None,
        item_ids: Sequence[str] | Sequence[int],
        columns: Mapping[str, Sequence[Feature | None]] | None = None,
        context: Mapping[str, Feature | None] | None = None,
        weights: Mapping[str, float] | None = None,
        floors: Mapping[str, Sequence[float | None]] | None = None,
        limit: int | None = None,
        version: int | None = None,
        label: str = "",
        request_id: str = "",
        timeout: float | None = None,
    ) -> Ranking:
        """Rank candidates for one user.

        Args:
            model: name of the model.
            user: user features by name; None and an absent name are missing values. Logs without
                users need none.
            item_ids: the candidates.
            columns: further item features by name, one entry per candidate.
            context: context features by name.
            weights: task weights that replace the contract's in the combined score.
            floors: lowest and highest score that an item may have, by task.
            limit: most items of the answer; None: all.
            version: of the model; None: the newest.
            label: of the version, instead of its number.
            request_id: names the call in logs; empty: the server chooses one.
            timeout: seconds; None: the client's.

        Returns:
            Ranked items, best first.

        Raises:
            CallError: the server refused the call or could not be reached.
            ServingError: a value is of a type that no feature has.
        """
        request = rank_request(
            model_spec(model, version, label), user or {}, context or {}, item_ids, columns or {}
        )
        add_weights(request, weights or {})
        add_floors(request, floors or {})
        request.request_id = request_id
        add_counts(request, limit=limit)
        return Ranking(self._call(next(self._stubs).Rank, request, timeout))

    def recommend(
        self,
        model: str,
        *,
        user: Mapping[str, Feature | None],
        context: Mapping[str, Feature | None] | None = None,
        exclude: Sequence[str] | Sequence[int] = (),
        candidates: int | None = None,
        weights: Mapping[str, float] | None = None,
        floors: Mapping[str, Sequence[float | None]] | None = None,
        limit: int | None = None,
        version: int | None = None,
        label: str = "",
        request_id: str = "",
        timeout: float | None = None,
    ) -> Recommendation:
        """Let the server find candidates for one user and rank them.

        Args:
            model: name of a ranker with a candidate model.
            user: user features by name; the feature store provides absent ones.
            context: context features by name.
            exclude: items to leave out, besides those of the user's history.
            candidates: how many to rank; None: the server's default.
            weights: task weights that replace the contract's in the combined score.
            floors: lowest and highest score that an item may have, by task.
            limit: most items of the answer; None: all candidates.
            version: of the ranker; None: the newest.
            label: of the version, instead of its number.
            request_id: names the call in logs; empty: the server chooses one.
            timeout: seconds; None: the client's.

        Returns:
            Ranked items, best first.

        Raises:
            CallError: the server refused the call or could not be reached.
            ServingError: a value is of a type that no feature has.
        """
        spec = model_spec(model, version, label)
        request = recommend_request(spec, user, context or {}, exclude)
        add_weights(request, weights or {})
        add_floors(request, floors or {})
        request.request_id = request_id
        add_counts(request, limit=limit, candidates=candidates)
        return Recommendation(self._call(next(self._stubs).Recommend, request, timeout))

    def explain(
        self,
        model: str,
        *,
        user: Mapping[str, Feature | None],
        item: str | int,
        item_ids: Sequence[str] | Sequence[int] | None = None,
        columns: Mapping[str, Sequence[Feature | None]] | None = None,
        context: Mapping[str, Feature | None] | None = None,
        weights: Mapping[str, float] | None = None,
        against: Literal["examples", "candidates"] = "examples",
        pairs: int | None = None,
        seed: int = 0,
        version: int | None = None,
        label: str = "",
        request_id: str = "",
        timeout: float | None = None,
    ) -> Any:
        """Say why one candidate of a `rank` call has its scores, in one call of the server.

        Args:
            model: as in `rank`.
            user: as in `rank`.
            item: the candidate to explain; the first of its id.
            item_ids: all candidates, for its place among them; None: it alone.
            columns: as in `rank`.
            context: as in `rank`.
            weights: as in `rank`.
            against: what to compare it with: the version's example rows, or the other candidates.
            pairs: pairs of orders of the features for each row that is compared with, 2 or more;
                None: the server's default.
            seed: of the drawing.
            version: as in `rank`.
            label: as in `rank`.
            request_id: as in `rank`.
            timeout: as in `rank`.

        Returns:
            The object that docs/explain.md describes.

        Raises:
            CallError: the server refused the call or could not be reached.
            ServingError: the item is not among the candidates, or a value is of a type that no
                feature has.
        """
        candidates: list[Any] = [item] if item_ids is None else list(item_ids)
        if item not in candidates:
            raise ServingError(
                f"item: expected one of the {len(candidates)} candidates, received {item!r}"
            )
        if against not in _AGAINST:
            raise ServingError(f"against: expected {' or '.join(_AGAINST)}, received {against!r}")
        request = ranking_pb2.ExplainRequest(
            ranking=rank_request(
                model_spec(model, version, label), user, context or {}, candidates, columns or {}
            ),
            candidate=candidates.index(item),
            against=_AGAINST[against],
        )
        add_weights(request.ranking, weights or {})
        request.ranking.request_id = request_id
        with naming("pairs"):
            request.pairs = pairs or 0
        with naming("seed"):
            request.seed = seed
        answer = self._call(next(self._stubs).Explain, request, timeout)
        return json.loads(answer.explanation)

    def contract(self, model: str, version: int | None = None, label: str = "") -> Any:
        """The features, tasks and limits of the model that serves: its GetContractResponse.

        Raises:
            CallError: the server refused the call or could not be reached.
        """
        request = ranking_pb2.GetContractRequest(model=model_spec(model, version, label))
        return self._call(next(self._stubs).GetContract, request, None)

    def models(self) -> Any:
        """All models with their versions, labels and trials: the server's ListModelsResponse.

        Raises:
            CallError: the server refused the call or could not be reached.
        """
        return self._call(next(self._stubs).ListModels, ranking_pb2.ListModelsRequest(), None)

    def unary(self, path: str, request: Any, response: Any, timeout: float | None = None) -> Any:
        """Call another service of the server.

        Args:
            path: of the method, `/package.Service/Method`.
            request: its message.
            response: class of its answer.
            timeout: seconds; None: the client's.

        Raises:
            CallError: the server refused the call or could not be reached.
        """
        method = self._channels[0].unary_unary(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        return self._call(method, request, timeout)

    def health(self, service: str = "") -> str:
        """The server's health: SERVING, NOT_SERVING or UNKNOWN.

        Args:
            service: `liveness`: whether the process answers; empty: whether all models are loaded
                and warm, and the server does not drain.

        Raises:
            CallError: NOT_FOUND for another service, or the server could not be reached.
        """
        check = next(self._health_checks)
        answer = self._call(check, health_pb2.HealthCheckRequest(service=service), None)
        return health_pb2.ServingStatus.Name(answer.status)

    def close(self) -> None:
        """Close the connection."""
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> "RankClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: Any, request: Any, timeout: float | None) -> Any:
        seconds = self._timeout if timeout is None else timeout
        if not seconds > 0:  # false for NaN as well
            raise ServingError(f"timeout: expected more than 0 seconds, received {seconds}")
        try:
            return method(request, timeout=seconds, metadata=self._metadata)
        except grpc.RpcError as error:
            code = error.code().name
            raise CallError(f"{self._target}: {code}: {error.details()}", code) from None


def parse_ids(contract: Any, texts: Sequence[str]) -> list[str] | list[int]:
    """Item ids from text, in the type of the model's item ids.

    Args:
        contract: what `RankClient.contract` returned.
        texts: one id each.

    Raises:
        ServingError: the model's ids are whole numbers, and an id is not.
    """
    item = next(feature for feature in contract.features if feature.name == contract.item)
    if item.dtype == "string":
        return list(texts)
    try:
        return [int(text) for text in texts]
    except ValueError as error:
        raise ServingError(f"{item.name}: expected whole numbers; {error}") from None
