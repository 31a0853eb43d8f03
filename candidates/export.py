"""Export: a two-tower checkpoint becomes a numbered SavedModel that retrieves items for a user.

Layout of a version, besides TensorFlow's own files:

    assets.extra/contract.json     the contract with both fingerprints; a ranker that is served
                                   with it must have the same schema
    assets.extra/popular.json      items by popularity, the fallback where retrieval fails
    assets.extra/metrics.json      recall on the test split
    assets.extra/golden.json       one request and its answer

Signature `retrieve` (also `serving_default`): raw user and context features of M users, named as in
the ranker's `rank` signature, and `k`, a scalar int32; outputs `items` (M, K) raw ids and `scores`
(M, K) float32, best first, K = min(k, number of items); `known` (M,) bool: whether the vocabulary
has the user's id or an item of the history; if not, the answer is a guess. The file loads with
`tf.saved_model.load` and needs no Keras.
"""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from multigate.candidates.evaluation import evaluate, popularity_of
from multigate.candidates.keras2 import tf
from multigate.candidates.pairs import (
    Catalogue,
    catalogue,
    catalogue_of_splits,
    positive_task,
    read_pairs,
)
from multigate.candidates.retrieval import Retrieval
from multigate.candidates.training import load
from multigate.configs import progress
from multigate.configs.contract import IdFeature, IdListFeature
from multigate.configs.errors import ExportError, one_line
from multigate.configs.files import SPLITS, ExamplesFolder, new_folder, write_json
from multigate.configs.version_folders import new_version
from multigate.model.data.encoding import Encoder
from multigate.model.data.raw import as_json, raw_values, take
from multigate.model.export.freezing import freeze
from multigate.model.export.frozen.encoding import GraphEncoder, raw_inputs
from multigate.runtime.errors import ModelRuntimeError
from multigate.runtime.signature import load_signatures

log = logging.getLogger(__name__)

EXTRA, SIGNATURE = "assets.extra", "retrieve"
_POPULAR = 1000  # items in popular.json
_TOLERANCE = 1e-5


class Retriever(tf.Module):
    """The graph: raw user features to the best items.

    Args:
        model: a trained model.
        items: the items that can be retrieved.
    """

    def __init__(self, model: Retrieval, items: Catalogue) -> None:
        super().__init__(name="retriever")
        self._names = model.user_features
        self._contract = model.encoder.contract
        self._encode = GraphEncoder(model.encoder)
        self._lookups = list(self._encode.tables.values())
        self._tower = model.user_tower
        model.tables.read_whole = True
        self._vectors = tf.Variable(model.item_vectors(items), trainable=False, name="vectors")
        self._ids = tf.Variable(_as_tensor(items.ids), trainable=False, name="ids")
        self._items = len(items)
        specs = raw_inputs(model.encoder.contract, self._names)
        self.retrieve = tf.function(
            self._retrieve, input_signature=[specs, tf.TensorSpec((), tf.int32, name="k")]
        )

    def _retrieve(self, raw: dict[str, Any], k: Any) -> dict[str, Any]:
        encoded = self._encode(raw, self._names)
        count = tf.clip_by_value(k, 0, self._items)
        scores = tf.linalg.matmul(self._tower(encoded), self._vectors, transpose_b=True)
        scores, places = tf.math.top_k(scores, count)
        items = tf.gather(self._ids.read_value(), places)
        return {"items": items, "scores": scores, "known": self._known(encoded)}

    def _known(self, encoded: dict[str, Any]) -> Any:
        """Whether the vocabulary has each user's id or an item of the history, (M,)."""
        known = encoded[self._contract.user] > self._unseen(self._contract.user)
        for name, feature in self._contract.of_side("user"):
            if isinstance(feature, IdListFeature) and feature.share == self._contract.item:
                known |= tf.reduce_any(encoded[name] > self._unseen(self._contract.item), axis=1)
        return known

    def _unseen(self, name: str) -> int:
        """The highest code of ids outside the vocabulary; 0 for hashed ids, which are all known."""
        feature = self._contract.features[self._contract.vocabulary_of(name)]
        assert isinstance(feature, IdFeature)
        return 0 if feature.hash_buckets is not None else feature.oov_buckets


