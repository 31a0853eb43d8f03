"""What a model must share with the examples and with the options that it is used with."""

from pathlib import Path

from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.errors import ConfigError, ModelError
from multigate.configs.files import ExamplesFolder
from multigate.configs.sections.evaluation import EvaluationConfig


def check_examples(checkpoint: Path, contract: FrozenContract, examples: Path) -> None:
    """Refuse examples that differ from those that a checkpoint was trained on.

    Vocabularies and statistics must agree too: examples are encoded by the checkpoint's, and a
    score in the label's own units depends on them.

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
                f"{theirs}; use the examples that it was trained on, or train again"
            )


def check_names(options: EvaluationConfig, contract: Contract, folder: Path) -> None:
    """Refuse rules and slices that name what a model's contract does not have.

    Raises:
        ConfigError: an unknown task or feature.
    """
    unknown = options.unknown_name(contract.tasks, contract.features)
    if unknown is not None:
        raise ConfigError(f"{unknown} ({folder} has no other); use the model's own configuration")
