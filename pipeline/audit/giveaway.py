"""Whether sampled negatives give themselves away: a small classifier that tries to tell them apart.

It sees nothing of taste: which features are missing, the position, how often the item stands in the
user's lists, and how long these are. Where that is enough to tell sampled rows from logged ones, a
model learns how negatives were made instead of what users like. Rows are compared in pairs of one
user and time, a positive and a negative of it, whose items were of like popularity then; so the AUC
of correct examples is 0.5, up to chance.
"""

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_limits

from multigate.configs import Config, DataError
from multigate.configs.contract import Contract, IdListFeature, PositionFeature
from multigate.configs.files import (
    IMPRESSION,
    LABEL,
    REQUEST,
    SAMPLED,
    SPLITS,
    TIME,
    ExamplesFolder,
)
from multigate.features import Timeline
from multigate.pipeline.label.labels import impression_tasks

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

_POSITIVES = 4000  # that are compared, at most
_FOLDS, _BINS, _REPLICATES = 5, 16, 2000
_LEVEL = 0.99  # of the interval: one honest folder in 200 fails by chance
_FEWEST_USERS = 5


@dataclass(frozen=True)
class GiveAway:
    """How well the classifier tells sampled rows from logged ones.

    `auc`, with its `interval` over resampled users, of so many `pairs`. `clue`: the column that
    tells most, and `alone`: the AUC of that column by itself.
    """

    auc: float
    interval: tuple[float, float]
    pairs: int
    clue: str
    alone: float


def check(config: Config, examples: ExamplesFolder, seed: int = 0) -> GiveAway | None:
    """Check that nothing but taste tells sampled negatives from logged impressions.

    Args:
        config: made the examples.
        examples: the folder.
        seed: of the sample of positives, the folds and the resampled users.

    Returns:
        What was measured; None where there is nothing to compare.

    Raises:
        DataError: the interval lies above 0.5; names what tells most.
    """
    contract, negatives = config.contract, config.pipeline.negatives
    told = impression_tasks(contract)
    if negatives is None or not told:
        return None
    labelled = pl.any_horizontal(pl.col(LABEL + name).is_not_null() for name in told)
    scan = pl.concat(pl.scan_parquet(examples.split(name) / "*.parquet") for name in SPLITS)
    rows = _read(scan, labelled, contract, negatives.recent, seed)
    found = measure(rows, config, seed)
    if found is not None and found.interval[0] > 0.5:
        low, high = found.interval
        raise DataError(
            f"{examples.root}: sampled negatives give themselves away: {found.clue} tells them "
            f"from logged impressions (AUC {found.alone:.3f} by itself, {found.auc:.3f} with all "
            f"that says nothing of taste; expected an interval that holds 0.5, received "
            f"{low:.3f} to {high:.3f})"
        )
    if negatives.unmatched == "mask":
        _check_groups(scan.filter(labelled), contract, negatives.per_positive, examples)
    return found


