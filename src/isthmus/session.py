"""`Session`: a model file, ready to run, with its inputs and outputs as numpy views of the memory it runs in."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from isthmus.backends import cpu
from isthmus.engine.program import Program, TensorInfo
from isthmus.errors import Code, QnnError
from isthmus.frontends import load
from isthmus.memory import Region, host
from isthmus.prepare.schedule import Plan

BACKENDS = ("cpu",)
_IO_ALIGNMENT = 64


@dataclass
class Stats:
    """What a session did so far: runs, bytes copied between the caller's arrays and IO memory, time."""

    runs: int = 0
    copied_in_bytes: int = 0
    copied_out_bytes: int = 0
    last_ms: float = 0.0

    @property
    def copied_bytes(self) -> int:
        """All bytes copied."""
        return self.copied_in_bytes + self.copied_out_bytes


class Session:
    """A model ready to run.

    Parameters
    ----------
    path
        A ``.tflite`` or ``.onnx`` file.
    backend
        Where it runs: "cpu".
    shapes
        Dimensions for inputs that the file leaves dynamic, by input name; dimensions not given become 1.
    threads
        How many threads an inference uses. Results do not depend on it.
    constants
        Values for inputs that are to be fixed when the model is loaded (an input that decides a shape, say); they are
        no inputs of the session.

    Examples
    --------
    ::

        with isthmus.Session("model.tflite") as session:
            session.inputs["x"][...] = frame      # a view of the memory the model reads
            session.run()                          # in place, nothing copied
            print(session.outputs["y"])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        backend: str = "cpu",
        shapes: Mapping[str, Iterable[int]] | None = None,
        threads: int = 1,
        constants: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        if backend not in BACKENDS:
            raise QnnError(
                Code.COMMON_INVALID_ARGUMENT, f"backend '{backend}'", f"must be one of {', '.join(BACKENDS)}"
            )
        self.backend = backend
        self.path = Path(path)
        graph = load(self.path, _checked_shapes(shapes), constants)
        self.program, self.plan = cpu.prepare(graph, threads)
        self.stats = Stats()
        self._lock = threading.Lock()
        views, regions = _io_memory(self.program)
        count = len(self.program.inputs)
        self.inputs: Mapping[str, np.ndarray] = MappingProxyType(dict(views[:count]))
        """The inputs by the model file's names: views of the memory that the model reads."""
        self.outputs: Mapping[str, np.ndarray] = MappingProxyType(dict(views[count:]))
        """The outputs by the model file's names: views of the memory that the model writes."""
        self._graph: cpu.CpuGraph | None = cpu.CpuGraph(self.program, regions)

    program: Program
    """The executable form of the model."""
    plan: Plan
    """How scratch memory was planned."""

    @property
    def engine_run(self) -> Callable[[], None]:
        """The engine's own run: one native call on the bound memory and nothing else."""
        return self._open().executor.run

    def run(self, feeds: Mapping[str, Any] | None = None, *, allow_nan: bool = False) -> dict[str, np.ndarray]:
        """Execute once.

        Parameters
        ----------
        feeds
            Without it, the model runs in place on what `inputs` holds. With it, every input is copied in first, and
            copies of all outputs are returned.
        allow_nan
            Let NaN pass in `feeds`; it is refused otherwise, since it is nearly always a mistake.

        Returns
        -------
        dict
            Copies of the outputs by name; empty when run in place.
        """
        graph = self._open()
        arrays = None if feeds is None else self._checked_feeds(feeds, allow_nan)
        with self._lock:
            if arrays is not None:
                for name, array in arrays.items():
                    np.copyto(self.inputs[name], array)
                    self.stats.copied_in_bytes += self.inputs[name].nbytes
            begin = time.perf_counter()
            graph.execute()
            self.stats.last_ms = (time.perf_counter() - begin) * 1e3
            self.stats.runs += 1
            if arrays is None:
                return {}
            results = {name: view.copy() for name, view in self.outputs.items()}
            self.stats.copied_out_bytes += sum(result.nbytes for result in results.values())
            return results

    def reset(self) -> None:
        """Put the model's state back to its initial values."""
        graph = self._open()
        with self._lock:
            graph.reset()

    def close(self) -> None:
        """Free what the session holds; safe to call again. Views taken earlier stay readable."""
        if self._graph is not None:
            self._graph.close()
            self._graph = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open(self) -> cpu.CpuGraph:
        if self._graph is None:
            raise QnnError(Code.GRAPH_INVALID_HANDLE, f"session of '{self.path.name}'", "it is closed")
        return self._graph

    def _checked_feeds(self, feeds: Mapping[str, Any], allow_nan: bool) -> dict[str, np.ndarray]:
        """The feeds as arrays; refused as a whole before anything is written."""

        def refuse(what: str, rule: str, hint: str = "") -> QnnError:
            return QnnError(Code.GRAPH_INVALID_TENSOR, what, rule, hint)

        known = ", ".join(f"'{name}'" for name in self.inputs)
        for name in feeds:
            if name not in self.inputs:
                raise refuse(f"input '{name}'", f"the model has no such input; it has {known}")
        arrays = {}
        for name, view in self.inputs.items():
            if name not in feeds:
                raise refuse(f"input '{name}'", "it is missing", f"The model needs {known}.")
            array = np.asarray(feeds[name])
            if array.dtype != view.dtype:
                raise refuse(f"input '{name}'", f"must be {view.dtype}, is {array.dtype}")
            if array.shape != view.shape:
                raise refuse(f"input '{name}'", f"must have shape {view.shape}, has {array.shape}")
            if not allow_nan and array.dtype.kind == "f" and np.isnan(array).any():
                raise refuse(f"input '{name}'", "it holds NaN", "Pass allow_nan=True to run it all the same.")
            arrays[name] = array
        return arrays


def _checked_shapes(shapes: Mapping[str, Iterable[int]] | None) -> dict[str, tuple[int, ...]] | None:
    if shapes is None:
        return None
    checked = {}
    for name, dims in shapes.items():
        try:
            checked[name] = tuple(int(d) for d in dims)
        except (TypeError, ValueError):
            raise QnnError(
                Code.COMMON_INVALID_ARGUMENT, f"shape of '{name}'", f"{dims!r} is not a list of dimensions"
            ) from None
        if any(d < 1 for d in checked[name]):
            raise QnnError(
                Code.COMMON_INVALID_ARGUMENT, f"shape of '{name}'", f"dimensions {checked[name]} must be positive"
            )
    return checked


def _io_memory(program: Program) -> tuple[list[tuple[str, np.ndarray]], list[Region]]:
    """One buffer for all inputs and outputs, with a view and a region of each."""
    infos: tuple[TensorInfo, ...] = (*program.inputs, *program.outputs)
    offsets, total = [], 0
    for info in infos:
        offsets.append(total)
        total += -(-info.nbytes // _IO_ALIGNMENT) * _IO_ALIGNMENT
    buffer = host(total, _IO_ALIGNMENT)
    views = [
        (info.name, buffer.view(info.dtype.numpy, info.dims, offset))
        for info, offset in zip(infos, offsets, strict=True)
    ]
    return views, [Region(view.ctypes.data, view.nbytes, view) for _, view in views]
