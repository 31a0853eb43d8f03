"""A ranker's weights as a file: HDF5 with one named data set per variable.

    embeddings/<feature>    gates/<task>/<variable>         estimators/<task>/<variable>
    experts/<number>/...    towers/<task>/<variable>        position/<variable>
    uncertainty/<variable>  wide/<feature or cross>         attention/<list>/<variable>
    sequence/<list>/<variable>                              own/<task>/<number>/...
    numbers/<feature>       cross/<variable>                linear/<variable>
    factors/<pair>/<part of its tables>, only of pairs that help some task
    moments/<name>          of Adam, see `model.training.row_moments`; for warm starts alone

where a variable is its index in the layer and its name, such as `0_kernel`.

Keras's own weights file was considered: it names a layer by class and number, and also holds the
optimiser's variables.  Here the variables of a task or feature keep their names when others come or
go, and inference reads the file without an optimiser.
"""

import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from multigate.configs.errors import ModelError
from multigate.configs.files import write_bytes
from multigate.model.moe.experts import Expert
from multigate.model.ranker.factors.term import Factors, Pair, PairTables
from multigate.model.ranker.ranker import Ranker
from multigate.model.ranker.wide import CROSSED


def variables(ranker: Ranker) -> dict[str, Any]:
    """All variables by name, without the states of random generators and of the optimiser."""
    named: dict[str, Any] = {}
    for owner, table in ranker.embedder.tables.items():
        named[f"embeddings/{owner}"] = table.embeddings
    if ranker.wide is not None:
        for name, table in ranker.wide.tables.items():
            named[f"wide/{name}"] = table.embeddings
    if ranker.factors is not None:
        for pair, tables in ranker.factors.pairs.items():
            for part, variable in tables._asdict().items():
                named[f"{FACTORS}{CROSSED.join(pair)}/{part}"] = variable
    for name, projection in ranker.embedder.projections.items():
        named[f"projections/{name}"] = projection.kernel
    for name, variable in ranker.embedder.rescaled.items():
        named[f"numbers/{name}"] = variable
    for name, layer in _layers(ranker):
        # The layer of an expert may hold parts of stacked variables, which Keras does not list.
        weights = layer.named_weights() if isinstance(layer, Expert) else layer.weights
        for index, variable in enumerate(weights):
            # Not the variable's path: Keras numbers layers by all that the process has made.
            named[f"{name}/{index}_{variable.name}"] = variable
    return named


_MOMENTS, LINEAR, FACTORS = "moments/", "linear/", "factors/"


def save(ranker: Ranker, path: Path, moments: Mapping[str, np.ndarray] | None = None) -> None:
    """Write the weights atomically: after an error the file is as it was.

    Args:
        ranker: with the weights.
        path: of the file.
        moments: of Adam, by the name of the weights.
    """
    # In memory first, because HDF5 ends the process when the disk is full.
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for name, variable in variables(ranker).items():
            file[name] = to_numpy(variable)
        for name, values in (moments or {}).items():
            file[_MOMENTS + name] = values
    write_bytes(path, content.getbuffer())


def load(ranker: Ranker, path: Path) -> None:
    """Set the ranker's weights to those of a file, to use them.

    A file of a version without a linear term has no lines.

    Raises:
        ModelError: the file is missing or damaged, or a variable is missing, unknown or of another
            shape.
    """
    found = read(path)
    fresh = {k: to_numpy(v) for k, v in variables(ranker).items() if k.startswith(LINEAR)}
    if not fresh.keys() & found.keys():
        found |= fresh
    _add_factors(ranker, found, path)
    assign(ranker, found, path)
    if ranker.linear is not None:
        ranker.linear.active = bool(to_numpy(ranker.linear.line).any())


