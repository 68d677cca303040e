"""The command ``isthmus``: one module per subcommand, loaded on demand. QNN's tools also have their own names."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

from isthmus import __version__
from isthmus.errors import DoesNotFit, QnnError, counted, did_you_mean, one_line, with_cause
from isthmus.tools.examples import EXAMPLES

QUESTIONS: Mapping[str, Mapping[str, str]] = {
    "How do I begin?": {
        "doctor": "report what this machine has, what works and what to install",
        "samples": "write the small models that README and the documents use",
        "warm": "compile ahead what models need, so that their first run starts at once",
        "completion": "print a script that completes command lines in bash, zsh or fish",
    },
    "How much memory does my model need, and how can it need less?": {
        "plan": "report and draw the memory that a model needs, without running it",
        "fit": "report how far a model's scratch can be reduced, and what that costs",
        "split": "rewrite a model file in tiles, so that any runtime needs less memory",
        "device": "report the memory of a model on chips, by Qualcomm's own compiler",
        "view": "write a page on which plans are opened by drag and drop, and compared",
        "sweep": "plan, run or compile many models with many settings, as one table",
        "pack": "solve a memory packing problem",
    },
    "Does my model run, how fast, and are its results right?": {
        "run": "run a model and report times, copies and memory",
        "compare": "compare every operation of a model with a reference and name the first that is wrong",
        "tflite-benchmark": "run a TFLite model in LiteRT with and without the delegate, and compare",
    },
    "What is in this file?": {"inspect": "describe a model or a context binary"},
    "How do I use QNN's own command lines and C clients? (the tools are also installed as qnn-net-run and so on)": {
        "context-binary-generator": "compile models for a backend into a context binary",
        "net-run": "run a model or a context binary on raw files",
        "throughput-net-run": "run models on several threads and count inferences",
        "context-binary-utility": "write the description of a context binary as JSON, with QNN's names",
        "profile-viewer": "show a profile log of net-run or the generator",
        "capi": "install the libraries that C clients of QNN load",
    },
}
"""The commands by the question that they answer, each with a summary."""
QNN_TOOLS = ("net-run", "context-binary-generator", "context-binary-utility", "throughput-net-run", "profile-viewer")
"""The commands that also have a name of their own, qnn-…."""
COMMANDS = {name: summary for group in QUESTIONS.values() for name, summary in group.items()}
# Hints at what replaces unknown options, by command and option; "" stands for an argument without an option.
_REPLACED: Mapping[str, Mapping[str, str]] = {
    "isthmus compare": dict.fromkeys(("", "--reference"), "--against REFERENCE names what to compare with."),
    "isthmus split": {"--scratch-limit": "--live-limit limits what is alive.", "": "--out FILE writes the result."},
    "isthmus sweep": {"--limit": "--row-timeout limits the time of a row."},
    "isthmus device": {
        "": "`isthmus sweep --mode device` measures many models.",
        **{name: f"`isthmus sweep --mode device {name}` does that."
           for name in ("--csv", "--html", "--shard", "--merge", "--scheduler")},
    },
}  # fmt: skip
AUDITED = ("run", "fit", "compare", "tflite-benchmark", "net-run", "throughput-net-run")
"""The commands that execute models, which can be audited."""
_STATUSES = "The exit status is 0 for success, 1 if the answer is no (it does not fit, say), and 2 for bad input."
_STANDARD_ERROR = 2
# Maximum number of characters of a file name in a message.
_MAX_NAME = 120


class _Paragraphs(argparse.HelpFormatter):
    """A help formatter that wraps each paragraph separately, and leaves those with indented lines as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = (
            part if part.startswith(" ") or "\n  " in part else super(_Paragraphs, self)._fill_text(part, width, indent)
            for part in text.split("\n\n")
        )
        return "\n\n".join(parts)


