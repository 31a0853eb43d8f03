"""Training end to end on a small examples folder."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from multigate.configs.errors import ConfigError, DataError, ModelError
from multigate.model.backend import memory
from multigate.model.baselines import teacher
from multigate.model.checkpoints import checkpoint, weights
from multigate.model.data import examples, feeds
from multigate.model.data.encoding import Encoder
from multigate.model.training import tensorboard, train, validation

MOESART = {
    "embedding_dim": 4,
    "experts": {"count": 3, "units": [6], "dropout": 0.2},
    "gate": {"name": "moesart", "num_selected": 2, "trimmed_lasso_weight": 0.1},
    "towers": {"units": []},
}


@pytest.fixture(scope="module")
def trained(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a sampling gate with dropout: everything random takes part."""
    out = tmp_path_factory.mktemp("trained") / "checkpoint"
    train.train(tiny.make_config(model=MOESART), tiny.examples, out, progress=False)
    return out


def test_the_folder_is_whole(trained: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    assert names == {
        "config.json",
        "contract.json",
        "statistics.json",
        "vocabularies",
        "weights.h5",
        "history.json",
        "logs",
    }
    assert not list(trained.parent.glob(".*partial"))
    history = checkpoint.read_history(trained)
    assert [epoch["epoch"] for epoch in history] == [1, 2]
    labels = {name: task.count for name, task in Encoder.read(trained).statistics.tasks.items()}
    most = max(labels.values())
    for epoch in history:
        total = sum(
            weight * labels[task] / most * epoch["tasks"][task]["val_loss"]
            for task, weight in (("click", 1), ("dwell", 0.5), ("like", 1))
        )
        assert epoch["val_loss"] == pytest.approx(total)
        assert epoch["regularisation"] > 0
        assert set(epoch["gates"]["click"]) >= {"load", "entropy", "experts_per_row"}


@pytest.mark.slow
def test_same_seed_same_weights(tiny: Any, trained: Path, tmp_path: Path) -> None:
    config = tiny.make_config(model=MOESART)
    train.train(config, tiny.examples, tmp_path / "again", progress=False)
    other = tiny.make_config(model=MOESART, train=config.train.model_dump() | {"seed": 4})
    train.train(other, tiny.examples, tmp_path / "other", progress=False)
    first, again, different = (
        weights.copy(checkpoint.load(folder).ranker)
        for folder in (trained, tmp_path / "again", tmp_path / "other")
    )
    assert first.keys() == again.keys()
    for name, values in first.items():
        np.testing.assert_array_equal(values, again[name], err_msg=name)
    assert (first["embeddings/user_id"] != different["embeddings/user_id"]).any()


def test_tensorboard_holds_losses_and_gates(trained: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tags = {}
    for split in ("train", "validation"):
        events = EventAccumulator(str(trained / "logs" / split), size_guidance={"scalars": 0})
        events.Reload()
        tags[split] = set(events.Tags()["scalars"])
        assert [event.step for event in events.Scalars("loss")] == [1, 2]
    assert {"tasks/click", "tasks/dwell", "regularisation"} <= tags["train"]
    assert {"tasks/like", "experts_per_row", "gates/like/entropy", "gates/like/load/2"} <= tags[
        "validation"
    ]


@pytest.fixture(scope="module")
def overtrained(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A training that stops early: configuration, checkpoint, result, and the weights it saved."""
    saved: list[dict[str, np.ndarray]] = []
    save = weights.save

    def spy(ranker: Any, path: Path, moments: Any) -> None:
        saved.append(weights.copy(ranker))
        save(ranker, path, moments)

    # A learning rate at which 300 rows are soon learnt by heart.
    hasty = {"epochs": 30, "batch_size": 64, "learning_rate": 0.05, "patience": 2, "seed": 1}
    config = tiny.make_config(train=hasty)
    out = tmp_path_factory.mktemp("overtrained") / "c"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "save", spy)
        result = train.train(config, tiny.examples, out, progress=False)
    return config, out, result, saved


def test_the_best_epoch_is_kept_and_training_stops(tiny: Any, overtrained: Any) -> None:
    config, out, result, saved = overtrained
    epochs = checkpoint.read_history(out)
    losses = [epoch["val_loss"] for epoch in epochs]
    qualities = [epoch["val_quality"] for epoch in epochs]
    best = int(np.argmax(qualities))
    assert len(losses) == best + 1 + 2 < 30
    assert (result["best_epoch"], result["epochs"]) == (best + 1, len(losses))
    assert (result["monitor"], result["monitored"]) == ("quality", qualities[best])
    assert result["val_loss"] == losses[best]
    assert result["rows"] == 300
    # The file holds the weights of the best epoch, and scores what it scored then.
    loaded, encoder, _, _ = checkpoint.load(out)
    for name, values in weights.copy(loaded).items():
        np.testing.assert_array_equal(values, saved[-1][name], err_msg=name)
    rows = examples.read_split(tiny.examples, "validation", encoder)
    feed = feeds.MemoryFeed(rows, config.contract, encoder.statistics, 4096)
    loaded.compile()
    loaded.validates_positions = True
    again = loaded.evaluate(feed.epoch(), steps=1, verbose=0, return_dict=True)
    total = sum(weight * again[f"{name}_loss"] for name, weight in loaded.task_weights.items())
    assert total == pytest.approx(losses[best], rel=1e-5)


def test_training_learns(overtrained: Any) -> None:
    history = checkpoint.read_history(overtrained[1])
    for task in ("click", "dwell", "like"):
        assert history[-1]["tasks"][task]["loss"] < 0.95 * history[0]["tasks"][task]["loss"]


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_training(tiny: Any, tmp_path: Path) -> None:
    wild = {"epochs": 3, "batch_size": 16, "learning_rate": 1e30}
    with pytest.raises(ModelError, match=r"not finite\. Lower train\.learning_rate \(now 1e\+30\)"):
        train.train(tiny.make_config(train=wild), tiny.examples, tmp_path / "c", progress=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_exploding_loss_stops_training(tiny: Any, tmp_path: Path) -> None:
    wild = {"epochs": 30, "batch_size": 4, "learning_rate": 0.5, "explosion": 1.01}
    message = r"step \d+: the training loss explodes: .* times its running median .* at most "
    with pytest.raises(ModelError, match=message + r"train\.explosion = 1\.01 times\. Lower"):
        train.train(tiny.make_config(train=wild), tiny.examples, tmp_path / "c", progress=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_lines_without_a_terminal(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train.train(tiny.config, tiny.examples, tmp_path / "c")
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert [line.split("  ")[0] for line in lines[:2]] == ["epoch 1/2", "epoch 2/2"]
    best = ", ".join(f"{task} {epoch}" for task, epoch in result["best_epochs"].items())
    assert lines[2] == (
        f"kept epoch {result['best_epoch']} of 2: quality {result['monitored']:.4f}; best epochs "
        f"of the tasks: {best}"
    )
    assert lines[3:] == [f"warning: {warning}" for warning in result["warnings"]]
    assert "\x1b" not in shown.err


@pytest.mark.slow
def test_rows_that_training_never_sees_stay_as_they_are(tiny: Any, tmp_path: Path) -> None:
    options = tiny.config.train.model_dump() | {"embeddings": "rows"}
    config = tiny.make_config(
        train=options, model=tiny.config.model.model_dump() | {"id_dropout": 0.0}
    )
    train.train(config, tiny.examples, tmp_path / "c", progress=False)
    trained = checkpoint.load(tmp_path / "c").ranker
    fresh = checkpoint.make_ranker(
        config.contract, config.model, Encoder.read(tiny.examples), config.train.seed
    )
    before, after = weights.copy(fresh), weights.copy(trained)
    # Row 1 is for unseen values: training has none.
    np.testing.assert_array_equal(before["embeddings/user_id"][1], after["embeddings/user_id"][1])
    assert (before["embeddings/user_id"][2:] != after["embeddings/user_id"][2:]).any(axis=1).all()


def test_a_checkpoint_of_the_former_version_loads(tiny: Any, tmp_path: Path) -> None:
    """Its configuration says `lazy_embeddings`; its arrays are those of today."""
    checkpoint.create(tmp_path, tiny.config, tiny.examples)
    encoder = Encoder.read(tmp_path)
    ranker = checkpoint.make_ranker(tiny.config.contract, tiny.config.model, encoder, seed=5)
    weights.save(ranker, tmp_path / checkpoint.WEIGHTS)
    path = tmp_path / checkpoint.CONFIG
    for lazy, embeddings in ((False, "dense"), (True, "rows")):
        values = json.loads(path.read_text())
        for key in ("embeddings", "moments"):
            values["train"].pop(key, None)
        path.write_text(json.dumps(values | {"train": values["train"] | {"lazy_embeddings": lazy}}))
        loaded = checkpoint.load(tmp_path)
        assert loaded.config.train.embeddings == embeddings
        for name, value in weights.copy(ranker).items():
            np.testing.assert_array_equal(weights.copy(loaded.ranker)[name], value)


def test_tables_that_do_not_fit_are_refused_before_training(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available", lambda: 2**20)
    monkeypatch.setattr(teacher, "scores", lambda *given: pytest.fail("trees before the check"))
    config = tiny.make_config(
        model=tiny.config.model.model_dump() | {"embedding_dim": 100_000}, train={"teacher": {}}
    )
    with pytest.raises(
        ModelError,
        match=r"embedding tables .*\(largest: item_id \d+ x 100000, .*\) take .* MiB of memory, "
        r"1\.0 MiB are free; choose a smaller model\.embedding_dim",
    ):
        train.train(config, tiny.examples, tmp_path / "c", progress=False)


def test_what_cannot_be_trained(tiny: Any, tmp_path: Path) -> None:
    contract = json.loads(tiny.config.contract.model_dump_json(exclude_defaults=True))
    contract["features"]["user_id"]["oov_buckets"] = 5
    for feature in contract["features"].values():
        if feature["kind"] == "position":
            feature.pop("side", None)
    other = tiny.make_config(contract=contract)
    ours, theirs = (c.contract.schema_fingerprint() for c in (tiny.config, other))
    with pytest.raises(ModelError, match=f"built with schema {ours}, .* has schema {theirs}"):
        train.train(other, tiny.examples, tmp_path / "c", progress=False)
    (tmp_path / "taken").mkdir()
    with pytest.raises(DataError, match="already exists"):
        train.train(tiny.config, tiny.examples, tmp_path / "taken", progress=False)
    with pytest.raises(DataError, match=r"nowhere/contract\.json: no contract here"):
        train.train(tiny.config, tmp_path / "nowhere", tmp_path / "c", progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.slow
def test_loss_weights_may_change_after_the_examples_are_built(tiny: Any, tmp_path: Path) -> None:
    contract = tiny.config.contract.model_dump(mode="json", exclude_defaults=True)
    contract["tasks"]["like"]["weight"] = 0.25
    config = tiny.make_config(contract=contract)
    train.train(config, tiny.examples, tmp_path / "c", progress=False)
    assert checkpoint.load(tmp_path / "c").contract.contract.tasks["like"].weight == 0.25


def test_a_full_disk(tiny: Any, trained: Path, tmp_path: Path, full_disk: Any) -> None:
    ranker = checkpoint.load(trained).ranker
    path = tmp_path / "weights.h5"
    weights.save(ranker, path)
    before = path.read_bytes()
    with full_disk(1000), pytest.raises(OSError, match="File too large"):
        weights.save(ranker, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_under_the_logs(tmp_path: Path, full_disk: Any) -> None:
    logs = tensorboard.Logs(tmp_path)
    with full_disk(10), pytest.raises(OSError, match="File too large"):
        logs.write("train", 1, {"loss": 0.5})


def test_tensorboard_reads_the_logs(tmp_path: Path) -> None:
    """With its own reader, which is not what writes them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logs = tensorboard.Logs(tmp_path)
    for epoch in (1, 2):
        logs.write("train", epoch, {"loss": 0.5 / epoch})
        logs.write("validation", epoch, {"gates/like/load": np.array([0.25, 0.75])})
    found = {}
    for split in ("train", "validation"):
        reader = EventAccumulator(str(tmp_path / split)).Reload()
        for tag in reader.Tags()["scalars"]:
            found[tag] = [(event.step, event.value) for event in reader.Scalars(tag)]
    assert found == {
        "loss": [(1, 0.5), (2, 0.25)],
        "gates/like/load/0": [(1, 0.25), (2, 0.25)],
        "gates/like/load/1": [(1, 0.75), (2, 0.75)],
    }


def test_a_damaged_history_is_named(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "copy")
    path = tmp_path / "copy" / checkpoint.HISTORY
    path.write_text(path.read_text()[:50])
    with pytest.raises(ModelError, match=r"history\.json: not valid JSON: .*; train again"):
        checkpoint.read_history(tmp_path / "copy")


@pytest.mark.slow
def test_the_kept_epoch_is_measured_with_hardened_gates(tiny: Any, tmp_path: Path) -> None:
    """What is served is hard: how well the soft form does says little about it."""
    gate = {"name": "dselect_k", "num_selected": 1}
    config = tiny.make_config(model=tiny.config.model.model_dump() | {"gate": gate})
    result = train.train(config, tiny.examples, tmp_path / "c", progress=False)
    loaded = checkpoint.load(tmp_path / "c")
    held_out = examples.read_split(tiny.examples, "validation", loaded.encoder)
    feed = feeds.MemoryFeed(held_out, config.contract, loaded.encoder.statistics, 4096)

    def loss() -> float:
        loaded.ranker.compile()
        loaded.ranker.validates_positions = True
        found = loaded.ranker.evaluate(feed.epoch(), verbose=0, return_dict=True)
        weights = loaded.ranker.task_weights
        return sum(weight * found[f"{name}_loss"] for name, weight in weights.items())

    soft = loss()
    loaded.ranker.mixture.harden()
    hard = loss()
    assert abs(hard - soft) > 1e-3 * soft  # two epochs leave every bit near 1/2
    assert result["val_loss"] == pytest.approx(hard, rel=1e-5)
    best = checkpoint.read_history(tmp_path / "c")[result["best_epoch"] - 1]
    for found in best["gates"].values():  # and the numbers beside it are those of the same form
        assert found["experts_per_row"] == pytest.approx(1)
        assert found["convergence"] < 1


def reweighted(tiny: Any, folder: Path, weights: Any) -> Path:
    """The tiny examples with a column of weights."""
    shutil.copytree(tiny.examples, folder)
    for path in folder.glob("*/part-*.parquet"):
        if path.parent.name in ("train", "validation", "test"):
            rows = pl.read_parquet(path)
            column = pl.Series("meta/weight", weights(len(rows)), pl.Float64)
            rows.with_columns(column).write_parquet(path)
    return folder


@pytest.mark.slow
def test_rows_weigh_in_the_loss_as_often_as_their_weight_says(tiny: Any, tmp_path: Path) -> None:
    def weights(rows: int) -> list[float]:
        return [float(n % 3) for n in range(rows)]

    folder = reweighted(tiny, tmp_path / "e", weights)
    encoder = Encoder.read(folder)
    config = tiny.config
    ranker = checkpoint.make_ranker(config.contract, config.model, encoder, seed=1)
    ranker.compile()

    def losses(rows: examples.Examples) -> dict[str, float]:
        feed = feeds.MemoryFeed(rows, config.contract, encoder.statistics, 4096)
        found: dict[str, float] = ranker.evaluate(feed.epoch(), verbose=0, return_dict=True)
        return found

    weighted = examples.read_split(folder, "validation", encoder, "meta/weight")
    plain = examples.read_split(folder, "validation", encoder)
    assert plain.weights is None
    repeated = plain.take(np.repeat(np.arange(100), [n % 3 for n in range(100)]))
    expected, found, unweighted = losses(repeated), losses(weighted), losses(plain)
    for task in config.contract.tasks:
        assert found[f"{task}_loss"] == pytest.approx(expected[f"{task}_loss"], rel=1e-5)
        assert found[f"{task}_loss"] != pytest.approx(unweighted[f"{task}_loss"], rel=1e-3)


@pytest.mark.slow
def test_training_with_weights_and_learnt_task_weights(tiny: Any, tmp_path: Path) -> None:
    folder = reweighted(tiny, tmp_path / "e", lambda rows: [0.5] * (rows - 1) + [None])
    config = tiny.make_config(
        model=MOESART | {"task_weighting": "uncertainty"},
        train=tiny.config.train.model_dump() | {"weight": "meta/weight"},
    )
    train.train(config, folder, tmp_path / "c", progress=False)
    learnt = weights.copy(checkpoint.load(tmp_path / "c").ranker)["uncertainty/0_log_variance"]
    assert learnt.shape == (3,)
    assert (learnt != 0).all()
    # The option may change when training starts from the checkpoint.
    fixed = tiny.make_config(model=MOESART, train={"epochs": 1, "batch_size": 300})
    train.train(fixed, folder, tmp_path / "d", progress=False, start_from=tmp_path / "c")
    assert "uncertainty/0_log_variance" not in weights.copy(checkpoint.load(tmp_path / "d").ranker)


def test_weights_that_cannot_be_used(tiny: Any, tmp_path: Path) -> None:
    folder = reweighted(tiny, tmp_path / "e", lambda rows: [-1.0] * rows)
    encoder = Encoder.read(folder)
    with pytest.raises(DataError, match=r"meta/weight: expected weights .* at least 0, received -"):
        examples.read_split(folder, "train", encoder, "meta/weight")
    with pytest.raises(DataError, match=r"'meta/importance' is missing.* correct train\.weight"):
        examples.read_split(folder, "train", encoder, "meta/importance")
    with pytest.raises(DataError, match=r"user_id: expected numbers as weights, received .*string"):
        examples.read_split(folder, "train", encoder, "user_id")


@pytest.mark.slow
def test_averaged_weights_are_measured_and_kept(tiny: Any, tmp_path: Path) -> None:
    """Training itself goes on from the weights of the last step."""
    plain = tiny.config.train.model_dump() | {"epochs": 3, "monitor": "loss"}
    rows = {}
    for name, options in (("plain", plain), ("averaged", plain | {"ema": 0.9})):
        config = tiny.make_config(train=options)
        result = train.train(config, tiny.examples, tmp_path / name, progress=False)
        epochs = checkpoint.read_history(tmp_path / name)
        rows[name] = [epoch["loss"] for epoch in epochs], [epoch["val_loss"] for epoch in epochs]
        # The file scores what validation measured.
        loaded, encoder, _, _ = checkpoint.load(tmp_path / name)
        loaded.validates_positions = True
        held_out = examples.read_split(tiny.examples, "validation", encoder)
        feed = feeds.MemoryFeed(held_out, config.contract, encoder.statistics, 4096)
        found = validation.validate(
            validation.make_forward(loaded), feed, config.contract, loaded.heads
        )
        weights_ = loaded.task_weights
        total = sum(weight * found.losses[name] for name, weight in weights_.items())
        assert total == pytest.approx(result["val_loss"], rel=1e-5)
    assert rows["plain"][0] == rows["averaged"][0]
    assert rows["plain"][1] != rows["averaged"][1]


@pytest.mark.slow
def test_the_monitor_may_be_one_task(tiny: Any, tmp_path: Path) -> None:
    hasty = {"epochs": 4, "batch_size": 64, "learning_rate": 0.05, "patience": 4}
    config = tiny.make_config(train=hasty | {"monitor": "dwell"})
    result = train.train(config, tiny.examples, tmp_path / "c", progress=False)
    epochs = checkpoint.read_history(tmp_path / "c")
    values = [epoch["tasks"]["dwell"]["val_quality"] for epoch in epochs]
    assert (result["monitor"], result["monitored"]) == ("dwell", max(values))
    assert result["best_epoch"] == result["best_epochs"]["dwell"] == 1 + int(np.argmax(values))
    with pytest.raises(
        ConfigError, match=r"monitor: expected one of quality, loss, click, dwell, l"
    ):
        tiny.make_config(train={"monitor": "shares"})


def without_likes(tiny: Any, folder: Path, tasks: tuple[str, ...]) -> Path:
    """The tiny examples in which some tasks have no positive validation label."""
    shutil.copytree(tiny.examples, folder)
    for path in (folder / "validation").glob("*.parquet"):
        rows = pl.read_parquet(path)
        zeros = [
            pl.when(pl.col(f"label/{t}").is_not_null())
            .then(0.0)
            .alias(f"label/{t}")
            .cast(pl.Float32)
            for t in tasks
        ]
        rows.with_columns(zeros).write_parquet(path)
    return folder


@pytest.mark.slow
def test_tasks_that_validation_cannot_measure(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = without_likes(tiny, tmp_path / "e", ("like",))
    result = train.train(tiny.config, folder, tmp_path / "c")
    (first, last) = checkpoint.read_history(tmp_path / "c")
    assert last["tasks"]["like"]["val_quality"] is None
    two = [last["tasks"][name]["val_quality"] for name in ("click", "dwell")]
    assert last["val_quality"] == pytest.approx(np.mean(two))
    assert result["monitor"] == "quality"
    line = capsys.readouterr().err.splitlines()[0]
    assert f"  click {first['tasks']['click']['val_quality']:.4f}  " in line
    assert "  like" not in line
    # By name it is refused before anything is trained.
    alone = tiny.make_config(train={"epochs": 1, "monitor": "like"})
    with pytest.raises(
        ModelError, match=r"train\.monitor: like cannot be measured.* choose quality"
    ):
        train.train(alone, folder, tmp_path / "d", progress=False)
    assert not (tmp_path / "d").exists()


@pytest.mark.slow
def test_without_any_task_to_measure_the_loss_decides(tiny: Any, tmp_path: Path) -> None:
    folder = without_likes(tiny, tmp_path / "e", ("click", "dwell", "like"))
    result = train.train(tiny.config, folder, tmp_path / "c", progress=False)
    losses = [epoch["val_loss"] for epoch in checkpoint.read_history(tmp_path / "c")]
    assert (result["monitor"], result["monitored"]) == ("loss", min(losses))


@pytest.mark.slow
def test_a_training_warns_on_stderr_and_in_its_results(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Validation says the opposite of training, so each epoch is worse than the one before."""
    folder = tmp_path / "e"
    shutil.copytree(tiny.examples, folder)
    for path in (folder / "validation").glob("*.parquet"):
        opposite = [-pl.col(f"label/{task}") + 1 for task in ("click", "like")]
        pl.read_parquet(path).with_columns(opposite).write_parquet(path)
    options = {
        "epochs": 3,
        "patience": 3,
        "monitor": "click",
    }  # the labels of dwell stay as they are
    config = tiny.make_config(train=tiny.config.train.model_dump() | options)
    result = train.train(config, folder, tmp_path / "c")
    lines = capsys.readouterr().err.splitlines()
    assert result["best_epoch"] == 1
    assert result["warnings"][0].startswith("the first of 3 epochs was kept: click by ")
    assert [f"warning: {warning}" for warning in result["warnings"]] == lines[4:]
    assert checkpoint.read_warnings(tmp_path / "c") == result["warnings"]


@pytest.mark.slow
def test_a_column_of_the_log_weighs_the_rows(tiny: Any, tmp_path: Path) -> None:
    """Rows of weight 0 are as good as absent: their labels may say anything."""
    pipeline = tiny.make_config().model_dump(mode="json")["pipeline"]
    pipeline["log"]["columns"]["weight"] = "worth"
    config = tiny.make_config(pipeline=pipeline)
    with pytest.raises(DataError, match="meta/weight"):
        train.train(config, tiny.examples, tmp_path / "out", progress=False)
    results = []
    for flipped in (False, True):
        folder = tmp_path / f"examples-{flipped}"
        shutil.copytree(tiny.examples, folder)
        for path in sorted((folder / "train").glob("*.parquet")):
            rows = pl.read_parquet(path).with_row_index("n")
            ignored = pl.col("n") % 3 == 0
            label = pl.col("label/click")
            rows = rows.with_columns(
                pl.when(ignored & flipped).then(1 - label).otherwise(label).alias("label/click"),
                pl.when(ignored).then(0.0).otherwise(1.0).cast(pl.Float32).alias("meta/weight"),
            )
            rows.drop("n").write_parquet(path)
        for path in sorted((folder / "validation").glob("*.parquet")):
            rows = pl.read_parquet(path).with_columns(pl.lit(None, pl.Float32).alias("meta/weight"))
            rows.write_parquet(path)
        out = tmp_path / f"out-{flipped}"
        train.train(config, folder, out, progress=False)
        results.append([e["tasks"]["click"]["val_loss"] for e in checkpoint.read_history(out)])
    assert results[0] == pytest.approx(results[1], rel=1e-4)
