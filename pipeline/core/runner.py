"""Imports Beam without its warnings, and raises a failing stage's own exception."""

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import ModuleType
from typing import Any

from multigate.configs.errors import MultigateError

RUNNER = "multigate.pipeline.core.local_runner.LocalRunner"
# Named in full: the plain DirectRunner first tries a runner that it has to download.
BEAMS_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"


def local_options() -> list[str]:
    """Beam's options for a run on this machine: a thread for each core.

    Polars, Arrow and NumPy, where the stages spend their time, let other threads run.
    """
    return [f"--runner={RUNNER}", f"--direct_num_workers={len(os.sched_getaffinity(0))}"]


def import_beam() -> tuple[Any, Any]:
    """Import Beam without its warning about cloud libraries that nothing here uses.

    Returns:
        The package, and its class of pipeline options.
    """
    logging.getLogger().addFilter(_not_about_cloud_libraries)
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    _build_c_modules()
    return beam, _with_kept_views(PipelineOptions)


@cache
def _with_kept_views(base: Any) -> Any:
    """Options that make each view of themselves once.

    Beam asks for one some hundred times while a job is wired, and parses all options for each.
    """

    class Options(base):
        def view_as(self, cls: Any) -> Any:
            views = self.__dict__.setdefault("_views", {})
            if cls not in views:
                views[cls] = super().view_as(cls)
            return views[cls]

    return Options


def _build_c_modules() -> None:
    """Make modules of cffi, such as cryptography's, build their contents now.

    For each side input Beam measures memory, by way of the `vars` of all modules.  A module of cffi
    builds its contents then, and two threads of a run that do so at once abort the process.
    """
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType):
            with suppress(TypeError):  # some hold nothing
                vars(module)


def _not_about_cloud_libraries(record: logging.LogRecord) -> bool:
    """Whether the root logger may pass a record on; it stays there, as runs may share a process."""
    return not str(record.msg).startswith("apitools not found")


class _Silence:
    """Silences a logger while at least one thread asks for it.

    Each thread putting the level back that it found would leave the logger silent for good: the
    second to begin finds the first one's.
    """

    def __init__(self, name: str):
        self._log = logging.getLogger(name)
        self._lock = threading.Lock()
        self._held = 0
        self._level = logging.NOTSET

    def __enter__(self) -> None:
        with self._lock:
            if not self._held:
                self._level = self._log.level
                self._log.setLevel(logging.CRITICAL)
            self._held += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._held -= 1
            if not self._held:
                self._log.setLevel(self._level)


_no_tracebacks = _Silence("apache_beam")


@contextmanager
def plain_failures() -> Iterator[None]:
    """Raise the exception that a stage raised, not Beam's copy of it.

    Beam logs a stage's exception with its traceback, then raises a copy that names the step (a
    RuntimeError where the type cannot be copied, as of "no space left on device").
    """
    try:
        with _no_tracebacks:
            yield
    except Exception as error:
        original = _original(error)
        if original is None:
            raise
        raise original from None


def _original(error: BaseException) -> BaseException | None:
    """The exception behind Beam's copy that tells users what to do, if there is one."""
    seen: BaseException | None = error
    while seen is not None:
        copied = getattr(seen, "_tagged_with_step", False)
        if isinstance(seen, MultigateError | OSError) and not copied:
            return seen
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return None
