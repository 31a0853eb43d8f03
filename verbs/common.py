"""Options that several verbs have, and an import of TensorFlow without its notices."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from multigate.configs.storage import place
from multigate.runtime import start


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add `--json` and `--quiet`, which verbs with a result have."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the result as one JSON object on standard output, and all else on standard "
        "error",
    )
    parser.add_argument(
        "--quiet",
        action="store_true",
        help="show no progress, which else goes to standard error; its bars to a terminal only",
    )


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add `--config`."""
    parser.add_argument("--config", required=True, help="preset or YAML file")


def add_examples(parser: argparse.ArgumentParser) -> None:
    """Add `--examples` and `--days`; `verbs.inputs.gather_examples` reads them."""
    parser.add_argument(
        "--examples",
        nargs="+",
        required=True,
        metavar="FOLDER",
        help="folder of examples, or its address; several, or a glob in quotes, are read as one",
    )
    parser.add_argument(
        "--days",
        type=int,
        metavar="N",
        help="--examples is a folder of runs: take those of the last N days",
    )


def add_forget(parser: argparse.ArgumentParser) -> None:
    """Add `--forget`."""
    parser.add_argument(
        "--forget", type=place, metavar="FILE", help="ids of users to leave out, one a line"
    )


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add `--checkpoint`."""
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder that train wrote")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add `--checkpoint` and `--version`; exactly one of them must be given."""
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--checkpoint", type=Path, help="folder that train wrote")
    either.add_argument("--version", type=Path, help="folder that export wrote, with its number")


def add_caller(parser: argparse.ArgumentParser) -> None:
    """Add the options of verbs that call a server."""
    add_connection(parser)
    parser.add_argument("--model", required=True, help="model name")
    parser.add_argument("--user", type=json_object, default={}, help="user features, JSON")
    parser.add_argument("--context", type=json_object, default={}, help="context features, JSON")
    parser.add_argument("--weights", type=json_object, help="task weights, JSON: task -> number")
    parser.add_argument(
        "--floors",
        type=json_object,
        help="scores that an item must have, JSON: task -> [lowest or null, highest or null]",
    )
    parser.add_argument("--limit", type=int, help="return at most this many items")


def add_connection(
    parser: argparse.ArgumentParser,
    target: str | None = "localhost:8500",
    timeout: float = 5.0,
) -> None:
    """Add the options of a connection to a server."""
    parser.add_argument("--target", default=target, help="host:port of the server")
    parser.add_argument("--tls", action="store_true", help="encrypt, trusting the system's CAs")
    parser.add_argument("--ca", type=Path, help="PEM file of the CAs to trust; encrypts")
    parser.add_argument(
        "--certificate", type=Path, help="PEM file of the client's certificate; encrypts"
    )
    parser.add_argument("--key", type=Path, help="PEM file of the certificate's private key")
    parser.add_argument("--token_file", type=Path, help="file whose first line is a bearer token")
    parser.add_argument(
        "--timeout",
        type=float,
        default=timeout,
        help=f"seconds to wait for an answer (default: {timeout:g})",
    )


def connect(options: argparse.Namespace) -> Any:
    """A client with the options of `add_caller`."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our one line says what its log would
    from multigate.serving.client.rank_client import RankClient
    from multigate.serving.core.security import read_tokens

    return RankClient(
        options.target,
        timeout=options.timeout,
        tls=options.tls,
        ca=options.ca,
        certificate=options.certificate,
        key=options.key,
        token=read_tokens(options.token_file)[0] if options.token_file else "",
    )


def evaluation_options(source: str | None) -> Any:
    """The section `evaluation` of a configuration file; None where no file is given."""
    if source is None:
        return None
    from multigate.configs import load

    return load(source).evaluation


def json_object(text: str) -> dict[str, Any]:
    """An argument that is a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, received {text!r}")
    return value


def import_backend() -> None:
    """Import what Keras trains on, without start-up notices, see `import_tensorflow`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    start.import_backend()


def import_tensorflow() -> None:
    """Import TensorFlow without its start-up notices, which no setting of TensorFlow silences.

    Its errors come as exceptions; what it prints as an error in a run, such as which processors
    oneDNN has a kernel for, is none.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    start.import_tensorflow()
