"""Train, evaluate, export and judge the candidate model, which finds the items to rank."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multigate.verbs.common import add_config, add_examples, import_tensorflow

EXAMPLE = (
    "multigate candidates train --config deskdrop --examples examples --out candidates\n"
    "multigate candidates evaluate --checkpoint candidates --examples examples\n"
    "multigate candidates export --checkpoint candidates --examples examples \\\n"
    "    --out models/deskdrop-candidates\n"
    "multigate candidates report --candidates models/deskdrop-candidates/1 \\\n"
    "    --ranker models/deskdrop/1 --examples examples\n"
    "multigate candidates compare --candidate models/deskdrop-candidates/2 \\\n"
    "    --production models/deskdrop-candidates/1 --examples examples"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    train = actions.add_parser("train", help="train two towers on examples")
    add_config(train)
    add_examples(train)
    train.add_argument("--out", type=Path, required=True, help="new folder for the checkpoint")
    evaluate = actions.add_parser(
        "evaluate", help="recall on a split, compared with simple methods"
    )
    _add_checkpoint(evaluate)
    add_examples(evaluate)
    evaluate.add_argument(
        "--split",
        choices=("validation", "test"),
        default="test",
        help="split to measure on (default: test)",
    )
    export = actions.add_parser("export", help="write a SavedModel version with its index")
    _add_checkpoint(export)
    add_examples(export)
    export.add_argument(
        "--out", type=Path, required=True, help="the model's base folder, which gets a new version"
    )
    export.add_argument("--version", type=int, help="version number (default: highest plus one)")
    report = actions.add_parser("report", help="both stages together against ranking all items")
    report.add_argument("--candidates", type=Path, required=True, help="version of this model")
    report.add_argument("--ranker", type=Path, required=True, help="version of the ranker")
    add_examples(report)
    report.add_argument(
        "--questions", type=int, default=1000, help="largest number of them (default: 1000)"
    )
    compare = actions.add_parser("compare", help="whether a version may replace another")
    compare.add_argument("--candidate", type=Path, required=True, help="version of this model")
    compare.add_argument("--production", type=Path, help="version in production (default: none)")
    add_examples(compare)
    compare.add_argument(
        "--config",
        help="preset or YAML file whose candidates.rules judge (default: the rules' defaults)",
    )


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="folder that `candidates train` wrote"
    )


def execute(options: argparse.Namespace) -> Mapping[str, Any]:
    """Run the verb; the result is what --json prints."""
    from multigate.verbs.inputs import (
        gather_examples,
        require_checkpoint,
        require_least,
        require_version,
    )

    if options.action == "train":
        from multigate.configs import load

        config = load(options.config)
        gather_examples(options)
        from multigate.candidates.pairs import positive_task

        positive_task(config)
        import_tensorflow()
        from multigate.candidates.keras2 import tf
        from multigate.candidates.training import train

        tf.config.experimental.enable_op_determinism()  # for the whole process, so not in `train`
        return train(config, options.examples, options.out)
    if options.action == "compare":
        return _compare(options)
    if options.action in ("evaluate", "export"):
        require_checkpoint(options.checkpoint, "candidates train")
    else:
        require_least("questions", options.questions)
        require_version(options.candidates)
        require_version(options.ranker)
    gather_examples(options)
    import_tensorflow()
    if options.action == "evaluate":
        from multigate.candidates.evaluation import evaluate
        from multigate.jobs.show import show_recall

        recall = evaluate(options.checkpoint, options.examples, split=options.split)
        show_recall(recall)
        return recall
    if options.action == "report":
        from multigate.jobs.multistage import report
        from multigate.jobs.show import show_multistage

        result = report(
            options.candidates, options.ranker, options.examples, limit=options.questions
        )
        show_multistage(result)
        return result
    from multigate.candidates.export import export

    version = export(options.checkpoint, options.examples, options.out, version=options.version)
    print(f"exported {version}")
    return {"export": str(version)}


def _compare(options: argparse.Namespace) -> Mapping[str, Any]:
    from multigate.configs import load
    from multigate.configs.sections.candidates import CandidatesConfig
    from multigate.verbs.inputs import gather_examples, require_version

    config = load(options.config).candidates if options.config else CandidatesConfig()
    for version in (options.candidate, options.production):
        if version is not None:
            require_version(version)
    gather_examples(options)
    import_tensorflow()
    from multigate.candidates.comparison import compare
    from multigate.jobs.show import show_candidates_verdict

    result = compare(options.candidate, options.production, options.examples, config)
    show_candidates_verdict(result)
    return result


def status(result: Mapping[str, Any]) -> int:
    """Exit status: 1 where there is a verdict and it is to refuse."""
    return 1 if result.get("verdict") == "refuse" else 0
