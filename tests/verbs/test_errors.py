"""Every verb's mistakes end in one clear line and a documented status; all verbs are walked."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest
import yaml

from multigate.configs.contract import Contract
from multigate.configs.sections.base import parse
from multigate.verbs import VERBS
from multigate.verbs.command import main

MISSING = {
    "demo": ("--config CONFIG --data ABSENT --out OUT", "ABSENT: no such folder"),
    "init": ("--data ABSENT --out OUT", "ABSENT: no such folder"),
    "options": ("train.epohcs", "did you mean 'epochs'?"),
    "print-config": ("ABSENT.yaml", "ABSENT.yaml"),
    "check": ("--config CONFIG --data ABSENT", "ABSENT: no such folder"),
    "examples": ("--config CONFIG --data ABSENT --out OUT", "ABSENT: no such folder"),
    "audit": ("--config CONFIG --data LOGS --examples ABSENT", "ABSENT: no such folder"),
    "train": ("--config CONFIG --examples ABSENT --out OUT", "ABSENT: no such folder"),
    "tune": ("--config CONFIG --examples ABSENT --out OUT", "ABSENT: no such folder"),
    "evaluate": ("--version ABSENT --examples EXAMPLES", "ABSENT: expected a checkpoint"),
    "export": ("--checkpoint ABSENT --examples EXAMPLES --out OUT", "ABSENT/config.json: no such"),
    "score": ("--version VERSION --rows ABSENT.csv --out OUT.csv", "ABSENT.csv: no such file"),
    "compare": ("--candidate ABSENT --examples EXAMPLES", "ABSENT: expected a checkpoint"),
    "serve": ("--model_name m --model_base_path ABSENT", "ABSENT: expected a folder of versions"),
    "rank": ("--target NOBODY --model m --items a --timeout 2", "NOBODY: "),
    "explain": ("--model ABSENT --examples EXAMPLES --row 0", "ABSENT: expected an exported"),
    "recommend": ("--target NOBODY --model m --timeout 2", "NOBODY: "),
    "run": ("--config CONFIG --data ABSENT --out OUT --date 2026-01-30", "ABSENT: no such folder"),
    "runs": ("--out ABSENT", "ABSENT"),
    "publish": ("--base ABSENT", "ABSENT"),
    "trial": ("--base BASE --log ABSENT", "no version is on trial"),
    "models": ("--target NOBODY --timeout 2", "NOBODY: "),
    "reload": ("--target NOBODY --timeout 2 --model_config_file ABSENT", "ABSENT: cannot be read"),
    "features": ("load --snapshot ABSENT --to redis://NOBODY/0", "ABSENT"),
    "candidates": ("train --config CONFIG --examples ABSENT --out OUT", "ABSENT: no such folder"),
    "completion": None,  # reads nothing
}
"""Verb -> a command line that names what is not there, and what the line says."""
ACTIONS = {"candidates"}
"""The verb whose first word is an action with options of its own."""

COLUMN = {
    "demo": "--config WRONG --data LOGS --out OUT",
    "examples": "--config WRONG --data LOGS --out OUT",
    "check": "--config WRONG --data LOGS",
    "run": "--config WRONG --data LOGS --out OUT --date 2026-01-30",
    "score": "--version VERSION --rows NO_ITEM --out OUT.csv",
    "explain": "--model VERSION --examples EXAMPLES --row 0 --background NO_ITEM",
    "init": "--data NO_IDS --out OUT",
    "audit": "--config WRONG --data LOGS --examples EXAMPLES --sample 10",
    "trial": "--base TRIED --log SHOWN --settle 0",
}
"""Verbs that read a log's or a file's columns, with one that is not there."""

OTHERS = {
    "audit": "--config CONFIG --data LOGS --examples RENAMED --sample 10",
    "train": "--config CONFIG --examples RENAMED --out OUT",
    "tune": "--config TUNED --examples RENAMED --out OUT --trials 1",
    "evaluate": "--version VERSION --examples RENAMED",
    "export": "--checkpoint CHECKPOINT --examples RENAMED --out OUT",
    "score": "--version VERSION --examples RENAMED --out OUT.csv",
    "compare": "--candidate VERSION --examples RENAMED",
    "explain": "--model VERSION --examples RENAMED --row 0",
    "candidates": "train --config CONFIG --examples RENAMED --out OUT",
}
"""Verbs that read examples, with those of a contract of other names."""

FULL = {
    "init": ("--data LOGS --out OUT", 1_000),
    "examples": ("--config CONFIG --data LOGS --out OUT", 20_000),
    "demo": ("--config CONFIG --data LOGS --out OUT", 20_000),
    "run": ("--config CONFIG --data LOGS --out OUT --date 2026-01-30", 20_000),
    "score": ("--version VERSION --examples EXAMPLES --out OUT.csv --keep item_id", 20_000),
    "train": ("--config CONFIG --examples EXAMPLES --out OUT", 20_000),
    "tune": ("--config TUNED --examples EXAMPLES --out OUT --trials 1", 20_000),
    "export": ("--checkpoint CHECKPOINT --examples EXAMPLES --out OUT", 20_000),
    "evaluate": ("--version VERSION --examples EXAMPLES --report OUT.html", 20_000),
    "compare": ("--candidate VERSION --examples EXAMPLES --report OUT.html", 20_000),
    "candidates": ("train --config CONFIG --examples EXAMPLES --out OUT", 2_000),
}
"""Verbs that write files, and how many bytes one may have."""

CALLS = {
    "models": "",
    "rank": "--model m --items a",
    "recommend": "--model m",
    "explain": "--model m --request REQUEST --item a",
    "reload": "--model_config_file MODELS",
}
"""Verbs that call a server."""

PIPE = {
    "init": "--data LOGS --out OUT --json",
    "options": "",
    "print-config": "demo",
    "check": "--config CONFIG --data LOGS",
    "examples": "--config CONFIG --data LOGS --out OUT",
    "audit": "--config CONFIG --data LOGS --examples EXAMPLES --sample 10",
    "train": "--config CONFIG --examples EXAMPLES --out OUT --json",
    "tune": "--config TUNED --examples EXAMPLES --out OUT --trials 1",
    "evaluate": "--version VERSION --examples EXAMPLES",
    "export": "--checkpoint CHECKPOINT --examples EXAMPLES --out OUT",
    "score": "--version VERSION --examples EXAMPLES --out OUT.csv --keep item_id",
    "compare": "--candidate VERSION --examples EXAMPLES",
    "rank": "--target SERVER --model demo --items a "
    '--user {"user_id":"u"} --context {"hour":1} --columns {"topic":["t"],"length":[1]}',
    "explain": "--model VERSION --examples EXAMPLES --row 0 --pairs 2",
    "runs": "--out LOGS",
    "publish": "--base BASE",
    "models": "--target SERVER",
    "candidates": "train --config CONFIG --examples EXAMPLES --out OUT",
    "completion": "bash",
}
"""Verbs whose standard output nobody reads."""
ALIKE = {
    "demo": "examples",
    "run": "runs",
    "recommend": "rank",
    "features": "publish",
    "trial": "compare",
    "reload": "publish",
}
"""Verbs that print by the functions of another, and take longer or need a store."""
SILENT = {"serve"}
_KEPT = r"\.lock|.*\.json"
"""What a night keeps of a run that failed."""
SLOW = {"train", "tune", "export", "evaluate", "compare", "candidates"}


def slow(verbs, kept):
    """Cases of verbs; of those that take long, `kept` are slow and the others long."""
    marks = {v: pytest.mark.slow if v in kept else pytest.mark.long for v in SLOW}
    return [pytest.param(v, marks=marks[v]) if v in SLOW else v for v in verbs]


@pytest.fixture
def words(small_run, tmp_path, request):
    """Makes a command line's words of a text with places in it."""
    run = small_run.root / "run"
    values = small_run.config.model_dump(mode="json", exclude_unset=True)
    values["candidates"] = {"embedding_dim": 4, "units": [4], "epochs": 1}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    tuned = {"tune": {"space": {"train.learning_rate": {"low": 0.001, "high": 0.002}}}}
    (tmp_path / "tuned.yaml").write_text(yaml.safe_dump(values | tuned))
    values["contract"]["features"]["topic"]["column"] = "topicc"
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(values))
    (tmp_path / "no_item.csv").write_text("user_id,hour\nu,1\n")
    (tmp_path / "no_ids").mkdir()
    (tmp_path / "no_ids/a.csv").write_text("time,x\n" + "1700000000,1\n1700000001,2\n" * 9)
    bound = socket.socket()  # it never listens, and nobody else can there while it is open
    bound.bind(("127.0.0.1", 0))
    nobody = f"127.0.0.1:{bound.getsockname()[1]}"
    places = {
        "LOGS": small_run.root / "logs",
        "EXAMPLES": run / "examples",
        "VERSION": run / "models/demo/1",
        "BASE": run / "models/demo",
        "CHECKPOINT": run / "checkpoint",
        "CONFIG": tmp_path / "config.yaml",
        "TUNED": tmp_path / "tuned.yaml",
        "WRONG": tmp_path / "wrong.yaml",
        "NO_ITEM": tmp_path / "no_item.csv",
        "NO_IDS": tmp_path / "no_ids",
        "ABSENT": tmp_path / "absent",
        "OUT": tmp_path / "out/new",
        "NOBODY": nobody,
    }
    (tmp_path / "out").mkdir()

    def make(text: str) -> str:
        if "RENAMED" in text:
            places["RENAMED"] = renamed(run / "examples", tmp_path / "renamed")
        if "SERVER" in text:
            places["SERVER"] = request.getfixturevalue("small_target")
        if "TRIED" in text:
            places["TRIED"], places["SHOWN"] = request.getfixturevalue("on_trial")("user_idd")
        for name, place in places.items():
            text = re.sub(rf"\b{name}\b", str(place), text)
        return text

    yield make
    bound.close()


