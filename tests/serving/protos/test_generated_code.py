"""The generated code is the proto's."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROTOS = (
    "multigate/serving/protos/health.proto",
    "multigate/serving/protos/ranking.proto",
    "multigate/serving/protos/ssl_config.proto",
)
GENERATED = (
    "health_pb2.py",
    "health_pb2.pyi",
    "ranking_pb2.py",
    "ranking_pb2.pyi",
    "ranking_pb2_grpc.py",
    "ssl_config_pb2.py",
    "ssl_config_pb2.pyi",
    "ssl_config_pb2_grpc.py",
)


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory):
    out = tmp_path_factory.mktemp("protos")
    outputs = (f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "src", *outputs]
    subprocess.run([*command, *PROTOS], cwd=ROOT, check=True)
    return out / "multigate/serving/protos"


@pytest.mark.parametrize("name", GENERATED)
def test_generated_code_is_up_to_date(regenerated, name):
    committed = (ROOT / "serving" / "protos" / name).read_text()
    assert committed == (regenerated / name).read_text(), "run `make protos`"
