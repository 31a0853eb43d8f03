"""Which losses against production refuse a candidate.

With d the loss, s the standard error of the paired difference, b the bound, n what is negligible
and z_k the normal quantile of 1 - 0.025 / k over k comparisons, `judge: shown` refuses where

    d > b                 beyond the bound, shown or not
    d - z_k * s > n       shown beyond chance

Many measures are compared in one verdict, and some are worse by chance. z_k (Bonferroni) limits the
chance that any one of them refuses an equal model to 0.025. To find any loss at all, Holm's
procedure is the same. The normal interval replaces the percentiles because 500 resamples hold two
or three beyond z_9.

The first rule needs s <= b / 3. Then chance takes an equal model beyond the bound in one comparison
of 740, and a model that is worse by 2 * b stays within it as rarely. `too_few_rows` names the
comparisons for which the test split is too small for that.
"""

import math
from statistics import NormalDist
from typing import NamedTuple

from multigate.configs.sections.evaluation import Rules, TaskRules
from multigate.model.evaluation.measures.bootstrap import limits
from multigate.model.evaluation.paired import RELATIVE, in_words
from multigate.model.evaluation.results import Compared, Differences, compared_tasks

_LEVEL = 0.025  # one-sided, of all comparisons together
_ERRORS = 3  # standard errors that a bound must span
_ROUNDING = 1e-12  # by which equal models may differ


class Bounded(NamedTuple):
    """A comparison whose loss is judged.

    Attributes:
        name: of the task, or "ranking".
        rows: of the test split that take part.
        found: the measure of both models.
        bound: of the loss.
        key: of the configuration that holds the bound.
    """

    name: str
    rows: int
    found: Compared
    bound: float
    key: str

    @property
    def loss(self) -> float:
        """By how much the candidate is worse; negative where it is better."""
        value = (self.found["difference"] or {"value": None})["value"]
        assert value is not None  # `bounded` leaves the others out
        return value if self.found["metric"] in RELATIVE else -value

    @property
    def error(self) -> float | None:
        """Standard error of the difference; None where there are too few users for one."""
        return None if self.found["difference"] is None else self.found["difference"]["error"]

    @property
    def rows_needed(self) -> int | None:
        """Rows for a standard error of a third of the bound, to two digits; None where unknown.

        A standard error falls with the root of the number of rows.
        """
        if self.error is None or self.bound == 0:
            return None
        rows = self.rows * (_ERRORS * self.error / self.bound) ** 2
        digit = 10.0 ** max(math.floor(math.log10(max(rows, 1))) - 1, 0)
        return int(math.ceil(rows / digit) * digit)

    @property
    def unclear(self) -> bool:
        """Whether chance alone can be beyond the bound."""
        return self.error is None or _ERRORS * self.error > self.bound

    def share(self, value: float) -> str:
        """A loss in the measure's units."""
        return f"{100 * value:.2g} %" if self.found["metric"] in RELATIVE else f"{value:.2g}"


def of_task(rules: Rules, task: str, name: str) -> tuple[float, str]:
    """A task's own value of a rule, or that of all tasks, and the configuration's key of it."""
    own = getattr(rules.tasks.get(task, TaskRules()), name)
    if own is not None:
        return own, f"evaluation.rules.tasks.{task}.{name}"
    return getattr(rules, name), f"evaluation.rules.{name}"


def bounded(found: Differences, rules: Rules) -> list[Bounded]:
    """The comparisons with production whose loss is judged."""
    judged = []
    for name, task in compared_tasks(found):
        bound, key = of_task(rules, name, "largest_loss")
        judged.append(Bounded(name, task["rows"], task, bound, key))
    ranked, bound_of_ranking = found["ranking"], rules.largest_ranking_loss
    if ranked is not None and bound_of_ranking is not None:
        key = "evaluation.rules.largest_ranking_loss"
        judged.append(Bounded("ranking", ranked["rows"], ranked, bound_of_ranking, key))
    return [
        one
        for one in judged
        if one.found["difference"] is not None and one.found["difference"]["value"] is not None
    ]