def measure(rows: pl.DataFrame, config: Config, seed: int = 0) -> GiveAway | None:
    """Train the classifier on pairs of these rows and measure it on users that it has not seen.

    Args:
        rows: examples with a label that tells logged from sampled ones, and `__popularity`.
        config: names the features.
        seed: of folds and resampling.
    """
    contract = config.contract
    logged, sampled, weights = _pairs(rows, contract)
    users = rows[contract.user].rank("dense").to_numpy().astype(np.int64) - 1
    of_pair = users[logged]
    if len(np.unique(of_pair)) < _FEWEST_USERS or not weights.sum():
        return None
    names, values = _clues(rows, contract)
    random = np.random.default_rng(seed)
    fold = random.permutation(np.arange(users.max() + 1) % _FOLDS)[users]
    row_weights = np.bincount(logged, weights, len(rows)) + np.bincount(sampled, weights, len(rows))
    truth = (~rows[SAMPLED]).to_numpy()
    scores = np.zeros(len(rows))
    for held_out in range(_FOLDS if len(names) else 0):
        train, test = fold != held_out, fold == held_out
        model = HistGradientBoostingClassifier(max_iter=30, max_depth=3, random_state=seed)
        if row_weights[train].sum() and test.any():
            # Few rows: more threads would only wait for one another, for minutes on busy cores.
            with threadpool_limits(1, user_api="openmp"):
                model.fit(values[train], truth[train], sample_weight=row_weights[train])
                scores[test] = model.predict_proba(values[test])[:, 1]
    won = _won(scores, logged, sampled)
    of_user = np.bincount(of_pair, weights), np.bincount(of_pair, weights * won)
    present = np.flatnonzero(of_user[0])
    drawn = random.multinomial(len(present), np.full(len(present), 1 / len(present)), _REPLICATES)
    replicates = (drawn @ of_user[1][present]) / (drawn @ of_user[0][present])
    tail = (1 - _LEVEL) / 2
    low, high = np.quantile(replicates, [tail, 1 - tail])
    single = [_mean(_won(column, logged, sampled), weights) for column in values.T]
    alone, clue = max(
        ((max(auc, 1 - auc), name) for auc, name in zip(single, names, strict=True) if auc != 0.5),
        default=(0.5, "nothing"),
    )
    return GiveAway(_mean(won, weights), (float(low), float(high)), len(logged), clue, alone)


def _group(contract: Contract) -> list[str]:
    return [REQUEST, contract.user, TIME]


def _check_groups(
    labelled: pl.LazyFrame, contract: Contract, per_positive: int, examples: ExamplesFolder
) -> None:
    """Check that each positive with a label has its negatives, and no other has any.

    Raises:
        DataError: names a group that is not whole.
    """
    groups = labelled.group_by(_group(contract)).agg(
        pl.col(IMPRESSION).min(), sampled=pl.col(SAMPLED).sum(), logged=(~pl.col(SAMPLED)).sum()
    )
    wrong = groups.filter(pl.col("sampled") != per_positive * pl.col("logged"))
    for row in wrong.sort(IMPRESSION).head(1).collect().to_dicts():
        raise DataError(
            f"{examples.root}: {IMPRESSION} {row[IMPRESSION]}: expected {per_positive} sampled "
            f"negatives for each impression with a label of rule impression, received "
            f"{row['sampled']} for {row['logged']} at {row[TIME]}: their number gives them away"
        )


def _read(
    scan: pl.LazyFrame,
    labelled: pl.Expr,
    contract: Contract,
    recent: timedelta | None,
    seed: int,
) -> pl.DataFrame:
    """Some positives with the sampled negatives of their requests, and their items' popularity."""
    logged = scan.filter(~pl.col(SAMPLED))
    shown = logged.select(item=contract.item, time=TIME).collect()
    numbers = logged.filter(labelled).select(IMPRESSION).collect()[IMPRESSION].sort()
    size = min(_POSITIVES, len(numbers))
    drawn = np.random.default_rng(seed).choice(len(numbers), size, replace=False)
    group = _group(contract)
    chosen = logged.filter(pl.col(IMPRESSION).is_in(numbers.gather(drawn).implode()))
    names = [*contract.features, *group, SAMPLED, IMPRESSION]
    rows = (
        scan.filter(labelled)
        .join(chosen.select(group).unique(), on=group, how="semi", nulls_equal=True)
        .select(*dict.fromkeys(names))
        .collect()
        .sort(IMPRESSION)
    )
    queries = rows.select(item=contract.item, time=TIME)
    start, stop = Timeline(shown, ["item"]).before(queries, recent)
    return rows.with_columns(__popularity=pl.Series(stop - start))


