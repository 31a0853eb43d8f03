"""Documentation is tested: documented commands parse, links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from multigate.pipeline.core.runner import import_beam
from multigate.verbs.command import make_parser

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "deploy").glob("*.md"),
        *(ROOT / "clients").glob("*.md"),
        *(ROOT / "clients").glob("*/*.md"),
    ]
)


def documented_commands() -> list[str]:
    """Lines in code blocks and YAML comments that call `multigate`."""
    found = []
    for path in [*PAGES, *(ROOT / "configs/presets").glob("*.yaml")]:
        text = path.read_text().replace("\\\n", " ")
        for line in text.splitlines():
            match = re.match(r"^[#\s]*(?:\.venv/bin/)?(multigate +[a-z-]+ +--.*?)(?: &)?$", line)
            if match:
                found.append(match[1])
    return found


def test_commands_are_found():
    assert len(documented_commands()) >= 8


@pytest.mark.parametrize("command", sorted(set(documented_commands())))
def test_documented_commands_parse(command):
    arguments = shlex.split(re.split(r" {3,}(?=[A-Z])", command)[0])[1:]
    assert make_parser().parse_args(arguments).verb == arguments[0]


@pytest.mark.parametrize("runner", ["Flink", "Spark", "Dataflow"])
def test_the_engines_options_are_beams(runner):
    """On the page of engines; Beam only warns of an option that it does not know."""
    commands = (shlex.split(one) for one in documented_commands() if f"={runner}Runner" in one)
    given = [word for one in commands for word in one if f"={runner}Runner" in word]
    names = {one.partition("=")[0].removeprefix("--") for word in given for one in word.split()}
    _, pipeline_options = import_beam()
    assert len(names) > 4
    assert names <= pipeline_options([]).get_all_options().keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def links(page: Path) -> set[Path]:
    """The files that a page links."""
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    return {(page.parent / one).resolve() for one in targets if not one.startswith("http")}


def test_the_first_screen_leads_to_the_first_hour():
    text = "\n".join((ROOT / "README.md").read_text().splitlines()[:40])
    for target in ("tutorial.md", "configuration.md", "explain.md", "python.md", "README.md"):
        assert f"(docs/{target})" in text
    for verb in ("init", "check", "options", "explain"):
        assert f"`multigate {verb} " in text


def test_the_index_leads_to_every_page():
    docs = ROOT / "docs"
    pages = {*docs.glob("*.md"), *docs.glob("*.ipynb")} - {docs / "README.md"}
    assert pages - links(docs / "README.md") == set()
    assert {*pages, docs / "README.md"} - links(ROOT / "README.md") == set()
    assert set((docs / "results").glob("*.md")) - links(docs / "results.md") == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_to_headings_lead_to_one(page):
    for target, heading in re.findall(r"\]\(([^)#]*)#([^)]+)\)", page.read_text()):
        if target.startswith("http") or not (target or page.name).endswith(".md"):
            continue
        text = (page.parent / target if target else page).read_text()
        found = {
            re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-")
            for one in re.findall(r"(?m)^#+ (.*)$", text)
        }
        assert heading in found, (target, heading)


def test_every_make_target_in_the_documents_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for block in re.findall(r"```.*?```", page.read_text(), re.DOTALL):
            assert set(re.findall(r"^make ([a-z-]+)", block, re.MULTILINE)) <= targets, page


def test_the_architecture_names_the_packages_that_there_are():
    page = (ROOT / "docs/architecture.md").read_text()
    documented = set(re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE))
    here = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert documented == here
