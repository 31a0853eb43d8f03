"""Several models: the configuration file, version policies, labels, and reloads."""

import os
import re
import shutil
import threading
from pathlib import Path

import grpc
import pytest
from google.protobuf import text_format
from tensorflow_serving.apis import get_model_status_pb2, model_management_pb2
from tensorflow_serving.config import model_server_config_pb2

from multigate.configs.errors import ServingError
from multigate.serving.client.rank_client import CallError, RankClient
from multigate.serving.versions.model_config import ModelConfig, VersionPolicy, read_model_configs

FEATURES = {
    "user": {"user_id": "u"},
    "context": {"hour": 1},
    "item_ids": ["i1", "i2"],
    "columns": {"length": [1, 2]},
}


def config(name, base, more=""):
    return f'config {{ name: "{name}" base_path: "{base}" model_platform: "tensorflow" {more} }}'


def reload_request(*configs):
    message = text_format.Parse(
        f"model_config_list {{ {' '.join(configs)} }}", model_server_config_pb2.ModelServerConfig()
    )
    return model_management_pb2.ReloadConfigRequest(config=message)


def version_of(client, model, **which):
    return client.rank(model, **FEATURES, **which).model_version


def code_of(client, model, **which):
    with pytest.raises(CallError) as raised:
        client.rank(model, **FEATURES, **which)
    return raised.value.code


@pytest.mark.parametrize("name", ["..", ".", ".hidden", "a\nb", "a\0b", "x" * 201, "日" * 23])
def test_a_name_that_is_no_folder_is_refused(name):
    """The impression log has a folder per model: `..` would be the folder above it."""
    with pytest.raises(ServingError, match=r"^model name: expected printable characters"):
        ModelConfig(name, Path("base"))


@pytest.mark.parametrize("name", ["a", "a.b", "a/b", "x" * 200, "日本", "a b"])
def test_other_names_are_taken(name):
    assert ModelConfig(name, Path("base")).name == name


def test_the_file_is_read_as_tensorflow_serving_reads_it(tmp_path):
    path = tmp_path / "models.txt"
    path.write_text(
        "model_config_list {"
        + config("a", "models/a")
        + config("b", "b", "model_version_policy { latest { num_versions: 3 } }")
        + config("c", "c", "model_version_policy { all {} } version_labels { key: 'x' value: 9 }")
        + config("d", "d", "model_version_policy { specific { versions: 3 versions: 4 } }")
        + "config { name: 'e' base_path: 'e' model_platform: 'candidates/a' }"
        + "}"
    )
    assert read_model_configs(path) == [
        ModelConfig("a", Path("models/a"), VersionPolicy(latest=1)),
        ModelConfig("b", Path("b"), VersionPolicy(latest=3)),
        ModelConfig("c", Path("c"), VersionPolicy(latest=None), {"x": 9}),
        ModelConfig("d", Path("d"), VersionPolicy(latest=None, specific=frozenset({3, 4}))),
        ModelConfig("e", Path("e"), ranker="a"),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected at least one config, received none"),
        ("model_config_list { config { nam: 'a' } }", r'models.txt: 1:.* no field named "nam"'),
        ("model_config_list { config { base_path: 'a' } }", "a config has no name"),
        ("model_config_list { config { name: 'a' } }", "model 'a': base_path: required"),
        (f"model_config_list {{ {config('a', 'x') * 2} }}", "model 'a': configured twice"),
        ("custom_model_config {}", "custom_model_config: not supported"),
        (
            "model_config_list { config { name: 'a' base_path: 'x' model_platform: 'torch' } }",
            "model 'a': model_platform: expected 'tensorflow' or 'candidates/RANKER', "
            "received 'torch'",
        ),
        (
            "model_config_list { config { name: 'c' base_path: 'x' model_platform: "
            "'candidates/r' } }",
            "model 'c': model_platform: expected 'candidates/RANKER' with one of the rankers "
            r"\(none\), received 'r'",
        ),
        (
            "model_config_list { config { name: 'r' base_path: 'x' } "
            "config { name: 'c' base_path: 'x' model_platform: 'candidates/r' } "
            "config { name: 'd' base_path: 'x' model_platform: 'candidates/r' } }",
            "model 'd': model 'r' has the candidate model 'c' already",
        ),
        (
            f"model_config_list {{ {config('a', 'x', 'model_version_policy { specific {} }')} }}",
            "model 'a': model_version_policy: specific: expected version numbers",
        ),
        (
            "model_config_list { "
            + config(
                "a",
                "x",
                "model_version_policy { specific { versions: 1 } } "
                "version_labels { key: 'stable' value: 2 }",
            )
            + "}",
            "model 'a': version_labels: label 'stable': .* received version 2",
        ),
    ],
)
def test_a_file_that_cannot_be_served_is_refused(tmp_path, text, says):
    path = tmp_path / "models.txt"
    path.write_text(text)
    with pytest.raises(ServingError, match=says):
        read_model_configs(path)


