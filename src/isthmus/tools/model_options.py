"""The options that all commands on a model share, and the model that they describe.

A model is an .onnx, .tflite or .dlc file, a model library (.so) or a context binary (.bin); the contents decide. A
context binary is prepared: what would need another preparation, such as a smaller limit on scratch, is refused.
"""

from __future__ import annotations

import argparse
import json
import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus import frontends
from isthmus.backends.seam import registry
from isthmus.backends.seam.entry import BackendEntry, PlanReport, PlanRequest
from isthmus.errors import Code, QnnError, did_you_mean, invalid_argument
from isthmus.frontends import LIBRARY_MAGIC, ModelSource, assumed_shapes
from isthmus.graph import BinaryInfo, Graph, GraphInfo
from isthmus.log import Log
from isthmus.prepare.tiling import ScratchLimit, parse_size
from isthmus.system import reading
from isthmus.tools.files import file_name
from isthmus.tools.options import add_shared, size

if TYPE_CHECKING:
    from isthmus.session import Session

KINDS = "a .onnx, .tflite or .dlc file, a model library (.so) or a context binary (.bin)"
SETTABLE: Mapping[str, Callable[[str], Any]] = {
    "threads": int, "scratch-limit": str, "slower": float, "tcm": size, "direct-mode": str, "io": str,
    "timeout": float, "target": str, "repeat": int,
}  # fmt: skip
"""The options that ``--set`` can set, where a command has them, and how their values are converted."""


def add_model_options(parser: argparse.ArgumentParser, many: bool = False, optional: bool = False) -> None:
    """Add the options of a model to a parser: of one model, which may be optional, or of any number of them."""
    if many:
        parser.add_argument("models", nargs="*", type=file_name, metavar="MODEL", help=f"each {KINDS}")
    else:
        parser.add_argument("model", nargs="?" if optional else None, type=file_name, metavar="MODEL", help=KINDS)
    add_shared(parser, "graph")
    backends = ", ".join(registry.names())
    text = f"{backends}, or the name of a library (default: {registry.DEFAULT}, or that of a context binary)"
    parser.add_argument("--backend", help=text)
    add_shared(parser, "shape", "strict")
    what = "the greatest value of a tensor inside an ONNX model that decides a shape; may be repeated"
    parser.add_argument("--bound", action="append", default=[], metavar="NAME=100", help=what)
    add_shared(parser, "config")
    what = "an option of this command, or a key of the backend's configuration such as htp.precision; may be repeated"
    value = "KEY=VALUE,..." if many else "KEY=VALUE"
    parser.add_argument("--set", action="append", default=[], metavar=value, help=what)
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of an execution (default 1)")
    add_shared(parser, "scratch-limit", "slower", "direct-mode", "log-level", "json")


@dataclass(frozen=True)
class ModelRequest:
    """A model, and how it is to be prepared.

    - `source`: the file, the dimensions of its inputs and the name of the graph.
    - `entry`: the backend.
    - `config`: the backend's configuration, as `Session` takes it.
    - `limit`: the limit on scratch.
    - `binary`: the description of a context binary; None for a model that is yet to be prepared.
    - `bounds`: the greatest values of tensors inside the model that decide shapes, by name.
    """

    source: ModelSource
    entry: BackendEntry
    config: Any = None
    threads: int = 1
    limit: ScratchLimit | None = None
    binary: BinaryInfo | None = None
    bounds: Mapping[str, Sequence[float]] | None = None

    def session(
        self, io: str | None = None, timeout: float | None = None, limit: ScratchLimit | None = None
    ) -> Session:
        """Prepare the model to run, with its own limit on scratch or another one."""
        from isthmus.session import Session  # not needed, and not loaded, where a model is only planned

        return Session(
            self.source.path, self.entry.name, self.source.shapes, self.threads, config=self.config, io=io,
            timeout=timeout, graph=self.source.graph, scratch_limit=limit or self.limit, bounds=self.bounds,
        )  # fmt: skip

    def load(self) -> Graph:
        """Create the graph of a model. The API is loaded only for a model library, and to refuse a context binary."""
        if self.binary is not None or reading.begins(self.source.path, LIBRARY_MAGIC):
            from isthmus.qnn import models

            return models.load(self.source)
        return self.source.only(frontends.load_all(self.source))

    def plan(self, graph: Graph, target: str | None = None) -> PlanReport:
        """Plan a graph's memory as the backend would, for an instruction set."""
        if self.entry.prepare is None:
            what, rule = f"--backend {self.entry.name}", "this backend does not report how it plans memory"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, what, rule)
        config = self.entry.read_config(self.config, Log())
        return self.entry.prepare(graph, config, PlanRequest(self.threads, self.limit, target))

    def prepared(self) -> GraphInfo | None:
        """Return the description of the graph in a context binary; None for a model that is not prepared."""
        if self.binary is None:
            return None
        from isthmus.qnn import models

        source = self.source
        return models.prepared_graph(
            self.binary, source.path, source.graph, bool(source.shapes), self.threads, self.limit
        )


