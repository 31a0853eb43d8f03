"""The contenders' names, and the settings that each may have."""

import random
from typing import Any

CALL, CALLS = 100, 50
"""Rows of a call, as candidates of a request, and how many calls are timed."""
WITHOUT_RATES = "_without_rates"
TREES = ("lightgbm", "catboost")
NETWORKS = ("dcn", "mmoe", "ple", "din", "tabm")
PER_TASK = (*TREES, *(name + WITHOUT_RATES for name in TREES))
"""Contenders with one model, and so one setting, for each task."""

_NETWORK: dict[str, list[Any]] = {
    "embedding_dim": [8, 16, 32],
    "dropout": [0.0, 0.2, 0.4],
    "rate": [3e-4, 1e-3, 2e-3],
    "weight_decay": [0.0, 1e-4, 1e-2],
}
SPACES: dict[str, dict[str, list[Any]]] = {
    "lightgbm": {
        "num_leaves": [15, 31, 63, 127],
        "learning_rate": [0.03, 0.05, 0.1],
        "min_data_in_leaf": [20, 50, 100, 200],
        "feature_fraction": [0.5, 0.8, 1.0],
        "cat_smooth": [5, 20, 80],
        "lambda_l2": [0.0, 1.0, 10.0],
        "ids": [True, False],
        "counts": [True, False],
    },
    "catboost": {
        "depth": [4, 6, 8],
        "learning_rate": [0.03, 0.06, 0.12],
        "l2_leaf_reg": [1, 3, 10, 30],
        "random_strength": [0.5, 1, 2],
        "ids": [True, False],
        "counts": [True, False],
    },
    "dcn": {
        "embedding_dim": [8, 16, 32],
        "cross_layers": [1, 2, 3],
        "units": [64, 128, 256],
        "dropout": [0.0, 0.2, 0.4],
        "l2": [0.0, 1e-6, 1e-5, 1e-4],
        "rate": [3e-4, 1e-3, 2e-3],
    },
    "mmoe": _NETWORK | {"experts": [4, 8, 16], "units": [64, 128, 256]},
    "ple": _NETWORK | {"own": [1, 2], "shared": [2, 4], "units": [64, 128, 256]},
    "din": _NETWORK | {"units": [64, 128, 256]},
    "tabm": _NETWORK | {"blocks": [1, 2, 3], "units": [64, 128, 256], "members": [8, 16, 32]},
}
SPACES |= {name: SPACES[name.removesuffix(WITHOUT_RATES)] for name in PER_TASK}
_BEGIN = {"embedding_dim": 16, "dropout": 0.2, "rate": 1e-3, "weight_decay": 1e-4}
FIRST: dict[str, dict[str, Any]] = {
    "lightgbm": {"num_leaves": 31, "learning_rate": 0.05, "min_data_in_leaf": 50},
    "catboost": {},
    "dcn": {
        "embedding_dim": 16,
        "cross_layers": 2,
        "units": 128,
        "dropout": 0.2,
        "l2": 1e-5,
        "rate": 1e-3,
    },
    "mmoe": _BEGIN | {"experts": 8, "units": 128},
    "ple": _BEGIN | {"own": 1, "shared": 2, "units": 128},
    "din": _BEGIN | {"units": 128},
    "tabm": _BEGIN | {"blocks": 2, "units": 128, "members": 16},
}
"""The first draw of each: what its documentation or paper would have a user begin with."""
FIRST |= {name: FIRST[name.removesuffix(WITHOUT_RATES)] for name in PER_TASK}


def draw(contender: str, trial: int) -> dict[str, Any]:
    """The setting of a trial."""
    if trial == 0:
        return FIRST[contender]
    rng = random.Random(f"{contender} {trial}")  # a key that is added last moves no other draw
    return {name: rng.choice(values) for name, values in SPACES[contender].items()}
