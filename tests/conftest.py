"""What all tests share: where the real data are, and one small run of every stage."""

import fcntl
import json
import os
import re
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import settings
from tests.registries import fetch
from xdist.scheduler import LoadFileScheduling

DATA = Path(__file__).parents[2] / "shared" / "data"

# The same examples every time, and no limit on how long a slow machine takes for one.
settings.register_profile("multigate", deadline=None, derandomize=True)
settings.load_profile("multigate")

# A shell's background jobs ignore Ctrl-C, and so would each process that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# As many workers as cores run tests: threads of OpenMP and BLAS would only wait for one another.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"

# As in the Makefile: what TensorFlow says of a version that it loads is not what a verb says.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# Tests on JAX are processes of their own, which spend their time compiling what runs once.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

# Files, or groups of files that share what takes seconds to make; the longest are first.
TOGETHER = (
    r"jobs/(night/test_(run|candidate_stages)|test_tune)\.py",
    r"candidates/|jobs/test_multistage\.py|end_to_end/test_(demo|verbs)\.py|contract/test_(one_event|offline_scores)\.py|(verbs/test_(errors|json|progress)|model/report/test_table|jobs/test_interface)\.py",
    r"jobs/night/test_fortnight\.py",
    r"model/training/test_resume\.py",
    r"serving/rpc/test_faults\.py",
    r"jobs/night/test_kills\.py",
    r"model/export/test_export\.py",
    r"serving/workers/test_supervisor\.py",
    r"model/training/test_data_parallel\.py",
    r"model/export/test_graph\.py",
)


def group(nodeid: str) -> tuple[int, str]:
    """Place and name of a test's group: of `TOGETHER`, or its file."""
    file = nodeid.partition("::")[0]
    for place, pattern in enumerate(TOGETHER):
        if re.search(pattern, file):
            return place, pattern
    return len(TOGETHER), file


class Groups(LoadFileScheduling):
    """Gives a group's tests to one worker, so that it alone makes what they share."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)[1]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    """Hand out groups in the order of the tests, however `--dist` is set."""
    config.option.loadscopereorder = False
    return Groups(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the longest groups, so that the workers end together; mark the rest of sweeps."""
    cases: Counter[str] = Counter()
    for item in items:
        sweep = item.get_closest_marker("sweep")
        if sweep is not None:
            test = item.nodeid.partition("[")[0]
            cases[test] += 1
            if cases[test] > sweep.args[0]:
                item.add_marker("slow" if cases[test] <= sweep.kwargs.get("slow", 1e9) else "long")
    items.sort(key=lambda item: group(item.nodeid)[0])


