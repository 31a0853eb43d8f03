"""The contract between logs, training and serving: features, label rules and tasks.

It is written once in YAML and from then on travels as data: the pipeline writes it beside the
examples, export freezes it inside the SavedModel, the server reads that copy only.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from configs.base import Duration, Frozen, contradiction, parse
from configs.errors import DataError
from configs.labels import Task, check_tasks

Side = Literal["user", "item", "context"]
Missing = Literal["error", "default", "indicator"]
Source = Literal["log", "users", "items"]

NAME = r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$"
"""Names of features and tasks; no double underscore: signatures use it for companions."""

PRESENT, LENGTH = "__present", "__length"
"""Suffixes of the companion inputs that say which rows of an input hold a value, and how long
each row's list is."""


class History(Frozen):
    """The user's last items, strictly before the impression, oldest first."""

    events: tuple[str, ...] = Field(min_length=1)
    """Event types that count (event rows), or columns whose value is above zero (impression
    rows); `impression` counts every impression."""
    last: int = Field(ge=1, le=1000)
    """How many items to keep."""
    within: Duration | None = None
    """Only events at most so long before; all earlier ones where absent."""


class Count(Frozen):
    """How many events the user or the item had, strictly before the impression."""

    of: Literal["user", "item"]
    """Whose events: the user's, or the item's by all users."""
    events: tuple[str, ...] = Field(min_length=1)
    """As of `History`."""
    within: Duration | None = None
    """Only events at most so long before; all earlier ones where absent."""


class Since(Frozen):
    """Seconds since an event of the user or the item; missing where there was none before."""

    of: Literal["user", "item"]
    """Whose events: the user's, or the item's by all users."""
    events: tuple[str, ...] = Field(min_length=1)
    """As of `History`."""
    which: Literal["last", "first"] = "last"
    """Since the last event (recency) or the first one (age)."""
    within: Duration | None = None
    """Only events at most so long before; all earlier ones where absent."""


class Rate(Frozen):
    """Some events of the user or the item for each of some others, such as clicks per impression.

    Both are counted strictly before the impression. Missing where there was nothing to divide by.
    """

    of: Literal["user", "item"]
    """Whose events: the user's, or the item's by all users."""
    events: tuple[str, ...] = Field(min_length=1)
    """What is counted; as of `History`."""
    per: tuple[str, ...] = Field(min_length=1)
    """What it is divided by; as of `History`."""
    within: Duration | None = None
    """Only events at most so long before; all earlier ones where absent."""


class IdFeature(Frozen):
    """A categorical value, looked up in a vocabulary or hashed, then embedded."""

    kind: Literal["id"]
    side: Side
    dtype: Literal["string", "int"] = "string"
    """Type of the raw value, in logs and in requests."""
    source: Source = "log"
    column: str | None = None
    """Column of the source; the feature's name where absent."""
    missing: Missing = "error"
    default: str | int | None = None
    """The value that stands for a missing one under `missing: default`."""
    min_count: int = Field(1, ge=1)
    """Values seen less often in training stay out of the vocabulary."""
    max_size: int | None = Field(None, ge=1)
    """The most frequent values that the vocabulary keeps."""
    oov_buckets: int = Field(1, ge=1)
    """Rows of the embedding that unseen values share, by hash."""
    hash_buckets: int | None = Field(None, ge=1)
    """Hash every value into so many rows instead of keeping a vocabulary."""
    share: str | None = None
    """Use the vocabulary and the embedding of this feature."""


class IdListFeature(Frozen):
    """A list of categorical values, embedded and pooled: tags, or a history of items."""

    kind: Literal["id_list"]
    side: Side
    dtype: Literal["string", "int"] = "string"
    source: Source = "log"
    column: str | None = None
    separator: str = "|"
    """Splits the column's text into values, where the source does not hold lists."""
    history: History | None = None
    """Compute the list from the user's past instead of reading a column."""
    max_length: int = Field(50, ge=1)
    """Longer lists keep their last values."""
    pooling: Literal["mean", "sum"] = "mean"
    missing: Literal["default"] = "default"
    """A missing list is an empty one."""
    min_count: int = Field(1, ge=1)
    max_size: int | None = Field(None, ge=1)
    oov_buckets: int = Field(1, ge=1)
    hash_buckets: int | None = Field(None, ge=1)
    share: str | None = None


