"""The report page: complete, self-contained, and right about what it draws."""

import copy
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from multigate.model.assessment.assess import assess
from multigate.model.baselines.lightgbm_baseline import fit
from multigate.model.checkpoints import checkpoint
from multigate.model.report.page import write_report
from multigate.model.training import train

VOID = {"meta", "br", "line", "circle", "polyline", "link"}


class Page(HTMLParser):
    """Checks that elements nest, and gathers text, tags and attributes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(self.source)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"

    @property
    def sections(self) -> list[str]:
        return re.findall(r'<section id="([a-z-]+)">', self.source)


@pytest.fixture(scope="module")
def found(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The assessment of a trained checkpoint, which tests change copies of."""
    out = tmp_path_factory.mktemp("reported") / "checkpoint"
    train.train(tiny.config, tiny.examples, out, progress=False)
    return assess(out, tiny.examples)


def write(path: Path, found: dict[str, Any], **options: Any) -> Page:
    write_report(path, found, **options)
    return Page(path)


def with_tasks(found: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The same assessment as if the model had these tasks, all like `click`."""
    changed = copy.deepcopy(found)
    changed["tasks"] = dict.fromkeys(names, found["tasks"]["click"])
    gate = found["gates"]["click"]
    changed["gates"] = {
        name: gate | {"overlap": {other: 0.5 for other in names if other != name}} for name in names
    }
    changed["groups"] = {"engagement": found["groups"]["engagement"]}
    for epoch in changed["history"]:
        epoch["tasks"] = dict.fromkeys(names, epoch["tasks"]["click"])
        epoch["gates"] = dict.fromkeys(names, epoch["gates"]["click"])
    return changed


def test_every_task_with_its_value_interval_and_best(found: Any, tmp_path: Path) -> None:
    page = write(tmp_path / "r.html", found, best={"click": 0.9, "like": None})
    for task in found["tasks"].values():
        value = task["value"]
        shown = f"{value:.4f}" if task["metric"] == "auc" else f"{value:.4g}"
        assert f"\n{shown}\n" in page.text
    click = found["tasks"]["click"]["measures"]["auc"]
    assert f"{click['low']:.4f} to {click['high']:.4f}" in page.text
    assert "best 0.9000" in page.text
    # The tick of an AUC of 0.9 stands at (0.9 - 0.5) / 0.5 of the bar.
    assert page.source.count('<b style="left: 80.0%">') == 1
    assert "Trained for 2 epochs; epoch 2 was kept." in page.text
    stored = json.loads((tmp_path / "r.json").read_text())
    assert stored == json.loads(json.dumps(found)) | {"best": {"click": 0.9}}


def test_sections_can_be_linked_to(found: Any, tmp_path: Path) -> None:
    page = write(tmp_path / "r.html", found)
    links = [value[1:] for name, value in page.attributes if name == "href" and value[0] == "#"]
    assert set(links) == set(page.sections)
    assert len(page.sections) == len(set(page.sections))
    assert {"tasks", "calibration", "gates", "slices", "leaks", "training"} <= set(page.sections)
    assert "data" not in page.sections  # these examples have no report of the pipeline


def test_a_feature_that_beats_the_model_stands_out(found: Any, tmp_path: Path) -> None:
    value = found["tasks"]["click"]["value"]
    changed = copy.deepcopy(found)
    changed["leaks"]["features"] = []
    for place, auc in (("low", value - 0.01), ("high", value + 0.01)):
        row = {"feature": f"length_{place}", "by": "value", "task": "click", "auc": auc}
        changed["leaks"]["features"].append(row | {"leak": False})
    page = write(tmp_path / "r.html", changed)
    told = f"length_high alone ranks click better than the model does: AUC {value + 0.01:.4f}"
    assert told in page.text
    assert "length_low alone ranks" not in page.text


def test_nothing_is_fetched_or_run(found: Any, tmp_path: Path) -> None:
    page = write(tmp_path / "r.html", found)
    assert not {"script", "img", "iframe", "object"} & set(page.tags)
    sources = [value for name, value in page.attributes if name in {"src", "href"}]
    assert all(value.startswith("#") or value == "data:," for value in sources)
    assert "url(" not in page.source
    assert "@import" not in page.source
    assert "prefers-color-scheme: dark" in page.source


def test_text_is_escaped(found: Any, tmp_path: Path) -> None:
    changed = with_tasks(found, ["<script>alert(1)</script>"])
    page = write(tmp_path / "r.html", changed, title="a < b & c")
    assert "script" not in page.tags
    assert "a < b & c" in page.text


def test_without_a_value_the_reason_stands_there(found: Any, tmp_path: Path) -> None:
    changed = copy.deepcopy(found)
    task = changed["tasks"]["like"]
    task |= {"value": None, "reason": "every label is masked", "rate": None, "mean_score": None}
    task |= {"rows": 0, "reliability": []}
    for measure in task["measures"].values():
        measure |= {"value": None, "low": None, "high": None, "rows": 0}
    page = write(tmp_path / "r.html", changed)
    assert "like cannot be measured: every label is masked." in page.text


def test_lightgbm_stands_beside_ours(tiny: Any, found: Any, tmp_path: Path) -> None:
    assert "baseline" not in write(tmp_path / "without.html", found).sections
    config, _ = checkpoint.read_config(Path(found["source"]))
    fitted = fit(tiny.examples, config.contract)
    compared = assess(Path(found["source"]), tiny.examples, baseline=fitted)
    page = write(tmp_path / "r.html", compared)
    assert "baseline" in page.sections
    assert f"\nAgainst {fitted.title} \n" in page.text
    for measure in compared["baseline"]["tasks"]["click"]["measures"].values():
        assert f"\n{measure['candidate']['value']:.4f}\n" in page.text
        assert f"\n{measure['production']['value']:.4f}\n" in page.text
    for sentence in compared["baseline"]["sentences"]:
        assert sentence in page.text
    lost = copy.deepcopy(compared)
    lost["baseline"]["sentences"] = ["click is worse than with LightGBM, beyond chance: AUC -0.1."]
    assert write(tmp_path / "lost.html", lost).text.count("click is worse than with") == 2


def test_unmatched_rows_have_a_column_where_they_are_known(found: Any, tmp_path: Path) -> None:
    assert "\nAUC on unmatched rows\n" in write(tmp_path / "r.html", found).text
    changed = copy.deepcopy(found)
    for task in changed["tasks"].values():
        task["measures"].pop("auc_unmatched", None)
    assert "AUC on unmatched rows" not in write(tmp_path / "without.html", changed).text


@pytest.mark.parametrize("tasks", [1, 20])
def test_any_number_of_tasks(found: Any, tmp_path: Path, tasks: int) -> None:
    page = write(tmp_path / "r.html", with_tasks(found, [f"t{n}" for n in range(tasks)]))
    assert page.source.count('<div class="task">') == tasks
    assert ("Overlap" in page.text) == (tasks > 1)


@pytest.mark.parametrize("experts", [1, 2, 64])
def test_any_number_of_experts(found: Any, tmp_path: Path, experts: int) -> None:
    changed = copy.deepcopy(found)
    changed["experts"] = experts
    changed["union"] = [0.5] * experts
    changed["history"] = []
    for gate in changed["gates"].values():
        gate |= {"weights": [1 / experts] * experts, "load": [1.0] * experts}
    page = write(tmp_path / "r.html", changed)
    cells = [value for name, value in page.attributes if name == "class" and "cell" in value]
    assert len(cells) == experts * (3 + 4) + 3 * 3  # weights, load with the union, overlap
    assert "training" not in page.sections  # no history, no section


def test_curves_stay_within_the_picture(found: Any, tmp_path: Path) -> None:
    for losses in ((0.0,), (5.0, 5.0), (1e-7, 3e6, 2.0), tuple(range(40, 0, -1))):
        changed = copy.deepcopy(found)
        first = changed["history"][0]
        changed["history"] = [
            first
            | {"epoch": number, "loss": loss, "val_loss": loss}
            | {"tasks": {n: {"loss": loss, "val_loss": loss} for n in first["tasks"]}}
            for number, loss in enumerate(losses, start=1)
        ]
        page = write(tmp_path / "r.html", changed)
        points = re.findall(r'points="([^"]*)"', page.source)
        assert len(points) >= 8
        for line in points:
            for pair in line.split():
                x, y = map(float, pair.split(","))
                assert 0 <= x <= 320
                assert 0 <= y <= 220


def test_a_verdict_comes_first(found: Any, tmp_path: Path) -> None:
    task = {
        "metric": "auc",
        "rows": 9,
        "wins": False,
        "candidate": {"value": 0.7, "low": 0.6, "high": 0.8, "rows": 9},
        "production": {"value": 0.75, "low": 0.6, "high": 0.8, "rows": 9},
        "difference": {"value": -0.05, "low": -0.06, "high": -0.04, "rows": 9},
    }
    compared = {"verdict": "refuse", "reasons": ["click: worse."], "ranking": None}
    compared |= {"tasks": {"click": task, "gone": {"missing": True}}}
    page = write(tmp_path / "r.html", found | {"comparison": compared})
    assert page.sections[0] == "verdict"
    assert "Refused" in page.text
    assert "-0.0500 ▼" in page.text


def test_the_pipelines_report_is_shown_where_there_is_one(found: Any, tmp_path: Path) -> None:
    times = {"first": "2026-01-01T08:00:00+00:00", "last": None}
    data = {
        "rows": {"rows_in": 54321},
        "splits": {"train": {"rows": 12345, "impressions": 999, **times}},
        "labels": {"click": {"train": {"count": 678, "masked": 0, "mean": 0.25}}},
        "features": {
            "age": {"kind": "number", "coverage": 0.875},
            "<b>": {"kind": "id", "coverage": None},
        },
        "vocabularies": {"<b>": 77},
        "rejected": {},
        "popular": [{"item": 101, "positives": 44, "impressions": 55}],
        "drift": {"features": {"age": 0.3, "<b>": None}},
    }
    page = write(tmp_path / "r.html", found | {"data": data})
    assert page.sections[-1] == "data"
    expected = ("54,321", "12,345", "2026-01-01 08:00", "0.25", "87.5 %", "<b>", "77", "101")
    for text in expected:
        assert f"\n{text}\n" in page.text
    assert "age has drifted since the previous run: stability index 0.30." in page.text
    write(tmp_path / "r.html", found | {"data": {}})  # an older report may lack any of it


@pytest.fixture
def chromium(lacking: Any) -> str:
    """The browser's path."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    return path or lacking("Chromium is not installed")


@pytest.mark.slow
def test_in_a_browser(found: Any, chromium: str, tmp_path: Path) -> None:
    """Renders without a message, fits a phone's width, and follows the reader's colours."""
    pages = {1: with_tasks(found, ["alone"]), 3: found}
    pages[20] = with_tasks(found, [f"task_{n}" for n in range(20)])
    for tasks, changed in pages.items():
        write_report(tmp_path / f"{tasks}.html", changed)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium)
        for width, scheme, ground in (
            (390, "dark", "rgb(20, 20, 22)"),
            (1280, "light", "rgb(250, 249, 247)"),
        ):
            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            said: list[str] = []
            page.on("console", lambda message, said=said: said.append(message.text))
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            page.on("request", lambda request, said=said: said.append(request.url))
            for tasks in pages:
                page.goto((tmp_path / f"{tasks}.html").as_uri())
                assert [s for s in said if not s.startswith(("file:", "data:"))] == []
                assert page.evaluate("document.documentElement.scrollWidth") <= width, tasks
                assert page.locator("svg").count() > 3
                assert page.locator("h2").first.is_visible()
                colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
                assert colour == ground
        browser.close()


