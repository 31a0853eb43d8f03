"""Slices of the rows: where a model is worse than on the whole.

Slices and the whole are measured on the same resamples.  Among m looks (a slice, a task and a
measure each) some stand out by chance.  A look is therefore marked only where its difference is
beyond chance at 0.05 / m (Bonferroni, by the replicates' standard deviation).

Fairlearn's `MetricFrame` slices too, but draws rows instead of users for its intervals and does not
allow for the number of looks.
"""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.stats import norm

from multigate.configs.contract import (
    Contract,
    IdListFeature,
    NumberFeature,
    TextFeature,
    VectorFeature,
)
from multigate.configs.files import TIME
from multigate.configs.sections.evaluation import (
    EvaluationConfig,
    HourSlices,
    SeenSlices,
    Slices,
    ValueSlices,
)
from multigate.configs.sections.labels import Task
from multigate.model.assessment.results import Look, SliceSummary
from multigate.model.data.rows import Rows
from multigate.model.evaluation.measures import pinball, ranks, tasks
from multigate.model.evaluation.measures.bootstrap import Resamples, interval
from multigate.model.evaluation.paired import RELATIVE

_QUARTERS = (0.25, 0.5, 0.75)
_LENGTHS = (1, 5, 20)
_NEARLY_ALL = 0.9  # share of the rows above which a slice cannot differ much from the whole


def default_slices(contract: Contract) -> dict[str, Slices]:
    """Users and items by how often training saw them, the context's categories, the hour."""
    found: dict[str, Slices] = {
        f"{name} in training": SeenSlices(by="seen", feature=name)
        for name in (contract.user, contract.item)
    }
    for name, feature in contract.of_side("context"):
        if feature.kind == "id":
            found[name] = ValueSlices(by="value", feature=name)
    return found | {"hour of day": HourSlices(by="hour")}


def slice_rows(rule: Slices, contract: Contract, rows: Rows, train: Rows) -> dict[str, np.ndarray]:
    """Rows (N,) bool of each slice, by its name; empty where the rows lack the column.

    Args:
        rule: how to slice.
        contract: kinds of the features.
        rows: to slice.
        train: the training split, which slices by `seen` count in.
    """
    if isinstance(rule, HourSlices):
        return _by_hour(rule, rows)
    if rule.feature not in rows.table.column_names:
        return {}
    column = rows.table[rule.feature].combine_chunks()
    if isinstance(rule, SeenSlices):
        return _by_seen(rule, column, train)
    feature = contract.features.get(rule.feature)
    if isinstance(feature, NumberFeature):
        values = np.asarray(pc.fill_null(column.cast(pa.float64()), np.nan))
        known = values[np.isfinite(values)]
        edges = np.unique(np.quantile(known, _QUARTERS)).tolist() if len(known) else []
        return _by_edges(values, edges, _style(edges))
    if isinstance(feature, VectorFeature):
        return _by_value(rule, pc.if_else(column.is_valid(), "a vector", None))
    if isinstance(feature, IdListFeature):
        lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0)).astype(np.float64)
        return _by_edges(lengths, list(_LENGTHS), "{:.0f}", zero="none")
    if isinstance(feature, TextFeature):
        texts = pc.fill_null(column, "").to_pylist()
        lengths = np.array([len(text.split()) for text in texts], np.float64)
        return _by_edges(lengths, list(_LENGTHS), "{:.0f}", zero="none")
    return _by_value(rule, column)


def measure_slices(
    contract: Contract,
    options: EvaluationConfig,
    rows: Rows,
    train: Rows,
    labels: np.ndarray,
    scores: dict[str, np.ndarray],
    resamples: Resamples,
) -> SliceSummary:
    """Measure every slice on every task."""
    rules = default_slices(contract) if options.slices is None else options.slices
    whole = {
        name: _replicates(task, resamples, labels[:, t], scores[name], np.arange(len(rows)))
        for t, (name, task) in enumerate(contract.tasks.items())
    }
    looks: list[tuple[Look, float | None]] = []  # with the gap over its standard deviation
    count = 0
    for title, rule in rules.items():
        for value, inside in slice_rows(rule, contract, rows, train).items():
            chosen = np.flatnonzero(inside)
            if not len(chosen) or len(chosen) > _NEARLY_ALL * len(rows):
                continue
            count += 1
            for t, (name, task) in enumerate(contract.tasks.items()):
                known = chosen[~np.isnan(labels[chosen, t])]
                if len(known) < options.least_slice_rows:
                    continue
                found = _replicates(task, resamples, labels[:, t], scores[name], known)
                users = resamples.users_of(known)
                for measure, values in found.items():
                    gap = _gap(measure, values, whole[name][measure])
                    if not np.isfinite(gap[0]):
                        continue
                    spread = interval(gap, users, rows=len(known))["error"]
                    look: Look = {
                        "slice": title,
                        "value": value,
                        "task": name,
                        "measure": measure,
                        "users": users,
                        "rows": len(known),
                        "found": interval(values, users, rows=len(known)),
                        "whole": float(whole[name][measure][0]),
                        "gap": float(gap[0]),
                        "marked": False,
                    }
                    looks.append((look, float(gap[0]) / spread if spread else None))
    level = 0.05 / max(len(looks), 1)
    limit = float(norm.isf(level / 2))
    for look, z in looks:
        look["marked"] = z is not None and z < -limit
    rows_of_looks = sorted(
        (look for look, _ in looks), key=lambda look: (not look["marked"], look["gap"])
    )
    return {"slices": count, "looked_at": len(looks), "level": level, "rows": rows_of_looks}


