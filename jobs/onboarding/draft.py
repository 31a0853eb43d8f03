"""Drafts a commented configuration from a folder that holds a log.

ydata-profiling was considered: it describes columns, and drafts neither roles nor labels.
"""

from typing import Any

from multigate.configs import progress
from multigate.configs.baselines import LIGHTGBM, is_installed
from multigate.configs.sections.nearest import listed
from multigate.configs.storage import Place
from multigate.jobs.onboarding.bounds import add_bounds
from multigate.jobs.onboarding.column_features import CLIP, column_features
from multigate.jobs.onboarding.drafted import Draft
from multigate.jobs.onboarding.feedback.column_labels import feedback_columns
from multigate.jobs.onboarding.feedback.event_labels import feedback_events
from multigate.jobs.onboarding.feedback.weights import guess_weight
from multigate.jobs.onboarding.log_section import pipeline_section
from multigate.jobs.onboarding.pairs import add_pairs
from multigate.jobs.onboarding.past_rates import (
    add_first_values,
    add_tastes,
    of_users_and_items,
)
from multigate.jobs.onboarding.sample import label_sample
from multigate.jobs.onboarding.tables.raw import Table, find_tables
from multigate.jobs.onboarding.tables.roles import Roles, guess_roles, side_tables
from multigate.jobs.onboarding.tables.unfold import unfold
from multigate.jobs.onboarding.tables.variants import one_spelling
from multigate.jobs.onboarding.time_features import features_over_time, times_of_day
from multigate.pipeline.read.json_lines import as_text

_ROWS = 200_000
_SIZES = (
    # rows, embedding_dim, experts, units, batch_size
    (50_000, 16, 4, 64, 512),
    (1_000_000, 32, 8, 128, 2048),
    (2**63, 32, 8, 128, 4096),
)
_TAUGHT_ROWS = 1_000_000
"""A teacher holds the training split in memory as one table."""
_EPOCHS, _RATE = 8, 0.004
_TRAINING = 0.8  # share of the rows


@progress.stepwise("init", 5)
def draft(data: Place, name: str) -> Draft:
    """Look at a folder and draft a configuration.

    Args:
        data: the folder of the log.
        name: of the model.

    Raises:
        DataError: there is no such folder, no table in it, or no column of times, users or items.
    """
    progress.step("read a sample")
    log, *others = find_tables(data, _ROWS)
    progress.step("columns and roles")
    log, others = one_spelling(unfold(log), others)
    roles = guess_roles(log, others)
    guess_weight(roles)
    progress.step("labels")
    is_events = roles.event is not None
    labels = feedback_events(roles) if is_events else feedback_columns(roles)
    made = Draft({}, left_out=dict(labels.afterwards))
    tables = side_tables(roles, others)
    read = [table for table, _ in tables.values()]
    made.unread = {
        ", ".join(table.files): _why_unread(table, roles)
        for table in others
        if not any(table is one for one in read)
    }
    progress.step("features")
    features = column_features(roles, labels, tables, made)
    over_time = roles.time.unknown is None
    derive: dict[str, Any] = dict(roles.derive)
    if over_time:
        derive |= times_of_day(roles, features, labels, made)
        features |= features_over_time(roles, labels, features, made)
    contract: dict[str, Any] = {role: made.notes.pop(f"{role} feature") for role in roles.ids} | {
        "features": features
    }
    firsts: list[str] = []
    rates = None
    if over_time and any(one["label"]["rule"] != "impression" for one in labels.tasks.values()):
        rates = of_users_and_items(roles, labels.tasks, features, made)
    if rates is not None:
        contract["rates"] = rates
        firsts = add_first_values(roles, log, tables, features, made)
    contract["tasks"] = labels.tasks
    for task, why in labels.reasons.items():
        made.notes[f"contract.tasks.{task}"] = why
    rows = log.rows if roles.event is None else round(log.rows * _share_shown(roles))
    pipeline = pipeline_section(log, roles, labels, tables, rows, made)
    _spell(log, pipeline["log"], derive, contract, made)
    if "feedback" in pipeline["log"] and "derive" in pipeline["log"]:
        pipeline["log"]["feedback"]["derive"] = pipeline["log"]["derive"]
    for source, (table, _) in tables.items():
        _spell(table, pipeline[source], {}, contract, made)
    drawn = pipeline.get("negatives", {}).get("per_positive", 0)
    made.values = {
        "name": name,
        "contract": contract,
        "pipeline": pipeline,
        **_model(rows * (1 + drawn), drawn > 0, made),
    }
    if labels.shown_only:
        made.values["evaluation"] = {"rules": {"calibration": None}}
        made.notes["evaluation"] = (
            "sampled negatives make the rate of the first task a choice, so that predicted over "
            "observed is not judged"
        )
    made.notes["pipeline.log.columns"] = "; ".join(
        f"{role}: {why}" for role, why in roles.reasons.items()
    )
    progress.step("labels of the sample")
    labelled = label_sample(made.config(), data, _ROWS)
    if "rates" in contract:
        add_tastes(made, labelled, firsts)
    add_pairs(made, labelled)
    if labelled is not None:
        add_bounds(made, labelled)
    return made


