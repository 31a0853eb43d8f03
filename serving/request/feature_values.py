"""The values that a request gives one feature, as arrays of the `rank` signature.

Missing values are told apart from values in one way for every side: a value without a kind, an
entry whose presence is false, and an empty text are missing; NaN is an error.  An error names the
feature, what was expected and what came.

Every call passes through here with every feature, so that the usual case (all values there, texts
or floats) makes few Python objects: at 100 candidates this was a fifth of a call's CPU time.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from multigate.configs.contract import LENGTH, PRESENT, Contract, IdListFeature, NumberFeature
from multigate.serving.core.layout import Arrays, may_be_missing, value_dtype
from multigate.serving.core.status import InvalidRequestError
from multigate.serving.core.wire import numbers_of
from multigate.serving.feature_store.interface import Column, absent, padded

LONGEST_TEXT = 4096
"""Characters of a text of the user or the context, which every candidate's row would repeat."""
_DTYPE_OF = {"texts": "string", "integers": "int64", "numbers": "float32"}
_LIST_OF = {"text": "texts", "integer": "integers", "number": "numbers"}


class FeatureValues:
    """Reads one feature of a contract."""

    def __init__(self, name: str, feature: Any) -> None:
        self.name = name
        self.feature = feature
        self._dtype = value_dtype(feature)
        self._is_list = isinstance(feature, IdListFeature)
        self._companion = ""
        if self._is_list:
            self._companion = name + LENGTH
        elif may_be_missing(feature):
            self._companion = name + PRESENT

    def absent(self, rows: int) -> Column:
        """A column of missing values."""
        return absent(self.feature, rows)

    def of_value(self, message: Any) -> Column:
        """A user or context feature's `Value`: one row."""
        which = message.WhichOneof("kind")
        if which is None:
            return self.absent(1)
        field = _LIST_OF.get(which)
        held = getattr(message, which)
        if which in {"text", "texts"}:
            self._refuse_long((held,) if field else held.values)
        if field is None:
            # An empty list has no dtype to be wrong about.
            lengths = (len(held.values),)
            return self._column(which if held.values else None, held.values, lengths, (), 1)
        if self._is_list or self._dtype == "string" or field == "texts":
            return self._column(field, (held,), None, (), 1)
        self._check_dtype(field)
        values = np.array((held,), self._dtype)
        if not math.isfinite(held):
            self._refuse_non_finite(values)
        return Column(values, _all(1))

    def of_column(self, message: Any, rows: int) -> Column:
        """An item feature's `Column`: one value, or one list, per candidate."""
        which = message.WhichOneof("values")
        given, lengths = message.present, message.lengths or None
        if which == "numbers" and self._dtype == "float32" and not given and lengths is None:
            numbers = numbers_of(message.numbers)
            if len(numbers) == rows:
                self._refuse_non_finite(numbers)
                return Column(numbers, _all(rows))
        if len(given) == rows and not any(given):
            return self.absent(rows)  # of whatever type the fillers are
        values = getattr(message, which).values if which else ()
        return self._column(which if len(values) else None, values, lengths, given, rows)

    def of_ids(self, message: Any, rows: int) -> Column:
        """Ids of items, as `ItemIds` holds them."""
        which = message.WhichOneof("values")
        return self._column(which, getattr(message, which).values, None, (), rows)

    def inputs(self, column: Column, missing: dict[str, int]) -> Arrays:
        """The signature's inputs for a column, once its missing values are allowed and counted.

        Args:
            column: of the feature.
            missing: where values that are missing are counted, by feature.

        Returns:
            The feature's name and its companion, (rows, ...) each.
        """
        rows = len(column.present)
        count = rows - int(np.count_nonzero(column.present))
        if count:
            if self.feature.missing == "error":
                row = int(np.argmin(column.present))
                where = "" if rows == count else f" in row {row} and {count} in all"
                raise InvalidRequestError(
                    f"feature {self.name!r}: expected a value ({self.describe()}; missing: "
                    f"error), received none{where}"
                )
            missing[self.name] = count
        if not self._companion:
            return {self.name: column.values}
        companion = column.present if column.lengths is None else column.lengths
        return {self.name: column.values, self._companion: companion}

    def describe(self) -> str:
        """What the feature takes, in words."""
        if isinstance(self.feature, NumberFeature):
            return "a finite number"
        one = "a text" if self._dtype == "string" else "a whole number (int64)"
        return f"a list, each entry {one}" if self._is_list else one

    def _column(
        self,
        field: str | None,
        values: Sequence[Any],
        lengths: Sequence[int] | None,
        present: Sequence[bool],
        rows: int,
    ) -> Column:
        """Values as the request held them, as a column.

        Args:
            field: whose values these are: texts, integers or numbers; None where there is none to
                tell by.
            values: one per row, or the lists of all rows one after the other.
            lengths: of the lists.
            present: empty where all are.
            rows: how many values or lists are due.
        """
        if field is not None:
            self._check_dtype(field)
        if self._is_list:
            return self._lists(values, lengths, present, rows)
        if lengths is not None:
            raise InvalidRequestError(
                f"feature {self.name!r}: expected {self.describe()} per row, received lists"
            )
        if len(values) != rows:
            raise InvalidRequestError(
                f"feature {self.name!r}: expected {rows} values, one per row, received "
                f"{len(values)}"
            )
        there = self._presence(present, rows)
        if self._dtype == "string":
            texts = [text.encode() for text in values]
            if b"" in texts:
                there = there & np.fromiter(map(bool, texts), bool, rows)
            return Column(np.fromiter(texts, object, rows), there)
        found = np.fromiter(values, self._dtype, rows)
        if self._dtype == "float32":
            if present:
                found = np.where(there, found, np.float32(0))
            self._refuse_non_finite(found)
        return Column(found, there)

    def _lists(
        self,
        values: Sequence[Any],
        lengths: Sequence[int] | None,
        present: Sequence[bool],
        rows: int,
    ) -> Column:
        """Lists without empty texts; the last values of long ones."""
        if lengths is None:
            raise InvalidRequestError(
                f"feature {self.name!r}: expected {self.describe()} per row, received values "
                "without lengths"
            )
        if len(lengths) != rows:
            raise InvalidRequestError(
                f"feature {self.name!r}: expected {rows} lengths, one per row, received "
                f"{len(lengths)}"
            )
        if min(lengths) < 0 or sum(lengths) != len(values):
            raise InvalidRequestError(
                f"feature {self.name!r}: expected lengths of 0 or more that add up to the "
                f"{len(values)} values, received a sum of {sum(lengths)}"
            )
        text, most = self._dtype == "string", self.feature.max_length
        there = self._presence(present, rows)
        plain = [value.encode() for value in values] if text else values
        flat = np.fromiter(plain, object if text else self._dtype, len(values))
        if rows == 1 and 0 < len(flat) <= most and not present and not (text and b"" in plain):
            return Column(flat[None, :], there, np.array([len(flat)]))
        row_of = np.repeat(np.arange(rows), lengths)
        kept = there[row_of]
        if text:
            kept &= np.fromiter(map(bool, plain), bool, len(flat))
        flat, row_of = flat[kept], row_of[kept]
        counts = np.bincount(row_of, minlength=rows)
        # Negative for the values at the start of a list that is too long.
        place = np.arange(len(flat)) - np.cumsum(counts)[row_of] + np.minimum(counts, most)[row_of]
        kept_lengths = np.minimum(counts, most)
        return Column(padded(flat[place >= 0], kept_lengths, self._dtype), there, kept_lengths)

    def _presence(self, given: Sequence[bool], rows: int) -> np.ndarray:
        """Presence (rows,); none given means all present."""
        if not given:
            return _all(rows)
        if len(given) != rows:
            raise InvalidRequestError(
                f"feature {self.name!r}: expected no presence entries or {rows}, received "
                f"{len(given)}"
            )
        return np.fromiter(given, bool, rows)

    def _check_dtype(self, field: str) -> None:
        """Refuse values of another type; whole numbers are numbers."""
        received = _DTYPE_OF[field]
        if received == self._dtype or (received, self._dtype) == ("int64", "float32"):
            return
        raise InvalidRequestError(
            f"feature {self.name!r}: expected {self.describe()}, received {received}"
        )

    def _refuse_long(self, texts: Sequence[str]) -> None:
        longest = max(map(len, texts), default=0)
        if longest > LONGEST_TEXT:
            raise InvalidRequestError(
                f"feature {self.name!r}: expected texts of at most {LONGEST_TEXT} characters, "
                f"received one of {longest}"
            )

    def _refuse_non_finite(self, values: np.ndarray) -> None:
        finite = np.isfinite(values)
        if not np.logical_and.reduce(finite):
            row = int(np.argmin(finite))
            raise InvalidRequestError(
                f"feature {self.name!r}: expected {self.describe()}, received {values[row]} in "
                f"row {row}; leave out what is missing"
            )


def readers_of(contract: Contract, *sides: Any) -> dict[str, FeatureValues]:
    """A reader for every feature of some sides."""
    return {name: FeatureValues(name, feature) for name, feature in contract.of_side(*sides)}


@functools.lru_cache(maxsize=64)
def _all(rows: int) -> np.ndarray:
    """That all are present, (rows,); shared, so that nobody may write to it."""
    there = np.ones(rows, bool)
    there.setflags(write=False)
    return there
