"""Serve versions over gRPC and REST."""

import argparse

from multigate.serving.core.options import add_arguments as add_server_arguments

EXAMPLE = "multigate serve --model_name deskdrop --model_base_path models/deskdrop --port 8500"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_server_arguments(parser)


def execute(options: argparse.Namespace) -> None:
    """Run the verb."""
    from multigate.runtime.start import start_runtime
    from multigate.serving.core.options import from_arguments
    from multigate.verbs.inputs import require_server_files

    server_options = from_arguments(options)
    require_server_files(server_options)
    if server_options.workers > 1:
        from multigate.serving.workers.supervisor import supervise

        supervise(server_options, start_runtime)
        return
    start_runtime()
    from multigate.serving.rpc import server

    server.serve(server_options)
