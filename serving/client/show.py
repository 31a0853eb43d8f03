"""A ranked list as a table in the terminal."""

from collections.abc import Sequence

from rich.table import Table

from multigate.configs.console import Results
from multigate.serving.client.rank_client import RankedItem


def show_ranked(title: str, ranked: Sequence[RankedItem]) -> None:
    """Print one ranked list: place, item, combined score and each task's score."""
    table = Table(title=title, title_justify="left")
    table.add_column("place", justify="right")
    table.add_column("item")
    table.add_column("score", justify="right")
    tasks = list(ranked[0]["tasks"]) if ranked else []
    for task in tasks:
        table.add_column(task, justify="right")
    for place, item in enumerate(ranked, start=1):
        values = (f"{item['tasks'][task]:.4g}" for task in tasks)
        table.add_row(str(place), str(item["item_id"]), f"{item['score']:.4g}", *values)
    Results().print(table)
