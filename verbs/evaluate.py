"""Report how good a checkpoint or an exported version is."""

import argparse
from pathlib import Path
from typing import Any

from multigate.verbs.common import add_examples, add_model, evaluation_options, import_tensorflow

EXAMPLE = (
    "multigate evaluate --checkpoint checkpoint --examples examples --report report.html\n"
    "multigate evaluate --version models/deskdrop/1 --examples examples --report report.html"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_model(parser)
    add_examples(parser)
    parser.add_argument(
        "--split",
        choices=("train", "validation", "test"),
        default="test",
        help="split to measure on (default: test)",
    )
    parser.add_argument(
        "--report", type=Path, help="HTML file to write; its numbers go beside it, as .json"
    )
    parser.add_argument(
        "--production", type=Path, help="version or checkpoint to compare with in the report"
    )
    parser.add_argument(
        "--baselines",
        type=Path,
        nargs="+",
        default=[],
        metavar="CHECKPOINT",
        help="checkpoints of `train --baseline`, for negative transfer",
    )
    parser.add_argument(
        "--seeds",
        type=Path,
        nargs="+",
        default=[],
        metavar="CHECKPOINT",
        help="checkpoints of the same configuration with other seeds, for stability",
    )
    parser.add_argument(
        "--config",
        help="preset or YAML file whose section evaluation is used (default: the checkpoint's own)",
    )


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.verbs.inputs import require_examples, require_model, require_names

    model, settings = options.checkpoint or options.version, evaluation_options(options.config)
    require_model(model)
    if settings is not None:
        require_names(settings, model)
    for other in (options.production, *options.baselines, *options.seeds):
        if other is not None:
            require_model(other)
    require_examples(options.examples)
    import_tensorflow()
    from multigate.jobs.show import show_evaluation
    from multigate.model.assessment.assess import assess

    result = assess(
        model,
        options.examples,
        settings,
        split=options.split,
        production=options.production,
        baselines=options.baselines,
        seeds=options.seeds,
    )
    show_evaluation(result)
    if options.report is not None:
        from multigate.model.report.page import write_report

        write_report(options.report, result)
    return dict(result)
