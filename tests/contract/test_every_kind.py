"""One model with every kind of feature, pooling, loss and layer goes through all that trains it.

`test_feature_kinds` compares what such features are worth in the pipeline, the graph and the store;
here training is interrupted, runs on JAX, and runs by night and starts from the night before.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import yaml
from tests import on_jax

from multigate.configs.config import Config
from multigate.configs.sections.base import parse
from multigate.configs.sections.features import Feature, IdListFeature, TextFeature
from multigate.configs.sections.losses import Loss
from multigate.jobs.export import export
from multigate.jobs.publication.base_folder import Base
from multigate.model.checkpoints import checkpoint, weights
from multigate.model.data import examples
from multigate.model.evaluation import evaluate
from multigate.model.training import train
from multigate.model.training.progress import Display
from multigate.pipeline import job
from multigate.verbs.command import main

pytestmark = pytest.mark.slow

START, DAYS, REQUESTS = datetime(2026, 3, 1, tzinfo=UTC), 6, 60
INTERRUPTED_AT = 5
"""Calls of the progress bar: one for each 16 steps, and the last of an epoch."""


def _list(events: list[str], **changes: Any) -> dict[str, Any]:
    return {
        "kind": "id_list",
        "side": "user",
        "share": "item_id",
        "history": {"events": events, "last": 4},
        "max_length": 4,
    } | changes


CONTRACT: dict[str, Any] = {
    "user": "user_id",
    "item": "item_id",
    "features": {
        "user_id": {"kind": "id", "side": "user"},
        "item_id": {"kind": "id", "side": "item"},
        "agent": {"kind": "id", "side": "context", "hash_buckets": 8, "missing": "indicator"},
        "topic": {"kind": "id", "side": "item"},
        "length": {"kind": "number", "side": "item", "transform": "log1p"},
        "hour": {"kind": "number", "side": "context", "scale": "buckets", "buckets": 4},
        "title": {"kind": "text", "side": "item", "hash_buckets": 32, "max_length": 4},
        "query": {"kind": "text", "side": "context", "hash_buckets": 16, "pooling": "sum"},
        "cover": {"kind": "vector", "side": "item", "size": 4, "project": 2},
        "position": {"kind": "position", "max_position": 4},
        "clicked": _list(["click"]),
        "liked": _list(["like"], pooling="sum"),
        "seen": _list(["click", "like"], pooling="attention")
        | {"history": {"events": ["click", "like"], "last": 4, "with": ["event", "age", "topic"]}},
        "steps": _list(["click"], pooling="sequence"),
        "views": {
            "kind": "number",
            "side": "item",
            "count": {"of": "item", "events": ["impression"], "within": "1d"},
            "transform": "log1p",
        },
        "newness": {
            "kind": "number",
            "side": "item",
            "since": {"of": "item", "events": ["impression"], "which": "first"},
            "missing": "indicator",
        },
    },
    "rates": {"of": ["user", "item", ["user", "topic"]], "tasks": ["click", "stars"]},
    "tasks": {
        name: {"group": "engagement", "label": {"rule": "column", "column": name}} | task
        for name, task in {
            "click": {"type": "binary", "score_weight": 1},
            "like": {"type": "binary", "given": "click", "group": "satisfaction"},
            "stars": {"type": "regression", "loss": {"kind": "ordinal", "thresholds": 4}},
            "dwell": {"type": "regression", "transform": "log1p", "when": "click"},
            "seconds": {"type": "regression", "loss": "huber"},
            "half": {"type": "regression", "loss": "quantile"},
            "capped": {"type": "regression", "loss": "censored", "clip": [0, 40]},
            "spent": {"type": "regression", "loss": "zero_inflated"},
        }.items()
    },
}
SETTINGS: dict[str, Any] = {
    "name": "everything",
    "contract": CONTRACT,
    "pipeline": {
        "log": {
            "shape": "impressions",
            "files": ["*.jsonl"],
            "format": {"type": "jsonl"},
            "columns": {
                "time": "time",
                "user": "user_id",
                "item": "item_id",
                "request": "request_id",
            },
            "known_after": "10m",
        },
        "split": {"by": "time", "validation": 0.2, "test": 0.2},
        "buckets": 1,
    },
    "model": {
        "embedding_dim": 4,
        "id_dropout": 0.2,
        "cross": {"layers": 1, "rank": 2},
        "wide": {"crosses": 64, "embeddings": 0.1},
        "factors": {"width": 2},
        "experts": {"count": 2, "own": 1, "units": [6], "dropout": 0.1},
        "gate": {"name": "topk", "num_selected": 2},
        "gates": {"dwell": {"name": "moesart", "num_selected": 2}},
        "towers": {"units": [4]},
        "task_weighting": "balanced",
    },
    "train": {
        "epochs": 2,
        "batch_size": 24,
        "learning_rate": 0.01,
        "recency": "3d",
        "teacher": {"folds": 2},
        "save_every": 1,
        "seed": 3,
    },
    "run": {
        "full_retrain_days": 7,
        "guards": {"min_rows": 10, "min_test_rows": 10, "max_label_change": None},
    },
}


def write_log(folder: Path, days: int = DAYS) -> Path:
    """One file for each of the first days; each request of a user shows four items."""
    rng = np.random.default_rng(11)
    covers = rng.normal(2, 1, (16, 4)).round(3).tolist()
    folder.mkdir()
    for day in range(DAYS):
        lines = []
        for n in range(REQUESTS):
            user, at = int(rng.integers(12)), START + timedelta(days=day, minutes=20 * n)
            for place, item in enumerate(rng.choice(16, 4, replace=False).tolist()):
                taste = np.sin(5 * item) + np.cos(3 * user)
                click = int(rng.random() < 1 / (1 + np.exp(-2 * taste)))
                stay = float(np.exp(2 + taste + 0.3 * rng.normal()))
                row = {
                    "time": int(at.timestamp()),
                    "request_id": f"r{day}-{n}",
                    "user_id": f"u{user}",
                    "item_id": f"i{item}",
                    "agent": None if n % 5 == 0 else f"a{user % 3}",
                    "topic": f"t{item % 4}",
                    "length": 10 * (1 + item),
                    "hour": at.hour,
                    "title": f"News of t{item % 4} no {item}",
                    "query": ["tea", "café ☕", ""][n % 3],
                    "cover": covers[item],
                    "position": place,
                    "click": click,
                    "like": int(click and rng.random() < 0.5),
                    "stars": int(np.clip(np.round(3 + taste + rng.normal()), 1, 5)),
                    "dwell": stay,
                    "seconds": stay,
                    "half": stay,
                    "capped": stay,
                    "spent": stay if rng.random() < 0.4 else 0.0,
                }
                lines.append(json.dumps(row))
        if day < days:
            (folder / f"day-{day}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


class Everything:
    """The log, its examples and an undisturbed training."""

    def __init__(self, root: Path, changes: dict[str, Any]) -> None:
        values = SETTINGS | {"train": SETTINGS["train"] | changes}
        self.config = parse(Config, values, "everything.yaml")
        self.logs, self.examples, self.out = write_log(root / "logs"), root / "examples", root / "c"
        job.run(self.config, self.logs, self.examples)
        train.train(self.config, self.examples, self.out, progress=False)


# A teacher and a term within requests exclude each other.
TRAININGS: dict[str, dict[str, Any]] = {
    "teacher": {},
    "ranking": {"teacher": None, "ranking": {"kind": "pairwise", "weight": 0.3}},
}


@pytest.fixture(scope="module", params=["teacher", pytest.param("ranking", marks=pytest.mark.long)])
def everything(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Everything:
    return Everything(tmp_path_factory.mktemp("everything"), TRAININGS[request.param])


def values_of(model: Any, field: str) -> set[str]:
    return set(get_args(model.model_fields[field].annotation))


def test_no_kind_is_left_out() -> None:
    """A kind that is added to the configuration must be added here, or this fails."""
    config = parse(Config, SETTINGS, "everything.yaml")
    features = config.contract.features.values()
    kinds = {kind for of in get_args(get_args(Feature)[0]) for kind in values_of(of, "kind")}
    assert {feature.kind for feature in features} == kinds
    lists = {f.pooling for f in features if isinstance(f, IdListFeature)}
    assert lists == values_of(IdListFeature, "pooling")
    texts = {f.pooling for f in features if isinstance(f, TextFeature)}
    assert texts == {"mean", "sum"} == values_of(TextFeature, "pooling")
    losses = {kind for of in get_args(get_args(Loss)[0]) for kind in values_of(of, "kind")}
    used = {task.loss.kind if task.loss else "squared" for task in config.contract.tasks.values()}
    assert used == losses


def test_an_interrupted_training_ends_as_another(
    everything: Everything, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time it takes the teacher's scores, the epoch and all state from the disk."""
    advance, calls = Display.advance, 0

    def interrupt(display: Display, step: int, loss: float) -> None:
        nonlocal calls
        advance(display, step, loss)
        calls += 1
        if calls == INTERRUPTED_AT:
            raise KeyboardInterrupt

    out = tmp_path / "c"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Display, "advance", interrupt)
        train.train(everything.config, everything.examples, out, progress=False)
    result = train.train(everything.config, everything.examples, out, progress=False, resume=True)
    assert result["resumed"]["step"] > 0  # in the middle of an epoch
    found, expected = (
        weights.copy(checkpoint.load(folder).ranker) for folder in (out, everything.out)
    )
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.long  # test_export does this with a plain model
def test_what_jax_trained_is_exported(everything: Everything, tmp_path: Path) -> None:
    """The export compares its graph with the checkpoint itself, and refuses what differs."""
    expected, _ = on_jax.train(everything.config, everything.examples, tmp_path / "c")
    ranker, encoder, _, _ = checkpoint.load(tmp_path / "c")
    rows = examples.read_split(everything.examples, "test", encoder)
    found = evaluate.Predictions(ranker, everything.config.contract, encoder.statistics, rows)
    for task in everything.config.contract.tasks:
        np.testing.assert_allclose(found.scores[task], expected[task], rtol=1e-4, atol=1e-5)
    assert export(tmp_path / "c", everything.examples, tmp_path / "models").name == "1"


@pytest.mark.long  # tests/jobs/night does this with plain features
def test_a_night_starts_from_the_night_before(tmp_path: Path) -> None:
    """Both nights are published; the second begins with the first one's weights.

    A few hundred test rows tell no loss of 2 % from chance: only what is shown is refused.
    """
    path, runs = tmp_path / "everything.yaml", tmp_path / "runs"
    rules = {"largest_loss": 1.0, "largest_ranking_loss": 1.0}
    path.write_text(yaml.safe_dump(SETTINGS | {"evaluation": {"rules": rules}}))
    for number, days in ((1, DAYS - 1), (2, DAYS)):
        logs = write_log(tmp_path / f"logs-{number}", days)
        date = START.date() + timedelta(days=days - 1)
        options = ["--data", str(logs), "--date", str(date), "--out", str(runs)]
        assert main(["run", "--config", str(path), *options]) == 0
        base = Base(runs / "models/everything")
        assert base.production() == number
        lineage = base.lineage(number)
        assert (lineage["parent"], lineage["start"]) == (
            (None, "full") if number == 1 else (1, "warm")
        )
