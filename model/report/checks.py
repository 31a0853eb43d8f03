"""Sections of the report that judge: verdict, slices, negative transfer, leaks; what stands out."""

from html import escape

from multigate.model.assessment.results import AssessedTask, Assessment, LeakSummary
from multigate.model.evaluation.measures.bootstrap import limits
from multigate.model.evaluation.measures.names import title
from multigate.model.evaluation.results import Compared, compared_tasks
from multigate.model.report.elements import (
    changed,
    count,
    measured,
    number,
    percent,
    section,
    sentences,
    subject,
    table,
)

_SLICES = 40
_FEATURES = 15
_CHANCE = 0.5
_OFF = 0.1  # calibration error over the share of the rarer class, above which it stands out
_SLIGHT = 0.05  # predicted over observed this near to 1 does not stand out


def verdict(found: Assessment) -> str:
    """The candidate against production."""
    compared = found["comparison"]
    if compared is None:
        return ""
    blessed = compared["verdict"] == "bless"
    rows = [_compared(name, task, task["rows"]) for name, task in compared_tasks(compared)]
    if ranked := compared["ranking"]:
        rows.append(_compared("combined score", ranked, ranked["rows"]))
    heads = ("task", "difference", "candidate", "production", "rows")
    return section(
        "verdict",
        "Against production",
        "Both models on the same rows and the same resamples of the users, so that the interval is "
        "that of the difference. ▲ better and ▼ worse beyond chance; RMSE and pinball loss are "
        "relative.",
        f'<div class="card verdict {"bless" if blessed else "refuse"}"><strong>'
        f"{'Blessed' if blessed else 'Refused'}</strong>{sentences(compared['reasons'])}</div>",
        table("Differences by task", heads, rows, "roomy"),
    )


def _compared(name: str, task: Compared, rows: int) -> list[str]:
    return [
        subject(name, title(task["metric"])),
        changed(task["difference"], task["metric"], task["wins"]),
        measured(task["metric"], task["candidate"]),
        measured(task["metric"], task["production"]),
        f"{rows:,}",
    ]


def slices(found: Assessment) -> str:
    """Slices, the worst first."""
    cut = found["slices"]
    if not cut["looked_at"]:
        return ""
    marked = [look for look in cut["rows"] if look["marked"]]
    shown = cut["rows"][: max(len(marked), _SLICES)][:200]
    rows = [
        [
            subject(
                f"{look['slice']}: {look['value']}", f"{look['task']}, {title(look['measure'])}"
            ),
            measured(look["measure"], look["found"], worse=look["marked"]),
            number(look["measure"], look["whole"]),
            f"{look['rows']:,}",
        ]
        for look in shown
    ]
    said = (
        f"{count(len(marked), 'look')} of {cut['looked_at']:,} worse beyond chance."
        if marked
        else f"No slice is worse beyond chance, of {count(cut['looked_at'], 'look')}."
    )
    heads = ("slice, task and measure", "slice's value", "whole", "rows")
    return section(
        "slices",
        "Slices, the worst first",
        f"{count(cut['slices'], 'slice')} of every task and measure: "
        f"{count(cut['looked_at'], 'look')}. At the usual level, one look in twenty would stand "
        f"out by chance. Those beyond chance at {cut['level']:.2g} (Bonferroni) are marked ▼ and "
        "come first; the others are in order of the difference. Within a slice AUC is often lower "
        "than on the whole, because slices differ in their rates. The first slices are the worst "
        "of many, so expect them to be less bad on new rows.",
        sentences([said]),
        table("Slices by how much worse than the whole they are", heads, rows, "roomy"),
    )


def transfer(found: Assessment) -> str:
    """The model against its baselines."""
    compared = found["transfer"]
    if compared is None:
        return ""
    rows = []
    for model in compared["models"]:
        for name, task in model["tasks"].items():
            rows.append(
                [
                    subject(name, f"{title(task['metric'])}, {model['title']}"),
                    changed(task["difference"], task["metric"], task["wins"]),
                    measured(task["metric"], task["candidate"]),
                    measured(task["metric"], task["production"]),
                ]
            )
    rows.sort(key=lambda row: row[0])
    others = [
        f"{model['title']} was trained with another {', '.join(model['budget'])}."
        for model in compared["models"]
        if model["budget"]
    ]
    heads = ("task and baseline", "difference", "this model", "baseline's")
    return section(
        "transfer",
        "Negative transfer",
        "Each task against models without a mixture, on the same rows and resamples. A task that "
        "is worse than its single-task model loses by sharing; a task that is worse than with the "
        "shared bottom gains nothing from choosing experts.",
        sentences([*compared["sentences"], *others]),
        table("Differences from the baselines", heads, rows, "roomy"),
    )


def baseline(found: Assessment) -> str:
    """The model against one of another library."""
    compared = found["baseline"]
    if compared is None:
        return ""
    listed = [
        (name, one)
        for name, one in (
            ("mean of the binary tasks", compared["auc"]),
            ("mean of the binary tasks", compared["within_users"]),
            ("combined score", compared["ranking"]),
        )
        if one is not None
    ]
    for name, task in compared["tasks"].items():
        listed += [(name, one) for one in task["measures"].values()]
    rows = [_compared(name, one, one["candidate"]["rows"]) for name, one in listed]
    notes = [[escape(name), escape(task["note"])] for name, task in compared["tasks"].items()]
    return section(
        "baseline",
        f"Against {compared['title']}",
        f"{compared['title']}, one model per task, trained in {compared['seconds']:.1f} s on the "
        "same examples and measured on the same rows and resamples. Losses stand here like wins. "
        "▲ better and ▼ worse beyond chance; differences of RMSE, pinball loss and log loss are "
        "relative: less is better. A feature of the user raises AUC without changing any order "
        "within a request: see AUC within users and NDCG@10 as well.",
        sentences(compared["sentences"]),
        table(
            f"Differences from {compared['title']}",
            ("task", "difference", "this model", compared["title"], "rows"),
            rows,
            "roomy",
        ),
        table(f"How {compared['title']} was trained", ("task", "choices"), notes),
    )


