"""A Spark cluster of processes: a master and workers, each with a disk of its own."""

import json
from pathlib import Path
from typing import Any

from tests.pipeline.machines import Machines
from tests.ports import free_port


class Spark(Machines):
    """A running cluster, on which an application has one executor on each worker."""

    def __init__(self, folder: Path, class_path: list[Path]) -> None:
        self.port, page = free_port(), free_port()
        super().__init__(folder, class_path, f"http://localhost:{page}")
        self._page = page
        # Workers start executors on the jars of an installation of Spark; the driver sends Beam's.
        self._home = folder / "home"
        (self._home / "jars").mkdir(parents=True)
        for jar in class_path:
            if "beam" not in jar.name:
                (self._home / "jars" / jar.name).symlink_to(jar)
        self._events = folder / "events"
        self._events.mkdir()

    @property
    def options(self) -> list[str]:
        """Beam's options, and properties of the JVM that submits the job."""
        found = {
            "spark.driver.host": "localhost",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            # Else executors of one host read one another's disks, which here they do not see.
            "spark.shuffle.readHostLocalDisk": "false",
            "spark.ui.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self._events.as_uri(),
        }
        own = [f"--job_server_jvm_properties=-D{name}={value}" for name, value in found.items()]
        return [f"--spark_master_url=spark://localhost:{self.port}", *own]

    def start_one(self, name: str, main: str, *arguments: str) -> None:
        """Start a Spark process."""
        java = ["-Xmx256m", f"org.apache.spark.deploy.{main}", "--host", "localhost", *arguments]
        environment = {"SPARK_HOME": str(self._home), "SPARK_SCALA_VERSION": "2.12"}
        self.start(name, java, SPARK_LOCAL_IP="127.0.0.1", **environment)

    def start_master(self) -> None:
        """Start the master."""
        arguments = ["--port", str(self.port), "--webui-port", str(self._page)]
        self.start_one("master", "master.Master", *arguments)

    def start_worker(self, name: str) -> None:
        """Start a worker with two cores."""
        room = ["--cores", "2", "--memory", "512m", "--work-dir", str(self.disk(name))]
        master = f"spark://localhost:{self.port}"
        self.start_one(name, "worker.Worker", "--webui-port", "0", *room, master)

    def workers(self) -> int:
        """How many workers the master knows."""
        return int(self.get("json/")["aliveworkers"])

    def finished(self) -> int:
        """Tasks of the only application."""
        return len(self._told("TaskEnd"))

    def used(self) -> set[str]:
        """The executors that ran a task of the only application."""
        return {task["Task Info"]["Executor ID"] for task in self._told("TaskEnd")}

    def lost(self) -> bool:
        """Whether the only application lost an executor."""
        return bool(self._told("ExecutorRemoved"))

    def _told(self, kind: str) -> list[dict[str, Any]]:
        """What the only application has told so far, of one kind, such as `TaskEnd`."""
        found = []
        for log in self._events.iterdir():
            for line in log.read_text().splitlines(keepends=True):
                event = json.loads(line) if line.endswith("\n") else {}  # the last may be half
                if event.get("Event") == f"SparkListener{kind}":
                    found.append(event)
        return found
