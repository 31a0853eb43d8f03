"""A candidate against the version in production, on the same rows, and the verdict.

Both models are measured on the same resamples of the users, and the interval is that of the
difference: it is narrow, because users who are hard to predict are hard for both models.
"""

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow.compute as pc
from rich.table import Table

from multigate.configs import progress
from multigate.configs.baselines import require_library
from multigate.configs.errors import ModelError
from multigate.configs.files import TIME
from multigate.configs.lineage import check_names
from multigate.configs.sections.evaluation import EvaluationConfig, Rules, TaskRules
from multigate.model.baselines.lightgbm_baseline import fit
from multigate.model.data.rows import Rows, read_rows
from multigate.model.evaluation.against_baseline import compare_with_baseline, objections
from multigate.model.evaluation.combine import gains
from multigate.model.evaluation.evaluate import caveat
from multigate.model.evaluation.losses import (
    losses,
    normal_quantile,
    not_compared,
    of_task,
    too_few_rows,
)
from multigate.model.evaluation.measures import ranking, tasks
from multigate.model.evaluation.measures.bootstrap import Interval, Resamples, limits
from multigate.model.evaluation.measures.names import title
from multigate.model.evaluation.paired import (
    RELATIVE,
    in_words,
    paired_difference,
    signed,
)
from multigate.model.evaluation.results import (
    BaselineComparison,
    Compared,
    Comparison,
    Differences,
    RankingComparison,
    Verdict,
    compared_tasks,
)
from multigate.model.evaluation.scored import Scored, read_contract, score

BLESS: Literal["bless"] = "bless"
REFUSE: Literal["refuse"] = "refuse"
CHANCE = 0.5  # AUC of a score that knows nothing


@progress.stepwise("compare", 4)
def compare(
    candidate: Path,
    production: Path | None,
    examples: Path,
    rules: Rules | None = None,
    *,
    split: str = "test",
    replicates: int = 500,
    seed: int = 0,
    baseline: BaselineComparison | None = None,
) -> Comparison:
    """Measure both on one split and judge the candidate.

    Args:
        candidate: folder of an exported version, or of a checkpoint.
        production: the version or checkpoint that it is to replace; None for a first version.
        examples: folder of examples that neither was trained on.
        rules: of the verdict; the defaults where None.
        split: of the examples.
        replicates: number of resamples.
        seed: of the resamples.
        baseline: that `rules.beats` asks for, measured on these rows and resamples; made here where
            None.

    Raises:
        ConfigError: a rule names a task that the candidate does not have, or `rules.beats` a
            library that is not installed.
        ModelError: a folder is neither a version nor a checkpoint.
        DataError: the split or a column cannot be read.
    """
    rules = rules or Rules()
    contract = read_contract(candidate).contract
    check_names(EvaluationConfig(rules=rules), contract, candidate)
    require_library(rules.beats)
    progress.step("read")
    rows = read_rows(examples, split).once()
    resamples = Resamples(rows.codes(contract.user), replicates, seed)
    progress.step("score with the candidate")
    ours = score(candidate, rows)
    progress.step("score with production")
    theirs = score(production, rows) if production is not None else None
    progress.step("compare")
    found = compare_scored(ours, theirs, rows, resamples)
    if rules.beats is not None:
        found["baseline"] = baseline or compare_with_baseline(
            ours, fit(examples, contract), rows, resamples, examples
        )
    return {
        **verdict(found, rules, theirs is not None),
        "candidate": str(candidate),
        "production": None if production is None else str(production),
        "split": split,
        "rows": len(rows),
        "users": resamples.users,
        "newest": _newest(rows),
        **found,
    }


