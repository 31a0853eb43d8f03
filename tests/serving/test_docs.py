"""docs/serving.md names every flag, metric and status that the server has."""

import re
from pathlib import Path

import pytest

from multigate.serving.core import status
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
METRICS = re.findall(r"^# TYPE (\S+)", ServerMetrics().text(), re.MULTILINE)
CODES = [one.code.name for one in status.RequestError.__subclasses__()]


@pytest.mark.parametrize(
    "name", [*(f"--{name}" for name in ServerOptions.model_fields), *METRICS, *CODES]
)
def test_the_page_names(name):
    assert name in PAGE
