"""Raw inputs of a signature as the rows that an explanation mixes.

`f` (n,), of vectors `f` (n, S), of lists `f` (n, L) with `f__length` (n,), and `f__present` (n,)
where a feature may be missing.  Row B is the explained one, the rows before it are the background.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from multigate.configs.contract import LENGTH, PRESENT, Contract
from multigate.explanation.document import places_of
from multigate.explanation.shapley import Sources

Arrays = Mapping[str, np.ndarray]


def stacked(background: Arrays, row: Arrays) -> dict[str, np.ndarray]:
    """Background rows (B) and then one row; lists are as wide as the widest, at least 1."""
    made = {}
    for name, values in background.items():
        parts = [_texts_as_bytes(values), _texts_as_bytes(row[name])]
        if name + LENGTH in background:
            width = max(1, *(part.shape[1] for part in parts))
            parts = [_widened(part, width) for part in parts]
        made[name] = np.concatenate(parts)
    return made


def mixed(contract: Contract, rows: Arrays, sources: Sources) -> dict[str, np.ndarray]:
    """The rows (n) whose groups come from the rows that `sources` names."""
    places = places_of(contract)
    return {name: values[sources[:, places[_feature_of(name)]]] for name, values in rows.items()}


def differing(contract: Contract, rows: Arrays) -> np.ndarray:
    """Whether each background row differs from the explained one in each group, (B, G) bool."""
    places = places_of(contract)
    B = len(next(iter(rows.values()))) - 1
    found = np.zeros((B, 1 + max(places.values())), bool)
    for name, values in rows.items():
        differs = np.asarray(values[:B] != values[B]).reshape(B, -1).any(axis=1)
        found[:, places[_feature_of(name)]] |= differs
    return found


def values_of(contract: Contract, rows: Arrays, row: int) -> dict[str, Any]:
    """A row's values as JSON has them, by feature; None where missing."""
    found: dict[str, Any] = {}
    for name in places_of(contract):
        value = rows[name][row]
        if name + PRESENT in rows and not rows[name + PRESENT][row]:
            found[name] = None
        elif name + LENGTH in rows:
            found[name] = [_plain(one) for one in value[: rows[name + LENGTH][row]]]
        else:
            found[name] = [_plain(v) for v in value] if np.ndim(value) else _plain(value)
    return found


def _feature_of(name: str) -> str:
    """The feature that an input of a signature belongs to."""
    return name.removesuffix(PRESENT).removesuffix(LENGTH)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, np.floating):
        return float(f"{value:.7g}")  # a float32 has no more digits
    return value.item() if isinstance(value, np.generic) else value


def _texts_as_bytes(values: np.ndarray) -> np.ndarray:
    if values.dtype != object:
        return values
    found = np.empty(values.shape, object)
    found.ravel()[:] = [v.encode() if isinstance(v, str) else v for v in values.flat]
    return found


def _widened(values: np.ndarray, width: int) -> np.ndarray:
    """Lists (n, L) as (n, width)."""
    missing = (len(values), width - values.shape[1])
    filler = np.full(missing, b"" if values.dtype == object else 0, values.dtype)
    return np.concatenate([values, filler], axis=1)
