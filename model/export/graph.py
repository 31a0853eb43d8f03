"""The serving graph: raw features in, scores out; what depends on the user is computed once."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from multigate.configs.contract import MATCH, PRESENT, Combine
from multigate.model.data.encoding import Encoder
from multigate.model.data.padding import Padding
from multigate.model.export import calibration as calibrations
from multigate.model.export.calibration import Calibration
from multigate.model.export.example_signatures import example_signatures, set_methods
from multigate.model.export.frozen.cross import FrozenCross
from multigate.model.export.frozen.encoding import GraphEncoder, raw_inputs
from multigate.model.export.frozen.item_table import ItemTable
from multigate.model.export.frozen.matches import fingerprints, matches
from multigate.model.export.frozen.mixture import FrozenMixture
from multigate.model.export.frozen.user_half import Halves
from multigate.model.export.frozen.weights import StoredAs, StoredMatrix
from multigate.model.ranker import scores
from multigate.model.ranker.embedder import Of
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
        calibration: a curve on the logit, by task.
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
        embedder = ranker.embedder
        self._user_parts = embedder.parts_of("user")
        self._item_parts = embedder.parts_of("item")
        self._pair_parts = embedder.parts_of("pair")
        self._lists = [n.removesuffix(MATCH) for n in self._pair_parts if n.endswith(MATCH)]
        of = [embedder.of[name] for name in embedder.widths]
        self._runs = _runs(list(zip(of, embedder.widths.values(), strict=True)))
        of_column = np.repeat(of, list(embedder.widths.values()))  # (D,)
        columns = np.concatenate([np.flatnonzero(of_column == one) for one in _HALVES])
        user_width = int((of_column == "user").sum())
        wide = {} if ranker.wide is None else ranker.wide.weights_of(self.contract.features)
        self._wide = {name: tf.Variable(value, trainable=False) for name, value in wide.items()}
        self._cross = None
        if ranker.cross is not None:
            self._cross = FrozenCross(ranker.cross, columns, user_width)
            user_width = 0  # of the mixture's input: every column depends on the item
        self.mixture = FrozenMixture(
            ranker.mixture,
            list(self.contract.tasks),
            columns,
            user_width,
            stored_as,
            static_shapes=bool(buckets),
        )
        self._buckets = Padding(buckets) if buckets else None
        self._items = items
        self._precomputed = precompute and items is not None
        self.item_bytes = 0 if items is None else items.bytes()
        """Size of the item table, including precomputed halves."""
        if items is not None and precompute:
            columns_of_items = ranker.embedder(items.encoded, names=self._item_parts)
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
            buckets = self.contract.unknown_codes(name)
            if buckets is None:
                continue
            codes = self._encode(raw, [name])[name]
            unseen = (codes >= 1) & (codes <= buckets)
            if name + PRESENT in raw:  # do not count the default of a missing id
                unseen &= raw[name + PRESENT]
            counts[UNSEEN + name] = tf.math.count_nonzero(unseen, dtype=tf.int32)
        given = self._inputs(raw, user_index)
        experts = self.mixture.count_experts(
            given.halves, given.gate_input, given.ids, tf.size(user_index)
        )
        return counts | {EXPERTS: experts}

    def _score(
        self, raw: dict[str, Tensor], user_index: Tensor | None, rows: Tensor | None = None
    ) -> Scores:
        """Score per task, (N,); with `rows` (N,), item features come from those of the table."""
        given = self._inputs(raw, user_index, rows)
        if self._buckets is None:
            outputs = self._outputs(given.halves, given.gate_input, given.ids)
        else:
            outputs = self._compiled(given.halves, given.gate_input, given.ids, self._buckets)
        if given.wide is not None:
            outputs = self._ranker.shift(outputs, given.wide)
        logits = calibrations.apply(self._calibration, self._ranker.logits(outputs))
        return scores.scores(self.contract, self._statistics, logits)

    def _inputs(
        self, raw: dict[str, Tensor], user_index: Tensor | None, rows: Tensor | None = None
    ) -> "_Inputs":
        """What raw values become before the mixture; arguments as in `_score`."""
        if user_index is None:
            raw = self._check_rows(raw)
        users = self._encode(raw, self.user_names)
        table = None if rows is None else self._items
        sent = self._encode(raw, self.item_names) if table is None else {}

        def items(names: list[str] | None = None) -> dict[str, Tensor]:
            # Only what is read: a table's column that is never read is not in the file.
            return sent if table is None else table.features(rows, names)

        candidates = sorted(set(self._ranker.embedder.candidates.values()))
        pair = self._pairs(raw, users, items(candidates), user_index, rows)

        def item_half() -> Tensor:
            columns = self._embed(items(), self._item_parts)
            return columns if pair is None else tf.concat([columns, pair], axis=1)

        user_half = self._embed(users, self._user_parts)
        known = rows is not None and self._precomputed
        if known:
            halves = Halves(user_half, rows, user_index, pair)
        else:
            halves = self._crossed(Halves(user_half, item_half(), user_index))
        ids = None
        if any(gate.reads_ids for gate in self._ranker.mixture.gates):
            ids = self._encode.id_hash(self.contract.user, raw)
            if user_index is not None:
                ids = tf.gather(ids, user_index)

        def gate_input() -> Tensor:
            return self._in_order(halves._replace(item=item_half()) if known else halves)

        known_items = items([name for name in self._wide if name in self.item_names])
        return _Inputs(halves, gate_input, ids, self._wide_term(users, known_items, user_index))

    def _crossed(self, halves: Halves) -> Halves:
        """What cross layers make of the input: whole rows, none of them once per user."""
        if self._cross is None:
            return halves
        with tf.name_scope("cross"):
            whole = self._cross(halves)  # (N, D)
        return Halves(whole[:, :0], whole, None)

    def _check_rows(self, raw: dict[str, Tensor]) -> dict[str, Tensor]:
        """Refuse a call with fewer users than items: a single user would meet every item."""
        item = raw[self.contract.item]
        same = tf.equal(tf.shape(raw[self.contract.user])[0], tf.shape(item)[0])
        with tf.control_dependencies([tf.debugging.Assert(same, [_ROWS_DIFFER])]):
            return raw | {self.contract.item: tf.identity(item)}

    def _pairs(
        self,
        raw: dict[str, Tensor],
        users: dict[str, Tensor],
        items: dict[str, Tensor],
        user_index: Tensor | None,
        rows: Tensor | None,
    ) -> Tensor | None:
        """Columns (N, Dp) that depend on user and item together; None if there are none."""
        embedder = self._ranker.embedder
        found = self._matches(raw, user_index, rows)
        for name in embedder.attentions:
            with tf.name_scope(f"attention_{name}"):
                found[name] = embedder.attend(name, users, items, self._tables, user_index)
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
            found = matches(self.contract, prints, self._lists, user_index)
            return {name: column[:, None] for name, column in found.items()}

    def _wide_term(
        self, users: dict[str, Tensor], items: dict[str, Tensor], user_index: Tensor | None
    ) -> Tensor | None:
        """What the wide term adds to the towers' outputs, (N, T); None if there is none."""
        if not self._wide:
            return None
        parts = []
        with tf.name_scope("wide"):
            for encoded, index in ((users, user_index), (items, None)):
                effects = [
                    tf.gather(table.read_value(), encoded[name])
                    for name, table in self._wide.items()
                    if name in encoded
                ]
                if effects:
                    effect = tf.add_n(effects)
                    parts.append(effect if index is None else tf.gather(effect, index))
            return tf.add_n(parts)

    def _outputs(
        self, halves: Halves, gate_input: Callable[[], Tensor], ids: Tensor | None
    ) -> dict[str, Tensor]:
        """The towers' outputs by task, (N, K)."""
        mixed = self.mixture(halves, gate_input, ids)
        return {
            task: self._ranker.towers[task](output)
            for task, output in zip(self.contract.tasks, mixed, strict=True)
        }

    def _compiled(
        self,
        halves: Halves,
        gate_input: Callable[[], Tensor],
        ids: Tensor | None,
        buckets: Padding,
    ) -> dict[str, Tensor]:
        """`_outputs`, compiled by XLA for padded batches."""
        rows = tf.shape(halves.item)[0]
        by_row = halves.user if halves.user_index is None else halves.user_index
        same = tf.shape(by_row)[0] == rows
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
        # Padding would hide a difference, and joining the columns would fail less clearly.
        with tf.control_dependencies([tf.debugging.Assert(same, [_ROWS_DIFFER])]):
            rows = tf.identity(rows)
            if reads_columns:
                given["whole"] = gate_input()

        def compute(**padded: Tensor) -> dict[str, Tensor]:
            inside = Halves(
                padded["user"], padded["item"], padded.get("user_index"), padded.get("pair")
            )
            return self._outputs(inside, lambda: padded["whole"], padded.get("ids"))

        compiled = tf.function(compute, jit_compile=True, autograph=False)
        found = compiled(**{name: buckets.pad(value) for name, value in given.items()})
        return {task: z[:rows] for task, z in found.items()}

    def _embed(self, encoded: dict[str, Tensor], names: list[str]) -> Tensor:
        """Columns (N, d) of some parts."""
        return self._ranker.embedder(encoded, names=names, tables=self._tables)

    def _in_order(self, halves: Halves) -> Tensor:
        """Columns of users, items and pairs in the contract's order, (N, D)."""
        user = halves.user
        if halves.user_index is not None:
            user = tf.gather(user, halves.user_index)
        widths = {of: [width for one, width in self._runs if one == of] for of in _HALVES}
        whole = tf.concat([user, halves.item], axis=1)  # first users, then items, then pairs
        pieces = iter(tf.split(whole, [width for of in _HALVES for width in widths[of]], axis=1))
        parts = {of: [next(pieces) for _ in widths[of]] for of in _HALVES}
        return tf.concat([parts[of].pop(0) for of, _ in self._runs], axis=1)