def _spell(
    table: Table,
    section: dict[str, Any],
    derive: dict[str, Any],
    contract: dict[str, Any],
    made: Draft,
) -> None:
    """Add the rules of the columns that a draft reads, and why the files need them."""
    read = _texts([contract, {k: v for k, v in section.items() if k != "derive"}, derive])
    rules = {name: rule for name, rule in table.derive.items() if name in read} | derive
    if rules:
        section["derive"] = rules
    alike: dict[str, list[str]] = {}  # reasons that differ in their examples only
    for name, why in table.spellings.items():
        if name in rules:
            alike.setdefault(why.partition(", such as")[0], []).append(name)
    told = "; ".join(f"{listed(names)}: {table.spellings[names[0]]}" for names in alike.values())
    if told:
        where = "log" if "shape" in section else section["files"][0]
        made.notes["pipeline.derive"] = "; ".join(
            one for one in (made.notes.get("pipeline.derive"), f"{where}: {told}") if one
        )


def _weight_decay(rows: int, batch: int) -> float:
    """By which a weight that no label moves falls to a third over the steps of eight epochs.

    A cosine's mean is half of its first learning rate.
    """
    steps = _EPOCHS * max(rows * _TRAINING / batch, 1)
    return float(f"{1 / (steps * _RATE / 2):.2g}")


def _texts(values: Any) -> set[str]:
    """All texts in a configuration, keys among them."""
    if isinstance(values, dict):
        return {*values} | set().union(*(_texts(one) for one in values.values()))
    if isinstance(values, list | tuple):
        return set().union(*(_texts(one) for one in values))
    return {values} if isinstance(values, str) else set()


def _why_unread(table: Table, roles: Roles) -> str:
    """Why a table beside the log is none of its side tables."""
    why = f"{table.rows} rows; no column holds the log's users or items, each once"
    if all(_holds(table, name, roles) for name in (roles.user, roles.item)):
        why += (
            ". It names both: if its rows are events of this log, write all events into one table, "
            "with a column that names their type"
        )
    return why


def _holds(table: Table, name: str, roles: Roles) -> bool:
    """Whether a table has a column of the log's, with mostly the same values.

    Files without a header have made-up names, which agree by chance.
    """
    if name not in table.frame.columns:
        return False
    known = as_text(roles.columns[name].raw).drop_nulls().unique()
    values = as_text(table.frame[name]).drop_nulls().unique()
    return float(values.is_in(known.implode()).mean() or 0.0) > 0.5


def _share_shown(roles: Roles) -> float:
    counts = roles.event_counts
    shown = counts.get(str(roles.impression), 0)
    rows = sum(counts.values()) - (0 if roles.visits is None else shown)
    return shown / max(rows, 1)


def _model(rows: int, drawn: bool, made: Draft) -> dict[str, Any]:
    dim, experts, units, batch = next(rest for least, *rest in _SIZES if rows < least)
    made.notes["model"] = f"for about {rows} examples"
    made.notes["model.wide"] = "ids with few rows have small embeddings"
    made.notes["model.factors"] = (
        "tables of what two values do together, for pairs and tasks that they help on validation"
    )
    made.notes["tune"] = "what `multigate tune` searches; nothing else reads it"
    teacher = {}
    if rows < _TAUGHT_ROWS and is_installed(LIGHTGBM):
        teacher["teacher"] = {"share": 0.5}
        made.notes["train.teacher"] = (
            "half of each label of training is the score of boosted trees, which helps where "
            "labels are few; training takes about twice as long, serving no longer"
        )
    return {
        "model": {
            "embedding_dim": dim,
            "number_clip": CLIP,
            "wide": {"embeddings": 10.0},
            "factors": {},
            "experts": {"count": experts, "units": [units], "dropout": 0.3},
            # Exactly two experts from the first step on: the selection of a DSelect-k gate has not
            # converged after the few steps of a small log.
            "gate": {"name": "topk", "num_selected": 2},
            # With a gate of each task a row needs nearly all experts, for the same quality.
            "shared_gate": "all",
        },
        "train": {
            # Of the first task of drawn negatives every row has a label: it goes on to learn.
            "epochs": 2 * _EPOCHS if drawn else _EPOCHS,
            "batch_size": batch,
            "learning_rate": _RATE,
            "decay": "cosine",
            "weight_decay": _weight_decay(rows, batch),
            "ema": 0.99,
            "patience": 5 if drawn else 3,
            **teacher,
        },
        "tune": {
            "space": {
                "train.learning_rate": {"low": 0.001, "high": 0.01, "log": True},
                "model.embedding_dim": {"choices": [dim // 2, dim, 2 * dim]},
                "model.experts.dropout": {"low": 0.0, "high": 0.5},
            }
        },
    }