def _pairs(rows: pl.DataFrame, contract: Contract) -> tuple[Numbers, Numbers, Floats]:
    """Pairs (logged row, sampled row) of the same request, user and time, with their weights.

    A logged row without negatives takes those of the row before it in time, of any user. Otherwise
    a folder would pass whose positives of one kind have no negatives at all.
    """
    group = _group(contract)
    numbered = rows.with_row_index("__row").sort(TIME, IMPRESSION)
    numbered = numbered.with_columns(
        __group=pl.struct(group).rank("dense"), __has=pl.col(SAMPLED).any().over(group)
    )
    last = pl.when("__has").then("__group").forward_fill().backward_fill()
    logged = numbered.with_columns(__group=last).filter(~pl.col(SAMPLED))
    sampled = numbered.filter(SAMPLED)
    pairs = logged.select("__row", "__group").join(
        sampled.select("__group", other="__row"), on="__group", how="inner"
    )
    one, other = (pairs[name].to_numpy().astype(np.int64) for name in ("__row", "other"))
    alike = _alike(rows["__popularity"].to_numpy(), one, other)
    weights = pairs.filter(alike).select(1 / pl.len().over("__row")).to_series().to_numpy()
    return one[alike], other[alike], weights


def _alike(popularity: Numbers, one: Numbers, other: Numbers) -> NDArray[np.bool_]:
    """Which pairs are of two items of like popularity.

    Both fall in the same of some bins of equal size; a bin that holds rows of one kind alone is
    joined with the next: what was never shown before is compared with what was shown least.
    """
    if not len(one):
        return np.zeros(0, bool)
    both = np.concatenate([popularity[one], popularity[other]])
    edges = np.unique(np.quantile(both, np.arange(1, _BINS) / _BINS, method="higher"))
    bins = np.searchsorted(edges, popularity, side="left")
    count = len(edges) + 1
    kinds = np.stack([np.bincount(bins[rows], minlength=count) for rows in (one, other)], axis=1)
    joined, current, seen = np.zeros(count, np.int64), 0, np.zeros(2, np.int64)
    for at in range(count):
        joined[at] = current
        seen += kinds[at]
        if seen.all() and kinds[at + 1 :].any(axis=0).all():
            current, seen = current + 1, np.zeros(2, np.int64)
    bins = joined[bins]
    return np.asarray(bins[one] == bins[other])


def _clues(rows: pl.DataFrame, contract: Contract) -> tuple[list[str], Floats]:
    """The classifier's input: C names, and values (B, C); constant columns are left out."""
    found: dict[str, pl.Series] = {}
    for name, feature in contract.features.items():
        column = rows[name]
        if isinstance(feature, IdListFeature) and feature.entry is not None:
            continue  # as long as the history beside it
        if not isinstance(feature, IdListFeature):
            found[f"whether feature {name!r} is missing"] = column.is_null()
        elif feature.side != "item":
            found[f"the length of feature {name!r}"] = column.list.len().fill_null(0)
            if feature.history is not None or (
                contract.vocabulary_of(name) == contract.vocabulary_of(contract.item)
            ):
                found[f"how often the item stands in feature {name!r}"] = match_counts(
                    column, rows[contract.item]
                )
        else:
            found[f"whether feature {name!r} is missing"] = column.list.len().fill_null(0) == 0
        if isinstance(feature, PositionFeature):
            found[f"the position, feature {name!r}"] = column.fill_null(-1)
    kept = {name: column for name, column in found.items() if column.n_unique() > 1}
    columns = [column.cast(pl.Float64).to_numpy() for column in kept.values()]
    return list(kept), np.stack(columns, axis=1) if columns else np.zeros((len(rows), 0))


def match_counts(lists: pl.Series, items: pl.Series) -> pl.Series:
    """(B,) how often each row's list contains its item."""
    at = pl.DataFrame({"list": lists, "item": items}).with_row_index("at")
    same = at.explode("list").filter(pl.col("list") == pl.col("item"))
    counts = at.join(same.group_by("at").len(), on="at", how="left", maintain_order="left")["len"]
    return counts.fill_null(0)


def _won(scores: Floats, logged: Numbers, sampled: Numbers) -> Floats:
    """Of each pair: 1 where the logged row scores higher, 0.5 where both score alike."""
    difference = scores[logged] - scores[sampled]
    return np.where(difference > 0, 1.0, np.where(difference < 0, 0.0, 0.5))


def _mean(values: Floats, weights: Floats) -> float:
    return float((values * weights).sum() / weights.sum())
