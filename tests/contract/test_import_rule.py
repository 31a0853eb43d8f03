"""The import rule: which room may know which.

A room is a folder of modules, or a single module where it is named below.  `LAYERS` lists the rooms
from the lowest to the highest: a room may import those above its line, never those below, and of
another package only what `PACKAGES` allows.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PACKAGES = {
    "configs": (),
    "features": ("configs",),
    "explanation": ("configs",),
    "pipeline": ("features", "configs"),
    "runtime": ("configs",),
    "model": ("explanation", "runtime", "configs"),
    "serving": ("explanation", "features", "runtime", "configs"),
    "candidates": ("model", "runtime", "configs"),
    "jobs": (
        "candidates",
        "model",
        "serving",
        "pipeline",
        "explanation",
        "features",
        "runtime",
        "configs",
    ),
    "verbs": (
        "jobs",
        "candidates",
        "model",
        "serving",
        "pipeline",
        "explanation",
        "features",
        "runtime",
        "configs",
    ),
}
"""What each package may import beside itself."""

LAYERS = """
configs.errors
configs.sections
configs.presets
configs

features

explanation

runtime

pipeline.core
pipeline.shuffle
pipeline.read
pipeline.label
pipeline.window
pipeline.plan
pipeline.compute
pipeline.sample
pipeline.write
pipeline.stages
pipeline.audit
pipeline

model.backend
model.gates.parts
model.gates.sampled
model.gates
model.moe
model.ranker.heads
model.ranker.factors
model.ranker
model.data
model.checkpoints
model.evaluation.measures
model.baselines
model.evaluation
model.optimizer
model.training
model.export.frozen
model.export
model.assessment
model.report
model

serving.protos
serving.core
serving.client
serving.feature_store
serving.request
serving.mirror
serving.versions
serving.observe
serving.rest
serving.rpc
serving.workers
serving

candidates

jobs.scoring
jobs
jobs.onboarding.tables
jobs.onboarding.feedback
jobs.onboarding
jobs.publication
jobs.trial
jobs.night

verbs
"""
"""Rooms, lowest first; a package's own modules stand where its bare name stands."""

ORDER = {room: place for place, room in enumerate(LAYERS.split())}


def picture() -> str:
    """The rooms and their arrows as docs/architecture.md draws them, in Mermaid's language."""
    lines = ["flowchart LR"]
    for package in reversed(PACKAGES):
        rooms = [room for room in ORDER if room.partition(".")[0] == package]
        own = any(
            module.rpartition(".")[0] == package for module in modules() if module not in ORDER
        )
        inner = [room for room in reversed(rooms) if room != package or own]
        lines += [f'    subgraph {package}_["{package}/"]', "        direction TB"]
        labels = ["*.py" if room == package else room.removeprefix(f"{package}.") for room in inner]
        names = [
            f'{room.replace(".", "_")}["{label}"]'
            for room, label in zip(inner, labels, strict=True)
        ]
        lines.append("        " + " --> ".join(names))
        lines.append("    end")
    for package, imported in PACKAGES.items():
        # What a package may import by way of another needs no arrow of its own.
        indirect = {far for near in imported for far in PACKAGES[near]}
        lines += [f"    {package}_ --> {one}_" for one in imported if one not in indirect]
    return "\n".join(lines)


@cache
def modules() -> dict[str, Path]:
    """Dotted name without `multigate.` -> file, of all product code that people write."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if "_pb2" not in path.name:
                parts = path.relative_to(ROOT).with_suffix("").parts
                found[".".join(parts).removesuffix(".__init__")] = path
    return found


def room_of(module: str) -> str:
    """The room that a module lies in: the longest name of `LAYERS` that begins its own."""
    while module not in ORDER:
        module = module.rpartition(".")[0]
    return module


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Dotted name of each imported module, and the imported name in it; inside functions too."""
    return imports_of(path.read_text())


