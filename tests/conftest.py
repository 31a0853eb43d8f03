"""What all tests share: where the real data are, and one small run of every stage."""

import os
import re
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

DATA = Path(__file__).parents[2] / "shared" / "data"

# Tests on JAX are processes of their own, which spend their time compiling what runs once.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

# Files, or groups of files that share what takes seconds to make; the longest are first.
TOGETHER = (
    r"jobs/(night/test_(run|candidate_stages)|test_tune)\.py",
    r"candidates/|jobs/test_multistage\.py|end_to_end/test_(demo|verbs)\.py|contract/test_(one_event|tfrecord_contract)\.py",
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
                item.add_marker("slow")
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


@pytest.fixture(scope="session")
def small_config() -> Any:
    """Load a preset with a model that trains in seconds."""
    from multigate.configs import load

    return lambda name: smaller(load(name))


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """Run the demo's stages on 6,000 exposures."""
    from multigate.configs import load
    from multigate.jobs import demo
    from multigate.pipeline.simulate import simulate

    config = smaller(load("demo"))
    root = tmp_path_factory.mktemp("small")
    simulate(root / "logs", seed=3, users=150, items=60, exposures=6_000)
    result = demo.run(config, root / "logs", root / "run")
    return SmallRun(config, root, result)


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
