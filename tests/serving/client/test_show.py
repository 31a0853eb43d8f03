"""A ranked list in the terminal."""

import pytest

from multigate.serving.client.show import show_ranked


@pytest.mark.parametrize("name", ["film [new]", "[/b]", "[red]", ":100:", "a\\[b]"])
def test_ids_are_shown_as_they_are(name, capsys):
    """What rich would read as a style, as the end of one, or as an emoji."""
    item = {"index": 0, "item_id": name, "score": 0.5, "tasks": {"click": 0.25}}
    show_ranked(f"user {name}", [item])
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].strip() == f"user {name}"
    assert f" {name} " in printed