NAMES = {"user_id": "reader", "item_id": "thing"}


def renamed(examples: Path, target: Path) -> Path:
    """Examples of a contract in which users and items have other names."""
    text = (examples / "contract.json").read_text()
    frozen = json.loads(re.sub('"(user_id|item_id)"', lambda found: f'"{NAMES[found[1]]}"', text))
    schema = parse(Contract, frozen["contract"], "contract").schema_fingerprint()
    shutil.copytree(examples, target)
    (target / "contract.json").write_text(json.dumps(frozen | {"schema_fingerprint": schema}))
    for path in target.rglob("*.parquet"):
        pl.read_parquet(path).rename(NAMES, strict=False).write_parquet(path)
    return target


def one_error(text: str) -> str:
    """The one line that is told; the rest is progress, advice and notices of libraries."""
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.parametrize("verb", VERBS)
def test_a_misspelt_option(verb, words, capfd):
    """Alone, and beside options that are right: what is missing does not hide it."""
    text, _ = MISSING[verb] or ("bash", "")
    action = text.split()[:1] if verb in ACTIONS else []
    for line in (action, words(text).split()):
        with pytest.raises(SystemExit) as ended:
            main([verb, *line, "--hlep"])
        assert ended.value.code == 2
        printed = capfd.readouterr()
        name = " ".join(["multigate", verb, *action])
        assert (printed.out, printed.err) == (
            "",
            f"error: {name}: unknown option --hlep; did you mean '--help'? `{name} --help` says "
            "more\n",
        )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("exampels", "multigate: argument VERB: .* received 'exampels'; did you mean 'examples'"),
        ("chekc --config c --data d", "multigate: .* received 'chekc'; did you mean 'check'"),
        ("--versoin", "multigate: unknown option --versoin; did you mean '--version'"),
        ("candidates trian", "multigate candidates: .* received 'trian'; did you mean 'train'"),
        ("candidates trian --out o", "multigate candidates: .* received 'trian'; did you mean"),
        ("evaluate --split=tset", "argument --split: .* received 'tset'; did you mean 'test'"),
        ("train --confg=c", r"multigate train: unknown option --confg; did you mean '--config'"),
        ("train --config c", "multigate train: .* required: --examples, --out"),
        ("check --config demo more", "multigate check: unexpected arguments: more"),
        (
            "rank --model m --items a --limit ten",
            "argument --limit: expected a whole number; received 'ten'",
        ),
        ("serve --model-naem m", "unknown option --model-naem; did you mean '--model_name'"),
        ("", "multigate: .* required: VERB"),
    ],
)
def test_other_mistakes_of_the_command_line(line, told, capfd):
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    printed = capfd.readouterr()
    (said,) = printed.err.splitlines()
    assert printed.out == ""
    assert re.match(f"error: .*{told}", said), said


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("audit --config demo --data d --examples e --sample 0", "--sample: expected 1 or more"),
        ("audit --config demo --data d --examples e --sample -1", "--sample: expected 1 or more"),
        ("audit --config demo --data d --examples e --seed -1", "--seed: expected 0 or more"),
        ("candidates report --candidates c --ranker r --examples e --questions 0", "--questions: "),
        ("candidates report --candidates c --ranker r --examples e --questions -1", "received -1"),
        ("trial --base b --log l --settle -1", "--settle: expected seconds from 0 to 1e+09"),
        ("trial --base b --log l --settle nan", "--settle: expected seconds from 0 to 1e+09"),
        ("trial --base b --log l --settle inf", "--settle: expected seconds from 0 to 1e+09"),
    ],
)
def test_a_number_that_makes_no_sense(line, told, capfd):
    assert main(line.split()) == 2
    said = one_error(capfd.readouterr().err)
    assert told in said
    assert said.endswith(f"received {line.split()[-1]}")


