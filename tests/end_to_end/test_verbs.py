"""The verbs that follow `examples`, as a user calls them; `--json` prints one object."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multigate.verbs.command import main


@pytest.fixture
def call(capfd):
    """Run a verb; its status, the lines of stdout and of stderr."""

    def run(*arguments):
        capfd.readouterr()
        status = main([str(argument) for argument in arguments])
        shown = capfd.readouterr()
        return status, shown.out.splitlines(), shown.err.splitlines()

    return run


@pytest.mark.slow
def test_examples_print_where_the_rows_went(small_run, call, tmp_path):
    logs = small_run.root / "logs"
    status, out, err = call(
        "examples", "--config", "demo", "--data", logs, "--out", tmp_path / "o", "--json"
    )
    assert (status, len(out)) == (0, 1)
    manifest = json.loads((tmp_path / "o/manifest.json").read_text())
    assert json.loads(out[0]) == manifest
    assert "rows in" in "\n".join(err)


@pytest.mark.slow
def test_evaluate_prints_the_metrics_and_writes_the_report(small_run, call, tmp_path):
    run, page = small_run.root / "run", tmp_path / "report.html"
    examples = ("--examples", run / "examples")
    version = ("--version", run / "models/demo/1", "--config", "demo")
    status, out, err = call("evaluate", *version, *examples, "--report", page, "--json")
    assert (status, len(out)) == (0, 1)
    stored = json.loads((run / "report.json").read_text())
    assert json.loads(out[-1]) | {"source": stored["source"]} == stored
    assert page.read_text().endswith("</html>\n")
    assert json.loads(page.with_suffix(".json").read_text()) == json.loads(out[-1])
    checkpoint = ("--checkpoint", run / "checkpoint")
    no_page = ("--report", tmp_path / "no" / "report.html")
    status, out, err = call("evaluate", *checkpoint, *examples, *no_page)
    assert status == 2
    assert "AUC" in "\n".join(out)  # what was computed is not lost
    (line,) = err
    assert line.startswith(f"error: {tmp_path}/no/")


@pytest.mark.slow
def test_a_version_is_measured_as_it_is_served(small_run, call):
    run = small_run.root / "run"
    folders = ("--version", run / "models/demo/1", "--examples", run / "examples")
    status, out, _ = call("evaluate", *folders, "--config", "demo", "--json")
    assert (status, len(out)) == (0, 1)
    served, kept = json.loads(out[-1]), json.loads((run / "report.json").read_text())
    assert served["kind"] == "version"
    for name, task in kept["tasks"].items():
        assert served["tasks"][name]["value"] == pytest.approx(task["value"], rel=1e-3)
        low, high = (task["measures"][task["metric"]][end] for end in ("low", "high"))
        assert low < task["value"] < high
        assert served["tasks"][name]["measures"][task["metric"]]["low"] == pytest.approx(
            low, rel=1e-2
        )
    assert served["gates"].keys() == kept["gates"].keys()


@pytest.mark.slow
def test_compare_answers_by_its_exit_status(small_run, call, tmp_path):
    run = small_run.root / "run"
    version = run / "models/demo/1"
    both = ("--candidate", version, "--production", version, "--examples", run / "examples")
    both += ("--split", "train")
    text = (Path(__file__).parents[2] / "configs/presets/demo.yaml").read_text()
    # One epoch on few rows: hardly better than chance, so that the rules have to be kind.
    kind = "{calibration: null, least_auc: 0.0}"
    rules = {"kind": kind, "strict": "{tasks: {click: {must_win: true}}}"}
    for name, rule in rules.items():
        (tmp_path / name).write_text(f"{text}\nevaluation: {{rules: {rule}}}\n")
    status, out, err = call("compare", *both, "--config", tmp_path / "kind", "--json")
    assert (status, len(out)) == (0, 1)
    assert json.loads(out[-1])["verdict"] == "bless"
    page = tmp_path / "verdict.html"
    status, out, err = call("compare", *both, "--config", tmp_path / "strict", "--report", page)
    assert (status, err) == (1, [])
    assert any(line.strip() == "refused" for line in out)
    assert "click: it must win" in page.read_text()
    status, out, err = call("compare", *both[:3], tmp_path / "none", *both[4:])
    assert (status, out) == (2, [])
    assert "expected a checkpoint" in err[0]


@pytest.mark.slow
def test_export_counts_versions(small_run, call, tmp_path):
    run = small_run.root / "run"
    folders = ("--checkpoint", run / "checkpoint", "--examples", run / "examples")
    status, out, _ = call("export", *folders, "--out", tmp_path, "--version", 7, "--json")
    assert (status, len(out)) == (0, 1)
    assert json.loads(out[-1]) == {"export": str(tmp_path / "7")}
    assert (tmp_path / "7/saved_model.pb").exists()


def test_rank_prints_the_list(call, small_target):
    user = '{"user_id": "nobody", "country": null, "age": 30}'
    options = ("--target", small_target, "--model", "demo", "--user", user)
    features = (
        *("--context", '{"hour": 7}', "--items", "a,b,c"),
        *("--columns", '{"topic": ["t", "t", "u"], "length": [100, 5, 70]}'),
    )
    status, out, err = call("rank", *options, *features, "--json", "--limit", 2)
    assert status == 0
    assert any(line.startswith("warning: feature ") for line in err)
    assert len(out) == 1
    result = json.loads(out[-1])
    assert len(result["ranked"]) == 2
    assert {item["item_id"] for item in result["ranked"]} <= {"a", "b", "c"}
    assert result["model_version"] == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("--items", ""), "candidates: expected at least one item_id, received none"),
        (("--items", "a", "--context", '{"hours": 7}'), "unknown feature 'hours'"),
        (("--items", "a", "--context", "{}"), "feature 'hour': expected a value"),
        (("--items", "a", "--model", "other"), "model 'other': unknown"),
    ],
)
def test_a_refused_rank_is_one_line(call, small_target, changed, message):
    options = ("--target", small_target, "--model", "demo", "--user", '{"user_id": "u"}')
    status, out, err = call("rank", *options, "--context", '{"hour": 7}', *changed)
    assert (status, out) == (2, [])
    (line,) = err
    assert line.startswith(f"error: {small_target}: ")
    assert message in line


@pytest.fixture(scope="module")
def request_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("explain") / "request.json"
    items = [f"i{number:04}" for number in range(5)]
    path.write_text(
        json.dumps({"user": {"user_id": "u0001"}, "context": {"hour": 9}, "items": items})
    )
    return path


def said(err):
    """What the verb says, without the notices of TensorFlow where another test has imported it."""
    return [line for line in err if not re.match(r"[IWE]0000 ", line)]


@pytest.mark.slow
def test_explain_says_why_an_item_has_its_place(small_run, call, request_file):
    """From the version alone: features of the user and the items come from its snapshot."""
    arguments = ("--request", request_file, "--item", "i0003", "--json")
    status, out, err = call("explain", "--model", small_run.root / "run", *arguments)
    assert status == 0
    found = json.loads("".join(out))
    shown = "\n".join(err)
    assert f"place {found['place']} of 5" in shown
    assert "topic and 14 others" in shown
    assert (found["model"], found["version"], found["item"]) == ("demo", 1, "i0003")
    for output, mean in found["background"]["scores"].items():
        own = found["score"] if output == "score" else found["terms"][output]["score"]
        added = sum(group["contributions"][output] for group in found["features"])
        assert added == pytest.approx(own - mean, abs=1e-4 * max(1, abs(own)))
    for chosen in found["experts"].values():  # two of four experts for each task
        assert len(chosen) == 2
        assert sum(one["weight"] for one in chosen) == pytest.approx(1, abs=1e-5)


def test_explain_asks_a_server(call, request_file, small_target):
    request = json.loads(request_file.read_text())
    arguments = ("--request", request_file, "--item", "i0003", "--timeout", 60, "--json")
    status, out, _ = call("explain", "--target", small_target, "--model", "demo", *arguments)
    assert status == 0
    found = json.loads("".join(out))
    user, context = json.dumps(request["user"]), json.dumps(request["context"])
    items = ("--items", ",".join(request["items"]), "--user", user, "--context", context)
    _, ranked, _ = call("rank", "--target", small_target, "--model", "demo", *items, "--json")
    order = json.loads("".join(ranked))["ranked"]
    assert order[found["place"] - 1]["item_id"] == "i0003"
    assert order[found["place"] - 1]["score"] == pytest.approx(found["score"], abs=1e-4)


def test_explain_takes_a_row_of_examples(small_run, call):
    """The row that the report explains has the report's scores, experts and values."""
    run = small_run.root / "run"
    kept = json.loads((run / "report.json").read_text())["explained"][0]
    row = ("--examples", run / "examples", "--row", kept["row"], "--json")
    status, out, _ = call("explain", "--model", run / "models/demo", *row)
    assert status == 0
    found, reported = json.loads("".join(out)), kept["explanation"]
    assert found["score"] == pytest.approx(reported["score"], abs=1e-4)
    assert found["experts"].keys() == reported["experts"].keys()
    values = [
        {name: v for group in one["features"] for name, v in group["values"].items()}
        for one in (found, reported)
    ]
    assert values[0] == values[1]
    assert "place" not in found


