"""Our ranker beside boosted trees and deep models of other libraries, on identical examples.

    python benchmarks/bakeoff.py --config deskdrop --examples EXAMPLES --work FOLDER
        [--name NAME] [--contenders ours lightgbm ...] [--seeds 5] [--tune 16] [--peers PYTHON]
        [--set train.teacher='{"share": 0.5}' ...]

`benchmarks/contenders/train.py` says what each contender is; all of them read one table, made of
the examples by `model.baselines.table`.  `ours` is the configuration, with what --set changes in
it, as `multigate train` trains it on the same examples.  Libraries that the project does not
install need an environment of their own:

    uv venv --python 3.11 envs/bakeoff
    uv pip install --python envs/bakeoff/bin/python catboost==1.2.* keras-rs==0.4.* \
        keras==3.15.* tensorflow==2.21.* torch-rechub tabm

named by --peers (or BAKEOFF_PEERS); without it they are left out.

--tune draws that many settings of each contender but ours (`contenders/spaces.py`; the same number
for each, the same draws every time), trains each once and keeps the best on validation in
benchmarks/contenders/settings.json: by task where a contender has one model per task, else by the
mean over the tasks of AUC and explained variance.  An entry with `tuned_on` was copied from that
data set's.  Without --tune that file's settings are used, and a contender without one runs with its
first draw, which the table says.

Each trial and each seed is one JSON line: started again, the benchmark goes on where it was
stopped.  Trials lie in benchmarks/contenders/trials.jsonl, with what identifies the table that they
read, so that tuning may go on elsewhere; seeds, whose scores are needed, in FOLDER (rows.jsonl).
Prints a table in Markdown and, last, one JSON line.  The measures are means over the seeds;
intervals are those of the paired difference from ours over resamples of the users, 95 %.  All
contenders' scores are calibrated on validation alike first (`contenders/judge.py`).  Deskdrop
takes some minutes a contender and seed on one core.
"""

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from contenders.spaces import CALL, CALLS, FIRST, NETWORKS, PER_TASK, SPACES, WITHOUT_RATES, draw

HERE = Path(__file__).parent
SETTINGS = HERE / "contenders/settings.json"
TRIALS = HERE / "contenders/trials.jsonl"
OURS = "ours"
PEERS = ("catboost", "catboost" + WITHOUT_RATES, *NETWORKS)  # in the environment of --peers


