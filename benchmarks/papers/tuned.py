"""MovieLens 1M, or Book-Crossing, with equal tuning for every model: the tables to believe.

    python benchmarks/papers/tuned.py --data FOLDER --work FOLDER                 # days
    python benchmarks/papers/tuned.py --set book_crossing --data FOLDER --work FOLDER   # hours
    python benchmarks/papers/tuned.py --data FOLDER --work FOLDER --models topk --weights 0.9
    python benchmarks/papers/tuned.py --plan              # runs left, and their hours; runs nothing
    KERAS_BACKEND=jax python benchmarks/papers/tuned.py --data FOLDER --work FOLDER --jobs 16
    python benchmarks/papers/tuned.py --data FOLDER --work FOLDER --weights 0.1 --again 7
    python benchmarks/papers/tuned.py --data FOLDER --work FOLDER --models moesart --again 0 4 \
        --change '{"model.gate.trimmed_lasso_weight": 0.0}' --seeds 1
    python benchmarks/papers/tuned.py --table             # the page's tables from the rows so far

FOLDER of the data holds the publisher's ratings.dat, of Book-Crossing the CSV file.  For each
setting of the task weights and each model, `multigate tune` draws 8 settings at random, the same
number for all: the learning rate, from the paper's range, and the gate's own setting (`SPACES`).
Trial n of every model has the same learning rate.  The trial with the lowest validation loss is
taken; if the gate has a k, of those whose routing met it, as in the papers.  Its settings are then
trained with seeds 0, 1, ...; seed 0 is the trial's own, so on a CPU, where it gives the same
weights again, it is not trained twice.

Order: the five models of the first question at both weights, then the others; a model of one task
at one weight, of which it hardly depends.  A trial is a row of
docs/results/papers/movielens_trials.jsonl, a final run a row of movielens.jsonl with setting
`tuned` (of Book-Crossing: book_crossing_trials.jsonl and book_crossing.jsonl).  The same command
goes on where it was cut off: a row is never run again, and a final run goes on within its epochs (a
trial begins anew).

`--again` trains the settings of the given trials, such as that of the lowest learning rate, with
other seeds, so that losses by rate have errors; a run is a row of movielens_again.jsonl.  With
`--change` it trains them from seed 0 on with some settings changed, such as MOESART without Trimmed
Lasso at the rates that no trial without it has drawn; a run is a row of movielens_changed.jsonl.

`--jobs` runs several at a time, each in a process of its own.  It is for a GPU: one run of so small
a model keeps it busy for a quarter of the time.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import book_crossing
import movielens
import two_tasks
from rows import Row, Rows
from settings import DSELECT_ENTROPY, entropy_weight
from trials import (
    COMPARED,
    FIRST,
    TRIAL_KEY,
    best_trial,
    trial_of,
    write_best_of,
    write_pairs,
    write_rates,
    write_trials,
)
from two_tasks import (
    KEY,
    WEIGHTS,
    check_models,
    configuration,
    described,
    measure,
    met_k,
    random_trial,
    trained_on,
)

from multigate.configs.baselines import SINGLE_TASK


@dataclass(frozen=True)
class Study:
    """A data set whose models are tuned.

    Args:
        name: of its final rows' file; of trials' files and of the page's tables it is the start.
        data: the module that makes its examples and values, and has the paper's rows.
        size: its training rows, of MovieLens' as 1.
    """

    name: str
    data: ModuleType
    size: float

    @property
    def models(self) -> list[str]:
        """All that are tuned, those of the first question first."""
        return [*COMPARED, *(f"{SINGLE_TASK}:{task}" for task in self.tasks)]

    @property
    def tasks(self) -> list[str]:
        """Their names, the binary one first."""
        return list(self.data.make_values()["contract"]["tasks"])

    def is_needed(self, run: Row) -> bool:
        """Whether a run is to be made: a model of one task is trained at one weight only.

        At the one that gives its task more, the first task's at `WEIGHTS[0]`: see
        `with_single_task`.
        """
        kind, _, task = run["model"].partition(":")
        return kind != SINGLE_TASK or run["weight"] == WEIGHTS[self.tasks.index(task)]

    @cached_property
    def tables(self) -> dict[str, Rows]:
        """The rows of each kind of run."""
        return {
            "trial": Rows(f"{self.name}_trials", TRIAL_KEY),
            "final": Rows(self.name, KEY),
            "again": Rows(f"{self.name}_again", (*TRIAL_KEY, "seed")),
            "changed": Rows(f"{self.name}_changed", (*TRIAL_KEY, "seed", "change")),
        }

    def make_values(self) -> dict[str, Any]:
        """As in the data set's other tables, with a longer patience."""
        values: dict[str, Any] = self.data.make_values()
        values["train"] |= {"epochs": EPOCHS, "patience": PATIENCE}
        return values

    def write_tables(self) -> None:
        """Write the page's tables of trials and of final runs."""
        finals, trials = self.tables["final"].read(), self.tables["trial"].read()
        two_tasks.write_tables(self.name, finals, self.data.PUBLISHED)
        if self.data is movielens:
            movielens.write_dselects(finals)
        write_trials(self.name, trials, self.data.PUBLISHED)
        again, changed = (self.tables[kind].read() for kind in ("again", "changed"))
        write_rates(self.name, trials, again, changed, self.data.PUBLISHED)
        write_pairs(self.name, trials, finals)
        write_best_of(self.name, trials)


