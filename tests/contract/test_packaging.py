"""What an environment gets is one name, `multigate`, with all that belongs to it."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
"""The repository's packages, which are installed under `multigate`."""

DATA = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("configs/presets/*.yaml", "serving/protos/*.proto")
    for path in ROOT.glob(pattern)
)


def product_files() -> set[str]:
    """Modules, their stubs and data files, by their names in the package."""
    modules = {
        path.relative_to(ROOT).as_posix()
        for name in FOLDERS
        for path in (ROOT / name).rglob("*")
        if path.suffix in (".py", ".pyi")
    }
    return modules | set(DATA) | {path.name for path in (ROOT / "src/multigate").glob("*.py")}


def python(*arguments: object, cwd: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run the interpreter in a folder, with folders before what is installed."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_installed_project_adds_one_name(tmp_path):
    """The folders of the checkout cannot be imported from elsewhere, only `multigate`."""
    code = (
        "import importlib.util, sys\n"
        "print(*(n for n in sys.argv[1:] if importlib.util.find_spec(n) is not None))"
    )
    others = (*FOLDERS, "tests", "benchmarks", "docs", "deploy", "src")
    found = python("-c", code, "multigate", *others, cwd=tmp_path)
    assert (found.stdout, found.stderr) == ("multigate\n", "")
    beside = [path.name for path in (ROOT / "src").iterdir() if path.suffix != ".egg-info"]
    assert beside == ["multigate"]


def decoys(folder: Path) -> Path:
    """Somebody else's modules with the names of our folders, which must not be imported."""
    folder.mkdir()
    for name in FOLDERS:
        if name == "model":
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text("raise RuntimeError('decoy')\n")
        else:
            (folder / f"{name}.py").write_text("raise RuntimeError('decoy')\n")
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy that no earlier build has left anything in."""
    source = tmp_path_factory.mktemp("source")
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", *FOLDERS):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=skip)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    out = tmp_path_factory.mktemp("wheel")
    uv(
        *("build", "--wheel", "--no-build-isolation", "--offline", "--python", sys.executable),
        *("--out-dir", out, source),
    )
    (path,) = out.glob("*.whl")
    return path


def uv(*arguments: object) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("uv"), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_wheel_holds_one_name_and_all_files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    ours = {name.removeprefix("multigate/") for name in names if name.startswith("multigate/")}
    assert ours == product_files()
    assert {name.partition("/")[0] for name in names} == {"multigate", "multigate-0.1.0.dist-info"}


@pytest.mark.slow
def test_the_installed_wheel_works_beside_other_packages_of_these_names(wheel, tmp_path):
    target = tmp_path / "installed"
    uv("pip", "install", "--quiet", "--offline", "--no-deps", "--python", sys.executable,
       "--target", target, wheel)  # fmt: skip
    assert {path.name for path in target.iterdir() if not path.name.startswith(".")} <= {
        "multigate", "multigate-0.1.0.dist-info", "bin",
    }  # fmt: skip
    work, runs = decoys(tmp_path / "work"), tmp_path / "runs"
    runs.mkdir()

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        return python(*arguments, cwd=work, path=str(target))

    where = call("-c", "import multigate; print(multigate.__file__)")
    assert where.stdout == f"{target}/multigate/__init__.py\n", where.stderr
    assert call("-m", "multigate", "--version").stdout == "multigate 0.1.0\n"
    assert call("-m", "multigate", "train", "--help").returncode == 0
    listed = call("-m", "multigate", "runs", "--out", runs, "--json")
    assert (listed.returncode, listed.stdout) == (0, '{"runs": []}\n')
    preset = call(
        *("-m", "multigate", "examples", "--config", "deskdrop", "--data", tmp_path / "no"),
        *("--out", tmp_path / "out"),
    )
    assert preset.returncode == 2
    assert preset.stderr.startswith(f"error: {tmp_path}/no: no such folder")
    simulated = call(
        "-c",
        "from multigate.pipeline import job\n"
        "from multigate.configs import load\n"
        "from multigate.jobs.simulate import simulate\n"
        "from pathlib import Path\n"
        "simulate(Path('log'), seed=1, users=50, items=30, exposures=3000)\n"
        "job.run(load('demo'), Path('log'), Path('examples'))\n",
    )
    assert simulated.returncode == 0, simulated.stderr
    assert (work / "examples/manifest.json").is_file()


def image(stage: str, folder: Path) -> Path:
    """The folder /app of an image, as the COPY lines of the Dockerfile lay it out."""
    text = (ROOT / "Dockerfile").read_text()
    lines = re.split(r"^FROM .* AS (\w+)$", text, flags=re.MULTILINE)
    section = dict(zip(lines[1::2], lines[2::2], strict=True))[stage]
    folder.mkdir()
    for source, target in re.findall(r"^COPY (\S+) (multigate\S*)$", section, re.MULTILINE):
        if "*" in source:
            (folder / target).mkdir(parents=True, exist_ok=True)
            for path in ROOT.glob(source):
                shutil.copy(path, folder / target)
        else:
            shutil.copytree(
                ROOT / source, folder / target, ignore=shutil.ignore_patterns("__pycache__")
            )
    return folder


ABSENT = {"training": set(), "serving": {"candidates", "jobs", "model", "pipeline"}}


@pytest.mark.parametrize("stage", ABSENT)
def test_the_images_hold_the_package_and_answer(stage, tmp_path):
    app = image(stage, tmp_path / "app")
    here = {
        path.relative_to(app / "multigate").as_posix()
        for path in app.rglob("*")
        if path.is_file() and path.suffix in (".py", ".pyi", ".yaml", ".proto")
    }
    assert here == {file for file in product_files() if file.split("/")[0] not in ABSENT[stage]}
    where = python("-c", "import multigate; print(multigate.__file__)", cwd=app)
    assert where.stdout == f"{app}/multigate/__init__.py\n", where.stderr
    for arguments in (("--help",), ("--version",), ("serve", "--help"), ("rank", "--help")):
        done = python("-m", "multigate", *arguments, cwd=app)
        assert (done.returncode, done.stderr) == (0, ""), arguments
    if stage == "training":
        done = python("-m", "multigate", "examples", "--config", "demo", "--data", "no", "--out",
                      tmp_path / "out", cwd=app)  # fmt: skip
        assert done.stderr.startswith("error: no: no such folder")