def combine(rule: Combine, task_scores: Tensor, weights: Tensor) -> Tensor:
    """Combined score (N,) of task scores (N, T) with weights (N, T) or (1, T).

    `sum`: the sum over tasks of weight * score; `product`: the product of
    max(score, epsilon) ** weight.
    """
    if rule.kind == "sum":
        return tf.reduce_sum(weights * task_scores, axis=1)
    logs = tf.math.log(tf.maximum(task_scores, rule.epsilon))
    return tf.exp(tf.reduce_sum(weights * logs, axis=1))


_HALVES: tuple[Of, ...] = ("user", "item", "pair")
"""Order of the columns in `Halves` and in the kernels of the first layers."""


class _Inputs(NamedTuple):
    """What raw values become before the mixture.

    Attributes:
        halves: the experts' input.
        gate_input: returns the gates' input (N, D).
        ids: (N,) hashed user ids; None where no gate reads them.
        wide: (N, T) that is added to the towers' outputs; None if there is no wide term.
    """

    halves: Halves
    gate_input: Callable[[], Tensor]
    ids: Tensor | None
    wide: Tensor | None


def _runs(columns: list[tuple[Of, int]]) -> list[tuple[Of, int]]:
    """Join adjacent parts that depend on the same: what on, and the width of each run."""
    runs: list[tuple[Of, int]] = []
    for of, width in columns:
        if runs and runs[-1][0] == of:
            runs[-1] = (of, runs[-1][1] + width)
        else:
            runs.append((of, width))
    return runs
