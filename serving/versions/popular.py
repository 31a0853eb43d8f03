"""Popular items: recommended where no candidates are found for a user.

They are in `assets.extra/popular.json`.  A candidate model lists the items that most users of its
training splits interacted with; a ranker lists those of the pipeline's data report.
"""

import json
from pathlib import Path

from multigate.configs.contract import Contract
from multigate.configs.errors import ServingError
from multigate.serving.core.layout import value_dtype
from multigate.serving.versions.folders import POPULAR

ItemId = bytes | int
"""A raw id of an item, of the type that the graph takes."""


def read_popular(folder: Path, contract: Contract) -> list[ItemId]:
    """The popular items of a version, most popular first; empty where it has no such file.

    Raises:
        ServingError: the file is damaged, or its ids are of another type than the contract's.
    """
    path = folder / POPULAR
    try:
        items = list(json.loads(path.read_text(encoding="utf-8"))["items"])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ServingError(
            f"{path}: cannot be read as a list of popular items: {error!r}"
        ) from None
    kind = str if value_dtype(contract.features[contract.item]) == "string" else int
    for item in items:
        if type(item) is not kind:
            raise ServingError(
                f"{path}: expected ids of {contract.item!r}, each "
                f"{'a text' if kind is str else 'a whole number'}, received {item!r}"
            )
    return [item.encode() if isinstance(item, str) else item for item in items]