class Bakeoff:
    """One data set's table, and what has been run on it.

    Args:
        config: preset or YAML file, of our model.
        examples: folder of examples.
        work: folder of the table, the scores and the finished rows.
        peers: python of the peers' environment; None leaves them out.
        threads: of each training.
        name: of the data in settings, trials and tables; None takes the configuration's.
        changes: of our configuration, such as `train.epochs=4`: dotted name and value in JSON.
    """

    def __init__(
        self,
        config: str,
        examples: Path,
        work: Path,
        peers: str | None,
        threads: int,
        name: str | None = None,
        changes: Sequence[str] = (),
    ) -> None:
        from multigate.configs import load
        from multigate.configs.contract import FrozenContract
        from multigate.configs.files import ExamplesFolder
        from multigate.jobs.tune import with_settings

        self.examples, self.work = examples, work
        self.peers, self.threads = peers, threads
        changed = dict(parsed(change) for change in changes)
        self.ours = with_settings(load(config), changed, "--set")
        self.name = name or self.ours.name
        folder = ExamplesFolder(examples)
        self.contract = FrozenContract.read(folder.contract).contract
        self.manifest = hashlib.sha256(folder.manifest.read_bytes()).hexdigest()
        work.mkdir(parents=True, exist_ok=True)
        self.table, self.rows = work / "table.npz", work / "rows.jsonl"
        if not self.table.exists():
            self.write_table()
        with np.load(self.table) as table:
            if json.loads(str(table["about"])).get("manifest") != self.manifest:
                raise SystemExit(
                    f"{work}: holds the table of other examples than {examples}: name another "
                    "folder by --work"
                )
            parts = (table[f"{split}/{part}"] for split in ("train", "validation") for part in "xy")
            contents = b"".join(hashlib.sha256(part.tobytes()).digest() for part in parts)
        self.identity = hashlib.sha256(contents).hexdigest()[:16]

    def write_table(self) -> None:
        """Write what the contenders read."""
        from multigate.model.baselines.table import Tabulator
        from multigate.model.data.rows import read_rows
        from multigate.model.ranker.scores import transform

        rows = {split: read_rows(self.examples, split) for split in ("train", "validation", "test")}
        tabulator = Tabulator(self.contract, rows["train"])
        arrays: dict[str, Any] = {f"{split}/x": tabulator(one) for split, one in rows.items()}
        for split in ("train", "validation"):  # labels of the test split stay here
            labels = rows[split].labels(self.contract)
            columns = [
                transform(task, labels[:, t]) for t, task in enumerate(self.contract.tasks.values())
            ]
            arrays[f"{split}/y"] = np.stack(columns, axis=1)
        for split, one in rows.items():
            entries = {name: tabulator.entries(one, name) for name in tabulator.lists}
            arrays |= {f"{split}/list/{name}": codes for name, codes in entries.items()}
        about = {
            "columns": tabulator.columns,
            "categories": tabulator.categories,
            "candidate": self.contract.item,
            "lists": tabulator.lists,
            "rates": list(self.contract.label_counters()),
            "tasks": {name: task.type for name, task in self.contract.tasks.items()},
            "manifest": self.manifest,  # which examples it is of
        }
        unfinished = self.work / "table.tmp.npz"
        np.savez_compressed(unfinished, about=json.dumps(about), **arrays)
        unfinished.rename(self.table)

    def finished(self, path: Path) -> list[dict[str, Any]]:
        """Lines of a file that read this table, without one that a kill cut off."""
        found = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [line for line in found if line["table"] == self.identity]

    def finish(self, path: Path, line: dict[str, Any]) -> None:
        """Add a line; several runs may share the file."""
        line = {"data": self.name, "table": self.identity} | line
        with path.open("a+b") as file:
            file.seek(0)
            before = file.read()
            cut_off = bool(before) and not before.endswith(b"\n")
            file.write(b"\n" * cut_off + json.dumps(line).encode() + b"\n")

    def train(
        self, contender: str, setting: dict[str, Any], seed: int, scores: Path
    ) -> dict[str, Any]:
        """Train a contender in a process of its own; it writes scores of validation and test."""
        if contender == OURS:
            from multigate.configs.contract import fingerprint
            from multigate.configs.written import as_yaml

            # Not the preset: it may change before this seed's turn.
            config = self.work / f"ours-{fingerprint(setting)}.yaml"
            config.write_text(as_yaml(self.ours), encoding="utf-8")
            command = [
                *(sys.executable, str(HERE / "bakeoff.py"), "--config", str(config)),
                *("--examples", str(self.examples), "--work", str(self.work)),
                *("--train_ours", str(scores), "--seed", str(seed)),
            ]
        else:
            python = self.peers if contender in PEERS else sys.executable
            command = [
                *(str(python), str(HERE / "contenders/train.py"), contender),
                *("--data", str(self.table), "--out", str(scores), "--seed", str(seed)),
                *("--setting", json.dumps(setting), "--threads", str(self.threads)),
            ]
        limits = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"), str(self.threads))
        environment = os.environ | limits | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise SystemExit(f"{contender}, seed {seed}: {reason}\nrun again by: {command}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def train_ours(self, scores: Path, seed: int) -> dict[str, Any]:
        """Our configuration with another seed, as `multigate train` trains it."""
        import shutil

        from multigate.model.data.rows import read_rows
        from multigate.model.evaluation.scored import score
        from multigate.model.ranker.scores import transform
        from multigate.model.training import train

        options = self.ours.train.model_copy(update={"seed": seed})
        folder = scores.with_suffix(".run")
        shutil.rmtree(folder, ignore_errors=True)  # with what an interrupted training left
        checkpoint = folder / "checkpoint"
        started, cpu = time.perf_counter(), time.process_time()
        train.train(
            self.ours.model_copy(update={"train": options}),
            self.examples,
            checkpoint,
            progress=False,
        )
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        found = {}
        for split in ("validation", "test"):
            scored = score(checkpoint, read_rows(self.examples, split))
            for name, task in scored.contract.tasks.items():
                found[f"{split}/{name}"] = transform(task, scored.scores[name])
        np.savez_compressed(scores, **found)
        return {"seconds": seconds, "cpu_seconds": cpu, "call_cpu_ms": self.call_of(checkpoint)}

    def call_of(self, checkpoint: Path) -> float:
        """CPU ms of a call with 100 candidates, exported, and run as the server does.

        Unlike the others' table, ours reads raw values: ids are looked up in the call.
        """
        from exported_versions import of_one_user, request_of

        from multigate.jobs import interface
        from multigate.model.export.graph import RANK
        from multigate.serving.versions.saved_model import SavedModel

        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            version = interface.export(checkpoint, self.examples, Path(folder))
            served = SavedModel.load(1, version)
            request = of_one_user(request_of(version), self.contract, CALL)
            rank = served.signatures[RANK]
            rank(request)
            cpu = time.process_time()
            for _ in range(CALLS):
                rank(request)
            found = 1000 * (time.process_time() - cpu) / CALLS
            served.retire()
        return found

    def tune(self, contender: str, trials: int) -> None:
        """Keep the best of some trials on validation in settings.json."""
        done = {
            line["trial"]: line
            for line in self.finished(TRIALS)
            if line["contender"] == contender and line["setting"] == draw(contender, line["trial"])
        }
        for trial in range(trials):
            if trial in done:
                continue
            setting = draw(contender, trial)
            scores = self.work / f"trial-{contender}.npz"  # others may share the folder
            cost = self.train(contender, setting, 0, scores)
            line = {"contender": contender, "trial": trial, "setting": setting}
            done[trial] = line | {"validation": self.on_validation(scores)} | cost
            self.finish(TRIALS, done[trial])
            print(f"{contender}: trial {trial} {done[trial]['validation']}", file=sys.stderr)
        chosen = [done[trial] for trial in range(trials)]

        def best(value: Callable[[dict[str, Any]], float]) -> dict[str, Any]:
            found: dict[str, Any] = max(chosen, key=value)["setting"]
            return found

        kept: dict[str, Any] = {"trials": trials}
        if contender in PER_TASK:
            kept["tasks"] = {
                task: best(lambda line, task=task: line["validation"][task])  # type: ignore[misc]
                for task in self.contract.tasks
            }
        else:
            kept["all"] = best(lambda line: float(np.mean(list(line["validation"].values()))))
        stored = settings()
        stored.setdefault(self.name, {})[contender] = kept
        SETTINGS.write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")

    def on_validation(self, scores: Path) -> dict[str, float]:
        """AUC of each binary task, explained variance of each regression task; higher is better."""
        from sklearn.metrics import r2_score, roc_auc_score

        found = {}
        with np.load(self.table) as table, np.load(scores) as scored:
            for t, (name, task) in enumerate(self.contract.tasks.items()):
                y, p = table["validation/y"][:, t], scored[f"validation/{name}"]
                known = ~np.isnan(y)
                measure = roc_auc_score if task.type == "binary" else r2_score
                found[name] = float(measure(y[known], p[known]))
        return found

    def setting_of(self, contender: str) -> tuple[dict[str, Any], int]:
        """What a contender runs with now, and of how many trials; ours is chosen by hand.

        Rows of another setting do not count.
        """
        if contender == OURS:
            return self.of_ours(), 0
        stored = settings().get(self.name, {}).get(contender)
        if stored is None:
            return FIRST[contender], 0
        return stored["tasks" if contender in PER_TASK else "all"], stored["trials"]

    def run(self, contender: str, seeds: int) -> None:
        """Train with every seed that is not finished."""
        from multigate.configs.contract import fingerprint

        setting, trials = self.setting_of(contender)
        for seed in range(seeds):
            scores = self.work / f"{contender}-{seed}-{fingerprint(setting)}.npz"
            if any(
                (line["contender"], line["seed"], line["setting"]) == (contender, seed, setting)
                for line in self.finished(self.rows)
            ):
                continue
            cost = self.train(contender, setting, seed, scores)
            line = {
                "contender": contender,
                "seed": seed,
                "setting": setting,
                "trials": trials,
                "scores": scores.name,
            }
            self.finish(self.rows, line | cost)
            print(f"{contender}: seed {seed} {cost}", file=sys.stderr)

    def of_ours(self) -> dict[str, Any]:
        """What identifies our configuration: rows of another one do not count."""
        from multigate.configs.contract import fingerprint

        values = self.ours.model_dump(mode="json")
        return {
            "configuration": fingerprint([values[key] for key in ("contract", "model", "train")])
        }

    def measure(self, contenders: list[str]) -> dict[str, Any]:
        """Every contender's measures of the test split, and its differences from ours."""
        from contenders.judge import Judge

        judge = Judge(self.examples, self.contract)
        replicates, cost = {}, {}
        for contender in contenders:
            setting, _ = self.setting_of(contender)
            of_seeds = {
                line["seed"]: line
                for line in self.finished(self.rows)
                if (line["contender"], line["setting"]) == (contender, setting)
            }
            lines = list(of_seeds.values())
            if not lines:
                continue
            found = [judge.replicates(self.work / line["scores"]) for line in lines]
            replicates[contender] = judge.mean(found)
            cost[contender] = {
                "seeds": len(lines),
                "trials": lines[0].get("trials", 0),
                "cpu_seconds": float(np.mean([line["cpu_seconds"] for line in lines])),
                "call_cpu_ms": float(np.median([line["call_cpu_ms"] for line in lines])),
                "deviation": {
                    " ".join(key): float(np.std([one[key][0] for one in found])) for key in found[0]
                },
            }
        compared = judge.compare(replicates, OURS)
        return {"data": self.name, "rows": len(judge.rows), "cost": cost, "tasks": compared}


def parsed(change: str) -> tuple[str, Any]:
    """Name and value of `train.epochs=4`."""
    name, equals, value = change.partition("=")
    try:
        found = json.loads(value)
    except ValueError:
        equals = ""
    if not equals:
        raise SystemExit(
            f"--set: expected NAME=VALUE with the value in JSON, such as train.epochs=4 or "
            f"""train.monitor='"loss"', received {change}"""
        )
    return name, found


def settings() -> dict[str, Any]:
    """The contenders' settings, by data set."""
    if not SETTINGS.exists():
        return {}
    found: dict[str, Any] = json.loads(SETTINGS.read_text(encoding="utf-8"))
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--config", required=True, help="preset or YAML file of our model")
    arguments.add_argument("--examples", type=Path, required=True, help="folder of examples")
    arguments.add_argument(
        "--name", help="of the data in settings and tables (default: the configuration's name)"
    )
    arguments.add_argument("--work", type=Path, required=True, help="folder for what is finished")
    arguments.add_argument(
        "--contenders", nargs="+", choices=[OURS, *SPACES], default=[OURS, *SPACES], help="who runs"
    )
    arguments.add_argument("--seeds", type=int, default=5, help="trainings of each contender")
    arguments.add_argument("--tune", type=int, default=0, metavar="N", help="trials of each first")
    arguments.add_argument("--threads", type=int, default=1, help="of each training")
    arguments.add_argument(
        "--peers", default=os.environ.get("BAKEOFF_PEERS"), help="python of their environment"
    )
    arguments.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=JSON",
        help="changes of our configuration, such as train.epochs=4",
    )
    arguments.add_argument("--train_ours", type=Path, help=argparse.SUPPRESS)
    arguments.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    from contenders.judge import markdown

    from multigate.configs.errors import ConfigError

    try:
        bakeoff = Bakeoff(
            given.config,
            given.examples,
            given.work,
            given.peers,
            given.threads,
            given.name,
            given.set,
        )
    except ConfigError as error:
        raise SystemExit(str(error)) from None
    if given.train_ours is not None:
        print(json.dumps(bakeoff.train_ours(given.train_ours, given.seed)))
        return
    for contender in given.contenders:
        if contender in PEERS and given.peers is None:
            print(f"{contender}: left out: no environment; see --peers", file=sys.stderr)
            continue
        if given.tune and contender != OURS:
            bakeoff.tune(contender, given.tune)
        bakeoff.run(contender, given.seeds)
    found = bakeoff.measure(given.contenders)
    print(markdown(found, by_hand=OURS))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
