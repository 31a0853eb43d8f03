"""Shells complete verbs, options and values, as the parsers have them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from multigate.verbs import VERBS
from multigate.verbs.command import main


def script(shell, capsys):
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.fixture
def complete(tmp_path, capsys):
    """What bash offers for the last of some words."""
    (tmp_path / "completion").write_text(script("bash", capsys))

    def offered(*words: str) -> list[str]:
        code = (
            f'set -u; source {tmp_path}/completion; COMP_WORDS=(multigate "$@"); '
            'COMP_CWORD=$#; _multigate; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "-c", code, "bash", *words], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return done.stdout.split()

    return offered


def test_bash_completes_verbs_options_and_values(complete):
    assert set(VERBS) < set(complete(""))
    assert complete("tr") == ["train", "trial"]
    assert complete("run") == ["run", "runs"]
    assert complete("train", "--ex") == ["--examples"]
    assert complete("print-config", "--as") == ["--as_written"]
    assert "--json" in complete("evaluate", "--")
    assert "--json" not in complete("serve", "--")
    assert complete("evaluate", "--split", "v") == ["validation"]
    assert complete("features", "l") == ["load"]
    assert complete("candidates", "ex") == ["export"]
    assert complete("completion", "") == ["bash", "zsh", "fish"]
    assert complete("train", "--examples", "") == []  # bash then offers files


def test_bash_knows_the_completion_as_the_commands(tmp_path, capsys):
    (tmp_path / "completion").write_text(script("bash", capsys))
    code = f"source {tmp_path}/completion; complete -p multigate"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "complete -o default -F _multigate multigate\n"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_their_script(shell, tmp_path, capsys):
    text = script(shell, capsys)
    for verb in VERBS:
        assert verb in text
    if shell == "fish":
        line = next(line for line in text.splitlines() if "from evaluate' -l split " in line)
        assert line.endswith(" -x -a 'train validation test'")
    path = Path(tmp_path / "script")
    path.write_text(text)
    if shutil.which(shell) is not None:
        assert subprocess.run([shell, "-n", str(path)], check=False).returncode == 0
