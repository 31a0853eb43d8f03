"""Trees as a teacher: what they may know, which labels they touch, and that training takes them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from multigate.configs.errors import ConfigError
from multigate.configs.files import SAMPLED, SPLITS
from multigate.configs.sections.model import Teacher
from multigate.jobs.tune import tune
from multigate.model.baselines import lightgbm_baseline, teacher
from multigate.model.checkpoints import checkpoint
from multigate.model.data.encoding import Encoder
from multigate.model.data.examples import Examples, Lesson, Split, Taught, read_split, targets
from multigate.model.data.feeds import MemoryFeed, StreamFeed
from multigate.model.data.rows import read_rows
from multigate.model.evaluation.scored import score
from multigate.model.training import loop, train

OPTIONS = Teacher(share=0.5, folds=4, regression=False)
ALL_TASKS = Teacher(share=0.5, folds=4)


@pytest.fixture(scope="module")
def examples(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taught") / "examples"
    tiny.write_examples(folder, tiny.config, rows=2000)
    return folder


def relabelled(examples: Path, out: Path, label: str, make: Any) -> Path:
    """A copy of the examples with another label, made from each split's table."""
    shutil.copytree(examples, out)
    for split in SPLITS:
        for path in (out / split).glob("*.parquet"):
            table = pq.read_table(path)
            place = table.column_names.index(label)
            values = pa.array(make(table), table[label].type)
            pq.write_table(table.set_column(place, label, values), path)
    return out


def test_it_scores_all_rows_and_the_binary_tasks_alone(tiny: Any, examples: Path) -> None:
    contract = tiny.config.contract
    taught = teacher.scores(examples, contract, OPTIONS)
    rows = read_rows(examples, "train")
    labels = rows.labels(contract)
    click, dwell, like = taught.scores.T
    assert taught.share == 0.5
    assert np.isnan(dwell).all()
    for t, scores in ((0, click), (2, like)):  # rows without a label are scored as well
        known = ~np.isnan(labels[:, t])
        assert ((scores > 0) & (scores < 1)).all()
        assert roc_auc_score(labels[known, t], scores[known]) > 0.6
    again = teacher.scores(examples, contract, OPTIONS)
    np.testing.assert_array_equal(again.scores, taught.scores)


def test_it_scores_a_duration_on_its_logarithm(tiny: Any, examples: Path, tmp_path: Path) -> None:
    """A dwell that depends on the item's length alone, which trees see of users that are new."""

    def twice(table: pa.Table) -> list[float]:
        return [2 * length for length in table["length"].to_pylist()]

    folder = relabelled(examples, tmp_path / "twice", "label/dwell", twice)
    found = teacher.scores(folder, tiny.config.contract, ALL_TASKS).scores[:, 1]
    own = np.log1p(read_rows(folder, "train").labels(tiny.config.contract)[:, 1])
    assert np.mean((found - own) ** 2) < 0.01 * own.var()


@pytest.mark.parametrize(
    ("loss", "taught"), [("squared", True), ("huber", True), ("quantile", False), (None, True)]
)
def test_it_can_teach_tasks_whose_score_is_a_mean(
    tiny: Any, examples: Path, loss: str | None, taught: bool
) -> None:
    contract = tiny.config.contract
    tasks = dict(contract.tasks)
    tasks["dwell"] = tasks["dwell"].model_validate(tasks["dwell"].model_dump() | {"loss": loss})
    found = teacher.scores(examples, contract.model_copy(update={"tasks": tasks}), ALL_TASKS)
    assert np.isnan(found.scores[:, 1]).all() != taught


def test_no_row_is_scored_by_trees_that_saw_its_user(
    tiny: Any, examples: Path, tmp_path: Path
) -> None:
    """A coin for each user: who knows the user knows the label, and nobody else does."""

    def coins(table: pa.Table) -> list[float]:
        return [float(int(user[1:]) * 7919 % 13 < 6) for user in table["user_id"].to_pylist()]

    contract = tiny.config.contract
    folder = relabelled(examples, tmp_path / "coins", "label/like", coins)
    rows = read_rows(folder, "train")
    labels = rows.labels(contract)[:, 2]
    knows = lightgbm_baseline.fit(folder, contract, threads=1).scores(rows)["like"]
    assert roc_auc_score(labels, knows) > 0.95
    taught = teacher.scores(folder, contract, OPTIONS).scores[:, 2]
    assert roc_auc_score(labels, taught) < 0.8  # what few users have in common by chance


