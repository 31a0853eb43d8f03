"""Our model against one of another library, trained on the same examples (`model.baselines`).

Binary tasks are compared by AUC, AUC of the rows with a candidate that is new to the user
(`auc_unmatched`), AUC within users, log loss and NDCG@10 within requests, each over the rows with a
label.  A feature of the user raises the first without changing any order within a request.
Regression tasks are compared by RMSE (those that predict a quantile by pinball loss) in the label's
own units, and on the scale of the label's transform, which both models are trained on.

The scores of an exported version are corrected for downsampled negatives and calibrated on the
validation split with the rows' weights in training, and the baseline's are then put right in the
same way.  Those of tasks with `export.smearing` are means in own units,
which are too high on the scale of a logarithm: the baseline's get a factor from the validation
split too, and own units decide.

`objections` is the rule `evaluation.rules.beats`.  A candidate is refused if

- the mean AUC over the binary tasks is worse than the baseline's beyond chance: the whole 95 %
  interval of the paired difference is below 0;
- or the NDCG@10 of the combined score is worse beyond chance.  AUC judges one task at a time: of
  scores that are all a thousandth of what they were it is the same, while the sum of the tasks'
  scores, by which items are served, then orders by the other tasks;
- or the mean over the binary tasks of the AUC within users is worse beyond chance.  Scores that
  know users and not items have a good AUC over all rows, and order no list.  It is one test and
  not one per task, so that level models are not refused more often than needed.  A task takes
  part if at least ten users have both classes of it;
- or any one task is worse beyond chance, by AUC, or by RMSE or pinball loss: on the scale of the
  transform, or in own units where ours is smeared;
- or no task can be compared.

With fewer than ten users, or where more than a tenth of the resamples lack a class, there is no
interval: then the difference itself must not be a loss, and the sentences say so.  The combined
score and the order within users are judged by their intervals alone: lists with a gain and users
with both classes may be few where users are many, and a sign alone would refuse every second level
model.  The intervals are not widened for the number of tests: what is truly level is refused by
chance about once in forty times, each.  The rule is strict on purpose.

AUC within users is unfair to a model that learns a user's rate of rare labels from the user's own
past labels (`benchmarks/within_users.py`).  It is judged all the same: of rare labels requests
seldom hold both classes, so that NDCG within requests says nothing of their order, and the baseline
reads the same rates of the user's past, so that most of the unfairness cancels.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from multigate.configs.baselines import LIGHTGBM
from multigate.configs.contract import Contract, PositionFeature
from multigate.configs.files import ExamplesFolder
from multigate.configs.sections.labels import Task
from multigate.configs.statistics import Statistics
from multigate.model.baselines.lightgbm_baseline import LightGBM, TaskFit
from multigate.model.baselines.table import unmatched
from multigate.model.data.rows import Rows, read_rows
from multigate.model.evaluation.combine import combine, gains
from multigate.model.evaluation.corrections import corrected
from multigate.model.evaluation.measures import ranking, ranks, tasks
from multigate.model.evaluation.measures.bootstrap import LEAST_USERS, Resamples, limits
from multigate.model.evaluation.measures.names import title
from multigate.model.evaluation.paired import (
    RELATIVE,
    in_words,
    paired_difference,
    signed,
)
from multigate.model.evaluation.results import BaselineComparison, BaselineTask, Compared
from multigate.model.evaluation.scored import Scored
from multigate.model.evaluation.smearing import Smearing
from multigate.model.ranker.scores import transform

TRANSFORMED, UNMATCHED, WITHIN = "_transformed", "auc_unmatched", "gauc"


def compare_with_baseline(
    ours: Scored,
    baseline: LightGBM,
    rows: Rows,
    resamples: Resamples,
    examples: Path | None = None,
) -> BaselineComparison:
    """Measure both on the same rows and resamples.

    Args:
        ours: scores of the rows.
        baseline: fitted on the training split of the same examples.
        rows: of one split.
        resamples: of these rows' users.
        examples: folder that the baseline was trained on; its validation split corrects the
            baseline's scores as the export corrected ours. Of a checkpoint it is not read.

    Raises:
        ValueError: ours is an exported version, and no examples are given.
        DataError: the validation split cannot be read.
    """
    contract = ours.contract
    labels = rows.labels(contract)
    theirs, smeared = _their_scores(ours, baseline, rows, examples)
    lists, new = rows.lists(contract), unmatched(contract, rows)
    found: dict[str, BaselineTask] = {}
    areas: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    within: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for t, (name, task) in enumerate(contract.tasks.items()):
        y = labels[:, t]
        if name not in theirs or np.isnan(y).all():
            continue
        pair = (ours.scores[name], theirs[name])
        if task.type == "binary":
            judged = "auc"
            mine, other = (measure_binary(resamples, y, p, lists, new) for p in pair)
            if judged in mine:
                areas[name] = mine[judged][0], other[judged][0]
            if WITHIN in mine:
                within[name] = mine[WITHIN][0], other[WITHIN][0]
        else:
            mine, other = (measure_regression(resamples, task, y, p) for p in pair)
            # The last one is on the scale that both are trained on.
            judged = "rmse" if name in ours.smeared else list(mine)[-1]
        found[name] = {
            "group": task.group,
            "type": task.type,
            "judged": judged,
            "measures": {
                metric: _compared(resamples, metric, values, other[metric][0], part)
                for metric, (values, part) in mine.items()
            },
            "note": _note(baseline.tasks[name], smeared.get(name)),
        }
    result: BaselineComparison = {
        "name": LIGHTGBM,
        "title": baseline.title,
        "seconds": baseline.seconds,
        "left_out": baseline.tabulator.left_out,
        "tasks": found,
        "auc": _mean_auc(resamples, contract, labels, areas),
        "within_users": _mean_within_users(resamples, contract, labels, within),
        "ranking": _ranking(resamples, contract, labels, lists, ours.combined, theirs),
        "sentences": [],
    }
    places = [n for n, one in contract.features.items() if isinstance(one, PositionFeature)]
    result["sentences"] = _sentences(result, places)
    return result


Measured = dict[str, tuple[np.ndarray, np.ndarray]]
"""By measure, replicates (1 + R,), and (N,) NaN for rows that take no part."""


def measure_binary(
    resamples: Resamples,
    labels: np.ndarray,
    scores: np.ndarray,
    lists: np.ndarray,
    new: np.ndarray | None,
) -> Measured:
    """Measures of a binary task: auc, auc_unmatched, gauc, log_loss and ndcg@10, where they exist.

    Args:
        resamples: the draws, of N rows.
        labels: (N,) 0 or 1, NaN where masked.
        scores: (N,).
        lists: (N,) ranked list of each row.
        new: (N,) rows with a candidate that is new to the user; None where that is not known.
    """
    measured = tasks.binary(resamples, labels, scores)
    found: Measured = {"auc": (measured["auc"], labels)}
    if new is not None and not new[~np.isnan(labels)].all():  # else it is the AUC of all rows
        part = np.where(new, labels, np.nan)
        found[UNMATCHED] = unmatched_auc(resamples, part, scores), part
    found[WITHIN] = measured[WITHIN], tasks.both_classes(resamples, labels)
    found["log_loss"] = measured["log_loss"], labels
    # A row without a label must not fill a place of its list: it gets a list of its own.
    masked = np.isnan(labels)
    own = np.where(masked, lists.max(initial=-1) + 1 + np.cumsum(masked), lists)
    own = np.unique(own, return_inverse=True)[1]
    gain = np.where(masked, 0.0, labels)
    values = ranking.measure_lists(resamples, own, gain, scores, only=ranking.MAIN)
    part = np.where(ranking.usable_lists(own, gain)[own], labels, np.nan)
    found[ranking.MAIN] = values[ranking.MAIN], part
    return {name: one for name, one in found.items() if np.isfinite(one[0][0])}


def measure_regression(
    resamples: Resamples, task: Task, labels: np.ndarray, scores: np.ndarray
) -> Measured:
    """RMSE, or the pinball loss of a quantile, in the label's own units.

    Where it differs, also that on the scale of the label's transform, after the other.
    """
    metric = tasks.MAIN[task.measured_as]
    found = {metric: (tasks.measure(task, resamples, labels, scores)[metric], labels)}
    if task.transform != "identity":
        y, p = transform(task, labels), transform(task, scores)
        found[metric + TRANSFORMED] = tasks.measure(task, resamples, y, p)[metric], labels
    return found


def unmatched_auc(resamples: Resamples, labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """AUC (1 + R,) over the rows with a label; NaN where they have one class only.

    Args:
        resamples: the draws, of N rows.
        labels: (N,) NaN where masked, and where the candidate is not new to the user.
        scores: (N,).
    """
    rows = np.flatnonzero(~np.isnan(labels))
    return ranks.auc(resamples, labels[rows].astype(np.float64), scores[rows], rows)


def _compared(
    resamples: Resamples, metric: str, ours: np.ndarray, theirs: np.ndarray, labels: np.ndarray
) -> Compared:
    difference = paired_difference(resamples, labels, ours, theirs, metric in RELATIVE)
    return {"metric": metric, **difference}


def _mean_auc(
    resamples: Resamples,
    contract: Contract,
    labels: np.ndarray,
    areas: dict[str, tuple[np.ndarray, np.ndarray]],
) -> Compared | None:
    known = [name for name, (ours, _) in areas.items() if np.isfinite(ours[0])]
    if not known:
        return None
    ours, theirs = (np.mean([areas[name][i] for name in known], axis=0) for i in (0, 1))
    columns = [list(contract.tasks).index(name) for name in known]
    part = np.where(np.isnan(labels[:, columns]).all(axis=1), np.nan, 1.0)
    return _compared(resamples, "auc", ours, theirs, part)


def _mean_within_users(
    resamples: Resamples,
    contract: Contract,
    labels: np.ndarray,
    areas: dict[str, tuple[np.ndarray, np.ndarray]],
) -> Compared | None:
    """Mean AUC within users over the tasks of which enough users have both classes."""
    known, part = [], np.full(len(labels), np.nan)
    for name in areas:
        y = tasks.both_classes(resamples, labels[:, list(contract.tasks).index(name)])
        rows = ~np.isnan(y)
        if resamples.users_of(rows) >= LEAST_USERS:
            known.append(name)
            part[rows] = 1.0
    if not known:
        return None
    ours, theirs = (np.mean([areas[name][i] for name in known], axis=0) for i in (0, 1))
    return _compared(resamples, WITHIN, ours, theirs, part)


def _ranking(
    resamples: Resamples,
    contract: Contract,
    labels: np.ndarray,
    lists: np.ndarray,
    ours: np.ndarray,
    theirs: dict[str, np.ndarray],
) -> Compared | None:
    """NDCG@10 of the combined score."""
    # A constant for a task without a score changes no order.
    zeros = np.zeros(len(labels))
    combined = combine(contract, {name: theirs.get(name, zeros) for name in contract.tasks})
    gain = gains(contract, labels)
    a, b = (
        ranking.measure_lists(resamples, lists, gain, p, only=ranking.MAIN)[ranking.MAIN]
        for p in (ours, combined)
    )
    if not np.isfinite(a[0]):
        return None
    part = np.where(ranking.usable_lists(lists, gain)[lists], 1.0, np.nan)
    return _compared(resamples, ranking.MAIN, a, b, part)


def _their_scores(
    ours: Scored, baseline: LightGBM, rows: Rows, examples: Path | None
) -> tuple[dict[str, np.ndarray], dict[str, Smearing]]:
    """The baseline's scores, corrected as the export corrected ours, if it did.

    Args:
        ours: says whether it is exported, how it is calibrated, and which tasks are smeared.
        baseline: fitted on the examples.
        rows: N rows.
        examples: whose validation split says how far scores are off.

    Returns:
        By task, scores (N,) in own units; and how tasks are smeared, absent where that does not
        lower a task's error.
    """
    uncalibrated = ours.calibration == "none" and not ours.smeared
    if uncalibrated and ours.positive_by is None:  # a checkpoint
        return baseline.scores(rows), {}
    if examples is None:
        raise ValueError("an exported version is calibrated: expected the examples, received none")
    statistics = Statistics.read(ExamplesFolder(examples).statistics)
    if uncalibrated and statistics.negatives_kept == 1:
        return baseline.scores(rows), {}
    validation = read_rows(examples, "validation").once()
    # Not the scores: what is clipped has lost its residual.
    held_out, measured = (baseline.outputs(one) for one in (validation, rows))
    found = corrected(
        ours.contract,
        statistics,
        validation,
        held_out,
        measured,
        ours.calibration,
        ours.positive_by or (),
        ours.weight,
    )
    means = {name: p for name, p in found.means.items() if name in ours.smeared}
    smeared = {name: one for name, one in found.smeared.items() if name in ours.smeared}
    return found.scores | means, smeared


def _note(fitted: TaskFit, smearing: Smearing | None) -> str:
    """How a task was trained, in words, and how it is smeared, if it is."""
    said = []
    if fitted.setting is not None:
        leaves, rate, least, ids, counts = fitted.setting
        said.append(f"{fitted.trees} trees of {leaves} leaves, rate {rate:g}, {least} rows a leaf")
        said += [] if ids else ["no splits on ids" + ("" if counts else " or their counts")]
    if smearing is not None:
        power = "" if smearing.power == 1 else f" and a power of {smearing.power:.3g}"
        said.append(
            f"corrected to the mean by a factor of {smearing.factor:.3g}{power}, as ours is"
        )
    return "; ".join([*said, *([fitted.note] if fitted.note else [])])


_FEW = "with too few users or labels for an interval"


def objections(found: BaselineComparison) -> list[str]:
    """Every reason to refuse a model by `evaluation.rules.beats`, a sentence each."""
    judged = _judged(found)
    if found["auc"] is None and not any(name in judged for name in found["tasks"]):
        return [f"No task can be compared with {found['title']}, which the rules ask to beat."]
    return [
        f"{name}: worse than {found['title']}: {in_words(compared)}"
        + (f"; {_FEW}, no loss is allowed." if limits(compared["difference"]) is None else ".")
        for name, compared in judged.items()
        if _lost(compared)
    ]


def _judged(found: BaselineComparison) -> dict[str, Compared]:
    """What the rule looks at, by name: the mean AUC, the order of lists, each task's measure."""
    judged = {"mean of the binary tasks": found["auc"]} if found["auc"] is not None else {}
    orders = (
        ("combined score", found["ranking"]),
        # Absent from what a night measured with a release before.
        ("mean within users", found.get("within_users")),
    )
    judged |= {
        name: compared
        for name, compared in orders
        if compared is not None and limits(compared["difference"]) is not None
    }
    for name, task in found["tasks"].items():
        if task["judged"] in task["measures"]:
            judged[name] = task["measures"][task["judged"]]
    return judged


