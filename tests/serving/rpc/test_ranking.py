"""Rank through the real stubs: answers, order, weights, floors, limit, and bad requests."""

import grpc
import numpy as np
import pytest

from multigate.serving.client.rank_client import CallError, RankClient
from multigate.serving.protos import ranking_pb2
from multigate.serving.request.rank_request import RequestReader

ITEMS = [f"i{n}" for n in range(12)]
USER = {"user_id": "u1", "country": "de", "age": 31.0, "segment": 3, "recent": ["i1", "i2"]}
COLUMNS = {
    "topic": ["news", None, *["sport"] * 10],
    "length": [float(n) for n in range(12)],
    "tags": [["a", "b"], None, [], *[["c"]] * 9],
}


@pytest.fixture(scope="module")
def client(running):
    with RankClient(running.target, timeout=120) as client:
        yield client


def rank(client, **changes):
    given = {"user": USER, "context": {"hour": 9}, "item_ids": ITEMS, "columns": COLUMNS}
    return client.rank("small", **(given | changes))


def rows_for_predict():
    """The same call as `serving_default` takes it, written out by hand."""
    count = len(ITEMS)

    def texts(values):
        return np.array([value.encode() for value in values], object)

    tags = np.array([[b"a", b"b"], [b"", b""], [b"", b""], *[[b"c", b""]] * 9], object)
    return {
        "user_id": texts(["u1"] * count),
        "country": texts(["de"] * count),
        "country__present": np.ones(count, bool),
        "age": np.full(count, 31, np.float32),
        "age__present": np.ones(count, bool),
        "segment": np.full(count, 3, np.int64),
        "segment__present": np.ones(count, bool),
        "recent": np.tile(texts(["i1", "i2"]), (count, 1)),
        "recent__length": np.full(count, 2, np.int64),
        "hour": np.full(count, 9, np.int64),
        "item_id": texts(ITEMS),
        "topic": texts(["news", "", *["sport"] * 10]),
        "topic__present": np.array([True, False, *[True] * 10]),
        "length": np.arange(count, dtype=np.float32),
        "tags": tags,
        "tags__length": np.array([2, 0, 0, *[1] * 9]),
    }


def predicted(running, helpers, inputs):
    response = running.prediction.Predict(helpers.predict_request(inputs), timeout=120)
    return {name: np.array(tensor.float_val) for name, tensor in response.outputs.items()}


def test_every_answer_is_what_predict_gives_for_its_row(running, client, helpers):
    scores = predicted(running, helpers, rows_for_predict())
    ranked = rank(client)
    assert sorted(item["index"] for item in ranked) == list(range(12))
    for item in ranked:
        row = item["index"]
        assert item["item_id"] == ITEMS[row]
        assert item["score"] == pytest.approx(scores["score"][row], rel=1e-5, abs=5e-6)
        assert list(item["tasks"]) == ["click", "like", "rating"]
        for task, score in item["tasks"].items():
            assert score == pytest.approx(scores[task][row], rel=1e-5, abs=5e-6)
    combined = [item["score"] for item in ranked]
    assert combined == sorted(combined, reverse=True)
    for item in ranked:
        tasks = item["tasks"]
        by_hand = 1 * tasks["click"] + 2 * tasks["like"] + 0.5 * tasks["rating"]
        assert item["score"] == pytest.approx(by_hand, rel=1e-5, abs=5e-6)


def test_the_answer_says_what_it_came_from(client, contract):
    ranked = rank(client, request_id="mine")
    assert ranked.model_version == 1
    assert ranked.schema == contract.schema_fingerprint()
    assert ranked.request_id == "mine"
    first, second = rank(client), rank(client)
    assert first.request_id
    assert first.request_id != second.request_id
    assert ranked.warnings == [
        "feature 'topic': 1 missing value; its missing rule stood in",
        "feature 'tags': 1 missing value; its missing rule stood in",
    ]


def test_equal_scores_keep_the_callers_order(client):
    columns = {"topic": ["x"] * 6, "length": [1.0] * 6, "tags": [["t"]] * 6}
    ids = ["i5", "i3", "i5", "i3", "i5", "i3"]
    order = [item["index"] for item in rank(client, item_ids=ids, columns=columns)]
    assert order in ([0, 2, 4, 1, 3, 5], [1, 3, 5, 0, 2, 4])


def test_request_weights_replace_the_contracts_by_task(client):
    plain = {item["index"]: item["tasks"] for item in rank(client)}
    ranked = rank(client, weights={"click": 0, "rating": -1})
    for item in ranked:
        tasks = plain[item["index"]]
        by_hand = 0 * tasks["click"] + 2 * tasks["like"] - 1 * tasks["rating"]
        assert item["score"] == pytest.approx(by_hand, rel=1e-4, abs=1e-5)


