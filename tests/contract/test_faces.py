"""A room's `__init__` names its public face; the names exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("candidates", "configs", "jobs", "verbs")
ROOMS = sorted(
    path.parent.relative_to(ROOT)
    for package in PACKAGES
    for path in (ROOT / package).rglob("__init__.py")
)


@cache
def names_in(path: Path) -> set[str]:
    """What a module defines or imports at its top level."""
    found = set()
    body = ast.parse(path.read_text()).body
    for node in [*body, *(one for node in body if isinstance(node, ast.If) for one in node.body)]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update(
                one.id for target in targets for one in ast.walk(target)
                if isinstance(one, ast.Name)
            )  # fmt: skip
    return found


def exists(room: Path, dotted: str) -> bool:
    """Whether a dotted name is a module of the room, a name in one, or a name of the room."""
    for start in (ROOT / room, ROOT):
        place, parts = start, dotted.split(".")
        while parts and (place / parts[0]).is_dir():
            place /= parts.pop(0)
        if not parts:
            return place != start
        module = place / f"{parts[0]}.py"
        if module.is_file():
            return len(parts) == 1 or parts[1] in names_in(module)
        if place.is_dir() and len(parts) == 1 and (place / "__init__.py").is_file():
            init = place / "__init__.py"
            if place != ROOT and parts[0] in names_in(init):
                return True
    return False


@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_the_names_of_a_public_face_exist(room):
    text = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text())) or ""
    assert text, "a room says what lives there"
    face = re.search(r"Public face: (.*?)(?:\n\n|\Z)", text, re.DOTALL)
    for name in re.findall(r"`([A-Za-z_][\w.]*)`", face[1] if face else ""):
        assert exists(room, name), f"{room}: {name}"
