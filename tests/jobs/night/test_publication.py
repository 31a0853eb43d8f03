"""What follows a publication and cannot undo it."""

import logging
from types import SimpleNamespace

from multigate.jobs.lock import locked
from multigate.jobs.night import stages
from multigate.jobs.publication import base_folder
from multigate.jobs.publication.base_folder import Base
from multigate.jobs.publication.pair import Pair


def test_old_versions_that_cannot_be_removed_do_not_fail_the_night(tmp_path, monkeypatch, caplog):
    """The version is in production by then."""
    monkeypatch.setattr(base_folder, "_WAIT", 0.0)
    base = Base(tmp_path / "night")
    for number in range(1, 5):
        (base.root / str(number) / "assets.extra").mkdir(parents=True)
    run = SimpleNamespace(keep_versions=2)
    night = SimpleNamespace(base=base, pair=Pair(base), config=SimpleNamespace(run=run))
    with locked(base.root / ".lock", "test"), caplog.at_level(logging.WARNING):
        assert stages._remove_old_versions(night) == ([], [])
    assert "old versions are not removed: " in caplog.text
    assert "held by test" in caplog.text
    assert stages._remove_old_versions(night) == ([2, 1], [])
