"""Folders of examples of several runs, read as one: days add up.

    examples/2026-01-01  ─┐                  Parquet parts: links to those of the runs
    examples/2026-01-02  ─┼─► one folder  ── vocabularies, statistics: of all training rows
    examples/2026-01-03  ─┘                  snapshot: each user and item from its newest run

The result does not depend on the order in which the folders are named. Runs are sorted by their
cut-off. An impression that stands in several runs, with some of its labels in each, counts once in
vocabularies and statistics. So runs of consecutive days give the vocabularies and statistics, and
the same fingerprint, as one run over all of these days.

Splits: where they are stable (by hash, or by instants), each row stays in its own run's split.
Shares of time divide each run for itself. There the newest run keeps its splits, and all rows of
earlier runs are training rows.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from multigate.configs.contract import Contract, FrozenContract, NumberFeature
from multigate.configs.errors import DataError
from multigate.configs.files import (
    IMPRESSION,
    LABEL,
    SAMPLED,
    SPLITS,
    TIME,
    ExamplesFolder,
    write_json,
)
from multigate.configs.statistics import Statistics
from multigate.configs.storage import Place
from multigate.pipeline.compute import measure
from multigate.pipeline.core.counts import add_counts
from multigate.pipeline.write import vocabulary
from multigate.pipeline.write.frozen import write_frozen
from multigate.pipeline.write.parts import write_parquet

_ROWS = 1 << 16  # rows measured at once
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Run:
    """One folder of examples.

    `since`: labels that closed from here on are in it; None: from the log's beginning. `end`: the
    cut-off. `split`: the configuration's `pipeline.split`.
    """

    files: ExamplesFolder
    frozen: FrozenContract
    statistics: Statistics
    name: str
    since: datetime | None
    end: datetime
    split: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Read what a folder says of itself.

        Raises:
            DataError: a file is missing or damaged, or the folder was written by a version of
                multigate that did not write what is needed here.
        """
        files = ExamplesFolder(folder)
        manifest = _manifest(files)
        window = manifest.get("window")
        if "split" not in manifest or (window is not None and "since" not in window):
            raise DataError(
                f"{files.manifest}: expected `split` and `window.since`, which an older version "
                "did not write; make these examples again to join them with others"
            )
        return cls(
            files,
            FrozenContract.read(files.contract),
            Statistics.read(files.statistics),
            manifest["name"],
            None if window is None else datetime.fromisoformat(window["since"]),
            _end(manifest),
            manifest["split"],
        )

    @property
    def stable(self) -> bool:
        """Whether a row's split is the same in every run."""
        return self.split["by"] != "time" or isinstance(self.split["validation"], str)

    def parts(self, split: str) -> list[Path]:
        """The Parquet parts of a split."""
        return sorted(self.files.split(split).glob("*.parquet"))


def newest(folders: Sequence[Place], days: int) -> list[Place]:
    """The folders whose cut-off is less than so many days before the newest cut-off.

    Raises:
        DataError: a folder has no manifest.
    """
    ends = [_end(_manifest(ExamplesFolder(folder))) for folder in folders]
    first = max(ends) - timedelta(days=days)
    return [folder for folder, end in zip(folders, ends, strict=True) if end > first]


def _manifest(files: ExamplesFolder[Any]) -> dict[str, Any]:
    """What a folder of examples says of itself.

    Raises:
        DataError: there is no manifest, or it is not one.
    """
    try:
        found = json.loads(files.manifest.read_text(encoding="utf-8"))
        _end(found)
    except FileNotFoundError:
        raise DataError(f"{files.manifest}: no manifest here; was it written whole?") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{files.manifest}: not a manifest: {error}") from None
    return dict(found)


def _end(manifest: dict[str, Any]) -> datetime:
    """The cut-off that a manifest names."""
    cut_off = manifest["cut_off"]
    return _BEGINNING if cut_off is None else datetime.fromisoformat(cut_off)


@contextmanager
def joined(folders: Sequence[Path]) -> Iterator[Path]:
    """One folder of examples that holds those of all folders; removed when the block ends.

    Args:
        folders: one or more folders of examples. One alone is given back as it is.

    Raises:
        DataError: the folders do not belong together, or two hold the same labels.
    """
    if len(folders) == 1:
        yield folders[0]
        return
    with tempfile.TemporaryDirectory(prefix="multigate-") as temporary:
        join([Run.read(folder) for folder in folders], Path(temporary))
        yield Path(temporary)


