"""Judge a candidate against the version in production."""

import argparse
from pathlib import Path
from typing import Any

from multigate.verbs.common import add_examples, evaluation_options, import_tensorflow

EXAMPLE = (
    "multigate compare --candidate models/deskdrop/2 --production models/deskdrop/1 "
    "--examples examples --config deskdrop"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument(
        "--candidate", type=Path, required=True, help="folder of a version or of a checkpoint"
    )
    parser.add_argument(
        "--production", type=Path, help="the same of the one in production (default: none)"
    )
    add_examples(parser)
    parser.add_argument(
        "--split",
        choices=("train", "validation", "test"),
        default="test",
        help="split to measure on (default: test)",
    )
    parser.add_argument(
        "--config",
        help="preset or YAML file whose evaluation.rules judge (default: the rules' defaults)",
    )
    parser.add_argument("--report", type=Path, help="HTML file to write: the candidate's report")


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.configs.baselines import require_library
    from multigate.configs.sections.evaluation import EvaluationConfig
    from multigate.verbs.inputs import gather_examples, require_model, require_names

    settings = evaluation_options(options.config) or EvaluationConfig()
    require_names(settings, options.candidate)
    if options.production is not None:
        require_model(options.production)
    gather_examples(options)
    require_library(settings.rules.beats)
    import_tensorflow()
    from multigate.jobs.show import show_comparison
    from multigate.model.evaluation.comparison import compare

    found = None
    if options.report is not None:
        from multigate.model.assessment.assess import assess

        found = assess(options.candidate, options.examples, settings, split=options.split)
    result = compare(
        options.candidate,
        options.production,
        options.examples,
        settings.rules,
        split=options.split,
        replicates=settings.replicates,
        seed=settings.seed,
        baseline=None if found is None else found["baseline"],
    )
    show_comparison(result)
    if found is not None:
        from multigate.model.report.page import write_report

        write_report(options.report, found | {"comparison": result})
    return dict(result)


def status(result: dict[str, Any]) -> int:
    """Exit status of a verdict."""
    return 0 if result["verdict"] == "bless" else 1
