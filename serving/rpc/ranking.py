"""`multigate.RankingService`: takes a user, answers ranked items with a score per task.

A Rank request names the candidates.  For Recommend, `serving.rpc.recommendation` finds them; they
are then ranked as in Rank.
"""

import json
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from multigate.configs.contract import Contract, IdListFeature, VectorFeature
from multigate.explanation.document import PAIRS
from multigate.serving.core.layout import RANK, SCORE, Arrays, value_dtype
from multigate.serving.core.logs import say
from multigate.serving.core.loop import Threads
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.status import Call, InvalidRequestError
from multigate.serving.core.wire import packed
from multigate.serving.observe.drift import DriftMonitor
from multigate.serving.observe.impressions import ImpressionLog, Ranked
from multigate.serving.protos import ranking_pb2, ranking_pb2_grpc
from multigate.serving.request.rank_request import FeatureInputs, ParsedRequest
from multigate.serving.rpc.recommendation import CandidateFinder, to_rank_request
from multigate.serving.versions.explaining import Against, Drawing, explain_candidate
from multigate.serving.versions.models import Models
from multigate.serving.versions.ranker_version import RankerVersion
from multigate.serving.versions.saved_model import SavedModel

_DTYPES = {"string": "string", "int64": "int", "float32": "float"}
_RETURNS = frozenset(ranking_pb2.Return.values())
_AGAINST: dict[int, Against] = {
    ranking_pb2.EXAMPLES: "examples",
    ranking_pb2.CANDIDATES: "candidates",
}
_LONGEST_ID = 256
"""Characters of a request id, which every line of the log and every impression row repeats."""
_SCORE_FIELD = ranking_pb2.RankResponse.SCORE_FIELD_NUMBER


