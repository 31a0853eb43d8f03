"""What a column tells of an outcome, by which a measure of afterwards is told from a feature."""

import polars as pl

from multigate.jobs.onboarding.tables.columns import Column

_WORDS = 12  # values, of which each may tell an outcome
_FEWEST = 30  # of the rarer outcome
_TELLS = 0.02  # of the rarer outcome, which values that tell outcomes may confuse
_NESTED = 0.95  # of the rows above 0
_NO_CHANCE = 10  # rows that are expected, of which none or few are there
_SCALE = 12  # values that a scale has at most
_NEARLY_ALL = 0.97  # of the rows


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
    """Whether a number, or another flag, is above 0 only where a flag is 1, beyond chance."""
    if column.number is None or column.distinct < 2 or column.lowest < 0:
        return False
    rows = pl.DataFrame({"x": column.number, "flag": flag.number})
    above = rows.filter(pl.col("x") > 0)["flag"]
    share = float(rows["flag"].mean() or 0.0)
    return len(above) * (1 - share) >= _NO_CHANCE and float(above.mean() or 0.0) > _NESTED


def needed(column: Column, flag: Column) -> bool:
    """Whether a flag is never 1 where a column is 0 or missing, though by chance it often would be.

    Of numbers of few values, only a flag that is 1 nearly everywhere, as of what was seen, may be
    measured afterwards.
    """
    number, nearly = column.number, False
    if number is not None:
        nearly = column.flag and column.ones > _NEARLY_ALL * column.rows
        if not (nearly or column.distinct > _SCALE) or column.lowest < 0:
            return False
        lacks = number.fill_null(0) == 0
    else:
        lacks = column.raw.is_null()
    rows = pl.DataFrame({"lacks": lacks, "flag": flag.number}).drop_nulls("flag")
    lacking = rows.filter("lacks")["flag"]
    expected = float(rows["flag"].mean() or 0.0) * len(lacking)
    return expected >= (_NO_CHANCE if nearly else _FEWEST) and float(lacking.sum()) == 0
