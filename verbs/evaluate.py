"""Report how good a checkpoint is."""

import argparse
from pathlib import Path
from typing import Any

from verbs.common import add_checkpoint, add_examples, import_tensorflow

HELP = "report AUC and RMSE per task and group"
EXAMPLE = "multigate evaluate --checkpoint checkpoint --examples examples --report report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_checkpoint(parser)
    add_examples(parser)
    parser.add_argument("--split", choices=("train", "validation", "test"), default="test")
    parser.add_argument("--report", type=Path, help="HTML file to write")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    import_tensorflow()
    from jobs.show import show_evaluation
    from model import evaluation

    result = evaluation.evaluate(options.checkpoint, options.examples, split=options.split)
    show_evaluation(result)
    if options.report is not None:
        from model import checkpoint, report

        config, _ = checkpoint.read_config(options.checkpoint)
        history = checkpoint.read_history(options.checkpoint)
        report.write_report(options.report, result, history, config)
    return result
