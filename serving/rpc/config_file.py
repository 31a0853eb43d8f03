"""Polls the file of the models, and applies its changes as a reload request would.

All workers poll it, and the first one that sees a change applies it in all of them.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from multigate.configs.errors import ServingError
from multigate.serving.core.background import SupervisedThread
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.status import LOG
from multigate.serving.versions.model_config import ModelConfig, read_model_configs

_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
"""Seconds after which a file that could not be applied is tried again; doubled each time."""
_CLOSING_SECONDS = 5.0
"""How long a server that stops waits for a change that other workers take part in."""


class ConfigFile:
    """Watches `--model_config_file`; what cannot be applied changes nothing."""

    def __init__(
        self,
        path: Path,
        seconds: float,
        apply: Callable[[Sequence[ModelConfig], bytes], None],
        metrics: ServerMetrics,
        applied: bytes | None = None,
    ) -> None:
        """Make one that does not look yet.

        Args:
            path: of the file.
            seconds: between looks.
            apply: replaces the models, given those of the file and its content; or raises a
                ServingError and changes nothing.
            metrics: counts the changes.
            applied: what was applied last; None: the file as it is, with which the server is about
                to start.
        """
        self._path = path
        self._seconds = seconds
        self._apply = apply
        self._metrics = metrics
        self.applied = self._content() if applied is None else applied
        """What was applied last, by whichever worker."""
        self._failed: bytes | None = None
        """What could not be applied last."""
        self._pause, self._again = _FIRST_PAUSE, 0.0
        self._stop = threading.Event()
        self._thread = SupervisedThread("models", self._run, metrics.thread_failed)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking; a load in progress is cancelled by whoever stops the server."""
        self._stop.set()
        self._thread.join(_CLOSING_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            content = self._content()
            if content == self.applied:
                self._failed = None
            elif content != self._failed:
                self._pause = _FIRST_PAUSE
                self._try(content)
            elif time.monotonic() >= self._again:
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                self._try(content)

    def _try(self, content: bytes) -> None:
        """Apply the file."""
        try:
            configs = read_model_configs(self._path)
            self._apply(configs, content)
        except ServingError as error:
            if self._stop.is_set():
                return
            self._failed, self._again = content, time.monotonic() + self._pause
            self._metrics.config_reloads.add("failed")
            LOG.error("%s; nothing was changed; tried again in %g s", error, self._pause)
            return
        self.applied, self._failed = content, None
        self._metrics.config_reloads.add("applied")
        LOG.info(
            "--model_config_file: the models are now %s",
            ", ".join(config.name for config in configs),
        )

    def _content(self) -> bytes:
        """The file; empty where it cannot be read: `_try` then says why."""
        try:
            return self._path.read_bytes()
        except OSError:
            return b""
