"""The import rule: which package may know which."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {"configs", "features", "pipeline", "model", "serving", "jobs", "candidates", "multigate"}
MAY_IMPORT = {
    "configs": {"configs"},
    "features": {"features", "configs"},
    "pipeline": {"pipeline", "features", "configs"},
    "model": {"model", "configs"},
    "serving": {"serving", "features", "configs"},
    "candidates": {"candidates", "model", "configs"},
}


def imported_by(path: Path) -> set[str]:
    """Top-level names of all imports of a file, those inside functions included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_only_what_they_may(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        forbidden = (imported_by(path) & OURS) - MAY_IMPORT[package]
        assert not forbidden, f"{path} imports {', '.join(sorted(forbidden))}"


def test_candidates_import_only_what_knows_no_keras_of_the_model():
    """Keras 2 and Keras 3 never meet: what both models share is the encoding of raw values."""
    shared = {"encoding", "encoding_tensorflow", "raw", "rows"}
    for path in (ROOT / "candidates").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("model"):
                assert node.module.partition(".")[2] in shared, f"{path}: {node.module}"
    for name in shared:
        assert not imported_by(ROOT / "model" / f"{name}.py") & {"keras", "tf_keras"}, name


def test_only_candidates_import_keras_2():
    for package in OURS - {"candidates", "multigate"}:
        for path in (ROOT / package).rglob("*.py"):
            forbidden = imported_by(path) & {"tf_keras", "tensorflow_recommenders", "candidates"}
            assert not forbidden - ({"candidates"} if package == "jobs" else set()), path


def test_serving_never_imports_keras():
    for path in (ROOT / "serving").rglob("*.py"):
        assert not imported_by(path) & {"keras", "tf_keras"}, path


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("configs", ["tensorflow", "keras", "apache_beam", "polars", "numpy", "grpc"]),
        ("multigate", ["tensorflow", "keras", "apache_beam", "polars", "numpy", "grpc"]),
        ("serving.client", ["tensorflow", "keras", "apache_beam", "numpy"]),
    ],
)
def test_light_modules_stay_light(module, absent):
    code = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