def test_floors_drop_items_and_limit_keeps_the_best(client):
    plain = rank(client)
    clicks = sorted(item["tasks"]["click"] for item in plain)
    low, high = clicks[3], clicks[8]
    kept = rank(client, floors={"click": (low, high)})
    assert [item["index"] for item in kept] == [
        item["index"] for item in plain if low <= item["tasks"]["click"] <= high
    ]
    assert len(kept) == 6
    only_low = rank(client, floors={"click": (low, None)})
    assert len(only_low) == 9
    assert [i["index"] for i in rank(client, limit=4)] == [i["index"] for i in plain[:4]]
    assert len(rank(client, limit=100)) == 12
    assert rank(client, floors={"rating": (1e6, None)}) == []


def test_order_only(running):
    request = full_request()
    request.returns = ranking_pb2.ORDER
    response = running.ranking.Rank(request, timeout=120)
    assert sorted(response.item_index) == [0, 1]
    assert [["i1", "i2"][index] for index in response.item_index] == response.item_id.texts.values
    assert not response.score
    assert not response.task_scores
    request.returns = 7
    with pytest.raises(grpc.RpcError, match="returns: expected one of TASK_SCORES, ORDER, rece"):
        running.ranking.Rank(request, timeout=120)


def test_missing_values_follow_their_rules(running, client, helpers):
    rows = rows_for_predict()
    for name in ("country", "age", "segment", "topic"):
        rows[name + "__present"] = np.zeros(12, bool)
    rows["recent__length"] = rows["tags__length"] = np.zeros(12, np.int64)
    scores = predicted(running, helpers, rows)["score"]
    ranked = rank(client, user={"user_id": "u1"}, columns={"length": COLUMNS["length"]})
    for item in ranked:
        assert item["score"] == pytest.approx(scores[item["index"]], rel=1e-5, abs=5e-6)
    assert [warning.split("'")[1] for warning in ranked.warnings] == [
        "country", "age", "segment", "recent", "topic", "tags",
    ]  # fmt: skip
    empty = rank(
        client, user={"user_id": "u1", "country": "", "age": None}, columns={"length": [1] * 12}
    )
    assert "country" in empty.warnings[0]
    assert "age" in empty.warnings[1]


def test_a_column_without_any_value_is_missing_for_every_candidate(running, client):
    nothing = COLUMNS | {"topic": [None] * 12, "tags": [None] * 12}
    ranked = rank(client, columns=nothing)
    assert ranked.warnings == [
        "feature 'topic': 12 missing values; its missing rule stood in",
        "feature 'tags': 12 missing values; its missing rule stood in",
    ]
    together = {item["index"]: item["tasks"] for item in ranked}
    for row, one in enumerate(ITEMS):
        columns = {"topic": [None], "tags": [None], "length": [COLUMNS["length"][row]]}
        (alone,) = rank(client, item_ids=[one], columns=columns)
        assert together[row] == pytest.approx(alone["tasks"], rel=1e-5, abs=2e-6)
    left_out = rank(client, columns={"length": COLUMNS["length"]})
    assert left_out == ranked
    # Whatever type the fillers have, or without any: nobody looks at them.
    for kind, fillers in {"texts": ["", "x"], "numbers": [np.nan, 1], "integers": []}.items():
        request = full_request()
        topic = request.candidates.columns["topic"]
        topic.present.extend([False, False])
        getattr(topic, kind).values.extend(fillers)
        answer = running.ranking.Rank(request, timeout=120)
        assert answer.warnings[4] == "feature 'topic': 2 missing values; its missing rule stood in"
    with pytest.raises(CallError, match=r"'length': expected a value.*error.*, received none$"):
        rank(client, columns=COLUMNS | {"length": [None] * 12})


def test_unseen_ids_are_no_error(client):
    user = USER | {"user_id": "nobody", "recent": ["unheard", "of"]}
    ranked = rank(client, user=user, item_ids=[f"new {n}" for n in range(12)])
    assert len(ranked) == 12
    assert np.isfinite([item["score"] for item in ranked]).all()


def test_lists_longer_than_the_contracts_keep_their_last_values(client):
    long = rank(client, user=USER | {"recent": [f"i{n}" for n in range(40)]})
    short = rank(client, user=USER | {"recent": ["i36", "i37", "i38", "i39"]})
    assert list(long) == list(short)
    other = rank(client, user=USER | {"recent": ["i0", "i1", "i2", "i3"]})
    assert [item["score"] for item in long] != [item["score"] for item in other]


