"""DCN v2 of keras-rs: one network of all tasks, with a head per task."""

import os
from typing import Any

import numpy as np
from table import Data, NetworkInputs, Predict, Rows, Targets

_AT_ONCE = 4096


def dcn(data: Data, setting: dict[str, Any], seed: int, threads: int) -> Predict:
    """DCN v2 of keras-rs with a head per task."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import keras_rs
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    keras.utils.set_random_seed(seed)
    encode, targets = NetworkInputs(data), Targets(data)
    codes = keras.Input((len(encode.sizes),), dtype="int32", name="codes")
    numbers = keras.Input((encode.numbers,), name="numbers")
    names = [name for name in encode(data.rows["test"].first(1)) if name.startswith("list ")]
    lists = {
        name: keras.Input((length,), dtype="int32", name=name)
        for name, length in zip(names, encode.lists, strict=True)
    }
    tables = [
        keras.layers.Embedding(
            size,
            setting["embedding_dim"],
            embeddings_regularizer=keras.regularizers.L2(setting["l2"]),
        )
        for size in encode.sizes
    ]
    parts = [table(codes[:, n]) for n, table in enumerate(tables)]
    for ids in lists.values():  # 0 behind the last
        inside = keras.ops.cast(ids > 0, "float32")[..., None]
        total = keras.ops.sum(tables[encode.candidate](ids) * inside, axis=1)
        parts.append(total / keras.ops.maximum(keras.ops.sum(inside, axis=1), 1.0))
    first = keras.layers.Concatenate()([*parts, numbers])
    crossed = first
    for _ in range(setting["cross_layers"]):
        crossed = keras_rs.layers.FeatureCross()(first, crossed)
    deep = keras.layers.Dense(setting["units"], activation="relu")(crossed)
    deep = keras.layers.Dropout(setting["dropout"])(deep)
    outputs = keras.layers.Concatenate(name="logits")(
        [keras.layers.Dense(1)(keras.layers.Dense(32, activation="relu")(deep)) for _ in data.tasks]
    )
    model = keras.Model({"codes": codes, "numbers": numbers} | lists, outputs)

    def loss(y: Any, z: Any) -> Any:
        known = tf.math.is_finite(y)
        y = tf.where(known, y, 0.0)
        each = tf.where(
            targets.binary,
            tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=z),
            (y - z) ** 2,
        )
        count = tf.maximum(tf.reduce_sum(tf.cast(known, tf.float32), axis=0), 1)
        return tf.reduce_sum(tf.reduce_sum(tf.where(known, each, 0.0), axis=0) / count)

    model.compile(keras.optimizers.Adam(setting["rate"]), loss)
    model.fit(
        encode(data.rows["train"]),
        targets(data.y["train"]),
        batch_size=512,
        epochs=12,
        validation_data=(encode(data.rows["validation"]), targets(data.y["validation"])),
        callbacks=[keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)],
        verbose=0,
    )

    def predict(rows: Rows) -> dict[str, np.ndarray]:
        inputs = encode(rows)
        if len(rows.x) <= _AT_ONCE:
            z = np.asarray(model.predict_on_batch(inputs), np.float64)
        else:
            z = np.asarray(model.predict(inputs, batch_size=_AT_ONCE, verbose=0), np.float64)
        return targets.scores(1 / (1 + np.exp(-z)), z)

    return predict
