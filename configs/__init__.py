"""The leaf of the project: typed configuration, the contract, and names that all packages share.

Imports pydantic, PyYAML and the standard library, no other package of ours. The names below are
loaded when they are first used, so that code that needs the errors only (the ranking client,
`--help`) imports neither pydantic nor PyYAML.

Public face: `config.load`, `config.Config`, `contract.Contract`, `contract.FrozenContract`,
`statistics.Statistics`, `files`, `errors`; all but `files` can be imported from here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from multigate.configs.errors import (
    ConfigError,
    DataError,
    ExportError,
    ModelError,
    MultigateError,
    RunError,
    ServingError,
)

if TYPE_CHECKING:
    from multigate.configs.config import PRESETS, Config, load
    from multigate.configs.contract import Contract, FrozenContract
    from multigate.configs.statistics import Statistics

__all__ = [
    "PRESETS",
    "Config",
    "ConfigError",
    "Contract",
    "DataError",
    "ExportError",
    "FrozenContract",
    "ModelError",
    "MultigateError",
    "RunError",
    "ServingError",
    "Statistics",
    "load",
]

_HOMES = {
    "PRESETS": "multigate.configs.config",
    "Config": "multigate.configs.config",
    "Contract": "multigate.configs.contract",
    "FrozenContract": "multigate.configs.contract",
    "Statistics": "multigate.configs.statistics",
    "load": "multigate.configs.config",
}


def __getattr__(name: str) -> Any:
    """Load a name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'multigate.configs' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
