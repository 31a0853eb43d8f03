"""Labels of funnels: a task that is `given` another one is 1 only where that one is 1."""

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from multigate.configs.contract import Contract
from multigate.configs.errors import DataError
from multigate.configs.files import LABEL, ExamplesFolder


def check_labels(examples: Path, split: str, contract: Contract) -> None:
    """Refuse labels that contradict a funnel: P(given) P(task | given) could not explain them.

    Args:
        examples: folder of examples.
        split: to check.
        contract: tasks.

    Raises:
        DataError: a task's label is 1 where the label of its `given` is 0.
    """
    folder = ExamplesFolder(examples).split(split)
    for name, task in contract.tasks.items():
        if task.given is None:
            continue
        columns = [LABEL + name, LABEL + task.given]
        wrong = positive = 0
        for path in sorted(folder.glob("*.parquet")):
            table = pq.read_table(path, columns=columns)
            ones = pc.equal(table[columns[0]], 1)
            positive += pc.sum(ones).as_py() or 0
            wrong += pc.sum(pc.and_(ones, pc.equal(table[columns[1]], 0))).as_py() or 0
        if wrong:
            raise DataError(f"{folder}: {contradiction(name, task.given, wrong, positive)}")


def contradiction(name: str, given: str, wrong: int, positive: int) -> str:
    """What is wrong with a funnel's labels, and what to do.

    Args:
        name: of the task.
        given: the task that it is given.
        wrong: rows where its label is 1 and that of `given` is 0.
        positive: rows where its label is 1.
    """
    return (
        f"task {name!r} is given {given!r}, and its label is 1 in {wrong} rows (of {positive} with "
        f"1) where that of {given!r} is 0; expected none: count the events of {name!r} for "
        f"{given!r} too, give both the same within, or remove given"
    )
