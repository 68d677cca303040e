"""The sizes of contexts: of binaries of this project and of Qualcomm's tools, of a Genie bundle, or given by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isthmus.backends.vendor.figures import figures_from_json
from isthmus.backends.vendor.library import find, is_installed
from isthmus.backends.vendor.measurement import describe_file
from isthmus.domains import ContextSizes, GraphNeeds
from isthmus.errors import Code, QnnError, did_you_mean, invalid_argument
from isthmus.graph import DataType, GraphInfo, TensorInfo
from isthmus.graph.figures import GraphFigures
from isthmus.prepare.tiling import parse_size
from isthmus.tools.genie_bundle import BUNDLE, engines_of

MAX_GRAPHS = 4096
_SIZES = ("spill", "opdata", "shared", "io")
_KEYS = (*_SIZES, "graphs", "same")


@dataclass(frozen=True)
class ContextList:
    """Contexts that are to be loaded together.

    - `contexts`: in the order in which they are named.
    - `origins`: where the sizes of each are from.
    - `io_estimation`: whether their client sets IO_MEM_ESTIMATION, as Genie does on devices.
    - `notes`: what the options of bundles change, in words.
    """

    contexts: tuple[ContextSizes, ...]
    origins: tuple[str, ...]
    io_estimation: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ContextFile:
    """A context binary.

    - `sizes`: its sizes.
    - `origin`: where they are from.
    - `graphs`: its graphs with their inputs and outputs, in the order of those of `sizes`.
    - `path`: its file, if it is of this project.
    - `notes`: what the options of its bundle change, in words.
    """

    sizes: ContextSizes
    origin: str
    graphs: tuple[GraphInfo, ...]
    path: Path | None = None
    notes: tuple[str, ...] = ()


def contexts_of(paths: Iterable[Path], by_hand: Iterable[str] = (), buffers: Iterable[str] = ()) -> ContextList:
    """Read the sizes of contexts.

    - `paths`: context binaries, and Genie's bundles: their ``genie_config.json`` or its folder.
    - `by_hand`: sizes as ``NAME=SIZE,spill=SIZE,...``.
    - `buffers`: the I/O buffers that are registered for a context, as ``NAME=SIZE,SIZE``.

    Errors: COMMON_INVALID_ARGUMENT for a text that is none of these, CONTEXT_CREATE_FROM_BINARY for another file.
    """
    listed = list(paths)
    files = files_of(listed)
    found = [(each.sizes, each.origin) for each in files]
    found += [(_by_hand(text), "given") for text in by_hand]
    contexts = _with_buffers([each for each, _ in found], buffers)
    origins, notes = tuple(origin for _, origin in found), dict.fromkeys(note for each in files for note in each.notes)
    return ContextList(tuple(contexts), origins, any(map(is_bundle, listed)), tuple(notes))


# -- files -------------------------------------------------------------------------------------------------------------


def is_bundle(path: Path) -> bool:
    """Return whether a path is a Genie bundle: its configuration, or its folder."""
    return path.is_dir() or path.suffix == ".json"


def is_vendors(path: Path) -> bool:
    """Return whether a file is a context binary of Qualcomm's tools, which only their library can tell."""
    return path.is_file() and is_installed() and describe_file(path, find()) is not None


def files_of(paths: Iterable[Path]) -> list[ContextFile]:
    """Read context binaries, and those of Genie's bundles. Errors are those of `contexts_of`."""
    found: list[ContextFile] = []
    for path in paths:
        if is_bundle(path):
            found += _of_bundle(path / BUNDLE if path.is_dir() else path)
        else:
            found.append(_of_binary(path))
    return found


def _of_binary(path: Path) -> ContextFile:
    """Read a context binary, of this project or of Qualcomm's tools."""
    # Imported here: the plan of a model needs nothing of it.
    from isthmus.qnn import models

    info = models.binary_info(path)
    if info is not None:
        sizes = ContextSizes(path.name, tuple(map(GraphNeeds.of, info.graphs)), info.nbytes)
        return ContextFile(sizes, f"made by {info.producer}", info.graphs, path)
    description = describe_file(path, find()) if is_installed() else None
    if description is None:
        hint = "`isthmus fit` takes its sizes by hand: --context NAME=SIZE,spill=SIZE."
        hint += "" if is_installed() else " Qualcomm's library may be able to read it: pip install 'isthmus[qnn]'."
        rule = "it is no context binary that can be read here"
        raise QnnError(Code.CONTEXT_CREATE_FROM_BINARY, f"'{path}'", rule, hint)
    stated = [each for each in description["graphs"] if each["figures"] is not None]
    needs = tuple(_of_figures(each["name"], figures_from_json(each["figures"])) for each in stated)
    sizes = ContextSizes(path.name, needs, int(description["bytes"]))
    return ContextFile(sizes, f"Qualcomm's library {description['build']}", tuple(map(_vendor_graph, stated)))