def request_of(options: argparse.Namespace, model: Path | None = None) -> ModelRequest:
    """Return the model that the options of a command line describe, or another one with the same options."""
    path: Path = options.model if model is None else model
    binary = _binary(path)
    usual = registry.DEFAULT if binary is None else binary.backend
    entry = registry.entry(usual if options.backend is None else options.backend)
    if binary is not None and binary.backend != entry.name:
        raise invalid_argument(f"context binary '{path}'", f"it is for backend '{binary.backend}', not '{entry.name}'")
    return request_for(options, path, entry, binary)


def request_for(
    options: argparse.Namespace, path: Path, entry: BackendEntry, binary: BinaryInfo | None = None
) -> ModelRequest:
    """Return the request that the options describe for a file, which is not read, and a backend.

    Values that are wrong for every model are refused.
    """
    from isthmus.backends.seam.native import check_threads  # not loaded for a command's help

    _refuse_two_sizes(options, entry)
    settings = apply_settings(options)
    if getattr(options, "tcm", None) is not None:
        settings.append(memory_config(entry, "tcm", options.tcm))
    shapes = shapes_of(options)
    config = backend_config(entry, options.config, options.direct_mode)
    if settings:
        given = config if isinstance(config, list) else [config] if config is not None else []
        config = [*given, *settings]
    limit = ScratchLimit.if_any(options.scratch_limit, options.slower)
    source = ModelSource(path, shapes or None, graph=options.graph, whole_rows=True)
    bounds = dict(map(parse_bound, options.bound))
    return ModelRequest(source, entry, config, check_threads(options.threads), limit, binary, bounds or None)


def _refuse_two_sizes(options: argparse.Namespace, entry: BackendEntry) -> None:
    """Refuse a command line that states several sizes of TCM: as options, and by keys of the configuration."""
    stated = getattr(options, "tcm", None)
    first = "" if stated is None else f"--tcm {stated}"
    for text in options.set:
        key, value = split_setting(text)
        if key not in ("tcm", entry.memory_sizes.get("tcm")):
            continue
        nbytes = parse_size(value)
        if first and nbytes != stated:
            raise invalid_argument(f"--set {text}", f"{first} states another size", "State one.")
        first, stated = f"--set {text}", nbytes


def default_backend(path: Path) -> str:
    """Return the backend of a file if the command line names none: that of a context binary, or the usual one.

    A file that cannot be read, or is damaged, has the usual one.
    """
    with suppress(QnnError, OSError):
        binary = _binary(path)
        return registry.DEFAULT if binary is None else binary.backend
    return registry.DEFAULT


def _binary(path: Path) -> BinaryInfo | None:
    """Describe a context binary; None for another file. The API is loaded only for files that may be one."""
    head = reading.beginning(path, 8)
    if not head or frontends.is_model(head):
        return None
    from isthmus.qnn import models

    return models.binary_info(path)


