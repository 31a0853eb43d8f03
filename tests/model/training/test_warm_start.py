"""A training that starts from a checkpoint: grown vocabularies, other statistics."""

import json
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from multigate.configs.errors import ModelError
from multigate.configs.sections.model import TrainConfig
from multigate.model.checkpoints import checkpoint, weights
from multigate.model.data.encoding import Encoder
from multigate.model.data.examples import Examples
from multigate.model.evaluation import evaluate
from multigate.model.optimizer.optimizers import make_optimizer
from multigate.model.training import train, warm_start

MODEL = {
    "embedding_dim": 4,
    "experts": {"count": 4, "units": [6]},
    "gate": {"name": "topk", "num_selected": 2},
    "gates": {
        "dwell": {"name": "dselect_k", "num_selected": 2, "gamma_end": 0.1, "gamma_steps": 9},
        "like": {
            "name": "hierarchical",
            "num_groups": 2,
            "primary": {"name": "topk", "num_selected": 1},
            "secondary": {"name": "topk", "num_selected": 2},
        },
    },
    "towers": {"units": [4]},
    "wide": {"crosses": 4096, "embeddings": 0.1},  # users by items: 600
}


def make(tiny: Any, **changes: Any) -> Any:
    return tiny.make_config(model=MODEL, train=tiny.config.train.model_dump() | changes)