def join(runs: Sequence[Run], out: Path) -> dict[str, Any]:
    """Write a folder that holds the examples of all runs.

    Args:
        runs: two or more.
        out: an empty folder.

    Returns:
        The manifest; `rows`, what became of the log's rows, is the newest run's.

    Raises:
        DataError: the runs do not belong together, or two hold the same labels.
    """
    runs = sorted(runs, key=lambda run: (run.end, run.since or _BEGINNING, _identity(run)))
    newest = runs[-1]
    _check_alike(runs)
    _check_spans(runs)
    _check_later(runs)
    files, contract = ExamplesFolder(out), newest.frozen.contract
    counted = _Counted(contract)
    rows = dict.fromkeys(SPLITS, 0)
    seen: dict[str, pl.Series] = {}
    for number, run in enumerate(runs):
        training = not run.stable and run.end < newest.end
        parts = {name: "train" if training else name for name in SPLITS}
        for split in SPLITS:
            files.split(split).mkdir(parents=True, exist_ok=True)
        numbers = {split: _impressions(run, _sources(parts, split)) for split in SPLITS}
        for split, found in numbers.items():
            before = seen.get(split, pl.Series(dtype=pl.Int64))
            repeated = found.filter(found.is_in(before.implode()))
            if (
                len(repeated)
                and any(other.since is None for other in runs[:number])
                and (run.since is None)
            ):
                raise DataError(
                    f"{run.files.root}: impression {repeated[0]} is also in an earlier folder, and "
                    "both are runs over a whole log; make runs of some days (`multigate examples "
                    "--from D --to D'`), or give one of the two folders"
                )
            rows[split] += len(found) - len(repeated)
            seen[split] = pl.concat([before, found.filter(~found.is_in(repeated.implode()))])
            for name in _sources(parts, split):
                for path in run.parts(name):
                    link = f"{number:04d}-{run.files.root.name}-{name}-{path.name}"
                    (files.split(split) / link).symlink_to(path.resolve())
                    if split == "train":
                        counted.add(path, repeated)
    counted.write(files, rows, runs)
    _join_snapshots(runs, files)
    if newest.files.report.exists():
        files.report.symlink_to(newest.files.report.resolve())
    manifest = {
        "name": newest.name,
        "cut_off": None if newest.end == _BEGINNING else newest.end.isoformat(),
        "split": newest.split,
        "rows": _manifest(newest.files).get("rows"),
        "examples": {"splits": rows},
        "joined": [run.files.root.name for run in runs],
    }
    write_json(files.manifest, manifest)
    return manifest


def _sources(parts: dict[str, str], split: str) -> list[str]:
    """The runs' splits that make up a split of all."""
    return [name for name, target in parts.items() if target == split]


class _Counted:
    """Vocabularies and statistics of training rows, part by part.

    Args:
        contract: of the examples.
    """

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._measured: dict[str, measure.Moments] = {}
        self._counts: dict[str, pl.DataFrame] = {}

    def add(self, path: Path, repeated: pl.Series) -> None:
        """Count a part.

        Args:
            path: a Parquet file of training rows.
            repeated: (R,) the impressions of which only the labels count here.
        """
        with pq.ParquetFile(path) as file:
            batches = file.iter_batches(_ROWS) if file.metadata.num_rows else ()
            for batch in batches or [file.schema_arrow.empty_table()]:
                rows = pl.DataFrame(batch)
                first = rows.filter(~pl.col(IMPRESSION).is_in(repeated.implode()))
                found = measure.measure(first, self._contract)
                if len(first) < len(rows):
                    every = measure.measure(rows, self._contract)
                    found |= {n: m for n, m in every.items() if n.startswith(LABEL)}
                self._measured = measure.add(self._measured, found)
                logged = first.filter(~pl.col(SAMPLED))
                for name, counts in vocabulary.count(logged, self._contract).items():
                    before = [self._counts[name]] if name in self._counts else []
                    self._counts[name] = add_counts([*before, counts])

    def write(self, files: ExamplesFolder, rows: dict[str, int], runs: Sequence[Run]) -> None:
        """Write vocabularies, statistics and the contract, as the pipeline does."""
        contract, hashes = self._contract, {}
        for name in contract.tasks:
            # A label that is masked in one run may stand in another.
            label = self._measured[LABEL + name]
            label.missing = rows["train"] - label.count
        for name, feature in vocabulary.features(contract).items():
            hashes[name] = vocabulary.write(self._counts[name], feature, files.vocabulary(name))
        last = runs[-1].statistics
        statistics = measure.statistics(
            self._measured, contract, rows, last.negatives_kept, last.priors
        )
        write_frozen(files, contract, statistics, hashes)


