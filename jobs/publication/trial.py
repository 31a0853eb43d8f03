"""A version on trial: begun, judged, promoted, or stopped.

    BASE/.trial/8/               the version; servers load it beside the one in production
    BASE/.trial/settings.json    its percentages of users and of calls
    BASE/.trial/verdict.json     what `multigate trial` found of it last

A rename begins a trial and a rename ends it, so that servers need neither a message nor a restart.
There is one trial at a time: of two, neither would have a side of its own to be compared with.
"""

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypedDict, cast

from multigate.configs.errors import RunError
from multigate.configs.files import write_json
from multigate.configs.version_folders import SETTINGS, TRIAL, Trial, read_trial
from multigate.jobs.publication.base_folder import Base

_VERDICT = f"{TRIAL}/verdict.json"

Guard = Literal["verdict", "loss", "feedback", "users", "sample_ratio", "fallbacks", "lost_records"]
"""What may stand in the way of a promotion; `multigate publish --accept` lets it pass."""
GUARDS: dict[Guard, str] = {
    "verdict": "there is no verdict yet",
    "loss": "a task is worse",
    "feedback": "no feedback was joined",
    "users": "too few users to tell",
    "sample_ratio": "the split is not that of the settings",
    "fallbacks": "the version in production answered for it",
    "lost_records": "calls are missing in the shadow log",
}


class Objection(TypedDict):
    """A reason not to promote a version.

    Attributes:
        guard: that finds it.
        reason: a sentence.
    """

    guard: Guard
    reason: str


class TrialVerdict(TypedDict):
    """What is known of a version on trial.

    Attributes:
        version: on trial.
        against: the version in production.
        at: when it was judged, ISO 8601.
        verdict: bless; refuse, where it is shown to be worse; or wait, where more is to be known.
        objections: why it is not blessed.
    """

    version: int
    against: int
    at: str
    verdict: Literal["bless", "refuse", "wait"]
    objections: list[Objection]


def trial_of(base: Base) -> Trial | None:
    """The trial of a base folder; None where no version is on trial.

    Raises:
        RunError: its settings are damaged.
    """
    try:
        trial = read_trial(base.root)
    except (OSError, ValueError) as error:
        raise RunError(
            f"{error}; multigate publish --version N --canary P writes them anew"
        ) from None
    return trial if trial is not None and trial.version in base.tried() else None


def begin(base: Base, version: int | None, canary: float | None, shadow: float | None) -> Trial:
    """Put a version on trial, or change the percentages of the trial.

    A version that is in production leaves it: the one before it is in production again.

    Args:
        base: the base folder.
        version: an offered or a withdrawn version; None: the one on trial.
        canary: percentage of the users; None: as it is, of a new trial 0.
        shadow: percentage of the calls; None: likewise.

    Raises:
        RunError: there is no such version, none to compare it with, or another one is on trial.
    """
    if not base.root.is_dir():
        raise RunError(f"{base.root}: no such folder; expected a model's base folder")
    with base.locked("begin a trial"):
        tried = next(iter(base.tried()), None)
        number = tried if version is None else version
        if number is None:
            raise RunError(
                f"{base.root}: no version is on trial; --version says which one to try; "
                f"{base.listing()}"
            )
        if tried not in (None, number):
            raise RunError(f"{base.root}: {base.trial_under_way()}")
        try:
            before = read_trial(base.root) or Trial(number)
        except (OSError, ValueError):
            before = Trial(number)
        if before.version != number:  # left by a trial that was killed while it ended
            before = Trial(number)
        try:
            trial = replace(
                before,
                canary=before.canary if canary is None else canary,
                shadow=before.shadow if shadow is None else shadow,
            )
        except ValueError as error:
            raise RunError(f"--{error}") from None
        if tried is None:
            _take(base, trial)
        else:
            trial.write(base.root)
        base.note("tried", number, trial.words())
    return trial


