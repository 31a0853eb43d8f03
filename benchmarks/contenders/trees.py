"""Boosted trees: one model per task."""

from collections.abc import Callable
from typing import Any

import numpy as np
from table import Data, Predict

_MOST_TREES = 1000  # stopped 30 trees after the best on validation
IDS, COUNTS = "ids", "counts"
"""A setting's own words for whether trees split on ids, and on their numbers of training rows."""


def per_task(
    fit: Callable[[Data, str, dict[str, Any], int, int], Callable[[np.ndarray], np.ndarray]],
) -> Callable[[Data, dict[str, Any], int, int], Predict]:
    """A contender of one model per task; a setting is one for all tasks, or one by task."""

    def train(data: Data, setting: dict[str, Any], seed: int, threads: int) -> Predict:
        models = {
            task: fit(data, task, setting.get(task, setting), seed, threads) for task in data.tasks
        }
        return lambda rows: {task: model(rows.x) for task, model in models.items()}

    return train


def _parts(data: Data, setting: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """The library's own part of a setting, and the columns that are not to be read."""
    unread = [] if setting.get(IDS, True) else list(data.categories)
    unread += [] if setting.get(COUNTS, True) else data.counts
    return {n: value for n, value in setting.items() if n not in (IDS, COUNTS)}, unread


def lightgbm(
    data: Data, task: str, setting: dict[str, Any], seed: int, threads: int
) -> Callable[[np.ndarray], np.ndarray]:
    """As `model.baselines.lightgbm_baseline`, with the setting's own parameters."""
    import lightgbm as library

    chosen, unread = _parts(data, setting)
    if unread:  # a gain of nothing is never taken
        chosen["feature_contri"] = [float(n not in unread) for n in range(len(data.columns))]
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
        common | chosen,
        train,
        _MOST_TREES,
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
    chosen, unread = _parts(data, setting)
    if unread:
        chosen["ignored_features"] = unread

    def pool(x: np.ndarray, y: np.ndarray | None = None) -> Any:
        columns = x.astype(object)
        codes = np.nan_to_num(x[:, data.categories], nan=-1).astype(np.int64)
        columns[:, data.categories] = codes.astype(str)
        return library.Pool(columns, y, cat_features=data.categories)

    model = (library.CatBoostClassifier if binary else library.CatBoostRegressor)(
        iterations=_MOST_TREES,
        random_seed=seed,
        thread_count=threads,
        allow_writing_files=False,
        verbose=False,
        **chosen,
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