@pytest.fixture
def full_disk() -> Any:
    """A context in which no file of this process grows beyond a few bytes."""

    @contextmanager
    def limit(room: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limit


@pytest.fixture(scope="session")
def until() -> Any:
    """Wait for a condition, up to three minutes: a busy machine starts a worker in one."""

    def wait(condition: Any, what: str = "the condition") -> None:
        pause = threading.Event()
        for _ in range(3600):
            if condition():
                return
            pause.wait(0.05)
        raise AssertionError(f"{what} did not come about")

    return wait


@pytest.fixture(scope="session")
def lacking() -> Any:
    """Skip a test that lacks a program or a registry; with `CI=true` it fails instead."""
    strict = os.environ.get("CI") == "true"

    def lack(reason: str) -> None:
        if strict:
            pytest.fail(reason)
        pytest.skip(reason)

    return lack


@pytest.fixture(scope="session")
def go_tool(lacking: Any) -> Any:
    """Build a program of a Go module through the module proxy; kept for later runs."""
    folder = Path(tempfile.gettempdir()) / "multigate-go-tools"

    def build(module: str, version: str) -> Path:
        """The program of `module`, a path such as github.com/bojand/ghz/cmd/ghz, at a version."""
        if shutil.which("go") is None:
            lacking(f"{module}: Go is not installed")
        path = folder / version / module.rpartition("/")[2]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two workers would build it twice
            if not path.exists():
                # Unoptimised: compiling is what takes the time.
                flags = ["-gcflags=all=-N -l", "-ldflags=-s -w"]
                environment = {"GOBIN": str(path.parent), "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"}
                command = ["go", "install", *flags, f"{module}@{version}"]
                done = fetch(command, env=os.environ | environment)
                if done.returncode:
                    lacking(f"{module}: Go did not build it: {done.stderr[-300:]}")
        return path

    return build


@pytest.fixture(scope="session")
def go_module(lacking: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a Go module at a version, through the module proxy."""
    if shutil.which("go") is None:
        lacking("modules come through Go, which is not installed")
    folder = tmp_path_factory.mktemp("modules")

    def download(path: str, version: str) -> Path:
        done = fetch(["go", "mod", "download", "-json", f"{path}@v{version}"], cwd=folder)
        if done.returncode:
            lacking(f"{path} did not come: {done.stderr[-300:]}{done.stdout[-300:]}")
        return Path(json.loads(done.stdout)["Dir"])

    return download


@pytest.fixture(scope="session")
def go_build(lacking: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Build a program of the Go module in a folder; the modules that it needs are fetched."""

    def build(folder: Path, package: str = ".") -> Path:
        if shutil.which("go") is None:
            lacking(f"{folder}: Go is not installed")
        done = fetch(["go", "list", "-deps", package], cwd=folder)  # fetches what they lack
        if done.returncode:
            lacking(f"{folder}: its modules did not come: {done.stderr[-300:]}")
        program = tmp_path_factory.mktemp("built") / "program"
        flags = ["-buildvcs=false", "-gcflags=all=-N -l", "-ldflags=-s -w"]
        environment = os.environ | {"CGO_ENABLED": "0"}
        command = ["go", "build", *flags, "-o", program, package]
        subprocess.run(command, check=True, cwd=folder, env=environment)
        return program

    return build


@pytest.fixture(scope="session")
def helm_program(go_tool: Any) -> Any:
    """Helm, as `go_tool` builds it."""
    return partial(go_tool, "helm.sh/helm/v3/cmd/helm", "v3.22.0")


@contextmanager
def store_server(script: str) -> Iterator[str]:
    """A store's server in a process of its own; yields its endpoint."""
    command = [sys.executable, Path(__file__).with_name(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.terminate()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The endpoint of an S3 server; see `s3_server.py`."""
    with store_server("s3_server.py") as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def gcs_endpoint() -> Iterator[str]:
    """The endpoint of an emulator of Google Cloud Storage."""
    with store_server("gcs_server.py") as endpoint:
        yield endpoint


@pytest.fixture
def gs_address(gcs_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An address in Google Cloud Storage that this test alone uses."""
    from multigate.configs import storage

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_endpoint)
    return storage.place(f"gs://test-bucket/{secrets.token_hex(6)}")


@dataclass(frozen=True)
class Bucket:
    """A bucket of the S3 server that this test alone uses."""

    address: Any
    endpoint: str

    def busy(self, times: int, pattern: str = "", fault: str = "busy") -> int:
        """Have the next requests with the pattern in method and path be answered with 503.

        Args:
            times: how many requests.
            pattern: what their method and path contain.
            fault: or another one of `s3_server.py`.

        Returns:
            How many were since the last call.
        """
        url = f"{self.endpoint}/-/{fault}/{times}/{quote(pattern)}"
        with urllib.request.urlopen(url) as answer:
            return int(answer.read())


@pytest.fixture
def bucket(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bucket]:
    """An empty bucket, with credentials for it in the environment and a cache of the test's own."""
    from pyarrow import fs

    from multigate.configs import storage

    values = {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "AKIATEST",
        "AWS_SECRET_ACCESS_KEY": "not-to-be-shown",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        "MULTIGATE_CACHE": str(tmp_path_factory.mktemp("cache")),
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    storage._connect.cache_clear()
    name = f"test-{secrets.token_hex(6)}"
    server = fs.S3FileSystem(endpoint_override=s3_endpoint, allow_bucket_creation=True)
    server.create_dir(name)
    found = Bucket(storage.place(f"s3://{name}"), s3_endpoint)
    yield found
    found.busy(0)
    storage._connect.cache_clear()


@pytest.fixture(scope="session")
def real_data() -> Any:
    """Path of a real data file; the test is skipped where it is absent."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"real data absent: {name} is not beside the project")
        return path

    return find


def smaller(config: Any) -> Any:
    """The configuration with a model that trains in seconds: four experts, one epoch."""
    experts = config.model.experts.model_copy(update={"count": 4, "units": (16,)})
    model = config.model.model_copy(update={"experts": experts, "embedding_dim": 8})
    train = config.train.model_copy(update={"epochs": 1, "learning_rate": 0.002})
    # Gates that become sparse by training have had no time to. Without calibration, what is served
    # are the checkpoint's own scores; tests/model/export has calibrated ones.
    export = config.export.model_copy(
        update={"hardening_tolerance": 0.5, "log_loss_tolerance": 0.5, "calibration": "none"}
    )
    return config.model_copy(update={"model": model, "train": train, "export": export})


@dataclass(frozen=True)
class SmallRun:
    """A small run of every stage on simulated logs, in folders as `multigate demo` leaves them."""

    config: Any
    root: Path
    result: dict[str, Any]
    shown: str


@pytest.fixture(scope="session")
def small_config() -> Any:
    """Load a preset with a model that trains in seconds."""
    from multigate.configs import load

    return lambda name: smaller(load(name))


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """Run `multigate demo` on 6,000 exposures."""
    from multigate.configs import load
    from multigate.jobs.simulate import simulate

    config = smaller(load("demo"))
    root = tmp_path_factory.mktemp("small")
    file = root / "small.yaml"
    file.write_text(json.dumps(config.model_dump(mode="json", exclude_unset=True)))
    simulate(root / "logs", seed=3, users=150, items=60, exposures=6_000)
    command = [sys.executable, "-m", "multigate", "demo", "--json", "--config", file]
    command += ["--data", root / "logs", "--out", root / "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return SmallRun(config, root, json.loads(done.stdout), done.stderr)


@pytest.fixture(scope="module")
def small_target(small_run: SmallRun) -> Iterator[str]:
    """Address of a server of the small run's version."""
    from multigate.serving.core.options import ServerOptions
    from multigate.serving.rpc.server import Server

    base = small_run.root / "run/models/demo"
    server = Server(ServerOptions(model_name="demo", model_base_path=base, port=0))
    server.start()
    yield f"127.0.0.1:{server.port}"
    server.stop()


@dataclass(frozen=True)
class Trained:
    """One small two-tower checkpoint and its exported version, from the small run's examples."""

    config: Any
    examples: Path
    checkpoint: Path
    version: Path


@pytest.fixture(scope="session")
def trained(small_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    from multigate.candidates.export import export
    from multigate.candidates.training import train

    root = tmp_path_factory.mktemp("candidates")
    options = small_run.config.candidates.model_copy(
        update={"embedding_dim": 8, "units": (16,), "epochs": 2, "batch_size": 512, "recall_at": 20}
    )
    config = small_run.config.model_copy(update={"candidates": options})
    examples = small_run.root / "run" / "examples"
    train(config, examples, root / "checkpoint", show=lambda line: None)
    version = export(root / "checkpoint", examples, root / "models")
    return Trained(config, examples, root / "checkpoint", version)
