"""Health probe for containers: asks a server for its health. Exit status 0: it serves.

python -m multigate.serving.client.probe --target localhost:8500 --service liveness
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from multigate.configs.errors import ServingError
from multigate.serving.core.security import client_credentials


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the server's health and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m multigate.serving.client.probe", description=__doc__
    )
    parser.add_argument("--target", default="localhost:8500", help="host:port of the server")
    parser.add_argument("--service", default="", help="liveness, or empty for readiness (default)")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds (default: 5)")
    parser.add_argument("--tls", action="store_true", help="connect with TLS")
    parser.add_argument("--ca", type=Path, help="PEM file of the certificates to trust")
    parser.add_argument("--certificate", type=Path, help="PEM file of the client's certificate")
    parser.add_argument("--key", type=Path, help="PEM file of the certificate's private key")
    options = parser.parse_args(arguments)
    request = health_pb2.HealthCheckRequest(service=options.service)
    try:
        channel = _channel(options)
    except ServingError as error:
        print(error, file=sys.stderr)
        return 1
    with channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=options.timeout)
        except grpc.RpcError as error:
            print(f"{options.target}: {error.code().name}: {error.details()}", file=sys.stderr)
            return 1
    print(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
    return 0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1


def _channel(options: argparse.Namespace) -> Any:
    files = options.ca, options.certificate, options.key
    if options.tls or any(files):
        return grpc.secure_channel(options.target, client_credentials(*files))
    return grpc.insecure_channel(options.target)


if __name__ == "__main__":
    sys.exit(main())
