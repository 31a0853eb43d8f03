"""Recognises columns that come of the policy that chose what was shown, by their values."""

import polars as pl

from multigate.jobs.onboarding.tables.columns import Column, decides

_FEW_ROWS = 10  # of an item
_FEW_ITEMS = 5
_FACTOR = 2.0  # that chance leaves to one item
_NEAR = 0.15  # that it leaves to all items together
_MOST = 0.9  # of the items
_DECIDES = 0.99


def of_the_policy(
    frame: pl.DataFrame, column: Column, item: str, request: str | None, place: str | None
) -> str | None:
    """Why a column is known when logging and not when serving; None where it may be a feature.

    The probability p with which a row's item was chosen obeys a law that no other number obeys:
    1 / p, added up over the rows of an item, is the number of all rows, for each item.

    Args:
        frame: the rows of items that were shown.
        column: of the log.
        item: the column of items.
        request: the column of requests, where there is one.
        place: the column of places, where there is one.
    """
    number = column.number
    if number is None or column.distinct < 2 or column.flag or column.is_list:
        return None
    if place is not None:
        alike = min(decides(frame, place, column.name), decides(frame, column.name, place))
        if alike > _DECIDES:
            return f"it is another name of the place {place!r}, which a request does not know"
    inverse = column.lowest >= 1
    if column.lowest <= 0 or (column.highest > 1 and not inverse):
        return None
    requests = pl.lit(None) if request is None else pl.col(request)
    rows = frame.select(item=pl.col(item), request=requests, p=1 / number if inverse else number)
    rows = rows.filter(pl.col("p").is_not_null())
    sums = rows.group_by("item").agg(rows=pl.len(), sum=(1 / pl.col("p")).sum())
    known = sums.filter(pl.col("rows") >= _FEW_ROWS)
    shares = known["sum"] / max(len(rows), 1)
    as_many = float(shares.is_between(1 / _FACTOR, _FACTOR).mean() or 0.0)
    of_all = float(sums["sum"].sum()) / max(len(rows) * len(sums), 1)
    if len(known) >= _FEW_ITEMS and as_many >= _MOST and abs(of_all - 1) < _NEAR:
        if inverse:
            return (
                "it is 1 over the probability with which the item was chosen (it adds up to the "
                "number of rows, for each item): a weight of rows, which columns.weight takes"
            )
        return (
            "it is the probability with which the item was chosen (1 over it adds up to the number "
            "of rows, for each item), known when logging and not when serving"
        )
    if inverse:
        return None
    lists = rows.group_by("request").agg(pl.col("p").sum(), rows=pl.len())
    lists = lists.filter((pl.col("rows") > 1) & pl.col("request").is_not_null())
    ones = float(lists["p"].is_between(0.99, 1.01).mean() or 0.0)
    if len(lists) >= _FEW_ROWS and ones >= _MOST:
        return "its values add up to 1 in a request, as the probabilities of a policy do"
    return None