class RankingService(ranking_pb2_grpc.RankingServiceServicer):
    """All methods of the service; failures are exceptions of `serving.core.status`."""

    def __init__(
        self,
        models: Models,
        metrics: ServerMetrics,
        max_candidates: int,
        finder: CandidateFinder,
        threads: Threads,
        impressions: ImpressionLog | None = None,
        drift: DriftMonitor | None = None,
    ) -> None:
        self._models = models
        self._metrics = metrics
        self._max_candidates = max_candidates
        self._finder = finder
        self._threads = threads
        self._impressions = impressions
        self._drift = drift

    async def Rank(self, request: Any, context: Any) -> Any:
        """Score the candidates for one user and order them."""
        request_id = _request_id(request)
        call = Call(context)
        call.check("before the request was read")
        with self._models.use(*_read_model_spec(request.model)) as ranker:
            say(model=ranker.model, version=ranker.number)
            return await self._rank(request, request_id, ranker, call)

    async def Recommend(self, request: Any, context: Any) -> Any:
        """Find candidates for one user, and rank them."""
        request_id = _request_id(request)
        call = Call(context)
        call.check("before the request was read")
        with self._models.use(*_read_model_spec(request.model)) as ranker:
            say(model=ranker.model, version=ranker.number)
            slow = ranker.is_slow_to_read(request)
            user = await self._threads.run_if(slow, ranker.reader.read_user, request)
            found = await self._finder.find(request, ranker, user, call)
            say(source=ranking_pb2.Source.Name(found.source))
            response = ranking_pb2.RecommendResponse(
                candidates_name=found.model,
                candidates_version=found.version,
                source=found.source,
            )
            if found.items:
                ranking = to_rank_request(request, found.items)
                ranked = await self._rank(ranking, request_id, ranker, call, user)
                response.ranking.CopyFrom(ranked)
            else:
                empty = empty_response(ranker.model, ranker.saved_model, request_id)
                response.ranking.CopyFrom(empty)
            # Warnings about candidates come before those about ranking.
            warnings = [*found.warnings, *response.ranking.warnings]
            response.ranking.ClearField("warnings")
            response.ranking.warnings.extend(warnings)
            return response

    async def GetContract(self, request: Any, context: Any) -> Any:
        """The features, tasks and limits of a model."""
        with self._models.use(*_read_model_spec(request.model)) as ranker:
            contract = ranker.contract
            response = ranking_pb2.GetContractResponse(
                model_name=ranker.model,
                model_version=ranker.number,
                schema=ranker.schema,
                user=contract.user,
                item=contract.item,
                combine=contract.combine.kind,
                max_candidates=self._max_candidates,
            )
            for name, feature in contract.of_side("user", "context", "item"):
                response.features.append(_feature_message(name, feature))
            for name, task in contract.tasks.items():
                response.tasks.add(
                    name=name, group=task.group, type=task.type, score_weight=task.score_weight
                )
            return response

    async def Explain(self, request: Any, context: Any) -> Any:
        """Say why one candidate has its scores."""
        ranking = request.ranking
        request_id = _request_id(ranking)
        call = Call(context)
        call.check("before the request was read")
        with self._models.use(*_read_model_spec(ranking.model)) as ranker:
            say(model=ranker.model, version=ranker.number)
            if request.against not in _AGAINST:
                raise InvalidRequestError(
                    f"against: expected one of {', '.join(ranking_pb2.Against.keys())}, received "
                    f"number {request.against}"
                )
            parsed = await self._threads.run(ranker.reader.read, ranking)
            say(candidates=parsed.rows)
            async with ranker.run_slots.hold(call):
                found = await self._threads.run(
                    explain_candidate,
                    ranker.saved_model,
                    ranker.folder,
                    parsed,
                    request.candidate,
                    _AGAINST[request.against],
                    Drawing(request.pairs or PAIRS, request.seed),
                    partial(call.check, "while rows were scored"),
                )
            found |= {"model": ranker.model, "version": ranker.number}
            return ranking_pb2.ExplainResponse(
                model_name=ranker.model,
                model_version=ranker.number,
                schema=ranker.schema,
                request_id=request_id,
                explanation=json.dumps(found, ensure_ascii=False),
            )

    async def _rank(
        self,
        request: Any,
        request_id: str,
        ranker: RankerVersion,
        call: Call,
        user: FeatureInputs | None = None,
    ) -> Any:
        """Answer a RankRequest; `user` replaces the request's own user and context."""
        slow = ranker.is_slow_to_read(request)
        parsed = await self._threads.run_if(slow, ranker.reader.read, request, user)
        say(candidates=parsed.rows)
        self._metrics.candidates.observe(parsed.rows, ranker.model)
        if parsed.missing:
            self._metrics.missing.add_all(ranker.model, parsed.missing)
        if parsed.lacking:
            counts = {name: len(items) for name, items in parsed.lacking.items()}
            self._metrics.unscored.add_all(ranker.model, counts)
        if parsed.from_store:
            self._metrics.stored.add_all(ranker.model, parsed.from_store)
        if request.returns not in _RETURNS:
            raise InvalidRequestError(
                f"returns: expected one of {', '.join(ranking_pb2.Return.keys())}, "
                f"received number {request.returns}"
            )
        outputs = await ranker.batchers[RANK].run(parsed.inputs, parsed.rows, call)
        refuse_overflow(outputs, parsed.place)
        answer = self._answer(request, request_id, ranker, parsed, outputs)
        if self._drift is not None:
            self._drift.add(ranker, parsed.inputs, outputs)
        return answer

    def _answer(
        self,
        request: Any,
        request_id: str,
        ranker: RankerVersion,
        parsed: ParsedRequest,
        outputs: Arrays,
    ) -> Any:
        order = rank_order(outputs, parsed)
        saved_model = ranker.saved_model
        if self._impressions is not None:
            self._impressions.add(
                Ranked(
                    ranker.model,
                    saved_model.version,
                    saved_model.schema,
                    saved_model.contract,
                    request_id,
                    parsed.inputs,
                    outputs,
                    order,
                    time.time(),
                    parsed.places,
                )
            )
        response = empty_response(ranker.model, saved_model, request_id)
        fill_response(response, request, saved_model.contract, parsed, outputs, order)
        return response


