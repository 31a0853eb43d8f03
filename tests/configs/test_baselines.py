"""Baselines are configurations of the same contract, or libraries that can be loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

from multigate.configs import ConfigError, load
from multigate.configs.baselines import baseline


def test_shared_bottom_has_one_expert_behind_softmax_gates():
    config = load("demo")
    bottom = baseline(config, "shared_bottom")
    assert (bottom.model.experts.count, bottom.model.gate.name) == (1, "softmax")
    assert bottom.model.experts.units == config.model.experts.units
    assert bottom.contract == config.contract


def test_single_task_keeps_one_weight_and_the_schema():
    config = load("demo")
    single = baseline(config, "single_task:dwell")
    weights = {name: task.weight for name, task in single.contract.tasks.items()}
    assert weights.pop("dwell") == config.contract.tasks["dwell"].weight
    assert set(weights.values()) == {0.0}
    assert single.model.experts.count == 1
    assert single.contract.schema_fingerprint() == config.contract.schema_fingerprint()


@pytest.mark.parametrize("name", ["", "shared", "single_task", "single_task:x", "shared_bottom:x"])
def test_unknown_baselines_name_the_known_ones(name):
    with pytest.raises(ConfigError, match="expected one of shared_bottom, single_task:click"):
        baseline(load("demo"), name)


REQUIRE = """
import sys
from multigate.configs.baselines import is_installed, require_library
from multigate.configs.errors import ConfigError
require_library(None)
assert is_installed("made") and "made" not in sys.modules, "looked for, not imported"
try:
    require_library("made")
except ConfigError as error:
    print(error)
else:
    print("loaded" if "made" in sys.modules else "not loaded")
"""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "loaded"),
        ("import absent_of_course", "cannot be loaded: No module named 'absent_of_course'; "),
        ("raise OSError('libz.so: cannot\\n open')", "cannot be loaded: libz.so: cannot open; "),
    ],
)
def test_a_library_must_be_loaded_and_not_only_installed(source: str, said: str, tmp_path: Path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made/__init__.py").write_text(source)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{REQUIRE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert said in line
    if source:
        assert line.startswith("baseline made: the package is installed but cannot be loaded: ")
        assert "pip install --force-reinstall --no-deps made" in line
        assert "libgomp1" not in line
