"""Rows of examples as tf.Examples, as callers of Classify and Regress write them."""

from collections.abc import Sequence

import pyarrow as pa
import tensorflow as tf


def tf_example(table: pa.Table, row: int, names: Sequence[str]) -> bytes:
    """A row as a serialised tf.Example; null features are absent."""
    made = tf.train.Example()
    for name in names:
        value = table[name][row].as_py()
        if value is None:
            continue
        values, held = value if isinstance(value, list) else [value], made.features.feature[name]
        kind = table[name].type
        kind = kind.value_type if isinstance(value, list) else kind
        if pa.types.is_floating(kind):
            held.float_list.value.extend(values)
        elif pa.types.is_string(kind):
            held.bytes_list.value.extend((text or "").encode() for text in values)
        else:
            held.int64_list.value.extend(values)
    return made.SerializeToString()
