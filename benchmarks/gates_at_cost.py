"""Quality of each gate against what a served candidate costs, for numbers of experts and of chosen.

    python benchmarks/gates_at_cost.py --config C --examples EXAMPLES --work FOLDER [--name NAME]
        [--gates topk softmax ...] [--experts 4 8 ...] [--chosen 1 2 4] [--seeds 1] [--draw]

Trains the configuration with each gate, E experts of the configuration's units and k chosen, each
seed anew; exports it, with the gates rounded to their k; measures the version; and calls it as the
server does (`rank`, one user, 100 candidates).  The teacher is left out, so that what a gate is
worth is not hidden behind trees.  `shared_bottom` is one expert for all tasks, `wide bottom` one
that is E times as wide, and `single_task` a model of one expert for each task, whose costs add up.

The cost is the CPU time of a call over its candidates: the lower quartile over turns with the
shared bottom, which is measured again beside each version, so that the ratio outlives the machine.
Each run is one line of docs/results/gates_at_cost.jsonl: started again, the benchmark goes on where
it was stopped.  --draw writes the table of all lines into docs/results/gates.md, and its picture
into docs/pictures.  Quality is the mean AUC of the binary tasks on the test split; a row says its
validation value too, by which a user has to choose.
"""

import argparse
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from exported_versions import of_one_user, request_of
from gates_page import BASELINES, KEY, RESULTS, WIDE_BOTTOM, WITHOUT_CHOICE, draw, write_tables
from inference import measure
from papers.rows import Row, Rows

from multigate.configs.baselines import SHARED_BOTTOM, SINGLE_TASK, baseline
from multigate.configs.config import Config, load
from multigate.configs.sections.base import parse
from multigate.jobs import interface
from multigate.model.export.graph import RANK
from multigate.serving.versions.saved_model import SavedModel

GATES: dict[str, dict[str, Any]] = {
    "softmax": {"name": "softmax"},
    "topk": {"name": "topk"},
    "topk of each group": {"name": "topk", "shared_gate": "group"},
    "topk of all tasks": {"name": "topk", "shared_gate": "all"},
    "moesart": {"name": "moesart"},
    "dselect_k": {"name": "dselect_k", "entropy_weight": 0.1},
    "dselect_k of all tasks": {"name": "dselect_k", "shared_gate": "all", "entropy_weight": 0.1},
    "dselect_k static": {"name": "dselect_k", "static": True, "entropy_weight": 0.1},
    "comet": {"name": "comet", "entropy_weight": 0.1},
    "vmoe": {"name": "vmoe"},
    "xmoe": {"name": "xmoe"},
    "expert_choice": {"name": "expert_choice"},
    "switch": {"name": "switch"},
    "hash": {"name": "hash"},
}
WITHOUT_K = (*WITHOUT_CHOICE, "hash")  # have no `num_selected`
MOST_CHOSEN = {"switch": 1, "hash": 1}  # k, where the gate has a limit or is known for one
LEAST_CHOSEN = {"moesart": 2}  # its router learns from a second one
CANDIDATES = 100
SECONDS = 2.0
"""Of calls, for each version."""


def wanted(options: argparse.Namespace) -> Iterator[Row]:
    """Keys of the runs, the cheapest first."""
    for seed in range(options.seeds):
        for name in BASELINES:
            if name in options.gates:
                yield dict(zip(KEY, (options.name, name, 1, 1, seed), strict=True))
        for experts in options.experts:
            for gate in [name for name in options.gates if name not in BASELINES]:
                for chosen in [experts] if gate in WITHOUT_CHOICE else options.chosen:
                    most = min(MOST_CHOSEN.get(gate, chosen), experts - 1)
                    if gate in WITHOUT_CHOICE or LEAST_CHOSEN.get(gate, 1) <= chosen <= most:
                        yield dict(
                            zip(KEY, (options.name, gate, experts, chosen, seed), strict=True)
                        )


def configured(config: Config, key: Row) -> Config:
    """The configuration of a run."""
    values = config.model_dump(mode="json")
    values["train"] |= {"seed": key["seed"], "teacher": None}
    # What is measured is the version as it is served, so that a gate that has not settled shows it.
    values["export"] |= {"hardening_tolerance": 1.0, "log_loss_tolerance": 1.0}
    if key["gate"] in GATES:
        gate = dict(GATES[key["gate"]])
        if key["gate"] not in WITHOUT_K:
            gate["num_selected"] = key["chosen"]
        shared = gate.pop("shared_gate", "none")
        values["model"] |= {"gate": gate, "gates": {}, "shared_gate": shared}
        values["model"]["experts"] |= {"count": key["experts"], "own": 0}
    if key["gate"] == WIDE_BOTTOM:
        units = [width * key["experts"] for width in values["model"]["experts"]["units"]]
        values["model"]["experts"]["units"] = units
    return parse(Config, values, str(key))