def test_a_label_of_one_class_or_of_no_row(tiny: Any, examples: Path, tmp_path: Path) -> None:
    contract = tiny.config.contract
    ones = relabelled(examples, tmp_path / "a", "label/like", lambda table: [1.0] * len(table))
    assert (teacher.scores(ones, contract, OPTIONS).scores[:, 2] == 1).all()
    none = relabelled(examples, tmp_path / "b", "label/like", lambda table: [None] * len(table))
    assert np.isnan(teacher.scores(none, contract, OPTIONS).scores[:, 2]).all()


def test_a_share_of_each_label_whatever_the_order_of_reading(
    tiny: Any, examples: Path, tmp_path: Path
) -> None:
    """Three files of several row groups each; a score says which row it belongs to."""
    folder = tmp_path / "examples"
    shutil.copytree(examples, folder)
    (path,) = (folder / "train").glob("*.parquet")
    table = pq.read_table(path)
    path.unlink()
    third = len(table) // 3
    for number, size in enumerate((70, 1000, 31)):
        part = table.slice(number * third, third if number < 2 else None)
        pq.write_table(part, folder / f"train/part-{number}.parquet", row_group_size=size)
    encoder = Encoder.read(folder)
    rows = len(table)
    scores = np.full((rows, 3), np.nan, np.float32)
    scores[:, 0] = np.arange(rows) / rows
    held_out = np.empty((0, 3), np.float32)
    split = Split(folder, "train", encoder, taught=Taught(scores, held_out, 0.25))
    starts = np.cumsum([0] + [group.rows for group in split.groups])
    order = np.random.default_rng(0).permutation(len(split.groups))
    assert len(order) >= 20
    found = np.concatenate(
        [part.taught for part in split.read([split.groups[index] for index in order])]
    )
    which = np.concatenate([np.arange(starts[index], starts[index + 1]) for index in order])
    np.testing.assert_array_equal(found, scores[which])


def taught_rows(scores: list[list[float]], labels: list[list[float]]) -> Examples:
    return Examples({}, np.array(labels, np.float32), taught=np.array(scores, np.float32))


def test_labels_are_blended_and_a_row_without_one_learns_the_score(tiny: Any) -> None:
    contract, statistics = tiny.config.contract, Encoder.read(tiny.examples).statistics
    nan = np.nan
    rows = taught_rows(
        [[0.2, nan, nan], [0.6, nan, 0.9], [0.4, nan, nan]],
        [[1, nan, nan], [0, nan, 1], [nan, nan, 1]],
    )
    half = Lesson(0.5)
    whole = targets(rows, contract, statistics, {"click": half, "like": half})
    np.testing.assert_allclose(whole, [[0.6, nan, nan], [0.3, nan, 0.95], [0.4, nan, 1]])
    click = targets(rows, contract, statistics, {"click": half})
    np.testing.assert_allclose(click, [[0.6, nan, nan], [0.3, nan, 1], [0.4, nan, 1]])
    known = targets(rows, contract, statistics, {"click": Lesson(0.5, unlabelled=False)})
    np.testing.assert_allclose(known, [[0.6, nan, nan], [0.3, nan, 1], [nan, nan, 1]])
    np.testing.assert_array_equal(targets(rows, contract, statistics), rows.labels)


def test_a_duration_is_blended_on_its_logarithm(tiny: Any) -> None:
    """By hand: half of log(1 + 3) and half of log(1 + 15) is log(8), the logarithm of 1 + 7."""
    contract, statistics = tiny.config.contract, Encoder.read(tiny.examples).statistics
    assert contract.tasks["dwell"].transform == "log1p"
    nan, score = np.nan, float(np.log(16))
    rows = taught_rows([[nan, score, nan]] * 2 + [[nan] * 3], [[0, v, 0] for v in (3, nan, 3)])
    found = targets(rows, contract, statistics, dict.fromkeys(contract.tasks, Lesson(0.5)))[:, 1]
    seconds = np.expm1(found * statistics.tasks["dwell"].std + statistics.tasks["dwell"].mean)
    np.testing.assert_allclose(seconds, [7, 15, 3], rtol=1e-5)


