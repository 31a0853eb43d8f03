"""The embedded feature store: the pipeline's snapshot as memory-mapped arrays in a version folder.

    snapshot/manifest.json          schema fingerprint, cut-off, rows, priors, CRC-32 of every file
    snapshot/{users,items}/         one row per id, in the order of `keys`
        keys.npy                    (R,) int64 ids; for text ids their CRC-32, beside the texts
        NAME.npy                    (R,) float32 (NaN: missing) or int64; lists: values end to end
        NAME.present.npy            (R,) bool, for int64 only
        NAME.ends.npy               (R + 1,) int64, for lists: where each row's values begin and end
        NAME.codes.npy              in place of NAME.npy for texts: (R,) int32, -1 missing, into
        NAME.texts.npy              the distinct texts end to end, uint8, and
        NAME.places.npy             (P + 1,) int64, where each begins and ends

Ids are found by binary search, and values are gathered with a few operations on whole arrays.
Needs NumPy only; `serving.feature_store.snapshot_writer` writes it.

LMDB and Arrow files were considered: LMDB reads and decodes one id at a time, and Arrow would make
pyarrow a requirement of every server.
"""

import zlib
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import numpy as np

from multigate.configs.contract import (
    Contract,
    IdListFeature,
    NumberFeature,
    Side,
    VectorFeature,
)
from multigate.configs.errors import ServingError
from multigate.serving.core.layout import value_dtype
from multigate.serving.feature_store.interface import (
    Column,
    FeatureAnswer,
    FeatureQuery,
    all_present,
    missing_column,
    pad_lists,
    parse_cut_off,
    read_manifest,
    stored_columns,
)

FORMAT = 1
MANIFEST = "manifest.json"
SOURCES: tuple[tuple[Side, str], ...] = (("user", "users"), ("item", "items"))
KEYS = "keys"

_KEPT_TEXTS = 1 << 16
"""Up to so many distinct texts of a feature, or ids of a side, are kept as Python objects (some
5 MB): a look-up of 500 ids takes 40 us instead of 200.  Larger tables stay in their files."""
_KEPT_NUMBERS = 1 << 22
"""Up to so many numbers of a side (16 MB) are kept together, so that a look-up gathers all of its
number features at once.  Those of larger tables stay in their files, one for each feature."""


class SnapshotManifest(TypedDict):
    """The snapshot's `manifest.json`."""

    format: int
    schema: str
    cut_off: str | None
    """ISO 8601."""
    rows: dict[str, int]
    """By source: `users`, `items`."""
    files: dict[str, int]
    """CRC-32 by path."""
    priors: NotRequired[dict[str, float]]
    """By feature, the rate or mean of an id without past labels; where the contract has any."""


