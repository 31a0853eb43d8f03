"""Write all tables of docs/results/papers.md from the rows that exist.

    python benchmarks/papers/tables.py

What `--table` of every script here writes, and the first table, of all of them.
"""

import json

import deskdrop
import dselect_grid
import dselect_setup
import fashion_routers
import inference_modes
import multi_mnist
import raw_targets
import summary
import tasks_in_groups
import toy_skip
import trimmed_lasso
import tuned
import tuning
from rows import Rows


def write() -> dict[str, int]:
    """Write them; gives the number of rows by table."""
    counts = {}
    for data_set in tuned.STUDIES.values():
        data_set.write_tables()
        counts |= {table.path.stem: len(table.read()) for table in data_set.tables.values()}
    for study in (
        raw_targets,
        inference_modes,
        dselect_grid,
        dselect_setup,
        tasks_in_groups,
        toy_skip,
        trimmed_lasso,
        tuning,
        deskdrop,
        multi_mnist,
        fashion_routers,
    ):
        rows = Rows(study.__name__, study.KEY).read()
        study.write_table(rows)
        counts[study.__name__] = len(rows)
    summary.write_table()
    return counts


if __name__ == "__main__":
    print(json.dumps(write()))
