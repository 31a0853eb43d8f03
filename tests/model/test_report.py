"""The report page: complete, self-contained, and right about what it draws."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model import report
from model.evaluation import summarise, task_metrics

VOID = {"meta", "br", "line", "circle", "polyline"}


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
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def evaluation(tiny: Any, experts: int = 4, masked: str | None = None) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    contract = tiny.config.contract
    labels = np.stack(
        [
            rng.integers(0, 2, 50) if task.type == "binary" else rng.random(50) * 9
            for task in contract.tasks.values()
        ],
        axis=1,
    ).astype(np.float32)
    scored = {name: rng.random(50) for name in contract.tasks}
    if masked is not None:
        labels[:, list(contract.tasks).index(masked)] = np.nan
    tasks = task_metrics(contract, labels, scored)
    weights = [0.75, *[0.25 / max(experts - 2, 1)] * (experts - 2), 0.0][:experts]
    gate = {"gate": "topk", "weights": weights, "load": weights, "experts_per_row": 2.0}
    return {
        "split": "test",
        "rows": 50,
        "tasks": tasks,
        "groups": summarise(tasks),
        "loss": 1.25,
        "experts_per_row": 3.5,
        "experts": experts,
        "gates": dict.fromkeys(tasks, gate),
    }


def epochs(*losses: float) -> list[dict[str, Any]]:
    return [
        {
            "epoch": number,
            "loss": loss + 0.1,
            "val_loss": loss,
            "tasks": {t: {"loss": loss, "val_loss": loss} for t in ("click", "dwell", "like")},
        }
        for number, loss in enumerate(losses, start=1)
    ]


def write(path: Path, tiny: Any, *args: Any, **extras: Any) -> Page:
    result, history = args
    report.write_report(path, result, history, tiny.config, extras)
    return Page(path)


def test_every_task_with_its_value_and_best(tiny: Any, tmp_path: Path) -> None:
    result = evaluation(tiny)
    page = write(tmp_path / "r.html", tiny, result, epochs(3, 2, 2.5), best={"click": 0.9})
    for task in result["tasks"].values():
        value = task["value"]
        shown = f"{value:.4f}" if task["metric"] == "auc" else f"{value:.4g}"
        assert f"\n{shown}\n" in page.text
    assert "best 0.9000" in page.text
    assert "Trained for 3 epochs; epoch 2 was kept." in page.text
    # The tick of an AUC of 0.9 stands at (0.9 - 0.5) / 0.5 of the bar.
    assert page.source.count("left: 80.0%") == 1
    assert "No task uses expert 4." in page.text
    assert page.tags.count("svg") == 4


def test_nothing_is_fetched_or_run(tiny: Any, tmp_path: Path) -> None:
    page = write(tmp_path / "r.html", tiny, evaluation(tiny), epochs(1))
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not [value for name, value in page.attributes if name in {"src", "href"}]
    assert "url(" not in page.source
    assert "@import" not in page.source
    assert "prefers-color-scheme: dark" in page.source


def test_text_is_escaped(tiny: Any, tmp_path: Path) -> None:
    facts = {"note": "<script>alert(1)</script>"}
    page = write(tmp_path / "r.html", tiny, evaluation(tiny), [], title="a < b & c", facts=facts)
    assert "script" not in page.tags
    assert "a < b & c" in page.text


def test_without_a_value_the_reason_stands_there(tiny: Any, tmp_path: Path) -> None:
    page = write(tmp_path / "r.html", tiny, evaluation(tiny, masked="like"), epochs(1, 1))
    assert "every label is masked" in page.text
    assert "1 of 1 not measurable" in page.text
    page = write(tmp_path / "s.html", tiny, evaluation(tiny, masked="dwell"), epochs(1, 1))
    assert "every label is masked" in page.text


@pytest.mark.parametrize("experts", [1, 2, 64])
def test_any_number_of_experts(tiny: Any, tmp_path: Path, experts: int) -> None:
    page = write(tmp_path / "r.html", tiny, evaluation(tiny, experts), [])
    cells = [value for name, value in page.attributes if name == "class" and "cell" in value]
    assert len(cells) == 3 * experts
    assert "Training" not in page.text  # no history, no section


def test_curves_stay_within_the_picture(tiny: Any, tmp_path: Path) -> None:
    for losses in ((0.0,), (5.0, 5.0), (1e-7, 3e6, 2.0), tuple(range(40, 0, -1))):
        page = write(tmp_path / "r.html", tiny, evaluation(tiny), epochs(*losses))
        points = re.findall(r'points="([^"]*)"', page.source)
        assert len(points) == 8
        for line in points:
            for pair in line.split():
                x, y = map(float, pair.split(","))
                assert 0 <= x <= 320
                assert 0 <= y <= 150
