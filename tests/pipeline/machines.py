"""Processes of an engine that stand for machines: each sees a disk of its own."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

BOOT = Path(__file__).parent / "boot.py"
ROOT = Path(__file__).parents[2]
# What the engines' own scripts pass for Java 17.
OPENS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.net", "java.io", "java.nio"),
        *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch"),
        *("java.text", "java.time", "java.util.concurrent.locks"),
    )
]
OWN_DISK = """
mount --rbind "$1" "$1"
mount -t tmpfs none "$2"
mount -o remount,bind,ro "$1"
cd "$2"
shift 2
exec "$@"
"""
"""In a mount namespace: the folder $1 is read only, but for an empty disk $2; then a command."""


class Machines(ABC):
    """A cluster of Java processes, and a command that starts Python workers on them.

    Args:
        folder: for configuration, logs and the disks; nothing that a job needs.
        class_path: the engine's jars and Beam's.
        status: the address of the engine's own account of itself, in JSON.
    """

    def __init__(self, folder: Path, class_path: list[Path], status: str) -> None:
        self.folder, self.class_path, self._status = folder, class_path, status
        self.conf = folder / "conf"
        self.conf.mkdir(parents=True)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.boot = self.conf / "boot"
        self.boot.write_text(
            f'#!/bin/sh\nexport PYTHONPATH="{ROOT / "src"}" MULTIGATE_CACHE="$TMPDIR/cache"\n'
            f'exec "{sys.executable}" "{BOOT}" "$@"\n'
        )
        self.boot.chmod(0o755)

    @property
    @abstractmethod
    def options(self) -> list[str]:
        """Beam's options that send a job here."""

    @abstractmethod
    def start_master(self) -> None:
        """Start what gives the workers their parts of a job."""

    @abstractmethod
    def start_worker(self, name: str) -> None:
        """Start a worker that takes two parts of a job at once."""

    @abstractmethod
    def workers(self) -> int:
        """How many workers the master knows."""

    @abstractmethod
    def finished(self) -> int:
        """How much of the job that runs now is done, in the engine's own steps."""

    @abstractmethod
    def used(self) -> set[str]:
        """The workers that ran a part of the only job, which has finished."""

    @abstractmethod
    def lost(self) -> bool:
        """Whether the only job, which has finished, lost a worker."""

    @contextmanager
    def started(self) -> Iterator[Self]:
        """The cluster with two workers; it ends with the block."""
        try:
            self.start_master()
            for number in range(2):
                self.start_worker(f"worker_{number}")
            self.wait(lambda: self.workers() == 2)
            yield self
        finally:
            for name in list(self._processes):
                self.kill(name)

    def disk(self, name: str) -> Path:
        """Where a process sees its own disk."""
        return self.folder / "disks" / name

    def start(self, name: str, java: list[str], **environment: str) -> None:
        """Start a Java process that sees a disk of its own.

        Args:
            name: of the process.
            java: options of Java, the class to start, and its arguments.
            environment: what it finds there besides ours.
        """
        disk = self.disk(name)
        disk.mkdir(parents=True)
        jars = os.pathsep.join(map(str, self.class_path))
        command = ["java", *OPENS, f"-Djava.io.tmpdir={disk}", "-cp", jars, *java]
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                ["unshare", "--mount", "sh", "-ec", OWN_DISK, "sh", self.folder, disk, *command],
                stdout=log,
                stderr=log,
                env=os.environ | {"TMPDIR": str(disk)} | environment,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """Kill a process and the workers that it started."""
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def get(self, path: str) -> Any:
        """An answer of the engine."""
        with urllib.request.urlopen(f"{self._status}/{path}", timeout=10) as answer:
            return json.load(answer)

    def wait(self, condition: Callable[[], bool], seconds: float = 120) -> None:
        """Wait until a condition, which may ask the engine, holds; all processes must live."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if condition():
                    return
            except OSError:
                pass
            for name, process in self._processes.items():
                assert process.poll() is None, (self.folder / f"{name}.log").read_text()[-3000:]
            time.sleep(0.2)
        raise AssertionError(f"not within {seconds} s; see the logs in {self.folder}")
