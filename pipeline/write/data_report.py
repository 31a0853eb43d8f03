"""The data report: what a run's examples look like, and how they differ from the previous run's.

`report.json` in the folder of examples. It describes the logged impressions of all splits, without
sampled negatives: how many of those are drawn is a choice, not a property of the log.

Drift of a feature is its population stability index, PSI = sum over bins (p - q) ln(p / q), with
the shares p of this run and q of the previous one (Siddiqi, Credit Risk Scorecards, 2006, which
also gives the rule of thumb: above 0.1 look, above 0.25 act). The bins are the previous run's: of
numbers its deciles, of vectors those of their norm, of ids its most frequent values and the rest,
of lists their lengths, of texts how many words they have, and everywhere what is missing. Shares
below `_LEAST` count as that much, so that none is infinite.

Considered: Evidently (holds whole tables in pandas) and TensorFlow Data Validation (brings
TensorFlow into every worker); the nightly guards and the page need a few numbers only.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import polars as pl

from multigate.configs import Config, DataError
from multigate.configs.contract import (
    Contract,
    Feature,
    IdFeature,
    IdListFeature,
    NumberFeature,
    TextFeature,
    VectorFeature,
)
from multigate.configs.files import LABEL, SAMPLED, SPLITS, TIME, ExamplesFolder
from multigate.configs.statistics import Statistics
from multigate.configs.storage import Place
from multigate.pipeline.core import stored
from multigate.pipeline.write.separators import other_separator

_SMALL = 16 * 2**20  # bytes of files that are read once rather than once a figure
_FIRST = 10_000  # rows on which separators are judged
_TOP = 20  # values of an id, and lengths of lists, that drift is measured on
_POPULAR = 100
_REASONS = 10
_LEAST = 1e-4
_MANY_UNKNOWN = 3  # times as many unknown ids as in training: a model of known ids is misled
_FEW_UNKNOWN = 0.1  # share of validation's ids below which unknown ones matter little
_MISSING = ""  # the empty text is never a value


def lengths(examples: pl.DataFrame, contract: Contract) -> dict[str, dict[str, int]]:
    """Count examples by the length of each list, before writing: reading lists again is costly."""
    lists = [n for n, f in contract.features.items() if isinstance(f, IdListFeature)]
    long = pl.col(lists).list.len().replace({0: None}).cast(pl.String).fill_null(_MISSING)
    logged = examples.select(SAMPLED, long).filter(~pl.col(SAMPLED))
    return {name: dict(logged[name].value_counts().iter_rows()) for name in lists}


def add_lengths(parts: Iterable[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    """Add up what `lengths` returned of several parts."""
    found: dict[str, Counter[str]] = {}
    for part in parts:
        for name, counts in part.items():
            found.setdefault(name, Counter()).update(counts)
    return {name: dict(counts) for name, counts in found.items()}


def report(
    config: Config,
    folder: ExamplesFolder[Place],
    account: dict[str, Any],
    lists: dict[str, dict[str, int]],
    previous: Place | None = None,
) -> dict[str, Any]:
    """Describe a folder of examples.

    Args:
        config: its configuration.
        folder: the examples, statistics and vocabularies.
        account: the manifest.
        lists: what `lengths` returned, of all parts together.
        previous: the previous run's folder of examples, for the drift.

    Raises:
        DataError: `previous` has no report.
    """
    before = None if previous is None else read(previous)
    statistics = Statistics.read(folder.statistics)
    logged = _logged(folder)
    together = pl.concat(logged.values())
    labels = {name: _labels(rows, config.contract) for name, rows in logged.items()}
    found: dict[str, Any] = {
        "name": account["name"],
        "cut_off": account["cut_off"],
        "rows": account["rows"],
        "negatives_kept": statistics.negatives_kept,
        "splits": {name: _split(folder, name) for name in SPLITS},
        "labels": {
            task: {name: found[task] for name, found in labels.items()}
            for task in config.contract.tasks
        },
        "features": {
            name: _feature(
                config,
                together,
                name,
                feature,
                lists.get(name, {}),
                (before or {}).get("features", {}).get(name),
            )
            for name, feature in config.contract.features.items()
        },
        "unknown": _unknown(config.contract, folder, logged),
        "vocabularies": _vocabularies(folder),
        "rejected": dict(list(account["rejected"].items())[:_REASONS]),
        "advice": account["advice"],
        "popular": _popular(config, together),
    }
    unsplit = _unsplit_lists(config.contract, logged["train"])
    found["advice"] = [*account["advice"], *unknown_ids(found["unknown"]), *unsplit]
    found["advice"] += _without_prior(config, statistics)
    found["drift"] = None if before is None else drift(found, before)
    return found


def unknown_ids(shares: dict[str, dict[str, float | None]]) -> list[str]:
    """Say which features will mostly meet ids that training has not seen.

    Args:
        shares: of the ids that the vocabulary lacks, by feature and split.

    Returns:
        A sentence for each feature.
    """
    found = []
    for name, of_split in shares.items():
        train, validation = of_split["train"] or 0.0, of_split["validation"] or 0.0
        if validation >= max(_FEW_UNKNOWN, _MANY_UNKNOWN * train):
            found.append(
                f"{name}: the vocabulary lacks {validation:.0%} of validation's ids and "
                f"{train:.0%} of training's: what a model learns of single ids says little "
                "about such rows. Id dropout (model.id_dropout) trains for them by default; "
                "features that new ids have too (age, counts, categories) help more"
            )
    return found


def _without_prior(config: Config, statistics: Statistics) -> list[str]:
    """Say which tasks' rates have a prior of 0 for lack of labels."""
    found: dict[str, list[str]] = {}
    for name, rule in config.contract.label_counters().items():
        unnamed = name in statistics.priors and getattr(rule, "prior", None) is None
        if unnamed and statistics.priors[name] == statistics.tasks[rule.task].count == 0:
            found.setdefault(rule.task, []).append(name)
    return [
        f"{', '.join(names)}: the prior is 0, because no training row has a label of task "
        f"{task!r}; give the run of the days before with --previous, whose prior it then is, or "
        "name the prior in a label_rate of your own"
        for task, names in found.items()
    ]


