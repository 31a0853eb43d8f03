"""Makes ranking requests from examples, as a client would send them for users of the test split."""

from dataclasses import dataclass
from typing import Any

import polars as pl

from multigate.configs import Contract
from multigate.configs.contract import IdListFeature
from multigate.configs.files import TIME, ExamplesFolder


@dataclass(frozen=True)
class RankRequest:
    """One call of Rank: a user, the request's context and candidates by column."""

    user: dict[str, Any]
    context: dict[str, Any]
    item_ids: list[Any]
    columns: dict[str, list[Any]]


def requests_from_examples(
    contract: Contract, examples: ExamplesFolder, users: int = 3, candidates: int = 50
) -> list[RankRequest]:
    """Build requests for the test split's last users over its most frequent items.

    Args:
        contract: says which columns belong to user, context and items.
        examples: folder of examples.
        users: number of requests, each for another user.
        candidates: largest number of items in each request.

    Returns:
        One request per user, without the features that are missing.
    """
    test = pl.read_parquet(examples.split("test") / "*.parquet").sort(TIME, contract.user)
    last = test.unique(contract.user, keep="last", maintain_order=True).tail(users)
    # A rate by category is of one user and one item: the feature store looks it up.
    item_features = [n for n, _ in contract.of_side("item") if n not in contract.crosses()]
    items = (
        test.group_by(contract.item)
        .agg(pl.len().alias("__count"), *(pl.last(f) for f in item_features if f != contract.item))
        .sort(["__count", contract.item], descending=[True, False])
        .head(candidates)
    )
    columns = {name: items[name].to_list() for name in item_features if name != contract.item}
    return [
        RankRequest(
            user=_present(contract, row, "user"),
            context=_present(contract, row, "context"),
            item_ids=items[contract.item].to_list(),
            columns=columns,
        )
        for row in last.iter_rows(named=True)
    ]


def _present(contract: Contract, row: dict[str, Any], side: Any) -> dict[str, Any]:
    """The side's features that hold a value in this row; an empty list is left out."""
    values = {name: row[name] for name, _ in contract.of_side(side)}
    lists = {name for name, f in contract.of_side(side) if isinstance(f, IdListFeature)}
    return {n: v for n, v in values.items() if v is not None and not (n in lists and not v)}
