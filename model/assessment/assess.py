"""The assessment of one model on one split: everything that the report shows, as JSON values."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np

from multigate.configs import progress
from multigate.configs.config import Config
from multigate.configs.contract import Contract
from multigate.configs.errors import ModelError
from multigate.configs.lineage import check_examples, check_names, check_schema
from multigate.configs.sections.evaluation import EvaluationConfig
from multigate.model.assessment import explained, gates, leaks, slices, tradeoff, transfer
from multigate.model.assessment.results import (
    AssessedGroup,
    AssessedTask,
    Assessment,
    Stability,
)
from multigate.model.baselines.lightgbm_baseline import LightGBM, fit
from multigate.model.baselines.table import unmatched
from multigate.model.checkpoints import checkpoint
from multigate.model.checkpoints.history import Epoch
from multigate.model.data.examples import Examples
from multigate.model.data.rows import Rows, read_rows
from multigate.model.evaluation import evaluate
from multigate.model.evaluation.against_baseline import (
    UNMATCHED,
    compare_with_baseline,
    unmatched_auc,
)
from multigate.model.evaluation.combine import gains
from multigate.model.evaluation.comparison import compare_scored, verdict
from multigate.model.evaluation.measures import ranking, tasks
from multigate.model.evaluation.measures.bootstrap import CONFIDENCE, Interval, Resamples, interval
from multigate.model.evaluation.results import BaselineComparison, Comparison, Summary
from multigate.model.evaluation.scored import (
    EXTRA,
    Scored,
    is_version,
    load,
    read_contract,
    score,
)
from multigate.model.ranker.scores import transform

_DATA_PARTS = ("rows", "splits", "labels", "features", "vocabularies", "rejected", "drift")


@progress.stepwise("evaluate", 10)
def assess(
    folder: Path,
    examples: Path,
    options: EvaluationConfig | None = None,
    *,
    split: str = "test",
    production: Path | None = None,
    baselines: Sequence[Path] = (),
    seeds: Sequence[Path] = (),
    baseline: LightGBM | None = None,
) -> Assessment:
    """Assess a checkpoint, or an exported version as it is served.

    Args:
        folder: of the checkpoint or of the version.
        examples: folder of examples.
        options: slices, rules and resamples; of the checkpoint where None.
        split: "train", "validation" or "test".
        production: version or checkpoint to compare with.
        baselines: checkpoints of `multigate train --baseline`.
        seeds: checkpoints of the same configuration with other seeds.
        baseline: model of another library, trained on these examples; trained here where None and
            `rules.beats` asks for it.

    Raises:
        ConfigError: a rule or a slice names what the contract does not have.
        ModelError: not a model, or examples of another schema.
        DataError: the split cannot be read.
    """
    frozen = read_contract(folder)
    contract = frozen.contract
    version = is_version(folder)
    config = None if version else checkpoint.read_config(folder)[0]
    options = options or (config.evaluation if config else EvaluationConfig())
    check_names(options, contract, folder)
    (check_schema if version else check_examples)(folder, frozen, examples)
    for path in baselines:
        check_examples(path, read_contract(path), examples)
    progress.step("read")
    rows = read_rows(examples, split).once()
    train = rows if split == "train" else read_rows(examples, "train").once()
    resamples = Resamples(rows.codes(contract.user), options.replicates, options.seed)
    progress.step("score")
    scorer = load(folder)
    scored = scorer(rows)
    labels = rows.labels(contract)
    lists = rows.lists(contract)
    exported = _exported(folder) if version else None
    summary = _summary(exported, config, split, labels, scored)
    gain = gains(contract, labels)
    progress.step("baseline")
    if baseline is None and options.rules.beats is not None:
        baseline = fit(examples, contract)
    against = None
    if baseline is not None:
        against = compare_with_baseline(scored, baseline, rows, resamples, examples)
    progress.step("intervals of the tasks")
    of_tasks = _intervals(summary, contract, labels, scored, resamples, unmatched(contract, rows))
    progress.step("ranked lists")
    of_lists = ranking.measure_lists(resamples, lists, gain, scored.combined)
    ranked = ranking.summaries(resamples, lists, gain, of_lists)
    progress.step("trade-off")
    traded = tradeoff.trade_off(contract, labels, scored.scores, lists, resamples)
    progress.step("slices")
    sliced = slices.measure_slices(contract, options, rows, train, labels, scored.scores, resamples)
    progress.step("leaks")
    leaking = leaks.check_leaks(contract, rows, train, options.largest_feature_auc)
    progress.step("explanations")
    explained_rows = explained.explain_rows(scorer, rows, scored, labels)
    progress.step("other models")
    return {
        "name": _name(folder, config, exported),
        "kind": "version" if version else "checkpoint",
        "source": str(folder),
        "users": resamples.users,
        "replicates": options.replicates,
        "confidence": CONFIDENCE,
        "caveat": evaluate.caveat(split),
        **summary,
        **of_tasks,
        "ranking": ranked,
        "tradeoff": traded,
        "slices": sliced,
        "leaks": leaking
        | {"split_by": config.pipeline.split.by if config else (exported or {}).get("split_by")},
        "explained": explained_rows,
        "findings": gates.findings(summary["gates"], summary["union"]),
        "history": _history(folder, exported),
        "training_warnings": checkpoint.read_warnings(folder)
        if exported is None
        else exported.get("training_warnings", []),
        "stability": _stability(summary, config, seeds, examples, split),
        "transfer": transfer.compare_baselines(scored, config, baselines, rows, labels, resamples),
        "baseline": against,
        "comparison": _comparison(scored, production, rows, resamples, options, against),
        "data": _data(examples),
    }


def _name(folder: Path, config: Config | None, exported: Mapping[str, Any] | None) -> str:
    """The model's name; older versions do not hold it, and their folder's does."""
    if config is not None:
        return config.name
    return (exported or {}).get("name") or folder.resolve().parent.name


def _exported(folder: Path) -> dict[str, Any]:
    """What a version's export measured."""
    path = folder / EXTRA / "metrics.json"
    try:
        exported: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}; export anew") from None
    missing = sorted({"experts_per_row", "experts", "gates", "union"} - set(exported))
    if missing:
        raise ModelError(
            f"{path}: expected what the export measured of the gates, {missing[0]} is missing; "
            "export anew"
        )
    return exported


