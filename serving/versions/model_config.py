"""Reads and checks the models of a server: TensorFlow Serving's ModelServerConfig.

model_config_list {
  config {
    name: "deskdrop"
    base_path: "models/deskdrop"
    model_platform: "tensorflow"
    model_version_policy { specific { versions: 3 versions: 4 } }
    version_labels { key: "stable" value: 3 }
    version_labels { key: "canary" value: 4 }
  }
  config {
    name: "deskdrop-candidates"
    base_path: "models/deskdrop-candidates"
    model_platform: "candidates/deskdrop"
  }
}

The second config is a candidate model: for Recommend, it finds the items that the ranker `deskdrop`
then ranks.

TensorFlow Serving's protobuf messages are used as they are; the checks here are for settings that
its schema allows and this server does not have.
"""

import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from multigate.configs.errors import DataError, ServingError
from multigate.configs.storage import Place, place
from multigate.runtime.tensorflow_messages import model_server_config_pb2

CANDIDATES = "candidates/"
"""Prefix of a candidate model's platform; the ranker's name follows."""
_LONGEST = 200
"""Bytes of a model's name as a folder's name, where 日 takes nine; file systems allow 255."""


@dataclass(frozen=True)
class VersionPolicy:
    """Which versions of a base path to serve."""

    latest: int | None = 1
    """How many of the highest numbers; None: all."""
    specific: frozenset[int] = frozenset()
    """Only these numbers; empty: any number."""

    def name(self) -> str:
        """The policy in words."""
        chosen = " ".join(map(str, sorted(self.specific)))
        return f"specific {chosen}" if chosen else f"latest {self.latest or 'all'}"

    def offers(self, version: int) -> bool:
        """Whether the policy allows a version."""
        return not self.specific or version in self.specific


@dataclass(frozen=True)
class ModelConfig:
    """One model."""

    name: str
    base_path: Place
    policy: VersionPolicy = VersionPolicy()
    labels: dict[str, int] = field(default_factory=dict)
    """Version of each label."""
    ranker: str = ""
    """For a candidate model, the name of its ranker; empty for a ranker."""

    def __post_init__(self) -> None:
        """Refuse a name that cannot be a folder of the impression log.

        Raises:
            ServingError: the name begins with a dot, has a control character, or is too long.
        """
        name = self.name
        long = len(urllib.parse.quote(name, safe="", errors="replace")) > _LONGEST
        if long or name.startswith(".") or not name.isprintable():
            raise ServingError(
                f"model name: expected printable characters, the first not a dot, and at most "
                f"{_LONGEST} bytes as a folder's name, received {name[:_LONGEST]!r}"
            )


def read_model_configs(path: Path) -> list[ModelConfig]:
    """Read a ModelServerConfig in protobuf's text form.

    Raises:
        ServingError: the file cannot be read or parsed, or asks for what this server does not do.
    """
    return model_configs(read_model_config_message(path))


def read_model_config_message(path: Path) -> Any:
    """The ModelServerConfig of a file, checked.

    Raises:
        ServingError: the file cannot be read or parsed, or asks for what this server does not do.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ServingError(f"--model_config_file {path}: cannot be read: {reason}") from None
    try:
        message = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
        model_configs(message)
    except (text_format.ParseError, ServingError) as error:
        raise ServingError(f"--model_config_file {path}: {error}") from None
    return message


def model_configs(message: Any) -> list[ModelConfig]:
    """Read and check a ModelServerConfig.

    Raises:
        ServingError: no model, a name that is absent or repeated, no base path, another platform,
            a policy without versions, or a setting that this server does not have.
    """
    if message.WhichOneof("config") == "custom_model_config":
        raise ServingError("custom_model_config: not supported; use model_config_list")
    found: dict[str, ModelConfig] = {}
    for config in message.model_config_list.config:
        one = _model_config(config)
        if one.name in found:
            raise ServingError(f"model {one.name!r}: configured twice")
        found[one.name] = one
    if not found:
        raise ServingError("model_config_list: expected at least one config, received none")
    _check_rankers(found)
    return list(found.values())


def _check_rankers(configs: dict[str, ModelConfig]) -> None:
    """Refuse a candidate model without ranker, and two with the same ranker."""
    taken: dict[str, str] = {}
    for name, config in configs.items():
        if not config.ranker:
            continue
        ranker = configs.get(config.ranker)
        if ranker is None or ranker.ranker:
            rankers = [repr(one.name) for one in configs.values() if not one.ranker]
            raise ServingError(
                f"model {name!r}: model_platform: expected '{CANDIDATES}RANKER' with "
                f"one of the rankers {', '.join(rankers) or '(none)'}, received {config.ranker!r}"
            )
        if config.ranker in taken:
            raise ServingError(
                f"model {name!r}: model {config.ranker!r} has the candidate model "
                f"{taken[config.ranker]!r} already; remove one of the two"
            )
        taken[config.ranker] = name


def _model_config(config: Any) -> ModelConfig:
    if not config.name:
        raise ServingError("model_config_list: a config has no name")
    where = f"model {config.name!r}"
    if not config.base_path:
        raise ServingError(f"{where}: base_path: required: the folder of its numbered versions")
    platform, ranker = config.model_platform, ""
    if platform.startswith(CANDIDATES):
        platform, ranker = "", platform.removeprefix(CANDIDATES)
    if platform not in {"", "tensorflow"} or config.model_type:
        received = platform or f"model_type {config.model_type}"
        raise ServingError(
            f"{where}: model_platform: expected 'tensorflow' or '{CANDIDATES}RANKER', "
            f"received {received!r}"
        )
    if config.HasField("logging_config"):
        raise ServingError(f"{where}: logging_config: not supported; see --impression_log")
    policy = _policy(where, config.model_version_policy)
    for label, version in config.version_labels.items():
        if not label or not policy.offers(version):
            raise ServingError(
                f"{where}: version_labels: label {label!r}: expected a name, and one of the "
                f"versions of its policy, received version {version}"
            )
    labels = dict(config.version_labels)
    try:
        base_path = place(config.base_path)
    except DataError as error:
        raise ServingError(f"{where}: base_path: {error}") from None
    return ModelConfig(config.name, base_path, policy, labels, ranker)


def _policy(where: str, policy: Any) -> VersionPolicy:
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return VersionPolicy(latest=None)
    if choice == "specific":
        versions = frozenset(policy.specific.versions)
        if not versions or min(versions) < 0:
            raise ServingError(
                f"{where}: model_version_policy: specific: expected version numbers of 0 or more, "
                f"received {sorted(versions) or 'none'}"
            )
        return VersionPolicy(latest=None, specific=versions)
    # As in TensorFlow Serving, a number left out is 1.
    return VersionPolicy(latest=policy.latest.num_versions or 1)
