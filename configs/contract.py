"""The contract between logs, training and serving: features, label rules and tasks.

It is written once, in YAML, and then travels as data: the pipeline writes it beside the examples,
export freezes it inside the SavedModel, and the server reads that copy only.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from multigate.configs.errors import DataError
from multigate.configs.sections.base import Frozen, contradiction, parse
from multigate.configs.sections.entries import entry_lists
from multigate.configs.sections.features import (
    AGE_EDGES,
    CROSS_COUNTS,
    CROSS_KEYS,
    CROSS_ONES,
    ENTRY_NAME,
    ID_HASH,
    LENGTH,
    MATCH,
    NAME,
    PRESENT,
    Count,
    EventCounter,
    Feature,
    History,
    IdFeature,
    IdListFeature,
    LabelCount,
    LabelCounter,
    LabelMean,
    LabelRate,
    Max,
    Mean,
    Missing,
    NumberFeature,
    PositionFeature,
    Rate,
    Side,
    Since,
    Source,
    TextFeature,
    VectorFeature,
    check_age,
    check_counter,
)
from multigate.configs.sections.labels import Task, check_tasks
from multigate.configs.sections.rates import Rates, always_one

__all__ = [
    "AGE_EDGES",
    "ID_HASH",
    "LENGTH",
    "MATCH",
    "NAME",
    "PRESENT",
    "VISIT",
    "Combine",
    "Contract",
    "Count",
    "EventCounter",
    "Feature",
    "FrozenContract",
    "History",
    "IdFeature",
    "IdListFeature",
    "LabelCount",
    "LabelCounter",
    "LabelMean",
    "LabelRate",
    "Max",
    "Mean",
    "Missing",
    "NumberFeature",
    "PositionFeature",
    "Rate",
    "Side",
    "Since",
    "Source",
    "TextFeature",
    "VectorFeature",
    "fingerprint",
]


class Combine(Frozen):
    """How task scores make one score to rank by."""

    kind: Literal["sum", "product"] = "sum"
    """`sum` of weight * score; or `product` of max(score, epsilon) ** weight."""
    epsilon: float = Field(1e-6, gt=0)
    """Lowest score that a product takes, so that no score of 0 decides alone."""


VISIT = "visit"
"""The user feature of contracts that name none."""

_VISIT = {"kind": "id", "side": "user", "missing": "default", "default": "none", "hash_buckets": 1}
"""An id that a request may leave out, and of which the model learns nothing: all share one row."""


class Contract(Frozen):
    """Features, tasks and the combined score: all that training and serving must agree on."""

    user: str = VISIT
    """The feature (an id) that names the user. Absent: the model does not learn who the user is,
    and requests need no user; the contract gets a feature `visit` for it. See docs/operations.md,
    "Logs without users"."""
    item: str
    """The feature (an id) that names the item."""
    features: dict[Annotated[str, Field(pattern=ENTRY_NAME)], Feature] = Field(min_length=2)
    tasks: dict[Annotated[str, Field(pattern=NAME)], Task] = Field(min_length=1)
    combine: Combine = Combine()
    rates: Rates | None = Field(None, exclude=True)
    """A short key for features over past labels, which it adds to `features`."""

    @model_validator(mode="before")
    @classmethod
    def _expand_user(cls, values: Any) -> Any:
        """Write the feature that stands for an absent user into `features`."""
        if not isinstance(values, dict) or "user" in values:
            return values
        features = values.get("features")
        if not isinstance(features, dict):
            return values
        if features.get(VISIT, _VISIT) != _VISIT:
            raise contradiction(
                f"feature {VISIT!r}: stands for the user where contract.user is absent; name the "
                "user's feature under contract.user, or rename this one"
            )
        return {**values, "features": {VISIT: _VISIT, **features}}

    @model_validator(mode="before")
    @classmethod
    def _expand_rates(cls, values: Any) -> Any:
        """Write the features that `rates` stands for into `features`."""
        if not isinstance(values, dict) or values.get("rates") is None:
            return values
        try:
            rates = Rates.model_validate(values["rates"])
            tasks = _TASKS.validate_python(values.get("tasks"), strict=True)
        except ValidationError:
            return values  # the fields' own validation says what is wrong, and where
        features = values.get("features")
        if not isinstance(features, dict):
            return values
        made = rates.features(tasks)
        for name in made:
            if name in features:
                raise contradiction(
                    f"rates: makes a feature {name!r}, and features has one of that name; rename "
                    "it, or leave its task out of rates.tasks"
                )
        return {**values, "features": {**features, **made}, "rates": None}

    @model_validator(mode="before")
    @classmethod
    def _expand_entries(cls, values: Any) -> Any:
        """Write the lists that `history.with` stands for into `features`."""
        if not isinstance(values, dict) or not isinstance(values.get("features"), dict):
            return values
        try:
            features = _FEATURES.validate_python(values["features"], strict=True)
        except ValidationError:
            return values  # the fields' own validation says what is wrong, and where
        expanded: dict[str, Any] = {}
        for name, feature in values["features"].items():
            if "__" not in name:
                expanded[name] = feature
                expanded |= entry_lists(name, features, str(values.get("item")))
        for name in features:
            if "__" in name and features[name] != expanded.get(name):
                raise contradiction(
                    f"feature {name!r}: two underscores in a row are for the lists that "
                    "history.with makes; choose another name"
                )
        return {**values, "features": expanded}

    @field_validator("tasks")
    @classmethod
    def _check_tasks(cls, tasks: dict[str, Task]) -> dict[str, Task]:
        check_tasks(tasks)
        return tasks

    @model_validator(mode="after")
    def _check_features(self) -> "Contract":
        for role, side in (("user", "user"), ("item", "item")):
            name = getattr(self, role)
            feature = self.features.get(name)
            if not isinstance(feature, IdFeature) or feature.side != side:
                raise contradiction(
                    f"{role}: expected the name of an id feature of side {side!r}, "
                    f"received {name!r}"
                )
            if feature.pattern is not None:
                raise contradiction(
                    f"feature {name!r}: pattern: the {role}'s id is taken as it stands; received "
                    f"{feature.pattern!r}"
                )
        for name, feature in self.features.items():
            if name in {"score", "self", "task_weights", "user_index"} or name in self.tasks:
                raise contradiction(
                    f"feature {name!r}: this name is taken by a task or by the signature"
                )
            if isinstance(feature, IdFeature | IdListFeature):
                self._check_id(name, feature)
            elif isinstance(feature, NumberFeature):
                check_counter(name, feature)
                check_age(name, feature)
                self._check_label_counter(name, feature)
        places = [repr(n) for n, f in self.features.items() if isinstance(f, PositionFeature)]
        if len(places) > 1:
            raise contradiction(
                f"features: expected one position feature, received {', '.join(places)}"
            )
        return self

    def _check_label_counter(self, name: str, feature: NumberFeature) -> None:
        """Check the task that a feature over past labels names."""
        rule = feature.label_counter
        if rule is None:
            return
        task = self.tasks.get(rule.task)
        if task is None:
            raise contradiction(
                f"feature {name!r}: task: expected one of {', '.join(self.tasks)}; received "
                f"{rule.task!r}"
            )
        self._check_cross(name, feature, rule)
        wanted = {"label_rate": "binary", "label_mean": "regression"}
        for key, kind in wanted.items():
            if getattr(feature, key) is not None and task.type != kind:
                other = "label_mean" if key == "label_rate" else "label_rate"
                raise contradiction(
                    f"feature {name!r}: {key} needs a {kind} task; {rule.task!r} is a "
                    f"{task.type} task; use {other}"
                )
        if feature.label_rate is not None and always_one(task):
            raise contradiction(
                f"feature {name!r}: every logged impression's label {rule.task!r} is 1 (rule "
                "impression), and so is its rate; use label_count"
            )
        prior = None if feature.label_rate is None else feature.label_rate.prior
        if prior is not None and not 0 <= prior <= 1:
            raise contradiction(
                f"feature {name!r}: prior: expected a rate from 0 to 1, received {prior:g}"
            )

    def _check_cross(self, name: str, feature: NumberFeature, rule: LabelCounter) -> None:
        """Check the category of a feature over the user's labels by category."""
        if rule.category is None:
            if rule.last is not None:
                raise contradiction(
                    f"feature {name!r}: last is for categories, of: [user, topic]; received of: "
                    f"{rule.of}"
                )
            return
        category = self.features.get(rule.category)
        wrong = not isinstance(category, IdFeature) or category.side == "user"
        if isinstance(category, IdListFeature):
            raise contradiction(
                f"feature {name!r}: of: {rule.category!r} is a list, and a rate has one category: "
                f"derive a column that holds the first one, {{first: "
                f"{category.column or rule.category}, separator: '{category.separator}'}}, and "
                "name an id feature of it"
            )
        if wrong or rule.category == self.item:
            raise contradiction(
                f"feature {name!r}: of: expected the user and an id feature of the item or the "
                f"context other than {self.item!r}, received {rule.category!r}"
            )
        if feature.label_mean is not None:
            raise contradiction(
                f"feature {name!r}: label_mean takes of: user or of: item; received of: "
                f"[{', '.join(rule.of)}]; use label_rate of a binary task, such as one with "
                "at_least"
            )

    def _check_id(self, name: str, feature: IdFeature | IdListFeature) -> None:
        """Check what one id or id_list feature says against the others."""
        if feature.share is not None:
            if feature.max_age is not None:
                raise contradiction(
                    f"feature {name!r}: max_age: expected none where the vocabulary is that of "
                    f"{feature.share!r}; write max_age there"
                )
            other = self.features.get(feature.share)
            if not isinstance(other, IdFeature | IdListFeature) or other.share is not None:
                raise contradiction(
                    f"feature {name!r}: share: expected the name of an id feature that shares "
                    f"none itself, received {feature.share!r}"
                )
            if other.dtype != feature.dtype:
                raise contradiction(
                    f"feature {name!r}: dtype {feature.dtype!r} differs from that of "
                    f"{feature.share!r} ({other.dtype!r}), whose vocabulary it shares"
                )
        if isinstance(feature, IdListFeature):
            if feature.pooling == "attention" and name not in self.matches():
                raise contradiction(
                    f"feature {name!r}: pooling: attention compares the list with the candidate; "
                    "expected a list of the user or the context that shares the vocabulary of a "
                    f"feature of the item, such as share: {self.item}, received side "
                    f"{feature.side!r} and share: {feature.share or 'none'}; share it, or choose "
                    "another pooling"
                )
            if feature.entry is not None and "__" not in name:
                raise contradiction(
                    f"feature {name!r}: entry is set by history.with of another list; leave it out"
                )
            if feature.history is not None and feature.side != "user":
                raise contradiction(
                    f"feature {name!r}: a history belongs to the user, received side "
                    f"{feature.side!r}"
                )
            item = self.features[self.item]
            if feature.history is not None and feature.dtype != getattr(item, "dtype", None):
                raise contradiction(
                    f"feature {name!r}: a history holds items; its dtype must be that of "
                    f"{self.item!r}"
                )
        elif feature.missing == "default":
            wanted = str if feature.dtype == "string" else int
            if not isinstance(feature.default, wanted):
                raise contradiction(
                    f"feature {name!r}: missing: default needs a default of type "
                    f"{feature.dtype}, received {feature.default!r}"
                )
        elif feature.default is not None:
            raise contradiction(
                f"feature {name!r}: default is read under missing: default only, "
                f"received missing: {feature.missing}"
            )

    def of_side(self, *sides: Side) -> Iterator[tuple[str, Any]]:
        """Names and features of these sides, position features left out."""
        for name, feature in self.features.items():
            if feature.side in sides and not isinstance(feature, PositionFeature):
                yield name, feature

    @property
    def position(self) -> str | None:
        """Name of the position feature, if there is one."""
        names = [n for n, f in self.features.items() if isinstance(f, PositionFeature)]
        return names[0] if names else None

    def vocabulary_of(self, name: str) -> str:
        """The feature whose vocabulary and embedding feature `name` uses: itself, or its share."""
        return getattr(self.features[name], "share", None) or name

    def entries_of(self, name: str) -> dict[str, str]:
        """What is known of each entry of a history (`event`, `age`, ...) -> the list of it."""
        return {
            feature.entry.what: other
            for other, feature in self.features.items()
            if isinstance(feature, IdListFeature)
            and feature.entry is not None
            and feature.entry.of == name
        }

    def unknown_codes(self, name: str) -> int | None:
        """The n of the codes 1 .. n of a feature's unknown ids; None if it uses no vocabulary."""
        feature = self.features[name]
        if not _is_id(feature) or (isinstance(feature, IdListFeature) and feature.is_age):
            return None
        owner: Any = self.features[self.vocabulary_of(name)]
        return owner.oov_buckets if owner.hash_buckets is None else None

    def matches(self) -> dict[str, list[str]]:
        """Lists of the user or the context -> the item's features that share their vocabulary.

        Such a list may hold the candidate itself: the items that a user liked hold the item, the
        topics that a user reads hold the item's topic.
        """
        items = {name: self.vocabulary_of(name) for name, f in self.of_side("item") if _is_id(f)}
        found = {
            name: [item for item, owner in items.items() if owner == self.vocabulary_of(name)]
            for name, feature in self.of_side("user", "context")
            if isinstance(feature, IdListFeature)
        }
        return {name: shared for name, shared in found.items() if shared}

    def computed_events(self) -> dict[str, tuple[str, ...]]:
        """The events that histories and counters read, by the key that names them."""
        found = {}
        for name, feature in self.features.items():
            if isinstance(feature, IdListFeature) and feature.history is not None:
                found[f"{name}.history.events"] = feature.history.events
            if isinstance(feature, NumberFeature) and feature.event_counter is not None:
                kind = type(feature.event_counter).__name__.lower()
                found[f"{name}.{kind}.events"] = feature.event_counter.events
                if feature.rate is not None:
                    found[f"{name}.rate.per"] = feature.rate.per
        return found

    def tasks_in_order(self) -> list[str]:
        """Task names, each after the tasks that it refers to by `without`, `when` and `given`."""
        order: list[str] = []

        def visit(name: str) -> None:
            task = self.tasks[name]
            for other in (task.without, task.when, task.given):
                if other is not None and other not in order:
                    visit(other)
            if name not in order:
                order.append(name)

        for name in self.tasks:
            visit(name)
        return order

    def binary_tasks(self) -> list[str]:
        """The tasks whose labels are 0 or 1, in the contract's order."""
        return [name for name, task in self.tasks.items() if task.type == "binary"]

    def label_counters(self) -> dict[str, LabelCounter]:
        """The features that are computed from past labels."""
        return {
            name: feature.label_counter
            for name, feature in self.features.items()
            if isinstance(feature, NumberFeature) and feature.label_counter is not None
        }

    def crosses(self) -> dict[str, LabelCounter]:
        """The features that are computed from the user's past labels by category."""
        rules = self.label_counters()
        return {name: rule for name, rule in rules.items() if rule.category is not None}

    def cross_lists(self) -> dict[str, IdListFeature]:
        """The lists that a snapshot's users hold for `crosses`: by feature and suffix.

        The user's categories, least recent first, and for each its labels that are 1 (of a rate)
        and all its labels.
        """
        found = {}
        for name, rule in self.crosses().items():
            category = self.features[str(rule.category)]
            kinds: dict[str, Any] = {CROSS_KEYS: getattr(category, "dtype", "string")}
            kinds |= {} if isinstance(rule, LabelCount) else {CROSS_ONES: "int"}
            for suffix, dtype in (kinds | {CROSS_COUNTS: "int"}).items():
                found[name + suffix] = IdListFeature(
                    kind="id_list", side="user", dtype=dtype, max_length=rule.most
                )
        return found

    def depends_on(self, task: str) -> set[str]:
        """A task, and the tasks that its label refers to by `without` and `when`, and so on."""
        found, left = set[str](), [task]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                others = (self.tasks[name].without, self.tasks[name].when)
                left += [other for other in others if other is not None]
        return found

    def schema_fingerprint(self) -> str:
        """Fingerprint of `schema_values`."""
        return fingerprint(self.schema_values())

    def schema_values(self) -> dict[str, Any]:
        """What must not change between versions that replace one another, as JSON values.

        It covers features, labels and tasks; losses, their weights and those of scores may change,
        and so may the pooling of lists and `max_age`, which examples and requests do not depend on.
        Keys that have their default are left out, so that a new option of the product does not
        change the fingerprint of models that already serve.
        """
        values = self.model_dump(mode="json", exclude={"combine"}, exclude_defaults=True)
        for task in values["tasks"].values():
            task.pop("weight", None)
            task.pop("score_weight", None)
            task.pop("loss", None)
        for feature in values["features"].values():
            feature.pop("pooling", None)
            feature.pop("max_age", None)
        return dict(values)


