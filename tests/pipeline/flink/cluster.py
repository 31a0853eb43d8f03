"""A Flink cluster of processes: a JobManager and TaskManagers, each with a disk of its own."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.ports import free_port

BOOT = Path(__file__).parent / "boot.py"
ROOT = Path(__file__).parents[3]
# What Flink's own scripts pass for Java 17.
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


class Cluster:
    """A running cluster.

    Args:
        folder: for configuration, logs and the workers' disks; nothing that a job needs.
        class_path: Flink's jars and Beam's.
    """

    def __init__(self, folder: Path, class_path: str) -> None:
        self.folder, self._class_path = folder, class_path
        self.port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._conf = folder / "conf"
        self._conf.mkdir(parents=True)
        rpc = free_port()
        settings = {
            "jobmanager.rpc.address": "localhost",
            "jobmanager.rpc.port": rpc,
            "rest.address": "localhost",
            "rest.port": self.port,
            "rest.bind-address": "localhost",
            "jobmanager.memory.heap.size": "256m",
            "jobmanager.memory.off-heap.size": "128m",
            "jobmanager.memory.jvm-metaspace.size": "256m",
            "jobmanager.memory.jvm-overhead.min": "64m",
            "jobmanager.memory.jvm-overhead.max": "64m",
            "taskmanager.host": "localhost",
            "taskmanager.numberOfTaskSlots": 2,  # so that a job of four needs two of them
            "taskmanager.cpu.cores": 2,
            "taskmanager.memory.framework.heap.size": "64m",
            "taskmanager.memory.framework.off-heap.size": "64m",
            "taskmanager.memory.task.heap.size": "256m",
            "taskmanager.memory.task.off-heap.size": "64m",
            "taskmanager.memory.managed.size": "128m",
            "taskmanager.memory.network.min": "256m",
            "taskmanager.memory.network.max": "256m",
            # Of each of a job's shuffles; the default, 512, fits few of them into little memory.
            "taskmanager.network.sort-shuffle.min-buffers": 16,
            "taskmanager.memory.jvm-metaspace.size": "256m",
            "taskmanager.memory.jvm-overhead.min": "64m",
            "taskmanager.memory.jvm-overhead.max": "64m",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": 5,
            "restart-strategy.fixed-delay.delay": "1 s",
            "heartbeat.interval": 1000,
            "heartbeat.timeout": 10000,
        }
        lines = [f"{name}: {value}" for name, value in settings.items()]
        (self._conf / "flink-conf.yaml").write_text("\n".join(lines) + "\n")
        self.boot = self._conf / "boot"
        self.boot.write_text(
            f'#!/bin/sh\nexport PYTHONPATH="{ROOT / "src"}" MULTIGATE_CACHE="$TMPDIR/cache"\n'
            f'exec "{sys.executable}" "{BOOT}" "$@"\n'
        )
        self.boot.chmod(0o755)

    def start(self, name: str, main: str, heap: str) -> None:
        """Start a Flink process that sees a disk of its own."""
        disk = self.folder / "disks" / name
        disk.mkdir(parents=True)
        java = ["java", f"-Xmx{heap}", "-XX:MaxDirectMemorySize=640m", *OPENS]
        java += [f"-Djava.io.tmpdir={disk}", "-cp", self._class_path, main]
        java += ["--configDir", str(self._conf), "-D", f"io.tmp.dirs={disk}"]
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [
                    "unshare",
                    "--mount",
                    "sh",
                    "-ec",
                    OWN_DISK,
                    "sh",
                    str(self.folder),
                    str(disk),
                    *java,
                ],
                stdout=log,
                stderr=log,
                env=os.environ | {"TMPDIR": str(disk)},
                start_new_session=True,
            )

    def start_task_manager(self, name: str) -> None:
        """Start a TaskManager with two slots."""
        self.start(name, "org.apache.flink.runtime.taskexecutor.TaskManagerRunner", "320m")

    def kill(self, name: str) -> None:
        """Kill a process and the workers that it started."""
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def get(self, path: str) -> Any:
        """An answer of the JobManager."""
        with urllib.request.urlopen(f"http://localhost:{self.port}/{path}", timeout=10) as answer:
            return json.load(answer)

    def finished_steps(self) -> int:
        """Of the jobs that run now."""
        running = [job["id"] for job in self.get("jobs")["jobs"] if job["status"] == "RUNNING"]
        steps = [step for job in running for step in self.get(f"jobs/{job}")["vertices"]]
        return sum(step["status"] == "FINISHED" for step in steps)

    def workers_of_finished_job(self) -> set[str]:
        """The TaskManagers that ran a part of the only job that has finished."""
        (job,) = [job["id"] for job in self.get("jobs")["jobs"] if job["status"] == "FINISHED"]
        steps = [step["id"] for step in self.get(f"jobs/{job}")["vertices"]]
        parts = [p for step in steps for p in self.get(f"jobs/{job}/vertices/{step}")["subtasks"]]
        return {part["taskmanager-id"] for part in parts}

    def wait(self, condition: Callable[[dict[str, Any]], bool], seconds: float = 120) -> None:
        """Wait until the cluster's overview, such as `jobs-running` by its name, satisfies it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if condition(self.get("overview")):
                    return
            except OSError:
                pass
            for name, process in self._processes.items():
                assert process.poll() is None, (self.folder / f"{name}.log").read_text()[-3000:]
            time.sleep(0.2)
        raise AssertionError(f"not within {seconds} s; the cluster is at {self.get('overview')}")

    def stop(self) -> None:
        """Kill all processes."""
        for name in list(self._processes):
            self.kill(name)


@contextmanager
def cluster(folder: Path, class_path: str, task_managers: int = 2) -> Iterator[Cluster]:
    """A cluster that takes jobs; it ends with the block."""
    made = Cluster(folder, class_path)
    with ExitStack() as stack:
        stack.callback(made.stop)
        made.start(
            "job_manager",
            "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint",
            "320m",
        )
        for number in range(task_managers):
            made.start_task_manager(f"task_manager_{number}")
        made.wait(lambda now: now["taskmanagers"] == task_managers)
        yield made
