"""What servers logged during a trial, with the labels that feedback gave it.

Rows are those of `serving.observe.impressions` and `serving.observe.shadow`.  Labels come from
examples that the pipeline made of the impression log, by the contract's own rules: they are joined
by request and item.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from multigate.configs.contract import Contract, IdFeature
from multigate.configs.errors import DataError
from multigate.configs.files import LABEL, REQUEST, SAMPLED, SPLITS, ExamplesFolder
from multigate.configs.sections.nearest import did_you_mean
from multigate.configs.statistics import Statistics
from multigate.configs.version_folders import Trial

_REQUEST, _ITEM, _USER = "ranked/request_id", "item", "user"


@dataclass(frozen=True)
class Records:
    """Rows of one trial, one per item that was shown.

    Attributes:
        shown: the impression log: request, item, user, group, version, due (of the shadow),
            score/TASK, label/TASK.
        both: the shadow log: request, item, user, version (who answered), score/TASK, other/TASK,
            score, other, pairs, overlap, label/TASK; scores of the version on trial are `other`
            where the one in production answered.
        labelled: tasks of which a row has a label.
    """

    shown: pl.DataFrame
    both: pl.DataFrame
    labelled: list[str]


def read_records(
    logs: Sequence[Path],
    examples: Path | None,
    contract: Contract,
    trial: Trial,
    production: int,
    settle: timedelta,
) -> Records:
    """Read the rows of a trial at its present percentage of users, against the present production.

    Args:
        logs: folders of one model in impression logs, `--impression_log FOLDER/MODEL`.
        examples: made from these logs and the feedback; None: no labels.
        contract: of the version on trial.
        trial: whose rows are read.
        production: version in production; rows from before its first one are left out.
        settle: calls younger than this are left out: their rows may not be in a file yet.

    Raises:
        DataError: there are no such rows, or the examples cannot be joined.
    """
    for log in logs:
        if not log.is_dir():
            raise DataError(
                f"{log}: no such folder; expected a model's folder in an impression log, such as "
                "FOLDER/MODEL of multigate serve --impression_log FOLDER"
            )
    newest = datetime.now(UTC) - settle
    scores = {f"ranked/score/{task}": f"score/{task}" for task in contract.tasks}
    names = {_REQUEST: "request", **_ids(contract), "ranked/model_version": "version", **scores}
    wanted = {
        **names,
        "ranked/time": "time",
        "ranked/trial": "trial",
        "ranked/group": "group",
        "ranked/canary": "canary",
        "ranked/shadow": "due",
    }
    files = [path for log in logs for path in log.glob("impressions-*.parquet")]
    shown = _read(files, wanted)
    if shown is None and files:
        _refuse_other_columns(max(files), names)
    settled = (pl.col("trial") == trial.version) & (pl.col("time") <= newest)
    if shown is not None:
        shown = shown.filter(settled & (pl.col("canary") == trial.canary))
        since = shown.filter(pl.col("version") == production)["time"].min()
        settled &= pl.lit(False) if since is None else pl.col("time") >= since
        shown = shown.filter(settled)
    if shown is None or not len(shown):
        raise DataError(
            f"{' '.join(map(str, logs))}: no impressions of the trial of version {trial.version} "
            f"with a canary of {trial.canary:g} % against version {production}; expected the "
            "folder of a model in an impression log, and calls that are older than --settle"
        )
    others = {f"shadow/score/{task}": f"other/{task}" for task in contract.tasks}
    both_names = {
        **names,
        "ranked/time": "time",
        "ranked/trial": "trial",
        "ranked/canary": "canary",
        "ranked/score": "score",
        "shadow/score": "other",
        **others,
        "shadow/pairs": "pairs",
        "shadow/overlap": "overlap",
    }
    both = _read([path for log in logs for path in log.glob("shadow/shadow-*.parquet")], both_names)
    if both is None:
        both = pl.DataFrame(schema=dict.fromkeys(both_names.values(), pl.Float64))
    else:
        both = both.filter(settled & (pl.col("canary") == trial.canary))
    shown, both = _with_users(shown, contract), _with_users(both, contract)
    if examples is None:
        return Records(shown, both, [])
    labels, tasks = _labels(examples, contract)
    return Records(_joined(shown, labels), _joined(both, labels), tasks)


def _ids(contract: Contract) -> dict[str, str]:
    """The log's columns of the user and the item."""
    found = {}
    for name, as_ in ((contract.user, _USER), (contract.item, _ITEM)):
        feature = contract.features[name]
        found[feature.column or name] = as_
    return found


