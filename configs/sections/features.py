"""The kinds of features: id, list, text, number, vector, position; features over time."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from multigate.configs.sections.base import Duration, Frozen, contradiction

Side = Literal["user", "item", "context"]
Missing = Literal["error", "default", "indicator"]
Source = Literal["log", "users", "items"]

NAME = r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$"
"""Names of features and tasks; no double underscore: signatures use it for companions."""

ENTRY_NAME = NAME.removesuffix("$") + r"(__[a-z][a-z0-9]*(_[a-z0-9]+)*)?$"
"""Names of features, and of lists beside a history: `recent__event`."""

PRESENT, LENGTH = "__present", "__length"
"""Suffixes of the companion inputs that say which rows of an input hold a value, and how long
each row's list is."""

MATCH = "__match"
"""Suffix of the encoded array that says how often the candidate stands in a list of the user."""

ID_HASH = "__hash"
"""Suffix of the encoded array that holds the hash of the user's raw id; no signature has it."""


AGE_EDGES = tuple(2**k for k in range(31))
"""Seconds from 1 to 2^30 (34 years): edges of the buckets of an entry's age."""


class History(Frozen):
    """The user's last items, strictly before the impression, oldest first."""

    model_config = ConfigDict(serialize_by_alias=True)

    events: tuple[str, ...] = Field(min_length=1)
    """Event types that count (event rows), or feedback columns with a value above zero (impression
    rows; `log.known_after` says when they are known); `impression` counts every impression."""
    last: int = Field(ge=1, le=1000)
    """How many items to keep."""
    within: Duration | None = None
    """Only events at most so long before; all earlier ones where absent."""
    with_: tuple[str, ...] = Field((), alias="with", examples=[["event", "age"]])
    """What the model reads of each entry beside its item: `event` (its type), `age` (how long
    before the impression), and id features of the item, such as `topic`, as of the event."""


class Count(Frozen):
    """How many events the user or the item had, strictly before the impression."""

    of: Literal["user", "item"]
    """Whose events: the user's, or the item's by all users."""
    events: tuple[str, ...] = Field(min_length=1)
    """As in `history.events`."""
    within: Duration | None = None
    """Only events at most so long before; all earlier ones where absent."""


class Since(Frozen):
    """Seconds since an event of the user or the item; missing where there was none before."""

    of: Literal["user", "item"]
    """Whose events: the user's, or the item's by all users."""
    events: tuple[str, ...] = Field(min_length=1)
    """As in `history.events`."""
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
    events: tuple[str, ...] = Field(min_length=1, examples=[["CLICK"]])
    """What is counted; as in `history.events`."""
    per: tuple[str, ...] = Field(min_length=1, examples=[["VIEW"]])
    """What it is divided by; as in `history.events`."""
    within: Duration | None = None
    """Only events at most so long before; all earlier ones where absent."""


class _Values(Frozen):
    of: Literal["user", "item"]
    """Whose events: the user's, or the item's by all users."""
    events: tuple[str, ...] = Field(min_length=1, examples=[["PURCHASE"]])
    """Event types, and the values are those of `log.columns.value`; of an impression log the one
    feedback column whose values count, as soon as they are known (`log.known_after`): all of them,
    also zeros."""
    within: Duration | None = None
    """Only events at most so long before the impression; all earlier ones where absent."""


class Mean(_Values):
    """Mean of the values of the user's or item's events, strictly before the impression.

    Events without a value do not count. Missing where there was none.
    """


class Max(_Values):
    """Largest value of the user's or item's events, strictly before the impression.

    Missing where there was none.
    """


Cross = tuple[Literal["user"], str]
"""The user and a category of the candidate: the name of an id feature of the item or context."""

CROSS_KEYS, CROSS_ONES, CROSS_COUNTS = "__keys", "__ones", "__labels"
"""Suffixes of the lists that a snapshot's user holds of a rate by category: the categories, least
recent first, and for each its labels that are 1 and all its labels."""


class _PastLabels(Frozen):
    of: Literal["user", "item"] | Cross
    """Whose labels: the user's, or the item's by all users. `[user, topic]`: those of the user's
    impressions of the candidate's `topic`."""
    task: str = Field(examples=["like"])
    """The task."""
    within: Duration | None = None
    """Only labels that closed at most so long before; all earlier ones where absent."""
    last: int | None = Field(None, ge=1, le=1000)
    """Of `[user, topic]`: only the user's most recent topics count; 50 where absent. Others are as
    topics without labels, so that an online store holds few of them."""

    @property
    def category(self) -> str | None:
        """The feature that names the category of `[user, category]`."""
        return None if isinstance(self.of, str) else self.of[1]

    @property
    def most(self) -> int:
        """How many of a user's categories count."""
        return self.last or 50


