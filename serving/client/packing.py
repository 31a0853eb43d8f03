"""Python values to the messages of Rank and Recommend, without TensorFlow and NumPy."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

from multigate.configs.errors import ServingError
from multigate.serving.protos import ranking_pb2

Scalar = str | int | float
Feature = Scalar | Sequence[Scalar]


def model_spec(name: str, version: int | None, label: str) -> Any:
    """The model to ask: a version by number or label, or the newest.

    Raises:
        ServingError: both are given, or the number is no int64.
    """
    if version is not None and label:
        raise ServingError(
            f"version: expected a number or a label, received {version} and {label!r}"
        )
    with naming("version"):
        if label:
            return ranking_pb2.ModelSpec(name=name, version_label=label)
        return ranking_pb2.ModelSpec(name=name, version=version)


def rank_request(
    model: Any,
    user: Mapping[str, Feature | None],
    context: Mapping[str, Feature | None],
    item_ids: Sequence[Scalar],
    columns: Mapping[str, Sequence[Feature | None]],
) -> Any:
    """A RankRequest with all features.

    Raises:
        ServingError: a value is of a type that no feature has; the message names the feature.
    """
    request = ranking_pb2.RankRequest(
        model=model,
        user={name: _value(name, value) for name, value in user.items()},
        context={name: _value(name, value) for name, value in context.items()},
    )
    _pack("item_ids", request.candidates.item_id, _sequence("item_ids", item_ids))
    for name, values in columns.items():
        request.candidates.columns[name].CopyFrom(_column(name, values))
    return request


def recommend_request(
    model: Any,
    user: Mapping[str, Feature | None],
    context: Mapping[str, Feature | None],
    exclude: Sequence[Scalar],
) -> Any:
    """A RecommendRequest with all features.

    Raises:
        ServingError: a value is of a type that no feature has; the message names the feature.
    """
    request = ranking_pb2.RecommendRequest(
        model=model,
        user={name: _value(name, value) for name, value in user.items()},
        context={name: _value(name, value) for name, value in context.items()},
    )
    _pack("exclude", request.exclude, _sequence("exclude", exclude))
    return request


def add_counts(request: Any, **counts: int | None) -> None:
    """Set numbers of items, such as the limit; None leaves one out.

    Raises:
        ServingError: one is less than 1, or no int32.
    """
    for name, count in counts.items():
        if count is None:
            continue
        if count < 1:
            raise ServingError(f"{name}: expected 1 or more, received {count}")
        with naming(name):
            setattr(request, name, count)


def add_weights(request: Any, weights: Mapping[str, float]) -> None:
    """Set task weights, which replace the contract's.

    Raises:
        ServingError: a weight is no number.
    """
    for task, weight in weights.items():
        with naming(f"task weight {task!r}"):
            request.task_weights[task] = weight


def add_floors(request: Any, floors: Mapping[str, Sequence[float | None]]) -> None:
    """Set the lowest and highest score that an item may have, by task.

    Raises:
        ServingError: a floor is not two numbers or None.
    """
    for task, limits in floors.items():
        what = f"floor {task!r}"
        if isinstance(limits, str) or not isinstance(limits, Sequence) or len(limits) != 2:
            raise ServingError(
                f"{what}: expected two limits, [lowest or None, highest or None], "
                f"received {limits!r}"
            )
        with naming(what):
            request.floors[task].CopyFrom(ranking_pb2.Floor(min=limits[0], max=limits[1]))


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Name the field in protobuf's errors, such as a number out of range or invalid UTF-8."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        raise ServingError(f"{what}: {error}") from None


def _value(name: str, value: Any) -> Any:
    """A user or context feature."""
    message = ranking_pb2.Value()
    if value is None:
        return message
    if isinstance(value, str | Real):
        kind = {"texts": "text", "integers": "integer", "numbers": "number"}[_kind(name, [value])]
        with naming(name):
            setattr(message, kind, value)
        return message
    if isinstance(value, Mapping):
        raise ServingError(f"{name}: expected a value or a list, received {value!r}")
    values = _entries(name, value)
    kind = _kind(name, values)
    getattr(message, kind).SetInParent()
    with naming(name):
        getattr(message, kind).values.extend(values)
    return message


def _column(name: str, given: Any) -> Any:
    """An item feature: one entry, or one list, per candidate."""
    message = ranking_pb2.Column()
    values = _sequence(name, given)
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        message.present.extend(value is not None for value in values)
    if known and not isinstance(known[0], str | Real):
        single = next((value for value in known if isinstance(value, str | Real)), None)
        if single is not None:
            raise ServingError(f"{name}: expected lists only, received {single!r} among them")
        lists = [[] if value is None else _entries(name, value) for value in values]
        message.lengths.extend(map(len, lists))
        flat = [one for part in lists for one in part]
        if flat:
            _pack(name, message, flat)
        return message
    filler: Any = "" if known and isinstance(known[0], str) else 0
    _pack(name, message, [filler if value is None else value for value in values])
    return message


def _entries(name: str, value: Any) -> list[Any]:
    """A list's values; None among texts is an empty text, which is a missing value."""
    values = _sequence(name, value)
    if None in values and all(one is None or isinstance(one, str) for one in values):
        return [one or "" for one in values]
    return values


def _sequence(name: str, values: Any) -> list[Any]:
    """Values as a list; a text counts as one value, although Python can iterate over it."""
    if isinstance(values, str | Mapping):
        raise ServingError(f"{name}: expected a sequence of values, received {values!r}")
    try:
        return list(values)
    except TypeError:
        raise ServingError(f"{name}: expected a sequence of values, received {values!r}") from None


def _pack(name: str, message: Any, values: list[Any]) -> None:
    if values:
        kind = _kind(name, values)
        with naming(name):
            getattr(message, kind).values.extend(values)


def _kind(name: str, values: Sequence[Any]) -> str:
    """The message field for these values; whole numbers mixed with others count as numbers."""
    if all(isinstance(value, str) for value in values):
        return "texts"
    if any(isinstance(value, bool) or not isinstance(value, Real) for value in values):
        odd = next(v for v in values if isinstance(v, bool) or not isinstance(v, Real))
        raise ServingError(
            f"{name}: expected texts, whole numbers or numbers, all of one type, received {odd!r}"
        )
    return "integers" if all(isinstance(value, Integral) for value in values) else "numbers"