def _take(base: Base, trial: Trial) -> None:
    """Move a version to the place of the one on trial.

    The settings come first, and say nothing until the version is there: a server that looks
    meanwhile sees the version in production or on trial, and never nowhere.
    """
    number, offered, away = trial.version, base.versions(), base.withdrawn()
    found = offered.get(number) or away.get(number)
    if found is None:
        raise RunError(f"{base.root}: no version {number}; {base.listing()}")
    if not set(offered) - {number}:
        raise RunError(
            f"{base.root}: expected a version in production beside version {number}, which is to "
            f"be tried; {base.listing()}"
        )
    _forget(base)
    trial.write(base.root)
    found.rename(base.root / TRIAL / str(number))
    base.sync(base.root / TRIAL, base.withdrawn_root, base.root)


def promote(base: Base, accepted: Collection[str] = ()) -> int:
    """Put the version on trial into production, if it was found to be safe.

    Args:
        base: the base folder.
        accepted: guards whose objections do not count.

    Returns:
        The version.

    Raises:
        RunError: no version is on trial, or an objection stands.
    """
    with base.locked("promote"):
        trial = _required(base)
        number, production = trial.version, base.production()
        standing = [one for one in objections(base, trial) if one["guard"] not in accepted]
        if standing:
            guards = [one["guard"] for one in standing]
            accept = " ".join(f"--accept {guard}" for guard in dict.fromkeys(guards))
            raise RunError(
                f"{base.root}: version {number} is not shown to be safe: "
                f"{'; '.join(one['reason'] for one in standing)} "
                f"({accept} promotes it all the same)"
            )
        if production is not None and production > number:
            raise RunError(
                f"{base.root}: version {production} went into production during the trial of "
                f"version {number}, which was compared with an older one; --stop ends the trial"
            )
        (base.root / TRIAL / str(number)).rename(base.root / str(number))
        _forget(base)
        base.sync(base.root / TRIAL, base.root)
        let = f", accepted: {', '.join(sorted(accepted))}" if accepted else ""
        base.note("published", number, f"trial{let}")
    return number


def stop(base: Base, reason: str = "trial stopped") -> int:
    """Withdraw the version on trial.

    Returns:
        The version.

    Raises:
        RunError: no version is on trial.
    """
    with base.locked("stop a trial"):
        number = _required(base).version
        base.withdrawn_root.mkdir(exist_ok=True)
        (base.root / TRIAL / str(number)).rename(base.withdrawn_root / str(number))
        _forget(base)
        base.sync(base.root / TRIAL, base.withdrawn_root)
        base.note("withdrawn", number, reason)
    return number


def record(base: Base, verdict: TrialVerdict) -> None:
    """Keep a verdict for the promotion; one of a version that is not on trial is not kept."""
    with base.locked("judge a trial"):
        if verdict["version"] in base.tried():
            write_json(base.root / _VERDICT, verdict, durable=True)


def last_verdict(base: Base, trial: Trial) -> TrialVerdict | None:
    """The last verdict on the version on trial; None where there is none that can be read."""
    try:
        found = json.loads((base.root / _VERDICT).read_text(encoding="utf-8"))
        known = found["version"] == trial.version and {*found} >= {"verdict", "objections"}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return cast(TrialVerdict, found) if known else None


def objections(base: Base, trial: Trial) -> list[Objection]:
    """Why the version on trial may not be promoted; none where it is blessed."""
    verdict = last_verdict(base, trial)
    if verdict is None:
        missing: Objection = {
            "guard": "verdict",
            "reason": f"{GUARDS['verdict']}: run multigate trial",
        }
        return [missing]
    if verdict["against"] != base.production():
        changed: Objection = {
            "guard": "verdict",
            "reason": f"it was compared with version {verdict['against']}, and version "
            f"{base.production()} is in production: run multigate trial again",
        }
        return [changed]
    return verdict["objections"]


def _required(base: Base) -> Trial:
    """The trial.

    Raises:
        RunError: there is none.
    """
    number = next(iter(base.tried()), None)
    if number is None:
        raise RunError(f"{base.root}: no version is on trial; {base.listing()}")
    try:
        found = read_trial(base.root)
    except (OSError, ValueError):  # damaged settings must not prevent the end of a trial
        found = None
    return found if found is not None and found.version == number else Trial(number)


def _forget(base: Base) -> None:
    """Remove what is known of a trial that ended."""
    for name in (SETTINGS, _VERDICT):
        Path(base.root / name).unlink(missing_ok=True)