def imports_of(source: str) -> Iterator[tuple[str, str]]:
    """The same of a module's text; a relative import keeps its dots."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from ((one.value, "") for one in node.args if isinstance(one, ast.Constant))


def our_imports(path: Path) -> Iterator[tuple[str, str]]:
    """Modules of ours that a file imports, and the name taken from each ("" for the module)."""
    return ours_among(imports(path))


def ours_among(imported: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """`our_imports` of all imports."""
    for module, name in imported:
        if not f"{module}.".startswith("multigate."):
            continue
        ours = f"{module}.{name}".removeprefix("multigate.").removesuffix(".")
        if ours in modules():  # `from multigate.model import gates`, `from multigate import model`
            yield ours, ""
        elif module != "multigate":
            yield module.removeprefix("multigate."), name


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import multigate.model.gates", [("model.gates", "")]),
        ("import multigate.model.gates as g", [("model.gates", "")]),
        ("from multigate import model", [("model", "")]),
        ("from multigate import __version__", []),
        ("from multigate.model import gates", [("model.gates", "")]),
        ("from multigate.model.gates import make", [("model.gates", "make")]),
        ("def f():\n    from multigate.model import gates", [("model.gates", "")]),
        ("importlib.import_module('multigate.verbs.command')", [("verbs.command", "")]),
        ("import numpy, multigate_other", []),
    ],
)
def test_every_way_to_import_is_seen(line, found):
    assert list(ours_among(imports_of(line))) == found


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_they_may(package):
    found = 0
    for module, path in modules().items():
        if module.partition(".")[0] == package:
            found += 1
            for imported, _ in our_imports(path):
                other = imported.partition(".")[0]
                assert other in (package, *PACKAGES[package]), f"{path} imports {imported}"
    assert found


def test_every_folder_is_a_room_of_the_rule():
    folders = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in modules().values()
        if path.name != "__init__.py"
    }
    assert folders <= set(ORDER), sorted(folders - set(ORDER))
    assert set(ORDER) <= set(modules()), sorted(set(ORDER) - set(modules()))


def test_the_architecture_draws_this_rule():
    page = (ROOT / "docs/architecture.md").read_text()
    assert f"```mermaid\n{picture()}\n```" in page, f"expected this picture:\n{picture()}"


@pytest.mark.slow
def test_no_room_imports_a_higher_one():
    upward = [
        f"{module} ({room_of(module)}) imports {imported} ({room_of(imported)})"
        for module, path in modules().items()
        for imported, _ in our_imports(path)
        if module.partition(".")[0] == imported.partition(".")[0]
        and ORDER[room_of(imported)] > ORDER[room_of(module)]
    ]
    assert not upward, "\n".join(upward)


@pytest.mark.slow
def test_no_circles_of_modules():
    """Not even by way of an import inside a function, or of a room's `__init__`."""
    graph = {
        module: {imported for imported, _ in our_imports(path)} - {module}
        for module, path in modules().items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.slow
def test_rooms_take_no_private_name_of_another():
    taken = [
        f"{path}: {imported}.{name}"
        for module, path in modules().items()
        for imported, name in our_imports(path)
        if name.startswith("_") and room_of(module) != room_of(imported)
    ]
    assert not taken, "\n".join(taken)


@pytest.mark.slow
def test_every_import_of_ours_is_under_the_one_name():
    """`import model` would work in a checkout and nowhere else."""
    for path in [*modules().values(), *(ROOT / "tests").rglob("*.py")]:
        for module, _ in imports(path):
            assert module.partition(".")[0] not in PACKAGES, f"{path} imports {module}"
            assert not module.startswith("."), f"{path}: expected an absolute import, got {module}"


@pytest.mark.parametrize("module", sorted(modules()))
def test_jobs_do_not_know_the_command(module):
    if not module.startswith("verbs"):
        assert not any(m.startswith("verbs") for m, _ in our_imports(modules()[module])), module


def imported_by(path: Path) -> set[str]:
    """Top-level names of all imports of a file."""
    return {module.partition(".")[0] for module, _ in imports(path)}


def test_candidates_import_only_what_knows_no_keras_of_the_model():
    """Keras 2 and Keras 3 never meet.

    The models share the encoding of values, the measure of unknown ids and the freezing.
    """
    shared = {
        "model.data.encoding",
        "model.data.raw",
        "model.data.rows",
        "model.export.freezing",
        "model.export.frozen.encoding",
        "model.data.unknown_ids",
    }
    for module, path in modules().items():
        if module.startswith("candidates"):
            taken = {m for m, _ in our_imports(path) if m.startswith("model")}
            assert taken <= shared, f"{path}: {taken - shared}"
    for module in shared:
        room = module.rpartition(".")[0]
        for name in (module, room, room.rpartition(".")[0]):
            assert not imported_by(modules()[name]) & {"keras", "tf_keras"}, name


@pytest.mark.slow
def test_only_candidates_import_keras_2():
    for module, path in modules().items():
        if not module.startswith("candidates"):
            assert not imported_by(path) & {"tf_keras", "tensorflow_recommenders"}, path


def test_serving_never_imports_keras():
    for module, path in modules().items():
        if module.startswith(("serving", "runtime")):
            assert not imported_by(path) & {"keras", "tf_keras"}, path


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        (
            "multigate",
            ["tensorflow", "keras", "apache_beam", "polars", "numpy", "grpc", "pydantic"],
        ),
        ("multigate.configs", ["tensorflow", "keras", "apache_beam", "polars", "numpy", "grpc"]),
        (
            "multigate.verbs.command",
            ["tensorflow", "keras", "apache_beam", "polars", "numpy", "grpc"],
        ),
        ("multigate.serving.client", ["tensorflow", "keras", "apache_beam", "numpy", "pydantic"]),
    ],
)
def test_light_modules_stay_light(module, absent):
    code = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