@pytest.fixture(scope="module")
def parent(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("parent") / "c"
    train.train(make(tiny), tiny.examples, out, progress=False)
    return out


@pytest.fixture(scope="module")
def grown(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The next night's examples: two users gone, one new and in front, other statistics."""
    folder = tmp_path_factory.mktemp("grown") / "examples"
    tiny.write_examples(folder, tiny.config, seed=9)
    path = folder / "vocabularies" / "user_id.parquet"
    values = [f"u{n}" for n in range(19, 1, -1)]
    pl.DataFrame({"value": ["new", *values], "count": [50, *([20] * 18)]}).write_parquet(path)
    before = json.loads((tiny.examples / "statistics.json").read_text())
    after = json.loads((folder / "statistics.json").read_text())
    # The n-th bucket is the n-th: with other boundaries other rows would be looked up.
    after["features"]["age"] = before["features"]["age"]
    after["features"]["length"] |= {"mean": 3.5, "std": 2.0}
    (folder / "statistics.json").write_text(json.dumps(after))
    return folder


def scores(folder: Path, table: Any, ranker: Any, config: Any) -> dict[str, np.ndarray]:
    encoder = Encoder.read(folder)
    rows = Examples(encoder(table), np.zeros((len(table), 3), np.float32))
    return evaluate.Predictions(ranker, config.contract, encoder.statistics, rows).scores


def test_known_ids_keep_their_scores(tiny: Any, parent: Path, grown: Path) -> None:
    config = make(tiny)
    old = checkpoint.load(parent).ranker
    encoder = Encoder.read(grown)
    new = checkpoint.make_ranker(config.contract, config.model, encoder, seed=8)
    fresh = weights.copy(new)
    result = warm_start.start(new, encoder, parent)
    assert result["tables"]["user_id"] == {"kept": 18, "new": 1, "dropped": 2}
    assert result["tables"]["item_id"] == {"kept": 30, "new": 0, "dropped": 0}
    raw = pl.read_parquet(tiny.examples / "test" / "*.parquet")
    known = raw.filter(~pl.col("user_id").is_in(["u0", "u1"])).to_arrow()
    expected = scores(parent, known, old, config)
    found = scores(grown, known, new, config)
    for task in config.contract.tasks:
        np.testing.assert_allclose(found[task], expected[task], rtol=2e-4, atol=1e-5, err_msg=task)
    # Without the change of kernels and heads they would differ: the test can fail.
    assert encoder.statistics.features["length"].std == 2.0
    tables = weights.copy(new)["embeddings/user_id"], weights.copy(old)["embeddings/user_id"]
    before = Encoder.read(parent).vocabularies["user_id"].to_pylist()
    np.testing.assert_array_equal(tables[0][:2], tables[1][:2])  # missing and unseen
    np.testing.assert_array_equal(tables[0][2], fresh["embeddings/user_id"][2])  # "new"
    np.testing.assert_array_equal(tables[0][3], tables[1][2 + before.index("u19")])


GONE = ("u0", "u1")


def by_pair(ranker: Any, folder: Path) -> dict[tuple[str, str], tuple[float, float]]:
    """The weights of the first and the last task, which are binary, by user and item."""
    encoder = Encoder.read(folder)
    users, items = (encoder.vocabularies[name].to_pylist() for name in ("user_id", "item_id"))
    table = ranker.wide.tables["user_id * item_id"].embeddings.numpy()[1:]
    pairs = [(user, item) for user in users for item in items]
    return {pair: (row[0], row[-1]) for pair, row in zip(pairs, table, strict=True)}


def test_pairs_of_ids_that_remain_keep_their_weights(
    tiny: Any, parent: Path, grown: Path, tmp_path: Path
) -> None:
    """Features may also grow beyond the bound for pairs, or shrink below it."""
    config = make(tiny)
    source = tmp_path / "c"
    shutil.copytree(parent, source)
    old = checkpoint.load(source).ranker
    rng = np.random.default_rng(0)
    for cross in old.wide.crosses:
        part = old.wide.tables[cross].embeddings
        part.assign(rng.normal(size=part.shape))
    weights.save(old, source / checkpoint.WEIGHTS)
    for crosses, pairs in ((4096, 2), (100, 1), (0, 0)):
        model = config.model.model_copy(
            update={"wide": config.model.wide.model_copy(update={"crosses": crosses})}
        )
        new = checkpoint.make_ranker(config.contract, model, Encoder.read(grown), seed=8)
        assert len(new.wide.crosses) == pairs
        started = warm_start.start(new, Encoder.read(grown), source)
        assert started["pairs_gone"] == {
            cross: old.wide.tables[cross].embeddings.shape[0] - 1
            for cross in old.wide.crosses
            if cross not in new.wide.crosses
        }
        if crosses == 4096:
            before, after = (by_pair(*pair) for pair in ((old, source), (new, grown)))
            assert before.keys() - after.keys() == {pair for pair in before if pair[0] in GONE}
            for pair, of_tasks in after.items():
                assert of_tasks == (before[pair] if pair[0] != "new" else (0, 0)), pair
    # A checkpoint without pairs: all of them start from nothing.
    without = checkpoint.make_ranker(config.contract, model, Encoder.read(source), seed=8)
    weights.save(without, source / checkpoint.WEIGHTS)
    both = checkpoint.make_ranker(config.contract, config.model, Encoder.read(grown), seed=8)
    warm_start.start(both, Encoder.read(grown), source)
    assert not both.wide.tables["user_id * item_id"].embeddings.numpy().any()


@pytest.mark.slow
def test_known_ids_keep_the_expert_of_a_hash_gate(tiny: Any, tmp_path: Path, grown: Path) -> None:
    """The hash is that of the id, not of its place in a vocabulary that grows."""
    model = MODEL | {"gate": {"name": "hash"}, "gates": {}}
    config = tiny.make_config(model=model, train=tiny.config.train.model_dump() | {"epochs": 1})
    train.train(config, tiny.examples, tmp_path / "c", progress=False)
    old, before, _, _ = checkpoint.load(tmp_path / "c")
    after = Encoder.read(grown)
    new = checkpoint.make_ranker(config.contract, config.model, after, seed=8)
    warm_start.start(new, after, tmp_path / "c")
    table = pl.read_parquet(tiny.examples / "test" / "*.parquet").to_arrow()
    codes = before(table)["user_id"], after(table)["user_id"]
    assert (codes[0] != codes[1]).mean() > 0.5  # the users' codes have moved
    experts = [
        np.asarray(ranker.forward(encoder(table)).mixed.routings[0].weights).argmax(axis=1)
        for ranker, encoder in ((old, before), (new, after))
    ]
    np.testing.assert_array_equal(*experts)
    assert len(np.unique(experts[0])) == 4  # users are spread over all experts


def with_pooling(tiny: Any, pooling: str) -> Any:
    contract = tiny.config.contract.model_dump(mode="json")
    contract["features"]["recent"]["pooling"] = pooling
    options = tiny.config.train.model_dump() | {"epochs": 1}
    return tiny.make_config(contract=contract, model=MODEL, train=options)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["attention", "sequence"])
def test_poolings_with_weights_are_carried_over(
    tiny: Any, grown: Path, tmp_path: Path, pooling: str
) -> None:
    config = with_pooling(tiny, pooling)
    train.train(config, tiny.examples, tmp_path / "c", progress=False)
    old, encoder = checkpoint.load(tmp_path / "c").ranker, Encoder.read(grown)
    new = checkpoint.make_ranker(config.contract, config.model, encoder, seed=8)
    warm_start.start(new, encoder, tmp_path / "c")
    raw = pl.read_parquet(tiny.examples / "test" / "*.parquet")
    known = raw.filter(~pl.col("user_id").is_in(["u0", "u1"])).to_arrow()
    expected = scores(tmp_path / "c", known, old, config)
    found = scores(grown, known, new, config)
    for task in config.contract.tasks:
        np.testing.assert_allclose(found[task], expected[task], rtol=2e-4, atol=1e-5, err_msg=task)


@pytest.mark.slow
@pytest.mark.parametrize("option", [{"cross": {"layers": 2, "rank": 4}}, {"number_clip": 0.8}])
def test_what_is_not_linear_reads_numbers_as_before(
    tiny: Any, grown: Path, tmp_path: Path, option: dict[str, Any]
) -> None:
    """A product or a limit cannot be made up for by other kernels, so that the unit stays."""
    config = tiny.make_config(
        model=MODEL | option,
        train=tiny.config.train.model_dump() | {"epochs": 1},
    )
    train.train(config, tiny.examples, tmp_path / "c", progress=False)
    old, encoder = checkpoint.load(tmp_path / "c").ranker, Encoder.read(grown)
    new = checkpoint.make_ranker(config.contract, config.model, encoder, seed=8)
    warm_start.start(new, encoder, tmp_path / "c")
    statistics = Encoder.read(tiny.examples).statistics.features["length"]
    scale, shift = weights.copy(new)["numbers/length"][:, 0]
    assert scale == pytest.approx(2.0 / statistics.std)
    assert shift == pytest.approx((3.5 - statistics.mean) / statistics.std)
    raw = pl.read_parquet(tiny.examples / "test" / "*.parquet")
    known = raw.filter(~pl.col("user_id").is_in(["u0", "u1"])).to_arrow()
    expected = scores(tmp_path / "c", known, old, config)
    found = scores(grown, known, new, config)
    for task in config.contract.tasks:
        np.testing.assert_allclose(found[task], expected[task], rtol=2e-4, atol=1e-5, err_msg=task)


def test_a_checkpoint_that_pools_in_another_way_is_refused(
    tiny: Any, parent: Path, grown: Path
) -> None:
    config, encoder = with_pooling(tiny, "sum"), Encoder.read(grown)
    new = Encoder(config.contract, encoder.statistics, encoder.vocabularies)
    ranker = checkpoint.make_ranker(config.contract, config.model, new, seed=8)
    message = "feature 'recent': expected pooling: mean, as the checkpoint was trained with, rec"
    with pytest.raises(ModelError, match=message):
        warm_start.start(ranker, new, parent)


def test_a_text_that_is_pooled_in_another_way_is_refused_too(tiny: Any) -> None:
    contract = tiny.config.contract.model_dump(mode="json")
    nights = []
    for pooling in ("mean", "sum"):
        contract["features"]["title"] = {"kind": "text", "side": "item", "pooling": pooling}
        nights.append(tiny.make_config(contract=contract).contract)
    assert nights[0].schema_fingerprint() == nights[1].schema_fingerprint()
    with pytest.raises(ModelError, match=r"feature 'title': expected pooling: mean.*received pool"):
        warm_start._check_poolings(Path("parent"), *nights)


def test_a_missing_number_keeps_its_product() -> None:
    layer = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=0))
    layer.build((None, 4))
    layer.bias.assign([0.1, 0.2, 0.3])
    # Columns: another feature, the number, its indicator, another feature.
    x = np.array([[1, 0.5, 1, 2], [1, 0, 0, 2]], np.float32)
    expected = layer(x)
    # old number = 2 * new number + 3
    warm_start._rescale(layer.kernel, layer.bias, column=1, indicator=2, scale=2.0, shift=3.0)
    again = np.array([[1, (0.5 - 3) / 2, 1, 2], [1, 0, 0, 2]], np.float32)
    # Terms of about 1 may cancel in their sum.
    np.testing.assert_allclose(layer(again), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer.bias, [0.1, 0.2, 0.3])