def fill_response(
    response: Any,
    request: Any,
    contract: Contract,
    parsed: ParsedRequest,
    outputs: Arrays,
    order: np.ndarray,
) -> None:
    """Put ranked items into a RankResponse.

    Args:
        response: without items.
        request: the RankRequest.
        contract: the version's.
        parsed: what was read from the request.
        outputs: of the `rank` signature, (N,) each.
        order: what `rank_order` returned.
    """
    places = order if parsed.places is None else parsed.places[order]
    response.item_index.extend(places.tolist())
    if parsed.unscored is not None:
        response.unscored_index.extend(parsed.unscored.tolist())
    if parsed.missing or parsed.problem or parsed.lacking:
        response.warnings.extend(parsed.warnings())
    which = request.candidates.item_id.WhichOneof("values")
    # Text ids are bytes here; protobuf accepts them.
    ids = parsed.inputs[contract.item][order].tolist()
    getattr(response.item_id, which).values.extend(ids)
    if request.returns == ranking_pb2.TASK_SCORES:
        response.MergeFromString(packed(outputs[SCORE][order], _SCORE_FIELD))
        for task in contract.tasks:
            response.task_scores[task].MergeFromString(packed(outputs[task][order]))


def _request_id(request: Any) -> str:
    """The caller's request id, or a new one; adds it to the log lines of this call."""
    request_id: str = request.request_id or uuid.uuid4().hex
    if len(request_id) > _LONGEST_ID:
        raise InvalidRequestError(
            f"request_id: expected at most {_LONGEST_ID} characters, received {len(request_id)}"
        )
    say(request_id=request_id)
    return request_id


def empty_response(model: str, saved_model: SavedModel, request_id: str) -> Any:
    """A RankResponse without items."""
    return ranking_pb2.RankResponse(
        model_name=model,
        model_version=saved_model.version,
        schema=saved_model.schema,
        request_id=request_id,
    )


def rank_order(outputs: Arrays, parsed: ParsedRequest) -> np.ndarray:
    """Indices of the ranked candidates, best first; equal scores keep the caller's order.

    Args:
        outputs: of the `rank` signature, (N,) each.
        parsed: gives floors and limit.

    Returns:
        (K,) with K <= limit.
    """
    if not parsed.floors:
        return np.argsort(-outputs[SCORE], kind="stable")[: parsed.limit]
    stays = np.ones(parsed.rows, bool)
    for task, (low, high) in parsed.floors.items():
        stays &= (outputs[task] >= low) & (outputs[task] <= high)
    candidates = np.flatnonzero(stays)
    order = np.argsort(-outputs[SCORE][candidates], kind="stable")
    return candidates[order][: parsed.limit]


def _read_model_spec(model: Any) -> tuple[str, int | None, str]:
    """Name, version and label in multigate's ModelSpec."""
    which = model.WhichOneof("version_choice")
    return (
        model.name,
        model.version if which == "version" else None,
        model.version_label if which == "version_label" else "",
    )


def refuse_overflow(outputs: Arrays, place: Callable[[int], int] = lambda row: row) -> None:
    """Refuse scores that are not finite: finite inputs can be too large to compute with.

    Args:
        outputs: (N,) each.
        place: where the candidate of a row stands in the request.

    Raises:
        InvalidRequestError: names the candidate.
    """
    for name, scores in outputs.items():
        finite = np.isfinite(scores)
        if not np.logical_and.reduce(finite):
            row = int(np.argmin(finite))
            raise InvalidRequestError(
                f"candidate {place(row)}: output {name!r}: expected a finite score, the "
                f"model computes {scores[row]}: the request's numbers or weights are too large"
            )


def _max_length(feature: Any) -> int:
    """The most values that one row has; 0 where it has a single one."""
    if isinstance(feature, VectorFeature):
        return feature.size
    return feature.max_length if isinstance(feature, IdListFeature) else 0


def _feature_message(name: str, feature: Any) -> Any:
    """A feature as a message of GetContract."""
    described = ranking_pb2.Feature(
        name=name,
        side=feature.side,
        kind=feature.kind,
        dtype=_DTYPES[value_dtype(feature)],
        missing=feature.missing,
        max_length=_max_length(feature),
    )
    default = getattr(feature, "default", None)
    if feature.missing == "default" and default is not None:
        field = {"string": "text", "int": "integer", "float": "number"}[described.dtype]
        setattr(described.default, field, default)
    return described