def test_every_verb_is_walked():
    assert set(MISSING) == set(VERBS)
    assert set(PIPE) | set(ALIKE) | SILENT == set(VERBS)
    assert set(ALIKE.values()) <= set(PIPE)


@pytest.mark.parametrize("verb", [verb for verb, case in MISSING.items() if case])
def test_what_is_not_there(verb, words, tmp_path, capfd):
    text, expected = MISSING[verb]
    assert main([verb, *words(text).split()]) == 2
    assert words(expected) in one_error(capfd.readouterr().err)
    assert list((tmp_path / "out").rglob("*.partial")) == []


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("target", ["", ":", "host", "host:notaport", "http://host:1"])
def test_a_target_that_is_no_address(target, verb, tmp_path, capfd):
    places = {"REQUEST": tmp_path / "request.json", "MODELS": tmp_path / "models.txt"}
    places["REQUEST"].write_text('{"user": {"user_id": "u"}, "items": ["a"]}')
    places["MODELS"].write_text(
        'model_config_list {config {name: "m" base_path: "/models/m" model_platform: "tensorflow"}}'
    )
    own = [str(places.get(word, word)) for word in CALLS[verb].split()]
    assert main([verb, "--target", target, *own]) == 2
    told = f"error: target: expected host:port of a gRPC server, received {target!r}\n"
    assert capfd.readouterr() == ("", told)