def _replicates(
    task: Task, resamples: Resamples, labels: np.ndarray, scores: np.ndarray, chosen: np.ndarray
) -> dict[str, np.ndarray]:
    """The measures that slices are judged by, of some rows, (1 + R,) each."""
    known = chosen[~np.isnan(labels[chosen])]
    y, p = labels[known].astype(np.float64), scores[known]
    total = resamples.totals(np.ones(len(known)), known)
    if task.quantile is not None:
        lost = resamples.totals(pinball.losses(y, p, task.quantile), known)
        return {"pinball": tasks.ratio(lost, total)}
    if task.type == "regression":
        squares = resamples.totals((p - y) ** 2, known)
        return {"rmse": np.sqrt(tasks.ratio(squares, total))}
    observed, predicted = resamples.totals(y, known), resamples.totals(p, known)
    return {
        "auc": ranks.auc(resamples, y, p, known),
        "calibration": tasks.ratio(predicted, observed),
    }


def _gap(measure: str, values: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """How much worse than the whole a slice is, (1 + R,); negative is worse."""
    with np.errstate(invalid="ignore", divide="ignore"):
        if measure == "auc":
            return values - whole
        if measure in RELATIVE:
            return 1 - values / whole
        # Predicted over observed: nearer to 1 is better, from either side.
        return np.asarray(np.abs(np.log(whole)) - np.abs(np.log(values)))


def _by_hour(rule: HourSlices, rows: Rows) -> dict[str, np.ndarray]:
    if TIME not in rows.table.column_names:
        return {}
    hours = pc.hour(rows.table[TIME]).combine_chunks()
    blocks = np.asarray(pc.fill_null(hours, -1)) // rule.block
    return {
        f"{block * rule.block:02d} to {block * rule.block + rule.block - 1:02d} h": blocks == block
        for block in range(24 // rule.block)
    }


def _by_seen(rule: SeenSlices, column: pa.Array, train: Rows) -> dict[str, np.ndarray]:
    """Slices by how many training rows have the row's value; lists cannot be counted."""
    known = train.table[rule.feature]
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return {}
    counts = pc.value_counts(known.combine_chunks())
    place = pc.index_in(column, value_set=counts.field("values"))
    seen = np.asarray(pc.fill_null(pc.take(counts.field("counts"), place), 0)).astype(np.float64)
    missing = np.asarray(column.is_null())
    seen[missing] = np.nan
    return _by_edges(seen, list(rule.edges), "{:.0f}", zero="never")


def _by_value(rule: ValueSlices, column: pa.Array) -> dict[str, np.ndarray]:
    encoded = pc.dictionary_encode(column)
    names = encoded.dictionary.to_pylist()
    codes = np.asarray(pc.fill_null(encoded.indices, -1)).astype(np.int64)
    sizes = np.bincount(codes[codes >= 0], minlength=len(names))
    frequent = np.argsort(-sizes, kind="stable")[: rule.most]
    found = {str(names[code]): codes == code for code in sorted(frequent, key=lambda c: names[c])}
    others = (codes >= 0) & ~np.isin(codes, frequent)
    for title, inside in (("other values", others), ("missing", codes < 0)):
        name = title if title not in found else f"({title})"  # the log itself has such a value
        found[name] = inside
    return found


def _style(edges: list[float]) -> str:
    """Format for edges: as many digits as tell them apart."""
    digits = next(
        (n for n in range(4, 17) if len({f"{edge:.{n}g}" for edge in edges}) == len(edges)), 17
    )
    return f"{{:.{digits}g}}"


def _by_edges(
    values: np.ndarray, edges: list[float], style: str, zero: str | None = None
) -> dict[str, np.ndarray]:
    """Rows below the first edge, between every two edges, from the last edge on, and missing.

    Args:
        values: (N,), NaN where missing.
        edges: ascending.
        style: format of an edge.
        zero: name of the slice below 1, where values are whole numbers.
    """

    def show(value: float) -> str:
        return style.format(value)

    found = {}
    for low, high in itertools.pairwise([None, *edges, None]):
        inside = np.ones(len(values), bool)
        if low is not None:
            inside &= values >= low
        if high is not None:
            inside &= values < high
        if low is None:
            name = zero if zero is not None and high == 1 else f"below {show(high or 0)}"
        elif high is None:
            name = f"{show(low)} or more"
        elif zero is not None:
            name = f"{show(low)} to {show(high - 1)}" if high - 1 > low else show(low)
        else:
            name = f"{show(low)} to {show(high)}"
        found[name] = inside & ~np.isnan(values)
    return found | {"missing": np.isnan(values)}