@progress.stepwise("export", 4)
def export(checkpoint: Path, examples: Path, out: Path, *, version: int | None = None) -> Path:
    """Export a two-tower checkpoint.

    The index holds the items of the examples' snapshot, with their features at its cut-off; without
    a snapshot, the items of the examples, with their latest features.

    Args:
        checkpoint: folder that `training.train` wrote.
        examples: the examples that it was trained on.
        out: base folder of the versions.
        version: number of the version; the highest in `out` plus one by default.

    Returns:
        `out/<version>`, complete.

    Raises:
        ExportError: the version exists, the file does not retrieve what the model retrieves, or the
            folder could not be written. Nothing is published.
        ModelError: not a checkpoint, or it was trained on other examples.
        DataError: the examples cannot be read.
    """
    model, config, frozen = load(checkpoint)
    progress.step("measure")
    metrics = evaluate(checkpoint, examples)  # also refuses examples of another fingerprint
    target = out / str(new_version(out, version))
    encoder = model.encoder
    progress.step("index the items")
    items = read_items(examples, encoder)
    task = positive_task(config)
    pairs = [read_pairs(examples, split, encoder, task) for split in SPLITS[:2]]
    counts = popularity_of(pairs, items)
    popular = np.argsort(-counts, kind="stable")[:_POPULAR]
    retriever = Retriever(model, items)
    try:
        with new_folder(target) as folder:
            progress.step("write the graph")
            signature = _flat(retriever)
            tf.saved_model.save(
                retriever, str(folder), {SIGNATURE: signature, "serving_default": signature}
            )
            freeze(folder)
            progress.step("compare with the checkpoint")
            golden = _check(folder, model, items, pairs[-1].table[:64], config.candidates.recall_at)
            extra = folder / EXTRA
            extra.mkdir(exist_ok=True)
            write_json(extra / "contract.json", frozen.model_dump(mode="json"))
            write_json(
                extra / "popular.json",
                {"items": items.ids[popular].tolist(), "counts": counts[popular].tolist()},
            )
            write_json(extra / "metrics.json", metrics)
            write_json(extra / "golden.json", golden)
    except (OSError, tf.errors.OpError, ModelRuntimeError) as error:
        reason = one_line(error)
        raise ExportError(
            f"{target}: could not be written: {reason}; nothing was published; make room or choose "
            "another folder, then export again"
        ) from error
    log.info("published %s", target)
    return target


def read_items(examples: Path, encoder: Encoder) -> Catalogue:
    """The items of the examples' snapshot, or of the examples where there is no snapshot.

    Raises:
        DataError: there is no item.
    """
    parts = sorted(ExamplesFolder(examples).snapshot("items").glob("*.parquet"))
    table = pl.concat([pl.read_parquet(path) for path in parts]) if parts else pl.DataFrame()
    if not len(table):
        return catalogue_of_splits(examples, encoder, SPLITS)
    return catalogue(table.to_arrow(), encoder)


def _flat(retriever: Retriever) -> Any:
    """The signature: every input under its own name."""
    specs, k = retriever.retrieve.input_signature

    @tf.function(input_signature=[{**specs, "k": k}])
    def retrieve(inputs: dict[str, Any]) -> dict[str, Any]:
        raw = {name: value for name, value in inputs.items() if name != "k"}
        return retriever.retrieve(raw, inputs["k"])

    return retrieve.get_concrete_function()


def _check(
    folder: Path, model: Retrieval, items: Catalogue, rows: pl.DataFrame, k: int
) -> dict[str, Any]:
    """Compare the file with the model on some rows.

    Returns:
        The first row's request and answer.

    Raises:
        ExportError: a score differs by more than the tolerance.
    """
    contract = model.encoder.contract
    table = rows.to_arrow()
    raw = raw_values(contract, table, model.user_features)
    found = load_signatures(folder)[SIGNATURE](raw | {"k": np.array(k, np.int32)})
    encoded = model.encoder(table, model.user_features)
    expected = np.asarray(model.user_tower(encoded)) @ model.item_vectors(items).T
    best = -np.sort(-expected, axis=1)[:, :k]
    scores = found["scores"]
    worst = float(np.abs(scores - best).max() / np.abs(best).max())
    if not worst <= _TOLERANCE:
        raise ExportError(
            f"parity: scores of the file differ from the model's by {worst:.2g} of the largest, "
            f"expected at most {_TOLERANCE:g}; nothing was published; report this"
        )
    first = take(raw, slice(0, 1))
    answer = take(found, slice(0, 1))
    return {
        "signature": SIGNATURE,
        "inputs": as_json(first | {"k": np.array(k, np.int32)}),
        "outputs": as_json(answer),
    }


def _as_tensor(ids: np.ndarray) -> Any:
    return tf.constant(ids.tolist() if ids.dtype == object else ids.astype(np.int64))
