"""The contenders of `benchmarks/bakeoff.py`, each trained by it in a process of its own.

    python benchmarks/bakeoff/contenders.py lightgbm|catboost|dcn --data table.npz --out scores.npz

    lightgbm  one booster per task
    catboost  one model per task; ids are its categorical features
    dcn       one Keras model of all tasks: embeddings of the ids, keras-rs's FeatureCross layers
              (DCN v2), a shared layer and a head per task; losses masked and added

All read the same table, of which `model.baselines.table` says the columns, and nothing else.  They
need NumPy and their library, not this project.  Every contender stops early on validation, keeps
its best state there and never sees a test label.  Scores are on the scale that labels are learnt
on.  Prints one JSON object: seconds and CPU seconds of training, CPU milliseconds of a call of 100
rows.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CALL = 100  # rows of one call, as candidates of a request
CALLS = 50
Predict = Callable[[np.ndarray], dict[str, np.ndarray]]


class Data:
    """The table: features (N, F) and labels (N, T) of each split, NaN where masked.

    Attributes:
        columns: names of the F columns.
        categories: index of those that are codes: 0 for other ids, NaN missing.
        tasks: type by name, "binary" or "regression".
    """

    def __init__(self, path: Path) -> None:
        with np.load(path) as stored:
            self.x = {split: stored[f"{split}/x"] for split in ("train", "validation", "test")}
            self.y = {split: stored[f"{split}/y"] for split in ("train", "validation")}
            about = json.loads(str(stored["about"]))
        self.columns: list[str] = about["columns"]
        self.categories = [self.columns.index(name) for name in about["categories"]]
        self.tasks: dict[str, str] = about["tasks"]

    def of_task(self, task: str, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Rows and labels where the task has a label."""
        y = self.y[split][:, list(self.tasks).index(task)]
        known = ~np.isnan(y)
        return self.x[split][known], y[known]


def per_task(
    fit: Callable[[Data, str, dict[str, Any], int, int], Callable[[np.ndarray], np.ndarray]],
) -> Callable[[Data, dict[str, Any], int, int], Predict]:
    """A contender of one model per task; a setting is one for all tasks, or one by task."""

    def train(data: Data, setting: dict[str, Any], seed: int, threads: int) -> Predict:
        models = {
            task: fit(data, task, setting.get(task, setting), seed, threads) for task in data.tasks
        }
        return lambda x: {task: model(x) for task, model in models.items()}

    return train


def lightgbm(
    data: Data, task: str, setting: dict[str, Any], seed: int, threads: int
) -> Callable[[np.ndarray], np.ndarray]:
    """As `model.baselines.lightgbm_baseline`, with the setting's own parameters."""
    import lightgbm as library

    common = {
        "objective": "binary" if data.tasks[task] == "binary" else "regression",
        "feature_fraction": 0.8,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "cat_smooth": 20,
        "cat_l2": 20,
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
        "seed": seed,
        "num_threads": threads,
    }
    train, valid = (
        library.Dataset(
            *data.of_task(task, split),
            feature_name=data.columns,
            categorical_feature=data.categories,
        )
        for split in ("train", "validation")
    )
    booster = library.train(
        common | setting,
        train,
        400,
        valid_sets=[valid.set_reference(train)],
        callbacks=[library.early_stopping(30, verbose=False)],
    )
    return lambda x: np.asarray(booster.predict(x, num_threads=threads))


