"""The tasks of a draft, and what their modules share: names, scales, thresholds."""

import re
from dataclasses import dataclass, field
from typing import Any
from unicodedata import combining, normalize

from multigate.configs.contract import VISIT
from multigate.jobs.onboarding.tables.columns import Column

SATISFIED = (
    r"like|love|fav|bookmark|rat(e|ing)|follow|comment|subscrib|star|vote|thumb|save|"
    r"review|satisf|zufried|csat"
)
_AVERSE = {
    "English": r"dis|hide|hidden|report|block|skip|unfollow|unlike|negative|spam|return|refund|"
    r"cancel|reject|ignore|(?<!w)hate|not_?interest|uninterest|downvote|thumbs?_?down|mute",
    "German": r"(?<!an)gemeldet|verberg|verborgen|ausgeblendet|bersprung|berspring|blockiert|"
    r"storn|retour|abgelehnt|kein_?interesse|entfolg",
    "French": r"signale|masqu|bloqu|annul|rejet|pas_?interess",
    "Spanish, Portuguese": r"denunci|denúnci|ocult|bloque|cancela|devol|rechaz|rejeit|descart|"
    r"no_?me_?gusta|no_?interesa|não_?gost",
    "Italian": r"nascond|nascost|segnala|bloccat|annulla|rifiut",
}
AVERSE = "|".join(_AVERSE.values())
"""Words for what is unwelcome; of types and flags with ratings beside them, those say it, too."""
OUTCOME = (
    r"watch|dwell|conver(t|sion)|purchas|bought|click|played|listen|heard|complet|finish|progress|"
    r"spent|scroll|viewed|outcome|reaction|engage|(^|[^a-z])read(ing)?([^a-z]|$)"
)
"""Words for what is measured afterwards, which decide only what the values leave open."""
DONE = rf"({SATISFIED}|shar|repl[yi]|repost|{OUTCOME})"
"""Words for what users do."""
COUNTED = rf"{DONE}\w*(count|cnt|num|times)|(^|_)(n|nr|num|number|count|cnt)_(of_)?{DONE}"
"""Names of counts of what users do; of the past, or measured afterwards."""
FEWEST = 30  # positives that a task needs
DELAYS = (
    *(("10m", 600), ("1h", 3600), ("6h", 21_600), ("1d", 86_400)),
    *(("3d", 259_200), ("7d", 604_800), ("14d", 1_209_600), ("30d", 2_592_000)),
)
WINDOW = 0.1  # of the log's time: a tenth is for testing, whose last labels stay open
SMALL = 12
TOPS = (1, 10, 100)
"""The ends of scales of many steps, such as percents."""
_AT_THE_END = 0.05  # of the values
_SCALES = r"rating|review|satisf|zufried|csat|stars|vote"  # a rate may be of anything
DECIDED = 0.95
UNSCORED = 0.2
"""Weight of the loss of a number that the combined score does not read."""
_RESERVED = ("score", "self", "task_weights", "user_index", VISIT)


@dataclass
class Labels:
    """The tasks of a draft."""

    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    columns: set[str] = field(default_factory=set)
    """The columns that hold feedback, which no feature may read."""
    position: str | None = None
    events: dict[str, str] = field(default_factory=dict)
    """Task -> the event type, or the 0/1 column, that is its label."""
    wait: str = "10m"
    """After how long a row's feedback is complete."""
    shown_only: bool = False
    """Whether what was shown and not taken is missing from the log."""
    afterwards: dict[str, str] = field(default_factory=dict)
    """Column that no task reads, and why it can be known only afterwards."""
    no_task: dict[str, str] = field(default_factory=dict)
    """Event types without a task, and why."""
    of_items: list[str] = field(default_factory=list)
    """Tasks of numbers that the item decides, such as the price of an order."""
    value: str | None = None
    """Of an event log: the column of the events' numbers, such as seconds read."""


def snake(text: str, taken: Any = ()) -> str:
    """A name as features and tasks have it: `eventType` -> `event_type`; none that is taken."""
    # A letter and its marks are separate characters of this form: ö is o, and not a gap.
    plain = "".join(one for one in normalize("NFKD", text) if not combining(one))
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", plain).lower().replace("ß", "ss")
    name = re.sub(r"[^a-z0-9]+", "_", name).strip("_")
    name = re.sub(r"_+", "_", name) or "column"
    if not name[0].isalpha():
        name = f"c_{name}"
    free, at = name, 2
    while free in taken or free in _RESERVED:
        free, at = f"{name}_{at}", at + 1
    return free


def is_scale(column: Column, kind: str = "") -> bool:
    """Whether numbers are a scale of satisfaction up to 10 or 100, as a name says.

    Shares and prices have such values as well.

    Args:
        column: of many steps.
        kind: the event type that its values belong to.
    """
    if column.number is None or column.distinct <= SMALL:
        return False
    is_named = re.search(_SCALES, column.name.lower()) or re.search(SATISFIED, kind.lower())
    return is_named is not None and column.lowest >= 0 and column.highest in TOPS[1:]


def has_an_end(column: Column) -> bool:
    """Whether many numbers are the highest one, as of shares in percent, which nobody adds up."""
    number = column.number
    if number is None or column.distinct <= SMALL:
        return False
    return float((number == column.highest).mean() or 0.0) > _AT_THE_END


def is_bounded(column: Column) -> bool:
    """Whether numbers of many values end at 1, 10 or 100, and many reach it."""
    return has_an_end(column) and column.highest in TOPS and column.lowest >= 0


def may_rate(column: Column) -> str:
    """What to do about such numbers, whose values do not say what they are."""
    return (
        f"; many of its values are {column.highest:g}, as of a percent or a scale: if it is a "
        "rating, its group is satisfaction"
    )


def is_small(column: Column) -> bool:
    """Whether values are few steps of one scale, such as stars."""
    if column.number is None or column.flag or not 3 <= column.distinct <= SMALL:
        return False
    numbers = column.number.drop_nulls()
    halves = bool((numbers * 2 % 1 == 0).all())
    if float((numbers == column.lowest).mean() or 0.0) > 0.6:
        return False  # a count of something rare
    return halves and column.highest - column.lowest <= 10