def _summary(
    exported: Mapping[str, Any] | None,
    config: Config | None,
    split: str,
    labels: np.ndarray,
    scored: Scored,
) -> Summary:
    """Metrics of the split, and the gates; a version's gates are those that its export measured."""
    if config is not None and scored.predictions is not None:
        return evaluate.summary(config, split, Examples({}, labels), scored.predictions)
    assert exported is not None
    return {
        **evaluate.task_summary(scored.contract, split, labels, scored.scores),
        "experts_per_row": exported["experts_per_row"],
        "experts": exported["experts"],
        "gates": exported["gates"],
        "union": exported["union"],
    }


_Replicates = tuple[np.ndarray, np.ndarray]
"""A task's measure on the sample and on every resample, (1 + R,), and its labels (N,)."""


class _Intervals(TypedDict):
    tasks: dict[str, AssessedTask]
    groups: dict[str, AssessedGroup]


def _intervals(
    summary: Summary,
    contract: Contract,
    labels: np.ndarray,
    scored: Scored,
    resamples: Resamples,
    new: np.ndarray | None,
) -> _Intervals:
    """Tasks and groups of a summary with their intervals.

    Args:
        summary: without intervals.
        contract: tasks and groups.
        labels: (N, T), NaN where masked.
        scored: of the N rows.
        resamples: of their users.
        new: (N,) rows with a candidate that is new to the user; None where that is not known.
    """
    found: _Intervals = {"tasks": {}, "groups": {}}
    # Replicates of the groups' means: by group, one (1 + R,) per task.
    areas: dict[str, list[_Replicates]] = {group: [] for group in summary["groups"]}
    errors: dict[str, list[_Replicates]] = {group: [] for group in summary["groups"]}
    for t, (name, task) in enumerate(contract.tasks.items()):
        y, p = labels[:, t], scored.scores[name]
        measures = tasks.measure(task, resamples, y, p)
        entry = cast(
            AssessedTask,
            summary["tasks"][name]
            | {
                "measures": tasks.summaries(resamples, y, measures),
                "reliability": tasks.reliability(resamples, y, p) if task.predicts_mean else [],
            },
        )
        found["tasks"][name] = entry
        if task.type == "binary":
            entry["measures"]["ece"] = tasks.calibration_error(resamples, y, p)
            if new is not None:
                part = np.where(new, y, np.nan)
                area = {UNMATCHED: unmatched_auc(resamples, part, p)}
                entry["measures"] |= tasks.summaries(resamples, part, area)
            areas[task.group].append((measures["auc"], y))
            continue
        entry["residuals"] = tasks.residuals(y, p)
        if not task.predicts_mean:
            continue
        if task.transform != "identity":
            measures = tasks.regression(resamples, transform(task, y), transform(task, p))
        errors[task.group].append((np.sqrt(1 - measures["r2"]), y))
    for group, of_group in summary["groups"].items():
        found["groups"][group] = {
            **of_group,
            "auc_interval": _mean_interval(areas[group], resamples),
            "relative_rmse_interval": _mean_interval(errors[group], resamples),
        }
    return found


