"""The verdict on a version on trial, which `multigate publish --promote` obeys.

A version is blessed where it is shown to be safe. Each outcome of the canary's users is a
comparison with a loss d, its standard error s and a bound b. With n what is negligible and z_k the
normal quantile of 1 - 0.025 / k over k comparisons,

    d - z_k * s > n      refused: shown beyond chance to be worse
    d + 1.96 * s > b     to wait: the loss may be beyond the bound
    otherwise            safe

AUC, RMSE and pinball loss on the same rows, which the shadow gives, refuse likewise, but bless
nothing, so that they have no bound: see `jobs.trial.measures`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import NormalDist
from typing import Literal, TypedDict

from multigate.configs import progress
from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.errors import RunError
from multigate.configs.sections.evaluation import EvaluationConfig, Rules
from multigate.jobs.publication.base_folder import Base
from multigate.jobs.publication.trial import Objection, TrialVerdict, record, trial_of
from multigate.jobs.trial.measures import (
    CanaryMeasures,
    Pair,
    ShadowMeasures,
    canary_measures,
    shadow_measures,
)
from multigate.jobs.trial.records import read_records
from multigate.model.evaluation.measures.bootstrap import Interval, limits
from multigate.model.evaluation.measures.names import title
from multigate.serving.observe.side import STABLE
from multigate.serving.versions.folders import CONTRACT

_LEVEL = 0.025  # one-sided, of all comparisons together
_WIDTH = NormalDist().inv_cdf(0.975)
_UNLIKELY = 0.001  # of a share of users, if the split is right
_MOST_FALLBACKS = 0.01  # of the canary's calls
_MOST_LOST = 0.01  # of the shadow's calls


class Judged(TrialVerdict):
    """A verdict with its reasons.

    Attributes:
        settings: percentages of users (canary) and calls (shadow).
        impressions: rows of the impression log.
        labelled: tasks with labels.
        canary: the two groups of users; None where there are not both.
        shadow: the calls that both versions scored; None where none was due.
    """

    settings: dict[str, float]
    impressions: int
    labelled: list[str]
    canary: CanaryMeasures | None
    shadow: ShadowMeasures | None


class _Loss(TypedDict):
    """A comparison that is judged.

    Attributes:
        what: the task, in words.
        pair: its measures.
        sign: 1 where more is better, -1 where less is.
    """

    what: str
    pair: Pair
    sign: int


@progress.stepwise("trial", 3)
def judge(
    base: Base,
    logs: Sequence[Path],
    examples: Path | None,
    options: EvaluationConfig | None = None,
    settle: timedelta = timedelta(seconds=120),
) -> Judged:
    """Judge the version on trial, and keep the verdict in the base folder.

    Args:
        base: the base folder.
        logs: folders of the model in impression logs.
        examples: made from these logs and the feedback; None: no outcomes are known.
        options: rules, resamples and seed; the defaults where None.
        settle: calls younger than this are left out.

    Raises:
        RunError: no version is on trial, or none is in production.
        DataError: the logs have no rows of it, or the examples cannot be joined.
    """
    options = options or EvaluationConfig()
    trial, production = trial_of(base), base.production()
    if trial is None or production is None:
        raise RunError(
            f"{base.root}: no version is on trial; multigate publish --version N --canary P tries "
            f"one; {base.listing()}"
        )
    contract = FrozenContract.read(trial.folder(base.root) / CONTRACT).contract
    progress.step("impression log")
    records = read_records(logs, examples, contract, trial, production, settle)
    draws = options.replicates, options.seed
    progress.step("the canary's users")
    canary = canary_measures(records, contract, trial.canary, trial.version, draws)
    progress.step("the shadow's scores")
    shadow = shadow_measures(records, contract, trial.version, draws)
    verdict, objections = decide(canary, shadow, contract, options.rules, bool(records.labelled))
    found: Judged = {
        "version": trial.version,
        "against": production,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "verdict": verdict,
        "objections": objections,
        "settings": {"canary": trial.canary, "shadow": trial.shadow},
        "impressions": len(records.shown),
        "labelled": records.labelled,
        "canary": canary,
        "shadow": shadow,
    }
    record(base, found)
    return found


def decide(
    canary: CanaryMeasures | None,
    shadow: ShadowMeasures | None,
    contract: Contract,
    rules: Rules,
    labelled: bool,
) -> tuple[Literal["bless", "refuse", "wait"], list[Objection]]:
    """The verdict, and why a version is not blessed.

    Args:
        canary: the two groups of users.
        shadow: the calls that both versions scored.
        contract: says whether more of a label is better: its weight in the score is positive.
        rules: the bounds.
        labelled: whether feedback was joined.
    """
    outcomes = _outcomes(canary, contract)
    same_rows = _same_rows(shadow) if canary is None else []
    judged = outcomes + same_rows
    worse = [said for one in judged if (said := _shown_worse(one, rules, len(judged)))]
    found: list[Objection] = [{"guard": "loss", "reason": said} for said in worse]
    unclear = [said for one in outcomes if not worse and (said := _unclear(one, rules))]
    found += [{"guard": "users", "reason": said} for said in unclear]
    if canary is None:
        found.append(
            {
                "guard": "users",
                "reason": "it answered no users beside those of production, so that nothing is "
                "known of what they do (publish --canary PERCENT)",
            }
        )
    elif not labelled:
        found.append(
            {
                "guard": "feedback",
                "reason": "no label is known of what was shown (multigate trial --examples)",
            }
        )
    found += _faults(canary, shadow)
    if worse:
        return "refuse", found
    return ("wait" if found else "bless"), found


def _faults(canary: CanaryMeasures | None, shadow: ShadowMeasures | None) -> list[Objection]:
    """What makes the comparison itself doubtful."""
    found: list[Objection] = []
    if canary is not None and canary["chance"] < _UNLIKELY:
        found.append(
            {
                "guard": "sample_ratio",
                "reason": f"{100 * canary['share']:.1f} % of the users are the canary's, where "
                f"{100 * canary['expected']:g} % are expected: users of one side are lost, so that "
                "the sides are not alike",
            }
        )
    if canary is not None and canary["fallbacks"] > _MOST_FALLBACKS:
        found.append(
            {
                "guard": "fallbacks",
                "reason": f"{100 * canary['fallbacks']:.1f} % of the canary's calls were answered "
                "by the version in production; see the server's log",
            }
        )
    if shadow is not None and shadow["lost"] > _MOST_LOST:
        found.append(
            {
                "guard": "lost_records",
                "reason": f"{100 * shadow['lost']:.1f} % of the {shadow['due']:,} calls that both "
                "versions were to score are not in the shadow log; lower --shadow, or see the "
                "server's log",
            }
        )
    return found


def _outcomes(canary: CanaryMeasures | None, contract: Contract) -> list[_Loss]:
    """The outcomes of the canary's users; a task without weight says nothing of good or bad."""
    found: list[_Loss] = []
    for name, outcome in canary["tasks"].items() if canary is not None else ():
        weight = contract.tasks[name].score_weight
        if weight:
            found.append(
                {
                    "what": f"{name}: {outcome['label']['metric']} of the label per item shown",
                    "pair": outcome["label"],
                    "sign": 1 if weight > 0 else -1,
                }
            )
    return found


