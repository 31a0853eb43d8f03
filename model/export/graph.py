"""The serving graph: raw features in, scores out; what depends on the user is computed once."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from multigate.configs.contract import MATCH, PRESENT, Combine
from multigate.configs.sections.model import Dispatch
from multigate.model.data.encoding import Encoder
from multigate.model.data.padding import Padding
from multigate.model.evaluation.calibration import Calibration
from multigate.model.export.example_signatures import example_signatures, set_methods
from multigate.model.export.freezing import freeze
from multigate.model.export.frozen.columns import Columns
from multigate.model.export.frozen.cross import FrozenCross
from multigate.model.export.frozen.embedding import FrozenEmbedder, FrozenWide
from multigate.model.export.frozen.encoding import (
    GraphEncoder,
    layout_of,
    raw_inputs,
    refuse_huge,
)
from multigate.model.export.frozen.factors import FrozenFactors
from multigate.model.export.frozen.item_table import ItemTable
from multigate.model.export.frozen.linear import FrozenLinear
from multigate.model.export.frozen.matches import fingerprints, matches
from multigate.model.export.frozen.mixture import FrozenMixture
from multigate.model.export.frozen.towers import FrozenTowers
from multigate.model.export.frozen.trained import factor_tables, line_map, wide_tables
from multigate.model.export.frozen.user_half import Halves, broadcast_index
from multigate.model.export.frozen.weights import StoredAs
from multigate.model.export.served_scores import ServedScores
from multigate.model.ranker.ranker import Ranker

Tensor = Any
Scores = dict[str, Tensor]

ROWS, RANK, RANK_ITEMS, WATCH = "serving_default", "rank", "rank_items", "watch"
GATES = "gates"
"""Names of the signatures over raw values."""

_ROWS_DIFFER = "inputs: expected as many users, or user indices, as items"
_OVERFLOW = "inputs: expected numbers that cross layers can multiply, received larger ones"

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
        gates             inputs as `serving_default`

    The first three return one score per task, (N,) float32 in the task's own units, and the
    combined `score`.  `watch` returns the number of unseen ids of each feature with a vocabulary,
    `unseen/<name>` () int32, and the number of experts that `rank` evaluates for each item,
    `experts` (N,) int32.  `gates` returns each task's weights of the experts, (N, E) float32 by
    task, 0 for those that it does not select.  The signatures of
    `model.export.example_signatures` return the scores of
    `serving_default` for serialised tf.Examples.

    Args:
        ranker: trained, on the TensorFlow backend, with gates in the form to export.
        encoder: of the same contract.
        calibration: a curve on the logit, by task.
        stored_as: how the file stores experts' kernels and embedding tables; the ranker's weights
            are already rounded to it.
        items: features of the known items.
        precompute: whether the file also stores what known items add to the first layers.
        buckets: sizes to which batches are padded for XLA; none: not compiled.
        dispatch: as in `FrozenMixture`.
        experts_per_row: as in `FrozenMixture`.
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
        dispatch: Dispatch = "auto",
        experts_per_row: float | None = None,
    ) -> None:
        self.contract = encoder.contract
        self.user_names = [name for name, _ in self.contract.of_side("user", "context")]
        self.item_names = [name for name, _ in self.contract.of_side("item")]
        self._ranker = ranker
        self._encode = GraphEncoder(encoder)
        layouts = {
            "user": layout_of(self.contract, self.user_names),
            "item": layout_of(self.contract, self.item_names),
        }
        self._embed = FrozenEmbedder(ranker.embedder, layouts, stored_as)
        self._pair_parts = ranker.embedder.parts_of("pair")
        self._lists = [n.removesuffix(MATCH) for n in self._pair_parts if n.endswith(MATCH)]
        starts = dict(
            zip(
                ranker.embedder.widths,
                np.cumsum([0, *ranker.embedder.widths.values()]).tolist(),
                strict=False,
            )
        )
        pairs = [
            starts[name] + place
            for name in self._pair_parts
            for place in range(ranker.embedder.widths[name])
        ]
        columns = np.concatenate(
            [self._embed.columns["user"], self._embed.columns["item"], np.array(pairs, np.int64)]
        )
        self._in_order = np.argsort(columns)
        user_width = len(self._embed.columns["user"])
        wide = wide_tables(ranker)
        self._wide = None
        if wide and ranker.wide is not None:
            self._wide = FrozenWide(wide, layouts, ranker.wide)
        factors = factor_tables(ranker)
        self._factors = FrozenFactors(factors, self.contract, stored_as) if factors else None
        lines = line_map(ranker)
        self._linear = None if lines is None else FrozenLinear(lines, columns, user_width)
        self._cross = None
        if ranker.cross is not None:
            self._cross = FrozenCross(ranker.cross, columns, user_width)
            user_width = 0  # of the mixture's input: every column depends on the item
        self.mixture = FrozenMixture(
            ranker.mixture,
            ranker.gate_names,
            columns,
            user_width,
            stored_as,
            bool(buckets),
            dispatch,
            experts_per_row,
        )
        self._towers = FrozenTowers(ranker)
        self._scores = ServedScores(ranker, encoder.statistics, calibration or {})
        self._buckets = Padding(buckets) if buckets else None
        self._items = items
        self._precomputed = precompute and items is not None
        self.item_bytes = 0 if items is None else items.bytes()
        """Size of the item table, including precomputed halves."""
        if items is not None and precompute:
            packed = layouts["item"].pack(items.encoded).map(tf.constant)
            halves = self._embed("item", packed).numpy()
            self.item_bytes += self.mixture.precompute_items(halves)
            if self._linear is not None:
                self.item_bytes += self._linear.precompute_items(halves)

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
        gates = tf.function(self.gates, autograph=False)
        functions[GATES] = gates.get_concrete_function(**rows)
        return functions | example_signatures(contract, score_rows)

    def save(self, folder: Path) -> None:
        """Write the SavedModel, without variables where they are small enough."""
        signatures = self.signatures()
        root = tf.Module()
        root.tables = self._encode.tables
        root.items = [] if self._items is None else self._items.tables
        root.weights = list(
            {id(v): v for f in signatures.values() for v in f.graph.variables}.values()
        )
        tf.saved_model.save(root, str(folder), signatures=signatures)
        set_methods(str(folder), signatures.keys() - {ROWS, RANK, RANK_ITEMS, WATCH, GATES})
        freeze(folder)

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
        for names in (self.user_names, self.item_names):
            encoded, _ = self._encode.encode(raw, names)
            for name in names:
                buckets = self.contract.unknown_codes(name)
                if buckets is None:
                    continue
                codes = encoded[name]
                unseen = (codes >= 1) & (codes <= buckets)
                if name + PRESENT in raw:  # do not count the default of a missing id
                    unseen &= raw[name + PRESENT]
                counts[UNSEEN + name] = tf.math.count_nonzero(unseen, dtype=tf.int32)
        given = self._inputs(raw, user_index)
        experts = self.mixture.count_experts(
            given.halves, given.gate_input, given.ids, tf.size(user_index)
        )
        return counts | {EXPERTS: experts}

    def gates(self, **raw: Tensor) -> dict[str, Tensor]:
        """Signature `gates`."""
        given = self._inputs(raw, None)
        rows = tf.shape(raw[self.contract.item])[0]
        weights = self.mixture.weights(given.halves, given.gate_input, given.ids, rows)
        parts = tf.unstack(weights, axis=1)
        return {task: parts[number] for task, number in self._ranker.gate_of.items()}

    def _score(
        self, raw: dict[str, Tensor], user_index: Tensor | None, rows: Tensor | None = None
    ) -> Scores:
        """Score per task, (N,); with `rows` (N,), item features come from those of the table."""
        given = self._inputs(raw, user_index, rows)
        if self._buckets is None:
            outputs = self._outputs(given.halves, given.gate_input, given.ids)
        else:
            outputs = self._compiled(given.halves, given.gate_input, given.ids, self._buckets)
        return self._scores(outputs, given.shifts)

    def _inputs(
        self, raw: dict[str, Tensor], user_index: Tensor | None, rows: Tensor | None = None
    ) -> "_Inputs":
        """What raw values become before the mixture; arguments as in `_score`."""
        if user_index is None:
            raw = self._check_rows(raw)
        else:
            user_index = self._check_index(user_index, raw)
        users, checks = self._encode.encode(raw, self.user_names)
        if rows is None:
            items, more = self._encode.encode(raw, self.item_names)
            checks += more
        else:
            assert self._items is not None
            items = self._items.features(rows)
        broadcast = None
        if user_index is not None and self._buckets is None:
            broadcast = broadcast_index(user_index, raw[self.contract.user])
        pair = self._pairs(raw, users, items, user_index, rows)
        user_half = self._embed("user", users)
        with tf.control_dependencies(refuse_huge(checks)):
            user_half = tf.identity(user_half)

        def item_half() -> Tensor:
            columns = self._embed("item", items)
            return columns if pair is None else tf.concat([columns, pair], axis=1)

        known = rows is not None and self._precomputed
        if known:
            whole = halves = Halves(user_half, rows, user_index, pair, broadcast)
        else:
            whole = Halves(user_half, item_half(), user_index, broadcast=broadcast)
            halves = self._crossed(whole)
        ids = None
        if any(gate.reads_ids for gate in self._ranker.mixture.gates):
            ids = self._encode.id_hash(self.contract.user, raw)
            if user_index is not None:
                ids = tf.gather(ids, user_index)

        def gate_input() -> Tensor:
            user, item = halves.user, item_half() if known else halves.item
            if user_index is not None and self._cross is None:
                user = tf.gather(user, user_index)
            return tf.gather(tf.concat([user, item], axis=1), self._in_order, axis=1)

        return _Inputs(halves, gate_input, ids, self._shifts(users, items, whole))

    def _crossed(self, halves: Halves) -> Halves:
        """What cross layers make of the input: whole rows, none of them once per user."""
        if self._cross is None:
            return halves
        with tf.name_scope("cross"):
            whole = self._cross(halves)  # (N, D)
        # Products of large numbers overflow, and a relu would turn NaN into 0.
        finite = tf.reduce_all(tf.math.is_finite(whole))
        with tf.control_dependencies([tf.debugging.Assert(finite, [_OVERFLOW])]):
            whole = tf.identity(whole)
        return Halves(whole[:, :0], whole, None)

    def _check_index(self, user_index: Tensor, raw: dict[str, Tensor]) -> Tensor:
        """Refuse another number of indices than of items.

        A single one would serve every item, and padding for XLA would hide any difference.
        """
        same = tf.equal(tf.size(user_index), tf.shape(raw[self.contract.item])[0])
        with tf.control_dependencies([tf.debugging.Assert(same, [_ROWS_DIFFER])]):
            return tf.identity(user_index)

    def _check_rows(self, raw: dict[str, Tensor]) -> dict[str, Tensor]:
        """Refuse a call with fewer users than items: a single user would meet every item."""
        item = raw[self.contract.item]
        same = tf.equal(tf.shape(raw[self.contract.user])[0], tf.shape(item)[0])
        with tf.control_dependencies([tf.debugging.Assert(same, [_ROWS_DIFFER])]):
            return raw | {self.contract.item: tf.identity(item)}

    def _pairs(
        self,
        raw: dict[str, Tensor],
        users: Mapping[str, Tensor],
        items: Mapping[str, Tensor],
        user_index: Tensor | None,
        rows: Tensor | None,
    ) -> Tensor | None:
        """Columns (N, Dp) that depend on user and item together; None if there are none."""
        embedder = self._ranker.embedder
        found = self._matches(raw, user_index, rows)
        for name in embedder.attentions:
            with tf.name_scope(f"attention_{name}"):
                found[name] = embedder.attend(name, users, items, self._embed.tables, user_index)
        columns = [found[name] for name in self._pair_parts]
        return tf.concat(columns, axis=1) if columns else None

    def _matches(
        self, raw: dict[str, Tensor], user_index: Tensor | None, rows: Tensor | None
    ) -> dict[str, Tensor]:
        """How often each candidate stands in the user's lists, (N, 1) by part."""
        if not self._lists:
            return {}
        shared = self.contract.matches()
        candidates = {name for one in self._lists for name in shared[one]}
        sent = [self.contract.item] if rows is not None else self.item_names
        names = [*self._lists, *(name for name in sent if name in candidates)]
        with tf.name_scope("match"):
            prints = fingerprints(self.contract, raw, names)
            if rows is not None:
                assert self._items is not None
                others = sorted(candidates - prints.keys())
                prints |= self._items.fingerprints(rows, others)
            return matches(self.contract, prints, self._lists, user_index)

    def _shifts(self, users: Columns, items: Columns, halves: Halves) -> Tensor | None:
        """What wide term, factors and lines add to the towers' outputs, (N, T); None without."""
        parts = []
        if self._wide is not None:
            of_users = self._wide("user", users)
            parts = [
                self._wide("item", items),
                None if of_users is None else halves.of_rows(of_users),
                self._wide.crosses(users, items, halves.of_rows),
            ]
        if self._factors is not None:
            parts.append(self._factors(users, items, halves.of_rows))
        if self._linear is not None:
            parts.append(self._linear(halves))
        found = [part for part in parts if part is not None]
        return sum(found[1:], found[0]) if found else None

    def _outputs(
        self, halves: Halves, gate_input: Callable[[], Tensor], ids: Tensor | None
    ) -> Tensor:
        """The towers' outputs, (T, N, K)."""
        return self._towers(self.mixture(halves, gate_input, ids))

    def _compiled(
        self,
        halves: Halves,
        gate_input: Callable[[], Tensor],
        ids: Tensor | None,
        buckets: Padding,
    ) -> Tensor:
        """`_outputs`, compiled by XLA for padded batches."""
        rows = tf.shape(halves.item)[0]
        reads_columns = any(
            not gate.static and not gate.reads_products for gate in self._ranker.mixture.gates
        )
        given = {"user": halves.user, "item": halves.item}
        if halves.pair is not None:
            given["pair"] = halves.pair
        if ids is not None:
            given["ids"] = ids
        if halves.user_index is not None:
            given["user_index"] = halves.user_index
        if reads_columns:
            given["whole"] = gate_input()

        def compute(**padded: Tensor) -> Tensor:
            inside = Halves(
                padded["user"], padded["item"], padded.get("user_index"), padded.get("pair")
            )
            return self._outputs(inside, lambda: padded["whole"], padded.get("ids"))

        compiled = tf.function(compute, jit_compile=True, autograph=False)
        found = compiled(**{name: buckets.pad(value) for name, value in given.items()})
        return found[:, :rows]


def combine(rule: Combine, task_scores: Tensor, weights: Tensor) -> Tensor:
    """Combined score (N,) of task scores (N, T) with weights (N, T) or (1, T).

    `sum`: the sum over tasks of weight * score; `product`: the product of
    max(score, epsilon) ** weight.
    """
    if rule.kind == "sum":
        return tf.reduce_sum(weights * task_scores, axis=1)
    logs = tf.math.log(tf.maximum(task_scores, rule.epsilon))
    return tf.exp(tf.reduce_sum(weights * logs, axis=1))


class _Inputs(NamedTuple):
    """What raw values become before the mixture.

    Attributes:
        halves: the experts' input.
        gate_input: returns the gates' input (N, D).
        ids: (N,) hashed user ids; None where no gate reads them.
        shifts: (N, T) that is added to the towers' outputs; None if nothing is.
    """

    halves: Halves
    gate_input: Callable[[], Tensor]
    ids: Tensor | None
    shifts: Tensor | None
