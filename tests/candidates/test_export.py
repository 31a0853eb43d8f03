"""The exported file: what it answers, alone, without any Keras and without our code."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from multigate.candidates.evaluation import evaluate
from multigate.candidates.export import export, read_items
from multigate.candidates.pairs import positive_task, read_pairs
from multigate.candidates.training import load
from multigate.configs.errors import ExportError, ModelError
from multigate.jobs.show import show_recall
from multigate.model.data.raw import raw_values
from multigate.runtime.session import Session

ALONE = """
import json, sys
for name in ("keras", "tf_keras", "tensorflow_recommenders", "multigate"):
    sys.modules[name] = None
import tensorflow as tf
folder = sys.argv[1]
golden = json.load(open(folder + "/assets.extra/golden.json"))
signature = tf.saved_model.load(folder).signatures["retrieve"]
assert golden["signature"] == "retrieve"
found = signature(
    **{
        name: tf.constant(given["values"], given["dtype"], given["shape"])
        for name, given in golden["inputs"].items()
    }
)
answers = {name: values.numpy()[0].tolist() for name, values in found.items()}
answers["items"] = [one.decode() if isinstance(one, bytes) else one for one in answers["items"]]
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def signature(trained):
    loaded = tf.saved_model.load(str(trained.version))
    yield loaded.signatures["retrieve"]
    del loaded


def request(trained, rows):
    """Raw inputs of some test pairs."""
    model, config, _ = load(trained.checkpoint)
    pairs = read_pairs(trained.examples, "test", model.encoder, positive_task(config))
    table = pairs.table[rows].to_arrow()
    return raw_values(model.encoder.contract, table, model.user_features), model, table


def ask(signature, raw, k):
    found = signature(**{n: tf.constant(v) for n, v in raw.items()}, k=tf.constant(k))
    return found["items"].numpy(), found["scores"].numpy()


@pytest.mark.slow
def test_it_answers_without_keras_and_without_our_code(trained):
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(trained.version)],
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    golden = json.loads((trained.version / "assets.extra/golden.json").read_text())["outputs"]
    assert answer["items"] == golden["items"]["values"]
    assert [answer["known"]] == golden["known"]["values"]
    np.testing.assert_allclose(answer["scores"], golden["scores"]["values"], rtol=1e-5, atol=1e-6)