def catboost(
    data: Data, task: str, setting: dict[str, Any], seed: int, threads: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Gradient boosting with ordered statistics of the categories."""
    import catboost as library

    binary = data.tasks[task] == "binary"

    def pool(x: np.ndarray, y: np.ndarray | None = None) -> Any:
        columns = x.astype(object)
        codes = np.nan_to_num(x[:, data.categories], nan=-1).astype(np.int64)
        columns[:, data.categories] = codes.astype(str)
        return library.Pool(columns, y, cat_features=data.categories)

    model = (library.CatBoostClassifier if binary else library.CatBoostRegressor)(
        iterations=600,
        random_seed=seed,
        thread_count=threads,
        allow_writing_files=False,
        verbose=False,
        **setting,
    )
    model.fit(
        pool(*data.of_task(task, "train")),
        eval_set=pool(*data.of_task(task, "validation")),
        early_stopping_rounds=30,
        use_best_model=True,
    )
    if binary:
        return lambda x: model.predict_proba(pool(x), thread_count=threads)[:, 1]
    return lambda x: model.predict(pool(x), thread_count=threads)


def dcn(data: Data, setting: dict[str, Any], seed: int, threads: int) -> Predict:
    """DCN v2 of keras-rs with a head per task."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import keras_rs
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    keras.utils.set_random_seed(seed)
    numeric = [n for n in range(len(data.columns)) if n not in data.categories]
    x = np.log1p(np.maximum(data.x["train"][:, numeric], 0))
    mean, deviation = np.nanmean(x, axis=0), np.nanstd(x, axis=0) + 1e-6

    sizes = [int(np.nanmax(data.x["train"][:, c], initial=0)) + 2 for c in data.categories]

    def encode(table: np.ndarray) -> dict[str, np.ndarray]:
        # Trees need no scale; a network does: logarithm, standardised, and a flag where missing.
        values = (np.log1p(np.maximum(table[:, numeric], 0)) - mean) / deviation
        flags = np.isnan(values)
        codes = np.nan_to_num(table[:, data.categories], nan=-1).astype(np.int32) + 1
        codes = np.where(codes < sizes, codes, 1)  # not in training: as other ids
        return {
            "codes": codes,
            "numbers": np.concatenate([np.where(flags, 0, values), flags], axis=1).astype("f4"),
        }

    codes = keras.Input((len(sizes),), dtype="int32", name="codes")
    numbers = keras.Input((2 * len(numeric),), name="numbers")
    parts = [
        keras.layers.Embedding(
            size,
            setting["embedding_dim"],
            embeddings_regularizer=keras.regularizers.L2(setting["l2"]),
        )(codes[:, n])
        for n, size in enumerate(sizes)
    ]
    first = keras.layers.Concatenate()([*parts, numbers])
    crossed = first
    for _ in range(setting["cross_layers"]):
        crossed = keras_rs.layers.FeatureCross()(first, crossed)
    deep = keras.layers.Dense(setting["units"], activation="relu")(crossed)
    deep = keras.layers.Dropout(setting["dropout"])(deep)
    outputs = keras.layers.Concatenate(name="logits")(
        [keras.layers.Dense(1)(keras.layers.Dense(32, activation="relu")(deep)) for _ in data.tasks]
    )
    model = keras.Model({"codes": codes, "numbers": numbers}, outputs)
    binary = np.array([kind == "binary" for kind in data.tasks.values()])
    centre = np.where(binary, 0, np.nanmean(data.y["train"], axis=0))
    spread = np.where(binary, 1, np.nanstd(data.y["train"], axis=0))

    def loss(y: Any, z: Any) -> Any:
        known = tf.math.is_finite(y)
        y = tf.where(known, y, 0.0)
        each = tf.where(
            binary, tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=z), (y - z) ** 2
        )
        count = tf.maximum(tf.reduce_sum(tf.cast(known, tf.float32), axis=0), 1)
        return tf.reduce_sum(tf.reduce_sum(tf.where(known, each, 0.0), axis=0) / count)

    model.compile(keras.optimizers.Adam(setting["rate"]), loss)
    labels = {split: ((y - centre) / spread).astype("f4") for split, y in data.y.items()}
    model.fit(
        encode(data.x["train"]),
        labels["train"],
        batch_size=512,
        epochs=12,
        validation_data=(encode(data.x["validation"]), labels["validation"]),
        callbacks=[keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)],
        verbose=0,
    )

    def predict(table: np.ndarray) -> dict[str, np.ndarray]:
        inputs = encode(table)
        call = model.predict_on_batch if len(table) <= CALL else model.predict
        options = {} if len(table) <= CALL else {"batch_size": 4096, "verbose": 0}
        z = np.asarray(call(inputs, **options), np.float64)
        values = np.where(binary, 1 / (1 + np.exp(-z)), z * spread + centre)
        return dict(zip(data.tasks, values.T, strict=True))

    return predict


CONTENDERS: dict[str, Callable[[Data, dict[str, Any], int, int], Predict]] = {
    "lightgbm": per_task(lightgbm),
    "catboost": per_task(catboost),
    "dcn": dcn,
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("contender", choices=CONTENDERS)
    arguments.add_argument("--data", type=Path, required=True, help="table that bakeoff.py wrote")
    arguments.add_argument("--setting", default="{}", help="JSON: one setting, or one by task")
    arguments.add_argument("--seed", type=int, default=0, help="of training")
    arguments.add_argument("--threads", type=int, default=1, help="of training and scoring")
    arguments.add_argument("--out", type=Path, required=True, help="file of scores to write")
    given = arguments.parse_args()
    data = Data(given.data)
    started, cpu = time.perf_counter(), time.process_time()
    train = CONTENDERS[given.contender]
    predict = train(data, json.loads(given.setting), given.seed, given.threads)
    found = {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu,
    }
    scores = {
        f"{split}/{task}": values
        for split in ("validation", "test")
        for task, values in predict(data.x[split]).items()
    }
    call = data.x["test"][:CALL]
    predict(call)
    cpu = time.process_time()
    for _ in range(CALLS):
        predict(call)
    found["call_cpu_ms"] = 1000 * (time.process_time() - cpu) / CALLS
    np.savez_compressed(given.out, **scores)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
