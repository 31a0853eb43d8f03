"""Rows of a file that explanations compare with, in place of those that a version holds."""

import numpy as np
import pyarrow as pa

from multigate.configs.errors import DataError, ServingError
from multigate.configs.storage import Place
from multigate.explanation.document import BACKGROUND
from multigate.jobs.scoring.columns import as_bytes, features_of, rows_lacking
from multigate.jobs.scoring.rows import read_parts
from multigate.model.data.raw import raw_values
from multigate.serving.core.layout import default_layout
from multigate.serving.rpc.prediction import check_inputs
from multigate.serving.versions.explaining import Background
from multigate.serving.versions.saved_model import SavedModel


def read_background(path: Place, saved_model: SavedModel, most: int = BACKGROUND) -> Background:
    """Rows to compare with: evenly spread over the file, at most so many.

    Args:
        path: file of rows with all features, as `score` takes one; or its address.
        saved_model: the version that scores them.
        most: rows.

    Raises:
        DataError: the file cannot be read, has no rows, or a row does not fit the contract.
    """
    contract = saved_model.contract
    names = [name for name, _ in contract.of_side("user", "context", "item")]
    required = [name for name in names if contract.features[name].missing == "error"]
    parts, places, count = [], [], 0
    for part in read_parts(path, contract):
        absent = [name for name in names if name not in part.column_names]
        if absent:
            some = ", ".join(map(repr, absent[:5])) + (", ..." if len(absent) > 5 else "")
            raise DataError(
                f"{path}: expected a column for each feature, as the rows of examples have, no "
                f"column for {len(absent)}: {some}"
            )
        try:
            rows = features_of(contract, part)
        except DataError as error:
            raise DataError(f"{path}: from row {count} on: {error}") from None
        for row, lacking in rows_lacking(rows, required).items():
            raise DataError(
                f"{path}: row {count + row}: feature {lacking[0]!r}: expected a value (missing: "
                "error), received none"
            )
        kept = np.unique(np.linspace(0, len(rows) - 1, most).astype(np.int64))
        if len(rows):
            parts.append(rows.take(kept))
            places.append(count + kept)
        count += len(rows)
    if not count:
        raise DataError(f"{path}: no rows; expected some to compare with")
    known, wanted = np.concatenate(places), np.linspace(0, count - 1, most)
    chosen = np.unique(np.abs(known[:, None] - wanted).argmin(axis=0))
    table = pa.concat_tables(parts).take(chosen)
    raw = {
        name: as_bytes(values) if values.dtype == object else values
        for name, values in raw_values(contract, table, names).items()
    }
    try:
        checked, _ = check_inputs(raw, default_layout(contract), contract, len(table))
    except ServingError as error:
        raise DataError(f"{path}: {error}") from None
    return Background(checked, f"rows of {path.name}")
