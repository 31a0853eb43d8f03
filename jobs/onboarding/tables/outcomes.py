"""What a column tells of an outcome, by which a measure of afterwards is told from a feature."""

import polars as pl

from multigate.jobs.onboarding.tables.columns import Column

_WORDS = 12  # values, of which each may tell an outcome
_FEWEST = 30  # of the rarer outcome
_TELLS = 0.02  # of the rarer outcome, which values that tell outcomes may confuse
_OUTSIDE, _OF_CHANCE = 0.05, 0.1  # of the rows above 0, and of those that chance would leave
_NO_CHANCE = 10  # rows that are expected, of which none or few are there
_SCALE = 12  # values that a scale has at most
NEARLY_ALL = 0.97
"""The share of the rows from which on a flag tells nothing apart."""


def tells(column: Column, flag: Column) -> bool:
    """Whether a column has some values where a flag is 1 and others where it is 0.

    So do weights that were set by the outcome, and words for it; of a column of many values, only
    whether there is one counts.
    """
    if column.is_list:
        return False
    values = column.raw if column.distinct <= _WORDS else column.raw.is_null()
    rows = pl.DataFrame({"value": values, "flag": flag.number}).drop_nulls("flag")
    counts = rows.group_by("value").agg(
        ones=(pl.col("flag") == 1).sum(), zeros=(pl.col("flag") == 0).sum()
    )
    rarer = min(int(counts["ones"].sum()), int(counts["zeros"].sum()))
    confused = int(counts.select(pl.min_horizontal("ones", "zeros").sum()).item())
    return rarer >= _FEWEST and confused <= _TELLS * rarer


def needs(column: Column, flag: Column) -> bool:
    """Whether a number is above 0, or one of a few words stands, only where a flag is 1.

    Chance would leave ten such rows or more where it is 0.
    """
    if column.number is not None:
        if column.distinct < 2 or column.lowest < 0:
            return False
        some = [column.number > 0]
    elif column.is_list or column.distinct > _WORDS:
        return False
    else:
        some = [column.raw == word for word in column.raw.drop_nulls().unique()]
    rows = pl.DataFrame({"flag": flag.number})
    share = float(rows["flag"].mean() or 0.0)
    most = min(_OUTSIDE, _OF_CHANCE * (1 - share))
    found = (rows.filter(one)["flag"].drop_nulls() for one in some)
    return any(
        len(flags) * (1 - share) >= _NO_CHANCE and 1 - float(flags.mean() or 0.0) < most
        for flags in found
    )


def needed(column: Column, flag: Column) -> bool:
    """Whether a flag is never 1 where a column is 0 or missing, though by chance it often would be.

    Of numbers of few values, only a flag that is 1 nearly everywhere, as of what was seen, may be
    measured afterwards.
    """
    number, nearly = column.number, False
    if number is not None:
        nearly = column.flag and column.ones > NEARLY_ALL * column.rows
        if not (nearly or column.distinct > _SCALE) or column.lowest < 0:
            return False
        lacks = number.fill_null(0) == 0
    else:
        lacks = column.raw.is_null()
    rows = pl.DataFrame({"lacks": lacks, "flag": flag.number}).drop_nulls("flag")
    lacking = rows.filter("lacks")["flag"]
    expected = float(rows["flag"].mean() or 0.0) * len(lacking)
    return expected >= (_NO_CHANCE if nearly else _FEWEST) and float(lacking.sum()) == 0
