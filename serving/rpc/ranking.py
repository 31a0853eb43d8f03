"""`multigate.RankingService`: takes a user, answers ranked items with a score per task.

A Rank request names the candidates.  For Recommend, `serving.rpc.recommendation` finds them; they
are then ranked as in Rank.
"""

import json
import random
import time
from dataclasses import dataclass
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
from multigate.serving.core.tracing import step
from multigate.serving.core.wire import packed
from multigate.serving.observe.drift import DriftMonitor
from multigate.serving.observe.impressions import ImpressionLog, Ranked
from multigate.serving.observe.shadow import Shadow
from multigate.serving.observe.side import Side
from multigate.serving.protos import ranking_pb2, ranking_pb2_grpc
from multigate.serving.request.order import rank_order
from multigate.serving.request.rank_request import FeatureInputs, ParsedRequest
from multigate.serving.rpc.canary import CanaryRouter
from multigate.serving.rpc.model_status import Workers, list_models
from multigate.serving.rpc.overflow import refuse_overflow
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


@dataclass(frozen=True)
class _Answered:
    """A ranking, before anything is noted of it."""

    response: Any
    """RankResponse."""
    ranker: RankerVersion
    parsed: ParsedRequest
    outputs: Arrays
    """(N,) each."""
    order: np.ndarray
    """(K,)."""


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
        shadow: Shadow | None = None,
        canary_timeout: float = 1.0,
        workers: Workers | None = None,
    ) -> None:
        self._models = models
        self._workers = workers
        self._canary = CanaryRouter(models, metrics, canary_timeout)
        self._shadow = shadow
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
        spec = _read_model_spec(request.model)
        side = self._canary.side(spec, request.user, request_id)

        async def work(ranker: RankerVersion) -> _Answered:
            return await self._rank(request, request_id, ranker, call)

        answered = await self._canary.answer(spec, side, call, work)
        self._count(answered)
        self._note(answered, side, request)
        return answered.response

    async def Recommend(self, request: Any, context: Any) -> Any:
        """Find candidates for one user, and rank them."""
        request_id = _request_id(request)
        call = Call(context)
        call.check("before the request was read")
        spec = _read_model_spec(request.model)
        side = self._canary.side(spec, request.user, request_id)

        async def work(ranker: RankerVersion) -> tuple[Any, str, _Answered | None, Any]:
            return await self._recommend(request, request_id, ranker, call)

        response, label, answered, ranking = await self._canary.answer(spec, side, call, work)
        self._metrics.recommendations.add(response.ranking.model_name, label)
        if answered is not None:
            self._count(answered)
            self._note(answered, side, ranking, request)
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

    async def ListModels(self, request: Any, context: Any) -> Any:
        """All models with their versions, labels and trials."""
        return await self._threads.run(list_models, self._models, self._workers)

    async def Explain(self, request: Any, context: Any) -> Any:
        """Say why one candidate has its scores."""
        ranking = request.ranking
        request_id = _request_id(ranking)
        call = Call(context)
        call.check("before the request was read")
        spec = _read_model_spec(ranking.model)
        side = self._canary.side(spec, ranking.user, request_id)
        with self._canary.version(spec, side) as ranker:
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
    ) -> "_Answered":
        """Answer a RankRequest; `user` replaces the request's own user and context."""
        slow = ranker.is_slow_to_read(request)
        with step("read"):
            parsed = await self._threads.run_if(slow, ranker.reader.read, request, user)
        say(candidates=parsed.rows, signature=RANK)
        if request.returns not in _RETURNS:
            raise InvalidRequestError(
                f"returns: expected one of {', '.join(ranking_pb2.Return.keys())}, "
                f"received number {request.returns}"
            )
        outputs = await ranker.batchers[RANK].run(parsed.inputs, parsed.rows, call)
        refuse_overflow(outputs, parsed.place)
        order = rank_order(outputs, parsed)
        response = empty_response(ranker.model, ranker.saved_model, request_id)
        fill_response(response, request, ranker.contract, parsed, outputs, order)
        return _Answered(response, ranker, parsed, outputs, order)

    def _count(self, answered: "_Answered") -> None:
        """Count what an answer's request held: once, though a canary may have read it as well."""
        model, parsed = answered.ranker.model, answered.parsed
        self._metrics.candidates.observe(parsed.rows, model)
        if parsed.missing:
            self._metrics.missing.add_all(model, parsed.missing)
        if parsed.lacking:
            counts = {name: len(items) for name, items in parsed.lacking.items()}
            self._metrics.unscored.add_all(model, counts)
        if parsed.from_store:
            self._metrics.stored.add_all(model, parsed.from_store)

    def _note(
        self, answered: "_Answered", side: Side | None, request: Any, user: Any = None
    ) -> None:
        """Hand an answer to what observes the answers: impression log, drift, shadow.

        Args:
            answered: the answer.
            side: of the call.
            request: the RankRequest.
            user: the RecommendRequest whose user it is; None: the RankRequest's own.
        """
        ranker, parsed, outputs = answered.ranker, answered.parsed, answered.outputs
        if self._drift is not None:
            tried = self._models.trial(ranker.model)
            if tried is None or tried[1] is not ranker:  # which a call may name, too
                self._drift.add(ranker, parsed.inputs, outputs)
        impressions = self._impressions
        if impressions is not None and not impressions.wants(answered.response.request_id):
            impressions = None
        if impressions is None and (side is None or not side.shadowed):
            return
        ranked = Ranked(
            ranker.model,
            ranker.number,
            ranker.schema,
            ranker.contract,
            answered.response.request_id,
            parsed.inputs,
            outputs,
            answered.order,
            time.time(),
            side,
            parsed.places,
        )
        if impressions is not None:
            impressions.add(ranked)
        if self._shadow is not None:
            self._shadow.add(ranked, parsed, request, user)

    async def _recommend(
        self, request: Any, request_id: str, ranker: RankerVersion, call: Call
    ) -> tuple[Any, str, "_Answered | None", Any]:
        """Answer a RecommendRequest.

        Returns:
            The response; where its candidates come from, for the metrics; its ranking and the
            RankRequest that it answers, None where no candidate was found.
        """
        slow = ranker.is_slow_to_read(request)
        with step("read"):
            user = await self._threads.run_if(slow, ranker.reader.read_user, request)
        with step("retrieve"):
            found = await self._finder.find(request, ranker, user, call)
        say(source=ranking_pb2.Source.Name(found.source))
        response = ranking_pb2.RecommendResponse(
            candidates_name=found.model,
            candidates_version=found.version,
            source=found.source,
        )
        answered, ranking = None, None
        if found.items:
            ranking = to_rank_request(request, found.items)
            answered = await self._rank(ranking, request_id, ranker, call, user)
            response.ranking.CopyFrom(answered.response)
        else:
            empty = empty_response(ranker.model, ranker.saved_model, request_id)
            response.ranking.CopyFrom(empty)
        # Warnings about candidates come before those about ranking.
        warnings = [*found.warnings, *response.ranking.warnings]
        response.ranking.ClearField("warnings")
        response.ranking.warnings.extend(warnings)
        return response, found.label, answered, ranking


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
    # Not uuid4: it lets go of the interpreter, for which a run of the model may be waiting.
    request_id: str = request.request_id or f"{random.getrandbits(128):032x}"
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


def _read_model_spec(model: Any) -> tuple[str, int | None, str]:
    """Name, version and label in multigate's ModelSpec."""
    which = model.WhichOneof("version_choice")
    return (
        model.name,
        model.version if which == "version" else None,
        model.version_label if which == "version_label" else "",
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
