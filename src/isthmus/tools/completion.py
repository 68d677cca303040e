"""``isthmus completion``: a script that completes command lines in bash, zsh or fish.

Commands, options, backends and other fixed values are completed, and file names everywhere else. The script is made
from the commands' own parsers and contains all words, so that completing starts no Python. It also completes QNN's
tools (qnn-net-run and the others).

bash: add `eval "$(isthmus completion bash)"` to ~/.bashrc. zsh: the same with zsh in ~/.zshrc, after compinit. fish:
write the output to ~/.config/fish/completions/isthmus.fish.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from isthmus.backends.seam import registry
from isthmus.tools import commands
from isthmus.tools.commands import QNN_TOOLS
from isthmus.tools.qnn_options import OPTIONS, OneOf

# The words that may follow an option of QNN's tools, by the option's name.
_QNN_WORDS = {option.name: option.parse.words for option in OPTIONS if isinstance(option.parse, OneOf)}


@dataclass(frozen=True)
class Completion:
    """What can be typed after a command.

    - `options`: its options, each with its help.
    - `values`: the values of options that have fixed ones; for an option with any value None.
    - `words`: the values of arguments without an option, if they are fixed.
    """

    options: dict[str, str]
    values: dict[str, tuple[str, ...] | None]
    words: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument("shell", choices=list(_SCRIPTS), help="the shell to complete in")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    print(_SCRIPTS[options.shell]())
    return 0


def completion_of(parser: argparse.ArgumentParser) -> Completion:
    """Return what can be typed after the command of a parser."""
    options: dict[str, str] = {}
    values: dict[str, tuple[str, ...] | None] = {}
    words: tuple[str, ...] = ()
    name = parser.prog.removeprefix("isthmus ").removeprefix("qnn-")
    for action in parser._actions:
        fixed = None if action.choices is None else tuple(map(str, action.choices))
        if name in QNN_TOOLS:
            fixed = fixed or _QNN_WORDS.get(action.dest)
        if action.dest == "backend":
            qnn = (f"libQnn{name.capitalize()}.so" for name in registry.names() if name.isalnum())
            # QNN's tools select a backend by the name of its library.
            fixed = tuple(qnn) if parser.prog.startswith("qnn-") else tuple(registry.names())
        if not action.option_strings:
            words += fixed or ()
        for option in action.option_strings:
            options[option] = " ".join((action.help or "").replace("%%", "%").split())
            if action.nargs != 0:
                values[option] = fixed
    return Completion(options, values, words)


def completions() -> dict[str, Completion]:
    """Return the completions of all commands: by the name of a subcommand, or of a tool (qnn-…)."""
    found = {name: completion_of(commands.parser_of(name, f"isthmus {name}")) for name in commands.COMMANDS}
    return found | {f"qnn-{name}": completion_of(commands.parser_of(name, f"qnn-{name}")) for name in QNN_TOOLS}


def _words(words: object) -> str:
    """Return words as one quoted word of a shell."""
    return shlex.quote(" ".join(map(str, words)))  # type: ignore[call-overload]


def _cases() -> Iterator[str]:
    """Yield the branches of bash's script: for a command and the word before, what may follow."""
    for name, each in completions().items():
        for option, fixed in each.values.items():
            yield f"        {name}:{option}) words={_words(fixed or ())} ;;"
        yield f"        {name}:*) options={_words(each.options)} words={_words(each.words)} ;;"


def bash() -> str:
    """Return the script for bash. Where no word fits, the shell completes names of files."""
    cases = "\n".join(_cases())
    return f"""# Completes isthmus and QNN's tools. Made by: isthmus completion bash
_isthmus() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="${{COMP_WORDS[0]##*/}}" options="" words=""
    if [[ $command == isthmus ]]; then
        if (( COMP_CWORD == 1 )); then
            COMPREPLY=($(compgen -W {_words([*commands.COMMANDS, "--help", "--version"])} -- "$current"))
            return
        fi
        command="${{COMP_WORDS[1]}}"
    fi
    case "$command:$previous" in
{cases}
    esac
    [[ $current == -* ]] && words="$options"
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _isthmus isthmus {" ".join(f"qnn-{name}" for name in QNN_TOOLS)}"""


def zsh() -> str:
    """Return the script for zsh, which runs bash's."""
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash()}"


def fish() -> str:
    """Return the script for fish."""
    lines = ["# Completes isthmus and QNN's tools. Made by: isthmus completion fish"]
    for name, summary in commands.COMMANDS.items():
        lines.append(f"complete -c isthmus -n __fish_use_subcommand -f -a {name} -d {shlex.quote(summary)}")
    for name, each in completions().items():
        start = f"complete -c isthmus -n '__fish_seen_subcommand_from {name}'"
        if name.startswith("qnn-"):
            start = f"complete -c {name}"
        if each.words:
            lines.append(f"{start} -f -a {_words(each.words)}")
        for option, text in each.options.items():
            kind = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            if option in each.values:
                fixed = each.values[option]
                kind += f" -x -a {_words(fixed)}" if fixed else " -r"
            lines.append(f"{start} {kind} -d {shlex.quote(text)}")
    return "\n".join(lines)


# The shells, and what makes their scripts.
_SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}
