"""The whole product in one run: from raw logs to ranked lists over gRPC.

On simulated logs the simulator knows each label's true expectation, so that the table shows how
close the model comes to the best possible score.
"""

import time
from pathlib import Path
from typing import TypedDict

import polars as pl

from multigate.configs import Config, DataError
from multigate.configs.contract import Contract
from multigate.configs.files import LABEL, REQUEST, ExamplesFolder
from multigate.jobs.requests import RankRequest, requests_from_examples
from multigate.jobs.show import say, show_evaluation, show_manifest
from multigate.serving.client.rank_client import RankClient, Ranking
from multigate.serving.client.show import show_ranked


class TaskSummary(TypedDict):
    """One task on the test split."""

    group: str
    metric: str
    value: float | None
    best_possible: float | None
    """The metric of the label's true expectation; None where it is not known."""


class DemoResult(TypedDict):
    """What `run` returns."""

    tasks: dict[str, TaskSummary]
    ranked: list[Ranking]
    """One list per user."""
    export: str
    """Folder of the exported version."""
    report: str
    """Path of the HTML report."""
    seconds: float


def check(config: Config, data: Path | None, out: Path) -> None:
    """Check the arguments of `run`, before anything heavy is imported.

    Raises:
        DataError: `out` holds files already, or there is no folder of logs.
    """
    if data is None and config.name != "demo":
        raise DataError(f"--data: the folder of the log's files is required for {config.name!r}")
    if data is not None and not data.is_dir():
        raise DataError(f"{data}: no such folder; expected the folder that holds the log")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out}: already exists; choose another output folder or remove it")


def run(config: Config, data: Path | None, out: Path) -> DemoResult:
    """Run every stage and rank for three users.

    Args:
        config: the data set's configuration.
        data: folder of the log's files; None simulates them (the demo's own configuration only).
        out: folder for all results; must be absent or empty.

    Raises:
        DataError: `out` holds files already, or there is no log.
    """
    check(config, data, out)
    from multigate.jobs.export import export
    from multigate.model.assessment.assess import assess
    from multigate.model.report import page
    from multigate.model.training import train
    from multigate.pipeline import job

    started = time.monotonic()

    truth, best = None, None
    if data is None:
        from multigate.jobs.simulate import simulate

        say("1/6 simulate a month of user logs")
        data = out / "logs"
        simulate(data)
        truth = data / "truth.parquet"
    else:
        say(f"1/6 read the logs in {data}")

    say("2/6 make examples")
    examples = ExamplesFolder(out / "examples")
    show_manifest(job.run(config, data, examples.root), examples.root)

    say("3/6 train")
    checkpoint = out / "checkpoint"
    train.train(config, examples.root, checkpoint)

    say("4/6 export a SavedModel that evaluates the selected experts only")
    base = out / "models" / config.name
    version = export(checkpoint, examples.root, base)
    say(f"  {version}")

    say("5/6 evaluate it on the test split, as it is served")
    result = assess(version, examples.root, config.evaluation)
    if truth is not None:
        best = best_possible(config.contract, examples, truth)
    show_evaluation(result, best)
    report = out / "report.html"
    page.write_report(report, result, best=best)

    say("6/6 serve it and rank for three users")
    requests = requests_from_examples(config.contract, examples)
    ranked = _rank(config.name, base, requests)
    for request, items in zip(requests, ranked, strict=True):
        user = request.user[config.contract.user]
        show_ranked(f"user {user}: the first 5 of {len(request.item_ids)} candidates", items[:5])

    seconds = round(time.monotonic() - started, 1)
    say(f"report {report}\nmodel  {version}\nserve  multigate serve --model_name {config.name} "
        f"--model_base_path {base}\n{seconds} s in all")  # fmt: skip
    return {
        "tasks": {
            name: {
                "group": task["group"],
                "metric": task["metric"],
                "value": task["value"],
                "best_possible": best[name] if best else None,
            }
            for name, task in result["tasks"].items()
        },
        "ranked": ranked,
        "export": str(version),
        "report": str(report),
        "seconds": seconds,
    }


def best_possible(
    contract: Contract, examples: ExamplesFolder, truth: Path
) -> dict[str, float | None]:
    """Score each task's true expectation on the test split, by the task's own metric.

    Args:
        contract: the tasks.
        examples: folder whose test split is scored.
        truth: the simulator's table: one row per exposure, one column per task.

    Returns:
        AUC of binary tasks, RMSE of regression tasks, over the rows that are not masked; None where
        the task predicts a quantile, which the expectation is not.
    """
    from multigate.model.evaluation.evaluate import task_metrics

    test = pl.read_parquet(examples.split("test") / "*.parquet")
    known = pl.read_parquet(truth).rename({name: f"truth/{name}" for name in contract.tasks})
    rows = test.join(
        known, left_on=[REQUEST, contract.item], right_on=["request_id", contract.item],
        how="left", validate="m:1", maintain_order="left",
    )  # fmt: skip
    if rows[f"truth/{next(iter(contract.tasks))}"].null_count():
        raise DataError(f"{truth}: expected every exposure of the test split, some are absent")
    labels = rows.select(
        pl.col(f"{LABEL}{name}").fill_null(float("nan")) for name in contract.tasks
    ).to_numpy()
    expected = {name: rows[f"truth/{name}"].to_numpy() for name in contract.tasks}
    return {
        name: task["value"] if contract.tasks[name].predicts_mean else None
        for name, task in task_metrics(contract, labels, expected).items()
    }


def _rank(name: str, base: Path, requests: list[RankRequest]) -> list[Ranking]:
    """Serve the newest version under `base` and call it as a client does."""
    from multigate.serving.core.options import ServerOptions
    from multigate.serving.rpc.server import Server

    server = Server(ServerOptions(model_name=name, model_base_path=base, port=0))
    server.start()
    try:
        with RankClient(f"127.0.0.1:{server.port}", timeout=30) as client:
            return [
                client.rank(
                    model=name,
                    user=request.user,
                    context=request.context,
                    item_ids=request.item_ids,
                    columns=request.columns,
                )
                for request in requests
            ]
    finally:
        server.stop()
