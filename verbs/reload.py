"""Have a server serve the models of another configuration."""

import argparse
from pathlib import Path
from typing import Any

from multigate.verbs.common import add_connection, connect

EXAMPLE = (
    "multigate reload --target localhost:8500 --model_config_file models.txt --token_file admin"
)
_RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_connection(parser, timeout=300.0)  # the server answers once all models are loaded
    parser.add_argument(
        "--model_config_file",
        type=Path,
        required=True,
        help="the models, a ModelServerConfig as text; its paths are those of the server's machine",
    )


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.runtime.tensorflow_messages import model_management_pb2
    from multigate.serving.versions.model_config import read_model_config_message

    config = read_model_config_message(options.model_config_file)
    request = model_management_pb2.ReloadConfigRequest(config=config)
    with connect(options) as client:
        client.unary(_RELOAD, request, model_management_pb2.ReloadConfigResponse)
    names = [one.name for one in config.model_config_list.config]
    print(f"{options.target} serves {', '.join(names)}")
    return {"models": names}
