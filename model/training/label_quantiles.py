"""Quantiles of the training labels, for the heads that are made from them (`model.ranker.heads`).

They are measured when a training begins and stand in the checkpoint's `statistics.json`, so that a
task's loss can be changed without building the examples again.
"""

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from multigate.configs.contract import Contract
from multigate.configs.files import LABEL, ExamplesFolder, write_json
from multigate.configs.sections.labels import Task
from multigate.configs.sections.losses import Ordinal
from multigate.configs.statistics import Statistics
from multigate.model.ranker import scores
from multigate.model.ranker.make_heads import ordinal_thresholds, reads_quantiles

COUNT = 401
"""Quantiles, evenly spaced; the first is the smallest label, the last the largest."""

_MOST_ROWS = 1 << 22  # labels that are read, evenly spread


def add(folder: Path, examples: Path, contract: Contract, start_from: Path | None = None) -> None:
    """Add quantiles to a checkpoint's statistics, for the tasks whose heads read them.

    Args:
        folder: the checkpoint, with the statistics of the examples.
        examples: folder of examples.
        contract: tasks.
        start_from: checkpoint that the training starts from.  Its thresholds of an ordinal head
            are kept, because the outputs belong to them.
    """
    tasks = {name: task for name, task in contract.tasks.items() if reads_quantiles(task)}
    if not tasks:
        return
    path = ExamplesFolder(folder).statistics
    statistics = Statistics.read(path)
    before = {}
    if start_from is not None:
        before = Statistics.read(ExamplesFolder(start_from).statistics).tasks
    found = dict(statistics.tasks)
    for name, task in tasks.items():
        measured = found[name].model_copy(update={"quantiles": quantiles(examples, name, task)})
        if isinstance(task.loss, Ordinal):
            kept = before[name].thresholds if name in before else ()
            chosen = kept or ordinal_thresholds(measured, task.loss.thresholds)
            measured = measured.model_copy(update={"thresholds": chosen})
        found[name] = measured
    write_json(path, statistics.model_copy(update={"tasks": found}).model_dump(mode="json"))


def quantiles(examples: Path, name: str, task: Task) -> tuple[float, ...]:
    """`COUNT` quantiles of the training labels after their transform; none without labels.

    Each is a label itself, so that labels of few values, such as stars, stay these values.
    """
    paths = sorted(ExamplesFolder(examples).split("train").glob("*.parquet"))
    rows = sum(pq.read_metadata(path).num_rows for path in paths)
    step, passed, parts = -(-rows // _MOST_ROWS) or 1, 0, []
    for path in paths:
        column = pq.read_table(path, columns=[LABEL + name])[LABEL + name].cast("float32")
        parts.append(pc.fill_null(column, np.nan).to_numpy()[-passed % step :: step])
        passed += len(column)
    labels = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    labels = scores.transform(task, labels[~np.isnan(labels)])
    if not len(labels):
        return ()
    places = np.linspace(0, 1, COUNT)
    return tuple(float(q) for q in np.quantile(labels, places, method="inverted_cdf"))
