"""Health probe for containers: asks a server for its health. Exit status 0: it serves.

python -m multigate.serving.client.probe --target localhost:8500 --service liveness
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from multigate.configs.errors import ServingError
from multigate.serving.client.rank_client import RankClient


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
    try:
        with RankClient(
            options.target,
            timeout=options.timeout,
            tls=options.tls,
            ca=options.ca,
            certificate=options.certificate,
            key=options.key,
        ) as client:
            health = client.health(options.service)
    except ServingError as error:
        print(error, file=sys.stderr)
        return 1
    print(health)
    return 0 if health == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main())
