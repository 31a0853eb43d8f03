"""The leaf of the project: typed configuration, the contract, and the names they agree on.

Imports pydantic, PyYAML and the standard library, nothing of ours.
"""

from configs.config import PRESETS, Config, load
from configs.contract import Contract, FrozenContract
from configs.errors import (
    ConfigError,
    DataError,
    ExportError,
    ModelError,
    MultigateError,
    ServingError,
)
from configs.statistics import Statistics

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
    "ServingError",
    "Statistics",
    "load",
]