@pytest.mark.slow
def test_explain_compares_with_rows_of_the_caller(small_run, call, request_file, tmp_path):
    """Of 20 rows all are taken: their mean scores are those that `score` gives them."""
    run = small_run.root / "run"
    part = sorted((run / "examples/test").glob("*.parquet"))[0]
    pq.write_table(pq.read_table(part).slice(0, 20), tmp_path / "rows.parquet")
    version, scored = run / "models/demo/1", tmp_path / "scored.parquet"
    status, *_ = call(
        "score", "--version", version, "--rows", tmp_path / "rows.parquet", "--out", scored
    )
    assert status == 0
    asked = ("--request", request_file, "--item", "i0003", "--json")
    status, out, _ = call(
        "explain", "--model", version, *asked, "--background", tmp_path / "rows.parquet"
    )
    assert status == 0
    background = json.loads("".join(out))["background"]
    assert (background["of"], background["rows"]) == ("rows of rows.parquet", 20)
    found = pq.read_table(scored)
    for output, mean in background["scores"].items():
        column = output if output == "score" else f"score/{output}"
        assert mean == pytest.approx(np.mean(found[column].to_numpy()), rel=1e-4)


def without_hour(table):
    place = table.schema.get_field_index("hour")
    hours = [None if row == 3 else value for row, value in enumerate(table["hour"].to_pylist())]
    return table.set_column(place, "hour", pa.array(hours, table.schema.field("hour").type))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_hour, "row 3: feature 'hour': expected a value (missing: error), received none"),
        (lambda t: t.drop_columns(["topic"]), "expected a column for each feature"),
        (
            lambda t: t.drop_columns(["age"]).append_column("age", pa.array(["old"] * len(t))),
            "feature 'age': expected values of double",
        ),
        (lambda t: t.slice(0, 0), "no rows; expected some to compare with"),
        (None, "no such file; expected rows to compare with"),
    ],
)
def test_rows_that_do_not_fit_are_no_background(
    small_run, call, request_file, tmp_path, change, message
):
    part = sorted((small_run.root / "run/examples/test").glob("*.parquet"))[0]
    path = tmp_path / "rows.parquet"
    if change is not None:
        pq.write_table(change(pq.read_table(part).slice(0, 20)), path)
    asked = ("--request", request_file, "--item", "i0003", "--background", path)
    status, out, err = call("explain", "--model", small_run.root / "run", *asked)
    assert (status, out) == (2, [])
    (line,) = said(err)
    assert line.startswith(f"error: {path}: ")
    assert message in line


