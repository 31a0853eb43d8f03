"""Users to forget: the job's output holds nothing of them.

Their rows are left out before anything is computed, as if they had never existed. So they are in no
example, vocabulary or snapshot, and count neither in the counters of items nor in the popularity by
which negatives are drawn.
"""

import polars as pl

from multigate.configs import Config, DataError
from multigate.configs.storage import Place
from multigate.pipeline.core.columns import id_type
from multigate.pipeline.read.parse import parse_id
from multigate.pipeline.read.places import find


def read_list(config: Config, data: Place, forget: Place | None) -> pl.Series | None:
    """Read the ids of the users to forget.

    Args:
        config: names the list (`pipeline.forget`, relative to the data folder).
        data: the data folder.
        forget: a further list.

    Returns:
        The ids, sorted, each once, with the blanks around them and without; None where there is no
        list. Messages name lines, never ids.

    Raises:
        DataError: a list is missing, is no UTF-8 text, or holds a line that cannot be an id.
    """
    places: list[tuple[Place, str]] = []
    if config.pipeline.forget is not None:
        places = find(data, config.pipeline.forget)
        if not places:
            raise DataError(f"{data}: no file {config.pipeline.forget!r} of users to forget")
    if forget is not None:
        if not forget.is_file():
            raise DataError(f"{forget}: no such file; expected ids of users to forget, one a line")
        places.append((forget, str(forget)))
    if not places:
        return None
    return pl.concat([_read(place, name, config) for place, name in places]).unique().sort()


def _read(place: Place, name: str, config: Config) -> pl.Series:
    with place.open("rb") as raw:
        data = raw.read()
    try:
        # An id may hold what `splitlines` takes for the end of a line, such as U+2028.
        lines = [line.removesuffix("\r") for line in data.decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError:
        raise DataError(f"{name}: expected UTF-8 text, one user id a line") from None
    raw_ids = pl.Series("user", lines, dtype=pl.String)
    ids = parse_id(raw_ids, id_type(config, config.contract.user))
    wrong = ids.reasons.is_not_null().arg_true()
    if len(wrong):
        raise DataError(f"{name}: line {wrong[0] + 1}: {ids.reasons[wrong[0]]}")
    found = ids.values.drop_nulls()
    if found.dtype == pl.String:  # a blank that an editor left must not keep a user
        found = pl.concat([found, found.str.strip_chars(" \t")])
    return found


def without(rows: pl.DataFrame, key: str, forgotten: pl.Series | None) -> pl.DataFrame:
    """The rows of all other users."""
    if forgotten is None:
        return rows
    return rows.filter(~pl.col(key).is_in(forgotten.implode()))
