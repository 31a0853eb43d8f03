"""Report how good a checkpoint or an exported version is."""

import argparse
from pathlib import Path
from typing import Any

from multigate.configs.baselines import LIGHTGBM, require_library
from multigate.configs.errors import ConfigError
from multigate.verbs.common import add_examples, add_model, evaluation_options, import_tensorflow

EXAMPLE = (
    "multigate evaluate --checkpoint checkpoint --examples examples --report report.html\n"
    "multigate evaluate --version models/deskdrop/1 --examples examples --report report.html\n"
    "multigate evaluate --checkpoint checkpoint --examples examples --baseline lightgbm"
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
        "--report",
        type=Path,
        help="HTML file to write; its numbers go beside it, as .json and as a flat .csv",
    )
    parser.add_argument(
        "--production", type=Path, help="version or checkpoint to compare with in the report"
    )
    parser.add_argument(
        "--baseline",
        choices=(LIGHTGBM,),
        help="train this library's model on the same examples and report it beside ours",
    )
    parser.add_argument(
        "--baseline_threads",
        type=int,
        default=0,
        metavar="N",
        help="threads of --baseline, which change no figure (default: one, or all cores with "
        "100,000 training rows or more)",
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
    from multigate.verbs.inputs import gather_examples, require_model, require_names

    model, settings = options.checkpoint or options.version, evaluation_options(options.config)
    require_model(model)
    if settings is not None:
        require_names(settings, model)
    for other in (options.production, *options.baselines, *options.seeds):
        if other is not None:
            require_model(other)
    gather_examples(options)
    require_library(options.baseline)
    if options.baseline_threads < 0:
        raise ConfigError(
            f"--baseline_threads: expected 1 or more, or 0 for the default, received "
            f"{options.baseline_threads}"
        )
    import_tensorflow()
    from multigate.jobs import interface
    from multigate.jobs.show import show_baseline, show_evaluation

    result = interface.evaluate(
        model,
        options.examples,
        options=settings,
        split=options.split,
        production=options.production,
        baselines=options.baselines,
        seeds=options.seeds,
        baseline=options.baseline,
        baseline_threads=options.baseline_threads,
    )
    show_evaluation(result)
    if result["baseline"] is not None:
        show_baseline(result["baseline"])
    if options.report is not None:
        from multigate.model.report.page import write_report

        write_report(options.report, result)
    return dict(result)
