"""Prints a verdict on a version on trial."""

from rich.table import Table

from multigate.jobs.show import say, show_table
from multigate.jobs.trial.judge import Judged, in_words
from multigate.jobs.trial.measures import Pair
from multigate.model.evaluation.measures.bootstrap import Interval, limits
from multigate.model.evaluation.measures.names import title


def show_trial(found: Judged, stops: bool) -> None:
    """Print what is known of the version on trial; `stops`: a refusal withdraws it at once."""
    settings = found["settings"]
    table = Table(
        title=f"version {found['version']} on trial against version {found['against']}: canary "
        f"{settings['canary']:g} % of the users, shadow {settings['shadow']:g} % of the calls",
        title_justify="left",
    )
    table.add_column("")
    for heading in ("on trial", "production", "difference"):
        table.add_column(heading, justify="right")
    canary, shadow = found["canary"], found["shadow"]
    if canary is not None:
        table.add_row("users", *(f"{canary['users'][one]:,}" for one in ("canary", "stable")))
        table.add_row("calls", *(f"{canary['calls'][one]:,}" for one in ("canary", "stable")))
        _add(table, "items shown per user", canary["items_per_user"])
        for name, outcome in canary["tasks"].items():
            _add(table, f"{name}: {outcome['label']['metric']} per item shown", outcome["label"])
            _add(table, f"{name}: mean score", outcome["score"])
            if outcome["calibration"] is not None:
                _add(table, f"{name}: predicted over observed", outcome["calibration"])
        table.add_row("calls that production answered", f"{100 * canary['fallbacks']:.2f} %")
        table.add_section()
    if shadow is not None:
        table.add_row("calls that both scored", f"{shadow['calls']:,} of {shadow['due']:,}")
        table.add_row("pairs of items in the same order", _text(shadow["pairs"]))
        table.add_row("items that both answer", _text(shadow["overlap"]))
        for name, pair in shadow["scores"].items():
            _add(table, f"{name}: mean score of the same items", pair)
        for group, rows in shadow["chosen_by"].items():
            chooser = "production" if group == "stable" else "the version on trial"
            table.add_section()
            table.add_row(f"on {rows['rows']:,} items that {chooser} chose")
            for name, pair in rows["tasks"].items():
                _add(table, f"{name}: {title(pair['metric'])}", pair)
            if rows["ranking"] is not None:
                _add(table, f"order: {rows['ranking']['metric'].upper()}", rows["ranking"])
    table.caption = (
        "Measures on items that one version chose favour the other one; the canary's outcomes do "
        "not."
        if shadow is not None and shadow["chosen_by"]
        else None
    )
    show_table(table)
    for one in found["objections"]:
        say(f"{one['guard']}: {one['reason']}")
    say(
        {
            "bless": f"version {found['version']} is shown to be safe; multigate publish --promote "
            "puts it into production",
            "refuse": f"version {found['version']} is refused"
            + (" and withdrawn" if stops else "; multigate publish --stop withdraws it"),
            "wait": f"version {found['version']} is not shown to be safe yet",
        }[found["verdict"]]
    )


def _add(table: Table, name: str, pair: Pair) -> None:
    values = (
        "" if one["value"] is None else f"{one['value']:.4f}"
        for one in (pair["candidate"], pair["production"])
    )
    table.add_row(name, *values, in_words(pair))


def _text(found: Interval) -> str:
    if found["value"] is None:
        return ""
    ends = limits(found)
    within = "" if ends is None else f" ({ends[0]:.3f} to {ends[1]:.3f})"
    return f"{found['value']:.3f}{within}"
