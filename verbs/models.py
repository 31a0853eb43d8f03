"""List the models of a server."""

import argparse
from typing import Any

from rich.table import Table

from multigate.configs.console import Results
from multigate.configs.version_folders import Trial
from multigate.verbs.common import add_connection, connect

EXAMPLE = "multigate models --target localhost:8500"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_connection(parser)


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    with connect(options) as client:
        found = [_described(one) for one in client.models().models]
    table = Table(title=options.target, title_justify="left")
    for heading in ("model", "version", "state", "labels", "why"):
        table.add_column(heading, overflow="fold")
    for model in found:
        for version in model["versions"]:
            number = version["version"]
            labels = [label for label, at in model["labels"].items() if at == number]
            table.add_row(
                model["name"],
                str(number),
                _state(model, version),
                ", ".join(labels),
                version["error"],
            )
        if not model["versions"]:
            table.add_row(model["name"], "none", "", "", model["base_path"])
    Results().print(table)
    return {"models": found}


def _described(model: Any) -> dict[str, Any]:
    """A model as plain values."""
    trial = None
    if model.HasField("trial"):
        trial = {name: getattr(model.trial, name) for name in ("version", "canary", "shadow")}
    return {
        "name": model.name,
        "base_path": model.base_path,
        "ranker": model.ranker or None,
        "serving": model.serving if model.HasField("serving") else None,
        "labels": dict(sorted(model.labels.items())),
        "trial": trial,
        "versions": [
            {"version": one.version, "state": one.state, "error": one.error}
            for one in model.versions
        ],
    }


def _state(model: dict[str, Any], version: dict[str, Any]) -> str:
    trial = model["trial"]
    if trial is not None and trial["version"] == version["version"]:
        return f"on trial: {Trial(**trial).words()}"
    serving = " (serves)" if model["serving"] == version["version"] else ""
    return f"{version['state']}{serving}"
