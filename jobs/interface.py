"""The Python interface: what the command's verbs do, as functions.

    import multigate

    examples = multigate.examples("my.yaml", "logs", "examples")
    trained = multigate.train("my.yaml", examples, "checkpoint")
    report = multigate.evaluate("checkpoint", examples)
    version = multigate.load(multigate.export("checkpoint", examples, "models/mine"))
    version.rank(user={"user_id": "u1"}, item_ids=["a", "b"])

`multigate` loads these names when they are first used. The verbs call the same functions, so that
both do the same. What is wrong with an argument or a file is a `multigate.MultigateError` of one
line.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from multigate.configs.baselines import LIGHTGBM
from multigate.configs.config import Config
from multigate.configs.config import load as read
from multigate.configs.errors import ConfigError, DataError
from multigate.configs.sections.base import parse
from multigate.configs.sections.evaluation import EvaluationConfig
from multigate.configs.storage import Place, place
from multigate.jobs.examples import Examples
from multigate.runtime.start import import_backend, import_tensorflow

if TYPE_CHECKING:  # their import takes seconds
    from multigate.jobs.scoring.version import Version
    from multigate.model.assessment.results import Assessment
    from multigate.model.training.train import Trained

Configuration = str | Path | Mapping[str, Any] | Config
"""A YAML file or a preset's name, its values, or what was read of either."""

Folders = str | Path | Examples | Sequence[str | Path | Examples]
"""A folder of examples, or several that are read as one, such as those of the last days."""


def configuration(source: Configuration) -> Config:
    """A checked configuration.

    Args:
        source: path of a YAML file, name of a preset, values as in such a file, or a `Config`.

    Raises:
        ConfigError: one line per offending key.
    """
    if isinstance(source, Config):
        return source
    if isinstance(source, Mapping):
        return parse(Config, dict(source), "configuration")
    return read(source)


def examples(
    config: Configuration,
    data: str | Place,
    out: str | Path,
    *,
    span: tuple[datetime, datetime] | None = None,
    forget: Place | None = None,
    previous: Place | None = None,
    beam: Sequence[str] | None = None,
    shuffle: Literal["files", "beam"] | None = None,
) -> Examples:
    """Make training examples from raw logs; the verb `examples`.

    Args:
        config: the log, the contract and the split.
        data: folder of the log's files, or its address (`s3://...`).
        out: new folder for the examples.
        span: only the examples whose labels close between these two instants.
        forget: file of ids of users to leave out, one a line.
        previous: the previous run's examples, for drift and for counters that go on.
        beam: Beam's own options.
        shuffle: how rows travel between stages.

    Returns:
        A reader of the examples; `manifest` says where the rows of the log went.

    Raises:
        ConfigError: the configuration is wrong.
        DataError: the log cannot be used, or `out` exists or is an address, which a reader cannot
            open.
    """
    _require("shuffle", shuffle, (None, "files", "beam"))
    from multigate.pipeline import job

    folder = place(str(out))
    if not isinstance(folder, Path):
        raise DataError(f"out: expected a local folder, received {out}; the verb takes addresses")
    job.run(
        configuration(config),
        data,
        folder,
        None if beam is None else list(beam),
        span=span,
        forget=forget,
        previous=previous,
        shuffle=shuffle,
    )
    return Examples(folder)


def train(
    config: Configuration,
    examples: Folders,
    out: str | Path,
    *,
    resume: bool = False,
    start_from: str | Path | None = None,
    baseline: str | None = None,
    progress: bool = True,
) -> "Trained":
    """Train the ranker, or a baseline; the verb `train`.

    Args:
        config: contract, model and training.
        examples: that were made with the same contract.
        out: new folder for the checkpoint.
        resume: whether to go on with a training of `out` that was interrupted.
        start_from: checkpoint with the initial weights.
        baseline: `shared_bottom`, or `single_task:TASK`, in place of the model.
        progress: whether to show progress on standard error.

    Returns:
        What the training did: `checkpoint`, `rows`, `epochs`, `best_epoch`, `monitor` and its value
        `monitored`, `val_loss`, `warnings`, `seconds`.

    Raises:
        ConfigError: the configuration is wrong.
        DataError: the examples cannot be read, or `out` exists.
        ModelError: the loss is not finite, or the examples have another contract.
    """
    from multigate.configs.baselines import baseline as as_baseline

    chosen = configuration(config)
    if baseline is not None:
        chosen = as_baseline(chosen, baseline)
    import_backend()
    from multigate.model.training import train as training

    with _folder(examples) as folder:
        return training.train(
            chosen,
            folder,
            Path(out),
            progress=progress,
            resume=resume,
            start_from=None if start_from is None else Path(start_from),
        )


