"""A candidate against the version in production, on the same rows, and the verdict.

Both are measured on the same resamples of the users, so that the interval is that of the
difference: most of what makes a sample of users easy or hard is so for both.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from rich.table import Table

from multigate.configs.contract import Contract
from multigate.configs.errors import ConfigError, ModelError
from multigate.configs.files import TIME
from multigate.configs.sections.evaluation import EvaluationConfig, Rules, TaskRules
from multigate.model.data.rows import Rows, read_rows
from multigate.model.evaluation.combine import gains
from multigate.model.evaluation.measures import ranking, tasks
from multigate.model.evaluation.measures.resamples import Resamples
from multigate.model.evaluation.scored import Scored, read_contract, score

BLESS, REFUSE = "bless", "refuse"
RANKING = "ndcg@10"
CHANCE = 0.5  # AUC of a score that knows nothing


def compare(
    candidate: Path,
    production: Path | None,
    examples: Path,
    rules: Rules | None = None,
    *,
    split: str = "test",
    replicates: int = 500,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure both on one split and judge the candidate.

    Args:
        candidate: folder of an exported version, or of a checkpoint.
        production: the same of what it is to replace; None where nothing is in production.
        examples: folder of examples that neither was trained on.
        rules: of the verdict; the defaults where None.
        split: of the examples.
        replicates: resamples of the users.
        seed: of the resamples.

    Returns:
        verdict ("bless" or "refuse"); reasons, sentences, at least one; candidate, production,
        split, rows, users; `tasks`: name -> group, type, metric, rows, candidate, production and
        difference (see `measures.resamples.interval`; the difference is candidate - production,
        for RMSE divided by production's), calibration, wins (True where the whole interval is on
        the better side, False where it is on the worse one, None otherwise); `ranking`: the same
        of the combined score's NDCG@10, or None where no list can be judged.

    Raises:
        ConfigError: a rule of a task that the candidate does not have.
        ModelError: a folder is neither a version nor a checkpoint.
        DataError: the split or a column cannot be read.
    """
    rules = rules or Rules()
    contract = read_contract(candidate).contract
    check_names(EvaluationConfig(rules=rules), contract, candidate)
    rows = read_rows(examples, split)
    resamples = Resamples(rows.codes(contract.user), replicates, seed)
    ours = score(candidate, rows)
    theirs = score(production, rows) if production is not None else None
    found = compare_scored(ours, theirs, rows, resamples)
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


def check_names(options: EvaluationConfig, contract: Contract, folder: Path) -> None:
    """Refuse rules and slices that name what a model's contract does not have.

    Raises:
        ConfigError: an unknown task or feature.
    """
    unknown = options.unknown_name(contract.tasks, contract.features)
    if unknown is not None:
        raise ConfigError(f"{unknown} ({folder} has no other); use the model's own configuration")


