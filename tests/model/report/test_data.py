"""The report's section about the examples."""

import pytest

from multigate.model.report.data import report_section


@pytest.mark.parametrize(
    ("before", "now", "shown"),
    [
        (0.2, 0.3, "+50.0 %"),
        (0.2, 0.1, "-50.0 %"),
        (-2.0, -1.0, "+50.0 %"),
        (-2.0, -3.0, "-50.0 %"),
    ],
)
def test_a_mean_label_that_rises_has_changed_upwards(before, now, shown):
    split = {"mean": now, "count": 10, "masked": 0}
    drift = {"features": {}, "labels": {"margin": {"before": before, "now": now}}}
    section = report_section({"labels": {"margin": {"train": split}}, "drift": drift})
    assert f"<td>{shown}</td>" in section
