"""One small two-tower checkpoint and its exported version, from the small run's examples."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Trained:
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