def apply_settings(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Apply the values of ``--set``: options are changed in place, keys of a configuration are returned.

    Examples
    --------
    >>> options = argparse.Namespace(set=["threads=2", "htp.precision=float16"], threads=1)
    >>> apply_settings(options), options.threads
    ([{'htp': {'precision': 'float16'}}], 2)
    """
    configs = []
    for text in options.set:
        key, value = split_setting(text)
        name = key.replace("-", "_")
        if key in SETTABLE and hasattr(options, name):
            try:
                setattr(options, name, SETTABLE[key](value))
            except (ValueError, argparse.ArgumentTypeError) as problem:
                rule = f"'{value}' is not a number" if isinstance(problem, ValueError) else str(problem)
                raise invalid_argument(f"--set {text}", rule) from None
        elif "." in key:
            configs.append(nest(key.split("."), _value(value)))
        else:
            names = [each for each in SETTABLE if hasattr(options, each.replace("-", "_"))]
            rule = f"must be one of {', '.join(names)}, or a key of the backend's configuration such as htp.precision"
            raise invalid_argument(f"--set {text}", rule, did_you_mean(key, names))
    return configs


def split_setting(text: str) -> tuple[str, str]:
    """Split ``KEY=VALUE``. An option's key may be written with ``-`` or ``_``; it is returned as `SETTABLE` has it.

    Examples
    --------
    >>> split_setting("scratch_limit=25%")
    ('scratch-limit', '25%')
    """
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise invalid_argument(f"--set {text}", "must look like threads=2")
    key = key.strip()
    spellings = (each for each in SETTABLE if each.replace("-", "_") == key.replace("-", "_"))
    return next(spellings, key), value.strip()


def _value(text: str) -> Any:
    """Read a value of a configuration: JSON, or else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


# -- dimensions --------------------------------------------------------------------------------------------------------


def shapes_of(options: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """Return the dimensions of inputs that ``--shape`` gives, by name."""
    return dict(map(parse_shape, options.shape))


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Return the name and dimensions of an option's value.

    Examples
    --------
    >>> parse_shape("x=1,3,48,320")
    ('x', (1, 3, 48, 320))
    """
    name, equals, dims = text.rpartition("=")
    try:
        if not (equals and name):
            raise ValueError(text)
        shape = tuple(int(d) for d in dims.split(","))
    except ValueError:
        raise invalid_argument(f"--shape {text}", "must look like name=1,3,48,320") from None
    if any(d < 1 for d in shape):
        raise invalid_argument(f"--shape {text}", "dimensions must be positive")
    return name, shape


def parse_bound(text: str) -> tuple[str, list[float]]:
    """Return the name and the numbers of an option's value; integers stay integers.

    Examples
    --------
    >>> parse_bound("size=1,64"), parse_bound("scale=0.5")
    (('size', [1, 64]), ('scale', [0.5]))
    """
    name, equals, numbers = text.rpartition("=")
    try:
        if not (equals and name):
            raise ValueError(text)
        return name, [float(n) if "." in n else int(n) for n in numbers.split(",")]
    except ValueError:
        raise invalid_argument(f"--bound {text}", "must look like name=100") from None


def open_shapes(options: argparse.Namespace, *models: Path) -> dict[str, list[int | str]]:
    """Return the shapes of inputs whose open dimensions no option gives, and log each model that has some.

    Such dimensions become 1, and figures for them say little. Commands call it when they have succeeded: a refusal
    stays one line.
    """
    shapes = shapes_of(options)
    found: dict[str, list[int | str]] = {}
    for model in dict.fromkeys(models):
        inputs = assumed_shapes(ModelSource(model, shapes))
        if not inputs:
            continue
        found |= inputs
        texts = (f"{name}={','.join(map(str, dims))}" for name, dims in inputs.items())
        needed = " ".join(f"--shape {shlex.quote(text)}" for text in texts)
        effect = "are refused by --strict" if options.strict else "are taken as 1"
        level = logging.ERROR if options.strict else logging.WARNING
        message = "'%s' leaves dimensions open, which %s. Give the greatest: %s"
        logging.getLogger("isthmus").log(level, message, model, effect, needed)
    return found


def refuses_shapes(options: argparse.Namespace, *models: Path) -> bool:
    """Return whether ``--strict`` is given and models have open dimensions; a command then ends with the status 1."""
    return options.strict and bool(open_shapes(options, *models))


# -- configurations of backends ----------------------------------------------------------------------------------------


def memory_config(entry: BackendEntry, memory: str, nbytes: int) -> dict[str, Any]:
    """Return the configuration that states the size of one of a device's memories, such as "tcm".

    A size that the device cannot have is refused by the name of the option.
    """
    key = entry.memory_sizes.get(memory)
    if key is None:
        having = ", ".join(each.name for each in registry.usable() if memory in each.memory_sizes)
        rule, hint = f"backend '{entry.name}' has no {memory.upper()}", f"These backends have it: {having}."
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"--{memory} {nbytes}", rule, hint)
    config = nest(key.split("."), nbytes)
    try:
        entry.read_config(config, Log())
    except QnnError as problem:
        raise QnnError(problem.code, f"--{memory} {nbytes}", problem.rule, problem.hint) from None
    return config


def nest(keys: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a value under a path of keys, as a configuration has it."""
    first, *rest = keys
    return {first: nest(rest, value) if rest else value}


def backend_config(entry: BackendEntry, config_file: Path | None, direct_mode: str | None = None) -> Any:
    """Return the backend's configuration from the options: a file, or a list in which later sources override earlier.

    - `direct_mode`: the name of a mode, whose configuration overrides the file's.
    """
    if direct_mode is None:
        return config_file
    if direct_mode not in entry.modes:
        modes = " and ".join(map(repr, entry.modes)) or "none"
        rule = f"no such mode; backend '{entry.name}' has {modes}"
        raise invalid_argument(f"mode '{direct_mode}'", rule, did_you_mean(direct_mode, entry.modes))
    return [source for source in (config_file, entry.modes[direct_mode]) if source is not None]
