"""Finds the candidates of a Recommend call: from the candidate model, or else the popular items.

Retrieval runs in threads of its own, so that a call need not wait for a late run, whose result is
ignored.  Items that the request excludes, or that the user's histories name, are removed after
retrieval.  To keep the list full, that many more items are retrieved.  Example: if 500 candidates
are wanted and 20 items excluded, 520 are retrieved.
"""

import asyncio
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from multigate.configs.contract import LENGTH, Contract, IdListFeature
from multigate.serving.core.layout import Arrays
from multigate.serving.core.loop import for_future
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.status import LOG, Call, InvalidRequestError, NotServedError
from multigate.serving.protos import ranking_pb2
from multigate.serving.request.rank_request import FeatureInputs
from multigate.serving.versions.candidate_version import CandidateVersion
from multigate.serving.versions.manager import VersionManager
from multigate.serving.versions.models import Models
from multigate.serving.versions.popular import ItemId
from multigate.serving.versions.ranker_version import RankerVersion

_MAX_COUNT = 2**31 - 1  # of an int32


@dataclass(frozen=True)
class FoundCandidates:
    """Candidates, and their source."""

    items: list[ItemId]
    """Best first, without excluded items."""
    model: str
    """The candidate model."""
    version: int | None
    """None where no version is available."""
    source: ranking_pb2.Source
    """`RETRIEVED` or `POPULAR`."""
    warnings: list[str]
    label: str
    """Where they come from, and why, in metrics."""


@dataclass(frozen=True)
class _Failure:
    """Why the candidate model gave no candidates."""

    kind: str
    """Label in metrics: unready, late, failed or unknown_user."""
    reason: str


