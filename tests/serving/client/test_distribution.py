"""`multigate-client`: the client alone, under a name of its own, on every Python that is here."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from tests.registries import fetch

from multigate.serving.client import RankClient

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "clients" / "python" / "pyproject.toml").read_text())["project"]
NAME = "multigate_client"

RANK = """
import json, sys

def rank(module, target):
    with module.RankClient(target, timeout=120) as client:
        assert client.health() == "SERVING"
        try:
            client.rank("absent", user={}, item_ids=["i1"])
        except module.CallError as error:
            assert error.code == "NOT_FOUND", error
        return client.rank(**CALL)

CALL = json.loads(sys.argv[2])
"""
ALONE = """
import multigate_client
print(json.dumps(rank(multigate_client, sys.argv[1])))
heavy = {"tensorflow", "tensorflow_serving", "numpy", "multigate", "pydantic", "grpc_health"}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
CALL = {
    "model": "small",
    "user": {"user_id": "u1", "age": None},
    "context": {"hour": 9},
    "item_ids": ["i1", "i2", "i3"],
    "columns": {"length": [1, 2.5, 3], "tags": [["a"], [], ["b", "c"]]},
    "floors": {"click": [0, None]},
}


def uv(*arguments):
    done = fetch([Path(sys.executable).with_name("uv"), *map(str, arguments)])
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built twice over: a source distribution from the repository, and the wheel from that."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    skip = shutil.ignore_patterns("__pycache__", NAME, "build", "*.egg-info", "node_modules")
    for name in ("clients/python", "serving", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=skip)
    status, said = uv(
        *("build", "--no-build-isolation", "--offline", "--python", sys.executable),
        *("--out-dir", out, source / "clients" / "python"),
    )
    assert status == 0, said
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    """The package in a folder of its own, beside this environment's grpcio and protobuf."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(code, python, running, path=()):
    """Standard output and error of code that ranks against the server."""
    done = subprocess.run(
        [python, "-W", "error", "-c", RANK + code, running.target, json.dumps(CALL)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(map(str, path))},
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def expected(running):
    """What the project's own client gets."""
    with RankClient(running.target, timeout=120) as client:
        ranked = client.rank(**CALL)
    assert len(ranked) == 3
    return json.loads(json.dumps(ranked))


def test_the_wheel_has_one_name_and_needs_two_packages(wheel, unpacked):
    version = PROJECT["version"]
    assert {path.name for path in unpacked.iterdir()} == {NAME, f"{NAME}-{version}.dist-info"}
    assert version == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    needed = [re.match(r"[a-z]+", one)[0] for one in PROJECT["dependencies"]]
    assert needed == ["grpcio", "protobuf"]
    for path in (unpacked / NAME).rglob("*.py"):
        imported = re.findall(r"^\s*(?:import|from) ([a-z_]+)", path.read_text(), re.MULTILINE)
        assert "multigate" not in imported, path
    assert (unpacked / NAME / "protos" / "ranking.proto").read_text() == (
        ROOT / "serving" / "protos" / "ranking.proto"
    ).read_text()


def test_the_declared_versions_are_those_that_the_generated_code_asks_for(unpacked):
    """Their errors would come at import, not when the package is installed."""
    protos = unpacked / NAME / "protos"
    messages = (protos / "ranking_pb2.py").read_text()
    asked = re.search(r"^# Protobuf Python Version: ([\d.]+)$", messages, re.MULTILINE)[1]
    grpcs = (protos / "ranking_pb2_grpc.py").read_text()
    service = re.search(r"^GRPC_GENERATED_VERSION = '([\d.]+)'$", grpcs, re.MULTILINE)[1]
    above = int(asked.partition(".")[0]) + 2  # a release reads the code of the one before
    assert PROJECT["dependencies"] == [f"grpcio>={service}", f"protobuf>={asked},<{above}"]


def test_it_ranks_without_the_rest_of_the_project(unpacked, running, expected):
    site = unpacked / "site"  # this environment's packages without `multigate` itself
    site.mkdir()
    for name in ("grpc", "google", "typing_extensions.py"):
        (package,) = (path for path in map(Path, sys.path) if (path / name).exists())
        (site / name).symlink_to(package / name)
    done = run(ALONE, Path(sys._base_executable), running, [unpacked, site])
    assert json.loads(done.stdout) == expected
    assert done.stderr == "[]\n"


@pytest.mark.parametrize(
    "order", [(NAME, "multigate.serving.client"), ("multigate.serving.client", NAME)]
)
def test_both_packages_share_a_process(order, unpacked, running, expected):
    code = f"import {order[0]}, {order[1]}\n" + (
        "import multigate.serving.client as ours, multigate_client as theirs\n"
        "print(json.dumps([rank(module, sys.argv[1]) for module in (ours, theirs)]))\n"
    )
    done = run(code, sys.executable, running, [unpacked, ROOT / "src"])
    assert json.loads(done.stdout) == [expected, expected]


def test_messages_of_another_release_share_a_process(unpacked, running, expected):
    code = (
        "from google.protobuf import descriptor_pb2, descriptor_pool\n"
        "file = descriptor_pb2.FileDescriptorProto(package='multigate', syntax='proto3')\n"
        "file.name = 'multigate/serving/protos/ranking.proto'\n"
        "file.message_type.add(name='RankRequest').field.add(\n"
        "    name='other', number=1, type='TYPE_STRING', label='LABEL_OPTIONAL')\n"
        "descriptor_pool.Default().AddSerializedFile(file.SerializeToString())\n"
    )
    done = run(code + ALONE, sys.executable, running, [unpacked])
    assert json.loads(done.stdout) == expected


def interpreters():
    """One Python of every minor version that is here and that the package is for."""
    oldest = tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))
    places = [
        *Path.home().glob(".pyenv/versions/*/bin/python3.*"),
        *Path("/usr/bin").glob("python3.*"),
    ]
    found = {}
    for path in sorted(places, reverse=True):
        if version := re.fullmatch(r"python3\.(\d+)", path.name):
            found[3, int(version[1])] = path
    return {
        f"3.{minor}": path for (_, minor), path in sorted(found.items()) if (3, minor) >= oldest
    }


@pytest.mark.slow
@pytest.mark.parametrize("version", interpreters())
def test_it_installs_and_ranks_on_every_python(
    version, wheel, running, expected, lacking, tmp_path
):
    environment = tmp_path / "environment"
    status, said = uv("venv", "--python", interpreters()[version], environment)
    assert status == 0, said
    python = environment / "bin" / "python"
    status, said = uv("pip", "install", "--python", python, wheel)
    if status and "multigate" not in said.partition("Caused by")[2]:
        lacking(f"grpcio and protobuf for Python {version} did not come: {said[-300:]}")
    assert status == 0, said
    done = run(ALONE, python, running)
    assert json.loads(done.stdout) == expected
    (site,) = environment.glob("lib/python*/site-packages")
    ours = {path.name for path in site.iterdir() if path.name.startswith("multigate")}
    assert ours == {NAME, f"{NAME}-{PROJECT['version']}.dist-info"}
    probe = [python, "-m", f"{NAME}.probe", "--target", running.target, "--timeout", "60"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "SERVING\n"), done.stderr