def _is_id(feature: Any) -> bool:
    return isinstance(feature, IdFeature | IdListFeature)


_TASKS = TypeAdapter(dict[str, Task])
_FEATURES = TypeAdapter(dict[str, Feature])


class FrozenContract(Frozen):
    """A contract as it travels with data: `contract.json`, with both fingerprints."""

    contract: Contract
    schema_fingerprint: str
    """Of features, labels and tasks; the same from night to night."""
    data_fingerprint: str
    """Of vocabularies and statistics; examples and checkpoint must agree on it."""

    @classmethod
    def read(cls, path: Path) -> "FrozenContract":
        """Read a `contract.json` and check its schema fingerprint.

        Raises:
            DataError: the file is missing, or was changed after it was written.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(f"{path}: no contract here; was the folder written whole?") from None
        except ValueError as error:
            raise DataError(f"{path}: not valid JSON: {error}") from None
        frozen = parse(cls, values, str(path))
        actual = frozen.contract.schema_fingerprint()
        if actual != frozen.schema_fingerprint:
            raise DataError(
                f"{path}: schema fingerprint: expected {frozen.schema_fingerprint}, the contract "
                f"in the file has {actual}: it was edited by hand, or another version of multigate "
                "wrote it; make it again"
            )
        return frozen


def fingerprint(values: Any) -> str:
    """First 16 hex digits of the SHA-256 of canonical JSON."""
    return _digits(hashlib.sha256(_canonical(values).encode()))


def fingerprint_of_list(parts: Iterable[list[Any]]) -> str:
    """The `fingerprint` of a list that comes in parts."""
    found = hashlib.sha256(b"[")
    between = ""
    for part in parts:
        if part:
            found.update((between + _canonical(part)[1:-1]).encode())
            between = ","
    found.update(b"]")
    return _digits(found)


def _canonical(values: Any) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _digits(found: Any) -> str:
    return str(found.hexdigest()[:16])
