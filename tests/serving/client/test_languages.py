"""The worked clients of clients/: built from their registries, against a live server.

Each takes its packages from its own package manager's cache, or from the registry; what is built
after that asks no registry.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from concurrent import futures
from pathlib import Path

import grpc
import numpy as np
import pytest
from tests.registries import fetch

from multigate.serving.client import RankClient
from multigate.serving.client.rank_client import SERVICE_CONFIG
from multigate.serving.protos import ranking_pb2, ranking_pb2_grpc

ROOT = Path(__file__).parents[3]
LANGUAGES = {
    "typescript": {
        "programs": ("node", "npm"),
        "download": ["npm", "ci", "--no-audit", "--no-fund"],
        "build": (["npm", "run", "build"],),
        "rank": ["node", "dist/rank.js"],
    },
    "go": {
        "programs": ("go",),
        "download": ["go", "mod", "download"],
        "build": (["go", "generate"], ["go", "vet", "."], ["go", "build", "-o", "rank", "."]),
        "rank": ["./rank"],
    },
    "java": {
        "programs": ("java", "mvn"),
        # Without our code: Maven learns of its plugins' own downloads by running them.
        "download": ["mvn", "--batch-mode", "--quiet", "package", "-Dmaven.main.skip"],
        "build": (["mvn", "--batch-mode", "--quiet", "--offline", "package"],),
        "rank": ["java", "-jar", "target/rank.jar"],
    },
}
NOT_HERE = (
    "ENOTFOUND|ETIMEDOUT|ECONNRE|EAI_AGAIN|no such host|UnknownHost|[Tt]imed out|timeout|"
    "[Cc]onnection re|Could not transfer|50[234] |requires go >=|invalid go version|"
    "was not done within"
)
"""What package managers say of a registry that is not reached, and Go of its age."""
PATIENCE = 300  # seconds for a download
TOKEN = "not-to-be-shown"
NO_ADDRESS = ["", "localhost", "localhost:", "localhost:port", "localhost:65536", "localhost:0"]
NO_ADDRESS += [":8500", "::1", "local host:1"]
REQUEST = {
    "model": {"name": "small"},
    "user": {"user_id": {"text": "u1"}},
    "context": {"hour": {"integer": 9}},
    "candidates": {
        "item_id": {"texts": {"values": ["i1", "i2", "i3"]}},
        "columns": {"length": {"numbers": {"values": [1, 2.5, 3]}}},
    },
    "floors": {"click": {"min": 0}},
    "returns": "TASK_SCORES",
}


def built(language, folder, lacking):
    """The folder of a client, built from a copy without what an earlier build left."""
    how = LANGUAGES[language]
    for program in how["programs"]:
        if shutil.which(program) is None:
            lacking(f"clients/{language}: {program} is not installed")
    skip = shutil.ignore_patterns(
        *("node_modules", "dist", "generated", "target", ".tools", "ranking", "rank")
    )
    project = folder / "clients" / language
    shutil.copytree(ROOT / "clients" / language, project, ignore=skip)
    shutil.copytree(ROOT / "serving" / "protos", folder / "serving" / "protos")
    # Go's build asks for protoc, which here is the one that makes the Python code.
    protoc = folder / "bin" / "protoc"
    protoc.parent.mkdir()
    protoc.write_text(f'#!/bin/sh\nexec {sys.executable} -m grpc_tools.protoc "$@"\n')
    protoc.chmod(0o755)
    environment = {**os.environ, "PATH": f"{protoc.parent}:{os.environ['PATH']}"}
    done = fetch(how["download"], cwd=project, env=environment, timeout=PATIENCE)
    said = done.stdout + done.stderr
    if done.returncode and re.search(NOT_HERE, said):
        lacking(f"clients/{language}: no registry, or an old tool: {said[-300:]}")
    assert done.returncode == 0, f"{' '.join(how['download'])}: {said[-3000:]}"
    environment |= {"GOPROXY": "off", "npm_config_offline": "true"}
    for command in how["build"]:
        done = subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, check=False
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{' '.join(command)}: {said[-3000:]}"
    return project


@pytest.fixture(scope="module", params=LANGUAGES)
def ranks(request, tmp_path_factory, lacking):
    """A client's program: from target and options to its exit status and output."""
    project = built(request.param, tmp_path_factory.mktemp(request.param), lacking)

    def rank(target, *options, asked=REQUEST):
        return subprocess.run(
            [*LANGUAGES[request.param]["rank"], "--target", target, *options],
            cwd=project,
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            check=False,
        )

    return rank