def compare_scored(
    ours: Scored, theirs: Scored | None, rows: Rows, resamples: Resamples
) -> Differences:
    """The differences between two models' scores of the same rows.

    The candidate's contract says what a task predicts, and so how both are measured.

    Raises:
        ModelError: a task is binary in one contract and a regression in the other.
        DataError: a label cannot be used.
    """
    labels = rows.labels(ours.contract)
    for name, old_task in theirs.contract.tasks.items() if theirs is not None else ():
        new_task = ours.contract.tasks.get(name, old_task)
        if new_task.type != old_task.type:
            raise ModelError(
                f"{name}: a {new_task.type} task of the candidate, a {old_task.type} task of "
                "production, which no measure compares; give the new task another name"
            )
    found: Differences = {"tasks": {}, "ranking": None}
    for t, (name, task) in enumerate(ours.contract.tasks.items()):
        metric = tasks.MAIN[task.measured_as]
        new = tasks.measure(task, resamples, labels[:, t], ours.scores[name])
        old = None
        if theirs is not None and name in theirs.scores:
            old = tasks.measure(task, resamples, labels[:, t], theirs.scores[name])[metric]
        rate = new.get("predicted_over_observed")
        found["tasks"][name] = {
            "group": task.group,
            "type": task.type,
            "metric": metric,
            "rows": int((~np.isnan(labels[:, t])).sum()),
            **paired_difference(resamples, labels[:, t], new[metric], old, metric in RELATIVE),
            "calibration": None
            if rate is None
            else tasks.summaries(resamples, labels[:, t], {"rate": rate})["rate"],
        }
    for name in theirs.contract.tasks if theirs is not None else ():
        if name not in found["tasks"]:
            found["tasks"][name] = {"missing": True}
    found["ranking"] = _ranking(ours, theirs, rows, labels, resamples)
    return found


def _ranking(
    ours: Scored,
    theirs: Scored | None,
    rows: Rows,
    labels: np.ndarray,
    resamples: Resamples,
) -> RankingComparison | None:
    """The combined score's NDCG; the candidate's contract says what a row is worth."""
    lists, gain = rows.lists(ours.contract), gains(ours.contract, labels)
    new = ranking.measure_lists(resamples, lists, gain, ours.combined, only=ranking.MAIN)[
        ranking.MAIN
    ]
    if not np.isfinite(new[0]):
        return None
    old = None
    if theirs is not None:
        old = ranking.measure_lists(resamples, lists, gain, theirs.combined, only=ranking.MAIN)[
            ranking.MAIN
        ]
    known = np.where(ranking.usable_lists(lists, gain)[lists], 1.0, np.nan)
    return {
        "metric": ranking.MAIN,
        "rows": int(np.isfinite(known).sum()),
        **paired_difference(resamples, known, new, old, relative=False),
    }


def verdict(found: Differences, rules: Rules, compared: bool) -> Verdict:
    """Bless or refuse a candidate by its differences.

    Args:
        found: what `compare_scored` returned.
        rules: that the candidate must keep.
        compared: whether something is in production.
    """
    reasons = reasons_to_refuse(found, rules)
    if reasons:
        return {"verdict": REFUSE, "reasons": reasons}
    unseen = [too_few_rows(found, rules), not_compared(found)]
    return {
        "verdict": BLESS,
        "reasons": [_reason_to_bless(found, compared), *(one for one in unseen if one)],
    }


def reasons_to_refuse(found: Differences, rules: Rules) -> list[str]:
    """Every reason to refuse the candidate, a sentence each."""
    reasons = []
    measured = 0
    for name, task in found["tasks"].items():
        own = rules.tasks.get(name, TaskRules())
        if "missing" in task:
            reasons.append(f"{name}: production has this task, the candidate does not.")
            continue
        value = task["candidate"]["value"]
        if value is None:
            if own.must_win:
                reasons.append(f"{name}: it must win, and no label of it can be measured.")
            continue
        measured += 1
        if rules.calibration is not None and task["calibration"] is not None:
            reasons.extend(_calibration(name, task["calibration"], rules.calibration))
        if task["difference"] is None or task["difference"]["value"] is None:
            continue
        if own.must_win and task["wins"] is not True:
            reasons.append(
                f"{name}: it must win, and the difference {in_words(task)} is not shown to be "
                "more than chance."
            )
    reasons.extend(_too_low(found, rules))
    reasons.extend(losses(found, rules))
    reasons.extend(_nothing_learnt(found))
    if rules.beats is not None:
        if "baseline" in found:
            reasons.extend(objections(found["baseline"]))
        else:
            reasons.append(f"The rules ask to beat {rules.beats}, which was not measured.")
    if not measured:
        reasons.append("No task has labels of both classes here: nothing could be measured.")
    return reasons


