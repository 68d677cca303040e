"""Measurements by the vendor's compiler: its figures for a model on a target, or why it refuses the model.

Results depend on the graphs, the target and the build of the library only, so they are kept under a hash of these, each
as soon as it is there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from isthmus.backends.vendor.composition import Composition
from isthmus.backends.vendor.figures import figures_from_json
from isthmus.backends.vendor.library import VendorLibrary, VendorProcess
from isthmus.backends.vendor.target import ChipTarget
from isthmus.errors import Code, QnnError
from isthmus.graph.figures import GraphFigures, total_ram
from isthmus.system import reading
from isthmus.system.container import as_size, as_text
from isthmus.system.jobs import LocalJobs, ResultFolder, resume
from isthmus.system.progress import progress

# Part of the key: results of other versions of this module are not read.
_VERSION = 2
# Codes of problems that another attempt may not have; they are not kept.
_PASSING = (Code.COMMON_SYSTEM_COMMUNICATION, Code.GRAPH_TIMED_OUT, Code.COMMON_SYSTEM)
_MAX_BINARY = 1 << 34


@dataclass(frozen=True)
class DdrTraffic:
    """The bytes that an execution moves to DDR memory and back, as the compiler logs them.

    - `spilled`, `filled`: Between VTCM and spill-fill memory.
    - `written`, `read`: All, with inputs, outputs and constants.
    """

    spilled: int
    filled: int
    written: int
    read: int

    @classmethod
    def of_log(cls, figures: Mapping[str, Any]) -> DdrTraffic | None:
        """Read the figures of the library's log; None if it has not all of them, as after an update of the library."""
        names = ("spill_bytes", "fill_bytes", "write_total_bytes", "read_total_bytes")
        return cls(*(as_size(figures[name]) for name in names)) if figures.keys() >= {*names} else None

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> DdrTraffic:
        """Read plain data; raise a LookupError, TypeError or ValueError if it is none."""
        return cls(**{each.name: as_size(content[each.name]) for each in fields(cls)})


@dataclass(frozen=True)
class MeasuredGraph:
    """One graph of a model on a target; what was not compiled here has no `traffic`."""

    name: str
    figures: GraphFigures
    finalize_seconds: float = 0.0
    traffic: DdrTraffic | None = None


@dataclass(frozen=True)
class Measurement:
    """The compiler's result for a model and a target.

    - `build`: The build of the library.
    - `graphs`: The graphs; none if the model was refused.
    - `file_bytes`: The size of the context binary.
    - `problem`: Why the model was refused; empty if it was compiled.
    - `is_lasting`: Whether another attempt would have the same result.
    """

    build: str
    graphs: tuple[MeasuredGraph, ...] = ()
    file_bytes: int = 0
    problem: str = ""
    is_lasting: bool = field(default=True, compare=False)

    @property
    def spill_fill(self) -> int:
        """The spill-fill memory of all graphs in bytes."""
        return sum(graph.figures.spill_fill for graph in self.graphs)

    @property
    def total_ram(self) -> int:
        """The memory of the context in bytes, by QNN's formula."""
        return total_ram(graph.figures for graph in self.graphs)

    @property
    def traffic(self) -> DdrTraffic | None:
        """The DDR traffic of all graphs, each executed once; None if it is not known of one of them."""
        traffics = [graph.traffic for graph in self.graphs if graph.traffic is not None]
        if not traffics or len(traffics) < len(self.graphs):
            return None
        return DdrTraffic(*(sum(getattr(each, field.name) for each in traffics) for field in fields(DdrTraffic)))

    @property
    def finalize_seconds(self) -> float:
        """How long the compiler took."""
        return sum(graph.finalize_seconds for graph in self.graphs)

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as plain data."""
        return {
            "build": self.build, "graphs": [asdict(graph) for graph in self.graphs], "file_bytes": self.file_bytes,
            "problem": self.problem, "is_lasting": self.is_lasting,
        }  # fmt: skip

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Measurement:
        """Read a measurement from plain data; raise a LookupError, TypeError or ValueError if it is none."""
        graphs = tuple(map(_graph_from_json, content["graphs"]))
        build, problem = as_text(content["build"]), as_text(content["problem"])
        return cls(build, graphs, as_size(content["file_bytes"]), problem, bool(content["is_lasting"]))


def _graph_from_json(content: Mapping[str, Any]) -> MeasuredGraph:
    """Read a graph's measurement from plain data."""
    traffic = None if content["traffic"] is None else DdrTraffic.from_json(content["traffic"])
    seconds = float(content["finalize_seconds"])
    return MeasuredGraph(as_text(content["name"]), figures_from_json(content["figures"]), seconds, traffic)


def key_of(graphs: Sequence[bytes], target: ChipTarget, build: str) -> str:
    """Return the hash of all that a measurement depends on."""
    digest = hashlib.sha256(json.dumps([_VERSION, build, target.to_json(), len(graphs)], sort_keys=True).encode())
    for graph in graphs:
        digest.update(hashlib.sha256(graph).digest())
    return digest.hexdigest()