def evaluate(
    model: str | Path,
    examples: Folders,
    *,
    split: Literal["train", "validation", "test"] = "test",
    options: EvaluationConfig | None = None,
    production: str | Path | None = None,
    baselines: Sequence[str | Path] = (),
    seeds: Sequence[str | Path] = (),
    baseline: Literal["lightgbm"] | None = None,
    baseline_threads: int = 0,
    report: str | Path | None = None,
) -> "Assessment":
    """Measure a checkpoint, or an exported version as it is served; the verb `evaluate`.

    Args:
        model: folder of the checkpoint or of the version.
        examples: to measure on.
        split: of the examples.
        options: a configuration's section `evaluation`; None: the checkpoint's own.
        production: version or checkpoint to compare with.
        baselines: checkpoints of `train(baseline=...)`.
        seeds: checkpoints of the same configuration with other seeds.
        baseline: train this library's model on the same examples and compare.
        baseline_threads: threads for that, which change no figure; 0: chosen by the rows.
        report: HTML file to write, with `.json` and `.csv` beside it.

    Returns:
        Metrics with intervals as plain values, as in `report.json` (docs/evaluation.md):
        `["tasks"]["click"]["value"]`.

    Raises:
        ConfigError: there is no such baseline.
        DataError: the split cannot be read, or the report's folder is not there.
        ModelError: the folder is no model, or the examples have another contract.
    """
    _require("baseline", baseline, (None, LIGHTGBM))
    page = None if report is None else Path(report)
    if page is not None and not page.absolute().parent.is_dir():
        raise DataError(f"{page.parent}: no such folder; make it, or choose another file")
    import_tensorflow()
    from multigate.model.assessment.assess import assess
    from multigate.model.baselines.lightgbm_baseline import fit
    from multigate.model.evaluation.scored import read_contract

    with _folder(examples) as folder:
        fitted = None
        if baseline is not None:
            contract = read_contract(Path(model)).contract
            fitted = fit(folder, contract, threads=baseline_threads)
        found = assess(
            Path(model),
            folder,
            options,
            split=split,
            production=None if production is None else Path(production),
            baselines=[Path(one) for one in baselines],
            seeds=[Path(one) for one in seeds],
            baseline=fitted,
        )
    if page is not None:
        from multigate.model.report.page import write_report

        write_report(page, found)
    return found


def export(
    checkpoint: str | Path, examples: Folders, out: str | Path, *, version: int | None = None
) -> Path:
    """Write a SavedModel version; the verb `export`.

    Args:
        checkpoint: folder that `train` wrote.
        examples: that it was trained on.
        out: the model's base folder, which gets a new version.
        version: its number; None: the highest plus one.

    Returns:
        `out/<version>`, for `load` and for a server.

    Raises:
        ExportError: the exported file differs from the checkpoint.
        ModelError: the folder is no checkpoint.
    """
    import_tensorflow()
    from multigate.jobs.export import export as write

    with _folder(examples) as folder:
        return write(Path(checkpoint), folder, Path(out), version=version)


def load(version: str | Path, *, feature_clock: Literal["now", "cut_off"] = "now") -> "Version":
    """Load an exported version into this process, to `rank` and to `predict` without a server.

    Args:
        version: folder that `export` wrote, with its number.
        feature_clock: until when the times since an event grow, of features that the version's
            snapshot fills in.

    Raises:
        ConfigError: there is no such clock.
        ServingError: the folder is no version, or is damaged.
    """
    _require("feature_clock", feature_clock, ("now", "cut_off"))
    from multigate.jobs.scoring.version import Version

    return Version(version, feature_clock=feature_clock)


def _require(name: str, received: str | None, known: Sequence[str | None]) -> None:
    """Refuse a word that is none of those known, which else would stand for one of them."""
    if received not in known:
        words = ", ".join(map(repr, known))
        raise ConfigError(f"{name}: expected one of {words}; received {received!r}")


@contextmanager
def _folder(examples: Folders) -> Iterator[Path]:
    """One folder of examples, joined of several while the block lasts."""
    several = [examples] if isinstance(examples, str | Path | Examples) else list(examples)
    folders = [one.folder if isinstance(one, Examples) else Path(one) for one in several]
    if not folders:
        raise DataError("examples: expected at least one folder, received none")
    if len(folders) == 1:
        yield folders[0]
        return
    from multigate.jobs.days import joined

    with joined(folders) as folder:
        yield folder
