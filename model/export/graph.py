"""The serving graph: raw features in, scores out; what depends on the user is computed once."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from multigate.configs.contract import PRESENT, Combine
from multigate.model.data.encoding import Encoder, unseen_codes
from multigate.model.data.padding import Padding
from multigate.model.export import calibration as calibrations
from multigate.model.export.calibration import Calibration
from multigate.model.export.encoding_tensorflow import GraphEncoder, raw_inputs
from multigate.model.export.example_signatures import example_signatures, set_methods
from multigate.model.export.frozen_mixture import FrozenMixture
from multigate.model.export.frozen_weights import StoredAs, StoredMatrix
from multigate.model.export.item_table import ItemTable
from multigate.model.export.user_half import Halves
from multigate.model.ranker import scores
from multigate.model.ranker.ranker import Ranker

Tensor = Any
Scores = dict[str, Tensor]

ROWS, RANK, RANK_ITEMS, WATCH = "serving_default", "rank", "rank_items", "watch"
"""Names of the signatures over raw values."""

_ROWS_DIFFER = "inputs: expected as many users, or user indices, as items"

UNSEEN, EXPERTS = "unseen/", "experts"
"""Outputs of `watch`: prefix of the counts of unseen ids, and the number of experts."""


class ServingGraph:
    """A trained ranker as signatures over raw values (without position features).

        serving_default   every feature with N rows
        rank              user and context features with M rows, item features with N rows,
                          `user_index` (N,) int32 in [0, M), `task_weights` (M, T) float32 in the
                          contract's order of tasks

        rank_items        as `rank`, but with the item's id as the only item feature; the others
                          come from the item table (without a table there is no such signature)
        watch             inputs as `rank`

    The first three return one score per task, (N,) float32 in the task's own units, and the
    combined `score`.  `watch` returns the number of unseen ids of each feature with a vocabulary,
    `unseen/<name>` () int32, and the number of experts that `rank` evaluates for each item,
    `experts` (N,) int32.  The signatures of `model.export.example_signatures` return the scores of
    `serving_default` for serialised tf.Examples.

    Args:
        ranker: trained, on the TensorFlow backend, with gates in the form to export.
        encoder: of the same contract.
        calibration: of binary tasks' probabilities.
        stored_as: how the file stores experts' kernels and embedding tables; the ranker's weights
            are already rounded to it.
        items: features of the known items.
        precompute: whether the file also stores what known items add to the first layers.
        buckets: sizes to which batches are padded for XLA; none: not compiled.
    """

    def __init__(
        self,
        ranker: Ranker,
        encoder: Encoder,
        calibration: Calibration | None = None,
        stored_as: StoredAs = "float32",
        items: ItemTable | None = None,
        precompute: bool = False,
        buckets: Sequence[int] = (),
    ) -> None:
        self.contract = encoder.contract
        self.user_names = [name for name, _ in self.contract.of_side("user", "context")]
        self.item_names = [name for name, _ in self.contract.of_side("item")]
        self._ranker = ranker
        self._statistics = encoder.statistics
        self._calibration = calibration or {}
        self._encode = GraphEncoder(encoder)
        self._tables = {
            owner: StoredMatrix(table.embeddings.value.numpy(), stored_as, axis=1).take
            for owner, table in ranker.embedder.tables.items()
        }
        widths = ranker.embedder.widths
        of_user = {name: name in self.user_names for name in widths}  # in the contract's order
        self._runs = _runs([(of_user[name], width) for name, width in widths.items()])
        side = np.repeat(list(of_user.values()), list(widths.values()))  # (D,)
        columns = np.concatenate([np.flatnonzero(side), np.flatnonzero(~side)])
        self.mixture = FrozenMixture(
            ranker.mixture,
            list(self.contract.tasks),
            columns,
            int(side.sum()),
            stored_as,
            static_shapes=bool(buckets),
        )
        self._buckets = Padding(buckets) if buckets else None
        self._items = items
        self._precomputed = precompute and items is not None
        self.item_bytes = 0 if items is None else items.bytes()
        """Size of the item table, including precomputed halves."""
        if items is not None and precompute:
            columns_of_items = ranker.embedder(items.encoded, names=self.item_names)
            self.item_bytes += self.mixture.precompute_items(columns_of_items.numpy())

    def signatures(self) -> dict[str, Any]:
        """All signatures as concrete functions."""
        contract = self.contract
        rows = raw_inputs(
            contract, [name for name, _ in contract.of_side("user", "item", "context")]
        )
        rank = raw_inputs(contract, [*self.user_names, *self.item_names])
        rank["user_index"] = tf.TensorSpec([None], tf.int32, name="user_index")
        rank["task_weights"] = tf.TensorSpec(
            [None, len(contract.tasks)], tf.float32, name="task_weights"
        )
        score_rows = tf.function(self.score_rows, autograph=False)
        functions = {
            ROWS: score_rows.get_concrete_function(**rows),
            RANK: tf.function(self.rank, autograph=False).get_concrete_function(**rank),
        }
        if self._items is not None:
            known = raw_inputs(contract, [*self.user_names, contract.item])
            known |= {name: rank[name] for name in ("user_index", "task_weights")}
            ranked = tf.function(self.rank_items, autograph=False)
            functions[RANK_ITEMS] = ranked.get_concrete_function(**known)
        watch = tf.function(self.watch, autograph=False)
        functions[WATCH] = watch.get_concrete_function(**rank)
        return functions | example_signatures(contract, score_rows)

    def save(self, folder: Path) -> None:
        """Write the SavedModel, with only the variables that the signatures read."""
        signatures = self.signatures()
        root = tf.Module()
        root.tables = self._encode.tables
        root.items = [] if self._items is None else self._items.tables
        root.weights = list(
            {id(v): v for f in signatures.values() for v in f.graph.variables}.values()
        )
        tf.saved_model.save(root, str(folder), signatures=signatures)
        set_methods(str(folder), signatures.keys() - {ROWS, RANK, RANK_ITEMS, WATCH})

    def score_rows(self, **raw: Tensor) -> Scores:
        """Signature `serving_default`."""
        task_scores = self._score(raw, None)
        weights = [task.score_weight for task in self.contract.tasks.values()]
        stacked = tf.stack(list(task_scores.values()), axis=1)
        combined = combine(self.contract.combine, stacked, tf.constant([weights], tf.float32))
        return task_scores | {"score": combined}

    def rank(self, user_index: Tensor, task_weights: Tensor, **raw: Tensor) -> Scores:
        """Signature `rank`."""
        return self._combine(self._score(raw, user_index), user_index, task_weights)

    def rank_items(self, user_index: Tensor, task_weights: Tensor, **raw: Tensor) -> Scores:
        """Signature `rank_items`."""
        items, name = self._items, self.contract.item
        assert items is not None
        rows = items.index(raw[name], self._encode(raw, [name])[name])
        return self._combine(self._score(raw, user_index, rows), user_index, task_weights)

    def _combine(self, task_scores: Scores, user_index: Tensor, task_weights: Tensor) -> Scores:
        """Add the combined score, with each user's task weights."""
        stacked = tf.stack(list(task_scores.values()), axis=1)
        weights = tf.gather(task_weights, user_index)
        return task_scores | {"score": combine(self.contract.combine, stacked, weights)}

    def watch(self, user_index: Tensor, task_weights: Tensor, **raw: Tensor) -> dict[str, Tensor]:
        """Signature `watch`."""
        counts = {}
        for name in [*self.user_names, *self.item_names]:
            buckets = unseen_codes(self.contract, name)
            if buckets is None:
                continue
            codes = self._encode(raw, [name])[name]
            unseen = (codes >= 1) & (codes <= buckets)
            if name + PRESENT in raw:  # do not count the default of a missing id
                unseen &= raw[name + PRESENT]
            counts[UNSEEN + name] = tf.math.count_nonzero(unseen, dtype=tf.int32)
        halves, gate_input, ids = self._inputs(raw, user_index)
        experts = self.mixture.count_experts(halves, gate_input, ids, tf.size(user_index))
        return counts | {EXPERTS: experts}

    def _score(
        self, raw: dict[str, Tensor], user_index: Tensor | None, rows: Tensor | None = None
    ) -> Scores:
        """Score per task, (N,); with `rows` (N,), item features come from those of the table."""
        halves, gate_input, ids = self._inputs(raw, user_index, rows)
        if self._buckets is None:
            logits = self._logits(halves, gate_input, ids)
        else:
            logits = self._compiled(halves, gate_input, ids, self._buckets)
        logits = calibrations.apply(self._calibration, logits)
        return scores.scores(self.contract, self._statistics, logits)

    def _inputs(
        self, raw: dict[str, Tensor], user_index: Tensor | None, rows: Tensor | None = None
    ) -> tuple[Halves, Callable[[], Tensor], Tensor | None]:
        """Input of the mixture: halves, the gates' input, and the users' ids; as in `_score`.

        The ids are None where no gate reads them.
        """
        users = self._encode(raw, self.user_names)

        def embed_items() -> Tensor:
            if rows is None:
                encoded = self._encode(raw, self.item_names)
            else:
                assert self._items is not None
                encoded = self._items.features(rows)
            return self._embed(encoded, self.item_names)

        known = rows is not None and self._precomputed
        halves = Halves(
            self._embed(users, self.user_names), rows if known else embed_items(), user_index
        )
        ids = None
        if any(gate.reads_ids for gate in self._ranker.mixture.gates):
            ids = self._encode.id_hash(self.contract.user, raw)
            if user_index is not None:
                ids = tf.gather(ids, user_index)

        def gate_input() -> Tensor:
            return self._in_order(halves._replace(item=embed_items()) if known else halves)

        return halves, gate_input, ids

    def _logits(
        self, halves: Halves, gate_input: Callable[[], Tensor], ids: Tensor | None
    ) -> dict[str, Tensor]:
        """Logit per task, (N,)."""
        outputs = self.mixture(halves, gate_input, ids)
        return {
            task: self._ranker.towers[task](output)
            for task, output in zip(self.contract.tasks, outputs, strict=True)
        }

    def _compiled(
        self,
        halves: Halves,
        gate_input: Callable[[], Tensor],
        ids: Tensor | None,
        buckets: Padding,
    ) -> dict[str, Tensor]:
        """`_logits`, compiled by XLA for padded batches."""
        rows = tf.shape(halves.item)[0]
        by_row = halves.user if halves.user_index is None else halves.user_index
        same = tf.shape(by_row)[0] == rows
        reads_columns = any(
            not gate.static and not gate.reads_products for gate in self._ranker.mixture.gates
        )
        given = {"user": halves.user, "item": halves.item}
        if ids is not None:
            given["ids"] = ids
        if halves.user_index is not None:
            given["user_index"] = halves.user_index
        # Padding would hide a difference, and joining the columns would fail less clearly.
        with tf.control_dependencies([tf.debugging.Assert(same, [_ROWS_DIFFER])]):
            rows = tf.identity(rows)
            if reads_columns:
                given["whole"] = gate_input()

        def compute(**padded: Tensor) -> dict[str, Tensor]:
            inside = Halves(padded["user"], padded["item"], padded.get("user_index"))
            return self._logits(inside, lambda: padded["whole"], padded.get("ids"))

        compiled = tf.function(compute, jit_compile=True, autograph=False)
        found = compiled(**{name: buckets.pad(value) for name, value in given.items()})
        return {task: z[:rows] for task, z in found.items()}

    def _embed(self, encoded: dict[str, Tensor], names: list[str]) -> Tensor:
        """Columns (N, d) of some features."""
        return self._ranker.embedder(encoded, names=names, tables=self._tables)

    def _in_order(self, halves: Halves) -> Tensor:
        """Columns of users and items in the contract's order, (N, D)."""
        user, item, user_index = halves
        if user_index is not None:
            user = tf.gather(user, user_index)
        parts = {
            True: iter(tf.split(user, [w for of_user, w in self._runs if of_user], axis=1)),
            False: iter(tf.split(item, [w for of_user, w in self._runs if not of_user], axis=1)),
        }
        return tf.concat([next(parts[of_user]) for of_user, _ in self._runs], axis=1)


def combine(rule: Combine, task_scores: Tensor, weights: Tensor) -> Tensor:
    """Combined score (N,) of task scores (N, T) with weights (N, T) or (1, T).

    `sum`: the sum over tasks of weight * score; `product`: the product of
    max(score, epsilon) ** weight.
    """
    if rule.kind == "sum":
        return tf.reduce_sum(weights * task_scores, axis=1)
    logs = tf.math.log(tf.maximum(task_scores, rule.epsilon))
    return tf.exp(tf.reduce_sum(weights * logs, axis=1))


def _runs(columns: list[tuple[bool, int]]) -> list[tuple[bool, int]]:
    """Join adjacent columns of the same side: (is it the user's?, width) of each run."""
    runs: list[tuple[bool, int]] = []
    for of_user, width in columns:
        if runs and runs[-1][0] == of_user:
            runs[-1] = (of_user, runs[-1][1] + width)
        else:
            runs.append((of_user, width))
    return runs
