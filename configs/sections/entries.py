"""What is known of a history's entries: `with: [event, age, topic]` becomes lists beside it."""

from collections.abc import Mapping
from typing import Any

from multigate.configs.sections.base import contradiction
from multigate.configs.sections.features import (
    Entry,
    IdFeature,
    IdListFeature,
)

EVENT, AGE = "event", "age"
_TAKEN = ("length", "match", "present", "hash")  # suffixes of companion inputs


def entry_lists(name: str, features: Mapping[str, Any], item: str) -> dict[str, IdListFeature]:
    """The lists beside a history, by their name.

    Args:
        name: of the feature.
        features: of the contract.
        item: the feature that names the item.

    Raises:
        PydanticCustomError: `with` names something else than the event, the age or an id feature of
            the item.
    """
    feature = features[name]
    found: dict[str, IdListFeature] = {}
    if not isinstance(feature, IdListFeature) or feature.history is None:
        return found
    for what in feature.history.with_:
        keys: dict[str, Any] = {}
        if what == AGE:
            keys["dtype"] = "int"
        elif what != EVENT:
            keys["share"] = _category(name, what, features, item)
        found[f"{name}__{what}"] = IdListFeature(
            kind="id_list",
            side=feature.side,
            max_length=feature.max_length,
            entry=Entry(of=name, what=what),
            **keys,
        )
    return found


def _category(name: str, what: str, features: Mapping[str, Any], item: str) -> str:
    """The feature that owns the vocabulary of a category."""
    category = features.get(what)
    if (
        isinstance(category, IdFeature)
        and (category.side, category.dtype) == ("item", "string")
        and what not in (item, *_TAKEN)
    ):
        return category.share or what
    raise contradiction(
        f"feature {name!r}: history.with: expected some of event, age and id features of the "
        f"item (dtype string, other than {item!r}), received {what!r}"
    )
