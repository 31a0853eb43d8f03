"""The whole configuration of one data set, and how it is loaded."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from multigate.configs.contract import (
    Contract,
    IdFeature,
    IdListFeature,
    Max,
    Mean,
    NumberFeature,
    PositionFeature,
)
from multigate.configs.errors import ConfigError
from multigate.configs.files import WEIGHT
from multigate.configs.sections.base import Frozen, contradiction, parse, read_yaml
from multigate.configs.sections.candidates import CandidatesConfig
from multigate.configs.sections.evaluation import EvaluationConfig
from multigate.configs.sections.gates import Sampled
from multigate.configs.sections.labels import ColumnLabel, EventLabel, RatioLabel
from multigate.configs.sections.log import EventLog, ImpressionLog, Log
from multigate.configs.sections.losses import Censored, ZeroInflated
from multigate.configs.sections.model import MONITORS, ExportConfig, ModelConfig, TrainConfig
from multigate.configs.sections.pipeline import PipelineConfig, TimeSplit
from multigate.configs.sections.run import ALL_STAGES, STAGES, RunConfig
from multigate.configs.sections.tune import TuneConfig

PRESETS = ("demo", "deskdrop", "movielens", "movielens_time")


class Config(Frozen):
    """Everything that a configuration file says; each field is a section."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the model, also under which it is served."""
    contract: Contract
    pipeline: PipelineConfig
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    export: ExportConfig = ExportConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    candidates: CandidatesConfig = CandidatesConfig()
    tune: TuneConfig = TuneConfig()
    run: RunConfig = RunConfig()

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages of the nightly run; the candidate model's too if there is a section for it."""
        if "candidates" not in self.model_fields_set:
            return STAGES
        report = self.candidates.report_questions > 0
        return tuple(stage for stage in ALL_STAGES if report or stage != "candidates_report")

    @property
    def row_weight(self) -> str | None:
        """Column of the examples with the rows' weights in training; None where all are equal."""
        logged = None if self.pipeline.log.columns.weight is None else WEIGHT
        return self.train.weight or logged

    @model_validator(mode="after")
    def _check_log(self) -> "Config":
        """Labels and features must fit the shape of the log."""
        log = self.pipeline.log
        shape_of = {
            "event": "events",
            "dwell": "events",
            "column": "impressions",
            "ratio": "impressions",
        }
        for name, task in self.contract.tasks.items():
            rule = task.label.rule
            if shape_of.get(rule, log.shape) != log.shape:
                raise contradiction(
                    f"contract.tasks.{name}.label: rule {rule!r} reads logs of shape "
                    f"{shape_of[rule]!r}, pipeline.log.shape is {log.shape!r}"
                )
            if rule == "dwell" and not _has_session(log):
                raise contradiction(
                    f"contract.tasks.{name}.label: rule 'dwell' needs pipeline.log.columns.session"
                )
            valued = isinstance(task.label, EventLabel) and task.label.aggregate in ("sum", "max")
            given = log.feedback or log if isinstance(log, EventLog) else None
            if valued and given is not None and given.columns.value is None:
                raise contradiction(
                    f"contract.tasks.{name}.label: sum and max need pipeline.log.columns.value"
                )
        self._check_downsample()
        self._check_waits()
        self._check_known()
        self._check_values()
        self._check_closing()
        self._check_crosses()
        self._check_encoded()
        if log.unknown_time is not None:
            for name, feature in self.contract.features.items():
                if isinstance(feature, NumberFeature) and feature.counter is not None:
                    raise contradiction(
                        f"contract.features.{name}: counters and rates need every event's time; "
                        "pipeline.log.unknown_time says that some have none"
                    )
        unknown = self.evaluation.unknown_name(self.contract.tasks, self.contract.features)
        if unknown is not None:
            raise contradiction(unknown)
        for where, names, known in (
            ("model.gates", self.model.gates, self.contract.tasks),
            ("model.embedding_dims", self.model.embedding_dims, self.contract.features),
            ("model.id_dropouts", self.model.id_dropouts, self.contract.features),
        ):
            for name in names:
                if name not in known:
                    raise contradiction(
                        f"{where}: expected one of {', '.join(known)}, received {name!r}"
                    )
        for name in self.model.embedding_dims:
            self._check_embedding(name)
        for name in self.model.id_dropouts:
            if self.contract.unknown_codes(name) is None:
                raise contradiction(
                    f"model.id_dropouts: {name!r} has no ids that training may not know: expected "
                    "a feature of ids with a vocabulary; leave it out"
                )
        self._check_pairs()
        self._check_sampled()
        if self.model.task_weighting == "balanced" and self.train.data_parallel:
            raise contradiction(
                "model.task_weighting: balanced and train.data_parallel cannot go together: the "
                "norms of the whole batch's gradients are known to no process"
            )
        if self.train.ranking is not None and not any(
            task.type == "binary" and task.weight > 0 for task in self.contract.tasks.values()
        ):
            raise contradiction(
                "train.ranking: needs a binary task with a weight above 0, whose positive rows are "
                "to be ranked above the others of their request; the contract has none"
            )
        for name, task in self.contract.tasks.items():
            if self.model.task_weighting == "uncertainty" and isinstance(
                task.loss, Censored | ZeroInflated
            ):
                raise contradiction(
                    f"model.task_weighting: uncertainty divides a loss by a learnt variance, and "
                    f"the loss of task {name!r} ({task.loss.kind}) has one of its own, so that "
                    "their sum has no lowest value; choose fixed or balanced"
                )
        if self.model.cross is not None and self.export.items == "precomputed":
            raise contradiction(
                "export.items: expected none or features, received precomputed: model.cross joins "
                "user and item before the first layers, so that no part of these depends on the "
                "item alone"
            )
        if self.run.trial is not None and "candidates" in self.model_fields_set:
            raise contradiction(
                "run.trial: cannot go together with the section candidates: a candidate model goes "
                "into production with its ranker, which would be on trial"
            )
        self._check_entries()
        monitors = (*MONITORS, *self.contract.tasks)
        if self.train.monitor not in monitors:
            raise contradiction(
                f"train.monitor: expected one of {', '.join(monitors)}, received "
                f"{self.train.monitor!r}"
            )
        return self

    def _check_waits(self) -> None:
        """Under an embargo, each label must close at some time."""
        split, log = self.pipeline.split, self.pipeline.log
        if not isinstance(split, TimeSplit) or not split.embargo:
            return
        for name in self.tasks_without_end():
            raise contradiction(
                f"contract.tasks.{name}.label: expected within, or pipeline.attribution; "
                "received neither: a label that waits without limit may hold what happens in "
                "the next split of time (or set pipeline.split.embargo: false)"
            )
        if isinstance(log, EventLog) or log.known_after is not None:
            return
        for name, task in self.contract.tasks.items():
            columns = task.label.columns if isinstance(task.label, ColumnLabel | RatioLabel) else ()
            for column in columns:
                if column in log.known_at:
                    raise contradiction(
                        f"contract.tasks.{name}.label: pipeline.log.known_at says when column "
                        f"{column!r} is known, and nothing says after how long it stays as it is; "
                        "set pipeline.log.known_after, such as 1d (or pipeline.split.embargo: "
                        "false)"
                    )

    def tasks_without_end(self) -> list[str]:
        """The tasks whose label waits for feedback without limit, so that it never closes."""
        if self.pipeline.attribution is not None:
            return []
        return [
            name
            for name, task in self.contract.tasks.items()
            if isinstance(task.label, EventLabel) and task.label.within is None
        ]

    def _check_known(self) -> None:
        """Features over an impression log's feedback need the time when it is known."""
        log = self.pipeline.log
        if not isinstance(log, ImpressionLog):
            return
        for where, columns in self.contract.computed_events().items():
            for column in columns:
                if column != "impression" and log.feedback_known(column) is None:
                    raise contradiction(
                        f"contract.features.{where}: column {column!r} is feedback, which comes "
                        "after its impression, and pipeline.log does not say when it is known; set "
                        "pipeline.log.known_after, such as 10m, or pipeline.log.known_at: "
                        f"{{{column}: the column that holds its time}}"
                    )

    def _check_values(self) -> None:
        """A mean or largest value needs a column of values."""
        log = self.pipeline.log
        for name, feature in self.contract.features.items():
            rule = feature.event_counter if isinstance(feature, NumberFeature) else None
            if not isinstance(rule, Mean | Max):
                continue
            kind = type(rule).__name__.lower()
            where = f"contract.features.{name}.{kind}"
            if isinstance(log, EventLog):
                given = (log.columns, *(() if log.feedback is None else (log.feedback.columns,)))
                if all(columns.value is None for columns in given):
                    raise contradiction(f"{where}: needs pipeline.log.columns.value")
            elif len(rule.events) != 1 or rule.events == ("impression",):
                raise contradiction(
                    f"{where}.events: expected one feedback column, the values of which count; "
                    f"received {', '.join(rule.events)}"
                )

    def _check_crosses(self) -> None:
        """A rate by category depends on the user, so that no item table can hold it."""
        for name, rule in self.contract.crosses().items():
            if self.export.items != "none":
                raise contradiction(
                    f"export.items: expected none, received {self.export.items}: feature {name!r} "
                    f"depends on the user and {rule.category!r}, and an item table holds only what "
                    "depends on the item"
                )

    def _check_encoded(self) -> None:
        """What a side table's encoder makes is read as vectors, and by somebody."""
        for source in ("users", "items"):
            table = getattr(self.pipeline, source)
            for column in () if table is None else table.encode:
                named = {
                    name: feature
                    for name, feature in self.contract.features.items()
                    if (feature.column or name) == column
                }
                readers = {n: one.kind for n, one in named.items() if one.source == source}
                if not readers or set(readers.values()) != {"vector"}:
                    kinds = (f"{name!r} of kind {kind}" for name, kind in readers.items())
                    elsewhere = (
                        f"; {name!r} reads a column of that name of {feature.source}"
                        for name, feature in named.items()
                        if not readers and feature.kind == "vector"
                    )
                    raise contradiction(
                        f"pipeline.{source}.encode.{column}: expected features of kind vector with "
                        f"source: {source} that read this column, received "
                        f"{', '.join(kinds) or 'none'}{next(elsewhere, '')}"
                    )

    def _check_closing(self) -> None:
        """Features over past labels need labels that close."""
        log, endless = self.pipeline.log, self.tasks_without_end()
        for feature, rule in self.contract.label_counters().items():
            for name in sorted(self.contract.depends_on(rule.task)):
                task = self.contract.tasks[name]
                where = f"contract.features.{feature}: label {name!r}"
                if name in endless:
                    raise contradiction(
                        f"{where} waits without limit, so that it never closes and has no value as "
                        "of an impression; give it within, set pipeline.attribution, or leave it "
                        "out of contract.rates.tasks"
                    )
                if not isinstance(task.label, ColumnLabel | RatioLabel):
                    continue
                if isinstance(log, ImpressionLog) and log.known_after is None:
                    raise contradiction(
                        f"{where} is feedback, which comes after its impression, and pipeline.log "
                        "does not say after how long it is complete; set pipeline.log.known_after, "
                        "such as 10m"
                    )

    def downsampled_by(self) -> list[str]:
        """The tasks whose positive labels keep an impression where others are left out."""
        downsample = self.pipeline.downsample
        if downsample is None:
            return []
        return [*downsample.tasks] or self.contract.binary_tasks()

    def _check_downsample(self) -> None:
        """Refuse tasks for which every impression is positive: none could be left out."""
        binary = self.contract.binary_tasks()
        if self.pipeline.downsample is not None and not binary:
            raise contradiction(
                "pipeline.downsample: expected a binary task, whose labels of 1 say which "
                "impressions to keep; received none: leave it out"
            )
        for name in self.downsampled_by():
            if name not in binary:
                raise contradiction(
                    f"pipeline.downsample.tasks: expected one of {', '.join(binary)}, received "
                    f"{name!r}"
                )
            if self.contract.tasks[name].label.rule == "impression":
                raise contradiction(
                    f"pipeline.downsample.tasks: every logged impression is positive for {name!r}; "
                    "name other tasks"
                )

    def _check_entries(self) -> None:
        """What is known of a history's entries is added to the entries: of the same width."""
        for name, feature in self.contract.features.items():
            if not isinstance(feature, IdListFeature) or feature.entry is None:
                continue
            owners = [self.contract.vocabulary_of(one) for one in (feature.entry.of, name)]
            dims = self.model.embedding_dims
            widths = [dims.get(one, self.model.embedding_dim) for one in owners]
            if owners[1] != name and widths[0] != widths[1]:
                raise contradiction(
                    f"model.embedding_dims: {owners[1]!r} is added to the entries of "
                    f"{feature.entry.of!r} (history.with): expected the width of {owners[0]!r}, "
                    f"{widths[0]}, received {widths[1]}"
                )

    def _check_embedding(self, name: str) -> None:
        """Refuse a width for a feature without an embedding of its own."""
        owner, feature = self.contract.vocabulary_of(name), self.contract.features[name]
        if owner != name:
            raise contradiction(
                f"model.embedding_dims: {name!r} uses the embedding of {owner!r}; give the width "
                f"under {owner!r}"
            )
        if isinstance(feature, IdListFeature) and feature.entry is not None:
            raise contradiction(
                f"model.embedding_dims: {name!r} is added to the entries of {feature.entry.of!r} "
                "and has their width; give the width there"
            )
        without = isinstance(feature, NumberFeature) and feature.scale != "buckets"
        if without or isinstance(feature, PositionFeature):
            kind = "number without buckets" if without else "position"
            raise contradiction(f"model.embedding_dims: {name!r} is a {kind}: it has no embedding")

    def _check_sampled(self) -> None:
        """A sampled gate learns from each row's loss of its own task alone."""
        tasks, ranking = self.contract.tasks, self.train.ranking is not None
        funnels = {task.given for task in tasks.values()}
        for name, task in tasks.items():
            if not isinstance(self.model.gates.get(name, self.model.gate), Sampled):
                continue
            what = None
            if task.given is not None or name in funnels:
                what = "stands in a funnel (given), where a task's loss depends on two gates"
            elif ranking and task.type == "binary" and task.weight > 0:
                what = "has a term for the order within requests (train.ranking)"
            if what is not None:
                where = f"model.gates.{name}" if name in self.model.gates else "model.gate"
                raise contradiction(
                    f"{where}: expected another gate than sampled, which learns from each row's "
                    f"loss of its own task alone: task {name!r} {what}"
                )

    def _check_pairs(self) -> None:
        """Refuse weights of pairs of features that cannot have them."""
        wide = self.model.wide
        if wide is None:
            return
        if wide.crosses_rate != 1 and not wide.crosses:
            raise contradiction(
                f"model.wide.crosses_rate: {wide.crosses_rate} is the rate of pairs of values, and "
                "model.wide.crosses has room for none; set that to 8192, or leave this out"
            )
        if wide.pairs is None:
            return
        where = "model.wide.pairs"
        known = {
            name: feature.side == "item"
            for name, feature in self.contract.features.items()
            if isinstance(feature, IdFeature) and self.contract.unknown_codes(name) is not None
        }
        sides = {
            of_items: [name for name, of_item in known.items() if of_item is of_items]
            for of_items in (False, True)
        }
        for pair in wide.pairs:
            for of_items, name, what in zip(
                (False, True), pair, ("the user or the context", "the item"), strict=True
            ):
                if name not in sides[of_items]:
                    raise contradiction(
                        f"{where}: expected an id feature of {what} with a vocabulary, one of "
                        f"{', '.join(sides[of_items]) or 'none'}; received {name!r}"
                    )
        if wide.pairs and not wide.crosses:
            raise contradiction(
                f"{where}: model.wide.crosses has room for no pair of values; set it to 8192"
            )