def _read(paths: Sequence[Path], names: dict[str, str]) -> pl.DataFrame | None:
    """These columns of the files that have them, under other names; None without such a file."""
    tables = []
    for path in sorted(paths):
        there = set(pq.read_schema(path).names)
        if set(names) <= there:  # files from before there were trials lack some
            table = pl.from_arrow(pq.read_table(path, columns=list(names)))
            assert isinstance(table, pl.DataFrame)
            tables.append(table.rename(names))
    return pl.concat(tables, how="vertical_relaxed") if tables else None


def _refuse_other_columns(path: Path, names: Iterable[str]) -> None:
    """Name a column that the rows of every version of the model have, and this file has not."""
    there = pq.read_schema(path).names
    lacking = [name for name in names if name not in there]
    if lacking:
        raise DataError(
            f"{path}: no column {lacking[0]!r}; {did_you_mean(lacking[0], there)}expected the "
            "impression log of the model that is on trial"
        )


def _with_users(rows: pl.DataFrame, contract: Contract) -> pl.DataFrame:
    """The rows with ids as text; a call without a user is one of its own, as in the split.

    The log has null for such a call, or what the contract puts in the place of a missing id.
    """
    request, user = pl.col("request").cast(pl.String), pl.col(_USER).cast(pl.String)
    feature = contract.features[contract.user]
    assert isinstance(feature, IdFeature)
    nobody = str(feature.default) if feature.missing == "default" else ""
    unnamed = user.is_null() | (user == nobody)
    return rows.with_columns(
        request.alias("request"),
        pl.col(_ITEM).cast(pl.String),
        pl.when(unnamed).then("request " + request).otherwise("user " + user).alias(_USER),
    )


def _labels(examples: Path, contract: Contract) -> tuple[pl.DataFrame, list[str]]:
    """Labels by request and item, and the tasks that have some.

    Raises:
        DataError: the examples are not of these tasks, or lack rows.
    """
    folder = ExamplesFolder(examples)
    kept = Statistics.read(folder.statistics).negatives_kept
    if kept < 1:
        raise DataError(
            f"{examples}: holds {100 * kept:.3g} % of the impressions without a positive label "
            "(pipeline.downsample), of which no rate can be computed; make examples without it"
        )
    item = contract.item
    tables = []
    for split in SPLITS:
        for path in sorted(folder.split(split).glob("*.parquet")):
            there = set(pq.read_schema(path).names)
            tasks = [f"{LABEL}{task}" for task in contract.tasks if f"{LABEL}{task}" in there]
            if not tasks or not {REQUEST, item} <= there:
                lacking = "a label of one of its tasks" if not tasks else f"{REQUEST} and {item}"
                raise DataError(
                    f"{path}: expected {lacking}; make the examples from the impression log, with "
                    "the contract of the version on trial"
                )
            sampled = [SAMPLED] if SAMPLED in there else []
            table = pl.from_arrow(pq.read_table(path, columns=[REQUEST, item, *tasks, *sampled]))
            assert isinstance(table, pl.DataFrame)
            tables.append(table.filter(~pl.col(SAMPLED)).drop(SAMPLED) if sampled else table)
    if not tables:
        raise DataError(f"{examples}: no examples in its splits; expected some to join")
    rows = pl.concat(tables, how="diagonal_relaxed").rename({REQUEST: "request", item: _ITEM})
    rows = rows.with_columns(pl.col("request", _ITEM).cast(pl.String))
    found = [name for name in rows.columns if name.startswith(LABEL)]
    labelled = [name for name in found if rows[name].drop_nulls().len()]
    # In days that are read as one folder, an item's labels may stand in a row of each day.
    whole = rows.group_by("request", _ITEM).agg(pl.col(found).drop_nulls().first())
    return whole, [name.removeprefix(LABEL) for name in labelled]


def _joined(rows: pl.DataFrame, labels: pl.DataFrame) -> pl.DataFrame:
    return rows.join(labels, on=["request", _ITEM], how="left")


def label_of(rows: pl.DataFrame, task: str) -> np.ndarray:
    """A task's labels, (N,) float64, NaN where there is none."""
    name = f"{LABEL}{task}"
    if name not in rows.columns:
        return np.full(len(rows), np.nan)
    found: np.ndarray = rows[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
    return found
