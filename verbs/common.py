"""What the verbs share: options, and a quiet import of TensorFlow."""

import argparse
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add `--config`."""
    parser.add_argument("--config", required=True, help="preset or YAML file")


def add_examples(parser: argparse.ArgumentParser) -> None:
    """Add `--examples`."""
    parser.add_argument("--examples", type=Path, required=True, help="folder of examples")


def add_forget(parser: argparse.ArgumentParser) -> None:
    """Add `--forget`."""
    parser.add_argument(
        "--forget", type=Path, metavar="FILE", help="ids of users to leave out, one a line"
    )


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add `--checkpoint`."""
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder that train wrote")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add `--checkpoint` and `--version`, of which one has to be given."""
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--checkpoint", type=Path, help="folder that train wrote")
    either.add_argument("--version", type=Path, help="folder that export wrote, with its number")


def evaluation_options(source: str | None) -> Any:
    """The section `evaluation` of a configuration; None without one."""
    if source is None:
        return None
    from configs import load

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


def import_tensorflow() -> None:
    """Import TensorFlow without its start-up notices, which no setting of its own silences."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as notices:
        os.dup2(notices.fileno(), 2)
        try:
            tensorflow = importlib.import_module("tensorflow")
            tensorflow.config.list_physical_devices()  # looks for GPUs, and says so
            tensorflow.get_logger().setLevel("ERROR")
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
