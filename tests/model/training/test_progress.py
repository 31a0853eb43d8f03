"""What training shows on a terminal."""

import pytest

from multigate.model.training.progress import Display


def test_the_bar_ends_at_the_epochs_steps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are reported by the dozen, and the last dozen need not be full."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, to rich
    with Display(True, 3, 40) as display:
        display.begin_epoch(1)
        display.advance(32, 0.5)
        display.advance(48, 0.25)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "40/40" in shown.err
    assert "48/40" not in shown.err
