"""Exported candidate versions, called as they are served."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from multigate.candidates.evaluation import Questions
from multigate.candidates.keras2 import tf
from multigate.candidates.pairs import Catalogue, Pairs
from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.errors import ModelError
from multigate.model.data.raw import Raw, raw_values, take

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
        self._model = load_version(folder, SIGNATURE)  # its signatures need it alive
        self._signature = self._model.signatures[SIGNATURE]

    def positives(self) -> str:
        """The task whose positives the model was trained to find.

        Raises:
            ModelError: the version does not say.
        """
        path = self.folder / _METRICS
        try:
            return str(json.loads(path.read_text(encoding="utf-8"))["positives"])
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"{path}: {error!r}; export the candidate model anew") from None

    def found(self, users: Raw, k: int) -> np.ndarray:
        """Raw ids (U, K) of the best k items of some users, best first."""
        names = self._signature.structured_input_signature[1]
        given = {name: tf.constant(users[name]) for name in names if name != "k"}
        items: np.ndarray = self._signature(**given, k=tf.constant(k, tf.int32))["items"].numpy()
        return items

    def answers(
        self, contract: Contract, pairs: Pairs, asked: Questions, items: Catalogue, k: int
    ) -> Iterator[tuple[int, Raw, np.ndarray]]:
        """Each question's number, raw user of one row, and items as numbers, best first.

        Of the catalogue's items, k and as many more as the user may have seen; what the user has
        seen is among them.
        """
        names = [name for name, _ in contract.of_side("user", "context")]
        users = raw_values(contract, pairs.table[asked.rows].to_arrow(), names)
        numbers = {
            (item.encode() if isinstance(item, str) else item): number
            for number, item in enumerate(items.ids.tolist())
        }
        # Left out afterwards: what was seen, and what only the test split names.
        spare = int(np.diff(asked.seen.indptr).max(initial=0))
        everything = 2**31 - 1
        for start in range(0, len(asked), _USERS_AT_ONCE):
            part = slice(start, min(start + _USERS_AT_ONCE, len(asked)))
            count = k + spare
            while True:
                found = self.found(take(users, part), min(count, everything))
                known = [[numbers[one] for one in row if one in numbers] for row in found.tolist()]
                if found.shape[1] < count or min(map(len, known)) >= k + spare:
                    break
                count *= 2
            for row, row_found in zip(range(part.start, part.stop), known, strict=True):
                yield row, take(users, slice(row, row + 1)), np.array(row_found, np.int64)


def load_version(folder: Path, signature: str) -> tf.Module:
    """Load a version that has a signature.

    Raises:
        ModelError: it is none, or has not.
    """
    try:
        model = tf.saved_model.load(str(folder))
    except (OSError, tf.errors.OpError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{folder}: expected an exported version: {reason:.200}") from None
    if signature not in model.signatures:
        raise ModelError(
            f"{folder}: expected a version with signature {signature!r}, received "
            f"{', '.join(model.signatures) or 'none'}"
        )
    return model


def contract_of(version: Path) -> FrozenContract:
    """The contract inside a version, of either model."""
    return FrozenContract.read(version / _CONTRACT)