def _vendor_graph(graph: Mapping[str, Any]) -> GraphInfo:
    """Return a graph of Qualcomm's tools with its inputs and outputs, except those of types that are not known here."""
    types = {int(each) for each in DataType} - {DataType.UNDEFINED}

    def tensor(each: Mapping[str, Any]) -> TensorInfo:
        dtype, dims = DataType(each["dtype"]), tuple(each["dims"])
        return TensorInfo(each["name"], dtype, dims, None, math.prod(dims) * dtype.itemsize)

    inputs, outputs = (
        tuple(tensor(each) for each in graph[side] if each["dtype"] in types) for side in ("inputs", "outputs")
    )
    return GraphInfo(graph["name"], inputs, outputs)


def _of_figures(name: str, figures: GraphFigures) -> GraphNeeds:
    """Return the sizes that the figures of a graph have. DDR tensors of a chip are little more than its I/O again."""
    return GraphNeeds(name, figures.constants, figures.shared_weights, figures.op_data, figures.spill_fill, figures.io)


def _of_bundle(config: Path) -> Iterator[ContextFile]:
    """Read the binaries of a Genie bundle, with the options of its configuration."""
    seen: set[str] = set()
    for engine in engines_of(config):
        files = []
        for name in (each for each in engine.binaries if each not in seen):
            beside = config.parent / name
            files.append(_of_binary(beside if beside.exists() else Path(name)))
        seen |= {*engine.binaries}
        engine.check_retained({graph.name for file in files for graph in file.sizes.graphs})
        for file in files:
            yield replace(file, sizes=engine.apply_to(file.sizes), notes=engine.notes)


# -- sizes by hand -----------------------------------------------------------------------------------------------------


def _by_hand(text: str) -> ContextSizes:
    """Read ``NAME=SIZE,spill=SIZE,opdata=SIZE,shared=SIZE,io=SIZE,graphs=N,same=LABEL``.

    >>> context = _by_hand("llm=2829MB,spill=64MB,graphs=2")
    >>> context.charge, context.spill_fill, len(context.graphs)
    (2893000000, 64000000, 2)
    """
    what = f"--context {text}"
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(key and equals and value for key, equals, value in pairs):
        raise invalid_argument(what, "must look like NAME=SIZE,spill=SIZE")
    (name, _, size), *more = pairs
    stated: dict[str, str] = {}
    for key, _, value in more:
        if key not in _KEYS:
            hint = did_you_mean(key, _KEYS) or f"Keys are {', '.join(_KEYS)}."
            raise invalid_argument(what, f"there is no key '{key}'", hint)
        if key in stated:
            raise invalid_argument(what, f"'{key}' is given twice")
        stated[key] = value
    graphs = stated.get("graphs", "1")
    if not graphs.isascii() or not graphs.isdecimal() or not 1 <= int(graphs) <= MAX_GRAPHS:
        raise invalid_argument(what, f"graphs={graphs} is not a number from 1 to {MAX_GRAPHS}")
    count = int(graphs)
    sizes = {key: _size(what, stated[key]) for key in _SIZES if key in stated}
    spill, op_data, shared, io = (sizes.get(key, 0) for key in _SIZES)
    parts = zip(*(_parts(number, count) for number in (_size(what, size), op_data, io)), strict=True)
    made = tuple(
        GraphNeeds(f"{name}.{number}", constants, shared, operations, spill, buffers)
        for number, (constants, operations, buffers) in enumerate(parts)
    )
    return ContextSizes(name, made, same_weights=stated.get("same", ""))


def _parts(total: int, count: int) -> list[int]:
    """Divide bytes among graphs of which nothing else is known."""
    return [total // count + (number < total % count) for number in range(count)]


def _size(what: str, text: str) -> int:
    found = parse_size(text)
    if found is None:
        raise invalid_argument(what, f"'{text}' is not a size", "Write bytes, or a unit as in 64KiB or 2829MB.")
    return found


def _with_buffers(contexts: Sequence[ContextSizes], texts: Iterable[str]) -> list[ContextSizes]:
    """Return contexts with the I/O buffers that the command line gives for some of them."""
    found = {each.name: each for each in contexts}
    if len(found) < len(contexts):
        names = [each.name for each in contexts]
        twice = next(name for name in names if names.count(name) > 1)
        raise invalid_argument("contexts", f"two are called '{twice}'", "Give them names of their own.")
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        if not equals or name not in found:
            hint = did_you_mean(name, found) or f"Contexts are {', '.join(found)}."
            raise invalid_argument(f"--io {text}", "must look like NAME=SIZE,SIZE with the name of a context", hint)
        buffers = tuple(_size(f"--io {text}", each) for each in sizes.split(","))
        found[name] = replace(found[name], buffers=buffers)
    return list(found.values())
