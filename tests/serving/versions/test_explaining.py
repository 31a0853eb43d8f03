"""Explanations of a version: against brute force on its own scores, in a server and without one."""

import json
from itertools import chain, combinations
from math import factorial

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from multigate.configs.errors import ServingError
from multigate.explanation.document import places_of
from multigate.serving.client.rank_client import CallError, RankClient
from multigate.serving.client.request_file import read_request
from multigate.serving.versions.explaining import Drawing, example_rows, thinned
from multigate.serving.versions.opened import OpenedVersion, find_version

REQUEST = {
    "user": {"user_id": "u1", "country": "fr", "age": 31.5, "recent": ["i3", "i7"]},
    "context": {"hour": 9},
    "items": ["i1", "i2", "i3"],
    "columns": {
        "topic": ["a", None, "c"],
        "length": [1.5, 2.0, -4.0],
        "tags": [["x", "y"], [], ["z"]],
    },
}
WEIGHTS = {"click": 1.0, "like": 2.0, "rating": 0.5}


@pytest.fixture(scope="module")
def version(tmp_path_factory, publish, helpers, contract):
    """A version whose warm-up holds example rows, as exported ones do."""

    def add_examples(folder):
        path = folder / "assets.extra/tf_serving_warmup_requests"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for rows in (1, 20):
                request = helpers.predict_request(helpers.sample_inputs(contract, rows, seed=rows))
                log = prediction_log_pb2.PredictionLog(
                    predict_log=prediction_log_pb2.PredictLog(request=request)
                )
                writer.write(log.SerializeToString())

    return publish(tmp_path_factory.mktemp("explained") / "", 4, add_examples)


@pytest.fixture(scope="module")
def opened(version):
    return OpenedVersion(version)


@pytest.fixture(scope="module")
def server(version, run_server):
    with run_server(version.parent) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with RankClient(server.target, timeout=120) as client:
        yield client


def row_of(request, place):
    """A candidate as one row of `serving_default`, written out by hand."""

    def text(value):
        return np.array([(value or "").encode()], object)

    user, columns = request["user"], request["columns"]
    lists = {"recent": user["recent"], "tags": columns["tags"][place]}
    row = {
        "user_id": text(user["user_id"]),
        "country": text(user["country"]),
        "country__present": np.array([True]),
        "age": np.float32([user["age"]]),
        "age__present": np.array([True]),
        "segment": np.array([0]),
        "segment__present": np.array([False]),
        "hour": np.array([request["context"]["hour"]]),
        "item_id": text(request["items"][place]),
        "topic": text(columns["topic"][place]),
        "topic__present": np.array([columns["topic"][place] is not None]),
        "length": np.float32([columns["length"][place]]),
    }
    for name, values in lists.items():
        padded = [*(v.encode() for v in values), *[b""] * (4 - len(values))]
        row |= {name: np.array([padded], object), f"{name}__length": np.array([len(values)])}
    return row


def brute_force(saved_model, row, background):
    """Shapley values over all 2^G sets of features, by definition, by output and feature."""
    names = [name for name, _ in saved_model.contract.of_side("user", "context", "item")]
    inputs = {name: [k for k in row if k.partition("__")[0] == name] for name in names}
    sets = list(chain.from_iterable(combinations(names, k) for k in range(len(names) + 1)))
    found = {}
    for b in range(len(background["item_id"])):
        mixed = {}
        for name in names:
            taken = np.array([name in chosen for chosen in sets])
            for key in inputs[name]:
                mine, other = row[key][0], background[key][b]
                if np.ndim(other):
                    width = max(len(mine), len(other))
                    filler = [b""] * width
                    mine = np.array([*mine, *filler][:width], object)
                    other = np.array([*other, *filler][:width], object)
                values = [mine if one else other for one in taken]
                mixed[key] = np.array(values, np.asarray(row[key]).dtype)
        scores = saved_model.signatures["serving_default"](mixed)
        at = {chosen: place for place, chosen in enumerate(sets)}
        for output, values in scores.items():
            for name in names:
                total = 0.0
                for chosen in sets:
                    if name in chosen:
                        continue
                    more = tuple(n for n in names if n in chosen or n == name)
                    share = (
                        factorial(len(chosen))
                        * factorial(len(names) - len(chosen) - 1)
                        / factorial(len(names))
                    )
                    total += share * (float(values[at[more]]) - float(values[at[chosen]]))
                key = output, name
                found[key] = found.get(key, 0.0) + total / len(background["item_id"])
    return found


