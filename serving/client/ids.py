"""Ids in requests that people write by hand."""

import re
from typing import Any


def fit_ids(contract: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Feature values with ids in the type that the model's have: `"12"` is 12 where ids are whole.

    Whoever writes a request by hand need not know which ids the model reads as numbers. What does
    not fit stays as it is, so that the server names it.

    Args:
        contract: what `RankClient.contract` returned.
        values: by feature, one value or a list.
    """
    types = {feature.name: feature.dtype for feature in contract.features}

    def fit(value: Any, dtype: str | None) -> Any:
        if isinstance(value, list):
            return [fit(one, dtype) for one in value]
        if dtype == "int" and isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value):
            return int(value) if -(2**63) <= int(value) < 2**63 else value
        if dtype == "string" and type(value) is int:
            return str(value)
        return value

    return {name: fit(value, types.get(name)) for name, value in values.items()}