def test_lists_by_hand(contract):
    request = full_request()
    request.user["recent"].texts.values.extend(["a", "", "b", "c", "d", "e", ""])
    tags = request.candidates.columns["tags"]
    tags.texts.values.extend(["p", "q", "r", "s", "t"])
    tags.lengths.extend([1, 4])
    inputs = RequestReader(contract, 10).read(request).inputs
    assert inputs["recent"].tolist() == [[b"b", b"c", b"d", b"e"]]
    assert inputs["tags"].tolist() == [[b"p", b"", b""], [b"r", b"s", b"t"]]
    assert inputs["tags__length"].tolist() == [1, 3]
    tags.present.extend([True, False])
    inputs = RequestReader(contract, 10).read(request).inputs
    assert inputs["tags"].tolist() == [[b"p"], [b""]]
    assert inputs["tags__length"].tolist() == [1, 0]


def test_whole_numbers_are_numbers(client):
    assert list(rank(client, user=USER | {"age": 31})) == list(rank(client))


def test_contract_says_what_a_request_may_say(client, contract):
    told = client.contract("small")
    assert (told.user, told.item, told.combine) == ("user_id", "item_id", "sum")
    assert told.schema == contract.schema_fingerprint()
    assert told.max_candidates == 10_000
    features = {feature.name: feature for feature in told.features}
    assert "position" not in features
    assert features["hour"].side == "context"
    assert (features["segment"].dtype, features["segment"].default.integer) == ("int", 7)
    assert features["recent"].max_length == 4
    assert features["country"].missing == "indicator"
    assert features["length"].dtype == "float"
    assert [(t.name, t.group, t.type, t.score_weight) for t in told.tasks] == [
        ("click", "engagement", "binary", 1),
        ("like", "satisfaction", "binary", 2),
        ("rating", "satisfaction", "regression", 0.5),
    ]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"item_ids": []}, "candidates: expected at least one item_id, received none"),
        ({"item_ids": [1] * 12}, "feature 'item_id': expected a text, received int64"),
        ({"user": {"user_id": "u", "shoe": 1}}, "user features: unknown feature 'shoe'"),
        ({"user": USER | {"hour": 9}}, "feature 'hour' is of side 'context'"),
        ({"context": {"hour": 9, "position": 1}}, "unknown feature 'position'"),
        ({"user": {}}, r"feature 'user_id': expected a value \(a text; missing: error\)"),
        ({"user": USER | {"user_id": ""}}, "feature 'user_id': expected a value"),
        ({"context": {}}, "feature 'hour': expected a value"),
        ({"user": USER | {"age": "old"}}, "feature 'age': expected a finite number, received str"),
        ({"user": USER | {"age": float("nan")}}, "feature 'age': .* received nan in row 0"),
        ({"user": USER | {"age": 1e300}}, "feature 'age': .* received inf in row 0"),
        ({"user": USER | {"age": [1.0]}}, "feature 'age': .* received lists"),
        ({"user": USER | {"segment": 1.5}}, "feature 'segment': .* received float32"),
        ({"user": USER | {"recent": "i1"}}, "feature 'recent': expected a list.* without lengths"),
        ({"user": USER | {"recent": [1, 2]}}, "feature 'recent': .* received int64"),
        ({"columns": {"length": [1.0] * 11}}, "feature 'length': expected 12 values.* received 11"),
        ({"columns": {"length": [None] * 12}}, "'length': .* received none$"),
        ({"columns": {}}, "feature 'length': expected a value"),
        ({"columns": COLUMNS | {"length": [float("inf")] * 12}}, "'length': .* received inf"),
        ({"columns": COLUMNS | {"tags": [["a"]] * 11}}, "'tags': expected 12 lengths.*received 11"),
        ({"columns": COLUMNS | {"tags": ["a"] * 12}}, "'tags': .* received values without lengths"),
        ({"columns": COLUMNS | {"item_id": ITEMS}}, "'item_id': these values belong in item_id"),
        ({"columns": COLUMNS | {"user_id": ITEMS}}, "feature 'user_id' is of side 'user'"),
        ({"user": USER | {"contry": "x"}}, "'contry'; did you mean 'country'\\? expected some of"),
        ({"columns": COLUMNS | {"lenght": [1.0] * 12}}, "'lenght'; did you mean 'length'\\? expec"),
        ({"weights": {"buy": 1}}, "task_weights: unknown task 'buy'; expected some of click, like"),
        ({"weights": {"click": float("nan")}}, "task_weights: task 'click': .* received nan"),
        ({"floors": {"buy": (0, 1)}}, "floors: unknown task 'buy'"),
        ({"floors": {"click": (0.5, 0.25)}}, "floors: task 'click': expected min <= max"),
        ({"weights": {"click": 3e38, "rating": 3e38}}, "expected a finite score"),
        ({"floors": {"click": (float("nan"), 1)}}, "floors: task 'click': expected min <= max"),
        ({"request_id": "x" * 257}, "request_id: expected at most 256 characters, received 257"),
        ({"user": USER | {"country": "c" * 4097}}, "'country': .* at most 4096 .* one of 4097"),
        ({"user": USER | {"recent": ["i", "c" * 9999]}}, "'recent': expected texts of at most"),
    ],
)
def test_bad_requests_name_what_is_wrong(client, changes, says):
    with pytest.raises(CallError, match=says) as raised:
        rank(client, **changes)
    assert raised.value.code == "INVALID_ARGUMENT"


