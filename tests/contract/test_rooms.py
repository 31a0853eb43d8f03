"""What each room's `__init__` says of it is true, and no folder is too full to find things in.

A room (a folder of modules below one of the packages) names its public face in the docstring of
its `__init__`: `Public face: ` and then names in backticks up to the end of the paragraph, each a
module of the room, `module.name`, or a name that `__init__` itself holds.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [
    "configs",
    "features",
    "explanation",
    "runtime",
    "pipeline",
    "model",
    "serving",
    "candidates",
    "jobs",
    "verbs",
]
MOST_MODULES = 16
CROWDED = {
    "verbs": "one module per verb of the command, all of the same shape",
}
"""Folders that may hold more modules, and why."""


def modules_of(folder: Path) -> list[Path]:
    """The modules of a folder that people write."""
    return sorted(
        path
        for path in folder.glob("*.py")
        if path.name != "__init__.py" and "_pb2" not in path.name
    )


def folders() -> list[str]:
    """Every folder of product code that holds modules, from the root."""
    found = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    return sorted(str(path.relative_to(ROOT)) for path in found if modules_of(path))


@cache
def names_of(path: Path) -> set[str]:
    """Names that a module's top level defines or imports."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {
                name.id
                for target in targets
                for name in ast.walk(target)
                if isinstance(name, ast.Name)
            }
    return found


def resolves(folder: Path, name: str) -> bool:
    """Whether a dotted name leads to a module or a top-level name, seen from a folder."""
    first, _, rest = name.partition(".")
    module = folder / f"{first}.py"
    if module.exists():
        return not rest or rest in names_of(module)
    if (folder / first / "__init__.py").exists():
        return not rest or resolves(folder / first, rest)
    init = folder / "__init__.py"
    return not rest and init.exists() and first in names_of(init)


def public_face(folder: Path) -> str | None:
    """What a room's docstring says after `Public face:`; None without such a paragraph."""
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    found = re.search(r"Public face:(.+?)(\n\n|\Z)", docstring, re.DOTALL)
    return found and " ".join(found[1].split())


@pytest.mark.parametrize("room", folders())
def test_the_names_of_a_public_face_exist(room: str) -> None:
    folder = ROOT / room
    said = public_face(folder)
    if said is None:
        assert "/" not in room, f"{room}/__init__.py: expected a paragraph `Public face: ...`"
        return
    names = re.findall(r"`([^`]+)`", said)
    assert names or said == "every module.", f"{room}: expected names in backticks in {said!r}"
    lost = [name for name in names if not (resolves(folder, name) or resolves(ROOT, name))]
    assert not lost, f"{room}/__init__.py names {', '.join(lost)}, which do not exist"


def test_names_that_do_not_exist_are_found() -> None:
    gates = ROOT / "model" / "gates"
    for name in ("make", "comet", "comet.Comet", "parts.base.Gate", "parts"):
        assert resolves(gates, name), name
    for name in ("made", "comet.Commet", "parts.base.Gates", "comet.Comet.route", "base.Gate"):
        assert not resolves(gates, name), name


@pytest.mark.parametrize("folder", folders())
def test_no_folder_holds_too_many_modules(folder: str) -> None:
    if folder not in CROWDED:
        modules = modules_of(ROOT / folder)
        assert len(modules) <= MOST_MODULES, (
            f"{folder}/ holds {len(modules)} modules, expected at most {MOST_MODULES}: divide it "
            "into rooms where a line can be drawn"
        )