def _identity(run: Run) -> str:
    """An order of runs of the same days: by content, not by name."""
    return f"{run.frozen.data_fingerprint} {run.statistics.model_dump_json()}"


def _check_alike(runs: Sequence[Run]) -> None:
    """Refuse runs of other contracts, splits or shares of negatives.

    Raises:
        DataError: two runs differ.
    """

    def facts(run: Run) -> dict[str, Any]:
        return {
            "schema fingerprint (features, labels and tasks)": run.frozen.schema_fingerprint,
            "pipeline.split": run.split,
            "pipeline.downsample.keep": run.statistics.negatives_kept,
        }

    newest = runs[-1]
    for run in runs[:-1]:
        for (what, expected), received in zip(
            facts(newest).items(), facts(run).values(), strict=True
        ):
            if expected != received:
                raise DataError(
                    f"{run.files.root}: {what}: expected that of {newest.files.root}, {expected}, "
                    f"received {received}; make these examples again with one configuration"
                )


def _check_spans(runs: Sequence[Run]) -> None:
    """Refuse runs of some days that overlap: their labels would count twice.

    Raises:
        DataError: two runs overlap.
    """
    some_days = sorted(
        (run for run in runs if run.since is not None), key=lambda run: run.since or _BEGINNING
    )
    whole = [run for run in runs if run.since is None]
    pairs = [*pairwise(some_days), *((run, some_days[0]) for run in whole if some_days)]
    for before, after in pairs:
        if after.since is not None and after.since < before.end:
            raise DataError(
                f"{after.files.root}: holds labels from {after.since.isoformat()} on, and "
                f"{before.files.root} those up to {before.end.isoformat()}; expected runs that do "
                "not overlap; leave out one of the two"
            )


def _check_later(runs: Sequence[Run]) -> None:
    """Refuse shares of time whose validation begins before the training rows of earlier runs end.

    Raises:
        DataError: it does.
    """
    last = runs[-1]
    earlier = [run.end for run in runs if run.end < last.end]
    if last.stable or not earlier:
        return
    paths = [path for name in ("validation", "test") for path in last.parts(name)]
    times = [pl.read_parquet(path, columns=[TIME])[TIME].min() for path in paths]
    begin = min((time for time in times if isinstance(time, datetime)), default=None)
    if begin is not None and begin < max(earlier):
        raise DataError(
            f"{last.files.root}: its validation begins at {begin.isoformat()}, before the run "
            f"before it ends ({max(earlier).isoformat()}), whose rows are all for training; name "
            "instants in pipeline.split, or split by hash"
        )


def _impressions(run: Run, splits: Sequence[str]) -> pl.Series:
    """The numbers of a run's impressions (N,) in some splits."""
    columns = [
        pl.read_parquet(path, columns=[IMPRESSION])[IMPRESSION]
        for name in splits
        for path in run.parts(name)
    ]
    return pl.concat([pl.Series(IMPRESSION, [], pl.Int64), *columns])


def _join_snapshots(runs: Sequence[Run], files: ExamplesFolder) -> None:
    """Take each user and each item from the newest run that has it."""
    contract = runs[-1].frozen.contract
    for source, key in (("users", contract.user), ("items", contract.item)):
        folder, kept = files.snapshot(source), None
        folder.mkdir(parents=True)
        for number, run in reversed(list(enumerate(runs))):
            parts = sorted(run.files.snapshot(source).glob("*.parquet"))
            for at, path in enumerate(parts):
                found = _aged(pl.read_parquet(path), contract, runs[-1].end - run.end)
                if kept is not None:
                    found = found.filter(~pl.col(key).is_in(kept.implode()))
                write_parquet(
                    found, folder / f"{number:04d}-{at:05d}.parquet", pq.read_schema(path)
                )
            ids = [pl.read_parquet(path, columns=[key])[key] for path in parts]
            kept = pl.concat([*([] if kept is None else [kept]), *ids]).unique()


def _aged(rows: pl.DataFrame, contract: Contract, passed: timedelta) -> pl.DataFrame:
    """A snapshot's rows so much later: ages and the times since an event have grown."""
    grown = {}
    for name in rows.columns:
        feature = contract.features.get(name)
        if passed and isinstance(feature, NumberFeature) and (feature.since or feature.age):
            since = pl.col(name) + passed.total_seconds()
            longest = None if feature.since is None else feature.since.within
            grown[name] = (
                since if longest is None else pl.when(since <= longest.total_seconds()).then(since)
            )
    return rows.with_columns(**grown)
