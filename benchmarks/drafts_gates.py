"""Which gate drafts of `multigate init` shall have: twelve invented logs with each gate.

    python benchmarks/drafts_gates.py --work FOLDER [--logs sports market ...] [--seeds 3]
        [--draw]

Drafts and examples are those of `drafts_invented.py`; only the gate differs.  A default has to be
chosen by the mean AUC of the binary tasks on the validation split; the test split stands beside it.
Each run is one line of docs/results/drafts_gates.jsonl: started again, the benchmark goes on where
it was stopped.  --draw writes the table into docs/results/gates.md; bold: beyond chance over the
logs (95 %, Student's t).
"""

import argparse
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablation import ONE_EXPERT, RESULTS, VARIANTS, measure
from drafts_invented import LOGS, drafted
from papers.rows import Row, Rows, cell, marked, mean_and_error, paired, replace_table

from multigate.jobs.tune import with_settings
from multigate.model.training import train

DRAFTS = "Top-k of all tasks"
GATES: dict[str, dict[str, Any]] = {
    DRAFTS: {},
    **{name: VARIANTS[name] for name in ("static DSelect-k", "softmax of each task")},
    "shared bottom": ONE_EXPERT,
}
"""Settings of a draft that differ, by dotted name."""
KEY = ("log", "gate", "seed")
SPLITS = ("validation", "test")


def wanted(logs: list[str], seeds: int) -> Iterator[Row]:
    """Keys of the runs, all logs with one seed before the next."""
    for seed in range(seeds):
        for log in logs:
            for gate in GATES:
                yield {"log": log, "gate": gate, "seed": seed}


def run(work: Path, key: Row) -> Row:
    """Draft a log, train it with a gate, and measure it."""
    config, examples = drafted(work, key)
    checkpoint = work / "run" / "checkpoint"
    shutil.rmtree(checkpoint.parent, ignore_errors=True)  # what an interrupted training left
    trained = train.train(
        with_settings(config, GATES[key["gate"]]),
        examples,
        checkpoint,
        progress=False,
        teacher_scores=work / f"{key['log']}.teacher",
    )
    return measure(checkpoint, examples) | {"best_epoch": trained["best_epoch"]}


def write_tables(rows: list[Row]) -> None:
    """Each gate less the draft's own, over the logs, into docs/results/gates.md.

    A log counts once, by the mean over its seeds.
    """
    less = [f"mean AUC on {split}, less {DRAFTS} | logs ahead" for split in SPLITS]
    lines = [f"| gate | logs, seeds | {' | '.join(less)} |", "|" + " --- |" * 6]
    runs = {gate: {(r["log"], r["seed"]): r for r in rows if r["gate"] == gate} for gate in GATES}
    for gate in [name for name in GATES if name != DRAFTS]:
        pairs = paired(runs[gate], runs[DRAFTS])
        cells = [gate, ", ".join(str(len({row[key] for row, _ in pairs})) for key in KEY[::2])]
        for split in SPLITS:
            of_log = defaultdict(list)
            for row, other in pairs:
                one, base = (r["measures"][f"mean AUC, {split}"] for r in (row, other))
                of_log[row["log"]].append(one - base)
            means = [mean_and_error(values)[0] for values in of_log.values()]
            cells.append(marked(cell(means, 4, "+"), pairs, means))
            cells.append(str(sum(mean > 0 for mean in means)))
        lines.append(f"| {' | '.join(cells)} |")
    replace_table("drafts' gates", lines, RESULTS / "gates.md")


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of logs and examples")
    parser.add_argument("--logs", nargs="+", default=list(LOGS), choices=LOGS)
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... of each training")
    parser.add_argument("--draw", action="store_true", help="write the table")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = Rows("drafts_gates", KEY, RESULTS)
    rows.run(wanted(options.logs, options.seeds), lambda key: run(options.work, key))
    if options.draw:
        write_tables(rows.read())


if __name__ == "__main__":
    main()
