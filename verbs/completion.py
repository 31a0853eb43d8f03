"""Print a shell's completion of the command, made from the verbs' own options."""

import argparse
import importlib
import shlex
from dataclasses import dataclass, field

from multigate.verbs import VERBS, module_of
from multigate.verbs.common import add_output

EXAMPLE = (
    "multigate completion bash > ~/.local/share/bash-completion/completions/multigate\n"
    'eval "$(multigate completion zsh)"    # in ~/.zshrc, after compinit\n'
    "multigate completion fish > ~/.config/fish/completions/multigate.fish"
)


@dataclass(frozen=True)
class _Words:
    """What may follow a verb: its options with their help, their values, and its first words."""

    options: dict[str, str] = field(default_factory=dict)
    values: dict[str, list[str]] = field(default_factory=dict)
    """By option: what it accepts, where that is a short list."""
    first: list[str] = field(default_factory=list)
    """Actions of the verb, or values of its first argument."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to complete in")


def execute(options: argparse.Namespace) -> None:
    """Run the verb."""
    words = {verb: _words(verb) for verb in VERBS}
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell](words), end="")


def _words(verb: str) -> _Words:
    """The options of a verb and of its actions."""
    module = importlib.import_module(module_of(verb))
    parser = argparse.ArgumentParser()
    if module.execute.__annotations__["return"] is not None:
        add_output(parser)
    module.add_arguments(parser)
    found = _Words()
    parsers = [parser]
    for one in parsers:
        for action in one._actions:
            choices = [str(choice) for choice in action.choices or ()]
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
            if not action.option_strings:
                found.first.extend(choices)
            for name in action.option_strings:
                if name.startswith("--") and action.help != argparse.SUPPRESS:
                    found.options[name] = (action.help or "").replace("%%", "%")
                    if choices:
                        found.values[name] = choices
    return found


def _bash(verbs: dict[str, _Words]) -> str:
    cases = []
    for verb, words in verbs.items():
        values = "".join(
            f"            {name}) COMPREPLY=($(compgen -W {shlex.quote(' '.join(choices))} -- "
            '"$word")); return ;;\n'
            for name, choices in words.values.items()
        )
        cases.append(
            f'    {verb})\n        case "$before" in\n{values}            *) ;;\n        esac\n'
            f"        options={shlex.quote(' '.join(words.options))}\n"
            f"        first={shlex.quote(' '.join(words.first))} ;;\n"
        )
    top = shlex.quote(" ".join([*verbs, "--help", "--version"]))
    return f"""# Completion of multigate, made by `multigate completion`.
_multigate() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD - 1]}}"
    local options="" first=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W {top} -- "$word"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{"".join(cases)}    *) return ;;
    esac
    if [ "${{word:0:1}}" = - ]; then
        COMPREPLY=($(compgen -W "$options" -- "$word"))
    elif [ "$COMP_CWORD" -eq 2 ] && [ -n "$first" ]; then
        COMPREPLY=($(compgen -W "$first" -- "$word"))
    fi
}}
complete -o default -F _multigate multigate
"""


def _zsh(verbs: dict[str, _Words]) -> str:
    return "autoload -Uz bashcompinit && bashcompinit\n" + _bash(verbs)


def _fish(verbs: dict[str, _Words]) -> str:
    lines = ["# Completion of multigate, made by `multigate completion`."]
    for verb, line in VERBS.items():
        lines.append(
            f"complete -c multigate -n __fish_use_subcommand -a {verb} -d {_fish_text(line)}"
        )
    for verb, words in verbs.items():
        seen = f"complete -c multigate -n '__fish_seen_subcommand_from {verb}'"
        if words.first:
            lines.append(f"{seen} -f -a {_fish_text(' '.join(words.first))}")
        for name, text in words.options.items():
            line = f"{seen} -l {name.removeprefix('--')} -d {_fish_text(text)}"
            if name in words.values:
                line += f" -x -a {_fish_text(' '.join(words.values[name]))}"
            lines.append(line)
    return "\n".join(lines) + "\n"


def _fish_text(text: str) -> str:
    """A text in single quotes, in which fish reads backslashes before quotes and backslashes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
