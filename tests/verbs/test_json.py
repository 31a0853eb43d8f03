"""`--json` prints one JSON document and nothing else on standard output; all verbs are walked."""

import importlib
import json
import os
import re
from pathlib import Path

import pytest

from multigate.verbs import VERBS, module_of
from multigate.verbs.command import main

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "demo": "end_to_end/test_demo.py",
    "run": "jobs/night/test_run.py",
    "features": "serving/feature_store/test_backends.py",
    "trial": "jobs/trial/test_judge.py",
    "reload": "serving/rpc/test_admin.py",
    "recommend": "candidates/test_serving.py",
    "evaluate": "end_to_end/test_verbs.py",
    "examples": "end_to_end/test_verbs.py",
    "export": "end_to_end/test_verbs.py",
    "compare": "end_to_end/test_verbs.py",
}
"""Verbs that need what only another test has; it reads the whole standard output as JSON."""
COMMANDS = {
    "init": "--data LOGS --out OUT",
    "options": "train.epochs",
    "print-config": "demo",
    "check": "--config demo --data LOGS",
    "audit": "--config demo --data LOGS --examples EXAMPLES --sample 10",
    "train": "--config CONFIG --examples EXAMPLES --out OUT",
    "tune": "--config CONFIG --examples EXAMPLES --out OUT --trials 1",
    "explain": "--model VERSION --examples EXAMPLES --row 0 --pairs 2",
    "score": "--version VERSION --examples EXAMPLES --out OUT.parquet",
    "rank": "--target TARGET --model demo --items a "
    '--user {"user_id":"u"} --context {"hour":1} --columns {"topic":["t"],"length":[1]}',
    "runs": "--out LOGS",
    "publish": "--base BASE",
    "models": "--target TARGET",
    "candidates": "train --config CONFIG --examples EXAMPLES --out OUT",
}
SLOW = {"train": pytest.mark.slow, "candidates": pytest.mark.slow, "tune": pytest.mark.long}


def has_json(verb):
    return importlib.import_module(module_of(verb)).execute.__annotations__["return"] is not None


def test_every_verb_with_a_result_is_walked():
    assert set(COMMANDS) | set(ELSEWHERE) == {verb for verb in VERBS if has_json(verb)}
    for verb, test in ELSEWHERE.items():
        text = (ROOT / "tests" / test).read_text()
        assert re.search(rf'"{verb}"', text), test
        assert re.search(r"json\.loads\((printed|done|capsys.*)?\.?(std)?out(\[-1\])?\)", text), (
            test
        )


@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=SLOW.get(verb, ())) for verb in COMMANDS]
)
def test_one_document_stands_alone(verb, words_of, small_target, capfd):
    words = words_of(COMMANDS[verb], TARGET=small_target)
    capfd.readouterr()
    assert main([verb, "--json", *words]) == 0
    out = capfd.readouterr().out
    assert isinstance(json.loads(out), dict)
    assert len(out.splitlines()) == 1


def test_what_child_processes_and_libraries_print_goes_to_standard_error(monkeypatch, capfd):
    """They write to the descriptor, not to `sys.stdout`."""
    module = importlib.import_module(module_of("options"))

    def execute(options) -> dict[str, int]:
        os.system("echo of a child")
        os.write(1, b"of a library\n")
        print("of the verb")
        return {"a": 1}

    monkeypatch.setattr(module, "execute", execute)
    assert main(["options", "--json"]) == 0
    printed = capfd.readouterr()
    assert printed.out == '{"a": 1}\n'
    assert sorted(printed.err.splitlines()) == ["of a child", "of a library", "of the verb"]
    assert main(["options"]) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == sorted(printed.err.splitlines())


def test_a_failure_prints_no_document(tmp_path, capfd):
    assert main(["runs", "--out", str(tmp_path / "no"), "--json"]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert main(["options", "--json", "--markdown"]) == 2
    assert "expected neither" in capfd.readouterr().err
