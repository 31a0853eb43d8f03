"""Trains a contender of `benchmarks/bakeoff.py`, which starts it as a process of its own.

    python benchmarks/contenders/train.py CONTENDER --data table.npz --out scores.npz

    lightgbm, catboost  one model per task; ids are categories (`trees.py`); with `_without_rates`
                        behind the name without the columns of as-of rates
    dcn                 keras-rs's FeatureCross layers, DCN v2 (`keras_dcn.py`)
    mmoe, ple           torch-rechub's mixtures of experts (`torch_networks.py`)
    din                 torch-rechub's attention over the user's lists (`torch_networks.py`)
    tabm                TabM, members of one network (`torch_networks.py`)

All read the same table, of which `model.baselines.table` says the columns; networks read the ids of
the user's lists as well, as a mean of their embeddings or by attention (DIN), but not how many
training rows an id has: that is never 0 in training and 0 for most ids of later days (with it MMoE
has a mean AUC of 0.746 on Deskdrop's validation, without 0.826).  Trees choose by trials whether to
split on it.  They need NumPy and their library, not this project.
Every contender stops early on validation, keeps its best state there and never sees a test label.
Scores are on the scale that labels are learnt on.  Prints one JSON object: seconds and CPU seconds
of training, CPU milliseconds of a call of 100 rows.
"""

import argparse
import importlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from spaces import CALL, CALLS, NETWORKS, SPACES, TREES, WITHOUT_RATES
from table import Data, Predict

Train = Callable[[Data, dict[str, Any], int, int], Predict]


def train_of(contender: str) -> Train:
    """A contender's training; imports its library alone."""
    if contender in TREES:
        import trees

        return trees.per_task(getattr(trees, contender))
    module = importlib.import_module("keras_dcn" if contender == "dcn" else "torch_networks")
    found: Train = getattr(module, contender)
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("contender", choices=SPACES)
    arguments.add_argument("--data", type=Path, required=True, help="table that bakeoff.py wrote")
    arguments.add_argument("--setting", default="{}", help="JSON: one setting, or one by task")
    arguments.add_argument("--seed", type=int, default=0, help="of training")
    arguments.add_argument("--threads", type=int, default=1, help="of training and scoring")
    arguments.add_argument("--out", type=Path, required=True, help="file of scores to write")
    given = arguments.parse_args()
    data = Data(given.data)
    if given.contender.endswith(WITHOUT_RATES):
        data.without_rates()
    if given.contender in NETWORKS:
        data.without_counts()
    started, cpu = time.perf_counter(), time.process_time()
    train = train_of(given.contender.removesuffix(WITHOUT_RATES))
    predict = train(data, json.loads(given.setting), given.seed, given.threads)
    found = {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu,
    }
    scores = {
        f"{split}/{task}": values
        for split in ("validation", "test")
        for task, values in predict(data.rows[split]).items()
    }
    call = data.rows["test"].first(CALL)
    predict(call)
    cpu = time.process_time()
    for _ in range(CALLS):
        predict(call)
    found["call_cpu_ms"] = 1000 * (time.process_time() - cpu) / CALLS
    np.savez_compressed(given.out, **scores)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
