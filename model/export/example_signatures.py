"""Signatures over serialised tf.Examples, for TensorFlow Serving's Classify and Regress.

    classify         `inputs` (N,) string; `classes` (N, C) the binary tasks' names, `scores` (N, C)
    regress/<task>   of each regression task: `inputs` (N,) string; `outputs` (N,)

An example holds each feature under its name: text as bytes, integers as int64, numbers as float, a
list as several values.  As in Rank, an absent feature and an empty text are missing values, which
`missing: error` refuses; a list loses its empty texts; and NaN and infinity are refused.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from multigate.configs.contract import LENGTH, PRESENT, Contract, IdListFeature, VectorFeature
from multigate.model.export.frozen.encoding import raw_inputs

Tensor = Any

CLASSIFY, REGRESS = "classify", "regress/"
"""Name of the signature for Classify, and prefix of the names for Regress."""

METHODS = {CLASSIFY: "tensorflow/serving/classify", REGRESS: "tensorflow/serving/regress"}


def example_signatures(
    contract: Contract, score_rows: Callable[..., dict[str, Tensor]]
) -> dict[str, Any]:
    """The signatures as concrete functions.

    Args:
        contract: features and tasks.
        score_rows: the function of `serving_default`.
    """
    binary = contract.binary_tasks()

    def classify(inputs: Tensor) -> dict[str, Tensor]:
        found = score_rows(**parse_examples(contract, inputs))
        classes = tf.broadcast_to(tf.constant(binary), [tf.size(inputs), len(binary)])
        return {"classes": classes, "scores": tf.stack([found[name] for name in binary], axis=1)}

    def regress(task: str) -> Callable[[Tensor], dict[str, Tensor]]:
        return lambda inputs: {"outputs": score_rows(**parse_examples(contract, inputs))[task]}

    functions: dict[str, Callable[[Tensor], dict[str, Tensor]]] = {}
    if binary:
        functions[CLASSIFY] = classify
    functions |= {REGRESS + name: regress(name) for name in contract.tasks if name not in binary}
    spec = tf.TensorSpec([None], tf.string, name="inputs")
    return {
        name: tf.function(function, autograph=False).get_concrete_function(inputs=spec)
        for name, function in functions.items()
    }


def parse_examples(contract: Contract, serialised: Tensor) -> dict[str, Tensor]:
    """Raw inputs of `serving_default`, from serialised examples (N,).

    Raises (when the graph runs):
        InvalidArgumentError: not a tf.Example, values of another type, NaN or infinity, several
            values for a feature that takes one, no value under `missing: error`, or another number
            of values for the entries of a history than it has.
    """
    names = [name for name, _ in contract.of_side("user", "item", "context")]
    specs = raw_inputs(contract, names)
    parsed = tf.io.parse_example(
        serialised,
        {name: tf.io.RaggedFeature(specs[name].dtype, row_splits_dtype=tf.int64) for name in names},
    )
    kept = {name: _without_empty(contract.features[name], parsed[name]) for name in names}
    checks = [check for name in names for check in _checks(contract, name, parsed, kept)]
    raw: dict[str, Tensor] = {}
    with tf.control_dependencies(checks):
        for name in names:
            feature, values = contract.features[name], kept[name]
            counts = tf.identity(values.row_lengths())  # (N,) int64, once all is checked
            if isinstance(feature, IdListFeature):
                raw |= {name: values.to_tensor(), name + LENGTH: counts}
                continue
            raw[name] = values.to_tensor(shape=[None, _size(feature)])
            if not isinstance(feature, VectorFeature):
                raw[name] = tf.reshape(raw[name], [-1])
            if name + PRESENT in specs:
                raw[name + PRESENT] = counts > 0
    return raw


def _checks(
    contract: Contract, name: str, parsed: Mapping[str, Tensor], kept: Mapping[str, Tensor]
) -> list[Any]:
    """Operations that refuse what a feature cannot take.

    Args:
        contract: the features.
        name: of the feature.
        parsed: by feature, ragged values (N, .) as they were sent.
        kept: the same without empty texts.
    """
    feature = contract.features[name]
    sent, left = parsed[name].row_lengths(), kept[name].row_lengths()
    checks = []
    if parsed[name].dtype == tf.float32:
        checks.append(
            _assert(
                tf.math.is_finite(parsed[name].flat_values),
                f"feature {name}: expected finite numbers, received NaN or infinity",
            )
        )
    if isinstance(feature, IdListFeature):
        for other in contract.entries_of(name).values():
            told = parsed[other].row_lengths()
            checks += [
                _assert(
                    (told == 0) | (told == sent),
                    f"feature {other}: expected as many values as {name} has entries, which is",
                    sent,
                    "received",
                    told,
                ),
                _assert(
                    (told == 0) | (left == sent),
                    f"feature {name}: an entry is an empty text, and {other} describes the "
                    "entries; leave it out of both",
                ),
            ]
        return checks
    size = _size(feature)
    expected = "one value" if size == 1 else f"{size} values"
    allowed = (sent == size) & (left == size)
    if feature.missing != "error":
        expected += " or none"
        allowed = (sent == size) | (sent == 0)
    # Where as many were sent as expected, an empty text among them is what was wrong.
    received = tf.where(sent == size, left, sent)
    expected = f"feature {name}: expected {expected} in each example, received"
    return [*checks, _assert(allowed, expected, received)]


def _assert(condition: Tensor, *message: Any) -> Any:
    return tf.debugging.Assert(tf.reduce_all(condition), list(message))


def _size(feature: Any) -> int:
    """How many values an example has of a feature that is no list."""
    return feature.size if isinstance(feature, VectorFeature) else 1


def _without_empty(feature: Any, values: Tensor) -> Tensor:
    """Ragged values without empty texts, which are missing values.

    What is known of a history's entries keeps them, because its values have the entries' places.
    """
    is_entry = isinstance(feature, IdListFeature) and feature.entry is not None
    if values.dtype != tf.string or is_entry:
        return values
    return tf.ragged.boolean_mask(values, values != "")


def set_methods(folder: str, signatures: Iterable[str]) -> None:
    """Set the method names of signatures in a SavedModel, which TensorFlow Serving checks.

    TensorFlow 2 writes Predict's method name into every signature.

    Args:
        folder: of the SavedModel.
        signatures: names from `example_signatures`.
    """
    saved = tf.compat.v1.saved_model.signature_def_utils.MethodNameUpdater(folder)
    for name in signatures:
        saved.replace_method_name(name, METHODS[CLASSIFY if name == CLASSIFY else REGRESS])
    saved.save()
