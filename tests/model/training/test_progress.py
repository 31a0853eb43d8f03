"""What training shows; tests/verbs/test_progress.py looks at the bar on a terminal."""

import pytest

from multigate.model.training.progress import Display


def test_the_bar_ends_at_the_epochs_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """Steps are reported by the dozen, and the last dozen need not be full."""
    with Display(True, 3, 40) as display:
        display.begin_epoch(1)
        display.advance(32, 0.5)
        assert display.bar.completed == 32
        display.advance(48, 0.25)
        assert display.bar.completed == 40
        display.note("a line")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "a line\n")
