"""The command `multigate`: one verb per job.

This module parses arguments and prints results; the work is done by the packages, which are
imported only when their verb runs, so that `--help` answers at once.
"""

import argparse
import importlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs.errors import MultigateError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb.

    Args:
        arguments: the command line after the program's name; `sys.argv` where absent.

    Returns:
        Exit status: 0 done, 2 the input, the configuration or the disk cannot be used, 130
        interrupted.
    """
    options = _parser().parse_args(arguments)
    try:
        with _interrupted_by_sigterm():
            result = options.run(options)
    except MultigateError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {_reason(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("error: interrupted; nothing half-written is left", file=sys.stderr)
        return 130
    if result is not None and getattr(options, "json", False):
        print(json.dumps(result, ensure_ascii=False))
    return 0


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end a job as Ctrl-C does, so that it takes its unfinished folder along."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _reason(error: OSError) -> str:
    """What the system refused, in one line."""
    reason = " ".join((error.strerror or str(error)).split())
    where = f"{error.filename}: " if error.filename is not None else ""
    return f"{where}{reason}; make room, or choose a place that can be read and written"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="multigate",
        description="From user logs to a multi-task ranking service.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    demo = _verb(
        verbs,
        "demo",
        _demo,
        "run every stage, from logs to ranked lists, on simulated or on real data",
        "multigate demo --out demo-out\n"
        "multigate demo --config deskdrop --data ~/deskdrop --out deskdrop-out",
    )
    demo.add_argument("--out", type=Path, required=True, help="new folder for all results")
    demo.add_argument("--config", default="demo", help="preset or YAML file (default: demo)")
    demo.add_argument("--data", type=Path, help="folder of the log's files; simulated if absent")

    examples = _verb(
        verbs,
        "examples",
        _examples,
        "make training examples from raw logs",
        "multigate examples --config deskdrop --data ~/deskdrop --out examples",
    )
    _config(examples)
    examples.add_argument("--data", type=Path, required=True, help="folder of the log's files")
    examples.add_argument("--out", type=Path, required=True, help="new folder for the examples")

    audit = _verb(
        verbs,
        "audit",
        _audit,
        "prove on a sample of examples that no feature uses the future",
        "multigate audit --config deskdrop --data ~/deskdrop --examples examples",
    )
    _config(audit)
    audit.add_argument("--data", type=Path, required=True, help="folder of the log's files")
    _examples_folder(audit)
    audit.add_argument("--sample", type=int, default=500, help="examples (default: 500)")
    audit.add_argument("--seed", type=int, default=0, help="of the sample (default: 0)")

    train = _verb(
        verbs,
        "train",
        _train,
        "train the ranker on examples",
        "multigate train --config deskdrop --examples examples --out checkpoint",
    )
    _config(train)
    _examples_folder(train)
    train.add_argument("--out", type=Path, required=True, help="new folder for the checkpoint")
    train.add_argument(
        "--baseline",
        metavar="NAME",
        help="train a baseline instead: shared_bottom, or single_task:TASK",
    )

    evaluate = _verb(
        verbs,
        "evaluate",
        _evaluate,
        "report AUC and RMSE per task and group",
        "multigate evaluate --checkpoint checkpoint --examples examples --report report.html",
    )
    _checkpoint(evaluate)
    _examples_folder(evaluate)
    evaluate.add_argument("--split", choices=("train", "validation", "test"), default="test")
    evaluate.add_argument("--report", type=Path, help="HTML file to write")

    export = _verb(
        verbs,
        "export",
        _export,
        "write a SavedModel version that evaluates only the selected experts",
        "multigate export --checkpoint checkpoint --examples examples --out models/deskdrop",
    )
    _checkpoint(export)
    _examples_folder(export)
    export.add_argument(
        "--out", type=Path, required=True, help="the model's base folder; a number is added"
    )
    export.add_argument("--version", type=int, help="version number (default: highest plus one)")

    serve = _verb(
        verbs,
        "serve",
        _serve,
        "serve a model's newest version over gRPC",
        "multigate serve --model_name deskdrop --model_base_path models/deskdrop --port 8500",
        prints_result=False,
    )
    from serving.options import add_arguments  # light: imports no TensorFlow

    add_arguments(serve)

    rank = _verb(
        verbs,
        "rank",
        _rank,
        "rank candidates for one user by calling a server",
        "multigate rank --target localhost:8500 --model deskdrop \\\n"
        """    --user '{"user_id": "-1032019229384696495"}' --items 123,456 --limit 10""",
    )
    rank.add_argument("--target", default="localhost:8500", help="host:port of the server")
    rank.add_argument("--model", required=True, help="model name")
    rank.add_argument("--user", type=_json_object, required=True, help="user features, JSON")
    rank.add_argument("--context", type=_json_object, default={}, help="context features, JSON")
    rank.add_argument(
        "--items",
        required=True,
        help="candidate ids, separated by commas; --items=-7,8 where the first is negative",
    )
    rank.add_argument(
        "--columns", type=_json_object, default={}, help="item features, JSON: name -> list"
    )
    rank.add_argument("--weights", type=_json_object, help="task weights, JSON: task -> number")
    rank.add_argument(
        "--floors",
        type=_json_object,
        help="scores that an item may have, JSON: task -> [lowest or null, highest or null]",
    )
    rank.add_argument("--limit", type=int, help="return so many items at most")
    rank.add_argument("--tls", action="store_true", help="encrypt, trusting the system's CAs")
    rank.add_argument("--ca", type=Path, help="PEM file of the CAs to trust; encrypts")
    rank.add_argument("--certificate", type=Path, help="PEM file that shows who calls; encrypts")
    rank.add_argument("--key", type=Path, help="PEM file of the certificate's private key")
    rank.add_argument("--token_file", type=Path, help="file whose first line is a bearer token")
    rank.add_argument("--timeout", type=float, default=5.0, help="seconds (default: 5)")
    return parser


def _verb(
    verbs: Any, name: str, run: Any, help_text: str, example: str, prints_result: bool = True
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=help_text,
        description=help_text[0].upper() + help_text[1:] + ".",
        epilog="example:\n  " + example.replace("\n", "\n  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if prints_result:
        parser.add_argument(
            "--json", action="store_true", help="print the result as one JSON object, last line"
        )
    parser.set_defaults(run=run)
    return parser


def _config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, help="preset or YAML file")


def _examples_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--examples", type=Path, required=True, help="folder of examples")


def _checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder that train wrote")


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, received {text!r}")
    return value


def _demo(options: argparse.Namespace) -> dict[str, Any]:
    _import_tensorflow()
    from configs import load
    from jobs import demo

    return demo.run(load(options.config), options.data, options.out)


def _examples(options: argparse.Namespace) -> dict[str, Any]:
    from configs import load
    from jobs.show import show_manifest
    from pipeline import job

    manifest = job.run(load(options.config), options.data, options.out)
    show_manifest(manifest, options.out)
    return manifest


def _audit(options: argparse.Namespace) -> dict[str, Any]:
    from configs import load
    from pipeline.audit import audit

    result = audit(
        load(options.config), options.data, options.examples, options.sample, options.seed
    )
    print(
        f"{result['examples']} examples, {result['negatives']} of them sampled negatives: "
        f"{result['values']} values of {', '.join(result['features']) or 'no feature'} agree with "
        "the raw log, and none uses the future"
    )
    return result


def _train(options: argparse.Namespace) -> dict[str, Any]:
    _import_tensorflow()
    from configs import load
    from configs.baselines import baseline
    from model import training

    config = load(options.config)
    if options.baseline is not None:
        config = baseline(config, options.baseline)
    return training.train(config, options.examples, options.out)


def _evaluate(options: argparse.Namespace) -> dict[str, Any]:
    _import_tensorflow()
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


def _export(options: argparse.Namespace) -> dict[str, Any]:
    _import_tensorflow()
    from model import export

    version = export.export(
        options.checkpoint, options.examples, options.out, version=options.version
    )
    print(f"exported {version}")
    return {"export": str(version)}


def _serve(options: argparse.Namespace) -> None:
    _import_tensorflow()
    from serving import server
    from serving.options import from_arguments

    server.serve(from_arguments(options))


def _rank(options: argparse.Namespace) -> dict[str, Any]:
    from jobs.show import show_ranked
    from serving.client import RankClient, parse_ids
    from serving.security import read_tokens

    items = [item for item in options.items.split(",") if item]  # the empty text is no id
    with RankClient(
        options.target,
        timeout=options.timeout,
        tls=options.tls,
        ca=options.ca,
        certificate=options.certificate,
        key=options.key,
        token=read_tokens(options.token_file)[0] if options.token_file else "",
    ) as client:
        ranked = client.rank(
            options.model,
            user=options.user,
            context=options.context,
            item_ids=parse_ids(client.contract(options.model), items),
            columns=options.columns,
            weights=options.weights,
            floors=options.floors,
            limit=options.limit,
        )
    for warning in ranked.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    show_ranked(f"{options.model}, version {ranked.model_version}", ranked)
    return {
        "ranked": ranked,
        "model_version": ranked.model_version,
        "request_id": ranked.request_id,
        "warnings": ranked.warnings,
    }


def _import_tensorflow() -> None:
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


if __name__ == "__main__":
    sys.exit(main())
