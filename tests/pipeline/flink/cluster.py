"""A Flink cluster of processes: a JobManager and TaskManagers, each with a disk of its own."""

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

    @property
    def options(self) -> list[str]:
        """Beam's options; the job takes the slots of both workers."""
        return [f"--flink_master=localhost:{self.port}", "--parallelism=4"]

    def start_one(self, name: str, main: str) -> None:
        """Start a Flink process."""
        java = ["-Xmx320m", "-XX:MaxDirectMemorySize=640m", main, "--configDir", str(self.conf)]
        self.start(name, [*java, "-D", f"io.tmp.dirs={self.disk(name)}"])

    def start_master(self) -> None:
        """Start the JobManager."""
        entry = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        self.start_one("master", entry)

    def start_worker(self, name: str) -> None:
        """Start a TaskManager with two slots."""
        self.start_one(name, "org.apache.flink.runtime.taskexecutor.TaskManagerRunner")

    def workers(self) -> int:
        """How many TaskManagers the JobManager knows."""
        return int(self.get("overview")["taskmanagers"])

    def finished(self) -> int:
        """Steps of the job that runs now."""
        running = [job["id"] for job in self.get("jobs")["jobs"] if job["status"] == "RUNNING"]
        steps = [step for job in running for step in self.get(f"jobs/{job}")["vertices"]]
        return sum(step["status"] == "FINISHED" for step in steps)

    def used(self) -> set[str]:
        """The TaskManagers that ran a part of the only job."""
        job = self._finished_job()
        steps = [step["id"] for step in self.get(job)["vertices"]]
        parts = [part for step in steps for part in self.get(f"{job}/vertices/{step}")["subtasks"]]
        return {part["taskmanager-id"] for part in parts}

    def lost(self) -> bool:
        """Whether the only job failed somewhere, and went on."""
        return bool(self.get(f"{self._finished_job()}/exceptions")["exceptionHistory"]["entries"])

    def _finished_job(self) -> str:
        (job,) = [job["id"] for job in self.get("jobs")["jobs"] if job["status"] == "FINISHED"]
        return f"jobs/{job}"
