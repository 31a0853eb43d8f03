"""What a nightly run does for the candidate model, in processes of their own (`jobs.night.child`).

stage                reads                                leaves
candidates_training  examples                             candidates/
candidates_export    candidates/, examples                candidates_export/1/, recall
candidates_report    both exports, examples               multistage.json

The decision judges it as well (`judge`): the model goes into production with the night's ranker or
not at all. Where it is refused, the ranker goes without it, if the candidate model in production
has the ranker's schema, or there is none.
"""

import json

from multigate.configs.contract import FrozenContract
from multigate.configs.errors import DataError, RunError
from multigate.configs.files import write_json
from multigate.jobs.night.child import call
from multigate.jobs.night.folder import content
from multigate.jobs.night.night import Night, Values
from multigate.jobs.publication.pair import Candidate
from multigate.serving.versions.folders import CONTRACT, EXTRA


def training(night: Night) -> tuple[Values, str]:
    """Train the two towers, from scratch every night; a training that was killed begins anew."""
    folder = night.folder
    write_config(night)
    told = call(
        *("candidates", "train", "--config", folder.config, "--examples", folder.examples),
        *("--out", folder.candidates),
    )
    keys = ("pairs", "items", "epochs", "best_epoch", "recall")
    return {key: told[key] for key in keys}, content(folder.candidates / "weights.npz")


def export(night: Night) -> tuple[Values, str]:
    """Export a candidate version, which is not published yet; export measures it."""
    folder = night.folder
    call(
        *("candidates", "export", "--checkpoint", folder.candidates),
        *("--examples", folder.examples, "--out", folder.candidates_exports, "--version", "1"),
    )
    metrics = json.loads((folder.candidates_export / EXTRA / "metrics.json").read_text("utf-8"))
    return {"metrics": metrics}, content(folder.candidates_export)


def report(night: Night) -> tuple[Values, str]:
    """Tell what retrieving first costs."""
    folder = night.folder
    told = call(
        *("candidates", "report", "--candidates", folder.candidates_export),
        *("--ranker", folder.export, "--examples", folder.examples),
        *("--questions", str(night.config.candidates.report_questions)),
    )
    write_json(folder.multistage, told)
    return told, ""


def judge(night: Night) -> Values:
    """Decide whether the candidate model may go into production with the night's ranker.

    Returns:
        Of `candidates.comparison.compare`; `production`, the version it was compared with, and
        `alone`, what speaks against publishing the ranker without it: nothing where empty.
    """
    folder, base = night.folder, night.pair.candidates
    production = base.production()
    write_config(night)
    before = () if production is None else ("--production", base.versions()[production])
    told = call(
        *("candidates", "compare", "--candidate", folder.candidates_export, *before),
        *("--examples", folder.examples, "--config", folder.config),
    )
    return told | {"production": production, "alone": alone(night)}


def alone(night: Night) -> str:
    """What speaks against publishing the night's ranker without a candidate model of the night.

    Nothing where empty.
    """
    ours = FrozenContract.read(night.folder.export / CONTRACT).schema_fingerprint
    named = f"candidate version {night.pair.candidates.production()} in production"
    try:
        theirs = night.pair.candidates_schema()
    except DataError as error:
        return f"{named} cannot be served with it: {error}"
    return "" if theirs in (None, ours) else f"{named} has another schema"


def candidate(night: Night, decided: Values) -> Candidate:
    """The export that is to be published.

    Raises:
        RunError: it is not what the stage left.
    """
    folder = night.folder
    if content(folder.candidates_export) != night.output("candidates_export"):
        raise RunError(
            f"{folder.candidates_export}: its files changed since they were exported; repeat the "
            "run with --force candidates_export"
        )
    identity = night.identity_of(folder.candidates_export)
    return Candidate(folder.candidates_export, folder.candidates, identity, decided["production"])


def write_config(night: Night) -> None:
    """The configuration as a file, which the other processes read.

    As JSON, which is YAML with every text in quotes: PyYAML writes a text such as 1e5 bare, and
    `configs.sections.base.read_yaml` would read a number.
    """
    write_json(night.folder.config, night.config.model_dump(mode="json"))
