"""What a checkpoint has to share with the examples that it is used on."""

from pathlib import Path

from multigate.configs.contract import FrozenContract
from multigate.configs.errors import ModelError
from multigate.configs.files import ExamplesFolder


def check_examples(checkpoint: Path, contract: FrozenContract, examples: Path) -> None:
    """Refuse examples that a checkpoint was not trained on the like of.

    Vocabularies and statistics have to agree too: a score in the label's own units depends on
    them, and examples are encoded by the checkpoint's.

    Raises:
        ModelError: a fingerprint differs.
    """
    other = FrozenContract.read(ExamplesFolder(examples).contract)
    for kind in ("schema", "data"):
        ours = getattr(contract, f"{kind}_fingerprint")
        theirs = getattr(other, f"{kind}_fingerprint")
        if ours != theirs:
            raise ModelError(
                f"{checkpoint}: trained on examples of {kind} fingerprint {ours}, {examples} has "
                f"{theirs}; use the examples that it was trained on, or train anew"
            )