def normal_quantile(comparisons: int) -> float:
    """z_k: standard errors beyond which something is shown, over so many comparisons."""
    return NormalDist().inv_cdf(1 - _LEVEL / comparisons)


def losses(found: Differences, rules: Rules) -> list[str]:
    """The losses that refuse the candidate, a sentence each."""
    judged, said = bounded(found, rules), []
    for one in judged:
        sentence = _unproven(one) if rules.judge == "interval" else _beyond(one)
        if sentence is None and rules.judge == "shown":
            sentence = _shown(one, rules, len(judged))
        if sentence is not None:
            said.append(sentence)
    return said


def too_few_rows(found: Differences, rules: Rules) -> str | None:
    """A sentence about the comparisons that could not see a loss of twice their bound.

    Returns:
        None where every comparison could, or none was made.
    """
    judged = [
        one
        for one in bounded(found, rules)
        if one.bound > 0 and one.unclear and not one.found["wins"]
    ]
    if not judged or rules.judge == "interval":
        return None
    parts = []
    for one in judged:
        if one.error is None:
            parts.append(f"{one.name} (too few users for an interval)")
            continue
        known = f"known to within {one.share(1.96 * one.error)}"
        needed = "" if one.rows_needed is None else f", about {one.rows_needed:,} needed"
        parts.append(f"{one.name} ({known} with {one.rows:,} rows{needed})")
    return (
        f"Too few test rows to tell a loss of twice the bound from chance: {', '.join(parts)}; a "
        "larger test split, or a larger bound, would tell."
    )


def not_compared(found: Differences) -> str | None:
    """A sentence about the candidate's tasks that no measure compares with production's.

    Returns:
        None where every task is compared, or nothing is in production.
    """
    names = []
    for name, task in compared_tasks(found):
        value = None if task["difference"] is None else task["difference"]["value"]
        if task["production"] is not None and value is None:
            names.append(f"{name} ({task['rows']:,} rows with a label)")
    if not names:
        return None
    return f"Not compared, for lack of labels in the test split: {', '.join(names)}."


def _beyond(one: Bounded) -> str | None:
    """The loss is beyond the bound."""
    if one.loss <= one.bound + _ROUNDING:
        return None
    text = f"{one.name}: the candidate is worse: {in_words(one.found)}; {_allowed(one)}."
    if not one.unclear:
        return text
    needed = "" if one.rows_needed is None else f"; about {one.rows_needed:,} would tell"
    return f"{text} With {one.rows:,} test rows this may be chance{needed}."


def _shown(one: Bounded, rules: Rules, comparisons: int) -> str | None:
    """The loss is shown beyond chance to be more than negligible."""
    if one.error is None:
        return None
    if one.loss - normal_quantile(comparisons) * one.error <= rules.negligible_loss + _ROUNDING:
        return None
    count = f"{comparisons} comparisons" if comparisons > 1 else "1 comparison"
    return (
        f"{one.name}: the candidate is worse beyond chance: {in_words(one.found)}, shown over "
        f"{count} to be more than the {one.share(rules.negligible_loss)} that is negligible "
        "(evaluation.rules.negligible_loss)."
    )


def _unproven(one: Bounded) -> str | None:
    """The worse end of the interval is beyond the bound."""
    ends = limits(one.found["difference"])
    if ends is None:
        return (
            f"{one.name}: too few users for an interval of the difference, which is judged "
            "(evaluation.rules.judge)."
        )
    worst = ends[1] if one.found["metric"] in RELATIVE else -ends[0]
    if worst <= one.bound + _ROUNDING:
        return None
    return f"{one.name}: the candidate may be worse: {in_words(one.found)}; {_allowed(one)}."


def _allowed(one: Bounded) -> str:
    allowed = f"{100 * one.bound:g} %" if one.found["metric"] in RELATIVE else f"{one.bound:g}"
    return f"{allowed} is allowed ({one.key})"