@pytest.mark.parametrize("unlabelled", [0.0, 1.0, 2.5, 1e6])
def test_as_many_rows_without_a_label_learn_as_are_wanted(
    tiny: Any, examples: Path, tmp_path: Path, unlabelled: float
) -> None:
    """Labels of likes on one row in eight; all clicks have a label."""

    def few(table: pa.Table) -> list[float | None]:
        likes = table["label/click"].to_pylist()
        return [like if at % 8 == 0 else None for at, like in enumerate(likes)]

    folder = relabelled(examples, tmp_path / "few", "label/like", few)
    contract = tiny.config.contract
    options = OPTIONS.model_copy(update={"unlabelled": unlabelled})
    labels = read_rows(folder, "train").labels(contract)
    known = ~np.isnan(labels)
    learnt = ~np.isnan(teacher.scores(folder, contract, options).scores)
    assert learnt[:, 0].all()
    assert learnt[known[:, 2], 2].all()
    others = (learnt & ~known)[:, 2].sum()
    wanted = min(unlabelled * known[:, 2].sum(), (~known[:, 2]).sum())
    assert others == pytest.approx(wanted, abs=4 * np.sqrt(wanted))
    again = ~np.isnan(teacher.scores(folder, contract, options).scores)
    np.testing.assert_array_equal(again, learnt)


def test_a_drawn_negative_without_a_label_learns_nothing(
    tiny: Any, examples: Path, tmp_path: Path
) -> None:
    """Every second row is one, and likes are known of one row in ten."""

    def few(table: pa.Table) -> list[float | None]:
        likes = table["label/click"].to_pylist()
        return [like if at % 10 == 0 else None for at, like in enumerate(likes)]

    folder = relabelled(examples, tmp_path / "few", "label/like", few)
    for path in (folder / "train").glob("*.parquet"):
        table = pq.read_table(path)
        drawn = pa.array([at % 2 == 1 for at in range(len(table))])
        if SAMPLED in table.column_names:
            table = table.drop_columns([SAMPLED])
        pq.write_table(table.append_column(SAMPLED, drawn), path)
    contract = tiny.config.contract
    options = OPTIONS.model_copy(update={"unlabelled": 1e6})
    learnt = ~np.isnan(teacher.scores(folder, contract, options).scores[:, 2])
    rows = read_rows(folder, "train")
    known = ~np.isnan(rows.labels(contract)[:, 2])
    np.testing.assert_array_equal(learnt, known | ~np.asarray(rows.table[SAMPLED]))


@pytest.mark.sweep(0, slow=1)
@pytest.mark.parametrize("memory", [True, False], ids=["memory", "disk"])
def test_few_labels_are_learnt_with_the_help_of_rows_without(
    tiny: Any, examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: bool
) -> None:
    """Clicks known of one row in twenty, and a teacher who knows them all."""

    def few(table: pa.Table) -> list[float | None]:
        clicks = table["label/click"].to_pylist()
        return [one if at % 20 == 0 else None for at, one in enumerate(clicks)]

    folder = relabelled(examples, tmp_path / "few", "label/click", few)
    contract, test = tiny.config.contract, read_rows(examples, "test")
    truth = [read_rows(examples, one).labels(contract)[:, :1] for one in ("train", "validation")]
    scores = [np.pad(one, ((0, 0), (0, 2)), constant_values=np.nan) for one in truth]
    monkeypatch.setattr(teacher, "_fit", lambda *given: tuple(scores))
    areas, epochs = {}, {}
    for unlabelled in (0, 20):
        options = {"epochs": 5, "batch_size": 128, "learning_rate": 0.01, "patience": 5}
        teaches = {"teacher": {"unlabelled": unlabelled}} | ({} if memory else {"memory": 0})
        config = tiny.make_config(train=options | teaches)
        checkpoint = tmp_path / str(unlabelled)
        train.train(config, folder, checkpoint, progress=False)
        found = score(checkpoint, test).scores["click"]
        areas[unlabelled] = roc_auc_score(test.labels(contract)[:, 0], found)
        epochs[unlabelled] = json.loads((checkpoint / "history.json").read_text())["epochs"]
    assert areas[20] > areas[0] + 0.05, areas
    assert all(epoch["passed"] == [] for epoch in epochs[20])  # nobody is ahead of the truth