class LabelCount(_PastLabels):
    """How many labels of a task the user or the item had, strictly before the impression.

    A label counts from the instant at which it closes (docs/labels.md); a masked one never does.
    """


class _Smoothed(_PastLabels):
    strength: float = Field(10.0, gt=0)
    """How many labels the prior weighs as much as."""
    prior: float | None = None
    """The value without any label. Absent: the mean of the task's labels over the training split's
    logged impressions, which `priors` in `statistics.json` records."""


class LabelRate(_Smoothed):
    """Share of a binary task's past labels that are 1, smoothed (an as-of target encoding).

    (ones + strength * prior) / (labels + strength), over the labels that `LabelCount` counts.
    """


class LabelMean(_Smoothed):
    """Mean of a regression task's past labels after the task's transform, smoothed.

    (sum + strength * prior) / (labels + strength), over the labels that `LabelCount` counts.
    """


def _check_pattern(pattern: str) -> str:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    if groups != 1:
        raise ValueError(
            f"expected one group in parentheses, which is the value, received {groups}"
        )
    return pattern


Pattern = Annotated[str, AfterValidator(_check_pattern)]
"""A regular expression with one group, which is searched in a column's text."""


class IdFeature(Frozen):
    """A categorical value, looked up in a vocabulary or hashed, then embedded."""

    kind: Literal["id"]
    side: Side
    """Whose value it is: the user's, the item's, or the context's (device, hour, query)."""
    dtype: Literal["string", "int"] = "string"
    """Type of the raw value, in logs and in requests."""
    source: Source = "log"
    """Where the column stands: in the log, or in the side table `pipeline.users` or
    `pipeline.items`."""
    column: str | None = None
    """Column of the source; the feature's name where absent."""
    pattern: Pattern | None = None
    """Take only this part of the column's text: `\\((\\d{4})\\)$` finds the year of `Heat (1995)`.
    The value is missing where nothing matches. Requests hold the part itself, `1995`."""
    missing: Missing = "error"
    """What a missing value is. `error`: the row is rejected, and so is a request whose user or
    context lacks it; an item that lacks it gets no score. `default`: `default` stands for it.
    `indicator`: a value of its own, which the model learns."""
    default: str | int | None = Field(None, examples=["unknown"])
    """The value that stands for a missing one under `missing: default`."""
    min_count: int = Field(1, ge=1)
    """Values seen less often in training stay out of the vocabulary; not beside `hash_buckets`."""
    max_age: Duration | None = None
    """Values last seen longer ago than this, such as 30d, leave the vocabulary; the newest training
    row counts as now. Warm starts carry counts, ages and the rows' moments over. Null: the
    vocabulary is that of the examples. docs/training.md, "Catalogues that change"."""
    max_size: int | None = Field(None, ge=1)
    """The most frequent values that the vocabulary keeps; not beside `hash_buckets`."""
    oov_buckets: int = Field(1, ge=1)
    """Rows of the embedding that unseen values share, by hash."""
    hash_buckets: int | None = Field(None, ge=1)
    """Hash every value into so many rows instead of keeping a vocabulary."""
    share: str | None = None
    """Use the vocabulary and the embedding of this feature."""


class Entry(Frozen):
    """Says that a list stands beside a history, entry by entry; see `History.with_`."""

    of: str = Field(examples=["recent_views"])
    """The history's feature."""
    what: str = Field(examples=["age"])
    """`event`, `age`, or the feature of the item."""


class IdListFeature(Frozen):
    """A list of categorical values, embedded and pooled: tags, or a history of items."""

    kind: Literal["id_list"]
    side: Side
    """Whose value it is: the user's, the item's, or the context's (device, hour, query)."""
    dtype: Literal["string", "int"] = "string"
    """Type of the entries, in logs and in requests."""
    source: Source = "log"
    """Where the column stands: in the log, or in the side table `pipeline.users` or
    `pipeline.items`."""
    column: str | None = None
    """Column of the source; the feature's name where absent."""
    separator: str = "|"
    """Splits the column's text into values, where the source does not hold lists."""
    history: History | None = None
    """Compute the list from the user's past instead of reading a column."""
    max_length: int = Field(50, ge=1)
    """Longer lists keep their last values."""
    pooling: Literal["mean", "sum", "attention", "sequence"] = "mean"
    """How the entries' embeddings become one vector. `attention` weighs each entry by the
    candidate, for a list that shares the vocabulary of a feature of the item; `sequence` reads the
    entries in their order, the last one being the most recent. `model.lists` has their options."""
    missing: Literal["default"] = "default"
    """A missing list is an empty one."""
    min_count: int = Field(1, ge=1)
    """Values seen less often in training stay out of the vocabulary; not beside `hash_buckets`."""
    max_age: Duration | None = None
    """As of an id: values last seen longer ago leave the vocabulary."""
    max_size: int | None = Field(None, ge=1)
    """The most frequent values that the vocabulary keeps; not beside `hash_buckets`."""
    oov_buckets: int = Field(1, ge=1)
    """Rows of the embedding that unseen values share, by hash."""
    hash_buckets: int | None = Field(None, ge=1)
    """Hash every value into so many rows instead of keeping a vocabulary."""
    share: str | None = None
    """Use the vocabulary and the embedding of this feature, such as that of the item's id."""
    entry: Entry | None = None
    """Set in lists that the contract makes of `history.with`."""

    @property
    def is_age(self) -> bool:
        """Whether the values are ages in seconds, which are embedded by bucket."""
        return self.entry is not None and self.entry.what == "age"

    @property
    def as_list(self) -> "IdListFeature":
        """The list itself; see `TextFeature.as_list`."""
        return self