class CommandParser(argparse.ArgumentParser):
    """A parser whose error about a wrong choice names the nearest one, and whose errors end in one line."""

    def error(self, message: str) -> NoReturn:
        super().error(one_line(message))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as problem:
            problem.message += f". {hint}" if (hint := did_you_mean(value, map(str, action.choices or ()))) else ""
            raise

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a help or a version; argparse ignores that there is no room for it."""
        if not message or file is not sys.stdout:
            super()._print_message(message, file)
        elif status := _reporting(self.prog, lambda: print(message, end="") or 0):
            sys.exit(status)


def run(command_line: Sequence[str]) -> int:
    """Run the command line, which begins with the subcommand, and return the exit status (`_STATUSES`)."""
    arguments = list(command_line)
    _prepare_streams()
    parser = CommandParser(
        prog="isthmus",
        usage="isthmus [-h] [--version] COMMAND ...",
        description="Run, size and debug code for Qualcomm's NPUs on any Linux machine.",
        epilog="\n\n".join((*_questions(), f"{_STATUSES} `isthmus COMMAND --help` has examples.")),
        formatter_class=_Paragraphs,
    )
    parser.add_argument("--version", action="version", version=f"isthmus {__version__}")
    # The epilog lists the commands.
    subparsers = parser.add_subparsers(
        prog="isthmus", dest="command", metavar="COMMAND", required=True, help=argparse.SUPPRESS
    )
    for name in COMMANDS:
        subparser = subparsers.add_parser(name)
        # Only the module of the subcommand that will run is loaded.
        if name in arguments[:1]:
            _describe(subparser, name)
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        hint = did_you_mean(arguments[0], COMMANDS) or f"Commands are {', '.join(COMMANDS)}."
        parser.error(f"there is no command '{arguments[0]}'. {hint}")
    if not arguments:
        parser.error("give a command; 'isthmus --help' lists them, 'isthmus samples .' writes models to try")
    options = _parse(parser, arguments, subparsers.choices.get(arguments[0]))
    return _carry_out(f"isthmus {options.command}", options.command, options)


def _questions() -> Iterator[str]:
    """Yield the questions that commands answer, each with its commands, as wide as the terminal."""
    columns, indent = shutil.get_terminal_size().columns - 2, max(map(len, COMMANDS)) + 4
    for question, commands in QUESTIONS.items():
        lines = textwrap.wrap(question, columns)
        for name, summary in commands.items():
            start = f"  {name:<{indent - 2}}"
            lines += textwrap.wrap(summary, columns, initial_indent=start, subsequent_indent=" " * indent)
        yield "\n".join(lines)


def run_under_its_own_name(command: str, arguments: Sequence[str] | None) -> int:
    """Run a command under QNN's name for it."""
    _prepare_streams()
    parser = parser_of(command, f"qnn-{command}")
    return _carry_out(parser.prog, command, _parse(parser, arguments, parser))


def parser_of(command: str, prog: str) -> CommandParser:
    """Return the parser of one command, with all its options; `prog` is the name that it runs under."""
    parser = CommandParser(prog=prog)
    if not prog.startswith("isthmus"):
        parser.add_argument("--version", action="version", version=f"{prog} of isthmus {__version__}")
    _describe(parser, command)
    return parser


def _parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, command: argparse.ArgumentParser | None
) -> argparse.Namespace:
    """Parse the arguments; an error about an unknown option names what replaced it, or the nearest one of `command`."""
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        command = command or parser
        spellings = [option for action in command._actions for option in action.option_strings]
        option = unknown[0].partition("=")[0]
        hint = _REPLACED.get(command.prog, {}).get(option if option.startswith("-") else "", "")
        if not hint:
            owners = _commands_with(option)
            hint = f"It is an option of {', '.join(owners)}." if owners else did_you_mean(option, spellings)
        command.error(f"unrecognized arguments: {' '.join(unknown)}{f'. {hint}' if hint else ''}")
    return options


def _commands_with(option: str) -> list[str]:
    """Return the commands that have an option. All their modules are loaded for that."""
    parsers = {name: parser_of(name, f"isthmus {name}") for name in COMMANDS} if option.startswith("--") else {}
    return [each.prog for each in parsers.values() if any(option in action.option_strings for action in each._actions)]