def compare_scored(
    ours: Scored, theirs: Scored | None, rows: Rows, resamples: Resamples
) -> dict[str, Any]:
    """`tasks` and `ranking` of `compare`.

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
    found: dict[str, Any] = {}
    for t, (name, task) in enumerate(ours.contract.tasks.items()):
        measure = tasks.OF_TYPE[task.type]
        metric = tasks.MAIN[task.type]
        new = measure(resamples, labels[:, t], ours.scores[name])
        old = None
        if theirs is not None and name in theirs.scores:
            old = measure(resamples, labels[:, t], theirs.scores[name])[metric]
        rate = new.get("predicted_over_observed")
        found[name] = {
            "group": task.group,
            "type": task.type,
            "metric": metric,
            "rows": int((~np.isnan(labels[:, t])).sum()),
            **against(resamples, labels[:, t], new[metric], old, metric == "rmse"),
            "calibration": None
            if rate is None
            else tasks.summaries(resamples, labels[:, t], {"rate": rate})["rate"],
        }
    for name in theirs.contract.tasks if theirs is not None else ():
        if name not in found:
            found[name] = {"missing": True}
    return {"tasks": found, "ranking": _ranking(ours, theirs, rows, labels, resamples)}


def against(
    resamples: Resamples,
    labels: np.ndarray,
    new: np.ndarray,
    old: np.ndarray | None,
    relative: bool,
) -> dict[str, Any]:
    """Both values and their difference, each with its interval; `wins`."""
    result: dict[str, Any] = {"production": None, "difference": None, "wins": None}
    values = {"candidate": new}
    if old is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = np.where(old > 0, (new - old) / old, new - old) if relative else new - old
        values |= {"production": old, "difference": gap}
    result |= tasks.summaries(resamples, labels, values)
    if old is not None and result["difference"]["low"] is not None:
        low, high = result["difference"]["low"], result["difference"]["high"]
        if low > 0 or high < 0:
            result["wins"] = (low > 0) != relative
    return result


def _ranking(
    ours: Scored,
    theirs: Scored | None,
    rows: Rows,
    labels: np.ndarray,
    resamples: Resamples,
) -> dict[str, Any] | None:
    """The combined score's NDCG, by the candidate's weights of what is relevant."""
    lists, gain = rows.lists(ours.contract), gains(ours.contract, labels)
    new = ranking.ranking(resamples, lists, gain, ours.combined)[RANKING]
    if not np.isfinite(new[0]):
        return None
    old = None
    if theirs is not None:
        old = ranking.ranking(resamples, lists, gain, theirs.combined)[RANKING]
    known = np.where(ranking.judged(lists, gain)[lists], 1.0, np.nan)
    result = against(resamples, known, new, old, relative=False)
    return {"metric": RANKING, "rows": int(np.isfinite(known).sum())} | result


def verdict(found: dict[str, Any], rules: Rules, compared: bool) -> dict[str, Any]:
    """`verdict` and `reasons` of what `compare_scored` found."""
    reasons = judge(found, rules)
    return {
        "verdict": REFUSE if reasons else BLESS,
        "reasons": reasons or [_praise(found, compared)],
    }


def judge(found: dict[str, Any], rules: Rules) -> list[str]:
    """Every reason to refuse, a sentence each; none where the candidate may go out."""
    reasons = []
    measured = 0
    for name, task in found["tasks"].items():
        own = rules.tasks.get(name, TaskRules())
        if task.get("missing"):
            reasons.append(f"{name}: production has this task, the candidate does not.")
            continue
        value = task["candidate"]["value"]
        if value is None:
            if own.must_win:
                reasons.append(f"{name}: it must win, and no label of it can be measured.")
            continue
        measured += 1
        least = rules.least_auc if own.least_auc is None else own.least_auc
        reached = value if task["candidate"]["high"] is None else task["candidate"]["high"]
        if task["metric"] == "auc" and reached < least:
            reasons.append(f"{name}: AUC {value:.4f} is below the least allowed, {least:g}.")
        if rules.calibration is not None and task["calibration"] is not None:
            reasons.extend(_calibration(name, task["calibration"], rules.calibration))
        if task["difference"] is None or task["difference"]["value"] is None:
            continue
        largest = rules.largest_loss if own.largest_loss is None else own.largest_loss
        reasons.extend(_loss(name, task, largest, rules.judge))
        if own.must_win and task["wins"] is not True:
            reasons.append(
                f"{name}: it must win, and the difference {_change(task)} is not shown to be "
                "more than chance."
            )
    ranked = found["ranking"]
    if ranked is not None and ranked["difference"] and rules.largest_ranking_loss is not None:
        reasons.extend(_loss("ranking", ranked, rules.largest_ranking_loss, rules.judge))
    reasons.extend(_nothing_learnt(found))
    if not measured:
        reasons.append("No task has labels of both classes here: nothing could be measured.")
    return reasons


def _nothing_learnt(found: dict[str, Any]) -> list[str]:
    """Refuse a model of which no binary task is shown to rank better than chance."""
    areas = [
        task["candidate"]
        for task in found["tasks"].values()
        if not task.get("missing") and task["metric"] == "auc"
    ]
    lows = [area["low"] for area in areas if area["low"] is not None]
    if not lows or max(lows) > CHANCE:
        return []
    return ["No task is shown to rank better than chance: no AUC's interval is above 0.5."]


def table(result: Mapping[str, Any]) -> Table:
    """The differences for a terminal."""
    title = f"{result['split']} split, {result['rows']:,} rows of {result['users']:,} users"
    view = Table(title=title, title_justify="left")
    view.add_column("task")
    for heading in ("measure", "candidate", "production", "difference", "95 % interval", "rows"):
        view.add_column(heading, justify="right")
    ranked = {"combined score": result["ranking"]} if result["ranking"] else {}
    for name, task in (result["tasks"] | ranked).items():
        if task.get("missing"):
            view.add_row(name, "", "absent")
            continue
        cells = [name, task["metric"].upper()]
        for key in ("candidate", "production"):
            found = task[key]
            cells.append("" if found is None or found["value"] is None else f"{found['value']:.4f}")
        change, interval = _signed(task)
        view.add_row(*cells, change, interval, f"{task['rows']:,}")
    return view


def _loss(name: str, task: dict[str, Any], largest: float, judge: str) -> list[str]:
    """Refuse a loss beyond what is allowed."""
    relative = task["metric"] == "rmse"
    difference = task["difference"]
    sign = 1.0 if relative else -1.0
    worst = difference["value"]
    if judge == "interval":
        worst = difference["high"] if relative else difference["low"]
        if worst is None:
            return [f"{name}: too few users for an interval of the difference, which is judged."]
    # Equal models differ by rounding, which is no loss.
    if sign * worst <= largest + 1e-12:
        return []
    allowed = f"{100 * largest:g} %" if relative else f"{largest:g}"
    what = "may be worse" if judge == "interval" else "is worse"
    return [f"{name}: the candidate {what}: {_change(task)}; {allowed} is allowed."]


def _calibration(name: str, rate: dict[str, Any], limits: tuple[float, float]) -> list[str]:
    """Refuse a predicted over observed that is outside with its whole interval."""
    if rate["value"] is None:
        return []
    low = rate["value"] if rate["low"] is None else rate["low"]
    high = rate["value"] if rate["high"] is None else rate["high"]
    if low <= limits[1] and high >= limits[0]:
        return []
    return [
        f"{name}: predicts {rate['value']:.2f} times what is observed; "
        f"{limits[0]:g} to {limits[1]:g} is allowed."
    ]


def _change(task: dict[str, Any]) -> str:
    """A difference in words, with its interval."""
    change, interval = _signed(task)
    within = f" (95 % interval {interval})" if interval else ""
    return f"{task['metric'].upper()} {change}{within}"


def _signed(task: Mapping[str, Any]) -> tuple[str, str]:
    """A difference and its interval as text, in percent where relative; empty without."""

    def show(value: float) -> str:
        return f"{100 * value:+.2f} %" if task["metric"] == "rmse" else f"{value:+.4f}"

    found = task["difference"]
    if found is None or found["value"] is None:
        return "", ""
    limits = "" if found["low"] is None else f"{show(found['low'])} to {show(found['high'])}"
    return show(found["value"]), limits


def _praise(found: dict[str, Any], compared: bool) -> str:
    if not compared:
        return "Nothing is in production, and the candidate keeps every bound."
    won = [name for name, task in found["tasks"].items() if task.get("wins")]
    lost = [name for name, task in found["tasks"].items() if task.get("wins") is False]
    text = "No task loses more than is allowed"
    if won:
        text += f"; better beyond chance: {', '.join(won)}"
    if lost:
        text += f"; worse beyond chance, within what is allowed: {', '.join(lost)}"
    return text + "."


def _newest(rows: Rows) -> str | None:
    """Time of the newest row, ISO 8601."""
    if TIME not in rows.table.column_names:
        return None
    newest = pc.max(rows.table[TIME]).as_py()
    return None if newest is None else str(newest.isoformat())
