"""What factors of two features (`model.factors`) are worth, on twelve invented logs.

    python benchmarks/factors.py --work FOLDER [--logs music groceries ...] [--seeds 1]
    python benchmarks/factors.py --work FOLDER --config movielens_time --examples EXAMPLES

Trains the draft that `multigate init` makes of each log (FOLDER may be that of
`drafts_invented.py`), or a configuration, and measures the checkpoint before factors are added and
after it: no step of training knows of them.  Each run is one line of FOLDER/factors.jsonl: started
again, the benchmark goes on where it was stopped; another version needs another folder.

Prints a table in Markdown: of each task that has factors what they save of the validation loss, and
the test split's AUC or RMSE without and with them; RMSE on the scale of training.
"""

import argparse
import shutil
import time
from pathlib import Path

from drafts_invented import LOGS, drafted
from papers.rows import Row, Rows

from multigate.configs.config import Config, load
from multigate.configs.sections.base import parse
from multigate.configs.sections.model import Factors
from multigate.jobs import interface
from multigate.model.evaluation import factors as found_factors
from multigate.model.evaluation.evaluate import evaluate


def run(config: Config, examples: Path, work: Path) -> Row:
    """Train without factors, measure the test split, add factors, and measure it again."""
    factors = config.model.factors or Factors()
    model = config.model.model_copy(update={"factors": None})
    config = config.model_copy(update={"model": model})
    checkpoint = work / "run" / "checkpoint"
    shutil.rmtree(checkpoint.parent, ignore_errors=True)  # what an interrupted training left
    trained = interface.train(config, examples, checkpoint, progress=False)
    without = _measured(checkpoint, examples)
    started = time.perf_counter()
    saved = found_factors.add(checkpoint, examples, factors)
    seconds = time.perf_counter() - started
    return {
        "tasks": {
            name: {"saved": saved.get(name), "without": without[name], "with": value}
            for name, value in _measured(checkpoint, examples).items()
        },
        "seconds": seconds,
        "training_seconds": trained["seconds"],
        "rows": trained["rows"],
    }


def _measured(checkpoint: Path, examples: Path) -> dict[str, float | None]:
    """By task the test split's AUC, or its RMSE on the scale of training."""
    tasks = evaluate(checkpoint, examples, split="test")["tasks"]
    return {
        name: one["value"] if one["metric"] == "auc" else one["mse"] ** 0.5
        for name, one in tasks.items()
    }


def draw(rows: list[Row]) -> list[str]:
    """The table in Markdown, and the logs without factors."""
    lines = [
        "| log, seed | rows | task | pairs, and what they save of the validation loss "
        "| test: without | with | seconds to find them, of the training's |",
        "|" + " --- |" * 7,
    ]
    none = []
    for row in rows:
        helped = {name: one for name, one in row["tasks"].items() if one["saved"] is not None}
        if not helped:
            none.append(f"{row['log']}, {row['seed']}")
        for name, one in helped.items():
            pairs = ", ".join(f"{pair} {saved:.1%}" for pair, saved in one["saved"].items())
            cells = [f"{row['log']}, {row['seed']}", f"{row['rows']:,}", name, pairs]
            cells += [f"{one['without']:.4f}", f"{one['with']:.4f}"]
            cells.append(f"{row['seconds']:.0f}, {row['training_seconds']:.0f}")
            lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", f"Without factors: {'; '.join(none) or 'none'}."]


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of logs, examples, rows")
    parser.add_argument("--logs", nargs="+", default=list(LOGS), choices=LOGS)
    parser.add_argument("--seeds", type=int, default=1, help="seeds 0, 1, ... of each training")
    parser.add_argument("--config", help="a configuration or preset, in the place of the logs")
    parser.add_argument("--examples", type=Path, help="of that configuration")
    options = parser.parse_args()
    if (options.config is None) != (options.examples is None):
        parser.error("--config and --examples: expected both or none")
    options.work.mkdir(parents=True, exist_ok=True)
    rows = Rows("factors", ("log", "seed"), options.work)
    logs = options.logs if options.config is None else [options.config]
    wanted = [{"log": log, "seed": seed} for seed in range(options.seeds) for log in logs]

    def measure(key: Row) -> Row:
        if options.config is None:
            return run(*drafted(options.work, key), options.work)
        values = load(options.config).model_dump(mode="json")
        values["train"]["seed"] = key["seed"]
        return run(parse(Config, values, options.config), options.examples, options.work)

    rows.run(wanted, measure)
    print("\n".join(draw(rows.read())))


if __name__ == "__main__":
    main()
