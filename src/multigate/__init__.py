"""multigate: from user logs to a multi-task ranking service.

This is the package that `pip install` adds to an environment, and the only name it adds.  The
folders beside this file are links to the repository's folders: `multigate.model` is `model/`.

The names below are the Python interface (docs/python.md).  They are loaded when they are first
used: `import multigate` imports nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multigate.configs.errors import MultigateError
    from multigate.jobs.examples import Examples
    from multigate.jobs.interface import configuration, evaluate, examples, export, load, train
    from multigate.jobs.scoring.version import Version

__all__ = [
    "Examples",
    "MultigateError",
    "Version",
    "configuration",
    "evaluate",
    "examples",
    "export",
    "load",
    "train",
]

__version__ = "0.1.0"
"""As in pyproject.toml; stated here as well for places that have no installed metadata: a checkout
that is not installed, and the images."""

_INTERFACE = "multigate.jobs.interface"
_HOMES = {
    "Examples": "multigate.jobs.examples",
    "MultigateError": "multigate.configs.errors",
    "Version": "multigate.jobs.scoring.version",
}


def __getattr__(name: str) -> Any:
    """Load a name of the interface from its module."""
    if name not in __all__:
        raise AttributeError(f"module 'multigate' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, _INTERFACE)), name)


def __dir__() -> list[str]:
    """The interface's names as well."""
    return sorted({*globals(), *__all__})