def full_request():
    """A valid request at the level of the protocol."""
    request = ranking_pb2.RankRequest(model={"name": "small"}, context={"hour": {"integer": 9}})
    request.user["user_id"].text = "u1"
    request.candidates.item_id.texts.values.extend(["i1", "i2"])
    request.candidates.columns["length"].numbers.values.extend([1, 2])
    return request


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: r.candidates.columns["tags"].lengths.extend([-1, 1]), "lengths of 0 or more"),
        (lambda r: r.candidates.columns["tags"].lengths.extend([1, 1]), "add up to the 0 values"),
        (lambda r: r.candidates.columns["length"].lengths.extend([1, 1]), "received lists"),
        (lambda r: r.candidates.columns["length"].present.append(True), "presence entries or 2"),
        (lambda r: setattr(r, "limit", -1), "limit: expected 0"),
        (lambda r: r.candidates.ClearField("item_id"), "at least one item_id"),
    ],
)
def test_bad_messages_name_what_is_wrong(running, change, says):
    from grpc import RpcError, StatusCode

    request = full_request()
    assert len(running.ranking.Rank(request, timeout=120).item_index) == 2
    change(request)
    with pytest.raises(RpcError, match=says) as raised:
        running.ranking.Rank(request, timeout=120)
    assert raised.value.code() == StatusCode.INVALID_ARGUMENT


def test_too_many_candidates(running):
    with RankClient(running.target, timeout=120) as client, pytest.raises(CallError) as raised:
        client.rank(
            "small",
            user=USER,
            context={"hour": 9},
            item_ids=["i"] * 10_001,
            columns={"length": [1] * 10_001},
        )
    assert raised.value.code == "INVALID_ARGUMENT"
    assert "expected at most 10000, received 10001" in str(raised.value)


def test_an_item_without_a_required_feature_fails_nobody_else(client):
    length = [None if n in (2, 7) else float(n) for n in range(12)]
    plain = rank(client)
    ranked = rank(client, columns=COLUMNS | {"length": length})
    assert [item["index"] for item in ranked] == [
        item["index"] for item in plain if item["index"] not in (2, 7)
    ]
    scores = {item["index"]: item["score"] for item in plain}
    for item in ranked:
        assert item["item_id"] == ITEMS[item["index"]]
        assert item["score"] == pytest.approx(scores[item["index"]], rel=1e-5, abs=5e-6)
    assert ranked.unscored == [2, 7]
    assert ranked.warnings[0] == (
        "feature 'length': 2 items not scored for lack of it (missing: error): 'i2', 'i7'"
    )
    assert rank(client).unscored == []


def test_a_candidate_with_an_empty_id_fails_nobody_else(client):
    plain = rank(client)
    ranked = rank(client, item_ids=[*ITEMS[:3], "", *ITEMS[4:]])
    assert [item["index"] for item in ranked] == [
        item["index"] for item in plain if item["index"] != 3
    ]
    assert ranked.unscored == [3]
    assert ranked.warnings[0] == (
        "feature 'item_id': 1 item not scored for lack of it (missing: error): ''"
    )
    with pytest.raises(CallError, match="feature 'item_id': expected a value") as raised:
        rank(client, item_ids=[""] * len(ITEMS))
    assert raised.value.code == "INVALID_ARGUMENT"


def test_a_limit_counts_scored_items_and_a_long_list_of_others_is_cut(client):
    count = 30
    columns = {"topic": ["x"] * count, "tags": [["t"]] * count}
    columns["length"] = [float(n) if n % 3 == 0 else None for n in range(count)]
    ranked = rank(client, item_ids=[f"n{n}" for n in range(count)], columns=columns, limit=4)
    assert len(ranked) == 4
    assert all(item["index"] % 3 == 0 for item in ranked)
    assert len(ranked.unscored) == 20
    assert ranked.warnings[0].endswith("'n13', 'n14' and 10 more")
