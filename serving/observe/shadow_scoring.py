"""The process of the shadow: loads the other version of a trial, scores calls, compares, writes.

`serving.observe.shadow` says what the rows are, and sends the questions.  What is loaded here is
loaded once more than in the server: models of one server share no memory between processes.
"""

import gc
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from multigate.configs.files import in_use
from multigate.runtime.in_flight import CallsInFlight
from multigate.serving.core import logs
from multigate.serving.core.layout import RANK, SCORE, Arrays
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.observe.agreement import aligned, overlap_of, pairs_agreement, places_of
from multigate.serving.observe.gaps import Gaps
from multigate.serving.observe.impressions import Ranked, rows_of
from multigate.serving.observe.row_files import RowFiles
from multigate.serving.protos import ranking_pb2
from multigate.serving.request.order import rank_order
from multigate.serving.request.rank_request import ParsedRequest
from multigate.serving.versions.batching import divide, join_calls, split_call
from multigate.serving.versions.ranker_version import RankerVersion
from multigate.serving.versions.saved_model import LoadError, SavedModel

RUN_ROWS = 400
"""Most rows of one run: it keeps its core's caches from the server no longer than a call does."""
_LOAD_AGAIN = 30.0
"""Seconds after which a version that could not be loaded is tried again."""


@dataclass(frozen=True)
class Wanted:
    """A version that must be loaded to score calls; another copy of it is another version."""

    model: str
    number: int
    folder: Path
    exported_at: float


@dataclass(frozen=True)
class AnsweredCall:
    """An answered call that another version is to score."""

    ranked: Ranked
    """Without contract; of its inputs the ids of user and items alone."""
    places: np.ndarray
    """(N,) of the answering version's rows in the request."""
    request: bytes
    """RankRequest."""
    user: bytes | None
    """RecommendRequest, whose user it is; None: the RankRequest's own."""


@dataclass(frozen=True)
class Question:
    """What the server asks for: to have these versions and no others, and to score calls."""

    versions: Sequence[Wanted] = ()
    by: Wanted | None = None
    """Of the versions, the one that scores the calls."""
    calls: Sequence[AnsweredCall] = ()
    last: bool = False
    """Whether all files of rows are to be finished."""


@dataclass(frozen=True)
class Agreement:
    """A call that both versions have scored."""

    pairs: float | None
    overlap: float


Outcome = Agreement | str
"""Of a call; a text says why it could not be scored."""


@dataclass
class Answer:
    """What became of a question's calls, in their order, and of rows since the last answer."""

    outcomes: list[Outcome] = field(default_factory=list)
    rows: list[tuple[str, str, int]] = field(default_factory=list)
    """Model, `written` or `dropped`, and how many."""


