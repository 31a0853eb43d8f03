"""Trains on JAX for tests, in a process of its own: a process has one backend."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
from multigate.configs.config import Config
from multigate.configs.sections.base import parse
from multigate.model import backend
from multigate.model.checkpoints import checkpoint
from multigate.model.data.examples import read_split
from multigate.model.ranker.scores import scores
from multigate.model.training import train

config, examples, out, found = sys.argv[1:]
assert backend.name() == "jax"
config = parse(Config, json.loads(Path(config).read_text()), config)
examples, out = Path(examples), Path(out)
train.train(config, examples, out, progress=False)
ranker, encoder, _, _ = checkpoint.load(out)
rows = read_split(examples, "test", encoder)
values = scores(config.contract, encoder.statistics, ranker.infer(rows.features).logits)
np.savez(found, **{name: np.asarray(value) for name, value in values.items()})
"""


def run(code: str, *arguments: object) -> str:
    """Run Python on JAX; what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def train(
    config: Any, examples: Path, out: Path, then: str = ""
) -> tuple[dict[str, np.ndarray], str]:
    """Train a ranker on JAX, and score the test split there.

    Args:
        config: of the training.
        examples: folder of examples.
        out: the checkpoint's folder, which is made.
        then: more Python, which finds `config`, `examples`, `out`, `train` and `checkpoint`.

    Returns:
        The scores by task, and what was printed.
    """
    settings, found = (out.with_name(f"{out.name}.{end}") for end in ("json", "npz"))
    settings.write_text(config.model_dump_json())
    printed = run(SCRIPT + then, settings, examples, out, found)
    with np.load(found) as scores:
        return dict(scores), printed