@pytest.mark.parametrize("memory", [True, False])
def test_a_feed_takes_other_shares_from_epoch_to_epoch(tiny: Any, memory: bool) -> None:
    contract, encoder = tiny.config.contract, Encoder.read(tiny.examples)
    rows = len(read_rows(tiny.examples, "train"))
    scores = np.full((rows, 3), 0.25, np.float32)
    taught = Taught(scores, np.empty((0, 3), np.float32), 0.5)
    split = Split(tiny.examples, "train", encoder, taught=taught)
    if memory:
        (part,) = split.read(split.groups)
        feed: Any = MemoryFeed(part, contract, encoder.statistics, 64)
    else:
        feed = StreamFeed(split, contract, encoder.statistics, 64)

    def clicks() -> np.ndarray:
        return np.concatenate([np.asarray(aims)[:, 0] for _, aims in feed.epoch()])

    plain = clicks()
    assert set(plain) == {0, 1}
    feed.teach({"click": Lesson(0.5)})
    np.testing.assert_allclose(clicks(), 0.5 * plain + 0.125)
    feed.teach({"like": Lesson(0.5)})
    np.testing.assert_array_equal(clicks(), plain)


def stand_in(tiny: Any, monkeypatch: pytest.MonkeyPatch, skill: float) -> None:
    """A teacher of clicks that tells the labels, with so much noise, in place of the trees."""

    def scores(
        examples: Path, contract: Any, options: Teacher, kept: Any, weight: str | None
    ) -> Taught:
        found = []
        for split in ("train", "validation"):
            labels = read_rows(examples, split).labels(contract)
            known = np.full(labels.shape, np.nan, np.float32)
            noise = np.random.default_rng(1).random(len(labels))
            known[:, 0] = skill * labels[:, 0] + (1 - skill) * noise
            found.append(known)
        return Taught(*found, options.share)

    monkeypatch.setattr(teacher, "scores", scores)


@pytest.mark.parametrize(
    ("skill", "while_ahead", "taught"),
    [(1.0, True, 3), (0.0, True, 1), (0.0, False, 3)],
    ids=["knows all", "knows nothing", "knows nothing, never stops"],
)
def test_it_teaches_a_task_while_it_is_ahead(
    tiny: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    skill: float,
    while_ahead: bool,
    taught: int,
) -> None:
    stand_in(tiny, monkeypatch, skill)
    options = {"epochs": 3, "patience": 3, "batch_size": 32, "learning_rate": 0.03}
    config = tiny.make_config(train=options | {"teacher": {"while_ahead": while_ahead}})
    train.train(config, tiny.examples, tmp_path / "c", progress=False)
    epochs = json.loads((tmp_path / "c" / "history.json").read_text())["epochs"]
    assert [epoch["taught"] for epoch in epochs] == [["click"]] * taught + [[]] * (3 - taught)
    assert [epoch["outgrown"] for epoch in epochs] == [["click"] * (taught == 1), [], []]
    assert [epoch["passed"] for epoch in epochs] == [["click"] * (taught == 1), [], []]


def of_few(tiny: Any, out: Path, monkeypatch: pytest.MonkeyPatch, quality: float) -> Path:
    """Clicks known of one row in twenty, and a teacher of that quality who sees none coming."""

    def few(table: pa.Table) -> list[float | None]:
        clicks = table["label/click"].to_pylist()
        return [one if at % 20 == 0 else None for at, one in enumerate(clicks)]

    folder = out / "examples"
    tiny.write_examples(folder, tiny.config, rows=2000)
    folder = relabelled(folder, out / "few", "label/click", few)

    def fit(tables: Any, *given: Any) -> tuple[np.ndarray, ...]:
        of_clicks = np.array([0.001, np.nan, np.nan], np.float32)
        return tuple(np.tile(of_clicks, (len(labels), 1)) for labels in tables.labels)

    monkeypatch.setattr(teacher, "_fit", fit)
    monkeypatch.setattr(loop, "teacher_qualities", lambda *given: {"click": quality})
    return folder