class Scorer:
    """Answers the questions."""

    def __init__(self, options: ServerOptions, gaps: Gaps) -> None:
        """Make one that has loaded nothing.

        Args:
            options: of the server.
            gaps: between its calls.

        Raises:
            ServingError: the impression log cannot be written to.
        """
        self._options = options
        self._gaps = gaps
        self._metrics = ServerMetrics()
        self._loaded: dict[Wanted, RankerVersion] = {}
        self._failed: dict[Wanted, tuple[float, str]] = {}
        """When a load failed, in monotonic seconds, and why."""
        self._rows: list[tuple[str, str, int]] = []
        self._files: RowFiles | None = None
        if options.impression_log is not None:
            self._files = RowFiles(
                options.impression_log,
                "shadow/shadow",
                options.impression_log_rows,
                options.impression_log_seconds,
                lambda *counted: self._rows.append(counted),
            )

    def answer(self, question: Question) -> Answer:
        """Load and close versions, score the calls, and finish the files that are old enough."""
        for one in self._loaded.keys() - set(question.versions):
            _close(self._loaded.pop(one))
        self._failed = {one: why for one, why in self._failed.items() if one in question.versions}
        for one in question.versions:
            self._load(one)
        outcomes: list[Outcome] = []
        if question.by in self._loaded:
            outcomes = self._process(self._loaded[question.by], question.calls)
        elif question.by is not None:
            outcomes = [self._failed[question.by][1]] * len(question.calls)
        if self._files is not None:
            self._files.finish_old(all_of_them=question.last)
        rows, self._rows[:] = list(self._rows), []
        return Answer(outcomes, rows)

    def _load(self, wanted: Wanted) -> None:
        """Load a version, unless it is loaded, or has failed of late."""
        failed = self._failed.get(wanted)
        if wanted in self._loaded or (failed and time.monotonic() - failed[0] < _LOAD_AGAIN):
            return
        try:
            self._loaded[wanted] = self._open(wanted)
            self._failed.pop(wanted, None)
            gc.collect()
            gc.freeze()
        except Exception as error:
            self._failed[wanted] = time.monotonic(), str(error) or repr(error)

    def _open(self, wanted: Wanted) -> RankerVersion:
        options = self._options
        with ExitStack() as files:
            if not files.enter_context(in_use(wanted.folder)):
                raise LoadError(f"{wanted.folder}: no longer there")
            saved_model = SavedModel.load(
                wanted.number,
                wanted.folder,
                (
                    options.tensorflow_intra_op_parallelism,
                    options.tensorflow_inter_op_parallelism,
                ),
                RankerVersion.layouts,
            )
            try:
                loaded = RankerVersion.open(
                    wanted.model, wanted.folder, saved_model, options, self._metrics
                )
            except BaseException:
                saved_model.retire()
                raise
            loaded.files = files.pop_all()
            return loaded

    def _process(self, other: RankerVersion, calls: Sequence[AnsweredCall]) -> list[Outcome]:
        """Score calls together; if that fails, each alone."""
        try:
            scored = self._score(other, calls)
        except Exception as error:
            if len(calls) == 1:
                return [str(error) or repr(error)]
            return [outcome for call in calls for outcome in self._process(other, [call])]
        return [self._compared(other, call, *one) for call, one in zip(calls, scored, strict=True)]

    def _score(
        self, other: RankerVersion, calls: Sequence[AnsweredCall]
    ) -> list[tuple[ParsedRequest, Arrays]]:
        """For each call what the version reads and scores."""
        requests = []
        for call in calls:
            self._gaps.wait()
            requests.append(_read(other, call))
        signature = other.saved_model.signatures[RANK]
        assert signature.layout is not None
        joined = join_calls([one.inputs for one in requests], signature.layout)
        rows = sum(one.rows for one in requests)
        parts = []
        for part, _ in split_call(joined, rows, RUN_ROWS, signature.layout):
            self._gaps.wait()
            parts.append(signature(part))
        outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if not np.isfinite(outputs[SCORE]).all():
            raise ValueError("a score is not finite")
        each = divide(outputs, [one.rows for one in requests])
        return list(zip(requests, each, strict=True))

    def _compared(
        self, other: RankerVersion, call: AnsweredCall, parsed: ParsedRequest, outputs: Arrays
    ) -> Outcome:
        """Compare the scores of both versions, and write the rows of the other one."""
        try:
            self._gaps.wait()
            ranked, places = call.ranked, places_of(parsed)
            order = rank_order(outputs, parsed)
            found = Agreement(
                pairs_agreement(call.places, ranked.outputs, places, outputs),
                overlap_of(call.places, ranked.order, places, order),
            )
            if self._files is not None:
                self._write(self._files, other, call, places, outputs, found)
        except Exception as error:
            return str(error) or repr(error)
        return found

    def _write(
        self,
        files: RowFiles,
        other: RankerVersion,
        call: AnsweredCall,
        places: np.ndarray,
        outputs: Arrays,
        found: Agreement,
    ) -> None:
        contract, pa = other.contract, files.pyarrow
        # Versions of one model have the same features and tasks.
        ranked = replace(call.ranked, contract=contract)
        rows, positions = aligned(call.places, ranked.order, places, outputs)
        known, size = rows >= 0, len(rows)
        table = rows_of(pa, [ranked], {contract.user, contract.item})
        added = {
            "shadow/version": pa.array([other.number] * size, pa.int64()),
            "shadow/position": pa.array(positions, pa.int64(), mask=~known),
            "shadow/pairs": pa.array([found.pairs] * size, pa.float64()),
            "shadow/overlap": pa.array([found.overlap] * size, pa.float64()),
        }
        for name in (SCORE, *contract.tasks):
            column = "shadow/score" if name == SCORE else f"shadow/score/{name}"
            added[column] = pa.array(outputs[name][rows], pa.float32(), mask=~known)
        for name, values in added.items():
            table = table.append_column(name, values)
        files.add(ranked.model, ranked.schema, table)


def _read(other: RankerVersion, call: AnsweredCall) -> ParsedRequest:
    """The request as the version reads it, with the features that its store has."""
    request = ranking_pb2.RankRequest.FromString(call.request)
    if call.user is None:
        return other.reader.read(request)
    user = ranking_pb2.RecommendRequest.FromString(call.user)
    return other.reader.read(request, other.reader.read_user(user))


def _close(version: RankerVersion) -> None:
    version.saved_model.retire()
    version.close()
    version.files.close()


def main(pipe: Connection, options: ServerOptions, in_flight: int) -> None:
    """Answer questions.

    Args:
        pipe: to the server.
        options: of the server.
        in_flight: file of the count of its calls.

    Raises:
        EOFError: the server has closed the pipe.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # a GPU is the server's
    logs.configure(options.log_format)
    scorer = Scorer(options, Gaps(CallsInFlight(in_flight), options))
    try:
        while True:
            pipe.send(scorer.answer(pipe.recv()))
    finally:
        scorer.answer(Question(last=True))  # it may have ended without a word