def test_rows_are_explained_with_features_terms_and_experts(found: Any, tmp_path: Path) -> None:
    page = write(tmp_path / "r.html", found)
    assert "explained" in page.sections
    for row in found["explained"]:
        explained = row["explanation"]
        assert f"{row['chosen'].capitalize()}: item {explained['item']} for user" in page.text
        largest = explained["features"][0]
        assert f"\n{largest['contributions']['click']:+.3g}\n" in page.text
        for task, term in explained["terms"].items():
            assert f"\n{term['term']:.4g}\n" in page.text
            first = explained["experts"][task][0]
            assert f"{first['expert']} ({first['weight']:.2f})" in page.text
    changed = copy.deepcopy(found)
    changed["explained"] = []
    assert "explained" not in write(tmp_path / "none.html", changed).sections
    changed = copy.deepcopy(found)
    for row in changed["explained"]:
        row["explanation"]["experts"] = None
    assert "experts (weight)" not in write(tmp_path / "old.html", changed).text


def test_an_explained_rows_text_is_escaped(found: Any, tmp_path: Path) -> None:
    changed = copy.deepcopy(found)
    explained = changed["explained"][0]["explanation"]
    explained["item"] = "<script>item"
    group = explained["features"][0]
    group["values"][group["features"][0]] = "<script>value"
    page = write(tmp_path / "r.html", changed)
    assert "script" not in page.tags
    assert "<script>item" in page.text
    assert "<script>value" in page.text