class NumberFeature(Frozen):
    """A number, made comparable by a transform and by the training split's statistics."""

    kind: Literal["number"]
    side: Side
    source: Source = "log"
    column: str | None = None
    count: Count | None = None
    """Count the user's or the item's past events instead of reading a column."""
    since: Since | None = None
    """Measure the time since a past event instead of reading a column."""
    rate: Rate | None = None
    """Divide two counts of past events instead of reading a column."""
    transform: Literal["identity", "log1p"] = "identity"
    """`log1p` is log(1 + max(x, 0))."""
    scale: Literal["standardise", "buckets", "none"] = "standardise"
    """`standardise` subtracts the mean and divides by the standard deviation; `buckets` embeds
    the quantile bucket."""
    buckets: int = Field(16, ge=2, le=1024)
    missing: Missing = "error"
    default: float = 0.0
    """The value that stands for a missing one under `missing: default`."""

    @property
    def counter(self) -> Count | Since | Rate | None:
        """What is computed over time, if the number is."""
        return self.count or self.since or self.rate


class PositionFeature(Frozen):
    """The place at which an item was shown: known in training, absent when serving.

    A shallow tower adds its effect to each task's logit while training, so that the rest of the
    model learns the preference that remains.
    """

    kind: Literal["position"]
    side: Literal["context"] = "context"
    source: Literal["log"] = "log"
    column: str | None = None
    max_position: int = Field(100, ge=1)
    """Positions run from 0; later ones share the last row."""
    missing: Literal["default"] = "default"
    """Without a position, no effect is added."""


Feature = Annotated[
    IdFeature | IdListFeature | NumberFeature | PositionFeature, Field(discriminator="kind")
]


class Combine(Frozen):
    """How task scores make one score to rank by."""

    kind: Literal["sum", "product"] = "sum"
    """`sum` of weight * score; or `product` of max(score, epsilon) ** weight."""
    epsilon: float = Field(1e-6, gt=0)


class Contract(Frozen):
    """Features, tasks and the combined score: all that training and serving must agree on."""

    user: str
    """The feature (an id) that names the user."""
    item: str
    """The feature (an id) that names the item."""
    features: dict[Annotated[str, Field(pattern=NAME)], Feature] = Field(min_length=2)
    tasks: dict[Annotated[str, Field(pattern=NAME)], Task] = Field(min_length=1)
    combine: Combine = Combine()

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
        for name, feature in self.features.items():
            if name in {"score", "self", "task_weights", "user_index"} or name in self.tasks:
                raise contradiction(
                    f"feature {name!r}: this name is taken by a task or by the signature"
                )
            if isinstance(feature, IdFeature | IdListFeature):
                self._check_id(name, feature)
            elif isinstance(feature, NumberFeature):
                _check_counter(name, feature)
        places = [repr(n) for n, f in self.features.items() if isinstance(f, PositionFeature)]
        if len(places) > 1:
            raise contradiction(
                f"features: expected one position feature, received {', '.join(places)}"
            )
        return self

    def _check_id(self, name: str, feature: IdFeature | IdListFeature) -> None:
        """Check what one id or id_list feature says against the others."""
        if feature.share is not None:
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

    def tasks_in_order(self) -> list[str]:
        """Task names, each after the tasks that its label refers to."""
        order: list[str] = []

        def visit(name: str) -> None:
            for other in (self.tasks[name].without, self.tasks[name].when):
                if other is not None and other not in order:
                    visit(other)
            if name not in order:
                order.append(name)

        for name in self.tasks:
            visit(name)
        return order

    def schema_fingerprint(self) -> str:
        """Fingerprint of what must not change between versions that replace one another.

        It covers features, labels and tasks; weights of losses and scores may change.  Keys that
        have their default are left out, so that a new option of the product does not part it
        from the models that already serve.
        """
        values = self.model_dump(mode="json", exclude={"combine"}, exclude_defaults=True)
        for task in values["tasks"].values():
            task.pop("weight", None)
            task.pop("score_weight", None)
        return fingerprint(values)


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
                "wrote it; make it anew"
            )
        return frozen


def fingerprint(values: Any) -> str:
    """First 16 hex digits of the SHA-256 of canonical JSON."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_counter(name: str, feature: NumberFeature) -> None:
    """Check a number that is computed over time."""
    counter = feature.counter
    if counter is None:
        return
    given = [key for key in ("count", "since", "rate") if getattr(feature, key) is not None]
    key = given[0]
    if len(given) > 1:
        raise contradiction(
            f"feature {name!r}: expected one of count, since and rate, received "
            f"{' and '.join(given)}"
        )
    if feature.source != "log" or feature.column is not None:
        raise contradiction(
            f"feature {name!r}: a {key} is computed from the log's events; it takes neither "
            f"source nor column, received source {feature.source!r}, column {feature.column!r}"
        )
    if feature.side != counter.of:
        raise contradiction(
            f"feature {name!r}: a {key} of the {counter.of} is of side {counter.of!r}, received "
            f"side {feature.side!r}"
        )
    if key != "count" and feature.missing == "error":
        raise contradiction(
            f"feature {name!r}: {key} is missing where there was no such event; expected "
            "missing: indicator or default, received missing: error"
        )
