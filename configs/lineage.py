"""What a model must share with the examples and with the options that it is used with."""

from pathlib import Path

from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.difference import difference
from multigate.configs.errors import ConfigError, ModelError
from multigate.configs.files import ExamplesFolder
from multigate.configs.sections.evaluation import EvaluationConfig


def check_contract(contract: Contract, examples: Path) -> FrozenContract:
    """Refuse examples that were built with other features, labels or tasks than a configuration's.

    Returns:
        The examples' contract.

    Raises:
        ModelError: the schemas differ; it says in what.
    """
    frozen = FrozenContract.read(ExamplesFolder(examples).contract)
    schema = contract.schema_fingerprint()
    if schema != frozen.schema_fingerprint:
        raise ModelError(
            f"{examples}: built with schema {frozen.schema_fingerprint}, the configuration's "
            f"contract has schema {schema}: {difference(contract, frozen.contract)}; build the "
            "examples again with this configuration"
        )
    return frozen


def check_schema(model: Path, contract: FrozenContract, examples: Path) -> FrozenContract:
    """Refuse examples whose features, labels or tasks are not those of a model.

    Returns:
        The examples' contract.

    Raises:
        ModelError: the schemas differ; it says in what.
    """
    other = FrozenContract.read(ExamplesFolder(examples).contract)
    if contract.schema_fingerprint != other.schema_fingerprint:
        raise ModelError(
            f"{model}: has schema {contract.schema_fingerprint}, {examples} has schema "
            f"{other.schema_fingerprint}: {difference(contract.contract, other.contract)}; use "
            "examples built with the model's contract"
        )
    return other


def check_examples(checkpoint: Path, contract: FrozenContract, examples: Path) -> None:
    """Refuse examples that differ from those that a checkpoint was trained on.

    Vocabularies and statistics must agree too: examples are encoded by the checkpoint's, and a
    score in the label's own units depends on them.

    Raises:
        ModelError: the schema or the data's fingerprint differs.
    """
    theirs = check_schema(checkpoint, contract, examples).data_fingerprint
    if contract.data_fingerprint != theirs:
        raise ModelError(
            f"{checkpoint}: trained on examples of data fingerprint {contract.data_fingerprint}, "
            f"{examples} has {theirs}; use the examples that it was trained on, or train again"
        )


def check_names(options: EvaluationConfig, contract: Contract, folder: Path) -> None:
    """Refuse rules and slices that name what a model's contract does not have.

    Raises:
        ConfigError: an unknown task or feature.
    """
    unknown = options.unknown_name(contract.tasks, contract.features)
    if unknown is not None:
        raise ConfigError(f"{unknown} ({folder} has no other); use the model's own configuration")