def test_only_what_reads_the_input_is_rescaled(tiny: Any, tmp_path: Path) -> None:
    """With as many experts as features, other variables have the shape of an input kernel."""
    # D: four tables of 4 columns, an age of 4 with its indicator, a length, and a list's length and
    # match.
    E = 24
    model = MODEL | {
        "experts": {"count": E, "units": [E, 6]},
        "gate": {"name": "comet", "num_selected": 2, "permutation": True},
        "gates": {
            "dwell": {"name": "xmoe", "num_selected": 2},
            "like": {"name": "noisy_topk", "num_selected": 2},
        },
        "towers": {"units": [E, 4]},
    }
    config = tiny.make_config(model=model)
    parent, after = tmp_path / "parent", shutil.copytree(tiny.examples, tmp_path / "after")
    parent.mkdir()
    checkpoint.create(parent, config, tiny.examples)
    before = Encoder.read(parent)
    old = checkpoint.make_ranker(config.contract, config.model, before, seed=1)
    assert sum(old.embedder.widths.values()) == E
    shapes = {tuple(v.shape) for gate in old.mixture.gates for v in gate.weights}
    assert {(E, E), (E, E // 2)} < shapes  # the permutation's logits, X-MoE's embeddings
    rng = np.random.default_rng(0)
    for gate in old.mixture.gates:
        for variable in gate.trainable_weights:
            variable.assign(rng.normal(size=variable.shape))
    weights.save(old, parent / checkpoint.WEIGHTS)
    statistics = json.loads((after / "statistics.json").read_text())
    # Not the mean: X-MoE and noisy top-k have no bias that could take up its change.
    statistics["features"]["length"]["std"] *= 3
    (after / "statistics.json").write_text(json.dumps(statistics))

    encoder = Encoder.read(after)
    new = checkpoint.make_ranker(config.contract, config.model, encoder, seed=8)
    warm_start.start(new, encoder, parent)
    raw = pl.read_parquet(tiny.examples / "test" / "*.parquet").to_arrow()
    expected, found = scores(parent, raw, old, config), scores(after, raw, new, config)
    for task in config.contract.tasks:
        np.testing.assert_allclose(found[task], expected[task], rtol=2e-4, atol=1e-5, err_msg=task)


def test_schedules_go_on_unless_they_are_to_start_over(tiny: Any, parent: Path) -> None:
    config, encoder = make(tiny), Encoder.read(parent)
    ranker = checkpoint.make_ranker(config.contract, config.model, encoder, seed=0)
    gate = ranker.mixture.gates[1]
    warm_start.start(ranker, encoder, parent)
    assert int(gate.step) == 2 * 5  # two epochs of five steps
    warm_start.start(ranker, encoder, parent, restart_schedules=True)
    assert int(gate.step) == 0


@pytest.mark.slow
def test_training_starts_where_the_parent_ended(
    tiny: Any, parent: Path, grown: Path, tmp_path: Path
) -> None:
    config = make(tiny, epochs=1, learning_rate=1e-6)
    cold = train.train(config, grown, tmp_path / "cold", progress=False)
    warm = train.train(config, grown, tmp_path / "warm", progress=False, start_from=parent)
    assert cold["started_from"] is None
    assert warm["started_from"]["checkpoint"] == str(parent)
    assert warm["val_loss"] < 0.98 * cold["val_loss"]
    # Its statistics and vocabularies are the new ones.
    vocabulary = "vocabularies/user_id.parquet"
    assert pq.read_table(tmp_path / "warm" / vocabulary) == pq.read_table(grown / vocabulary)


def test_what_training_cannot_start_from(
    tiny: Any, parent: Path, grown: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"nowhere: holds no weights\.h5; expected a folder"):
        train.train(
            make(tiny), grown, tmp_path / "c", progress=False, start_from=tmp_path / "nowhere"
        )
    wider = tiny.make_config(model=MODEL | {"embedding_dim": 8})
    with pytest.raises(ModelError, match=r"embeddings/\w+: expected shape \(\d+, 8\), received"):
        train.train(wider, grown, tmp_path / "c", progress=False, start_from=parent)
    shutil.copytree(parent, tmp_path / "damaged")
    content = (parent / "weights.h5").read_bytes()
    (tmp_path / "damaged" / "weights.h5").write_bytes(content[:2000])
    with pytest.raises(ModelError, match=r"weights\.h5: damaged"):
        train.train(
            make(tiny), grown, tmp_path / "c", progress=False, start_from=tmp_path / "damaged"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]


def with_country(tiny: Any, **options: Any) -> Any:
    """The configuration with other options of the feature `country`."""
    contract = tiny.config.contract.model_dump(mode="json")
    contract["features"]["country"] |= options
    return tiny.make_config(
        contract=contract, model=MODEL, train={"epochs": 1, "batch_size": 300, "seed": 3}
    )


@pytest.mark.slow
def test_hashed_ids_keep_their_rows_beside_a_grown_vocabulary(
    tiny: Any, grown: Path, tmp_path: Path
) -> None:
    config = with_country(tiny, hash_buckets=7)
    files = {}
    for name, source in (("before", tiny.examples), ("after", grown)):
        files[name] = shutil.copytree(source, tmp_path / name)
        frozen = json.loads((files[name] / "contract.json").read_text())
        frozen |= {
            "contract": config.contract.model_dump(mode="json"),
            "schema_fingerprint": config.contract.schema_fingerprint(),
        }
        (files[name] / "contract.json").write_text(json.dumps(frozen))
        (files[name] / "vocabularies" / "country.parquet").unlink()
    parent = tmp_path / "parent"
    train.train(config, files["before"], parent, progress=False)
    old = checkpoint.load(parent).ranker
    encoder = Encoder.read(files["after"])
    new = checkpoint.make_ranker(config.contract, config.model, encoder, seed=8)
    result = warm_start.start(new, encoder, parent)
    assert set(result["tables"]) == {"user_id", "item_id"}  # a hash has nothing to grow
    tables = weights.copy(new)["embeddings/country"], weights.copy(old)["embeddings/country"]
    assert tables[0].shape == (1 + 7, 4)
    np.testing.assert_array_equal(*tables)
    raw = pl.read_parquet(tiny.examples / "test" / "*.parquet")
    known = raw.filter(~pl.col("user_id").is_in(["u0", "u1"])).to_arrow()
    expected, found = scores(parent, known, old, config), scores(files["after"], known, new, config)
    for task in config.contract.tasks:
        np.testing.assert_allclose(found[task], expected[task], rtol=2e-4, atol=1e-5, err_msg=task)

    # With another number of buckets, or a vocabulary, no row would mean what it did.
    for buckets in (8, None):
        other = with_country(tiny, hash_buckets=buckets).contract
        changed = Encoder(other, encoder.statistics, Encoder.read(grown).vocabularies)
        message = (
            rf"differ, namely feature country \(hash_buckets 7, now {buckets}\); train without"
        )
        with pytest.raises(ModelError, match=message):
            warm_start.start(new, changed, parent)


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({"decay": "none"}, [0.01, 0.01, 0.01]),
        ({"decay": "linear", "decay_to": 0.2}, [0.01, 0.006, 0.002]),
        ({"decay": "cosine"}, [0.01, 0.005, 0.0]),
    ],
)
def test_the_learning_rate_decays_over_all_epochs(options: Any, rates: list[float]) -> None:
    config = TrainConfig(epochs=2, learning_rate=0.01, warm_learning_rate=0.002, **options)
    for warm, factor in ((False, 1.0), (True, 0.2)):
        optimizer = make_optimizer(config, steps=50, warm=warm)
        found = []
        for step in (0, 50, 100):
            optimizer.iterations.assign(step)
            found.append(float(optimizer.learning_rate))
        np.testing.assert_allclose(found, [factor * rate for rate in rates], atol=1e-9)


