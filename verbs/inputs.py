"""Checks of what a verb is given, made before anything heavy is imported.

They look at what every use of a folder needs first; whatever is wrong deeper inside is reported by
the code that reads it.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from multigate.configs.contract import FrozenContract
from multigate.configs.difference import difference
from multigate.configs.errors import ConfigError, DataError, ModelError
from multigate.configs.examples_store import fetched
from multigate.configs.files import ExamplesFolder
from multigate.configs.lineage import check_names
from multigate.configs.sections.evaluation import EvaluationConfig
from multigate.configs.storage import Address, Place, place

if TYPE_CHECKING:
    from multigate.serving.core.options import ServerOptions

_CONFIG, _GRAPH = "config.json", "saved_model.pb"
_EXTRA = "assets.extra"
_MANIFEST = "manifest.json"
_MAGIC = set("*?[")


def require_least(option: str, received: int, least: int = 1) -> None:
    """Refuse an option's number that is too small.

    Raises:
        ConfigError: it is below `least`.
    """
    if received < least:
        raise ConfigError(f"--{option}: expected {least} or more, received {received}")


def require_log(data: Place) -> None:
    """Check that the folder of the log's files exists; an address such as s3://... is not checked.

    Raises:
        DataError: there is no such folder.
    """
    if isinstance(data, Path) and not data.is_dir():
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


def gather_examples(options: argparse.Namespace) -> None:
    """Put one folder of examples in place of `--examples` and `--days`.

    Several folders are joined in a temporary one, which the command removes when it ends.

    Raises:
        DataError: a folder does not hold examples, or the folders do not belong together.
    """
    folders = examples_folders(options)
    if len(folders) > 1:
        from multigate.jobs.days import joined

        folders = [options.temporary.enter_context(joined(folders))]
    [options.examples] = folders


def examples_folders(options: argparse.Namespace) -> list[Path]:
    """The folders of examples that `--examples` and `--days` name, each once.

    Those at addresses are local copies, which the cache keeps at least until the command ends.

    Raises:
        ConfigError: `--days` is below 1.
        DataError: a folder does not hold examples, a glob matches nothing, or the contracts differ.
    """
    if options.days is not None:
        require_least("days", options.days)
    found: list[Place] = []
    for text in options.examples:
        named = place(text)
        if options.days is not None:
            found += _runs(named)
        elif _MAGIC & set(text) and not (isinstance(named, Path) and named.exists()):
            matches = _matches(named)
            if not matches:
                raise DataError(f"--examples {text}: nothing matches; expected folders")
            found += matches
        else:
            found.append(named)
    each = {one.resolve() if isinstance(one, Path) else one: one for one in found}
    chosen = list(each.values())
    if options.days is not None:
        from multigate.jobs.days import newest

        chosen = newest(chosen, options.days)
    folders = [options.temporary.enter_context(fetched(one)) for one in chosen]
    first = require_examples(folders[0])
    for folder in folders[1:]:
        other = require_examples(folder)
        if other.schema_fingerprint != first.schema_fingerprint:
            raise DataError(
                f"{folder}: its contract is not that of {folders[0]}: "
                f"{difference(first.contract, other.contract)}; make the examples of all days "
                "with one configuration"
            )
    return folders


def _matches(pattern: Place) -> Sequence[Place]:
    """The local paths that match a glob; or the addresses that do, and hold a manifest."""
    if isinstance(pattern, Address):
        bucket, _, rest = pattern.key.partition("/")
        root = pattern.text.partition("://")[0] + "://" + bucket
        return [one.parent for one in Address(root).glob(f"{rest}/{_MANIFEST}")]
    parts = pattern.parts
    named = next(at for at, part in enumerate(parts) if _MAGIC & set(part))
    folder = Path(*parts[:named])  # may be hidden or `..`: it was named, not found
    return _visible(folder, folder.glob("/".join(parts[named:])))


def _runs(folder: Place) -> Sequence[Place]:
    """The examples of a folder of runs: its folders, or `examples` in each of them.

    Raises:
        DataError: there are none.
    """
    last = _MANIFEST if isinstance(folder, Address) else "contract.json"
    patterns = (f"*/{last}", f"*/examples/{last}")
    found: Sequence[Place]
    if isinstance(folder, Address):
        found = [one.parent for pattern in patterns for one in folder.glob(pattern)]
    else:
        found = _visible(folder, (p.parent for pattern in patterns for p in folder.glob(pattern)))
    if not found:
        raise DataError(
            f"{folder}: no examples in its folders; --days expects a folder of runs, such as "
            "RUNS/2026-01-31/examples"
        )
    return found


def _visible(root: Path, paths: Iterable[Path]) -> list[Path]:
    """The paths without those of folders that are being written, whose names begin with a dot."""
    return sorted(
        path
        for path in paths
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    )


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


def require_version(folder: Path) -> FrozenContract:
    """Check that a folder is an exported version.

    Returns:
        Its contract.

    Raises:
        ModelError: it is none.
        DataError: its contract is missing or damaged.
    """
    if not (folder / _GRAPH).is_file():
        raise ModelError(
            f"{folder}: expected an exported version (with {_GRAPH}), found none; give the folder "
            "that export wrote, with the version's number"
        )
    return require_model(folder)


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

    A candidate model's base path may be absent: Recommend then answers with popular items.  Those
    in an object store are not looked at.

    Raises:
        ServingError: a file cannot be read or does not hold what it must, or a folder is absent or
            has no versions.
    """
    from multigate.serving.core.security import read_ssl_config, read_tokens
    from multigate.serving.versions.folders import require_versions
    from multigate.serving.versions.model_config import read_model_configs

    bases = [options.model_base_path] if options.model_base_path is not None else []
    if options.model_config_file is not None:
        configs = read_model_configs(options.model_config_file)
        bases = [config.base_path for config in configs if not config.ranker]
    if options.ssl_config_file is not None:
        read_ssl_config(options.ssl_config_file)
    if options.auth_token_file is not None:
        read_tokens(options.auth_token_file)
    for base in bases:
        if isinstance(base, Path):
            require_versions(base)