class Measured:
    """What is measured of one configuration's runs on one folder of examples."""

    def __init__(self, config: Config, examples: Path, work: Path) -> None:
        self.config, self.examples, self.work = config, examples, work
        self.binary = config.contract.binary_tasks()
        self.reference = work / "reference"
        if not self.reference.exists():
            key = dict(zip(KEY, ("", SHARED_BOTTOM, 1, 1, 0), strict=True))
            bottom = baseline(configured(config, key), SHARED_BOTTOM)
            self.trained(bottom, self.binary)["version"].rename(self.reference)

    def __call__(self, key: Row) -> Row:
        """Train, measure and export one run."""
        config = configured(self.config, key)
        began = time.process_time()
        if key["gate"] == SINGLE_TASK:
            parts = {
                t: self.trained(baseline(config, f"{SINGLE_TASK}:{t}"), [t]) for t in self.binary
            }
            found: Row = {
                split: {t: part[split][t] for t, part in parts.items()}
                for split in ("validation", "test")
            }
            costs = [self.cost(part["version"]) for part in parts.values()]
            found |= {"evaluated": len(parts), "ratio": sum(ratio for ratio, _ in costs)}
            found["microseconds"] = sum(one for _, one in costs)
        else:
            if key["gate"] in (SHARED_BOTTOM, WIDE_BOTTOM):
                config = baseline(config, SHARED_BOTTOM)
            found = self.trained(config, self.binary)
            version = found.pop("version")
            found["ratio"], found["microseconds"] = self.cost(version)
        means = {
            split: float(np.mean(list(found[split].values()))) for split in ("validation", "test")
        }
        return {
            **{f"{split}_auc": round(value, 5) for split, value in means.items()},
            "evaluated": round(found["evaluated"], 3),
            "ratio": round(found["ratio"], 3),
            "microseconds": round(found["microseconds"], 2),
            "tasks": {name: round(value, 5) for name, value in found["test"].items()},
            "cpu_seconds": round(time.process_time() - began),
        }

    def trained(self, config: Config, tasks: list[str]) -> Row:
        """AUC of tasks on both splits, experts evaluated a row, and the version's folder."""
        folder = self.work / "run"
        shutil.rmtree(folder, ignore_errors=True)
        checkpoint = folder / "checkpoint"
        interface.train(config, self.examples, checkpoint, progress=False)
        versions = self.work / "versions" / "-".join(tasks)
        shutil.rmtree(versions, ignore_errors=True)
        found: Row = {"version": interface.export(checkpoint, self.examples, versions)}
        few = config.evaluation.model_copy(update={"replicates": 50})
        for split in ("validation", "test"):
            assessed = interface.evaluate(found["version"], self.examples, split=split, options=few)
            found[split] = {name: assessed["tasks"][name]["value"] for name in tasks}
            found["evaluated"] = assessed["experts_per_row"]
        return found

    def cost(self, version: Path) -> tuple[float, float]:
        """CPU time of a call over the shared bottom's, and microseconds a candidate."""
        folders = {"reference": self.reference, "ours": version}
        served = {name: SavedModel.load(1, one) for name, one in folders.items()}
        requests = {
            name: of_one_user(request_of(folders[name]), one.contract, CANDIDATES)
            for name, one in served.items()
        }
        calls = {
            name: partial(one.signatures[RANK], requests[name]) for name, one in served.items()
        }
        _, cpu = measure(calls, SECONDS)
        for one in served.values():
            one.retire()
        return cpu["ours"] / cpu["reference"], cpu["ours"] / CANDIDATES


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", help="preset or YAML file")
    parser.add_argument("--examples", type=Path)
    parser.add_argument("--work", type=Path, help="folder for checkpoints and versions")
    parser.add_argument("--name", help="of the data in the table; by default the configuration's")
    known = [*BASELINES, WIDE_BOTTOM, *GATES]
    parser.add_argument("--gates", nargs="+", choices=known, default=known)
    parser.add_argument("--experts", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--chosen", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--draw", action="store_true", help="write the table and the picture")
    options = parser.parse_args()
    rows = Rows("gates_at_cost", KEY, RESULTS)
    if options.config is not None:
        if options.examples is None or options.work is None:
            parser.error("--config needs --examples and --work")
        config = load(options.config)
        options.name = options.name or config.name
        options.work.mkdir(parents=True, exist_ok=True)
        rows.run(wanted(options), Measured(config, options.examples, options.work))
    if options.draw:
        kept = rows.read()
        write_tables(kept)
        draw(kept)


if __name__ == "__main__":
    main()
