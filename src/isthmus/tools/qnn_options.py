"""The options of QNN's tools: one table of their names, their arguments and their meaning here.

An option of the originals that has no meaning here is accepted and logged once, with the reason. One that would change
results and cannot be honoured is refused with the reason.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.backends.seam import registry
from isthmus.backends.seam.config import PERF_PROFILES
from isthmus.errors import Code, QnnError, did_you_mean, invalid_argument
from isthmus.log import Log, LogLevel
from isthmus.tools.files import file_name
from isthmus.tools.options import LOG_LEVELS

if TYPE_CHECKING:
    from isthmus.qnn import Backend

NET_RUN, GENERATOR, VIEWER = "net-run", "context-binary-generator", "profile-viewer"
_BOTH = (NET_RUN, GENERATOR)
PROFILING_LEVELS = ("basic", "detailed", "client", "backend")
# The most names that a message lists.
_MAX_LISTED = 8


@dataclass(frozen=True)
class Option:
    """An option of one or more of the tools.

    - `name`: the name without dashes.
    - `tools`: the commands that have it.
    - `help`: what it does here; for an option without effect, what it does in the original.
    - `argument`: the name of its argument in the help; empty for a flag.
    - `parse`: converts the argument's text, or raises `ValueError` with the rule that the text breaks.
    - `optional`: whether the argument may be left out.
    - `unused`: why the option has no effect here; empty if it has one.
    - `refused`: why the option cannot be honoured; empty if it can.
    """

    name: str
    tools: tuple[str, ...]
    help: str
    argument: str = ""
    parse: Callable[[str], Any] = str
    default: Any = None
    required: bool = False
    optional: bool = False
    unused: str = ""
    refused: str = ""

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Add the option to a parser."""
        text = self.help
        if self.unused:
            text += f" (without effect here: {self.unused})"
        elif self.refused:
            text += f" (not supported: {self.refused})"
        text = text.replace("%", "%%")
        if not self.argument:
            parser.add_argument(f"--{self.name}", action="store_true", help=text)
            return
        more: dict[str, Any] = {"nargs": "?", "const": ""} if self.optional else {}
        parser.add_argument(
            f"--{self.name}", metavar=self.argument, type=self._parse, default=self.default, required=self.required,
            help=text, **more,
        )  # fmt: skip

    def _parse(self, text: str) -> Any:
        """Convert the argument's text; an error is reported as one of the command line."""
        try:
            return self.parse(text)
        except ValueError as problem:
            raise argparse.ArgumentTypeError(f"'{text}': {problem}") from None


@dataclass(frozen=True)
class OneOf:
    """Checks that a text is one of some words, in any case, and returns the word."""

    words: tuple[str, ...]

    def __call__(self, text: str) -> str:
        if text.lower() not in self.words:
            raise ValueError(f"must be one of {', '.join(self.words)}. {did_you_mean(text, self.words)}".rstrip())
        return text.lower()