class Snapshot:
    """Features of users and items in memory-mapped files."""

    remote = False

    def __init__(self, folder: Path, contract: Contract, schema: str) -> None:
        """Open a snapshot and check it, which also reads its files into the page cache.

        Args:
            folder: holds `manifest.json`.
            contract: of the version.
            schema: the contract's fingerprint.

        Raises:
            ServingError: the snapshot is damaged, or of another schema.
        """
        manifest = cast(SnapshotManifest, read_manifest(folder / MANIFEST))
        try:
            if (manifest["format"], manifest["schema"]) != (FORMAT, schema):
                raise ServingError(
                    f"{folder}: expected format {FORMAT} and schema {schema}, received format "
                    f"{manifest['format']} and schema {manifest['schema']}; export the version "
                    "again"
                )
            for name, recorded in manifest["files"].items():
                if checksum(folder / name) != recorded:
                    raise ServingError(f"{folder / name}: damaged; export the version again")
            self._cut_off = parse_cut_off(manifest["cut_off"])
            self._priors = manifest.get("priors", {})
            self.rows = manifest["rows"]
            self._sides = {
                side: _Side(folder / source, contract, side, manifest["rows"][source])
                for side, source in SOURCES
                if source in manifest["rows"]
            }
        except (OSError, EOFError) as error:
            raise ServingError(f"{folder}: incomplete snapshot: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ServingError(f"{folder}: incomplete snapshot: {error!r}") from None

    def read(self, query: FeatureQuery) -> FeatureAnswer:
        """Look up features; those of ids that are not here are missing."""
        columns: dict[str, Column] = {}
        lacks_user = False
        if (users := self._sides.get("user")) and query.user is not None:
            ids = np.empty(1, np.int64 if isinstance(query.user, int) else object)
            ids[0] = query.user
            found, known = users.read(ids, query.user_features)
            lacks_user = not known[0]
            columns |= found
        lacks_items: np.ndarray | None = None
        if (items := self._sides.get("item")) and query.item_features:
            found, known = items.read(query.items, query.item_features)
            lacks_items = None if known.all() else np.flatnonzero(~known)
            columns |= found
        return FeatureAnswer(
            columns,
            cut_off=self._cut_off,
            priors=self._priors,
            lacks_user=lacks_user,
            lacks_items=lacks_items,
        )

    def close(self) -> None:
        """Nothing to do: the files are unmapped once no answer refers to them."""


class _Side:
    """The table of users, or of items."""

    def __init__(self, folder: Path, contract: Contract, side: Side, rows: int) -> None:
        name = contract.user if side == "user" else contract.item
        self._rows = rows
        self._keys = _mapped(folder, KEYS)
        text = value_dtype(contract.features[name]) == "string"
        self._texts = _Texts(folder, KEYS, keep=False) if text else None
        self._row_of: dict[bytes, int] | None = None
        if self._texts is not None and rows <= _KEPT_TEXTS:
            texts = self._texts.take(np.arange(len(self._keys))).tolist()
            self._row_of = dict(zip(texts, range(rows), strict=True))
        self._features: dict[str, Any] = stored_columns(contract, side)
        self._columns = {
            name: _File(folder, name, feature) for name, feature in self._features.items()
        }
        lengths = {len(self._keys), *(column.rows for column in self._columns.values())}
        if lengths != {rows}:
            raise ValueError(f"{folder.name}: expected {rows} rows, received {sorted(lengths)}")
        numbers = {
            name: _mapped(folder, name)
            for name, feature in self._features.items()
            if isinstance(feature, NumberFeature)
        }
        kept = 0 < rows * len(numbers) <= _KEPT_NUMBERS
        self._numbers = _Numbers(numbers) if kept else None

    def read(self, ids: np.ndarray, names: Any) -> tuple[dict[str, Column], np.ndarray]:
        """Features of some ids, and which of these ids are here."""
        rows = self._find(ids)
        known = rows >= 0
        if not known.any():
            return {name: missing_column(self._features[name], len(ids)) for name in names}, known
        rows = np.where(known, rows, 0)
        found: dict[str, Column] = {}
        if self._numbers is not None:
            found = self._numbers.read(rows, known, names)
        for name in names:
            if name not in found:
                found[name] = self._columns[name].read(rows, known)
        return found, known

    def _find(self, ids: np.ndarray) -> np.ndarray:
        """Row of each id, -1 where it is not in the table: (N,) int64."""
        if (row_of := self._row_of) is not None:
            return np.array([row_of.get(text, -1) for text in ids.tolist()], np.int64)
        found = np.full(len(ids), -1)
        if self._texts is None:
            keys = ids
        else:
            keys = np.fromiter(map(zlib.crc32, ids.tolist()), np.uint32, len(ids))
        at = np.searchsorted(self._keys, keys)
        left = np.arange(len(ids))
        # One round; texts that share a CRC-32 need one round more each.
        while len(left):
            left = left[at[left] < self._rows]
            left = left[self._keys[at[left]] == keys[left]]
            if self._texts is None:
                same = np.ones(len(left), bool)
            else:
                same = self._texts.take(at[left]) == ids[left]
            found[left[same]] = at[left[same]]
            left = left[~same]
            at[left] += 1
        return found


class _Numbers:
    """A side's number features, gathered together."""

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self._place = {name: place for place, name in enumerate(columns)}
        self._values = np.stack(list(columns.values()))  # (F, R)

    def read(self, rows: np.ndarray, known: np.ndarray, names: Any) -> dict[str, Column]:
        """The number features among some names."""
        values = self._values.take(rows, axis=1)
        present = ~np.isnan(values)
        present &= known
        values[~present] = 0
        everyone = all_present(len(rows))
        complete = np.logical_and.reduce(present, axis=1).tolist()
        return {
            name: Column(values[place], everyone if complete[place] else present[place])
            for name in names
            if (place := self._place.get(name)) is not None
        }


class _File:
    """One feature's values, for all rows."""

    def __init__(self, folder: Path, name: str, feature: Any) -> None:
        self._feature = feature
        self._dtype = value_dtype(feature)
        text = self._dtype == "string"
        self._values = _mapped(folder, f"{name}.codes" if text else name)
        self._texts = _Texts(folder, name, keep=True) if text else None
        self._ends = self._present = None
        if isinstance(feature, IdListFeature):
            self._ends = _mapped(folder, f"{name}.ends")
        elif self._dtype == "int64":
            self._present = _mapped(folder, f"{name}.present")
        self.rows = len(self._values) if self._ends is None else len(self._ends) - 1

    def read(self, rows: np.ndarray, known: np.ndarray) -> Column:
        if self._ends is not None:
            stops = self._ends[rows + 1]
            lengths = np.minimum(stops - self._ends[rows], self._feature.max_length)
            lengths = np.where(known, lengths, 0)
            # Positions stop - length, ..., stop - 1 of every row, concatenated.
            last = np.cumsum(lengths)
            places = np.arange(last[-1]) + np.repeat(stops - last, lengths)
            flat = self._decode(self._values[places])
            return Column(pad_lists(flat, lengths, self._dtype), known, lengths)
        values = self._values[rows]
        if self._texts is not None:
            known = known & (values >= 0)
            return Column(self._texts.take(np.where(known, values, -1)), known)
        if isinstance(self._feature, VectorFeature):
            known = known & ~np.isnan(values[:, 0])
            return Column(np.where(known[:, None], values, np.float32(0)), known)
        if isinstance(self._feature, NumberFeature):
            known = known & ~np.isnan(values)
        else:
            assert self._present is not None
            known = known & self._present[rows]
        return Column(np.where(known, values, 0).astype(self._dtype), known)

    def _decode(self, values: np.ndarray) -> np.ndarray:
        return values if self._texts is None else self._texts.take(values)


class _Texts:
    """Texts stored end to end."""

    def __init__(self, folder: Path, name: str, *, keep: bool) -> None:
        self._places = _mapped(folder, f"{name}.places")
        self._bytes = _mapped(folder, f"{name}.texts").data
        count = len(self._places) - 1
        self._kept = None
        if keep and count <= _KEPT_TEXTS:
            self._kept = np.append(self.take(np.arange(count)), np.array([b""], object))

    def take(self, codes: np.ndarray) -> np.ndarray:
        """Texts by code, (n,) bytes objects; the empty text for -1."""
        if self._kept is not None:
            return self._kept[codes]
        found = np.empty(len(codes), object)
        starts, ends = self._places[codes].tolist(), self._places[codes + 1].tolist()
        # Code -1 spans from the last place to the first: empty.
        found[:] = [self._bytes[a:b].tobytes() for a, b in zip(starts, ends, strict=True)]
        return found


def _mapped(folder: Path, name: str) -> np.ndarray:
    """An array in a file, read page by page as it is used."""
    path = folder / f"{name}.npy"
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    return np.asarray(array)


def checksum(path: Path) -> int:
    """CRC-32 of a file."""
    found = 0
    with path.open("rb") as file:
        while part := file.read(1 << 22):
            found = zlib.crc32(part, found)
    return found
