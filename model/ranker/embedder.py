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
        number   the number itself, or its bucket's row under `scale: buckets`
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
        self.tables = {}
        for owner in dict.fromkeys(self.owners.values()):
            initializer = keras.initializers.RandomUniform(
                -0.05, 0.05, seed=derive_seed(seed, "embedding", owner)
            )
            feature = self.features[owner]
            like = owner  # whose width the table has
            if isinstance(feature, IdListFeature) and feature.entry is not None:
                like = contract.vocabulary_of(feature.entry.of)
            self.tables[owner] = keras.layers.Embedding(
                rows[owner],
                config.embedding_dims.get(like, config.embedding_dim),
                embeddings_initializer=initializer,
                name=f"embedding_{owner}",
            )
        for table in self.tables.values():
            table.build()
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
        (cross layers)."""
        if config.cross is not None:
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
        parts: list[Tensor] = []
        for name in self.widths:
            if name in wanted:
                parts.extend(self._parts(name, encoded, self.tables if tables is None else tables))
        return keras.ops.concatenate(parts, axis=-1)

    def _parts(
        self,
        name: str,
        encoded: Mapping[str, Tensor],
        tables: Mapping[str, Callable[[Tensor], Tensor]],
    ) -> list[Tensor]:
        """Columns of one part: tensors (B, .)."""
        value = encoded[name]
        if name not in self.features:
            return [self._column(value)]
        feature = self.features[name]
        if name in self.attentions:
            return [self.attend(name, encoded, encoded, tables)]
        if isinstance(feature, IdListFeature | TextFeature):
            rows = self._rows(name, encoded, tables)  # (B, L, d)
            if name in self.sequences:
                part = self.sequences[name](rows, value != 0)
            else:
                part = self._pool(rows, value, feature.pooling)
        elif name in self.owners:
            part = tables[self.owners[name]](value)  # (B, d)
        else:
            vector = isinstance(feature, VectorFeature)
            part = keras.ops.cast(value, self.compute_dtype) if vector else self._column(value)
            if name in self.rescaled:
                scale, shift = self.rescaled[name][0], self.rescaled[name][1]
                if _has_indicator(feature):
                    shift = shift * self._column(encoded[name + PRESENT])
                part = part * scale + shift
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
        tables = self.tables if tables is None else tables
        look_up = tables[self.owners[name]]
        ids = items[self.candidates[name]]
        candidates = look_up(ids)
        if len(ids.shape) == 2:
            candidates = self._pool(candidates, ids, "mean")
        rows = self._rows(name, lists, tables)
        return self.attentions[name](rows, lists[name] != 0, candidates, user_index)

    def _rows(
        self,
        name: str,
        encoded: Mapping[str, Tensor],
        tables: Mapping[str, Callable[[Tensor], Tensor]],
    ) -> Tensor:
        """Rows (B, L, d) of a list's entries: of the id, and of what else is known of the entry."""
        rows = tables[self.owners[name]](encoded[name])
        for other in self.entries.get(name, ()):
            codes = encoded[other]
            known = keras.ops.cast(codes != 0, rows.dtype)[..., None]
            rows = rows + known * tables[self.owners[other]](codes)
        return rows

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