class CandidateFinder:
    """Finds candidates for Recommend."""

    def __init__(self, models: Models, metrics: ServerMetrics, options: ServerOptions) -> None:
        self._models = models
        self._metrics = metrics
        self._count = options.recommend_candidates
        self._max_candidates = options.max_candidates
        self._seconds = options.retrieval_timeout_ms / 1e3
        self._threads = ThreadPoolExecutor(options.batch_slots, "retrieval")

    def close(self) -> None:
        """Wait for the current runs."""
        self._threads.shutdown()

    async def find(
        self, request: Any, ranker: RankerVersion, user: FeatureInputs, call: Call
    ) -> FoundCandidates:
        """Candidates for a RecommendRequest.

        Args:
            request: the message.
            ranker: the version that will rank the candidates.
            user: inputs of the user's and the context's features.
            call: limits the time.

        Raises:
            InvalidRequestError: `limit`, `candidates` or `exclude` is invalid.
            WrongStateError: the ranker has no candidate model.
            NotServedError: retrieval failed, and there are no popular items.
            TooLateError: the deadline passed during retrieval.
        """
        wanted = self._wanted(request)
        contract = ranker.contract
        excluded = {*ranker.reader.read_ids("exclude", request.exclude)}
        excluded |= history_items(contract, user.inputs)
        manager = self._models.candidates(ranker.model)
        try:
            candidate_version = _version_for(ranker, manager)
        except NotServedError as error:
            version, popular = None, ranker.popular
            answer: list[ItemId] | _Failure = _Failure("unready", str(error))
        else:
            version, popular = candidate_version.number, candidate_version.popular
            answer = await self._retrieve(
                candidate_version, user.inputs, wanted + len(excluded), call
            )
        source, warnings, label = ranking_pb2.RETRIEVED, [], "retrieved"
        if isinstance(answer, _Failure):
            warnings.append(f"candidates: {answer.reason}; popular items are used instead")
            source, label = ranking_pb2.POPULAR, f"popular: {answer.kind}"
            if not popular:
                raise NotServedError(
                    f"model {ranker.model!r}: no candidates: {answer.reason}, and there are no "
                    "popular items; see the server's log"
                )
            answer = popular
        items = [item for item in answer if item not in excluded][:wanted]
        requested = max(request.candidates, request.limit)
        if not items:
            warnings.append(f"candidates: all {len(answer)} items found are excluded")
        elif len(items) < requested:
            warnings.append(f"candidates: {requested} requested, only {len(items)} found")
        return FoundCandidates(items, manager.name, version, source, warnings, label)

    def _wanted(self, request: Any) -> int:
        """The number of candidates to rank."""
        for name in ("limit", "candidates"):
            value = getattr(request, name)
            if not 0 <= value <= self._max_candidates:
                raise InvalidRequestError(
                    f"{name}: expected 0 (the default) to {self._max_candidates}, received {value}"
                )
        if 0 < request.candidates < request.limit:
            raise InvalidRequestError(
                f"candidates: expected at least the limit of {request.limit}, received "
                f"{request.candidates}"
            )
        return request.candidates or max(min(self._count, self._max_candidates), request.limit)

    async def _retrieve(
        self, candidate_version: CandidateVersion, user: Arrays, count: int, call: Call
    ) -> list[ItemId] | _Failure:
        """Candidates that are found in time; releases the version when the run has ended."""
        started = time.perf_counter()
        name = f"{candidate_version.model} version {candidate_version.number}"
        retrieve = for_future(candidate_version.retrieve)
        try:
            run = self._threads.submit(retrieve, user, min(count, _MAX_COUNT))
        except RuntimeError:  # no thread can be started
            candidate_version.saved_model.release()
            LOG.exception("%s: retrieval cannot be started", name)
            return _Failure("failed", f"{name} failed")
        run.add_done_callback(lambda _: candidate_version.saved_model.release())
        remaining = call.remaining()
        seconds = self._seconds if remaining is None else min(self._seconds, remaining)
        try:
            # On a timeout the run is cancelled, unless it has begun.
            items, known = await asyncio.wait_for(asyncio.wrap_future(run), max(seconds, 0.0))
        except TimeoutError:
            call.check("in retrieval")
            return _Failure("late", f"{name} gave no answer within {1e3 * self._seconds:g} ms")
        except Exception:
            LOG.exception("%s: retrieval failed", name)
            return _Failure("failed", f"{name} failed")
        finally:
            self._metrics.retrieval_time.observe(
                time.perf_counter() - started, candidate_version.model
            )
        if not known:
            return _Failure(
                "unknown_user", f"{name} knows neither the user nor an item of a history"
            )
        return items


def _version_for(
    ranker: RankerVersion, manager: VersionManager[CandidateVersion]
) -> CandidateVersion:
    """The version of a candidate model for a call; the caller must release its `saved_model`.

    Raises:
        NotServedError: no version is available, or a reload replaced both models after the call
            had begun, by those of another schema.
    """
    found = manager.acquire()
    if found.schema != ranker.schema:
        found.saved_model.release()
        raise NotServedError(
            f"model {manager.name!r}: of another schema than model {ranker.model!r}, which a "
            "reload replaced during the call"
        )
    return found


def history_items(contract: Contract, user: Arrays) -> set[ItemId]:
    """Items in the user's histories: the user's lists that share the item's vocabulary.

    Args:
        contract: describes the features.
        user: inputs of `rank` for one user.
    """
    found: set[ItemId] = set()
    for name, feature in contract.of_side("user"):
        if isinstance(feature, IdListFeature) and feature.share == contract.item:
            found.update(user[name][0, : user[name + LENGTH][0]].tolist())
    return found


def to_rank_request(request: Any, items: Iterable[ItemId]) -> Any:
    """A RankRequest for these items, with the other fields of a RecommendRequest; no user."""
    ranked = ranking_pb2.RankRequest(limit=request.limit, returns=request.returns)
    ranked.task_weights.MergeFrom(request.task_weights)
    ranked.floors.MergeFrom(request.floors)
    for item in items:
        if isinstance(item, int):
            ranked.candidates.item_id.integers.values.append(item)
        else:
            ranked.candidates.item_id.texts.values.append(item.decode())
    return ranked