def leaks(found: Assessment) -> str:
    """Signs that these rows are easier than new rows are."""
    checked = found["leaks"]
    rows = [
        [
            subject(row["feature"], f"by {row['by']}"),
            escape(row["task"]),
            f"{row['auc']:.4f}",
            '<b class="worse">leak</b>' if row["leak"] else "",
        ]
        for row in checked["features"][:_FEATURES]
    ]
    heads = ("feature alone", "task", "AUC", "above the limit")
    return section(
        "leaks",
        "Leak checks",
        "How well one feature alone ranks the rows: by its value, its length, whether it is "
        "present, or the mean label of the training rows with the same value. The training rows "
        "decide which direction is up. An AUC near 1 usually means that the feature was not known "
        "before the label.",
        sentences(leak_sentences(checked)),
        table("Features by their AUC alone", heads, rows),
    )


def leak_sentences(checked: LeakSummary) -> list[str]:
    """What the checks found."""
    said = [
        f"{row['feature']} alone has an AUC of {row['auc']:.4f} on {row['task']}, above "
        f"{checked['limit']:g}: a leak unless it is truly known beforehand."
        for row in checked["features"]
        if row["leak"]
    ] or [f"No feature alone has an AUC above {checked['limit']:g}."]
    if checked["shared_rows"] is not None:
        said.append(
            f"{count(checked['shared_rows'], 'row')} of this split "
            f"{'is' if checked['shared_rows'] == 1 else 'are'} in training too."
            if checked["shared_rows"]
            else "No row of this split is in training."
        )
    if checked["in_order"]:
        said.append("Every row is newer than all of training.")
    elif checked["in_order"] is False:
        share = percent(checked["late_training"] or 0.0)
        late = f"{share} of training is not older than the oldest row"
        by_time = checked.get("split_by") == "time"
        said.append(f"{late}{', although the split is by time' if by_time else ''}.")
    return said


def warnings(found: Assessment) -> list[str]:
    """What a reader must know first, a sentence each."""
    said = [found["caveat"]] if found["caveat"] else []
    said += [f"Training: {warning}." for warning in found["training_warnings"]]
    checked = found["leaks"]
    said += [line for line in leak_sentences(checked) if "a leak unless" in line]
    if checked["shared_rows"]:
        said.append(f"{count(checked['shared_rows'], 'row')} of this split in training too.")
    if checked["in_order"] is False and checked.get("split_by") == "time":
        said.append("Training is not all older than this split, although the split is by time.")
    for name, task in found["tasks"].items():
        said += _calibration(name, task)
        if task["value"] is None:
            said.append(f"{name} cannot be measured: {task['reason']}.")
        area, explained = (limits(task["measures"].get(measure)) for measure in ("auc", "r2"))
        if area and area[0] <= _CHANCE:
            said.append(f"{name} is not shown to rank better than chance.")
        if (better := _better_alone(checked, name, task)) is not None:
            said.append(better)
        if explained and explained[1] < 0:
            said.append(f"{name} is farther off than its mean label would be.")
        loss, constant = limits(task["measures"].get("pinball")), task.get("pinball_of_constant")
        if loss and constant is not None and loss[0] > constant:
            said.append(f"{name} is farther off than the {task['q']:g} quantile of its labels is.")
    marked = [look for look in found["slices"]["rows"] if look["marked"]]
    if marked:
        worst = marked[0]
        said.append(
            f"{count(len(marked), 'look')} at slices worse beyond chance, the worst of them "
            f"{worst['slice']}: {worst['value']} on {worst['task']}."
        )
    said += [line for line in found["findings"] if "never used" in line or "fewer than 1" in line]
    if found["baseline"]:
        said += [line for line in found["baseline"]["sentences"] if "is worse than" in line]
    if found["transfer"]:
        said += [line for line in found["transfer"]["sentences"] if "beyond chance:" in line]
    if found["stability"]:
        said += found["stability"]["differences"]
    return said


def _better_alone(checked: LeakSummary, name: str, task: AssessedTask) -> str | None:
    """A feature that alone ranks a binary task better than the model does."""
    value = task["value"]
    if task["metric"] != "auc" or value is None:
        return None
    alone = [row for row in checked["features"] if row["task"] == name and row["auc"] > value]
    if not alone:
        return None
    best = max(alone, key=lambda row: row["auc"])
    return (
        f"{best['feature']} alone ranks {name} better than the model does: AUC {best['auc']:.4f} "
        f"against {value:.4f}."
    )


def _calibration(name: str, task: AssessedTask) -> list[str]:
    """What is wrong with a binary task's calibration."""
    observed = task["measures"].get("predicted_over_observed")
    ends = limits(observed)
    value = observed["value"] if observed else None
    beyond = ends is not None and not ends[0] <= 1 <= ends[1]
    if value is not None and beyond and abs(value - 1) > _SLIGHT:
        return [f"{name} predicts {value:.2f} times what is observed."]
    error, rate = task["measures"].get("ece"), task.get("rate")
    ends = limits(error)
    if error and ends and rate is not None and ends[0] > _OFF * min(rate, 1 - rate):
        return [
            f"{name} is right on the whole, but its scores are {error['value']:.3f} off on "
            "average: too sure or not sure enough, see Calibration."
        ]
    return []
