"""Popular items, which stand in where no candidates are found for a user.

`assets.extra/popular.json`: of a candidate model the items that most users of its training splits
had touched, of a ranker those that the pipeline's report names.
"""

import json
from pathlib import Path

from multigate.configs.contract import Contract
from multigate.configs.errors import ServingError
from multigate.serving.core.layout import value_dtype
from multigate.serving.versions.folders import POPULAR

Id = bytes | int
"""A raw id as the graph has it."""


def read_popular(folder: Path, contract: Contract) -> list[Id]:
    """The popular items of a version, most popular first; none where it carries none.

    Raises:
        ServingError: the file is damaged, or its ids are of another type than the contract's.
    """
    path = folder / POPULAR
    try:
        items = list(json.loads(path.read_text(encoding="utf-8"))["items"])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ServingError(f"{path}: not a list of popular items: {error!r}") from None
    kind = str if value_dtype(contract.features[contract.item]) == "string" else int
    for item in items:
        if type(item) is not kind:
            raise ServingError(
                f"{path}: expected ids of {contract.item!r}, each "
                f"{'a text' if kind is str else 'a whole number'}, received {item!r}"
            )
    return [item.encode() if isinstance(item, str) else item for item in items]
