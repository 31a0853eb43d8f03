"""Recommend through the real stubs: retrieval, exclusion, ranking, and popular items instead."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.apis import get_model_status_pb2, model_management_pb2, predict_pb2
from tensorflow_serving.config import model_server_config_pb2

from multigate.configs.contract import FrozenContract
from multigate.configs.errors import ServingError
from multigate.serving.client.rank_client import CallError, RankClient
from multigate.serving.protos import ranking_pb2
from multigate.serving.request.rank_request import RequestReader
from multigate.serving.versions.ranker_version import RankerVersion

HOUR = {"hour": 9}
USER = {"user_id": "u1", "country": "de", "age": 31.0, "segment": 3, "recent": ["i1", "i2"]}
POPULAR = [f"i{n}" for n in range(39, 0, -2)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory, publish, publish_candidates, with_items):
    """Base folders of a ranker and its candidate model, one version each."""
    root = tmp_path_factory.mktemp("pair")
    for name in ("ranker", "candidates"):
        (root / name).mkdir()
    publish(root / "ranker", 1, with_items)
    publish_candidates(root / "candidates", 1)
    return root


@pytest.fixture(scope="module")
def both(pair, run_server):
    with run_server(
        pair / "ranker",
        candidates_base_path=pair / "candidates",
        metrics_port=0,
        impression_log=pair / "shown",
        impression_log_seconds=0.1,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(both):
    with RankClient(both.target, timeout=120) as client:
        yield client


def recommend(client, **changes):
    return client.recommend("small", **({"user": USER, "context": HOUR} | changes))


def ids(answer):
    return [item["item_id"] for item in answer]


def retrieved(pair, user, count):
    """What the exported file finds, asked without the server."""
    signature = tf.saved_model.load(str(pair / "candidates" / "1")).signatures["retrieve"]
    recent = user["recent"]
    found = signature(
        user_id=tf.constant([user["user_id"]]),
        country=tf.constant([user["country"]]),
        country__present=tf.constant([True]),
        age=tf.constant([user["age"]]),
        age__present=tf.constant([True]),
        segment=tf.constant([user["segment"]], tf.int64),
        segment__present=tf.constant([True]),
        recent=tf.constant([recent]),
        recent__length=tf.constant([len(recent)], tf.int64),
        hour=tf.constant([HOUR["hour"]], tf.int64),
        k=tf.constant(count),
    )
    return [item.decode() for item in found["items"].numpy()[0].tolist()]


def test_what_the_candidate_model_finds_is_ranked_as_rank_does(client, pair):
    candidates = [item for item in retrieved(pair, USER, 12) if item not in USER["recent"]][:10]
    answer = recommend(client, candidates=10, limit=4, weights={"like": 5})
    ranked = client.rank(
        "small", user=USER, context=HOUR, item_ids=candidates, limit=4, weights={"like": 5}
    )
    assert list(answer) == list(ranked)
    assert [candidates[item["index"]] for item in answer] == ids(answer)
    assert (answer.source, answer.warnings) == ("RETRIEVED", [])
    assert (answer.candidates_name, answer.candidates_version) == ("small-candidates", 1)
    assert (answer.model_version, answer.schema) == (ranked.model_version, ranked.schema)


def test_the_list_stays_full_without_what_was_seen_and_what_the_request_names(client):
    everything = ids(recommend(client))
    assert len(everything) == 38
    assert not {"i1", "i2"} & {*everything}
    some = recommend(client, candidates=5, exclude=[])
    others = recommend(client, candidates=5, exclude=ids(some))
    assert len(some) == len(others) == 5
    assert not {*ids(some)} & {*ids(others)}


def test_a_history_of_the_feature_store_is_left_out_too(client):
    answer = recommend(client, user={"user_id": "u7"})
    assert answer.source == "RETRIEVED"
    assert {*ids(answer)} == {f"i{n}" for n in range(40)} - {"i5", "i6"}


def test_floors_limits_and_the_order_alone(client, both):
    every = recommend(client)
    least = every[3]["tasks"]["click"]
    answer = recommend(client, floors={"click": (least, None)}, limit=3)
    expected = [item for item in every if item["tasks"]["click"] >= least][:3]
    assert ids(answer) == ids(expected)
    request = ranking_pb2.RecommendRequest(
        model={"name": "small"}, limit=3, returns=ranking_pb2.ORDER, request_id="r"
    )
    request.user["user_id"].text = "u7"
    request.context["hour"].integer = 9
    response = both.ranking.Recommend(request)
    assert len(response.ranking.item_id.texts.values) == 3
    assert not response.ranking.score
    assert response.ranking.request_id == "r"


def test_more_than_the_catalogue_has(client):
    answer = recommend(client, candidates=1000)
    assert len(answer) == 38
    assert answer.warnings == ["candidates: 1000 requested, only 38 found"]
    assert len(recommend(client, limit=1000)) == 38


def test_nothing_is_left(client, helpers):
    answer = recommend(client, exclude=helpers.catalogue)
    assert list(answer) == []
    assert answer.source == "RETRIEVED"
    assert answer.warnings == ["candidates: all 40 items found are excluded"]
    assert (answer.model_version, answer.candidates_version) == (1, 1)


def test_an_unknown_user_has_a_history_or_else_popular_items(client):
    by_history = recommend(client, user={"user_id": "stranger", "recent": ["i3"]}, limit=5)
    assert by_history.source == "RETRIEVED"
    answer = recommend(client, user={"user_id": "stranger"}, exclude=["i39"])
    assert answer.source == "POPULAR"
    assert {*ids(answer)} == {*POPULAR} - {"i39"}
    by_place = sorted(answer, key=lambda item: item["index"])
    assert ids(by_place) == POPULAR[1:]
    assert answer.warnings[0] == (
        "candidates: small-candidates version 1 knows neither the user nor an item of a history; "
        "popular items are used instead"
    )


def test_a_failing_retrieval_is_replaced_by_popular_items(client, both, helpers, caplog):
    answer = recommend(client, context={"hour": helpers.failing_retrieval}, candidates=3)
    assert answer.source == "POPULAR"
    assert {*ids(answer)} == {*POPULAR[:3]}
    assert answer.candidates_version == 1
    assert answer.warnings == [
        "candidates: small-candidates version 1 failed; popular items are used instead"
    ]
    assert "small-candidates version 1: retrieval failed" in caplog.text
    text = both.server.metrics.text()
    assert 'recommendations_total{model="small",source="popular: failed"} 1' in text
    assert 'recommendations_total{model="small",source="retrieved"}' in text
    assert 'multigate_retrieval_seconds_count{model="small-candidates"}' in text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"limit": -1}, "limit: expected 0 .the default. to 10000, received -1"),
        ({"candidates": -1}, "candidates: expected 0 .the default. to 10000, received -1"),
        ({"candidates": 10_001}, "candidates: expected 0 .* to 10000, received 10001"),
        ({"candidates": 2, "limit": 3}, "candidates: expected at least the limit of 3, received 2"),
        ({"exclude": {"integers": {"values": [1]}}}, "'item_id': expected a text, received int64"),
        (
            {"exclude": {"texts": {"values": ["i"] * 10_001}}},
            "exclude: expected at most 10000 ids, received 10001",
        ),
        ({"user": {"age": {"number": 1}}}, "'user_id': .*missing"),
        (
            {"user": {"topic": {"text": "a"}}},
            "feature 'topic' is of side 'item', not 'user'; send it there",
        ),
        ({"user": {"nobody": {"text": "a"}}}, "user features: unknown feature 'nobody'"),
        ({"task_weights": {"share": 1}}, "task_weights: unknown task 'share'"),
        ({"floors": {"click": {"min": 2, "max": 1}}}, "floors: task 'click': expected min <= max"),
        ({"returns": 7}, "returns: expected one of TASK_SCORES, ORDER, received number 7"),
    ],
)
def test_bad_requests_are_told_what_is_wrong(both, changes, says):
    given = {
        "model": {"name": "small"},
        "user": {"user_id": {"text": "u7"}},
        "context": {"hour": {"integer": 9}},
    } | changes
    with pytest.raises(grpc.RpcError, match=says) as raised:
        both.ranking.Recommend(ranking_pb2.RecommendRequest(**given))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"limit": 0}, "limit: expected 1 or more, received 0"),
        ({"candidates": 0}, "candidates: expected 1 or more, received 0"),
        ({"candidates": 2**40}, "candidates: Value out of range"),
        ({"exclude": "i1"}, "exclude: expected a sequence of values, received 'i1'"),
        ({"user": {"age": {}}}, "age: expected a value or a list"),
    ],
)
def test_the_client_names_what_no_message_can_carry(client, changes, says):
    with pytest.raises(ServingError, match=says):
        recommend(client, **changes)


def test_a_candidate_model_does_not_rank(client, both):
    with pytest.raises(CallError, match="call Recommend of 'small'") as raised:
        client.rank("small-candidates", user=USER, context=HOUR, item_ids=["i1"])
    assert raised.value.code == "FAILED_PRECONDITION"
    predict = predict_pb2.PredictRequest(model_spec={"name": "small-candidates"})
    for signature in ("", "retrieve"):
        predict.model_spec.signature_name = signature
        with pytest.raises(grpc.RpcError, match="call Recommend of 'small'") as raised:
            both.prediction.Predict(predict, timeout=120)
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_a_ranker_without_a_candidate_model_says_so(running):
    with RankClient(running.target, timeout=120) as client:
        with pytest.raises(CallError, match="has no candidate model") as raised:
            recommend(client)
        assert raised.value.code == "FAILED_PRECONDITION"
        with pytest.raises(CallError) as raised:
            client.recommend("other", user=USER)
        assert raised.value.code == "NOT_FOUND"


def test_what_was_shown_is_logged(client, pair, until):
    answer = recommend(client, limit=3, request_id="shown")
    rows = []

    def written():
        for path in (pair / "shown").rglob("*.parquet"):
            found = pq.read_table(path).to_pylist()
            rows[:] = [row for row in found if row["ranked/request_id"] == "shown"]
            if rows:
                return True
        return False

    until(written, "the impressions")
    assert [row["item_id"] for row in rows] == ids(answer)
    assert [row["ranked/candidate"] for row in rows] == [item["index"] for item in answer]
    assert rows[0]["country"] == "de"


def test_a_late_retrieval_is_replaced_by_popular_items(pair, run_server, hold):
    with (
        run_server(
            pair / "ranker",
            candidates_base_path=pair / "candidates",
            retrieval_timeout_ms=30,
            num_batch_threads=1,
        ) as running,
        RankClient(running.target, timeout=120) as client,
        hold("retrieve"),
    ):
        answer = recommend(client, candidates=4)
        assert answer.source == "POPULAR"
        assert len(answer) == 4
        assert answer.warnings == [
            "candidates: small-candidates version 1 gave no answer within 30 ms; popular items "
            "are used instead"
        ]
        # The thread is taken still: the next call waits no longer than its own time.
        assert recommend(client, candidates=4).source == "POPULAR"


def test_a_retrieval_that_cannot_be_started_releases_its_version(pair, run_server, caplog):
    with (
        run_server(pair / "ranker", candidates_base_path=pair / "candidates") as running,
        RankClient(running.target, timeout=120) as client,
    ):
        running.server._finder._threads.shutdown()  # as where the system has no thread left
        answer = recommend(client, candidates=4)
        assert (answer.source, len(answer)) == ("POPULAR", 4)
        assert answer.warnings == [
            "candidates: small-candidates version 1 failed; popular items are used instead"
        ]
        version = running.server.models.manager("small-candidates")._loaded[1]
        assert version.saved_model._calls == 0
    assert "retrieval cannot be started" in caplog.text


def test_the_callers_deadline_goes_before(pair, run_server, hold):
    with (
        run_server(pair / "ranker", candidates_base_path=pair / "candidates") as running,
        RankClient(running.target, timeout=120) as client,
        hold("retrieve"),
    ):
        with pytest.raises(CallError) as raised:
            recommend(client, timeout=0.05)
        assert raised.value.code == "DEADLINE_EXCEEDED"


@pytest.mark.slow
def test_a_call_that_is_cancelled_leaves_no_retrieval_behind(pair, run_server, hold, until):
    request = ranking_pb2.RecommendRequest(model={"name": "small"})
    request.user["user_id"].text = "u7"
    request.context["hour"].integer = 9
    options = {"candidates_base_path": pair / "candidates", "num_batch_threads": 1}
    with run_server(pair / "ranker", **options) as running, hold("retrieve") as held:
        version = running.server.models.manager("small-candidates")._loaded[1].saved_model
        first = running.ranking.Recommend.future(request, timeout=240)
        assert held.begun.wait(120)
        others = [running.ranking.Recommend.future(request, timeout=240) for _ in range(3)]
        until(lambda: version._calls == 4)
        for call in others:
            call.cancel()
        until(lambda: version._calls == 1)
        assert not first.done()
        first.cancel()


def test_versions_are_followed_and_refused(
    tmp_path, publish, publish_candidates, with_items, run_server, until
):
    """From no candidate version at all to one that a worse one does not replace."""
    for name in ("ranker", "candidates"):
        (tmp_path / name).mkdir()

    def popular(folder):
        with_items(folder)
        (folder / "assets.extra" / "popular.json").write_text('{"items": ["i4", "i2"]}')

    publish(tmp_path / "ranker", 1, popular)
    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "small-candidates"

    def problem(version):
        for one in running.models.GetModelStatus(status).model_version_status:
            if one.version == version:
                return one.status.error_message
        return ""

    with (
        run_server(tmp_path / "ranker", candidates_base_path=tmp_path / "candidates") as running,
        RankClient(running.target, timeout=120) as client,
    ):
        assert running.server.describe() == ("small version 1, small-candidates version (none yet)")
        answer = recommend(client, user=USER | {"recent": []})
        assert (answer.source, answer.candidates_version) == ("POPULAR", None)
        assert {*ids(answer)} == {"i4", "i2"}
        assert "'small-candidates': no version is available" in answer.warnings[0]

        publish_candidates(tmp_path / "candidates", 1)
        until(lambda: recommend(client).candidates_version == 1, "version 1")
        assert recommend(client).source == "RETRIEVED"

        def another_schema(folder):
            path = folder / "assets.extra" / "contract.json"
            contract = json.loads(path.read_text())
            contract["contract"]["features"]["tags"]["max_length"] = 4
            frozen = FrozenContract.model_validate(contract)
            contract["schema_fingerprint"] = frozen.contract.schema_fingerprint()
            path.write_text(json.dumps(contract))

        def no_items(folder):
            (folder / "assets.extra" / "popular.json").write_text('{"items": [], "counts": []}')

        def wrong_ids(folder):
            (folder / "assets.extra" / "popular.json").write_text('{"items": [1], "counts": [1]}')

        def damaged(folder):
            path = folder / "assets.extra" / "golden.json"
            golden = json.loads(path.read_text())
            golden["outputs"]["items"]["values"].reverse()
            path.write_text(json.dumps(golden))

        for version, change, says in (
            (
                2,
                another_schema,
                "expected schema .* of its ranker 'small', received .* same examples",
            ),
            (3, no_items, "popular.json: expected at least one item, received none: .* is empty"),
            (4, wrong_ids, "popular.json: expected ids of 'item_id', each a text, received 1"),
            (5, damaged, "golden.json: output 'items': expected"),
            (6, lambda folder: (folder / "saved_model.pb").unlink(), "incomplete"),
        ):
            publish_candidates(tmp_path / "candidates", version, change)
            until(lambda number=version, says=says: re.search(says, problem(number)), says)
            assert recommend(client).candidates_version == 1

        publish_candidates(tmp_path / "candidates", 7)
        until(lambda: recommend(client).candidates_version == 7, "version 7")
        assert running.server.models.available_versions()["small-candidates"] == [7]


def test_a_swap_costs_no_call(pair, tmp_path, publish_candidates, run_server, until):
    (tmp_path / "candidates").mkdir()
    publish_candidates(tmp_path / "candidates", 1)
    stop, answers = threading.Event(), []
    with (
        run_server(pair / "ranker", candidates_base_path=tmp_path / "candidates") as running,
        RankClient(running.target, timeout=120) as client,
    ):

        def call():
            while not stop.is_set():
                answers.append(recommend(client, candidates=3))

        caller = threading.Thread(target=call)
        caller.start()
        until(lambda: answers, "an answer of version 1")
        publish_candidates(tmp_path / "candidates", 2)
        until(lambda: answers and answers[-1].candidates_version == 2, "version 2")
        stop.set()
        caller.join()
    assert {answer.source for answer in answers} == {"RETRIEVED"}
    assert {answer.candidates_version for answer in answers} == {1, 2}


def test_a_call_that_a_reload_overtakes_mixes_no_schemas(
    tmp_path, pair, publish, publish_candidates, with_items, run_server, monkeypatch
):
    """The call holds the ranker of before; the candidate model of its name is another one now."""

    def change(folder):
        path = folder / "assets.extra/contract.json"
        said = json.loads(path.read_text())
        said["contract"]["features"]["tags"]["max_length"] = 2
        frozen = FrozenContract.model_validate(said)
        schema = frozen.contract.schema_fingerprint()
        assert schema != said["schema_fingerprint"]
        path.write_text(frozen.model_copy(update={"schema_fingerprint": schema}).model_dump_json())

    def popular(folder):
        with_items(folder)
        (folder / "assets.extra" / "popular.json").write_text('{"items": ["i4", "i2"]}')

    for name, copy, more in (
        ("old", publish, popular),
        ("new", publish, change),
        ("found", publish_candidates, change),
    ):
        (tmp_path / name).mkdir()
        copy(tmp_path / name, 1, more)
    reading, reloaded = threading.Event(), threading.Event()
    read = RequestReader.read_user

    def slow(self, request):
        reading.set()
        assert reloaded.wait(240)
        return read(self, request)

    monkeypatch.setattr(RequestReader, "read_user", slow)
    monkeypatch.setattr(RankerVersion, "is_slow_to_read", lambda self, request: True)
    with (
        run_server(tmp_path / "old", candidates_base_path=pair / "candidates") as running,
        RankClient(running.target, timeout=240) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(recommend, client)
        assert reading.wait(240)
        config = text_format.Parse(
            f"""model_config_list {{
            config {{ name: "small" base_path: "{tmp_path / "new"}" }}
            config {{ name: "small-candidates" base_path: "{tmp_path / "found"}"
                      model_platform: "candidates/small" }}
            }}""",
            model_server_config_pb2.ModelServerConfig(),
        )
        request = model_management_pb2.ReloadConfigRequest(config=config)
        running.models.HandleReloadConfigRequest(request, timeout=240)
        reloaded.set()
        overtaken = answer.result(240)
        assert (overtaken.source, overtaken.candidates_version) == ("POPULAR", None)
        assert ids(overtaken) == ["i4"]  # the user has had i2
        assert "another schema" in overtaken.warnings[0]


def test_no_version_and_nothing_popular(pair, tmp_path, run_server):
    with (
        run_server(pair / "ranker", candidates_base_path=tmp_path / "nothing") as running,
        RankClient(running.target, timeout=120) as client,
    ):
        with pytest.raises(
            CallError, match=r"no candidates: .*there are no popular items"
        ) as raised:
            recommend(client)
        assert raised.value.code == "NOT_FOUND"


def test_several_models_and_their_candidate_models(pair, tmp_path, run_server):
    path = tmp_path / "models.txt"
    path.write_text(
        f"""model_config_list {{
        config {{
          name: "found" base_path: "{pair / "candidates"}" model_platform: "candidates/a"
        }}
        config {{ name: "a" base_path: "{pair / "ranker"}" }}
        config {{ name: "b" base_path: "{pair / "ranker"}" }}
        }}"""
    )
    with (
        run_server(None, model_config_file=path) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        answer = client.recommend("a", user=USER, context=HOUR)
        assert (answer.source, answer.candidates_name) == ("RETRIEVED", "found")
        with pytest.raises(CallError, match="model 'b': has no candidate model"):
            client.recommend("b", user=USER, context=HOUR)

        def reload(text):
            config = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
            request = model_management_pb2.ReloadConfigRequest(config=config)
            running.models.HandleReloadConfigRequest(request)

        def source(model):
            return client.recommend(model, user=USER, context=HOUR).source

        # The candidate model goes from one ranker to the other, and then to a folder without any.
        text = path.read_text()
        reload(text.replace("candidates/a", "candidates/b"))
        assert source("b") == "RETRIEVED"
        with pytest.raises(CallError, match="model 'a': has no candidate model"):
            source("a")
        with pytest.raises(grpc.RpcError, match="one of the rankers 'a', 'b', received 'c'"):
            reload(text.replace("candidates/a", "candidates/c"))
        reload(text.replace(f'"{pair / "candidates"}"', f'"{tmp_path / "none"}"'))
        with pytest.raises(CallError, match="model 'a': no candidates: model 'found': no version"):
            source("a")