STUDIES = {
    name: Study(name, data, size)
    for name, data, size in (
        ("movielens", movielens, 1.0),
        ("book_crossing", book_crossing, 0.037),
    )
}
TRIALS, SEEDS = 8, 3
TRIAL_SEED = 0
EPOCHS, PATIENCE = 60, 10
_RATES = {"low": 5e-5, "high": 5e-4, "log": True}
_ENTROPIES = [entropy_weight(strength, static=False) for strength in DSELECT_ENTROPY]
SPACES: dict[str, dict[str, Any]] = {
    "moesart": {"model.gate.trimmed_lasso_weight": {"choices": [0.0, 0.01, 0.1, 1.0, 10.0]}},
    # From our old weight to the paper's largest.
    "dselect_k": {"model.gate.entropy_weight": {"choices": [0.001, 0.1, 1.0, *_ENTROPIES]}},
    "comet": {"model.gate.entropy_weight": {"choices": [0.001, 0.1, 1.0, *_ENTROPIES]}},
    "switch": {"model.gate.balance_weight": {"choices": [0.0, 0.001, 0.01, 0.1]}},
    "xmoe": {"model.gate.temperature": {"low": 0.03, "high": 1.0, "log": True}},
    # As in DSelect-k's paper: else one expert's width faces sixteen.
    "shared_bottom": {
        "model.experts.units": {"choices": [[32], [256], [2048], [4096], [8192]]},
    },
}
"""The model's own setting, where it has one."""
SECONDS = {"softmax": 100.0, "dselect_k": 60.0, "comet": 60.0, "moesart": 90.0}
"""Of an epoch of MovieLens on one core, of runs of some 20 epochs; MOESART's take 40 shorter ones.
Others: 50."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--set", choices=list(STUDIES), default="movielens", help="of data")
    arguments.add_argument("--data", type=Path, help="folder of the publisher's file")
    arguments.add_argument("--work", type=Path, help="folder for examples and checkpoints")
    arguments.add_argument("--models", nargs="+", help="in order; by default all")
    arguments.add_argument(
        "--weights", nargs="+", type=float, choices=WEIGHTS, default=list(WEIGHTS)
    )
    arguments.add_argument("--trials", type=int, default=TRIALS, help="of each model")
    arguments.add_argument("--seeds", type=int, default=SEEDS, help="of each model's best trial")
    arguments.add_argument(
        "--again", nargs="+", type=int, metavar="TRIAL", help="only these trials, with other seeds"
    )
    arguments.add_argument("--change", type=json.loads, help="settings of --again to change, JSON")
    arguments.add_argument("--table", action="store_true", help="only write the page's tables")
    arguments.add_argument("--plan", action="store_true", help="only say what is left")
    arguments.add_argument("--jobs", type=int, default=1, help="runs at a time")
    arguments.add_argument("--only", type=json.loads, help=argparse.SUPPRESS)  # see `run_alone`
    options = arguments.parse_args()
    study = STUDIES[options.set]
    options.models = options.models or study.models
    check(arguments, options, study)
    steps = list(plan(options.models, options.weights, options.trials, options.seeds))
    if options.again is not None:
        again = (options.models, options.weights, options.again, options.seeds)
        steps = list(plan_again(*again, options.change))
    steps = [step for step in steps if study.is_needed(step[1])]
    if options.plan:
        print(json.dumps(left(steps, study.tables, study.size)))
        return
    if options.table:
        study.write_tables()
        return
    if options.data is None or options.work is None:
        arguments.error("--data and --work are needed to run; --plan says what is left")
    examples = study.data.make_examples(options.data, options.work)
    if options.only is None and options.jobs > 1:
        run_together(still_open(steps, study.tables), options)
    else:
        trials = study.tables["trial"]
        measures: dict[str, Callable[[Row], Row]] = {
            "trial": lambda run: measure_trial(run, study, examples, options.work),
            "final": lambda run: measure_final(
                run,
                best_trial(trials.read(), run["model"], run["weight"]),
                study,
                examples,
                options.work,
            ),
            **dict.fromkeys(
                ("again", "changed"),
                lambda run: measure_again(
                    run, trial_of(trials.read(), run), study, examples, options.work
                ),
            ),
        }
        for kind, run in steps if options.only is None else [options.only]:
            study.tables[kind].run([run], measures[kind])
    if options.only is not None:
        return
    study.write_tables()
    print(json.dumps(left(steps, study.tables, study.size)))


def check(arguments: argparse.ArgumentParser, options: argparse.Namespace, study: Study) -> None:
    """End with an error if some option makes no sense, before days of work."""
    check_models(arguments, "--models", options.models, study.models)
    if options.change is not None and (
        options.again is None or not isinstance(options.change, dict)
    ):
        arguments.error(
            "--change: expected an object of settings beside --again, such as "
            f"'{{\"model.gate.gamma\": 10.0}}'; received {json.dumps(options.change)}"
        )
    for trial in options.again or ():
        if trial not in range(options.trials):
            arguments.error(f"--again: expected trials 0 to {options.trials - 1}, received {trial}")
    if options.again is not None and options.change is None and options.seeds < 2:
        arguments.error(
            f"--again: expected --seeds of at least 2, for seed 0 is the trial's own; received "
            f"{options.seeds}"
        )


def run_together(steps: list[tuple[str, Row]], options: argparse.Namespace) -> None:
    """Run all steps, `options.jobs` at a time; a model's seeds wait for its trials.

    Raises:
        RuntimeError: some runs failed; the others have their rows.
    """
    left, busy = list(steps), list[tuple[str, Row]]()
    failed: list[str] = []
    changed = threading.Condition()

    def is_ready(step: tuple[str, Row]) -> bool:
        trials = [s for s in (*left, *busy) if s[0] == "trial"]
        return step[0] != "final" or not any(same_model(step, s) for s in trials)

    def work() -> None:
        while True:
            with changed:
                while left and not any(map(is_ready, left)):
                    changed.wait()
                if not left:
                    return
                step = next(filter(is_ready, left))
                left.remove(step)
                busy.append(step)
            error = run_alone(step, options)
            with changed:
                busy.remove(step)
                if error:
                    failed.append(error)
                    # Seeds of fewer trials than the others' would not be tuned equally.
                    left[:] = [s for s in left if s[0] != "final" or not same_model(s, step)]
                changed.notify_all()

    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            for found in [pool.submit(work) for _ in range(options.jobs)]:
                found.result()
        except BaseException:
            with changed:  # no worker may start another one
                left.clear()
                changed.notify_all()
            raise
    if failed:
        raise RuntimeError("\n".join(failed))


def same_model(one: tuple[str, Row], other: tuple[str, Row]) -> bool:
    """Whether two steps are of one model at one weight."""
    return all(one[1][name] == other[1][name] for name in ("model", "weight"))


def run_alone(step: tuple[str, Row], options: argparse.Namespace) -> str:
    """One run in a process of its own; the end of its errors if it fails, else nothing."""
    folders = ["--set", options.set, "--data", str(options.data), "--work", str(options.work)]
    # One process must not reserve the GPU's memory for all.
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        done = subprocess.run(
            [sys.executable, __file__, *folders, "--only", json.dumps(step)],
            env=os.environ | quiet,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except OSError as error:
        return f"{step}: {error}"
    return f"{step}: {done.stderr[-600:]}" if done.returncode else ""


def plan(
    models: list[str], weights: list[float], trials: int, seeds: int
) -> Iterator[tuple[str, Row]]:
    """Every run in its order, each `trial` or `final` with the values of its key."""
    for group in (
        [model for model in models if model in FIRST],
        [model for model in models if model not in FIRST],
    ):
        for weight in weights:
            for model in group:
                key = {"model": model, "weight": weight}
                for trial in range(trials):
                    yield "trial", key | {"trial": trial}
                for seed in range(seeds):
                    yield "final", key | {"seed": seed, "setting": "tuned"}


def plan_again(
    models: list[str],
    weights: list[float],
    trials: list[int],
    seeds: int,
    change: dict[str, Any] | None = None,
) -> Iterator[tuple[str, Row]]:
    """Trials with the seeds that they do not have, seed by seed; changed ones have none yet."""
    for trial in trials:
        for seed in range(TRIAL_SEED + (change is None), TRIAL_SEED + seeds):
            for weight in weights:
                for model in models:
                    run = {"model": model, "weight": weight, "trial": trial, "seed": seed}
                    if change is None:
                        yield "again", run
                    else:
                        yield "changed", run | {"change": json.dumps(change, sort_keys=True)}


def left(
    steps: list[tuple[str, Row]], tables: dict[str, Rows], size: float = 1.0
) -> dict[str, Any]:
    """How many runs are done and left, and the hours of these, at some 20 epochs each."""
    open_runs = [run for _, run in still_open(steps, tables)]
    seconds = size * sum(20 * SECONDS.get(run["model"], 50.0) for run in open_runs)
    return {
        "done": len(steps) - len(open_runs),
        "left": len(open_runs),
        "hours": round(seconds / 3600, 1),
        "next": open_runs[0] if open_runs else None,
    }


def still_open(steps: list[tuple[str, Row]], tables: dict[str, Rows]) -> list[tuple[str, Row]]:
    """The steps that have no row."""
    done = {
        kind: {tuple(row[name] for name in table.key) for row in table.read()}
        for kind, table in tables.items()
    }
    return [
        (kind, run)
        for kind, run in steps
        if tuple(run[name] for name in tables[kind].key) not in done[kind]
    ]


def measure_trial(run: Row, study: Study, examples: Path, work: Path) -> Row:
    """One trial, and whether its routing met the gate's k."""
    base = {"model": run["model"], "weight": run["weight"], "seed": TRIAL_SEED}
    config = configuration(base, study.make_values(), examples)
    space = {"train.learning_rate": _RATES} | SPACES.get(run["model"], {})
    name = f"{run['model']}-{run['weight']:g}-{run['trial']}".replace(":", "-")
    found = random_trial(
        config, space, run["trial"], examples, work / f"trial-{name}", run["weight"]
    )
    return found | {"meets_k": met_k(found, config), "trained_on": trained_on()}