@pytest.mark.slow
def test_explain_names_an_unseen_item(small_run, call, request_file, tmp_path):
    request = json.loads(request_file.read_text()) | {"items": ["i0003", "nowhere"]}
    request["columns"] = {"topic": ["topic03"] * 2, "length": [100.0] * 2}
    path = tmp_path / "request.json"
    path.write_text(json.dumps(request))
    arguments = ("--request", path, "--item", "nowhere", "--json")
    status, out, err = call("explain", "--model", small_run.root / "run", *arguments)
    assert status == 0
    assert json.loads("".join(out))["unseen"] == ["item_id"]
    assert any("scored as an unseen value: item_id" in line for line in err)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"item": "i9"}, "--item i9: expected one of the request's 5 items"),
        ({"model": "nowhere"}, "nowhere: expected an exported version .*found none"),
        ({"request": "no.json"}, "--request no.json: No such file or directory"),
        ({"item": None}, "--request and --item belong together"),
        ({"request": None, "item": None}, "--request, --examples: expected one of them"),
        ({"background": "a.csv", "against": "examples"}, "--background, --against examples: give"),
        ({"background": "a.csv", "target": "localhost:1"}, "--background: a server compares"),
        ({"pairs": 1}, "--pairs: expected 2 or more, received 1"),
        ({"top": 0}, "--top: expected 1 or more, received 0"),
        ({"target": "localhost:1", "exact": ""}, "--target: a server takes --request"),
        ({"request": None, "item": None, "row": "9999"}, "--row: expected 0 to [0-9]+"),
    ],
)
def test_what_cannot_be_explained_is_one_line(small_run, call, request_file, changed, message):
    given = {"model": small_run.root / "run", "request": request_file, "item": "i0003"} | changed
    if "row" in changed:
        given["examples"] = small_run.root / "run/examples"
    options = [(f"--{name}", value) for name, value in given.items() if value is not None]
    status, out, err = call("explain", *(part for pair in options for part in pair if part != ""))
    assert (status, out) == (2, [])
    (line,) = said(err)
    assert re.match(f"error: {message}", line)


@pytest.mark.slow
def test_explain_needs_neither_keras_nor_tensorflows_python(small_run, request_file):
    code = (
        "import sys\n"
        "sys.modules['keras'] = sys.modules['tensorflow.python'] = None\n"
        "from multigate.verbs.command import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    version = str(small_run.root / "run/models/demo/1")
    arguments = ["--model", version, "--request", str(request_file), "--item", "i0003"]
    done = subprocess.run(
        [sys.executable, "-c", code, "explain", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "What each feature adds" in done.stdout
