"""Typed, frozen configuration: the base class and the YAML reader with readable errors.

Built on pydantic. Hydra with OmegaConf was considered: it has neither discriminated unions, which
the gates and labels are, nor checks across keys.
"""

import re
from collections.abc import Hashable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from multigate.configs.errors import ConfigError
from multigate.configs.sections.nearest import did_you_mean

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Frozen(BaseModel):
    """Base of every configuration class: immutable, no unknown keys, no silent conversion.

    A string below a field documents the field.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, values: Any) -> Any:
        """Name the unknown key and the known keys; pydantic's own message does not."""
        if isinstance(values, dict):
            known = {field.alias or name for name, field in cls.model_fields.items()}
            for key in values:
                if key not in known:
                    context = {
                        "key": str(key),
                        "known": ", ".join(sorted(known)),
                        "hint": did_you_mean(str(key), sorted(known)),
                        "value": f"{values[key]!r:.60}",
                    }
                    raise PydanticCustomError("unknown_key", "unknown key {key}", context)
        return values


def _parse_duration(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str) and value[-1:] in _UNITS:
        try:
            duration = timedelta(seconds=float(value[:-1]) * _UNITS[value[-1]])
        except (ValueError, OverflowError):
            duration = timedelta(0)
        if duration > timedelta(0):
            return duration
    raise ValueError("expected a duration such as 30s, 10m, 12h or 7d")


def _format_duration(value: timedelta) -> str:
    return f"{value.total_seconds():.17g}s"


def _parse_instant(value: Any) -> Any:
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError("expected an instant such as 2016-12-01T00:00:00Z") from None


_DurationText = Annotated[
    str,
    Field(
        pattern=r"^[0-9.]+([eE][+-]?[0-9]+)?[smhd]$",
        json_schema_extra={"format": "time-span"},
    ),
]

Duration = Annotated[
    timedelta,
    BeforeValidator(_parse_duration, json_schema_input_type=_DurationText),
    PlainSerializer(_format_duration, str),
]
"""A time span; written as a number and a unit: 30s, 10m, 12h, 7d."""

Instant = Annotated[datetime, BeforeValidator(_parse_instant)]
"""A point in time with its zone, in ISO 8601."""

Model = TypeVar("Model", bound=BaseModel)


def contradiction(message: str) -> PydanticCustomError:
    """An error about several keys together; the message already says what was received."""
    return PydanticCustomError("contradiction", "{message}", {"message": message})


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses a key that is written twice, and reads 1e-6 as a number.

    PyYAML follows YAML 1.1, which keeps the last of two equal keys, and takes 1e-6 for text because
    it has no decimal point.  Of a date that there is not it says neither the place nor the value,
    and it makes a list that holds itself of `&a [*a]`.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        # Values are complete before they are used, so that one within itself is seen.
        self.deep_construct = True

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node in self.recursive_objects:
            raise yaml.constructor.ConstructorError(
                None, None, "an alias (*name) stands within its own anchor (&name)", node.start_mark
            )
        try:
            return super().construct_object(node, deep)
        except (ValueError, IndexError) as error:
            raise yaml.constructor.ConstructorError(
                None, None, f"{node.value!r}: {error}", node.start_mark
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(
                    None, None, f"expected a plain key, received {key!r}", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is written twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


class Dumper(yaml.SafeDumper):
    """A YAML dumper that quotes what `read_yaml` would take for a number, such as the text 1e6."""


for _kind in (_Loader, Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def read_yaml(path: Path) -> Any:
    """Parse a YAML file.

    Raises:
        ConfigError: the file is missing, not UTF-8 or not YAML, or repeats a key.
    """
    try:
        # A SafeLoader builds plain values only.
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such configuration file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: expected a YAML file, received a folder") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8 text: {error.reason}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


def parse(kind: type[Model], values: Any, where: str) -> Model:
    """Validate `values` as `kind`.

    Args:
        kind: the configuration class.
        values: what a YAML or JSON file held.
        where: the file that error messages name.

    Raises:
        ConfigError: one line per offending key: which key, what was expected, what came.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected a mapping of keys, received {type(values).__name__}")
    try:
        return kind.model_validate(_freeze(values))
    except ValidationError as error:
        lines = [_describe(item, where, values) for item in error.errors(include_url=False)]
        raise ConfigError("\n".join(lines)) from None


def _freeze(values: Any) -> Any:
    """Turn lists into tuples: strict validation takes no list for a tuple."""
    if isinstance(values, dict):
        return {key: _freeze(value) for key, value in values.items()}
    if isinstance(values, list):
        return tuple(_freeze(value) for value in values)
    return values


def _keys(location: tuple[int | str, ...], values: Any, missing: bool) -> list[str]:
    """The keys of the file that lead to an error, without the members of unions.

    Args:
        location: pydantic's location, which also names members of unions.
        values: the whole mapping.
        missing: whether the error is that the last key is missing.
    """
    keys = []
    for place, part in enumerate(location):
        if isinstance(values, dict):
            found = part in values
        else:
            is_place = isinstance(values, list | tuple) and isinstance(part, int)
            found = is_place and part in range(len(values))  # a list may be too short
        if found:
            values = values[part]
        if found or (missing and place == len(location) - 1):
            keys.append(str(part))
    return keys


def _describe(item: Any, where: str, values: Any) -> str:
    """One line for one validation error."""
    absent, loc = item["type"] == "missing", item["loc"]
    of_list = absent and isinstance(loc[-1], int)
    location = ".".join(_keys(loc, values, absent and not of_list))
    if item["type"] == "unknown_key":
        context = item["ctx"]
        key = f"{location}.{context['key']}" if location else context["key"]
        return (
            f"{where}: {key}: unknown key; {context['hint']}expected one of {context['known']}; "
            f"received {context['value']}"
        )
    location = location or "(top level)"
    if of_list:
        return (
            f"{where}: {location}: value {loc[-1] + 1} is missing; received {item['input']!r:.80}"
        )
    if absent:
        return f"{where}: {location}: required key is missing"
    message = item["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if item["type"] == "contradiction":
        return f"{where}: {location}: {message}"
    return f"{where}: {location}: {message}; received {item['input']!r:.80}"
