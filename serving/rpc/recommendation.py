"""Candidates for one user: from the ranker's candidate model, or else the popular items.

Retrieval runs in threads of its own, so that it can be given up when it is late; a run that is
under way ends unheard.  What the request excludes and what the user's history names is left out
afterwards: so many more are asked for, so that the list stays full.
"""

import asyncio
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from multigate.configs.contract import LENGTH, Contract, IdListFeature
from multigate.serving.core.layout import Arrays
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.status import LOG, Call, InvalidRequestError, NotServedError
from multigate.serving.protos import ranking_pb2
from multigate.serving.request.rank_request import FeatureInputs
from multigate.serving.versions.loaded import Served
from multigate.serving.versions.models import Models
from multigate.serving.versions.popular import Id
from multigate.serving.versions.retriever import Retriever

_MOST = 2**31 - 1  # of an int32


@dataclass(frozen=True)
class Found:
    """Candidates, and where they come from."""

    items: list[Id]
    """Best first, without those that are excluded."""
    model: str
    """The candidate model."""
    version: int | None
    """None where none serves."""
    source: ranking_pb2.Source
    """`RETRIEVED` or `POPULAR`."""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Failure:
    """Why there is no answer of the candidate model."""

    kind: str
    """In metrics: unready, late, failed or unknown_user."""
    reason: str


class CandidateFinder:
    """Finds candidates for Recommend."""

    def __init__(self, models: Models, metrics: ServerMetrics, options: ServerOptions) -> None:
        self._models = models
        self._metrics = metrics
        self._count = options.recommend_candidates
        self._most = options.max_candidates
        self._seconds = options.retrieval_timeout_ms / 1e3
        self._threads = ThreadPoolExecutor(options.batch_slots, "retrieval")

    def close(self) -> None:
        """Wait for the runs under way."""
        self._threads.shutdown()

    async def find(self, request: Any, served: Served, user: FeatureInputs, call: Call) -> Found:
        """Candidates for a RecommendRequest.

        Args:
            request: the message.
            served: the ranker's version.
            user: the user's and the context's features.
            call: whose deadline counts.

        Raises:
            InvalidRequestError: `limit`, `candidates` or `exclude` is not what it may be.
            WrongStateError: the ranker has no candidate model.
            NotServedError: nothing was found, and no popular items stand in.
            TooLateError: the deadline passed meanwhile.
        """
        wanted = self._wanted(request)
        contract = served.servable.contract
        excluded = {*served.reader.read_ids("exclude", request.exclude)}
        excluded |= seen(contract, user.inputs)
        manager = self._models.candidates(served.model)
        try:
            retriever = manager.acquire()
        except NotServedError as error:
            version, popular = None, served.popular
            answer: list[Id] | _Failure = _Failure("unready", str(error))
        else:
            version, popular = retriever.servable.version, retriever.popular
            answer = await self._retrieve(retriever, user.inputs, wanted + len(excluded), call)
        source, warnings, label = ranking_pb2.RETRIEVED, [], "retrieved"
        if isinstance(answer, _Failure):
            warnings.append(f"candidates: {answer.reason}; popular items stand in")
            source, label = ranking_pb2.POPULAR, f"popular: {answer.kind}"
            if not popular:
                raise NotServedError(
                    f"model {served.model!r}: no candidates: {answer.reason}, and no popular items "
                    "stand in for it; see the server's log"
                )
            answer = popular
        self._metrics.recommendations.add(served.model, label)
        items = [item for item in answer if item not in excluded][:wanted]
        asked = max(request.candidates, request.limit)
        if not items:
            warnings.append(f"candidates: all {len(answer)} items that there are, are excluded")
        elif len(items) < asked:
            warnings.append(f"candidates: {asked} asked for, there are {len(items)} to recommend")
        return Found(items, manager.name, version, source, warnings)

    def _wanted(self, request: Any) -> int:
        """How many candidates to rank."""
        for name in ("limit", "candidates"):
            value = getattr(request, name)
            if not 0 <= value <= self._most:
                raise InvalidRequestError(
                    f"{name}: expected 0 (the default) to {self._most}, received {value}"
                )
        if 0 < request.candidates < request.limit:
            raise InvalidRequestError(
                f"candidates: expected at least the limit of {request.limit}, received "
                f"{request.candidates}"
            )
        return request.candidates or max(min(self._count, self._most), request.limit)

    async def _retrieve(
        self, retriever: Retriever, user: Arrays, count: int, call: Call
    ) -> list[Id] | _Failure:
        """What the candidate model finds in time; releases it when it has ended."""
        started = time.perf_counter()
        run = self._threads.submit(retriever.find, user, min(count, _MOST))
        run.add_done_callback(lambda _: retriever.servable.release())
        remaining = call.remaining()
        seconds = self._seconds if remaining is None else min(self._seconds, remaining)
        version = f"{retriever.model} version {retriever.servable.version}"
        try:
            # When it is given up it is cancelled, if it has not begun.
            items, known = await asyncio.wait_for(asyncio.wrap_future(run), max(seconds, 0.0))
        except TimeoutError:
            call.check("in retrieval")
            return _Failure("late", f"{version} gave no answer within {1e3 * self._seconds:g} ms")
        except Exception:
            LOG.exception("%s failed", version)
            return _Failure("failed", f"{version} failed")
        finally:
            self._metrics.retrieval_time.observe(time.perf_counter() - started, retriever.model)
        if not known:
            return _Failure("unknown_user", f"{version} knows neither the user nor a history")
        return items


def seen(contract: Contract, user: Arrays) -> set[Id]:
    """Items that the user's histories name: lists of the user that share the item's vocabulary.

    Args:
        contract: of the features.
        user: inputs of `rank` for one user.
    """
    found: set[Id] = set()
    for name, feature in contract.of_side("user"):
        if isinstance(feature, IdListFeature) and feature.share == contract.item:
            found.update(user[name][0, : user[name + LENGTH][0]].tolist())
    return found


def to_rank(request: Any, items: Iterable[Id]) -> Any:
    """The RankRequest that is left of a RecommendRequest once its user is read."""
    ranked = ranking_pb2.RankRequest(limit=request.limit, returns=request.returns)
    ranked.task_weights.MergeFrom(request.task_weights)
    ranked.floors.MergeFrom(request.floors)
    for item in items:
        if isinstance(item, int):
            ranked.candidates.item_id.integers.values.append(item)
        else:
            ranked.candidates.item_id.texts.values.append(item.decode())
    return ranked