def _prepare_streams() -> None:
    """Ensure that the standard streams exist and can print any name."""
    # The next file would get the number of a closed stream, and output would go into that file. So fill the numbers.
    while (opened := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        pass
    os.close(opened)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_STANDARD_ERROR, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        # Names in models and paths may contain characters that the terminal's encoding lacks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _describe(parser: argparse.ArgumentParser, command: str) -> None:
    """Add a command's options to a parser, and its module docstring after the summary as the epilog."""
    from isthmus.tools.options import SIZES  # loads logging, which no version needs

    module = _module(command)
    summary = COMMANDS[command]
    parser.description = f"{summary[0].upper()}{summary[1:]}."
    text = (module.__doc__ or "").partition("\n\n")[2].replace("``", "'").strip()
    examples = "\n".join(f"  {line}" for line in EXAMPLES[command])
    module.add_arguments(parser)
    if command in AUDITED:
        _add_audit_options(parser)
    has_sizes = any("SIZE" in f"{action.metavar} {action.help}" for action in parser._actions)
    parser.epilog = "\n\n".join(filter(None, (text, SIZES * has_sizes, "Examples:", examples, _STATUSES)))
    parser.formatter_class = _Paragraphs


def _add_audit_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that execute models, for audits."""
    from isthmus.tools.options import size

    text = "print what was allocated, registered, copied and why, and mistakes, to standard error"
    parser.add_argument("--audit", action="store_true", help=text)
    text = "audit; the exit status is 1 if executions copied more bytes than this"
    parser.add_argument("--max-copied", type=size, metavar="SIZE", help=text)


def _run_audited(main: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a subcommand and print its audit; return the exit status, 1 if it copied too many bytes."""
    # The audit of a command that fails is printed too, unless it was refused before it used any memory.
    from isthmus.memory.auditing import AuditLog, audit

    log, has_failed = AuditLog(), True
    try:
        with audit() as log:
            status = main(options)
        has_failed = False
    finally:
        if not (has_failed and log.is_blank):
            print(log, file=sys.stderr)
    if options.max_copied is not None and log.copied_bytes > options.max_copied:
        copied = f"{counted(log.copied_bytes, 'byte')} {'was' if log.copied_bytes == 1 else 'were'} copied"
        print(f"{copied}, {options.max_copied:,} are allowed", file=sys.stderr)
        return status or 1
    return status


def _carry_out(prog: str, command: str, options: argparse.Namespace) -> int:
    """Run a subcommand with parsed options and return the exit status."""
    from isthmus.tools.messages import show_messages

    def work() -> int:
        with show_messages(getattr(options, "log_level", None)):
            main: Callable[[argparse.Namespace], int] = _module(command).main
            if command in AUDITED and (options.audit or options.max_copied is not None):
                return _run_audited(main, options)
            return main(options)

    return _reporting(prog, work)


def _reporting(prog: str, work: Callable[[], int]) -> int:
    """Do some work of a command and return its exit status; print an error as one line after `prog`."""
    try:
        status = work()
        # A full disk shows itself now, not when Python ends.
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except QnnError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1 if isinstance(error, DoesNotFit) else 2
    except BrokenPipeError:
        # The reader of the output has closed it. The status is that of a program that ends by the signal for it.
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as problem:
        place = ""
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:
            _discard_output()
            place = "standard output: " if problem.filename is None else ""
        print(f"{prog}: {place}{_error_line(problem)}", file=sys.stderr)
        return 2


def _discard_output() -> None:
    """Let nothing more be written to standard output, which takes nothing, not even at exit."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


def _error_line(problem: OSError) -> str:
    """Describe a system error in one line; of a name that is too long, show the end."""
    if problem.strerror is None or problem.filename is None:
        return with_cause(problem.strerror or str(problem))
    name = repr(os.fsdecode(problem.filename))
    return with_cause(f"{name if len(name) <= _MAX_NAME else f'...{name[-_MAX_NAME:]}'}: {problem.strerror}")


def _module(command: str) -> Any:
    """Load the module of a subcommand."""
    # An interrupt waits until it is loaded: extension modules such as numpy's would turn it into an
    # `ImportError`.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return import_module(f"isthmus.tools.{command.replace('-', '_')}")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
