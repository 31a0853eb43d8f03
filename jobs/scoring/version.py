"""An exported version that is loaded into this process, and answers as the server does.

Reading, checking and running are the server's own functions: `serving.request`, the checks of
Predict, `serving.versions.saved_model` and `runtime`.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import pyarrow as pa

from multigate.configs.contract import Contract
from multigate.configs.errors import DataError, ServingError
from multigate.jobs.scoring.columns import (
    Columns,
    as_bytes,
    features_of,
    rows_lacking,
    same_user,
)
from multigate.model.data.raw import raw_values
from multigate.runtime.start import start_runtime
from multigate.serving.client.packing import (
    Feature,
    add_counts,
    add_floors,
    add_weights,
    model_spec,
    rank_request,
)
from multigate.serving.client.rank_client import Ranking
from multigate.serving.core.layout import (
    DEFAULT,
    RANK,
    SCORE,
    TASK_WEIGHTS,
    USER_INDEX,
    Arrays,
    default_layout,
    rank_layout,
)
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.status import InvalidRequestError, MissingValueError
from multigate.serving.feature_store.backends import open_feature_store
from multigate.serving.observe.drift import UNSEEN, WATCH
from multigate.serving.request.feature_values import feature_readers
from multigate.serving.request.order import rank_order
from multigate.serving.request.rank_request import RequestReader
from multigate.serving.rpc.overflow import refuse_overflow
from multigate.serving.rpc.prediction import check_inputs
from multigate.serving.rpc.ranking import empty_response, fill_response
from multigate.serving.versions.batching import join_calls
from multigate.serving.versions.folders import EXTRA, GRAPH
from multigate.serving.versions.saved_model import SavedModel

_BATCH = 4096
"""Most rows of one run."""
_METRICS = "metrics.json"


_Part: TypeAlias = "tuple[np.ndarray, Arrays, dict[int, list[str]], Arrays]"
"""Rows with scores, these, by row without scores the required features that it lacks, and the
inputs of the signature `watch`, with a user for each row."""


@dataclass(frozen=True)
class RowScores:
    """Scores of N rows.

    Attributes:
        scores: the combined `score` and one score per task, (N,) float32 each, NaN where a row has
            none.
        lacking: by row without scores, the required features that it lacks.
        unknown: how many of the rows with scores name a user, or an item, that the model's
            vocabulary lacks, by feature; empty where it lacks none.
    """

    scores: dict[str, np.ndarray]
    lacking: dict[int, list[str]]
    unknown: dict[str, int]


class Version:
    """A loaded version: `rank` candidates for a user, or `predict` plain rows.

    Attributes:
        folder: of the version.
        contract: features and tasks.
        tasks: names of the tasks, in the contract's order.
        features: names of the features that it reads, positions left out.
    """

    def __init__(self, folder: str | Path, *, feature_clock: Literal["now", "cut_off"] = "now"):
        """Load a version folder.

        Args:
            folder: that `multigate export` wrote, with its number: `models/deskdrop/1`.
            feature_clock: until when the times since an event grow, of features that the version's
                own snapshot fills in: `now`, as a server does, or `cut_off`, the log's end.

        Raises:
            ServingError: the folder is no version of a ranker, or is damaged.
        """
        self.folder = Path(folder)
        if not (self.folder / GRAPH).is_file():
            raise ServingError(
                f"{folder}: expected an exported version (with {GRAPH}), found none; give the "
                "folder that `multigate export` wrote, with the version's number"
            )
        start_runtime()
        number = int(self.folder.name) if self.folder.name.isdecimal() else 0
        self._model = SavedModel.load(number, self.folder)
        self.contract: Contract = self._model.contract
        self.tasks = list(self.contract.tasks)
        self.features = [name for name, _ in self.contract.of_side("user", "context", "item")]
        self._store = open_feature_store(
            "",
            self.folder,
            self.contract,
            self._model.schema,
            "version",
            0,
            feature_clock,
            ServerMetrics(),
        )
        self._reader = RequestReader(self.contract, 1 << 31, self._store)
        self._features = feature_readers(self.contract, "user", "context", "item")
        self._layouts = {DEFAULT: default_layout(self.contract), RANK: rank_layout(self.contract)}

    @property
    def number(self) -> int:
        """The version's number; 0 where the folder's name is none."""
        return self._model.version

    @property
    def metrics(self) -> dict[str, Any]:
        """What the export measured on the test split, as plain values."""
        found: dict[str, Any] = json.loads((self.folder / EXTRA / _METRICS).read_text("utf-8"))
        return found

    def rank(
        self,
        *,
        user: Mapping[str, Feature | None] | None = None,
        item_ids: Sequence[str] | Sequence[int],
        columns: Mapping[str, Sequence[Feature | None]] | None = None,
        context: Mapping[str, Feature | None] | None = None,
        weights: Mapping[str, float] | None = None,
        floors: Mapping[str, Sequence[float | None]] | None = None,
        limit: int | None = None,
    ) -> Ranking:
        """Rank candidates for one user; arguments and answer as of `RankClient.rank`.

        Features that are left out come from the version's snapshot, or from their missing rules.

        Args:
            user: user features by name, the id among them where the model has users.
            item_ids: the candidates, N.
            columns: further item features by name, N entries each.
            context: context features by name.
            weights: task weights that replace the contract's in the combined score.
            floors: lowest and highest score that an item may have, by task.
            limit: most items of the answer; None: all.

        Returns:
            Ranked items, best first: `index`, `item_id`, `score` and `tasks` of each.

        Raises:
            ServingError: the request contradicts the contract.
        """
        request = self._request(user or {}, context or {}, item_ids, columns or {})
        add_weights(request, weights or {})
        add_floors(request, floors or {})
        add_counts(request, limit=limit)
        parsed = self._reader.read(request)
        outputs = self._model.signatures[RANK](parsed.inputs)
        refuse_overflow(outputs, parsed.place)
        response = empty_response("", self._model, "")
        order = rank_order(outputs, parsed)
        fill_response(response, request, self.contract, parsed, outputs, order)
        return Ranking(response)

    def predict(self, columns: Columns) -> dict[str, np.ndarray]:
        """Score N rows, each a user, a context and an item.

        A row of all features is scored as the server's Predict does. Where columns of features are
        absent, they are filled in as in Rank: from the version's snapshot, or by their missing
        rules; rows in a row with the same user and context are then read together.

        Args:
            columns: features by name, N values each; None, null and NaN are missing values. Other
                columns are not read.

        Returns:
            The combined `score` and one score per task, (N,) float32 each.

        Raises:
            ServingError: a value contradicts the contract, or a required one is missing
                (`missing: error`); the message names feature and row.
            DataError: there are no features, or columns of different lengths.
        """
        found = self.score_rows(columns)
        for row, names in found.lacking.items():
            reader = self._features[names[0]]
            raise InvalidRequestError(
                f"feature {names[0]!r}: expected a value ({reader.describe()}; missing: error), "
                f"received none in row {row}"
            )
        return found.scores

    def score_rows(self, columns: Columns) -> RowScores:
        """Score N rows as `predict` does, but those that lack a required feature.

        Args:
            columns: as of `predict`.

        Raises:
            ServingError: a value contradicts the contract; the message names feature and row.
            DataError: there are no features, or columns of different lengths.
        """
        table = features_of(self.contract, columns)
        full = set(self.features) <= set(table.column_names)
        run = self._run_rows if full else self._run_requests
        shape = (table.num_rows,)
        scores = {name: np.full(shape, np.nan, np.float32) for name in (SCORE, *self.tasks)}
        lacking: dict[int, list[str]] = {}
        unknown: Counter[str] = Counter()
        for start in range(0, table.num_rows, _BATCH):
            part = table.slice(start, _BATCH)
            try:
                known, outputs, without, watched = run(part)
            except (ServingError, DataError) as error:
                end = start + part.num_rows - 1
                raise InvalidRequestError(f"rows {start} to {end}: {error}") from None
            for name, values in scores.items():
                if len(known):
                    values[start + known] = outputs[name]
            lacking |= {start + row: names for row, names in without.items()}
            unknown += self._count_unknown(watched)
        return RowScores(scores, dict(sorted(lacking.items())), dict(unknown))

    def close(self) -> None:
        """Release the graph and the snapshot."""
        self._model.retire()
        if self._store is not None:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _count_unknown(self, inputs: Arrays) -> Counter[str]:
        """How many rows' user and item the vocabulary lacks, by feature."""
        watch = self._model.signatures.get(WATCH)
        if watch is None or not inputs:
            return Counter()
        counts = watch(inputs)
        ids = (self.contract.user, self.contract.item)
        return Counter({n: int(counts[UNSEEN + n]) for n in ids if UNSEEN + n in counts})

    def _run_rows(self, table: pa.Table) -> _Part:
        """Scores of rows with all features, through `serving_default`."""
        # `raw_values` would put a filler in place of a missing value; a server refuses it.
        required = [n for n, one in self._features.items() if one.feature.missing == "error"]
        known, lacking = _without(table, required)
        if not len(known):
            return known, {}, lacking, {}
        table = table if not lacking else table.take(known)
        inputs = {
            name: as_bytes(values) if values.dtype == object else values
            for name, values in raw_values(self.contract, table, self.features).items()
        }
        layout = self._layouts[DEFAULT]
        checked, _ = check_inputs(inputs, layout, self.contract, table.num_rows)
        outputs = self._model.signatures[DEFAULT](checked)
        refuse_overflow(outputs, lambda row: int(known[row]), "row")
        return known, outputs, lacking, _of_rows(checked, len(known), len(self.tasks))

    def _run_requests(self, table: pa.Table) -> _Part:
        """Scores of rows whose other features the version fills in, through `rank`."""
        calls: list[Arrays] = []
        scored: list[int] = []
        named, lacking = _without(table, [self.contract.item])  # a request cannot be without it
        before = 0
        for part in same_user(self.contract, table if not lacking else table.take(named)):
            found = part.to_pydict()
            places = named[before : before + part.num_rows]
            before += part.num_rows
            sides: dict[str, dict[str, Any]] = {"user": {}, "context": {}, "item": {}}
            for name, values in found.items():
                sides[self.contract.features[name].side][name] = values
            ids = sides["item"].pop(self.contract.item)
            single = {
                side: {name: values[0] for name, values in sides[side].items()}
                for side in ("user", "context")
            }
            request = self._request(single["user"], single["context"], ids, sides["item"])
            try:
                parsed = self._reader.read(request)
            except MissingValueError as error:
                lacking |= dict.fromkeys(places.tolist(), error.features)
                continue
            if parsed.unscored is not None:
                names = list(parsed.lacking)
                lacking |= dict.fromkeys(places[parsed.unscored].tolist(), names)
            calls.append(parsed.inputs)
            scored += (places if parsed.places is None else places[parsed.places]).tolist()
        if not calls:
            return np.zeros(0, np.int64), {}, lacking, {}
        joined = join_calls(calls, self._layouts[RANK])
        outputs = self._model.signatures[RANK](joined)
        refuse_overflow(outputs, lambda row: scored[row], "row")
        users = self._layouts[RANK].on_users
        expanded = {n: a[joined[USER_INDEX]] if n in users else a for n, a in joined.items()}
        watched = _of_rows(expanded, len(scored), len(self.tasks))
        return np.array(scored), outputs, lacking, watched

    def _request(
        self,
        user: Mapping[str, Any],
        context: Mapping[str, Any],
        item_ids: Sequence[Any],
        columns: Mapping[str, Sequence[Any]],
    ) -> Any:
        return rank_request(model_spec("", None, ""), user, context, item_ids, columns)


def _of_rows(inputs: Arrays, rows: int, tasks: int) -> Arrays:
    """Inputs of the signature `rank` where each row has a user of its own."""
    alone = {USER_INDEX: np.arange(rows, dtype=np.int32)}
    return inputs | alone | {TASK_WEIGHTS: np.zeros((rows, tasks), np.float32)}


def _without(table: pa.Table, required: Sequence[str]) -> tuple[np.ndarray, dict[int, list[str]]]:
    """The rows that have all required features, and what the others lack."""
    lacking = rows_lacking(table, required)
    return np.setdiff1d(np.arange(table.num_rows), list(lacking)), lacking