def test_contributions_are_the_shapley_values_of_what_is_served(opened, monkeypatch):
    """Ten features: 1,024 sets for each of three background rows."""
    few = example_rows(opened.saved_model, opened.folder, most=3)
    monkeypatch.setattr("multigate.serving.versions.explaining.BACKGROUND", 3)
    monkeypatch.setattr("multigate.serving.versions.explaining.example_rows", lambda *_: few)
    expected = brute_force(opened.saved_model, row_of(REQUEST, 0), few.rows)
    exact = opened.explain(REQUEST, "i1", "examples", Drawing(None))
    drawn = opened.explain(REQUEST, "i1", "examples", Drawing(8, seed=3))
    assert (exact["exact"], drawn["exact"]) == (True, False)
    assert drawn["rows_scored"] < exact["rows_scored"] <= 1 + 3 * 1023
    for explained in (exact, drawn):
        names = [group["features"] for group in explained["features"]]
        assert sorted(name for [name] in names) == sorted(places_of(opened.saved_model.contract))
        for group in explained["features"]:
            for output, value in group["contributions"].items():
                error = 5 * group["errors"][output] + 1e-5
                assert value == pytest.approx(expected[output, group["features"][0]], abs=error)


def test_an_explanation_adds_up_and_says_what_is_served(opened, client):
    found = client.explain(
        "small", user=REQUEST["user"], context=REQUEST["context"], item="i3",
        item_ids=REQUEST["items"], columns=REQUEST["columns"], seed=5,
    )  # fmt: skip
    ranked = client.rank(
        "small", user=REQUEST["user"], context=REQUEST["context"],
        item_ids=REQUEST["items"], columns=REQUEST["columns"],
    )  # fmt: skip
    place, item = next((p, one) for p, one in enumerate(ranked, 1) if one["item_id"] == "i3")
    assert (found["model"], found["version"], found["item"]) == ("small", 4, "i3")
    assert (found["place"], found["candidates"]) == (place, 3)
    assert found["score"] == pytest.approx(item["score"], abs=1e-4)
    for task, score in item["tasks"].items():
        term = found["terms"][task]
        assert term["score"] == pytest.approx(score, abs=1e-5)
        assert term["term"] == pytest.approx(WEIGHTS[task] * score, abs=1e-4)
    assert found["background"]["rows"] == 20
    for output, mean in found["background"]["scores"].items():
        own = found["score"] if output == "score" else found["terms"][output]["score"]
        added = sum(group["contributions"][output] for group in found["features"])
        assert added == pytest.approx(own - mean, abs=1e-4)
    assert found["experts"] is None  # this graph has no gates
    assert found["warnings"] == [
        f"feature {name!r}: 1 missing value; its missing rule stood in"
        for name in ("segment", "topic")
    ]
    values = {name: v for group in found["features"] for name, v in group["values"].items()}
    assert values["recent"] == ["i3", "i7"]
    assert (values["segment"], values["topic"], values["tags"]) == (None, "c", ["z"])
    # The version's folder alone gives the same, whatever serves it.
    alone = opened.explain(REQUEST, "i3", "examples", Drawing(seed=5))
    assert json.loads(json.dumps(alone)) | {"model": "small"} == found


def test_weights_of_the_request_change_the_terms(opened):
    request = REQUEST | {"weights": {"like": -0.2}}
    found = opened.explain(request, "i2", "examples", Drawing())
    like = found["terms"]["like"]
    assert like["weight"] == -0.2
    assert like["term"] == pytest.approx(-0.2 * like["score"])
    assert found["score"] == pytest.approx(sum(t["term"] for t in found["terms"].values()))


def test_against_the_other_candidates_the_user_changes_nothing(client):
    found = client.explain(
        "small", user=REQUEST["user"], context=REQUEST["context"], item="i1",
        item_ids=REQUEST["items"], columns=REQUEST["columns"], against="candidates",
    )  # fmt: skip
    assert found["background"]["of"] == "other candidates of the request"
    assert found["background"]["rows"] == 2
    same = {"user_id", "country", "age", "segment", "recent", "hour"}
    for group in found["features"]:
        nothing = dict.fromkeys(group["contributions"], 0)
        assert (group["contributions"] == nothing) == (group["features"][0] in same)


