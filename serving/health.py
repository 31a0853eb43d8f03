"""Asks a server for its health; for probes of containers. Exit status 0: it serves.

python -m serving.health --target localhost:8500 --service liveness
"""

import argparse
import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, print the answer, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m serving.health", description=__doc__)
    parser.add_argument("--target", default="localhost:8500", help="host:port of the server")
    parser.add_argument("--service", default="", help="liveness; readiness where absent")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds (default: 5)")
    options = parser.parse_args(arguments)
    request = health_pb2.HealthCheckRequest(service=options.service)
    with grpc.insecure_channel(options.target) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=options.timeout)
        except grpc.RpcError as error:
            print(f"{options.target}: {error.code().name}: {error.details()}", file=sys.stderr)
            return 1
    print(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
    return 0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main())
