"""Checks of what a verb is given, made before anything heavy is imported.

They look at what every use of a folder needs first; whatever is wrong deeper inside is reported by
the code that reads it.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from multigate.configs.contract import FrozenContract
from multigate.configs.errors import DataError, ModelError, ServingError
from multigate.configs.files import ExamplesFolder
from multigate.configs.lineage import check_names
from multigate.configs.sections.evaluation import EvaluationConfig

if TYPE_CHECKING:
    from multigate.serving.core.options import ServerOptions

_CONFIG, _GRAPH = "config.json", "saved_model.pb"
_EXTRA = "assets.extra"


def require_log(data: str | Path) -> None:
    """Check that the folder of the log's files exists; an address such as gs://... is not checked.

    Raises:
        DataError: there is no such folder.
    """
    if "://" not in str(data) and not Path(data).is_dir():
        raise DataError(f"{data}: no such folder; expected the folder that holds the log")


def require_examples(folder: Path) -> FrozenContract:
    """Check that a folder holds examples.

    Returns:
        Their contract.

    Raises:
        DataError: there is no such folder, or its contract is missing or damaged.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected one that `multigate examples` wrote")
    return FrozenContract.read(ExamplesFolder(folder).contract)


def require_checkpoint(folder: Path, writer: str = "train") -> FrozenContract:
    """Check that a folder is a checkpoint.

    Args:
        folder: of the checkpoint.
        writer: the verb that writes such checkpoints.

    Returns:
        Its contract.

    Raises:
        ModelError: it is not a checkpoint.
        DataError: its contract is missing or damaged.
    """
    if not (folder / _CONFIG).is_file():
        raise ModelError(
            f"{folder / _CONFIG}: no such file; expected a folder that `multigate {writer}` wrote"
        )
    return FrozenContract.read(ExamplesFolder(folder).contract)


def require_model(folder: Path) -> FrozenContract:
    """Check that a folder is a checkpoint or an exported version.

    Returns:
        Its contract.

    Raises:
        ModelError: it is neither.
        DataError: its contract is missing or damaged.
    """
    if (folder / _GRAPH).is_file():
        return FrozenContract.read(ExamplesFolder(folder / _EXTRA).contract)
    if (folder / _CONFIG).is_file():
        return FrozenContract.read(ExamplesFolder(folder).contract)
    raise ModelError(
        f"{folder}: expected a checkpoint (with {_CONFIG}) or an exported version (with {_GRAPH}), "
        "found neither; give the folder that train or export wrote, with the version's number"
    )


def require_names(options: EvaluationConfig, folder: Path) -> None:
    """Check that a model has the tasks and features that rules and slices name.

    Raises:
        ConfigError: an unknown task or feature.
        ModelError: the folder is neither a checkpoint nor a version.
        DataError: its contract is missing or damaged.
    """
    check_names(options, require_model(folder).contract, folder)


def require_server_files(options: "ServerOptions") -> None:
    """Check what a server's options name: its files, and the base paths of its rankers.

    A candidate model's base path may be absent: Recommend then answers with popular items.

    Raises:
        ServingError: a file cannot be read or does not hold what it must, or a folder is absent.
    """
    from multigate.serving.core.security import read_ssl_config, read_tokens
    from multigate.serving.versions.model_config import read_model_configs

    bases = [options.model_base_path] if options.model_base_path is not None else []
    if options.model_config_file is not None:
        configs = read_model_configs(options.model_config_file)
        bases = [config.base_path for config in configs if not config.ranker]
    for base in bases:
        if not base.is_dir():
            raise ServingError(f"{base}: expected a folder of versions, but it does not exist")
    if options.ssl_config_file is not None:
        read_ssl_config(options.ssl_config_file)
    if options.auth_token_file is not None:
        read_tokens(options.auth_token_file)