class TextFeature(Frozen):
    """A text, as a bag of hashed n-grams of its words: a title, a query.

    docs/modelling.md says what a word is. The n-grams are hashed, embedded and pooled as the
    values of an id_list are.
    """

    kind: Literal["text"]
    side: Side
    """Whose value it is: the user's, the item's, or the context's (device, hour, query)."""
    source: Source = "log"
    """Where the column stands: in the log, or in the side table `pipeline.users` or
    `pipeline.items`."""
    column: str | None = None
    """Column of the source; the feature's name where absent."""
    ngrams: int = Field(2, ge=1, le=5)
    """Longest run of words that is one n-gram: 2 takes single words and pairs."""
    hash_buckets: int = Field(16_384, ge=1)
    """Rows of the embedding, which n-grams share by hash."""
    max_length: int = Field(32, ge=1, le=1000)
    """Only the first words count, this many."""
    pooling: Literal["mean", "sum"] = "mean"
    """How the n-grams' embeddings become one vector."""
    missing: Literal["default"] = "default"
    """A missing text is an empty one."""

    @property
    def dtype(self) -> Literal["string"]:
        """Type of the raw value, in logs and in requests."""
        return "string"

    @property
    def as_list(self) -> IdListFeature:
        """The list of n-grams that the text becomes."""
        most = sum(max(self.max_length - n, 0) for n in range(self.ngrams))
        return IdListFeature(
            kind="id_list",
            side=self.side,
            hash_buckets=self.hash_buckets,
            max_length=most,
            pooling=self.pooling,
        )


class NumberFeature(Frozen):
    """A number, made comparable by a transform and by the training split's statistics."""

    kind: Literal["number"]
    side: Side
    """Whose value it is: the user's, the item's, or the context's (device, hour, query)."""
    source: Source = "log"
    """Where the column stands: in the log, or in the side table `pipeline.users` or
    `pipeline.items`."""
    column: str | None = None
    """Column of the source; the feature's name where absent."""
    pattern: Pattern | None = None
    """Take only this part of the column's text, as for an id."""
    age: Literal["s", "ms", "us", "iso"] | None = None
    """The column holds times in this unit, from 1900 on, such as the day when an item was listed or
    a user was born, and the number is the seconds from then to the impression, 0 where that is
    later. A time without a zone is in `log.time_zone`. Requests hold the seconds; values of a
    feature store grow with the clock."""
    count: Count | None = None
    """Count the user's or the item's past events instead of reading a column."""
    since: Since | None = None
    """Measure the time since a past event instead of reading a column."""
    rate: Rate | None = None
    """Divide two counts of past events instead of reading a column."""
    mean: Mean | None = None
    """Take the mean of past events' values instead of reading a column."""
    max: Max | None = None
    """Take the largest of past events' values instead of reading a column."""
    label_count: LabelCount | None = None
    """Count the labels of a task that had closed instead of reading a column."""
    label_rate: LabelRate | None = None
    """Take the smoothed rate of a binary task's past labels instead of reading a column."""
    label_mean: LabelMean | None = None
    """Take the smoothed mean of a regression task's past labels instead of reading a column."""
    transform: Literal["identity", "log1p"] = "identity"
    """`log1p` is log(1 + max(x, 0))."""
    scale: Literal["standardise", "buckets", "none"] = "standardise"
    """`standardise` subtracts the mean and divides by the standard deviation; `buckets` embeds
    the quantile bucket."""
    buckets: int = Field(16, ge=2, le=1024)
    """How many quantile buckets, of `scale: buckets`."""
    missing: Missing = "error"
    """What a missing value is. `error`: the row is rejected, and so is a request whose user or
    context lacks it; an item that lacks it gets no score. `default`: `default` stands for it.
    `indicator`: a value of its own, which the model learns."""
    default: float = 0.0
    """The value that stands for a missing one under `missing: default`."""

    @property
    def counter(self) -> "EventCounter | LabelCounter | None":
        """What is computed over time, if the number is."""
        return self.event_counter or self.label_counter

    @property
    def event_counter(self) -> "EventCounter | None":
        """What is computed from past events, if the number is."""
        return self.count or self.since or self.rate or self.mean or self.max

    @property
    def label_counter(self) -> "LabelCounter | None":
        """What is computed from past labels, if the number is."""
        return self.label_count or self.label_rate or self.label_mean