def _unsplit_lists(contract: Contract, train: pl.LazyFrame) -> list[str]:
    """Say which lists seem to have another separator, by the beginning of the training split."""
    lists = {n: f for n, f in contract.features.items() if isinstance(f, IdListFeature)}
    read_ = {n: f for n, f in lists.items() if f.history is None and f.entry is None}
    if not read_:
        return []
    rows = train.select(list(read_)).head(_FIRST).collect()
    found = [other_separator(name, feature, rows[name]) for name, feature in read_.items()]
    return [line for line in found if line is not None]


def read(examples: Place) -> dict[str, Any]:
    """Read the report of a folder of examples.

    Raises:
        DataError: there is none, or it is damaged.
    """
    path = ExamplesFolder(examples).report
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise DataError(f"{path}: no report here; expected a folder of examples") from None
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON: {error}") from None


def drift(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Compare two reports.

    Returns:
        `features`: PSI by feature, null where the two have no bins in common; `labels`: mean of the
        training labels before and now; `rows` before and now; `cut_off` before.
    """
    return {
        "cut_off": before["cut_off"],
        "rows": {"before": before["rows"]["rows_in"], "now": now["rows"]["rows_in"]},
        "features": {
            name: None
            if name not in before["features"]
            else stability(feature["compared"], before["features"][name]["shares"])
            for name, feature in now["features"].items()
        },
        "labels": {
            task: {
                "before": before["labels"].get(task, {}).get("train", {}).get("mean"),
                "now": splits["train"]["mean"],
            }
            for task, splits in now["labels"].items()
        },
    }


def stability(now: dict[str, float] | None, before: dict[str, float]) -> float | None:
    """The population stability index of two tables of shares by bin; null where one is absent."""
    if not now or not before:
        return None
    others = [1 - math.fsum(shares.values()) for shares in (now, before)]
    pairs = [(now.get(name, 0.0), before.get(name, 0.0)) for name in sorted({*now, *before})]
    total = 0.0
    for pair in (*pairs, others):
        p, q = (max(share, _LEAST) for share in pair)
        total += (p - q) * math.log(p / q)
    return round(total, 6)


def _logged(folder: ExamplesFolder[Place]) -> dict[str, pl.LazyFrame]:
    """The logged impressions, by split; in memory if they are few."""
    paths = {name: _parts(folder.split(name)) for name in SPLITS}
    found = {name: stored.scan(of).filter(~pl.col(SAMPLED)) for name, of in paths.items()}
    if sum(stored.size(path) for of in paths.values() for path in of) > _SMALL:
        return found
    return {name: rows.collect().lazy() for name, rows in found.items()}


def _parts(folder: Place) -> list[Any]:
    return sorted(folder.glob("*.parquet"))


def _only(frame: pl.LazyFrame) -> dict[str, Any]:
    return dict(frame.collect(engine="streaming").row(0, named=True))


def _split(folder: ExamplesFolder[Place], name: str) -> dict[str, Any]:
    logged, first, last = pl.col(SAMPLED).not_(), pl.col(TIME).min(), pl.col(TIME).max()
    rows = stored.scan(_parts(folder.split(name)))
    found = _only(rows.select(rows=pl.len(), impressions=logged.sum(), first=first, last=last))
    times = {key: None if found[key] is None else found[key].isoformat() for key in _TIMES}
    return {"rows": found["rows"], "impressions": found["impressions"], **times}


_TIMES = ("first", "last")


def _labels(rows: pl.LazyFrame, contract: Contract) -> dict[str, dict[str, Any]]:
    """Of one split, by task: how many labels, how many masked, and their mean."""
    wanted = {}
    for task in contract.tasks:
        label = pl.col(LABEL + task)
        mean = label.cast(pl.Float64).mean()
        wanted[task] = pl.struct(count=label.count(), masked=label.null_count(), mean=mean)
    return _only(rows.select(**wanted))


def _feature(
    config: Config,
    rows: pl.LazyFrame,
    name: str,
    feature: Feature,
    by_length: dict[str, int],
    before: dict[str, Any] | None,
) -> dict[str, Any]:
    """Coverage and shares by bin; `compared`: shares by the previous run's bins.

    Of a list, the rows by its length are known. The user's own id has no shares: a report names no
    users.
    """
    own = name == config.contract.user
    values = rows.select(pl.col(name).alias("value"))
    if isinstance(feature, TextFeature):
        values = values.select(pl.col("value").str.split(" ").list.len())
    if isinstance(feature, VectorFeature):
        squares = pl.col("value").cast(pl.List(pl.Float64)).list.eval(pl.element() ** 2)
        values = values.select(squares.list.sum().sqrt().alias("value"))
        values = values.with_columns(pl.col("value").cast(pl.Float32))
    if own:  # only whether it is there counts, and users may be many
        values = values.select(pl.when(pl.col("value").is_not_null()).then(1).alias("value"))
    edges: list[float] = []
    if isinstance(feature, NumberFeature | VectorFeature):
        edges = _deciles(values)
    counts = _counts(values, edges) if feature.kind != "id_list" else _by_size(by_length)
    number = sum(counts.values())
    missing = counts.get(_MISSING, 0)
    compared = None
    if before is not None and not own:
        same_kind = bool(before["edges"]) == isinstance(feature, NumberFeature | VectorFeature)
        if same_kind:
            known = None if edges else set(before["shares"])
            then = counts if feature.kind == "id_list" else _counts(values, before["edges"])
            compared = _shares(then, known)
    return {
        "kind": feature.kind,
        "coverage": 1 - missing / number if number else None,
        "edges": edges,
        "shares": {} if own else _shares(counts, None),
        "compared": compared,
    }


def _deciles(values: pl.LazyFrame) -> list[float]:
    value = pl.col("value").cast(pl.Float64)
    found = _only(values.select(value.quantile(at / 10).alias(str(at)) for at in range(1, 10)))
    return sorted({edge for edge in found.values() if edge is not None})


def _counts(values: pl.LazyFrame, edges: list[float]) -> dict[str, int]:
    """Rows by bin: between the edges, or by value where there are none."""
    value = pl.col("value")
    if edges:
        value = sum((value > edge).cast(pl.Int64) for edge in edges)
    # Texts are made of the bins, which are few, not of the rows.
    found = values.group_by(bin=value).agg(pl.len()).with_columns(pl.col("bin").cast(pl.String))
    bins = found.group_by(pl.col("bin").fill_null(_MISSING)).agg(pl.col("len").sum())
    return _by_size(dict(bins.collect(engine="streaming").iter_rows()))


def _by_size(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _shares(counts: dict[str, int], known: set[str] | None) -> dict[str, float]:
    """Shares of the known bins, else of the largest; the rest has what is missing to 1."""
    total = sum(counts.values())
    names = list(counts)[:_TOP] if known is None else [name for name in counts if name in known]
    return {name: counts[name] / total for name in names}


def _vocabularies(folder: ExamplesFolder[Place]) -> dict[str, int]:
    paths = _parts(folder.vocabulary("any").parent)
    return {path.name.removesuffix(".parquet"): stored.count_rows(path) for path in paths}


def _unknown(
    contract: Contract, folder: ExamplesFolder[Place], logged: dict[str, pl.LazyFrame]
) -> dict[str, dict[str, float | None]]:
    """Share of the ids that the vocabulary lacks, by id feature that uses one and by split."""
    found: dict[str, dict[str, float | None]] = {}
    for name, feature in contract.features.items():
        if not isinstance(feature, IdFeature) or contract.unknown_codes(name) is None:
            continue
        known = stored.read_parquet(folder.vocabulary(contract.vocabulary_of(name)))
        known = known.select(pl.col("value").cast(_type(feature)), known=True)
        value = pl.col(name)
        if feature.missing == "default":
            value = value.fill_null(feature.default)
        found[name] = {
            split: _only(
                # Joined, since `is_in` would hash all that is known for each part of the rows anew.
                rows.select(value=value.drop_nulls())
                .join(known.lazy(), on="value", how="left")
                .select(unknown=pl.col("known").is_null().mean())
            )["unknown"]
            for split, rows in logged.items()
        }
    return found


def _type(feature: IdFeature) -> Any:
    return pl.String if feature.dtype == "string" else pl.Int64


def _popular(config: Config, rows: pl.LazyFrame) -> list[dict[str, Any]]:
    """The items with most positives: impressions with any binary label of 1; the first by item."""
    binary = config.contract.binary_tasks()
    if not binary:
        return []
    positive = pl.any_horizontal([(pl.col(LABEL + n) == 1).fill_null(False) for n in binary])
    items = rows.group_by(item=pl.col(config.contract.item))
    counted = items.agg(positives=positive.sum(), impressions=pl.len()).filter(
        pl.col("positives") > 0
    )
    ordered = counted.sort("positives", "item", descending=[True, False]).head(_POPULAR)
    return ordered.collect(engine="streaming").to_dicts()