def test_a_loss_of_other_targets_is_no_explosion(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A score is easier to tell than a label: without the teacher the loss is much higher."""
    folder = of_few(tiny, tmp_path, monkeypatch, quality=0.0)
    contract = tiny.config.model_dump(mode="json", exclude_unset=True)["contract"]
    contract["tasks"] |= {
        name: contract["tasks"][name] | {"weight": 0.0} for name in ("dwell", "like")
    }
    options = {"epochs": 2, "batch_size": 8, "learning_rate": 0.02}
    options |= {"teacher": {"unlabelled": 20.0}}
    config = tiny.make_config(contract=contract, train=options)
    train.train(config, folder, tmp_path / "c", progress=False)
    epochs = json.loads((tmp_path / "c" / "history.json").read_text())["epochs"]
    before, after = (epoch["tasks"]["click"]["loss"] for epoch in epochs)
    assert [epoch["taught"] for epoch in epochs] == [["click"], []]
    assert after > 3 * before


def by_place(table: pa.Table) -> np.ndarray:
    """Chances of a click that fall with the place: 0.88 at the first one, by a logit each."""
    place = np.array([place or 0 for place in table["position"].to_pylist()], float)
    return 1 / (1 + np.exp(-2 + place))


def test_it_knows_places(tiny: Any, examples: Path, tmp_path: Path) -> None:
    """Where nothing but the place decides, it tells the chance of a click at each place."""
    draw = np.random.default_rng(3)
    folder = relabelled(
        examples,
        tmp_path / "places",
        "label/click",
        lambda table: (draw.random(len(table)) < by_place(table)).astype(float).tolist(),
    )
    rows = read_rows(folder, "train")
    taught = teacher.scores(folder, tiny.config.contract, OPTIONS)
    chance = by_place(rows.table)
    assert chance.std() > 0.2
    assert np.corrcoef(taught.scores[:, 0], chance)[0, 1] > 0.95
    assert (
        np.corrcoef(taught.held_out[:, 0], by_place(read_rows(folder, "validation").table))[0, 1]
        > 0.95
    )


@pytest.mark.slow
def test_the_position_tower_learns_what_places_do(
    tiny: Any, examples: Path, tmp_path: Path
) -> None:
    """Beside a teacher as much as without one; and with labels on one row in three."""
    draw = np.random.default_rng(3)

    def clicks(table: pa.Table) -> list[float | None]:
        found = draw.random(len(table)) < by_place(table)
        return [float(one) if at % 3 == 0 else None for at, one in enumerate(found)]

    folder = relabelled(examples, tmp_path / "places", "label/click", clicks)
    ranges = {}
    for name, taught in (("alone", None), ("taught", {"while_ahead": False})):
        options = {"epochs": 12, "patience": 12, "batch_size": 64, "learning_rate": 0.02}
        config = tiny.make_config(train=options | {"teacher": taught})
        train.train(config, folder, tmp_path / name, progress=False)
        loaded = checkpoint.load(tmp_path / name)
        rows = read_split(folder, "test", loaded.encoder)
        with_places, without = (
            np.asarray(loaded.ranker.forward(rows.features, False, places).logits["click"])
            for places in (True, False)
        )
        effect = with_places - without
        ranges[name] = effect.max() - effect.min()
    assert ranges["taught"] > 0.8 * ranges["alone"], ranges


def test_it_learns_the_rate_of_the_weighted_rows(tiny: Any, tmp_path: Path) -> None:
    """Of a log that keeps a tenth of the negatives, each of weight 10, it scores the whole."""
    contract, rng = tiny.config.contract, np.random.default_rng(0)
    whole, kept = tmp_path / "whole", tmp_path / "kept"
    tiny.write_examples(tmp_path / "made", tiny.config, rows=8000)

    def drawn(table: pa.Table) -> np.ndarray:
        odd = np.asarray(table["item_id"]) % 2
        return (rng.random(len(table)) < 0.1 + 0.2 * odd).astype(np.float32)

    relabelled(tmp_path / "made", whole, "label/click", drawn)
    shutil.copytree(whole, kept)
    for split in SPLITS:
        for path in (kept / split).glob("*.parquet"):
            table = pq.read_table(path)
            negative = np.asarray(table["label/click"]) == 0
            table = table.append_column("meta/mine", pa.array(np.where(negative, 10.0, 1.0)))
            pq.write_table(table.filter(pa.array(~negative | (rng.random(len(table)) < 0.1))), path)

    def click(folder: Path, weight: str | None = None) -> float:
        file = tmp_path / f"{folder.name}.npz"  # of which other weights must take nothing
        found = teacher.scores(folder, contract, OPTIONS, file, weight).scores[:, 0]
        return float(
            np.average(found, weights=weight and read_rows(folder, "train").weights(weight))
        )

    assert click(whole) == pytest.approx(0.2, abs=0.02)
    assert click(kept) > 0.5
    assert click(kept, "meta/mine") == pytest.approx(0.2, abs=0.03)


def test_scores_are_kept_for_the_same_rows_and_options_alone(
    tiny: Any, examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract, kept = tiny.config.contract, tmp_path / "teacher.npz"
    fits = []

    def counted(*given: Any) -> Any:
        fits.append(given)
        return lightgbm_baseline.fit_task(*given)

    def fitted(folder: Path, options: Teacher = OPTIONS) -> tuple[np.ndarray, int]:
        before = len(fits)
        return teacher.scores(folder, contract, options, kept).scores, len(fits) - before

    monkeypatch.setattr(teacher, "fit_task", counted)
    first, count = fitted(examples)
    assert count == 8  # four folds of two tasks
    again, count = fitted(examples, Teacher(share=0.2, folds=4, regression=False))
    assert count == 0
    np.testing.assert_array_equal(again, first)
    assert fitted(examples, Teacher(folds=2))[1] == 6
    assert fitted(examples, ALL_TASKS)[1] == 12
    changed = relabelled(
        examples, tmp_path / "o", "label/like", lambda table: [0.0, 1.0] * (len(table) // 2)
    )
    assert fitted(changed)[1] == 8
    for damage in (kept.read_bytes()[:-40], b"", b"no file of scores"):
        kept.write_bytes(damage)
        found, count = fitted(examples)
        assert count == 8
        np.testing.assert_array_equal(found, first)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["teacher.npz"]


def test_a_search_fits_it_once(
    tiny: Any, examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = []
    whole = teacher._fit
    monkeypatch.setattr(teacher, "_fit", lambda *given: fits.append(given) or whole(*given))
    space = {"train.learning_rate": {"low": 0.001, "high": 0.01}}
    config = tiny.make_config(
        train={"teacher": {"folds": 2}, "epochs": 1},
        tune={"space": space, "trials": 2, "prune": False},
    )
    found = tune(config, examples, tmp_path / "search")
    assert (found["trials"], len(fits)) == (2, 1)


@pytest.mark.slow
def test_a_training_learns_from_it(tiny: Any, examples: Path, tmp_path: Path) -> None:
    """Here from disk, row group by row group."""
    found = {}
    rows = read_rows(examples, "train")
    for name, changes in (("taught", {"teacher": {"share": 0.9}, "memory": 0}), ("alone", {})):
        options = {"epochs": 3, "batch_size": 128, "learning_rate": 0.02, "seed": 3}
        config = tiny.make_config(train=options | changes)
        train.train(config, examples, tmp_path / name, progress=False)
        found[name] = score(tmp_path / name, rows).scores["click"]
    trees = teacher.scores(examples, tiny.config.contract, Teacher()).scores[:, 0]
    distance = {name: float(np.mean((scores - trees) ** 2)) for name, scores in found.items()}
    assert distance["taught"] < distance["alone"]


def test_it_is_refused_beside_a_term_for_the_order(tiny: Any) -> None:
    both = {"teacher": {}, "ranking": {"kind": "pairwise"}}
    with pytest.raises(ConfigError, match="ranking and teacher cannot go together"):
        tiny.make_config(train=both)


def test_without_the_library_it_says_what_to_install(
    tiny: Any, examples: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("multigate.configs.baselines.find_spec", lambda name: None)
    config = tiny.make_config(train={"teacher": {}})
    with pytest.raises(ConfigError, match=r"pip install multigate\[baseline\]"):
        train.train(config, examples, tmp_path / "c", progress=False)
    assert not list(tmp_path.iterdir())
