"""The ranker's first layer: encoded features to one vector per row.

Keras's `FeatureSpace` was considered: it has no tables that features share, and does not say which
columns depend on the user, the item or both.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import keras

from multigate.configs.contract import (
    LENGTH,
    MATCH,
    PRESENT,
    Contract,
    Feature,
    IdFeature,
    IdListFeature,
    NumberFeature,
    PositionFeature,
    TextFeature,
    VectorFeature,
)
from multigate.configs.sections.model import ModelConfig
from multigate.model.gates.parts.base import Tensor, derive_seed
from multigate.model.ranker.attention import TargetAttention
from multigate.model.ranker.sequence import SequenceEncoder
from multigate.model.ranker.tables import Table, TablePart

Of = Literal["user", "item", "pair"]
"""What a part of the output depends on: the user and the context, the item, or both."""


class Embedder(keras.layers.Layer):
    """Looks up ids in embedding tables, pools lists, adds numbers, and concatenates all of it.

    The output has parts.  Each feature has a part of its name, in the contract's order (without
    position features):

        id       its row of the table; row 0, the row of a missing id, is learnt like the others
        id_list  the rows of the list, pooled without padding (0); empty list: zeros; then
                 log(1 + length)
        text     as an id_list, of its n-grams
        number   the number itself, clipped by `number_clip` if it is standardised, or its bucket's
                 row under `scale: buckets`
        vector   the vector itself, or a learnt linear map of it (`project`)

    A number or vector under `missing: indicator` is followed by 1 where there is a value, else 0.
    Features that share a vocabulary share its table.  A list of `Contract.matches` has another
    part, `<list>__match`: log(1 + how often the candidate stands in it).  Under `pooling:
    attention` the pooled rows depend on the candidate; then the length is a part of its own,
    `<list>__length`.  The candidate is the item's first id that shares the list's vocabulary, or,
    without one, the mean of the item's first such list.
    Lists of a history's `with` have no part of their own: their rows are added to those of the
    history's entries.

    Args:
        contract: names, kinds and order of the features.
        config: widths of the embeddings.
        rows: number of rows of each table, by the feature that owns it.
        seed: seed of the initial tables; each table derives its own.
    """

    def __init__(
        self,
        contract: Contract,
        config: ModelConfig,
        rows: Mapping[str, int],
        seed: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.features = {
            name: feature
            for name, feature in contract.features.items()
            if not isinstance(feature, PositionFeature)
        }
        self.owners = {
            name: contract.vocabulary_of(name)
            for name, feature in self.features.items()
            if not isinstance(feature, NumberFeature | VectorFeature)
            or (isinstance(feature, NumberFeature) and feature.scale == "buckets")
        }
        by_width: dict[int, list[str]] = {}
        for owner in dict.fromkeys(self.owners.values()):
            by_width.setdefault(table_width(contract, config, owner), []).append(owner)
        self.shared = {
            width: Table(
                {owner: rows[owner] for owner in owners},
                width,
                {owner: derive_seed(seed, "embedding", owner) for owner in owners},
                name=f"table_{width}",
            )
            for width, owners in by_width.items()
        }
        """By width."""
        self.tables: dict[str, TablePart] = {
            owner: self.shared[width].parts[owner]
            for width, owners in by_width.items()
            for owner in owners
        }
        """By owner."""
        self.projections = {}
        for name, feature in self.features.items():
            if isinstance(feature, VectorFeature) and feature.project is not None:
                kernel = keras.initializers.GlorotUniform(derive_seed(seed, "projection", name))
                projection = keras.layers.Dense(
                    feature.project,
                    use_bias=False,
                    kernel_initializer=kernel,
                    name=f"projection_{name}",
                )
                projection.build((None, feature.size))
                self.projections[name] = projection
        self.lists = config.lists
        self.widths: dict[str, int] = {}
        """Columns of each part of the output."""
        self.of: dict[str, Of] = {}
        """What each part depends on."""
        self.attentions: dict[str, TargetAttention] = {}
        """By list."""
        self.candidates: dict[str, str] = {}
        """The item's feature that each of these lists is compared with."""
        self.sequences: dict[str, SequenceEncoder] = {}
        """By list."""
        matches = contract.matches()
        self.entries: dict[str, list[str]] = {}
        """Lists of `with`, by history."""
        for name, feature in self.features.items():
            if isinstance(feature, IdListFeature) and feature.entry is not None:
                self.entries.setdefault(feature.entry.of, []).append(name)
            else:
                self.widths[name] = self._width(name)
                self.of[name] = "item" if feature.side == "item" else "user"
            if isinstance(feature, IdListFeature) and feature.pooling == "sequence":
                self.sequences[name] = SequenceEncoder(
                    self.tables[self.owners[name]].output_dim,
                    feature.max_length,
                    self.lists.sequence.units,
                    derive_seed(seed, "sequence", name),
                    name=f"sequence_{name}",
                )
            if isinstance(feature, IdListFeature) and feature.pooling == "attention":
                self.candidates[name] = _candidate(contract, matches[name])
                self.attentions[name] = TargetAttention(
                    self.tables[self.owners[name]].output_dim,
                    self.lists.attention.units,
                    self.lists.attention.normalise,
                    derive_seed(seed, "attention", name),
                    name=f"attention_{name}",
                )
                self.of[name] = "pair"
                if self.lists.length:
                    self.widths[name + LENGTH] = 1
                    self.of[name + LENGTH] = "user"
            if self.lists.match and name in matches:
                self.widths[name + MATCH] = 1
                self.of[name + MATCH] = "pair"
        self.rescaled: dict[str, Any] = {}
        """By standardised number or vector, scale and shift (2, size): the model reads scale *
        value + shift.  A warm start sets them, where what follows cannot adapt to other statistics
        (cross layers, clipping)."""
        self.clips: dict[str, float] = {}
        """By standardised number, how far from 0 it may lie."""
        if config.number_clip is not None:
            self.clips = {
                name: config.number_clip
                for name, feature in self.features.items()
                if isinstance(feature, NumberFeature) and feature.scale == "standardise"
            }
        if config.cross is not None or self.clips:
            for name, feature in self.features.items():
                if (
                    isinstance(feature, NumberFeature | VectorFeature)
                    and feature.scale == "standardise"
                ):
                    size = feature.size if isinstance(feature, VectorFeature) else 1
                    self.rescaled[name] = self.add_weight(
                        shape=(2, size),
                        initializer=_unchanged,
                        trainable=False,
                        name=f"rescaled_{name}",
                    )
        self.built = True

    def parts_of(self, *of: Of) -> list[str]:
        """Names of the parts that depend on one of these."""
        return [name for name, other in self.of.items() if other in of]

    def call(
        self,
        encoded: Mapping[str, Tensor],
        names: Iterable[str] | None = None,
        tables: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    ) -> Tensor:
        """Concatenate some parts.

        Args:
            encoded: arrays by feature, see `model.data.encoding`.
            names: the parts to use, all by default; the order is always that of `widths`.
            tables: functions that look up codes, by owner, instead of the layer's own tables; an
                exported graph stores tables in its own way.

        Returns:
            (B, d), d the sum of the parts' `widths`.
        """
        wanted = set(self.widths if names is None else names)
        parts_of = [name for name in self.widths if name in wanted]
        rows = self._look_up(parts_of, encoded, tables)
        parts = [part for name in parts_of for part in self._parts(name, encoded, rows)]
        return keras.ops.concatenate(parts, axis=-1)

    def _look_up(
        self,
        names: Iterable[str],
        encoded: Mapping[str, Tensor],
        tables: Mapping[str, Callable[[Tensor], Tensor]] | None,
    ) -> dict[str, Tensor]:
        """Rows (B, d) or (B, L, d) that some parts need, by feature; one gather for each width."""
        needed: dict[str, None] = {}
        for name in names:
            if name in self.owners:
                needed |= dict.fromkeys([name, *self.entries.get(name, ())])
            if name in self.candidates:
                needed[self.candidates[name]] = None
        if tables is not None:
            return {name: tables[self.owners[name]](encoded[name]) for name in needed}
        found: dict[str, Tensor] = {}
        for table in self.shared.values():
            here = [name for name in needed if self.owners[name] in table.parts]
            if not here:
                continue
            rows = table.look_up([(self.owners[name], encoded[name]) for name in here])
            found |= dict(zip(here, rows, strict=True))
        return found

    def rows_read(self, table: Table) -> int:
        """How many of a table's rows an example needs for all parts: K of `Table.look_up`."""
        here = [self.features[name] for name, owner in self.owners.items() if owner in table.parts]
        lists = [
            one.as_list.max_length for one in here if isinstance(one, IdListFeature | TextFeature)
        ]
        return sum(lists) + len(here) - len(lists)

    def _parts(
        self, name: str, encoded: Mapping[str, Tensor], rows: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """Columns of one part, tensors (B, .), out of the rows that `_look_up` found."""
        value = encoded[name]
        if name not in self.features:
            return [self._column(value)]
        feature = self.features[name]
        if name in self.attentions:
            return [self._attend(name, encoded, rows, encoded, rows, None)]
        if isinstance(feature, IdListFeature | TextFeature):
            entries = self._entries(name, encoded, rows)  # (B, L, d)
            if name in self.sequences:
                part = self.sequences[name](entries, value != 0)
            else:
                part = self._pool(entries, value, feature.pooling)
        elif name in self.owners:
            part = rows[name]  # (B, d)
        else:
            vector = isinstance(feature, VectorFeature)
            part = keras.ops.cast(value, self.compute_dtype) if vector else self._column(value)
            if name in self.rescaled:
                scale, shift = self.rescaled[name][0], self.rescaled[name][1]
                if _has_indicator(feature):
                    shift = shift * self._column(encoded[name + PRESENT])
                part = part * scale + shift
            if name in self.clips:
                part = keras.ops.clip(part, -self.clips[name], self.clips[name])
            part = self.projections[name](part) if name in self.projections else part
        if self._has_length(feature):
            return [part, self._column(encoded[name + LENGTH])]
        return [part, self._column(encoded[name + PRESENT])] if _has_indicator(feature) else [part]

    def attend(
        self,
        name: str,
        lists: Mapping[str, Tensor],
        items: Mapping[str, Tensor],
        tables: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
        user_index: Tensor | None = None,
    ) -> Tensor:
        """The part of a list with `pooling: attention`.

        Args:
            name: the list.
            lists: encoded features of M rows, among them the list.
            items: encoded features of N rows, among them the candidate's.
            tables: as in `call`.
            user_index: (N,) each candidate's row of `lists`; None if M = N and row n belongs to n.

        Returns:
            (N, d).
        """
        names = [name, *self.entries.get(name, ())]
        candidate = self.candidates[name]
        look_up: Mapping[str, Callable[[Tensor], Tensor]]
        look_up = self.tables if tables is None else tables
        of_lists = {one: look_up[self.owners[one]](lists[one]) for one in names}
        of_items = {candidate: look_up[self.owners[candidate]](items[candidate])}
        return self._attend(name, lists, of_lists, items, of_items, user_index)

    def _attend(
        self,
        name: str,
        lists: Mapping[str, Tensor],
        of_lists: Mapping[str, Tensor],
        items: Mapping[str, Tensor],
        of_items: Mapping[str, Tensor],
        user_index: Tensor | None,
    ) -> Tensor:
        """`attend`, out of the rows of lists and items."""
        ids, candidates = items[self.candidates[name]], of_items[self.candidates[name]]
        if len(ids.shape) == 2:
            candidates = self._pool(candidates, ids, "mean")
        entries = self._entries(name, lists, of_lists)
        return self.attentions[name](entries, lists[name] != 0, candidates, user_index)

    def _entries(
        self, name: str, encoded: Mapping[str, Tensor], rows: Mapping[str, Tensor]
    ) -> Tensor:
        """A list's entries (B, L, d): the rows of the ids, and of what else is known of each."""
        found = rows[name]
        for other in self.entries.get(name, ()):
            known = keras.ops.cast(encoded[other] != 0, found.dtype)[..., None]
            found = found + known * rows[other]
        return found

    def _column(self, values: Tensor) -> Tensor:
        """Numbers (B,) as a column (B, 1)."""
        return keras.ops.cast(values, self.compute_dtype)[:, None]

    def _pool(self, rows: Tensor, ids: Tensor, pooling: str) -> Tensor:
        """Pool rows (B, L, d) over the entries of ids (B, L) that are not padding: (B, d)."""
        ops = keras.ops
        real = ops.cast(ids != 0, rows.dtype)  # (B, L)
        total = ops.einsum("bl,bld->bd", real, rows)
        if pooling == "sum":
            return total
        return total / ops.maximum(ops.sum(real, axis=1, keepdims=True), 1.0)

    def _width(self, name: str) -> int:
        feature = self.features[name]
        if name in self.owners:
            width = self.tables[self.owners[name]].output_dim
        else:
            width = (feature.project or feature.size) if isinstance(feature, VectorFeature) else 1
        return width + (_has_indicator(feature) or self._has_length(feature))

    def _has_length(self, feature: Feature) -> bool:
        """Whether the last column of a feature's part says how long the list is."""
        return (
            self.lists.length
            and isinstance(feature, IdListFeature | TextFeature)
            and feature.pooling != "attention"
        )


def table_width(contract: Contract, config: ModelConfig, owner: str) -> int:
    """Width of an owner's rows; what is known of a history's entries is as wide as its ids."""
    feature = contract.features[owner]
    if isinstance(feature, IdListFeature) and feature.entry is not None:
        owner = contract.vocabulary_of(feature.entry.of)
    return config.embedding_dims.get(owner, config.embedding_dim)


def _unchanged(shape: tuple[int, int], dtype: Any = None) -> Tensor:
    """Scale 1 and shift 0."""
    return keras.ops.stack([keras.ops.ones(shape[1], dtype), keras.ops.zeros(shape[1], dtype)])


def _candidate(contract: Contract, shared: list[str]) -> str:
    """Which of the item's features that share a list's vocabulary is the candidate."""
    ids = [name for name in shared if isinstance(contract.features[name], IdFeature)]
    return [*ids, *shared][0]


def _has_indicator(feature: Feature) -> bool:
    """Whether an indicator column says which rows have a value; a missing id has its own row."""
    return isinstance(feature, NumberFeature | VectorFeature) and feature.missing == "indicator"