EventCounter = Count | Since | Rate | Mean | Max
LabelCounter = LabelCount | LabelRate | LabelMean

COUNTERS = ("count", "since", "rate", "mean", "max", "label_count", "label_rate", "label_mean")
"""Keys of a number that is computed over time; it has at most one of them."""


class VectorFeature(Frozen):
    """A dense vector that another model made of the user, the item or the request.

    A column of lists (Parquet, JSON), or of texts that `separator` splits (CSV).
    """

    kind: Literal["vector"]
    side: Side
    """Whose value it is: the user's, the item's, or the context's (device, hour, query)."""
    size: int = Field(ge=1, le=4096)
    """How many numbers every vector has."""
    source: Source = "log"
    """Where the column stands: in the log, or in the side table `pipeline.users` or
    `pipeline.items`."""
    column: str | None = None
    """Column of the source; the feature's name where absent."""
    separator: str = Field(",", min_length=1)
    """Splits the column's text into numbers, where the source does not hold lists."""
    scale: Literal["standardise", "unit", "none"] = "standardise"
    """`standardise` subtracts each place's mean and divides by its standard deviation; `unit`
    divides by the vector's length (its Euclidean norm)."""
    project: int | None = Field(None, ge=1, le=1024)
    """Map the vector to so many numbers by a learnt linear layer before the experts read it."""
    missing: Missing = "error"
    """Under `default`, zeros stand for a missing vector."""


class PositionFeature(Frozen):
    """The place at which an item was shown: known in training, absent when serving.

    A shallow tower adds its effect to each task's logit while training, so that the rest of the
    model learns the preference that remains.
    """

    kind: Literal["position"]
    side: Literal["context"] = "context"
    """A place belongs to the request."""
    source: Literal["log"] = "log"
    """Places stand in the log."""
    column: str | None = None
    """Column of the source; the feature's name where absent."""
    max_position: int = Field(100, ge=1)
    """Positions run from 0; later ones share the last row."""
    missing: Literal["default"] = "default"
    """Without a position, no effect is added."""


Feature = Annotated[
    IdFeature | IdListFeature | TextFeature | NumberFeature | VectorFeature | PositionFeature,
    Field(discriminator="kind"),
]


def check_age(name: str, feature: NumberFeature) -> None:
    """Check what an age says.

    Raises:
        PydanticCustomError: its keys contradict one another.
    """
    if feature.age is None:
        return
    if feature.counter is not None:
        given = next(key for key in COUNTERS if getattr(feature, key) is not None)
        raise contradiction(
            f"feature {name!r}: an age is measured from a column's times; received a {given} "
            "beside it, which is computed from the log"
        )
    if feature.missing == "error":
        raise contradiction(
            f"feature {name!r}: an age is missing where a time is unknown; expected missing: "
            "indicator or default, received missing: error"
        )


def check_counter(name: str, feature: NumberFeature) -> None:
    """Check what a number that is computed over time says.

    Raises:
        PydanticCustomError: its keys contradict one another.
    """
    counter = feature.counter
    if counter is None:
        return
    given = [key for key in COUNTERS if getattr(feature, key) is not None]
    key = given[0]
    if len(given) > 1:
        raise contradiction(
            f"feature {name!r}: expected one of {', '.join(COUNTERS)}; received "
            f"{' and '.join(given)}"
        )
    if feature.source != "log" or feature.column is not None or feature.pattern is not None:
        received = f"source {feature.source!r}, column {feature.column!r}"
        received += "" if feature.pattern is None else f", pattern {feature.pattern!r}"
        raise contradiction(
            f"feature {name!r}: a {key} is computed from the log; it takes neither "
            f"source nor column nor pattern, received {received}"
        )
    side = counter.of if isinstance(counter.of, str) else "item"
    if feature.side != side:
        of = counter.of if isinstance(counter.of, str) else " and the ".join(counter.of)
        raise contradiction(
            f"feature {name!r}: a {key} of the {of} is of side {side!r}, received "
            f"side {feature.side!r}"
        )
    if key in ("since", "rate", "mean", "max") and feature.missing == "error":
        raise contradiction(
            f"feature {name!r}: {key} is missing where there was no such event; expected "
            "missing: indicator or default, received missing: error"
        )
