"""What an operator asks of a server: its models, another configuration, a file that it polls."""

import json

import pytest

from multigate.jobs.publication import trial as trials
from multigate.jobs.publication.base_folder import Base
from multigate.serving.client import RankClient
from multigate.verbs.command import main


def config(*models):
    """The text of a configuration: name, base path and whatever else."""
    parts = [
        f'config {{ name: "{name}" base_path: "{base}" {more} }}' for name, base, more in models
    ]
    return f"model_config_list {{ {' '.join(parts)} }}"


@pytest.fixture
def bases(tmp_path, publish):
    """Two models, `a` with versions 1 and 2, `b` with version 5."""
    for name, versions in (("a", (1, 2)), ("b", (5,))):
        (tmp_path / name).mkdir()
        for version in versions:
            publish(tmp_path / name, version)
    return tmp_path


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("admin\n")
    return str(path)


def names(running):
    return running.server.models.available_versions()


def test_models_are_listed_with_versions_labels_and_trials(bases, run_server, capsys):
    file = bases / "models.txt"
    policy = "model_version_policy { all {} } version_labels { key: 'safe' value: 1 }"
    file.write_text(config(("a", bases / "a", policy), ("b", bases / "b", "")))
    (bases / "b/6").mkdir()  # a version without anything in it
    with run_server(None, model_config_file=file) as running:
        command = ["models", "--target", running.target, "--timeout", "120"]
        assert main([*command, "--json"]) == 0
        found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["models"]}
        assert list(found) == ["a", "b"]
        a, b = found["a"], found["b"]
        assert (a["serving"], a["labels"], a["trial"]) == (2, {"safe": 1}, None)
        assert [(one["version"], one["state"]) for one in a["versions"]] == [
            (2, "AVAILABLE"),
            (1, "AVAILABLE"),
        ]
        assert (b["serving"], b["base_path"]) == (5, str(bases / "b"))
        assert b["versions"][0]["state"] == "END"
        assert "incomplete" in b["versions"][0]["error"]
        assert main(command) == 0
        assert "AVAILABLE (serves)" in capsys.readouterr().out


def test_a_trial_is_listed(bases, run_server, capsys):
    trials.begin(Base(bases / "a"), 2, 5.0, 50.0)
    with run_server(bases / "a") as running:
        command = ["models", "--target", running.target, "--timeout", "120"]
        assert main([*command, "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["trial"] == {"version": 2, "canary": 5.0, "shadow": 50.0}
    assert (model["serving"], [one["version"] for one in model["versions"]]) == (1, [2, 1])


def test_reload_sends_a_configuration(bases, run_server, token, capsys):
    file = bases / "other.txt"
    with run_server(bases / "a") as running:
        file.write_text(config(("b", bases / "b", "")))
        command = ["reload", "--target", running.target, "--model_config_file", str(file)]
        assert main([*command, "--token_file", token, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"models": ["b"]}
        assert names(running) == {"b": [5]}
        capsys.readouterr()
        for more, says in (
            (["--token_file", token], "FAILED_PRECONDITION: config: "),
            ([], "PERMISSION_DENIED: reload request: expected an admin token"),
        ):
            file.write_text(config(("c", bases / "absent", "")))
            assert main([*command, *more]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"error: {running.target}: {says}")
        file.write_text("model_config_list { config { nam: 'a' } }")
        assert main([*command, "--token_file", token]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "no field named" in line
        assert names(running) == {"b": [5]}


def test_the_models_file_is_polled(bases, run_server, until, caplog, monkeypatch):
    monkeypatch.setattr("multigate.serving.rpc.config_file._FIRST_PAUSE", 0.05)
    file = bases / "models.txt"
    file.write_text(config(("a", bases / "a", "")))
    options = {"model_config_file": file, "model_config_file_poll_wait_seconds": 0.05}

    def reloads(running, result):
        return running.metric("multigate_config_reloads_total", result=result) or 0

    with run_server(None, **options) as running, RankClient(running.target, timeout=120) as client:
        assert names(running) == {"a": [2]}
        for broken in ("nonsense", config(("a", bases / "absent", ""))):
            failed = reloads(running, "failed")
            file.write_text(broken)
            until(lambda failed=failed: reloads(running, "failed") > failed)
            assert names(running) == {"a": [2]}
        file.unlink()
        until(lambda: "cannot be read: No such file" in caplog.text)
        assert names(running) == {"a": [2]}
        assert reloads(running, "applied") == 0
        labelled = "version_labels { key: 'safe' value: 5 }"
        file.write_text(config(("a", bases / "a", ""), ("b", bases / "b", labelled)))
        until(lambda: names(running) == {"a": [2], "b": [5]})
        until(lambda: reloads(running, "applied") == 1)
        found = {one.name: dict(one.labels) for one in client.models().models}
        assert found == {"a": {}, "b": {"safe": 5}}


def test_a_file_that_is_not_polled_stays_as_it_was_read(bases, run_server):
    file = bases / "models.txt"
    file.write_text(config(("a", bases / "a", "")))
    with run_server(None, model_config_file=file) as running:
        assert running.server._config_file is None
