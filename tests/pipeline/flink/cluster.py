"""A Flink cluster of processes: a JobManager and TaskManagers, each with a disk of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.pipeline.machines import Machines
from tests.ports import free_port


class Flink(Machines):
    """A running cluster."""

    def __init__(self, folder: Path, class_path: list[Path]) -> None:
        self.port = free_port()
        super().__init__(folder, class_path, f"http://localhost:{self.port}")
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
        (self.conf / "flink-conf.yaml").write_text("\n".join(lines) + "\n")

    def start_one(self, name: str, main: str) -> None:
        """Start a Flink process."""
        java = ["-Xmx320m", "-XX:MaxDirectMemorySize=640m", main, "--configDir", str(self.conf)]
        self.start(name, [*java, "-D", f"io.tmp.dirs={self.disk(name)}"])

    def start_task_manager(self, name: str) -> None:
        """Start a TaskManager with two slots."""
        self.start_one(name, "org.apache.flink.runtime.taskexecutor.TaskManagerRunner")

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


@contextmanager
def flink_cluster(folder: Path, class_path: list[Path], task_managers: int = 2) -> Iterator[Flink]:
    """A cluster that takes jobs; it ends with the block."""
    made = Flink(folder, class_path)
    try:
        entry = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        made.start_one("job_manager", entry)
        for number in range(task_managers):
            made.start_task_manager(f"task_manager_{number}")
        made.wait(lambda: made.get("overview")["taskmanagers"] == task_managers)
        yield made
    finally:
        made.stop()
