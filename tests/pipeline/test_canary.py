"""A canary: where feedback after an instant is noise, no model trained before gains from it.

Two logs of the simulated feed, as impressions and as events. From the instant on, feedback is
shuffled among the impressions: it depends on nothing. A model trained up to then that ranks it
better than chance must have seen it, in a feature of the very impressions that it ranks.
"""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from multigate import configs
from multigate.configs.config import Config
from multigate.configs.sections.base import parse
from multigate.features import earlier
from multigate.jobs.simulate import simulate
from multigate.pipeline.audit import giveaway
from multigate.pipeline.compute import computed
from multigate.pipeline.job import run

NOISE_FROM = datetime(2026, 1, 21, tzinfo=UTC)
FEEDBACK = ["click", "dwell", "share", "like", "dislike", "follow", "rating"]
SPLIT = {"by": "time", "validation": NOISE_FROM.isoformat(), "test": "2026-01-26T00:00:00Z"}


@pytest.fixture(scope="module")
def feed(tmp_path_factory):
    """The simulated log, and the same with noise; in the order of time."""
    folder = tmp_path_factory.mktemp("canary")
    simulate(folder / "log", seed=4, users=300, items=150, exposures=40_000)
    log = pl.read_ndjson(sorted((folder / "log").glob("*.jsonl")))
    late = pl.col("time") >= int(NOISE_FROM.timestamp())
    noise = log.filter(late).select(FEEDBACK).sample(fraction=1, shuffle=True, seed=5)
    return log, pl.concat([log.filter(~late), log.filter(late).with_columns(noise.get_columns())])


def impression_config(**log):
    path = Path(configs.__file__).parent / "presets/demo.yaml"
    values = yaml.safe_load(path.read_text())
    counters = {
        "item_rate": ("item", {"events": ["click"], "per": ["impression"], "within": "3d"}),
        "user_rate": ("user", {"events": ["click"], "per": ["impression"]}),
    }
    for name, (side, rate) in counters.items():
        values["contract"]["features"][name] = {
            "kind": "number",
            "side": side,
            "missing": "indicator",
            "rate": {"of": side, **rate},
        }
    values["pipeline"]["split"] = SPLIT
    values["pipeline"]["log"] |= log
    return parse(Config, values, "test")


def write_impressions(log, folder):
    folder.mkdir()
    log.write_ndjson(folder / "log.jsonl")
    return folder


def event_config():
    def history(events):
        return {
            "kind": "id_list",
            "side": "user",
            "share": "item_id",
            "history": {"events": events, "last": 20},
        }

    def task(event):
        label = {"rule": "event", "events": [event], "within": "1d"}
        return {"group": "engagement", "type": "binary", "label": label}

    likes = {"events": ["LIKE"], "per": ["VIEW"], "within": "3d"}
    number = {"kind": "number", "missing": "indicator"}
    values = {
        "name": "canary",
        "contract": {
            "user": "user_id",
            "item": "item_id",
            "features": {
                "user_id": {"kind": "id", "side": "user"},
                "item_id": {"kind": "id", "side": "item"},
                "topic": {"kind": "id", "side": "item"},
                "clicked": history(["CLICK"]),
                "liked": history(["LIKE"]),
                "item_likes": number | {"side": "item", "rate": {"of": "item", **likes}},
                "user_likes": number | {"side": "user", "rate": {"of": "user", **likes}},
            },
            "tasks": {"click": task("CLICK"), "like": task("LIKE")},
        },
        "pipeline": {
            "log": {
                "shape": "events",
                "files": ["log.jsonl"],
                "format": {"type": "jsonl"},
                "impression": "VIEW",
                "columns": {"time": "time", "user": "user_id", "item": "item_id", "event": "event"},
            },
            "split": SPLIT,
        },
    }
    return parse(Config, values, "test")


def write_events(log, folder):
    """Views, and clicks and likes after them: at once, or minutes and hours later."""
    folder.mkdir()
    rng = np.random.default_rng(6)
    parts = [log.select("time", "user_id", "item_id", "topic", event=pl.lit("VIEW"))]
    for name in ("click", "like"):
        came = log.filter(pl.col(name) > 0)
        delay = pl.Series(rng.choice([0, 0, 30, 600, 20_000], len(came)))
        parts.append(
            came.select(
                pl.col("time") + delay, "user_id", "item_id", "topic", event=pl.lit(name.upper())
            )
        )
    pl.concat(parts).sort("time", maintain_order=True).write_ndjson(folder / "log.jsonl")
    return folder


def table(rows, config):
    """What a model sees of the features, histories and their match with the item among them."""
    columns = []
    for name, feature in config.contract.features.items():
        if feature.kind == "id_list":
            columns.append(rows[name].list.len().fill_null(0))
            if config.contract.vocabulary_of(name) == config.contract.item:
                columns.append(giveaway.match_counts(rows[name], rows[config.contract.item]))
        elif feature.kind == "id" and feature.dtype == "string":
            columns.append(rows[name].hash(0) % 1009)
        else:
            columns.append(rows[name])
    return np.stack([column.cast(pl.Float64).to_numpy() for column in columns], axis=1)


def gain(out, config, task):
    """AUC after the instant of a model trained before it, and its standard deviation by chance."""
    train, *later = (
        pl.read_parquet(out / name / "*.parquet") for name in ("train", "validation", "test")
    )
    later = pl.concat(later).drop_nulls(f"label/{task}")
    train = train.drop_nulls(f"label/{task}")
    model = HistGradientBoostingClassifier(max_iter=60, max_depth=5, random_state=0)
    with threadpool_limits(1, user_api="openmp"):  # threads that wait for a busy core take minutes
        model.fit(table(train, config), train[f"label/{task}"].to_numpy())
        scores = model.predict_proba(table(later, config))[:, 1]
    truth = later[f"label/{task}"].to_numpy()
    auc = roc_auc_score(truth, scores)
    positive = truth.sum()
    chance = np.sqrt((len(truth) + 1) / (12 * positive * (len(truth) - positive)))
    return auc, chance


SHAPES = {
    "impressions": (write_impressions, impression_config, "click"),
    "events": (write_events, event_config, "like"),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_no_model_gains_from_noise(shape, feed, tmp_path):
    write, make, task = SHAPES[shape]
    found = {}
    for name, log in zip(("taste", "noise"), feed, strict=True):
        run(make(), write(log, tmp_path / name), tmp_path / f"{name}-out")
        found[name] = gain(tmp_path / f"{name}-out", make(), task)
    assert found["taste"][0] > 0.6  # the model is able to learn
    auc, chance = found["noise"]
    assert abs(auc - 0.5) < 4 * chance < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_the_canary_dies_of_features_that_see_the_present(shape, feed, monkeypatch, tmp_path):
    """Events at the impression's very time count, and feedback from its impression's time on."""
    write, make, task = SHAPES[shape]
    honest = earlier.Timeline.earlier

    def leaky(self, queries, time=None, *, inclusive=False):
        return honest(self, queries, time, inclusive=True)

    monkeypatch.setattr(earlier.Timeline, "earlier", leaky)
    monkeypatch.setattr(computed, "_known", lambda column, log: pl.col("time"))
    run(make(), write(feed[1], tmp_path / "log"), tmp_path / "out")
    auc, chance = gain(tmp_path / "out", make(), task)
    assert auc > 0.5 + 8 * chance