def test_a_file_that_is_absent_or_no_text(tmp_path):
    with pytest.raises(ServingError, match=r"models.txt: cannot be read: No such file"):
        read_model_configs(tmp_path / "models.txt")
    (tmp_path / "models.txt").write_bytes(b"\xff")
    with pytest.raises(ServingError, match=r"models.txt: cannot be read: 'utf-8'"):
        read_model_configs(tmp_path / "models.txt")


def test_models_policies_and_labels(tmp_path, publish, run_server, until):
    for model in ("one", "two", "all"):
        (tmp_path / model).mkdir()
        for version in (1, 2, 3):
            publish(tmp_path / model, version)
            graph = tmp_path / model / str(version) / "saved_model.pb"
            os.utime(graph, (1000 * version, 1000 * version))
    path = tmp_path / "models.txt"
    specific = (
        "model_version_policy { specific { versions: 1 versions: 2 } } "
        "version_labels { key: 'stable' value: 1 } version_labels { key: 'canary' value: 2 }"
    )
    path.write_text(
        "model_config_list {"
        + config("one", tmp_path / "one", specific)
        + config("two", tmp_path / "two", "model_version_policy { latest { num_versions: 2 } }")
        + config("all", tmp_path / "all", "model_version_policy { all {} }")
        + "}"
    )
    with (
        run_server(tmp_path, model_config_file=path) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        assert running.server.models.available_versions() == {
            "one": [1, 2],
            "two": [2, 3],
            "all": [1, 2, 3],
        }
        # The gauges tell of the newest version, which is not the last one loaded.
        for model, newest in (("one", 2), ("two", 3), ("all", 3)):
            assert running.metric("multigate_model_version", model=model) == newest
            exported = running.metric("multigate_model_exported_timestamp_seconds", model=model)
            assert exported == 1000 * newest
        assert version_of(client, "one") == 2
        assert version_of(client, "one", label="stable") == 1
        assert version_of(client, "one", label="canary") == 2
        assert client.contract("one", label="stable").model_version == 1
        assert [version_of(client, "all", version=version) for version in (1, 2, 3)] == [1, 2, 3]
        assert code_of(client, "one", version=3) == "NOT_FOUND"
        assert code_of(client, "two", version=1) == "NOT_FOUND"
        assert code_of(client, "one", label="beta") == "INVALID_ARGUMENT"
        assert code_of(client, "three") == "NOT_FOUND"
        with pytest.raises(CallError, match="required; this server has 'one', 'two', 'all'"):
            client.rank("", **FEATURES)
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name, request.model_spec.version_label = "one", "stable"
        (status,) = running.models.GetModelStatus(request, timeout=120).model_version_status
        assert (status.version, status.state) == (1, status.AVAILABLE)
        publish(tmp_path / "two", 4)
        until(lambda: running.server.models.available_versions()["two"] == [3, 4], "version 4")
        shutil.rmtree(tmp_path / "all" / "2")
        until(
            lambda: running.server.models.available_versions()["all"] == [1, 3],
            "the end of version 2",
        )
        until(lambda: running.metric("multigate_model_version", model="two") == 4)
        # A label whose version goes away names nothing, rather than another version.
        shutil.rmtree(tmp_path / "one" / "1")
        until(
            lambda: running.server.models.available_versions()["one"] == [2], "the end of version 1"
        )
        with pytest.raises(CallError, match="version 1 is not available; available: 2") as raised:
            version_of(client, "one", label="stable")
        assert raised.value.code == "NOT_FOUND"
        assert version_of(client, "one", label="canary") == 2


def test_a_label_for_a_version_that_does_not_serve_is_refused_at_start(
    tmp_path, publish, run_server
):
    publish(tmp_path, 1)
    path = tmp_path / "models.txt"
    label = "version_labels { key: 'stable' value: 7 }"
    path.write_text(f"model_config_list {{ {config('one', tmp_path, label)} }}")
    with (
        pytest.raises(
            ServingError, match="label 'stable': version 7 is not available; available: 1"
        ),
        run_server(tmp_path, model_config_file=path),
    ):
        pass


def test_a_reload_applies_whole_or_not_at_all(tmp_path, publish, run_server):
    for model in ("a", "b"):
        (tmp_path / model).mkdir()
        publish(tmp_path / model, 1)
    (tmp_path / "empty").mkdir()
    publish(tmp_path / "a", 2)
    with (
        run_server(tmp_path / "a") as running,
        RankClient(running.target, timeout=120) as client,
    ):
        kept = running.server.models.manager("small")

        def refused(*configs):
            with pytest.raises(grpc.RpcError) as raised:
                running.models.HandleReloadConfigRequest(reload_request(*configs), timeout=120)
            assert running.server.models.available_versions() == {"small": [2]}
            assert running.server.models.manager("small") is kept
            assert running.metric("multigate_model_version", model="b") is None
            return raised.value.code().name, raised.value.details()

        good = config("b", tmp_path / "b")
        assert refused(good, good)[0] == "INVALID_ARGUMENT"
        assert refused()[0] == "INVALID_ARGUMENT"
        code, details = refused(good, config("c", tmp_path / "empty"))
        assert code == "FAILED_PRECONDITION"
        assert "expected numbered version folders" in details
        assert details.endswith("; nothing was changed")
        code, details = refused(
            config("small", tmp_path / "a", "version_labels { key: 'stable' value: 1 }"), good
        )
        assert (code, "version 1 is not available; available: 2" in details) == (
            "FAILED_PRECONDITION",
            True,
        )

        # Another model beside it, and a label, without loading the first anew.
        label = "version_labels { key: 'stable' value: 2 }"
        both = reload_request(config("small", tmp_path / "a", label), good)
        running.models.HandleReloadConfigRequest(both, timeout=120)
        assert running.server.models.manager("small") is kept
        assert version_of(client, "small", label="stable") == 2
        assert version_of(client, "b") == 1

        # Only the other one, under another policy.
        metrics = running.server.metrics
        metrics.score_shift.set(0.5, "small", "click")
        metrics.share_shift.set(0.5, "small", "age", "missing")
        metrics.experts.set(2.0, "small")
        metrics.answered("Rank", "OK", 0.1)
        policy = "model_version_policy { all {} }"
        running.models.HandleReloadConfigRequest(
            reload_request(config("b", tmp_path / "a", policy)), timeout=120
        )
        assert running.server.models.available_versions() == {"b": [1, 2]}
        assert code_of(client, "small") == "NOT_FOUND"
        text = running.server.metrics.text()
        gauges = re.findall(r"^# TYPE (\w+) gauge$", text, re.MULTILINE)
        assert {"multigate_model_version", "multigate_score_stability_index"} <= set(gauges)
        assert not re.findall(rf'^({"|".join(gauges)}){{.*model="small"', text, re.MULTILINE)
        assert running.metric("multigate_model_version", model="b") == 2


def test_no_call_fails_while_a_model_is_reloaded(tmp_path, publish, run_server, until):
    for model in ("a", "b"):
        (tmp_path / model).mkdir()
        publish(tmp_path / model, 1)
    with run_server(tmp_path / "a") as running:
        stop, failures, answered = threading.Event(), [], []

        def call():
            with RankClient(running.target, timeout=120) as client:
                while not stop.is_set():
                    try:
                        answered.append(version_of(client, "small"))
                    except CallError as error:
                        failures.append(error)

        callers = [threading.Thread(target=call) for _ in range(3)]
        for caller in callers:
            caller.start()
        for base in ("b", "a", "b", "a"):
            count = len(answered)
            until(lambda count=count: len(answered) > count + 2 or failures, "calls")
            running.models.HandleReloadConfigRequest(
                reload_request(config("small", tmp_path / base)), timeout=120
            )
        stop.set()
        for caller in callers:
            caller.join()
        assert failures == []
