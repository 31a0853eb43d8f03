"""Exported candidate versions, called as they are served."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from multigate.candidates.evaluation import Questions
from multigate.candidates.pairs import Catalogue, Pairs
from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.errors import ModelError, one_line
from multigate.model.data.raw import Raw, raw_values, take
from multigate.runtime.errors import ModelRuntimeError
from multigate.runtime.signature import Signature, load_signatures

SIGNATURE = "retrieve"
_CONTRACT, _METRICS = "assets.extra/contract.json", "assets.extra/metrics.json"
_USERS_AT_ONCE = 64


class Exported:
    """A candidate version's file.

    Args:
        folder: `<base>/<number>/`.

    Raises:
        ModelError: it is not a version of a candidate model.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._signature = load_signature(folder, SIGNATURE)

    def positives(self) -> str:
        """The task whose positives the model was trained to find.

        Raises:
            ModelError: the version does not say.
        """
        path = self.folder / _METRICS
        try:
            return str(json.loads(path.read_text(encoding="utf-8"))["positives"])
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"{path}: {error!r}; export the candidate model again") from None

    def retrieve(self, users: Raw, k: int) -> np.ndarray:
        """Raw ids (U, K) of the best k items of U users, best first."""
        return self._signature(users | {"k": np.array(k, np.int32)})["items"]

    def retrieved(
        self, contract: Contract, pairs: Pairs, questions: Questions, items: Catalogue, k: int
    ) -> Iterator[tuple[int, Raw, np.ndarray]]:
        """The best items of each question.

        Yields:
            The question's row, the raw user (one row), and rows of the catalogue, best first: k and
            as many more as a user may have seen. Items that the user has seen are among them.
        """
        names = [name for name, _ in contract.of_side("user", "context")]
        users = raw_values(contract, pairs.table[questions.rows].to_arrow(), names)
        places = {
            (item.encode() if isinstance(item, str) else item): place
            for place, item in enumerate(items.ids.tolist())
        }
        # Seen items are left out later, and here those that only the test split names.
        spare = int(np.diff(questions.seen.indptr).max(initial=0))
        everything = 2**31 - 1
        for start in range(0, len(questions), _USERS_AT_ONCE):
            batch = slice(start, min(start + _USERS_AT_ONCE, len(questions)))
            count = k + spare
            while True:
                found = self.retrieve(take(users, batch), min(count, everything))
                known = [[places[one] for one in row if one in places] for row in found.tolist()]
                if found.shape[1] < count or min(map(len, known)) >= k + spare:
                    break
                count *= 2
            for row, row_places in zip(range(batch.start, batch.stop), known, strict=True):
                yield row, take(users, slice(row, row + 1)), np.array(row_places, np.int64)


def load_signature(folder: Path, signature: str) -> Signature:
    """Load a signature of a version.

    Raises:
        ModelError: the folder is no version, or the version has no such signature.
    """
    try:
        signatures = load_signatures(folder)
    except ModelRuntimeError as error:
        reason = one_line(error)
        raise ModelError(f"{folder}: expected an exported version: {reason}") from None
    if signature not in signatures:
        raise ModelError(
            f"{folder}: expected a version with signature {signature!r}, received "
            f"{', '.join(signatures) or 'none'}"
        )
    return signatures[signature]


def contract_of(version: Path) -> FrozenContract:
    """The contract inside a version, of either model."""
    return FrozenContract.read(version / _CONTRACT)