def measure(
    graphs: Sequence[tuple[str, bytes]],
    target: ChipTarget,
    library: VendorLibrary,
    started: Callable[[VendorProcess], None] = lambda process: None,
) -> Measurement:
    """Compile graphs in one context for a target, in a new process.

    - `graphs`: the name of each graph, and the graph as `Composition.to_bytes` returns it.
    - `started`: is called with the process, so that another thread can kill it.
    """
    build = ""
    try:
        with VendorProcess(library) as process:
            started(process)
            build = process.build
            process.call("context", target=target.to_json())
            answers = {}
            for name, content in graphs:
                process.call("compose", {"graph": content}, name=name)
                answer, _ = process.call("finalize", name=name)
                answers[name] = answer
            description, _ = process.call("describe")
    except QnnError as problem:
        return Measurement(build, problem=problem.rule, is_lasting=problem.code not in _PASSING)
    return _measurement(description, build, answers)


def describe(binary: bytes | memoryview, library: VendorLibrary) -> dict[str, Any]:
    """Describe a context binary by the vendor's system library, in a process of its own."""
    with VendorProcess(library) as process:
        description, _ = process.call("describe", {"binary": binary})
        return description


def describe_file(path: Path, library: VendorLibrary) -> dict[str, Any] | None:
    """Describe a context binary in a file; return None if the library does not know the file."""
    try:
        return describe(reading.contents(path, _MAX_BINARY), library)
    except QnnError as problem:
        # That the file ended the library's process is worth a message; that the library refuses it is not.
        if problem.code is Code.COMMON_SYSTEM_COMMUNICATION:
            raise
        return None


def build_of(library: VendorLibrary) -> str:
    """Return the build of a library, by loading it in a process."""
    with VendorProcess(library) as process:
        return process.build


def figures_of(description: Mapping[str, Any]) -> Measurement:
    """Return the figures of a context binary from its description."""
    return _measurement(description, as_text(description["build"]), {})


def _measurement(description: Mapping[str, Any], build: str, answers: Mapping[str, Mapping[str, Any]]) -> Measurement:
    """Return the figures of the graphs that a description has; `answers` are those to their compilations, by name."""
    found = [
        _with_answer(as_text(g["name"]), figures_from_json(g["figures"]), answers.get(g["name"], {}))
        for g in description["graphs"]
        if g["figures"] is not None
    ]
    if not found:
        return Measurement(build, problem="it holds no figures of HTP")
    return Measurement(build, tuple(found), as_size(description["bytes"]))


def _with_answer(name: str, figures: GraphFigures, answer: Mapping[str, Any]) -> MeasuredGraph:
    """Return a graph with what its compilation answered; nothing for a graph of a file."""
    return MeasuredGraph(name, figures, float(answer.get("seconds", 0)), DdrTraffic.of_log(answer.get("traffic", {})))


class MeasurementCache:
    """Measurements on disk, each in a file of its own.

    - `fresh`: whether to measure everything again, and keep the new results.
    """

    def __init__(self, folder: Path, fresh: bool = False) -> None:
        self._results, self._fresh = ResultFolder(folder), fresh

    def get(self, key: str) -> Measurement | None:
        """Return a measurement; None if there is none, or none that can be read."""
        if not self._fresh:
            with suppress(LookupError, TypeError, ValueError, AttributeError):
                return Measurement.from_json(self._results.get(key))
        return None

    def put(self, key: str, measurement: Measurement) -> None:
        """Keep a measurement that another attempt would repeat. A folder that cannot be written is no error."""
        if measurement.is_lasting:
            self._results.put(key, measurement.to_json())


@dataclass(frozen=True)
class Compilation:
    """A model that is to be compiled for a target.

    - `model`: the model's name in reports.
    - `graphs`: its graphs by name, as `measure` takes them.
    """

    model: str
    graphs: Sequence[tuple[str, bytes]]
    target: ChipTarget


def measure_all(
    compilations: Sequence[Compilation],
    library: VendorLibrary,
    build: str,
    cache: MeasurementCache,
    workers: int = 0,
) -> list[Measurement]:
    """Measure what the cache lacks, in parallel processes, and show the progress; return all results in order.

    - `build`: the build of the library, for the keys of the cache.
    - `workers`: how many processes run at a time; 0 for one per processor.
    """

    def key(number: int) -> str:
        each = compilations[number]
        return key_of([content for _, content in each.graphs], each.target, build)

    def work(number: int, started: Callable[[VendorProcess], None]) -> Measurement:
        return measure(compilations[number].graphs, compilations[number].target, library, started)

    results: dict[int, Measurement] = {}
    with progress("compilations", len(compilations)) as state:
        for number, result in resume(range(len(compilations)), key, cache, LocalJobs(work, workers)):
            results[number] = result
            state.step(f"{compilations[number].model}, {compilations[number].target.title}")
    return [results[number] for number in range(len(compilations))]


def prepared(compositions: Sequence[Composition]) -> list[tuple[str, bytes]]:
    """Return compositions in the form that `measure` takes."""
    return [(composition.entry.name, composition.to_bytes()) for composition in compositions]