def test_grpc_adds_no_lines_of_its_own():
    """Of an address that its own scheme's reader refuses."""
    done = subprocess.run(
        [sys.executable, "-m", "multigate", "models", "--target", "ipv4:1.2.3:8500"],
        env={k: v for k, v in os.environ.items() if k != "GRPC_VERBOSITY"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ipv4:1.2.3:8500: ")


@pytest.mark.parametrize("verb", COLUMN)
def test_a_column_that_is_not_there(verb, words, tmp_path, capfd):
    status = main([verb, *words(COLUMN[verb]).split()])
    printed = capfd.readouterr()
    if verb == "check":
        assert status == 1
        (line,) = [line for line in printed.out.splitlines() if line.startswith("FAILS: ")]
    else:
        assert status == 2
        line = one_error(printed.err)
    if "WRONG" in COLUMN[verb]:
        assert "topicc" in line
        # The examples that audit compares with say which column it was.
        assert ("received the default" if verb == "audit" else "did you mean 'topic'?") in line
    elif verb == "trial":
        assert "no column 'user_id'; did you mean 'user_idd'?" in line
    elif verb == "init":
        assert "expected a column of items, and one of users where they are known" in line
    else:
        assert "item_id" in line
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert [path.name for path in left if not re.fullmatch(_KEPT, path.name)] == []


@pytest.mark.parametrize("verb", OTHERS)
def test_examples_of_another_contract(verb, words, tmp_path, capfd):
    """Each says in what they differ, before it computes anything."""
    assert main([verb, *words(OTHERS[verb]).split()]) == 2
    printed = capfd.readouterr()
    line = one_error(printed.err)
    # compare and score take examples that have more than the model needs.
    columns = {"compare": "column 'user_id' is missing; ", "score": "column 'item_id': expected"}
    assert columns.get(verb, "user: expected 'user_id', received 'reader'; item: ") in line
    assert "trial 0" not in printed.err
    left = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert [name for name in left if name != ".lock"] == []


@pytest.mark.sweep(1)
@pytest.mark.parametrize("verb", slow(FULL, {"train", "tune", "export", "candidates"}))
def test_a_full_disk(verb, words, tmp_path, capfd, full_disk):
    text, room = FULL[verb]
    command = words(text).split()
    with full_disk(room):
        status = main([verb, *command])
    assert status == 2
    line = one_error(capfd.readouterr().err)
    assert re.search("File too large|could not be written|cannot be written", line), line
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    kept = {"run": r"\.lock|.*\.json", "tune": r"\.lock|study.db.*"}.get(verb, "none")
    assert [path.name for path in left if not re.fullmatch(kept, path.name)] == []


@contextmanager
def standard_output(descriptor):
    """Standard output is another file, within a test."""
    before, stream = os.dup(1), sys.stdout
    os.dup2(descriptor, 1)
    sys.stdout = os.fdopen(descriptor, "w")
    try:
        yield
    finally:
        sys.stdout.close()  # fails if something is left that cannot be written
        sys.stdout = stream
        os.dup2(before, 1)
        os.close(before)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("verb", slow(PIPE, {"train", "candidates"}))
def test_nobody_reads_the_results(verb, words, capfd):
    command = words(PIPE[verb]).split()
    read, write = os.pipe()
    os.close(read)
    with standard_output(write):
        status = main([verb, *command])
    assert status == 141
    assert "rror" not in re.sub(r"(?m)^[IWE]\d{4} .*$", "", capfd.readouterr().err)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("verb", slow(PIPE, set()))
def test_results_go_to_a_full_disk(verb, words, capfd):
    command = words(PIPE[verb]).split()
    with standard_output(os.open("/dev/full", os.O_WRONLY)):
        status = main([verb, *command])
    assert status == 2
    assert "No space left on device; make room" in one_error(capfd.readouterr().err)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_what_a_full_disk_leaves_is_given_up(options):
    """Else the interpreter writes it again when it ends, complains, and ends with status 120."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "multigate", "print-config", *options],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            check=False,
        )
    assert done.returncode == 2
    assert one_error(done.stderr).startswith("error: standard output: No space left on device; ")
    assert "ignored" not in done.stderr


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("option", ["port", "rest_api_port", "metrics_port"])
def test_a_port_that_is_in_use(option, workers, words, capfd):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = "--model_name demo --model_base_path BASE --host 127.0.0.1 --port 0"
        command += f" --workers {workers} --{option} {port}"
        status = main(["serve", *words(command).split()])
    assert status == 2
    line = one_error(capfd.readouterr().err)
    assert re.search(
        f"127.0.0.1:{port}: cannot (listen|serve metrics) there: Address already", line
    )
    assert f"--{option}" in line
