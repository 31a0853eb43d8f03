"""Features that an explanation moves together, because one is computed from the other.

Between a history of the one row and the ages of the other's entries there is no sense, so that a
score of such a row explains nothing.  What the model itself computes of a feature, such as a list's
length and how often the candidate stands in it, is no input: it follows by itself.

Features of the user's or the item's past (counters, rates) are computed from its id as well.  They
stay apart: with the id they would be one group, which says nothing.
"""

from dataclasses import dataclass

from multigate.configs.contract import (
    Contract,
    IdListFeature,
    NumberFeature,
    PositionFeature,
)
from multigate.configs.sections.labels import known_alike

ENTRIES = "the history and what is known of its entries"
CATEGORY = "the category and the rates that are looked up by it"
COLUMN = "parts of one column"
LABELS = "the same past labels"


@dataclass(frozen=True)
class Group:
    """Features that move together.

    Attributes:
        features: their names, the one that the others are computed from first.
        because: why they go together; empty for a single feature.
    """

    features: tuple[str, ...]
    because: str = ""


def groups(contract: Contract) -> list[Group]:
    """The features that a signature has, in groups, in the contract's order."""
    names = [name for name, _ in contract.of_side("user", "context", "item")]
    keys = {name: _key(contract, name) for name in names}
    found: dict[tuple[str, ...], list[str]] = {}
    for name in contract.features:
        if name in keys:
            found.setdefault(keys[name], []).append(name)
    made = []
    for (kind, *rest), members in found.items():
        source = rest[0] if kind in _BECAUSE_OF_SOURCE else members[0]
        members.sort(key=lambda name: name != source)
        because = ""
        if len(members) > 1:
            because = _BECAUSE_OF_SOURCE.get(kind) or _reason(contract, members)
        made.append(Group(tuple(members), because))
    return made


_BECAUSE_OF_SOURCE = {"category": CATEGORY, "history": ENTRIES}


def _key(contract: Contract, name: str) -> tuple[str, ...]:
    """What is equal for features of one group."""
    feature = contract.features[name]
    assert not isinstance(feature, PositionFeature)
    if isinstance(feature, IdListFeature) and feature.entry is not None:
        return "history", feature.entry.of
    if isinstance(feature, IdListFeature) and feature.history is not None:
        return "history", name
    if isinstance(feature, NumberFeature) and (rule := feature.label_counter) is not None:
        if rule.category is not None:
            return "category", rule.category
        # Such tasks share a count, and it moves with the rates of all of them.
        alike = known_alike(rule.task, contract.tasks[rule.task])
        return "labels", str(rule.of), str(rule.within), *alike
    if isinstance(feature, NumberFeature) and feature.event_counter is not None:
        return "counter", name
    if name in {rule.category for rule in contract.crosses().values()}:
        return "category", name
    return "column", feature.source, feature.column or name


def _reason(contract: Contract, members: list[str]) -> str:
    return LABELS if members[0] in contract.label_counters() else COLUMN