def measure_again(run: Row, trial: Row, study: Study, examples: Path, work: Path) -> Row:
    """Train a trial's settings, or some of them changed, with a seed."""
    from multigate.jobs.tune import with_settings

    change = json.loads(run.get("change", "{}"))
    settings = trial["settings"] | change
    config = with_settings(configuration(run, study.make_values(), examples), settings)
    name = "".join(f"-{key.rpartition('.')[2]}-{value}" for key, value in change.items())
    found = measure(run | {"setting": f"trial-{run['trial']}{name}"}, config, examples, work)
    return found | {"settings": settings}


def measure_final(run: Row, best: Row, study: Study, examples: Path, work: Path) -> Row:
    """Train the best trial's settings with one seed.

    A trial's seed is `TRIAL_SEED`, and a CPU gives the same weights again: that run is the trial.
    """
    from multigate.jobs.tune import with_settings

    config = with_settings(configuration(run, study.make_values(), examples), best["settings"])
    if run["seed"] == TRIAL_SEED and best["trained_on"] == trained_on() == "tensorflow, CPU":
        own = {name: value for name, value in best.items() if name not in TRIAL_KEY}
        found = described(own, config, examples)
    else:
        found = measure(run, config, examples, work)
    return found | {"tuned": True, "trial": best["trial"], "settings": best["settings"]}


if __name__ == "__main__":
    main()