def _add_factors(ranker: Ranker, found: Mapping[str, np.ndarray], path: Path) -> None:
    """Give a ranker the factors of a file, if that has some.

    Raises:
        ModelError: they are of other numbers of values.
    """
    contract, embedder = ranker.contract, ranker.embedder
    names = {name.removeprefix(FACTORS) for name in found if name.startswith(FACTORS)}
    pairs: dict[Pair, PairTables] = {}
    for joined in sorted({name.rpartition("/")[0] for name in names}):
        if lost := [part for part in PairTables._fields if f"{joined}/{part}" not in names]:
            raise ModelError(
                f"{path}: variable {FACTORS}{joined}/{lost[0]}: missing in the file; train again"
            )
        tables = PairTables(*(found[f"{FACTORS}{joined}/{part}"] for part in PairTables._fields))
        one, _, other = joined.partition(CROSSED)
        for name, table, edges in (
            (one, tables.first, tables.first_edges),
            (other, tables.second, tables.second_edges),
        ):
            rows = len(edges) + 1
            if not len(edges):
                owner = contract.vocabulary_of(name)
                rows = embedder.tables[owner].embeddings.shape[0]
            elif contract.features[name].missing == "indicator":
                rows += 1
            if len(table) != rows:
                raise ModelError(
                    f"{path}: variable {FACTORS}{joined}: expected {rows} rows of {name}, received "
                    f"{len(table)}; train again"
                )
        pairs[one, other] = tables
    if pairs:
        ranker.factors = Factors(pairs, len(contract.tasks), name="factors")


def read(path: Path) -> dict[str, np.ndarray]:
    """The weights in a file, by name.

    Raises:
        ModelError: the file is missing or damaged.
    """
    return _read(path, lambda name: not name.startswith(_MOMENTS))


def read_moments(path: Path) -> dict[str, np.ndarray]:
    """The moments of Adam in a file, by the name of the weights; see `read`."""
    found = _read(path, lambda name: name.startswith(_MOMENTS))
    return {name.removeprefix(_MOMENTS): values for name, values in found.items()}


def _read(path: Path, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}

    def add(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and wanted(name):
            found[name] = item[()]

    try:
        with h5py.File(path, "r") as file:
            file.visititems(add)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; train again") from None
    except (OSError, KeyError) as error:
        raise ModelError(f"{path}: damaged: {error}; train again") from None
    return found


def assign(ranker: Ranker, found: dict[str, np.ndarray], path: Path) -> None:
    """Set the ranker's weights to `found`; error messages name `path`.

    Raises:
        ModelError: a variable is missing, unknown or of another shape.
    """
    expected = variables(ranker)
    for name in sorted(expected.keys() ^ found.keys()):
        where = "missing in the file" if name in expected else "unknown to this configuration"
        raise ModelError(f"{path}: variable {name}: {where}; train again")
    for name, variable in expected.items():
        if tuple(variable.shape) != found[name].shape:
            raise ModelError(
                f"{path}: variable {name}: expected shape {tuple(variable.shape)}, received "
                f"{found[name].shape}; train again"
            )
    for name, variable in expected.items():
        variable.assign(found[name])


def copy(ranker: Ranker) -> dict[str, np.ndarray]:
    """A copy of the current weights, by name."""
    return {name: to_numpy(variable) for name, variable in variables(ranker).items()}


def _layers(ranker: Ranker) -> Iterator[tuple[str, keras.layers.Layer]]:
    for name, attention in ranker.embedder.attentions.items():
        yield f"attention/{name}", attention
    for name, sequence in ranker.embedder.sequences.items():
        yield f"sequence/{name}", sequence
    if ranker.cross is not None:
        yield "cross", ranker.cross
    if ranker.linear is not None:
        yield "linear", ranker.linear
    names = {
        number: f"own/{task}/{place}"
        for task, numbers in ranker.own_experts().items()
        for place, number in enumerate(numbers)
    }
    for number, expert in enumerate(ranker.mixture.experts):
        yield names.get(number, f"experts/{number}"), expert
    for name, gate in zip(ranker.gate_names, ranker.mixture.gates, strict=True):
        yield f"gates/{name}", gate
    for task, tower in ranker.towers.items():
        yield f"towers/{task}", tower
    for task, estimator in ranker.estimators.items():
        yield f"estimators/{task}", estimator
    if ranker.position_tower is not None:
        yield "position", ranker.position_tower
    if ranker.uncertainty is not None:
        yield "uncertainty", ranker.uncertainty


def to_numpy(variable: Any) -> np.ndarray:
    """A copy of a variable's value."""
    # `np.asarray(variable)` would warn under NumPy 2: Keras's `__array__` takes no `copy`.
    return np.array(variable.__array__())