def test_an_item_is_explained_beside_one_that_has_no_score(client):
    """The candidates' places are those of the request, whatever the server leaves out."""
    call = {"user": REQUEST["user"], "context": REQUEST["context"], "seed": 1, "pairs": 2}
    columns = {"length": [None, 5.0, 1.0]}
    found, alone = (
        client.explain("small", **call, item="b", item_ids=ids, columns={"length": lengths})
        for ids, lengths in ((["a", "b", "c"], columns["length"]), (["b", "c"], [5.0, 1.0]))
    )
    assert found["terms"] == alone["terms"]
    assert (found["candidates"], found["place"]) == (2, alone["place"])
    with pytest.raises(CallError, match=r"candidate 0: has no score, it lacks .*'length'"):
        client.explain("small", **call, item="a", item_ids=["a", "b", "c"], columns=columns)


def test_a_call_scores_a_bounded_number_of_rows(client, server):
    call = {"user": REQUEST["user"], "context": {"hour": 9}, "item": "i1",
            "columns": {"length": [1.0]}}  # fmt: skip
    with pytest.raises(CallError, match="INVALID_ARGUMENT: pairs: expected at most 277 for 20 "):
        client.explain("small", **call, pairs=278)
    with pytest.raises(CallError, match="INVALID_ARGUMENT: pairs: expected 2 or more, received 1"):
        client.explain("small", **call, pairs=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"item": "i9"}, "item: expected one of the 3 candidates, received 'i9'"),
        ({"context": {}}, "feature 'hour': .*missing"),
        ({"against": "all"}, "against: expected examples or candidates, received 'all'"),
        ({"seed": -1}, "seed: expected 0 or more, received -1"),
        ({"user": {"user_id": "u", "aeg": 3}}, "unknown feature 'aeg'"),
        (
            {"item_ids": ["i1"], "columns": {"length": [1.0]}, "against": "candidates"},
            "candidates: expected others to compare with, received one only",
        ),
        ({"model": "other"}, "NOT_FOUND: .*other"),
    ],
)
def test_what_cannot_be_explained_is_one_line(client, changes, message):
    call = {
        "model": "small", "user": REQUEST["user"], "context": REQUEST["context"], "item": "i1",
        "item_ids": REQUEST["items"], "columns": REQUEST["columns"],
    }  # fmt: skip
    with pytest.raises(ServingError, match=message) as caught:
        client.explain(**(call | changes))
    assert "\n" not in str(caught.value)


def test_a_version_without_example_rows_says_so(running):
    with (
        RankClient(running.target, timeout=120) as client,
        pytest.raises(CallError, match=r"FAILED_PRECONDITION.*with example rows to compare with"),
    ):
        client.explain("small", user=REQUEST["user"], context={"hour": 9}, item="i1",
                       columns={"length": [1.0]})  # fmt: skip


def test_rows_are_thinned_evenly():
    rows = {"x": np.arange(10)}
    assert thinned(rows, 4)["x"].tolist() == [0, 3, 6, 9]
    assert thinned(rows, 32)["x"].tolist() == list(range(10))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON: .*; expected a JSON file"),
        ("[]", "expected a JSON object with user.*received none"),
        ("{}", "received no user"),
        ('{"user": {}, "item": []}', "unknown key 'item'; did you mean 'items'"),
        ('{"user": 3}', "user: expected a JSON object, received 3"),
        ('{"user": {}, "items": "a"}', 'items: expected a JSON array, received "a"'),
    ],
)
def test_a_request_file_that_is_none_is_refused(tmp_path, text, message):
    path = tmp_path / "request.json"
    path.write_text(text)
    with pytest.raises(ServingError, match=message):
        read_request(path)


def test_a_run_or_a_base_folder_names_its_newest_version(version, tmp_path):
    base = version.parent
    assert find_version(version) == version
    assert find_version(base) == version
    run = tmp_path / "run"
    run.mkdir()
    (run / "export").symlink_to(base)
    assert find_version(run) == run / "export" / "4"
    demo = tmp_path / "demo"
    (demo / "models").mkdir(parents=True)
    (demo / "models" / "small").symlink_to(base)
    assert find_version(demo) == demo / "models" / "small" / "4"
    (demo / "models" / "other").symlink_to(base)
    with pytest.raises(ServingError, match="expected one model's versions, received those of"):
        find_version(demo)
    with pytest.raises(ServingError, match=r"expected an exported version .*found none"):
        find_version(tmp_path)