def _too_low(found: Differences, rules: Rules) -> list[str]:
    """Refuse AUCs that are shown to be below the least allowed, a sentence each.

    Of several tasks of which nothing can be learnt, chance puts one below: so it takes as much as
    a loss takes to be shown (`losses`), over the tasks that have an AUC.  Nothing is shown of one
    without an interval: so few labels have it.
    """
    shown: dict[str, tuple[float, float]] = {}
    for name, task in compared_tasks(found):
        value, error = task["candidate"]["value"], task["candidate"]["error"]
        if task["metric"] == "auc" and value is not None and error is not None:
            shown[name] = value, error
    reasons = []
    for name, (value, error) in shown.items():
        least, key = of_task(rules, name, "least_auc")
        if value + normal_quantile(len(shown)) * error < least:
            said = f"AUC {value:.4f} is below the least allowed"
            reasons.append(f"{name}: {said}, {least:g} ({key}).")
    return reasons


def _nothing_learnt(found: Differences) -> list[str]:
    """Refuse a model if no binary task is shown to rank better than chance."""
    areas = [task["candidate"] for _, task in compared_tasks(found) if task["metric"] == "auc"]
    lows = [area["low"] for area in areas if area["low"] is not None]
    if not lows or max(lows) > CHANCE:
        return []
    return ["No task is shown to rank better than chance: no AUC's interval is above 0.5."]


def table(result: Comparison) -> Table:
    """The differences for a terminal."""
    heading = f"{result['split']} split, {result['rows']:,} rows of {result['users']:,} users"
    view = Table(title=heading, title_justify="left")
    view.add_column("task")
    for heading in ("measure", "candidate", "production", "difference", "95 % interval", "rows"):
        view.add_column(heading, justify="right")
    for name, task in result["tasks"].items():
        if "missing" in task:
            view.add_row(name, "", "absent")
        else:
            _add_row(view, name, task, task["rows"])
    if result["ranking"]:
        _add_row(view, "combined score", result["ranking"], result["ranking"]["rows"])
    if said := caveat(result["split"]):
        view.caption = said
    return view


def _add_row(view: Table, name: str, task: Compared, rows: int) -> None:
    values = [
        "" if found is None or found["value"] is None else f"{found['value']:.4f}"
        for found in (task["candidate"], task["production"])
    ]
    view.add_row(name, title(task["metric"]), *values, *signed(task), f"{rows:,}")


def _calibration(name: str, rate: Interval, allowed: tuple[float, float]) -> list[str]:
    """Refuse predicted over observed if its whole interval is outside of what is allowed."""
    value = rate["value"]
    if value is None:
        return []
    low, high = limits(rate) or (value, value)
    if low <= allowed[1] and high >= allowed[0]:
        return []
    return [
        f"{name}: predicts {value:.2f} times what is observed; "
        f"{allowed[0]:g} to {allowed[1]:g} is allowed (evaluation.rules.calibration)."
    ]


def _reason_to_bless(found: Differences, compared: bool) -> str:
    if not compared:
        return "Nothing is in production, and the candidate keeps every bound."
    won = [name for name, task in compared_tasks(found) if task["wins"]]
    lost = [name for name, task in compared_tasks(found) if task["wins"] is False]
    text = "No task loses more than is allowed"
    if won:
        text += f"; better beyond chance: {', '.join(won)}"
    if lost:
        what = "worse by its own 95 % interval, not more than is allowed over all comparisons"
        text += f"; {what}: {', '.join(lost)}"
    return text + "."


def _newest(rows: Rows) -> str | None:
    """Time of the newest row, ISO 8601."""
    if TIME not in rows.table.column_names:
        return None
    newest = pc.max(rows.table[TIME]).as_py()
    return None if newest is None else str(newest.isoformat())
