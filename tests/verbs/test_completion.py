"""Shells complete verbs, options and values, as the parsers have them."""

import os
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


CASES = {
    "tr": ["train", "trial"],
    "train --ex": ["--examples"],
    "evaluate --split v": ["validation"],
    "candidates ex": ["export"],
    "completion ": ["bash", "fish", "zsh"],
}
"""What is typed after the command, and what is offered for the last word."""
ZSH = """
autoload -Uz compinit && compinit -D -u
source {script}
compadd() {{ print -rl -- "${{@[${{@[(i)-]}} + 1, -1]}}" }}
for line in {lines}; do
    words=(multigate "${{(@s: :)line}}") CURRENT=${{#words}}
    print "== $line"
    eval "${{_comps[multigate]}}"
done
"""
"""compadd, which is replaced, would filter by the last word, and does in use."""
FISH = """
source {script}
for line in {lines}
    echo "== $line"
    complete -C "multigate $line"
end
"""


@pytest.mark.parametrize(("shell", "options", "code"), [("zsh", "-f", ZSH), ("fish", "-N", FISH)])
def test_other_shells_complete(shell, options, code, lacking, tmp_path, capsys):
    program = shutil.which(shell) or lacking(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(script(shell, capsys))
    lines = " ".join(f"'{line}'" for line in CASES)
    done = subprocess.run(
        [program, options, "-c", code.format(script=path, lines=lines)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path)},
    )
    assert done.stderr == ""
    for case in done.stdout.removeprefix("== ").split("\n== "):
        line, *offered = case.splitlines()
        last = line.rpartition(" ")[2]
        words = sorted(one.partition("\t")[0] for one in offered)
        assert [one for one in words if one.strip() and one.startswith(last)] == CASES[line]
    assert done.stdout.count("== ") == len(CASES)