def _mean_interval(tasks_of: Sequence[_Replicates], resamples: Resamples) -> Interval | None:
    """Interval of the mean over the tasks that have a value, on the rows with a label of one."""
    measured = [(values, labels) for values, labels in tasks_of if np.isfinite(values[0])]
    if not measured:
        return None
    known = np.logical_or.reduce([~np.isnan(labels) for _, labels in measured])
    mean = np.mean([values for values, _ in measured], axis=0)
    return interval(mean, resamples.users_of(known), rows=int(known.sum()))


def _comparison(
    scored: Scored,
    production: Path | None,
    rows: Rows,
    resamples: Resamples,
    options: EvaluationConfig,
    against: BaselineComparison | None,
) -> Comparison | None:
    if production is None:
        return None
    found = compare_scored(scored, score(production, rows), rows, resamples)
    if against is not None:
        found["baseline"] = against
    judged = verdict(found, options.rules, True)
    return {
        "verdict": judged["verdict"],
        "reasons": judged["reasons"],
        "production": str(production),
        "tasks": found["tasks"],
        "ranking": found["ranking"],
    }


def _stability(
    summary: Summary,
    config: Config | None,
    seeds: Sequence[Path],
    examples: Path,
    split: str,
) -> Stability | None:
    if not seeds:
        return None
    others = [evaluate.evaluate(path, examples, split=split) for path in seeds]
    # A version does not say how it was trained.
    known = [*([config] if config else []), *(checkpoint.read_config(path)[0] for path in seeds)]
    return gates.stability([summary, *others], gates.differences(known))


def _history(folder: Path, exported: Mapping[str, Any] | None) -> list[Epoch]:
    """The training's epochs, each with all that the report draws; older versions have none."""
    if exported is not None:
        found: list[Epoch] = exported.get("training", [])
        return found
    history = checkpoint.read_history(folder)
    for epoch in history:
        missing = sorted({"epoch", "loss", "val_loss", "tasks", "gates"} - set(epoch))
        if missing:
            raise ModelError(
                f"{folder / checkpoint.HISTORY}: an epoch lacks {missing[0]}; the file is of "
                "another version or was changed; train anew, or remove it"
            )
    return history


def _data(examples: Path) -> dict[str, Any] | None:
    """The pipeline's report of the examples, if there is one."""
    path = examples / "report.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON: {error}; build the examples anew") from None
    if not isinstance(found, dict) or not all(
        isinstance(found.get(part) or {}, dict) for part in _DATA_PARTS
    ):
        raise ModelError(
            f"{path}: expected the pipeline's report of these examples, received another file, "
            "such as an evaluation's; remove it, and write reports elsewhere"
        )
    return found