def _same_rows(shadow: ShadowMeasures | None) -> list[_Loss]:
    """The measures on rows that production chose, which favour the version on trial."""
    rows = None if shadow is None else shadow["chosen_by"].get(STABLE)
    return [
        {
            "what": f"{name}: {title(pair['metric'])} on the rows that production chose",
            "pair": pair,
            "sign": -1 if pair["relative"] else 1,
        }
        for name, pair in (rows["tasks"].items() if rows is not None else ())
    ]


def _shown_worse(one: _Loss, rules: Rules, comparisons: int) -> str | None:
    difference = one["pair"]["difference"]
    if difference["value"] is None or difference["error"] is None:
        return None
    quantile = NormalDist().inv_cdf(1 - _LEVEL / comparisons)
    loss = -one["sign"] * difference["value"]
    if loss - quantile * difference["error"] <= rules.negligible_loss:
        return None
    return f"{one['what']} is worse beyond chance: {in_words(one['pair'])}"


def _unclear(one: _Loss, rules: Rules) -> str | None:
    bound = rules.largest_outcome_loss
    difference = one["pair"]["difference"]
    if difference["value"] is None or difference["error"] is None:
        return f"{one['what']}: too few users or labels for an interval"
    loss = -one["sign"] * difference["value"]
    if loss + _WIDTH * difference["error"] <= bound:
        return None
    return (
        f"{one['what']} may be worse: {in_words(one['pair'])}; {100 * bound:g} % is allowed "
        "(evaluation.rules.largest_outcome_loss); more users would tell"
    )


def in_words(pair: Pair) -> str:
    """A difference with its interval."""

    def text(value: float) -> str:
        return f"{100 * value:+.2f} %" if pair["relative"] else f"{value:+.4f}"

    difference: Interval = pair["difference"]
    if difference["value"] is None:
        return "not known"
    ends = limits(difference)
    within = "" if ends is None else f" (95 % interval {text(ends[0])} to {text(ends[1])})"
    return f"{text(difference['value'])}{within}"
