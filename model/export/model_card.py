"""The model card: README.md in the `assets.extra` of a version."""

from typing import Any

from multigate.configs.config import Config
from multigate.configs.contract import FrozenContract
from multigate.model.evaluation.measures.names import title
from multigate.model.export.acceptance import Change
from multigate.model.export.sparsity import SparsityReport


def text(
    config: Config, frozen: FrozenContract, metrics: dict[str, Any], sparsity: SparsityReport
) -> str:
    """Markdown: what the model predicts, how well, and what to know before relying on it."""
    contract = frozen.contract
    flops = sparsity["flops_per_candidate"]
    lines = [
        f"# {config.name}",
        "",
        f"Ranks `{contract.item}` for `{contract.user}`: {len(contract.tasks)} tasks over shared "
        f"experts. Schema `{frozen.schema_fingerprint}`, data `{frozen.data_fingerprint}`.",
        "",
        f"| task | group | score | metric | test ({metrics['rows']} rows) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, task in contract.tasks.items():
        found = metrics["tasks"][name]
        unit = "probability" if task.type == "binary" else "the label's own units"
        value = "not measured" if found["value"] is None else f"{found['value']:.4f}"
        lines.append(f"| {name} | {task.group} | {unit} | {title(found['metric'])} | {value} |")
    lines += [
        "",
        f"The combined score is a {contract.combine.kind} over tasks with the weights "
        + ", ".join(f"{n} {t.score_weight:g}" for n, t in contract.tasks.items())
        + ", unless a request brings its own.",
        "",
        "## Experts",
        "",
        f"{sparsity['experts_in_file']} of {sparsity['experts']} experts are in the file; a "
        f"candidate needs {sparsity['experts_per_row']:.2f} of them, {flops['rank']:,} "
        f"floating-point operations instead of {flops['dense']:,}.",
    ]
    how = {
        "constant": "The experts in the file run on every row",
        "dispatch": "An expert runs on the rows that select it",
        "fused": "All experts run on every row, as one product",
    }
    lines.append(f"{how[sparsity['mode']]} ({sparsity['reason']}).")
    for name, change in sparsity["hardening"].items():
        lines.append(f"Hardening the gates changed {_changed(name, change)}")
        if (loss := change.get("log_loss")) is not None:
            lines.append(
                f"Its log loss went from {loss['before']:.4f} to {loss['after']:.4f}"
                + (", before calibration." if "calibration" in metrics else ".")
            )
    stored = metrics["weights"]
    if stored["stored_as"] != "float32":
        lines.append(f"Experts and embeddings are stored as {stored['stored_as']}.")
        for name, change in stored["tasks"].items():
            lines.append(f"That changed {_changed(name, change)}")
    lines += [
        "",
        "## Know before use",
        "",
        "- Users, items and other ids that training has not seen share out-of-vocabulary rows: "
        "their scores depend on the other features.",
        "- Labels of a task are known only where its mask rule allows; elsewhere the score is an "
        "extrapolation.",
    ]
    if contract.position is not None:
        lines.append(
            f"- `{contract.position}` was used in training only; scores leave out the effect of an "
            "item's position."
        )
    calibration = metrics.get("calibration")
    if calibration is not None:
        for name, found in calibration["tasks"].items():
            before, after = found["before"], found["after"]
            changes = ", ".join(
                f"its {title(key)} goes from {before[key]:.4f} to {after[key]:.4f}"
                for key in before
            )
            lines.append(
                f"- {name} is calibrated ({found['method']} on the validation split): on test rows "
                f"{changes}. The table above has the calibrated scores."
            )
        for name, reason in calibration["left_as_they_are"].items():
            lines.append(f"- {name} is not calibrated: {reason}.")
    for name, found in metrics.get("smearing", {}).items():
        lines.append(
            f"- {name} is trained on the label's logarithm, whose inverse is near the median; its "
            f"score plus 1, to the power of {found['power']:.3f} and times {found['factor']:.3f} "
            "(smearing), estimates the mean of the label plus 1."
        )
    corrected = metrics.get("negatives")
    if corrected is not None:
        shares = ", ".join(f"{n} {t['share']:.3f}" for n, t in corrected["tasks"].items())
        lines.append(
            f"- Training held {corrected['kept']:g} of the logged impressions without a positive "
            f"label; probabilities are corrected for the share of each task's negatives ({shares})."
        )
    items = sparsity.get("items")
    if items is not None:
        line = (
            f"- `rank_items` takes the features of {items['known']:,} known items from a table in "
            f"the file ({items['bytes']:,} bytes)"
        )
        if items["as_of_the_cut_off"]:
            line += (
                f"; {', '.join(items['as_of_the_cut_off'])} keep changing, and the table has their "
                "values as of the cut-off of the examples: `rank` takes current ones"
            )
        lines.append(line + ".")
    negatives = config.pipeline.negatives
    if negatives is not None:
        lines.append(
            f"- {negatives.per_positive} negatives per positive were sampled from items that the "
            "log does not show. Probabilities are relative to this sample and not corrected for "
            "it; rely on their order only."
        )
    return "\n".join(lines) + "\n"


def _changed(task: str, change: Change) -> str:
    """What a change of the model did to a task: `click's AUC from 0.8 to 0.79 on 600 ...`."""
    interval = "too few users for an interval"
    if change["low"] is not None:
        interval = f"95 % interval {change['low']:.4f} to {change['high']:.4f}"
    relative = "" if change["metric"] == "auc" else "relative "
    return (
        f"{task}'s {title(change['metric'])} from {change['before']:.4f} to "
        f"{change['after']:.4f} on {change['rows']:,} validation rows (a {relative}loss of "
        f"{change['loss']:.4f}, {interval})."
    )