def refused(tiny: Any, parent: Path, out: Path, **changes: Any) -> str:
    """Why a training of a changed configuration cannot start from the parent."""
    config = tiny.make_config(**{"model": MODEL, "train": tiny.config.train.model_dump()} | changes)
    with pytest.raises(warm_start.UnfitError) as caught:
        train.train(config, tiny.examples, out, progress=False, start_from=parent)
    assert not out.exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"gate": {"name": "softmax"}},
            "the gate of click: expected name: topk, num_selected: 2, as the checkpoint was "
            "trained with, received name: softmax; ",
        ),
        ({"gate": {"name": "topk", "num_selected": 3}}, "received name: topk, num_selected: 3; "),
        (
            {
                "gates": MODEL["gates"]
                | {
                    "like": MODEL["gates"]["like"]
                    | {"secondary": {"name": "topk", "num_selected": 1}}
                }
            },
            "the gate of like: expected name: hierarchical, primary.name: topk, "
            "primary.num_selected: 1, secondary.name: topk, secondary.num_selected: 2, as",
        ),
    ],
)
def test_weights_do_not_move_to_a_gate_that_would_route_otherwise(
    tiny: Any, parent: Path, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    assert says in refused(tiny, parent, tmp_path / "c", model=MODEL | changes)


def test_what_only_training_reads_of_a_gate_may_change(tiny: Any, parent: Path) -> None:
    gates = MODEL["gates"] | {"dwell": MODEL["gates"]["dwell"] | {"entropy_weight": 0.1}}
    config = tiny.make_config(model=MODEL | {"gates": gates})
    encoder = Encoder.read(parent)
    ranker = checkpoint.make_ranker(config.contract, config.model, encoder, seed=0)
    assert warm_start.start(ranker, encoder, parent)["checkpoint"] == str(parent)


@pytest.mark.parametrize(("what", "names"), [("features", "user_id, item_id, "), ("tasks", "")])
def test_weights_do_not_move_to_another_order(
    tiny: Any, parent: Path, tmp_path: Path, what: str, names: str
) -> None:
    """Rows of kernels and columns of the wide term are told apart by their place alone."""
    contract = tiny.config.contract.model_dump(mode="json")
    contract[what] = dict(reversed(contract[what].items()))
    said = refused(tiny, parent, tmp_path / "c", contract=contract)
    assert f"order of {what}: expected {names or 'click, dwell, like'}" in said


def test_weights_of_a_lists_length_are_not_those_of_its_matches(tiny: Any, tmp_path: Path) -> None:
    def config(**lists: bool) -> Any:
        return tiny.make_config(model=MODEL | {"lists": lists})

    old = config(length=True, match=False)
    ranker = checkpoint.make_ranker(old.contract, old.model, Encoder.read(tiny.examples), seed=0)
    checkpoint.create(tmp_path, old, tiny.examples)
    weights.save(ranker, tmp_path / checkpoint.WEIGHTS)
    new, encoder = config(length=False, match=True), Encoder.read(tiny.examples)
    ranker = checkpoint.make_ranker(new.contract, new.model, encoder, seed=0)
    with pytest.raises(warm_start.UnfitError, match=r"model\.lists\.length: expected True, as the"):
        warm_start.start(ranker, encoder, tmp_path)


def test_weights_do_not_move_under_another_activation(
    tiny: Any, parent: Path, tmp_path: Path
) -> None:
    model = MODEL | {"experts": MODEL["experts"] | {"activation": "tanh"}}
    config = tiny.make_config(model=model, train=tiny.config.train.model_dump())
    message = r"model\.experts\.activation: expected relu, as the checkpoint .*, received tanh"
    with pytest.raises(ModelError, match=message):
        train.train(config, tiny.examples, tmp_path / "c", progress=False, start_from=parent)