def _lost(compared: Compared) -> bool:
    """Worse beyond chance; where there is no interval, worse at all."""
    difference = compared["difference"]
    if difference is None or difference["value"] is None:
        return False
    if limits(difference) is not None:
        return compared["wins"] is False
    sign = -1.0 if compared["metric"] in RELATIVE else 1.0
    return sign * difference["value"] < -1e-12


def _sentences(found: BaselineComparison, places: Sequence[str]) -> list[str]:
    """Losses and wins beyond chance, those without an interval, and what the baseline did not read.

    Where there is no interval, chance is not known: such a difference is neither beyond it nor
    within it, and the rule refuses a loss.

    Args:
        found: the comparison.
        places: positions, which neither model reads where it is measured.
    """
    other, judged = found["title"], _judged(found)
    said = [
        f"{name} is worse than with {other}, beyond chance: {in_words(compared)}."
        for name, compared in judged.items()
        if compared["wins"] is False
    ]
    won = [name for name, compared in judged.items() if compared["wins"]]
    even, few = [], []
    for name, compared in judged.items():
        if limits(compared["difference"]) is None:
            few.append(name)
        elif compared["wins"] is None:
            even.append(name)
    worse = [f"{name} ({in_words(judged[name])})" for name in few if _lost(judged[name])]
    rest = [name for name in few if not _lost(judged[name])]
    if worse:
        said.append(f"{_FEW.capitalize()}, worse than {other} on these rows: {', '.join(worse)}.")
    if won:
        said.append(f"Better than {other} beyond chance: {', '.join(won)}.")
    if even:
        said.append(f"No difference from {other} beyond chance: {', '.join(even)}.")
    if rest:
        said.append(f"{_FEW.capitalize()}, no worse than {other} on these rows: {', '.join(rest)}.")
    unread = [name for name in found["left_out"] if name not in places]
    if unread:
        said.append(f"{other} does not read {', '.join(unread)}.")
    if places:
        said.append(
            f"Neither model reads {', '.join(places)}: where an item will stand is not known when "
            "it is ranked."
        )
    return said or [f"No task can be compared with {other}."]


def table(found: BaselineComparison) -> Table:
    """Both models' measures for a terminal."""
    heading = f"against {found['title']}, trained in {found['seconds']:.1f} s on the same examples"
    view = Table(title=heading, title_justify="left")
    for heading in ("task", "measure"):
        view.add_column(heading)
    for heading in ("ours", found["title"], "difference", "95 % interval", "rows"):
        view.add_column(heading, justify="right")
    summaries = (
        ("mean of binary tasks", found["auc"]),
        ("mean of binary tasks", found["within_users"]),
        ("combined score", found["ranking"]),
    )
    for name, compared in summaries:
        if compared is not None:
            _add_row(view, name, compared)
    for name, task in found["tasks"].items():
        view.add_section()
        for compared in task["measures"].values():
            _add_row(view, name, compared)
    view.caption, view.caption_justify = "\n".join(found["sentences"]), "left"
    return view


def _add_row(view: Table, name: str, compared: Compared) -> None:
    values = [
        "" if one is None or one["value"] is None else f"{one['value']:.4f}"
        for one in (compared["candidate"], compared["production"])
    ]
    change, interval = signed(compared)
    rows = f"{compared['candidate']['rows']:,}"
    view.add_row(name, title(compared["metric"]), *values, change, interval, rows)