def test_it_finds_what_the_model_finds(trained, signature):
    raw, model, table = request(trained, slice(0, 50))
    found, scores = ask(signature, raw, 10)
    items = read_items(trained.examples, model.encoder)
    expected = np.asarray(model.user_tower(model.encoder(table, model.user_features)))
    expected = expected @ model.item_vectors(items).T
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1)[:, :10], rtol=1e-5, atol=1e-6)
    ids = items.ids.astype(bytes) if items.ids.dtype == object else items.ids
    for row in range(50):
        places = np.searchsorted(ids, found[row])
        np.testing.assert_allclose(expected[row, places], scores[row], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_without_variables_it_answers_the_same_to_the_bit(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("multigate.candidates.export.freeze", lambda folder: False)
    with_variables = export(trained.checkpoint, trained.examples, tmp_path / "models")
    assert (with_variables / "variables").is_dir()
    assert not (trained.version / "variables").exists()
    raw, _, _ = request(trained, slice(0, 50))
    found = []
    for folder in (trained.version, with_variables):
        session = Session(folder)
        definition = session.definitions["retrieve"]
        given = raw | {"k": np.array(20, np.int32)}
        found.append(session.runner(definition)(*[given[n] for n in sorted(definition.inputs)]))
        session.close()
    for ours, theirs in zip(*found, strict=True):
        assert np.array_equal(ours, theirs)


def test_k_beyond_the_catalogue_gives_all_items_once(trained, signature):
    raw, model, _ = request(trained, slice(0, 2))
    found, _ = ask(signature, raw, 1_000_000)
    items = read_items(trained.examples, model.encoder)
    assert found.shape == (2, len(items))
    assert len(set(found[0].tolist())) == len(items)
    for k in (0, -3):
        assert ask(signature, raw, k)[0].shape == (2, 0)


def test_an_unknown_user_is_answered_by_the_history(trained, signature):
    raw, model, _ = request(trained, slice(0, 8))
    user = model.encoder.contract.user
    stranger = "nobody" if raw[user].dtype == object else -1
    raw[user] = np.full_like(raw[user], stranger)
    found, scores = ask(signature, raw, 5)
    assert np.isfinite(scores).all()
    assert len({tuple(row) for row in found.tolist()}) > 1  # other histories, other items


def test_it_says_of_whom_nothing_is_known(trained, signature):
    raw, model, table = request(trained, slice(0, 20))
    contract = model.encoder.contract
    histories = [
        name
        for name, feature in contract.of_side("user")
        if getattr(feature, "share", None) == contract.item
    ]
    assert histories
    ids, k = raw[contract.user], tf.constant(1)

    def known(**changes):
        given = raw | changes
        found = signature(**{name: tf.constant(value) for name, value in given.items()}, k=k)
        return found["known"].numpy().tolist()

    stranger = np.full_like(ids, "nobody" if ids.dtype == object else -1)
    none = {f"{name}__length": np.zeros(len(ids), np.int64) for name in histories}
    lengths = sum(raw[f"{name}__length"] for name in histories)
    codes = model.encoder(table, [contract.user])[contract.user]
    in_vocabulary = codes > contract.features[contract.user].oov_buckets
    assert known(**none) == in_vocabulary.tolist()
    assert in_vocabulary.any()
    assert (lengths > 0).any()
    assert known(**{contract.user: stranger}) == (lengths > 0).tolist()
    assert known(**{contract.user: stranger}, **none) == [False] * len(ids)


def test_popular_items_stand_beside_it(trained):
    popular = json.loads((trained.version / "assets.extra/popular.json").read_text())
    assert popular["counts"] == sorted(popular["counts"], reverse=True)
    assert len(popular["items"]) == len(set(popular["items"]))
    metrics = json.loads((trained.version / "assets.extra/metrics.json").read_text())
    assert metrics == json.loads(json.dumps(evaluate(trained.checkpoint, trained.examples)))


def test_a_split_without_questions_is_told_and_exported(trained, tmp_path, capsys):
    """All positives of the test split are items that their users touched before."""
    examples = tmp_path / "examples"
    shutil.copytree(trained.examples, examples)
    shutil.rmtree(examples / "test")
    shutil.copytree(examples / "train", examples / "test")
    found = evaluate(trained.checkpoint, examples)
    assert [(one["questions"], one["recall"]) for one in found["questions"].values()] == [
        (0, {})
    ] * 2
    show_recall(found)
    said = " ".join(capsys.readouterr().out.split())
    assert "next item: the test split has no question: all its positives are known" in said
    version = export(trained.checkpoint, examples, tmp_path / "models")
    assert json.loads((version / "assets.extra/metrics.json").read_text()) == found


def test_versions_are_numbered_and_never_changed(trained, tmp_path):
    base = tmp_path / "models"
    shutil.copytree(trained.version, base / "4")
    with pytest.raises(ExportError, match="versions are never changed; choose another, such as 5"):
        export(trained.checkpoint, trained.examples, base, version=4)


@pytest.mark.slow
def test_a_full_disk_publishes_nothing(trained, tmp_path, full_disk):
    with full_disk(4096), pytest.raises(ExportError, match="nothing was published"):
        export(trained.checkpoint, trained.examples, tmp_path / "models")
    assert not list((tmp_path / "models").glob("*")) if (tmp_path / "models").exists() else True


def test_examples_of_another_night_are_refused(trained, tmp_path):
    other = tmp_path / "checkpoint"
    shutil.copytree(trained.checkpoint, other)
    contract = json.loads((other / "contract.json").read_text())
    contract["data_fingerprint"] = "0" * 16
    (other / "contract.json").write_text(json.dumps(contract))
    with pytest.raises(ModelError, match="use the examples that it was trained on"):
        export(other, trained.examples, tmp_path / "models")


def test_two_generations_of_keras_in_one_process(trained):
    """The ranker's Keras 3 and the towers' Keras 2, side by side."""
    import keras

    model, _, _ = load(trained.checkpoint)
    assert keras.__version__.startswith("3.")
    assert type(model).__mro__[-1] is object
    assert any(base.__module__.startswith("tf_keras") for base in type(model).__mro__)
    assert not any(base.__module__.startswith("keras.") for base in type(model).__mro__)
    assert keras.layers.Dense(2)(np.ones((1, 3), np.float32)).shape == (1, 2)


def test_other_processes_decide_for_themselves(trained):
    """Importing the towers leaves no switch behind for the processes that this one starts."""
    assert "TF_USE_LEGACY_KERAS" not in os.environ