def _count(least: int) -> Callable[[str], int]:
    """Make a function that converts a text to an integer of at least `least`."""

    def parse(text: str) -> int:
        if not text.lstrip("-").isdecimal() or int(text) < least:
            raise ValueError(f"must be an integer of at least {least}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    """Convert a text to a positive number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError("must be a positive number of seconds")
    return seconds


def _libraries() -> str:
    """List the libraries that select a backend."""
    return ", ".join(f"libQnn{name.capitalize()}.so" for name in registry.names() if name.isalnum())


_ONE_CLOCK = "this machine has no clocks and voltages to set"
_GRAPH_TENSORS = "GRAPH:TENSOR,TENSOR[;...]"
OPTIONS = (
    Option("model", _BOTH, "model libraries, or .onnx, .tflite or .dlc files; each adds graphs", "M[,M...]"),
    Option("dlc_path", _BOTH, ".dlc files; each graph in them is added", "D[,D...]"),
    Option("retrieve_context", (NET_RUN,), "a context binary, instead of a model", "BIN", Path),
    Option("backend", _BOTH, f"{_libraries()}: selects the backend by file name; the file is not loaded", "LIBRARY",
           required=True),
    Option("input_list", (NET_RUN,), "lists of input files, one for each graph; __ skips a graph", "F[,F...]",
           required=True),
    Option("output_dir", _BOTH, "where files are written (default: output)", "DIR", Path, Path("output")),
    Option("config_file", _BOTH, "the tools' or the backend's configuration (JSON)", "FILE", Path),
    Option("binary_file", (GENERATOR,), "the file's name without .bin (default: the first model's)", "NAME"),
    Option("backend_binary", (GENERATOR,), "write the same binary under a second name, without .bin", "NAME"),
    Option("direct_mode", (NET_RUN,), "a mode of the backend to run in, for example adsp", "MODE"),
    Option("shared_buffer", (NET_RUN,), "inputs and outputs in shared memory: no copies"),
    Option("input_output_tensor_mem_type", (GENERATOR,), "memory that clients will pass at execution: raw or "
           "memhandle, which reserves nothing for copies (default: what a model library embeds, raw for other models)",
           "TYPE", OneOf(("raw", "memhandle"))),
    Option("input_data_type", (NET_RUN,), "float: input files hold floats (default); native: elements as stored",
           "TYPE", OneOf(("float", "native"))),
    Option("output_data_type", (NET_RUN,), "float_only (default): y.raw with floats; native_only: y_native.raw with "
           "elements as stored; float_and_native: both", "TYPE",
           OneOf(("float_only", "native_only", "float_and_native"))),
    Option("use_native_input_files", (NET_RUN,), "the same as --input_data_type native"),
    Option("use_native_output_files", (NET_RUN,), "the same as --output_data_type native_only"),
    Option("native_input_tensor_names", (NET_RUN,), "inputs whose files hold elements as stored", _GRAPH_TENSORS),
    Option("set_output_tensors", _BOTH, "intermediate tensors that become outputs too", _GRAPH_TENSORS),
    Option("debug", (NET_RUN,), "write every tensor of the graphs"),
    Option("enable_intermediate_outputs", (GENERATOR,), "make every tensor of the graphs an output"),
    Option("enable_graphs", (GENERATOR,), "the graphs to prepare (default: all)", "GRAPH[,GRAPH...]"),
    Option("num_inferences", (NET_RUN,), "how many inferences; the list is repeated as often as needed", "N",
           _count(1)),
    Option("duration", (NET_RUN,), "repeat the list until this time has passed", "SECONDS", _seconds),
    Option("keep_num_outputs", (NET_RUN,), "write the outputs of the first N inferences only", "N", _count(0)),
    Option("timeout", (NET_RUN,), "how long an execution may take (default: as long as the backend lets it)",
           "MICROSECONDS", _count(1)),
    Option("profiling_level", _BOTH, "write a log for qnn-profile-viewer to the output folder: basic (times of calls), "
           "detailed (also what the backend reports), client, backend", "LEVEL", OneOf(PROFILING_LEVELS)),
    Option("log_level", _BOTH, f"show messages up to a level: {', '.join(LOG_LEVELS)} (default: warn)", "LEVEL",
           OneOf(LOG_LEVELS)),
    Option("model_prefix", _BOTH, "the prefix of a model library's functions (default: QnnModel)", "PREFIX"),
    Option("op_packages", _BOTH, "libraries with operations of their own, the functions that provide their interfaces "
           "and, if wanted, their targets", "PATH:PROVIDER[:TARGET][,...]"),
    Option("binary_updates", (NET_RUN,), "updates of weights in a binary", "FILE",
           refused="binaries have no sections that can be replaced"),
    Option("data_format_config", (GENERATOR,), "data formats of inputs and outputs", "FILE",
           refused="inputs and outputs are always dense"),
    Option("batch_multiplier", (NET_RUN,), "inferences that one execution computes, on HTP (default: 1)", "N",
           _count(1)),
    Option("perf_profile", (NET_RUN,), ", ".join(PERF_PROFILES), "PROFILE", OneOf(PERF_PROFILES),
           unused=_ONE_CLOCK),
    Option("profiling_option", _BOTH, "further measurements: optrace", "OPTION", OneOf(("optrace",)),
           unused="there are no traces of the device's units"),
    Option("synchronous", (NET_RUN,), "wait for each execution", unused="executions are always waited for"),
    Option("use_mmap", (NET_RUN,), "map a context binary instead of reading it", "CHUNK", optional=True,
           unused="binaries are always mapped"),
    Option("validate_binary", (NET_RUN,), "check a context binary before use", unused="binaries are always checked"),
    Option("platform_options", _BOTH, "options of the platform", "KEY:VALUE[;...]",
           unused="there are no platform options"),
    Option("device_options", (NET_RUN,), "devices and cores to use", "OPTIONS", unused="there is one device"),
    Option("system_library", (NET_RUN,), "the library that reads DLC files", "FILE", unused="its function is built in"),
    Option("max_input_cache_tensor_sets", (NET_RUN,), "inputs to keep in memory", "N", _count(-1),
           unused="input files are read when they are needed"),
    Option("max_input_cache_size_mb", (NET_RUN,), "the size of inputs to keep in memory", "N", _count(0),
           unused="input files are read when they are needed"),
    Option("input_log", (VIEWER,), "logs that --profiling_level has written", "LOG[,LOG...]", required=True),
    Option("output", (VIEWER,), "write every event of every call as CSV", "FILE", file_name),
    Option("extract_opaque_objects", (VIEWER,), "write what a backend has added in its own format",
           unused="backends here add nothing"),
    Option("reader", (VIEWER,), "the library that reads the log", "LIBRARY", unused="the log has one format"),
    Option("config", (VIEWER,), "the configuration of that library", "FILE", unused="the log has one format"),
    Option("schematic", (VIEWER,), "where the compiler has placed operations, for optrace", "FILE",
           unused="there are no traces of the device's units"),
)  # fmt: skip
"""All options. Those with the same name mean the same in every tool."""


def add_options(parser: argparse.ArgumentParser, tool: str) -> None:
    """Add the options of a tool to a parser."""
    for option in OPTIONS:
        if tool in option.tools:
            option.add(parser)


def check_given(options: argparse.Namespace, tool: str) -> None:
    """Refuse given options that cannot be honoured, and warn of each given option that has no effect."""
    given = [each for each in OPTIONS if tool in each.tools and getattr(options, each.name) not in (None, False)]
    for option in given:
        if option.refused:
            value = getattr(options, option.name)
            raise QnnError(Code.COMMON_NOT_SUPPORTED, f"--{option.name} {value}", option.refused)
    for option in given:
        if option.unused:
            warn_unused(option.name, option.unused)


def warn_unused(name: str, reason: str) -> None:
    """Warn of an option that has no effect."""
    Log()(LogLevel.WARN, f"--{name}: accepted, but without effect here: {reason}")


def register_op_packages(backend: Backend, text: str | None) -> None:
    """Register the op packages that ``--op_packages`` names, in their order."""
    for item in filter(None, (text or "").split(",")):
        path, *others = item.split(":")
        if not path or len(others) not in (1, 2) or not all(others):
            raise invalid_argument(f"--op_packages {item}", "it must be PATH:PROVIDER or PATH:PROVIDER:TARGET")
        backend.register_op_package(path, *others)


def exclusive(options: argparse.Namespace, *names: str) -> None:
    """Refuse options that exclude each other; a name that the tool does not have counts as not given."""
    given = [f"--{name}" for name in names if getattr(options, name, None) not in (None, False)]
    if len(given) > 1:
        raise invalid_argument(" and ".join(given), "exclude each other")


def _list_names(names: Collection[str]) -> str:
    """List the first of some names."""
    more = ", ..." if len(names) > _MAX_LISTED else ""
    return f"{', '.join(map(repr, list(names)[:_MAX_LISTED]))}{more}" if names else "none"


def by_graph(text: str | None, option: str, tensors: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """Return the tensors that an option names, by graph.

    - `text`: ``graph:tensor,tensor;graph:tensor``. The graph's name may be left out if there is one graph.
    - `option`: the option's name, for messages.
    - `tensors`: the names of the tensors that may be named, by graph.

    Examples
    --------
    >>> by_graph("a:x,y;b:z", "set_output_tensors", {"a": ["x", "y"], "b": ["z"]}) == {"a": {"x", "y"}, "b": {"z"}}
    True
    """
    found: dict[str, set[str]] = {name: set() for name in tensors}
    for group in (text or "").split(";"):
        graph = next(iter(tensors)) if len(tensors) == 1 else ""
        for item in filter(None, group.split(",")):
            prefix, colon, rest = item.partition(":")
            # Names of tensors may contain colons.
            if colon and prefix in tensors:
                graph, item = prefix, rest
            if not graph:
                hint = did_you_mean(prefix, tensors) or f"Graphs are {', '.join(tensors)}."
                raise invalid_argument(f"--{option} {item}", "it names no graph", hint)
            if item not in tensors[graph]:
                rule = f"graph '{graph}' has no such tensor"
                hint = did_you_mean(item, tensors[graph]) or f"It has {_list_names(tensors[graph])}."
                raise invalid_argument(f"--{option} {item}", rule, hint)
            found[graph].add(item)
    return found
