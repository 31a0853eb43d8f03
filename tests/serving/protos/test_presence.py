"""Fields that may be absent are oneofs of one field: presence and bytes as of proto3's `optional`.

protoc before 3.15, and tools built on it, refuse `optional`.
"""

import json
import subprocess

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from multigate.serving.protos import health_pb2, ranking_pb2, ssl_config_pb2

FIELDS = [
    ("Floor", "min", [-1.5, 0.0]),
    ("Floor", "max", [2.5, 0.0]),
    ("RecommendResponse", "candidates_version", [7, 0, -1]),
]


@pytest.fixture(scope="module")
def former():
    """The messages as they were: with these fields `optional`."""
    file = descriptor_pb2.FileDescriptorProto()
    ranking_pb2.DESCRIPTOR.CopyToProto(file)
    for message in file.message_type:
        places = {}
        for field in message.field:
            if (message.name, field.name) in {(name, field) for name, field, _ in FIELDS}:
                field.proto3_optional = True
                choice = message.oneof_decl[field.oneof_index]
                choice.name = f"_{field.name}"
                places[field.name] = choice.name
        assert len(places) == sum(name == message.name for name, _, _ in FIELDS)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return lambda name: message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"multigate.{name}")
    )


@pytest.mark.parametrize(("message", "field", "values"), FIELDS)
def test_presence_and_bytes_are_those_of_optional(former, message, field, values):
    now, before = getattr(ranking_pb2, message), former(message)
    for value in values:
        new, old = now(**{field: value}), before(**{field: value})
        assert new.SerializeToString() == old.SerializeToString() != b""
        assert before.FromString(new.SerializeToString()).HasField(field)
        read = now.FromString(old.SerializeToString())
        assert read.HasField(field)
        assert getattr(read, field) == value
    empty = now(**{field: None})
    assert not empty.HasField(field)
    assert empty.SerializeToString() == before().SerializeToString() == b""


def test_both_limits_of_a_floor_stand_side_by_side(former):
    """Each has a oneof of its own."""
    both = ranking_pb2.Floor(min=0, max=1)
    assert both.HasField("min")
    assert both.HasField("max")
    assert both.SerializeToString() == former("Floor")(min=0, max=1).SerializeToString()


@pytest.mark.parametrize("module", [ranking_pb2, health_pb2, ssl_config_pb2])
def test_no_field_is_optional(module):
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    fields = [(m.name, f.name) for m in file.message_type for f in m.field if f.proto3_optional]
    assert fields == []


def test_the_messages_of_health_have_the_bytes_of_grpcs():
    from grpc_health.v1 import health_pb2 as grpcs

    asked = health_pb2.HealthCheckRequest(service="liveness")
    assert (
        asked.SerializeToString()
        == grpcs.HealthCheckRequest(service="liveness").SerializeToString()
    )
    for name, number in grpcs.HealthCheckResponse.ServingStatus.items():
        answer = grpcs.HealthCheckResponse(status=number).SerializeToString()
        read = health_pb2.HealthCheckResponse.FromString(answer)
        assert health_pb2.ServingStatus.Name(read.status) == name


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_old_load_generator_ranks_by_reflection(running, go_tool, tmp_path):
    ghz = go_tool("github.com/bojand/ghz/cmd/ghz", "v0.93.0")
    request = {
        "model": {"name": "small"},
        "user": {"user_id": {"text": "u1"}},
        "context": {"hour": {"integer": 9}},
        "candidates": {
            "item_id": {"texts": {"values": ["i1", "i2", "i3"]}},
            "columns": {"length": {"numbers": {"values": [1, 2, 3]}}},
        },
        "floors": {"click": {"min": 0}},
    }
    report = tmp_path / "report.json"
    command = [ghz, "--insecure", "--call", "multigate.RankingService.Rank", "--total", "20"]
    command += ["--data", json.dumps(request), "--format", "json", "--output", report]
    done = subprocess.run(
        [*command, running.target], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(report.read_text())["statusCodeDistribution"] == {"OK": 20}
