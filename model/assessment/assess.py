"""The assessment of one model on one split: everything that the report shows, as JSON values."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multigate.configs.config import Config
from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.errors import ModelError
from multigate.configs.files import ExamplesFolder
from multigate.configs.lineage import check_examples
from multigate.configs.sections.evaluation import EvaluationConfig
from multigate.model.assessment import gates, leaks, slices, tradeoff, transfer
from multigate.model.checkpoints import checkpoint
from multigate.model.data.examples import Examples
from multigate.model.data.rows import Rows, read_rows
from multigate.model.evaluation import evaluate
from multigate.model.evaluation.combine import gains
from multigate.model.evaluation.comparison import check_names, compare_scored, verdict
from multigate.model.evaluation.measures import ranking, tasks
from multigate.model.evaluation.measures.resamples import CONFIDENCE, Resamples, interval
from multigate.model.evaluation.scored import EXTRA, Scored, is_version, read_contract, score
from multigate.model.ranker.scores import transform

_DATA_PARTS = ("rows", "splits", "labels", "features", "vocabularies", "rejected", "drift")


def assess(
    folder: Path,
    examples: Path,
    options: EvaluationConfig | None = None,
    *,
    split: str = "test",
    production: Path | None = None,
    baselines: Sequence[Path] = (),
    seeds: Sequence[Path] = (),
) -> dict[str, Any]:
    """Assess a checkpoint, or an exported version as it is served.

    Args:
        folder: of the checkpoint or of the version.
        examples: folder of examples.
        options: slices, rules and resamples; of the checkpoint where None.
        split: "train", "validation" or "test".
        production: version or checkpoint to compare with.
        baselines: checkpoints of `multigate train --baseline`.
        seeds: checkpoints of the same configuration with other seeds.

    Returns:
        What `evaluation.summary` returns (a version's gates are those that its export measured),
        and name, kind, source, users, replicates, confidence; each task's `measures` (intervals),
        `reliability` and `residuals`; each group's intervals; `ranking`, `tradeoff`, `slices`,
        `leaks`, `findings` about the gates, `history`, `stability`, `transfer`, `comparison` and
        `data` (the pipeline's own report); None where there is nothing to say.

    Raises:
        ConfigError: a rule or a slice of what the contract does not have.
        ModelError: not a model, or examples of another schema.
        DataError: the split cannot be read.
    """
    frozen = read_contract(folder)
    contract = frozen.contract
    version = is_version(folder)
    config = None if version else checkpoint.read_config(folder)[0]
    options = options or (config.evaluation if config else EvaluationConfig())
    check_names(options, contract, folder)
    _check(folder, frozen, examples, version)
    for path in baselines:
        check_examples(path, read_contract(path), examples)
    rows = read_rows(examples, split)
    train = rows if split == "train" else read_rows(examples, "train")
    resamples = Resamples(rows.codes(contract.user), options.replicates, options.seed)
    scored = score(folder, rows)
    labels = rows.labels(contract)
    lists = rows.lists(contract)
    result = {
        "name": config.name if config else folder.resolve().parent.name,
        "kind": "version" if version else "checkpoint",
        "source": str(folder),
        "users": resamples.users,
        "replicates": options.replicates,
        "confidence": CONFIDENCE,
        "caveat": evaluate.caveat(split),
        **_light(folder, config, split, labels, scored),
    }
    _measure_tasks(result, contract, labels, scored, resamples)
    gain = gains(contract, labels)
    ranked = ranking.ranking(resamples, lists, gain, scored.combined)
    return result | {
        "ranking": ranking.summaries(resamples, lists, gain, ranked),
        "tradeoff": tradeoff.trade_off(contract, labels, scored.scores, lists, resamples),
        "slices": slices.measure_slices(
            contract, options, rows, train, labels, scored.scores, resamples
        ),
        "leaks": leaks.check_leaks(contract, rows, train, options.largest_feature_auc)
        | {"split_by": config.pipeline.split.by if config else None},
        "findings": gates.findings(result["gates"], result.get("union")),
        "history": _history(folder) if config else [],
        "stability": _stability(result, config, seeds, examples, split),
        "transfer": transfer.compare_baselines(scored, config, baselines, rows, labels, resamples),
        "comparison": _comparison(scored, production, rows, resamples, options),
        "data": _data(examples),
    }


def _check(folder: Path, frozen: FrozenContract, examples: Path, version: bool) -> None:
    """Refuse examples that the model cannot be measured on."""
    if not version:
        check_examples(folder, frozen, examples)
        return
    other = FrozenContract.read(ExamplesFolder(examples).contract)
    if frozen.schema_fingerprint != other.schema_fingerprint:
        raise ModelError(
            f"{folder}: exported with schema {frozen.schema_fingerprint}, {examples} has schema "
            f"{other.schema_fingerprint}; use examples built with the version's contract"
        )


def _light(
    folder: Path, config: Config | None, split: str, labels: np.ndarray, scored: Scored
) -> dict[str, Any]:
    """What `evaluation.summary` returns."""
    if config is not None and scored.predictions is not None:
        return evaluate.summary(config, split, Examples({}, labels), scored.predictions)
    measured = evaluate.task_summary(scored.contract, split, labels, scored.scores)
    path = folder / EXTRA / "metrics.json"
    try:
        exported = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}; export anew") from None
    return measured | {
        key: exported[key]
        for key in ("experts_per_row", "experts", "gates", "union")
        if key in exported
    }


def _measure_tasks(
    result: dict[str, Any],
    contract: Contract,
    labels: np.ndarray,
    scored: Scored,
    resamples: Resamples,
) -> None:
    """Add intervals to tasks and groups."""
    by_group: dict[str, dict[str, list[np.ndarray]]] = {}
    for t, (name, task) in enumerate(contract.tasks.items()):
        y, p = labels[:, t], scored.scores[name]
        found = tasks.OF_TYPE[task.type](resamples, y, p)
        entry = result["tasks"][name]
        entry["measures"] = tasks.summaries(resamples, y, found)
        entry["reliability"] = tasks.reliability(resamples, y, p)
        parts = by_group.setdefault(task.group, {"auc": [], "relative_rmse": []})
        if task.type == "binary":
            entry["measures"]["ece"] = tasks.calibration_error(resamples, y, p)
            parts["auc"].append(found["auc"])
            continue
        entry["residuals"] = tasks.residuals(y, p)
        if task.transform != "identity":
            found = tasks.regression(resamples, transform(task, y), transform(task, p))
        parts["relative_rmse"].append(np.sqrt(1 - found["r2"]))
    for group, parts in by_group.items():
        for measure, replicates in parts.items():
            known = [values for values in replicates if np.isfinite(values[0])]
            result["groups"][group][f"{measure}_interval"] = (
                interval(np.mean(known, axis=0), resamples.users, rows=result["rows"])
                if known
                else None
            )


def _comparison(
    scored: Scored,
    production: Path | None,
    rows: Rows,
    resamples: Resamples,
    options: EvaluationConfig,
) -> dict[str, Any] | None:
    if production is None:
        return None
    found = compare_scored(scored, score(production, rows), rows, resamples)
    return verdict(found, options.rules, True) | {"production": str(production)} | found


def _stability(
    result: Mapping[str, Any],
    config: Config | None,
    seeds: Sequence[Path],
    examples: Path,
    split: str,
) -> dict[str, Any] | None:
    others = [evaluate.evaluate(path, examples, split=split) for path in seeds]
    found = gates.stability([result, *others])
    if found is None:
        return None
    # A version does not say how it was trained.
    known = [*([config] if config else []), *(checkpoint.read_config(path)[0] for path in seeds)]
    return found | {"differences": gates.differences(known)}


def _history(folder: Path) -> list[dict[str, Any]]:
    """The epochs of the training, with what the report draws of each."""
    history = checkpoint.read_history(folder)
    for epoch in history:
        missing = sorted({"epoch", "loss", "val_loss", "tasks", "gates"} - set(epoch))
        if missing:
            raise ModelError(
                f"{folder / checkpoint.HISTORY}: an epoch lacks {missing[0]}; the file is of "
                "another version or was changed; train anew, or remove it"
            )
    return history


def _data(examples: Path) -> Any:
    """The report that the pipeline wrote, if it did."""
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
