"""What a nightly run does for the candidate model, in processes of their own (`jobs.night.child`).

stage                reads                                writes
candidates_training  examples                             candidates/
candidates_export    candidates/, examples                candidates_export/1/, recall
candidates_report    both exports, examples               multistage.json

The stage `decision` judges the candidate model too (`judge`). It goes into production with the
night's ranker or not at all. If it is refused, the ranker is published without it, provided that
the candidate model in production has the ranker's schema, or that there is none.
"""

import json
from typing import cast

from multigate.candidates.verdict import CandidateVerdict
from multigate.configs.contract import FrozenContract
from multigate.configs.errors import DataError, RunError
from multigate.configs.files import write_json
from multigate.jobs.night.child import run_verb
from multigate.jobs.night.folder import fingerprint_of
from multigate.jobs.night.night import Night
from multigate.jobs.night.records import CandidateDecision, StageResult
from multigate.jobs.publication.pair import Candidate
from multigate.serving.versions.folders import CONTRACT, EXTRA


def training(night: Night) -> StageResult:
    """Train the two towers, from scratch every night; a training that was killed starts again."""
    folder = night.folder
    write_config(night)
    result = run_verb(
        *("candidates", "train", "--config", folder.config, "--examples", folder.examples),
        *("--out", folder.candidates),
    )
    keys = ("pairs", "items", "epochs", "best_epoch", "recall")
    weights = fingerprint_of(folder.candidates / "weights.npz")
    return StageResult({key: result[key] for key in keys}, weights)


def export(night: Night) -> StageResult:
    """Export and measure a candidate version; a later stage publishes it."""
    folder = night.folder
    run_verb(
        *("candidates", "export", "--checkpoint", folder.candidates),
        *("--examples", folder.examples, "--out", folder.candidates_exports, "--version", "1"),
    )
    metrics = json.loads((folder.candidates_export / EXTRA / "metrics.json").read_text("utf-8"))
    return StageResult({"metrics": metrics}, fingerprint_of(folder.candidates_export))


def report(night: Night) -> StageResult:
    """Measure what retrieving first costs."""
    folder = night.folder
    result = run_verb(
        *("candidates", "report", "--candidates", folder.candidates_export),
        *("--ranker", folder.export, "--examples", folder.examples),
        *("--questions", str(night.config.candidates.report_questions)),
    )
    write_json(folder.multistage, result)
    return StageResult(result)


def judge(night: Night) -> CandidateDecision:
    """Decide whether the candidate model may go into production with the night's ranker."""
    folder, base = night.folder, night.pair.candidates
    production = base.production()
    write_config(night)
    rival = () if production is None else ("--production", base.versions()[production])
    verdict = cast(
        CandidateVerdict,
        run_verb(
            *("candidates", "compare", "--candidate", folder.candidates_export, *rival),
            *("--examples", folder.examples, "--config", folder.config),
        ),
    )
    return {**verdict, "production": production, "alone": objection_to_ranker_alone(night)}


def objection_to_ranker_alone(night: Night) -> str:
    """The reason not to publish the night's ranker without a candidate model of the night.

    Returns:
        The reason; "" where there is none.
    """
    ours = FrozenContract.read(night.folder.export / CONTRACT).schema_fingerprint
    rival = f"candidate version {night.pair.candidates.production()} in production"
    try:
        theirs = night.pair.candidates_schema()
    except DataError as error:
        return f"{rival} cannot be served with it: {error}"
    return "" if theirs in (None, ours) else f"{rival} has another schema"


def candidate_export(night: Night, decided: CandidateDecision) -> Candidate:
    """The export that is to be published.

    Raises:
        RunError: its files changed since the stage wrote them.
    """
    folder = night.folder
    if fingerprint_of(folder.candidates_export) != night.output("candidates_export"):
        raise RunError(
            f"{folder.candidates_export}: its files changed since they were exported; repeat the "
            "run with --force candidates_export"
        )
    identity = night.export_identity(folder.candidates_export)
    return Candidate(folder.candidates_export, folder.candidates, identity, decided["production"])


def write_config(night: Night) -> None:
    """Write the configuration to a file, which the other processes read.

    As JSON, in which every text has quotes: PyYAML writes a text such as 1e5 without them, and
    `configs.sections.base.read_yaml` would read a number.
    """
    write_json(night.folder.config, night.config.model_dump(mode="json"))