def _has_session(log: Log) -> bool:
    columns = [log.columns]
    if isinstance(log, EventLog) and log.feedback is not None:
        columns.append(log.feedback.columns)
    return all(getattr(part, "session", None) is not None for part in columns)


def parse_stored(values: Any, where: str) -> Config:
    """A configuration that stands beside weights, perhaps of a former version.

    Options that were renamed since get their present names.

    Args:
        values: of its JSON.
        where: the file, for messages.

    Raises:
        ConfigError: a value is wrong.
    """
    train = values.get("train") if isinstance(values, dict) else None
    if isinstance(train, dict) and "lazy_embeddings" in train:
        train = dict(train)
        train["embeddings"] = "rows" if train.pop("lazy_embeddings") else "dense"
        values = values | {"train": train}
    return parse(Config, values, where)


def load(source: str | Path) -> Config:
    """Load a configuration file, or a preset by its name.

    Args:
        source: path of a YAML file, or one of `PRESETS`.

    Raises:
        ConfigError: one line per offending key, which names the file and the key.
    """
    config = parse(Config, read_yaml(find(source)), str(source))
    _check_hashed(config, str(source))
    return config


def _check_hashed(config: Config, where: str) -> None:
    """Refuse what cuts a vocabulary of hashed ids; versions and checkpoints that have it load."""
    for name, feature in config.contract.features.items():
        if not isinstance(feature, IdFeature | IdListFeature) or feature.hash_buckets is None:
            continue
        given = {"min_count": feature.min_count > 1, "max_size": feature.max_size is not None}
        for key in (key for key, found in given.items() if found):
            raise ConfigError(
                f"{where}: contract.features.{name}.{key}: expected none beside hash_buckets, "
                f"received {getattr(feature, key)}; hashed ids have no vocabulary to cut: remove "
                f"{key}, or remove hash_buckets to keep one"
            )


def find(source: str | Path) -> Path:
    """The file of a configuration or of a preset.

    Raises:
        ConfigError: there is none.
    """
    path = Path(source)
    if str(source) in PRESETS and not path.is_file():  # a folder may have a preset's name
        return Path(str(files("multigate.configs.presets").joinpath(f"{source}.yaml")))
    if not path.exists():
        raise ConfigError(f"{source}: no such configuration file; presets are {', '.join(PRESETS)}")
    return path