class Demanding(ranking_pb2_grpc.RankingServiceServicer):
    """Wants a token, is not ready at first, and may never answer."""

    def __init__(self):
        self.failures = 2
        self.released = threading.Event()

    def Rank(self, request, context):
        if ("authorization", f"Bearer {TOKEN}") not in context.invocation_metadata():
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
        if request.request_id == "never":
            self.released.wait(120)
        if self.failures:
            self.failures -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        ids = ranking_pb2.ItemIds(integers=ranking_pb2.Integers(values=[-(2**62), 2**62]))
        return ranking_pb2.RankResponse(item_index=[1, 0], item_id=ids, score=[0.5, 0.25])


@pytest.fixture
def demanding():
    service = Demanding()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    ranking_pb2_grpc.add_RankingServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    service.released.set()
    server.stop(0).wait()


def parsed(line):
    """The item id and the scores of a printed line."""
    item, *scores = line.split("\t")
    named = (one.split("=") for one in scores)
    return item, {name: np.float32(value) for name, value in named}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_client_ranks_as_the_python_client_does(ranks, running):
    with RankClient(running.target, timeout=120) as client:
        expected = client.rank(
            "small",
            user={"user_id": "u1"},
            context={"hour": 9},
            item_ids=["i1", "i2", "i3"],
            columns={"length": [1, 2.5, 3]},
            floors={"click": (0, None)},
        )
    done = ranks(running.target, "--timeout", "60")
    assert done.returncode == 0, done.stderr
    found = [parsed(line) for line in done.stdout.splitlines()]
    assert found == [
        (item["item_id"], {"score": item["score"], **item["tasks"]}) for item in expected
    ]
    assert len(found) == 3
    assert done.stderr.splitlines() == expected.warnings


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_client_retries_and_shows_its_token(ranks, demanding):
    done = ranks(demanding, "--token", TOKEN, "--timeout", "60")
    assert (done.returncode, done.stderr) == (0, "")
    found = [parsed(line) for line in done.stdout.splitlines()]
    assert found == [(str(-(2**62)), {"score": 0.5}), (str(2**62), {"score": 0.25})]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("options", "asked", "status"),
    [
        ((), REQUEST, "unauthenticated"),
        (("--token", TOKEN, "--timeout", "0.5"), {"request_id": "never"}, "deadlineexceeded"),
    ],
)
def test_a_client_says_why_a_call_failed(ranks, demanding, options, asked, status):
    done = ranks(demanding, *options, asked=asked)
    assert (done.returncode, done.stdout) == (1, "")
    target, _, said = done.stderr.strip().partition(": ")
    assert target == demanding
    assert said.partition(":")[0].replace("_", "").lower() == status


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", [*NO_ADDRESS, "http://localhost:8500", "localhost:8500/v1"])
def test_a_client_refuses_a_target_that_is_no_address(ranks, target):
    done = ranks(target)
    message = f'target: expected host:port of a gRPC server, received "{target}"\n'
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_target_may_name_its_scheme(ranks, demanding):
    done = ranks(f"dns:///{demanding}", "--token", TOKEN, "--timeout", "60")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("options", "said"),
    [((), "refused"), (("--ca", "/absent.pem"), "absent.pem")],
)
def test_a_client_says_why_it_has_no_connection(ranks, options, said):
    done = ranks("127.0.0.1:1", "--timeout", "60", *options)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr.lower()
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("folder", ["typescript", "go", "java/src/main/resources"])
def test_every_client_has_the_same_service_config(folder):
    config = json.loads((ROOT / "clients" / folder / "service_config.json").read_text())
    assert config == SERVICE_CONFIG


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_client_has_messages_of_its_own(language):
    """They are made from serving/protos/ranking.proto."""
    listed = subprocess.run(
        ["git", "ls-files", f"clients/{language}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert listed
    assert not [path for path in listed if re.search(r"\.proto$|pb\.go$|generated|_pb", path)]
