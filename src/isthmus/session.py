"""`Session`: a model file, ready to run, with its inputs and outputs as numpy views of the memory it runs in."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from isthmus import qnn
from isthmus.backends import cpu
from isthmus.bound import BoundGraph, io_memory
from isthmus.engine.native.program import Program
from isthmus.errors import Code, QnnError
from isthmus.frontends import load
from isthmus.graph import MemType
from isthmus.log import Log
from isthmus.memory import Region, host
from isthmus.prepare.schedule import Plan
from isthmus.qnn import htp

BACKENDS = ("cpu", "htp", "lpai")
IO_KINDS = ("memhandle", "raw")


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
        Where it runs: "cpu", "htp" or "lpai".
    shapes
        Dimensions for inputs that the file leaves dynamic, by input name; dimensions not given become 1.
    threads
        How many threads an inference uses. Results do not depend on it.
    constants
        Values for inputs that are to be fixed when the model is loaded (an input that decides a shape, say); they are
        no inputs of the session.
    config
        The backend's configuration: for "htp" a file or a dictionary, for "lpai" also a list of them.
    log
        Where the backend tells what it does.
    io
        On "htp", what inputs and outputs are: "memhandle", memory that the accelerator shares (the default), or "raw",
        memory that is copied to it and back at each run.

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
        config: Any = None,
        log: Log | None = None,
        io: str | None = None,
    ) -> None:
        if backend not in BACKENDS:
            raise QnnError(
                Code.COMMON_INVALID_ARGUMENT, f"backend '{backend}'", f"must be one of {', '.join(BACKENDS)}"
            )
        if io is not None and (backend != "htp" or io not in IO_KINDS):
            rule = f"must be one of {', '.join(IO_KINDS)}" if backend == "htp" else "only backend 'htp' has a choice"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"io '{io}'", rule)
        self.backend = backend
        self.path = Path(path)
        self.stats = Stats()
        self._lock = threading.Lock()
        openers: dict[str, Callable[..., _Model]] = {
            "cpu": _CpuModel,
            "htp": partial(_AcceleratedModel, "htp", io != "raw"),
            "lpai": partial(_AcceleratedModel, "lpai", False),
        }
        model = openers[backend](self.path, _checked_shapes(shapes), constants, threads, config, log)
        self._model: _Model | None = model
        self.program, self.plan = model.program, model.plan
        self.inputs_survive = model.inputs_survive
        self.inputs: Mapping[str, np.ndarray] = MappingProxyType(model.inputs)
        """The inputs by the model file's names: views of the memory that the model reads."""
        self.outputs: Mapping[str, np.ndarray] = MappingProxyType(model.outputs)
        """The outputs by the model file's names: views of the memory that the model writes."""

    program: Program
    """The executable form of the model."""
    plan: Plan
    """How scratch memory was planned."""
    inputs_survive: bool
    """Whether a run leaves the inputs as they were; inputs inside scratch are to be written before each run."""

    @property
    def engine_run(self) -> Callable[[], None]:
        """A run on the bound memory without this object's book-keeping; on the CPU one native call and nothing else."""
        return self._open().engine_run

    def run(self, feeds: Mapping[str, Any] | None = None, *, allow_nan: bool = False) -> dict[str, np.ndarray]:
        """Execute once.

        Parameters
        ----------
        feeds
            Without it, the model runs in place on what `inputs` holds now. With it, every input is copied in first, and
            copies of all outputs are returned.
        allow_nan
            Let NaN pass in `feeds`; it is refused otherwise, since it is nearly always a mistake.

        Returns
        -------
        dict
            Copies of the outputs by name; empty when run in place.
        """
        model = self._open()
        arrays = None if feeds is None else self._checked_feeds(feeds, allow_nan)
        with self._lock:
            if arrays is not None:
                for name, array in arrays.items():
                    np.copyto(self.inputs[name], array)
                    self.stats.copied_in_bytes += self.inputs[name].nbytes
            begin = time.perf_counter()
            model.execute()
            self.stats.last_ms = (time.perf_counter() - begin) * 1e3
            self.stats.runs += 1
            if arrays is None:
                return {}
            results = {name: view.copy() for name, view in self.outputs.items()}
            self.stats.copied_out_bytes += sum(result.nbytes for result in results.values())
            return results

    @property
    def graph_stats(self) -> qnn.GraphStats | None:
        """What the backend did so far: bytes it copied and reserved, bytes used in place; None on the CPU."""
        return self._open().graph_stats()

    def reset(self) -> None:
        """Put the model's state back to its initial values."""
        model = self._open()
        with self._lock:
            model.reset()

    def close(self) -> None:
        """Free what the session holds; safe to call again. Views taken earlier stay readable."""
        if self._model is not None:
            self._model.close()
            self._model = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open(self) -> _Model:
        if self._model is None:
            raise QnnError(Code.GRAPH_INVALID_HANDLE, f"session of '{self.path.name}'", "it is closed")
        return self._model

    def _checked_feeds(self, feeds: Mapping[str, Any], allow_nan: bool) -> dict[str, np.ndarray]:
        """The feeds as arrays; refused as a whole before anything is written."""

        def refuse(what: str, rule: str, hint: str = "") -> QnnError:
            return QnnError(Code.GRAPH_INVALID_TENSOR, what, rule, hint)

        known = ", ".join(f"'{name}'" for name in self.inputs)
        if not isinstance(feeds, Mapping):
            raise refuse(f"feeds of type {type(feeds).__name__}", f"must map input names to arrays; inputs are {known}")
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


Shapes = Mapping[str, tuple[int, ...]]


class _CpuModel:
    """A model on the CPU, straight on the engine: a run costs one native call."""

    inputs_survive = True

    def __init__(
        self, path: Path, shapes: Shapes | None, constants: Any, threads: int, config: Any, log: Log | None
    ) -> None:
        if config is not None:
            raise QnnError(Code.BACKEND_INVALID_CONFIG, "backend 'cpu'", "it has no configuration")
        self.program, self.plan = cpu.prepare(load(path, shapes, constants), threads)
        _, views, _ = io_memory(self.program, host)
        regions = [Region(view.ctypes.data, view.nbytes, view) for _, view in views]
        count = len(self.program.inputs)
        self.inputs, self.outputs = dict(views[:count]), dict(views[count:])
        self._graph = cpu.CpuGraph(self.program, regions)
        self.execute = self.engine_run = self._graph.executor.run
        self.reset, self.close = self._graph.reset, self._graph.close

    def graph_stats(self) -> None:
        return None


class _AcceleratedModel:
    """A model on a backend that is driven through the QNN API."""

    def __init__(
        self,
        backend: str,
        shared: bool,
        path: Path,
        shapes: Shapes | None,
        constants: Any,
        threads: int,
        config: Any,
        log: Log | None,
    ) -> None:
        if backend == "lpai" and threads != 1:
            rule = "an LPAI core runs a graph on one thread"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"threads={threads}", rule)
        self._bound: BoundGraph | None = None
        self._backend = qnn.Backend(backend, config, log)
        try:
            context = self._backend.create_context()
            mem_type = MemType.MEMHANDLE if shared else MemType.RAW
            graph = context.compose(path, None, shapes, constants, mem_type)
            if threads != 1:
                graph.set_config(htp.THREADS, threads)
            self._bound = bound = BoundGraph(context, graph)
            bound.bind(shared)
        except BaseException:
            self.close()
            raise
        self.program, self.plan = graph.program, graph.plan
        self.inputs, self.outputs, self.inputs_survive = bound.inputs, bound.outputs, bound.inputs_survive
        self.execute = self.engine_run = bound.execute
        self.reset = graph.reset
        self._graph = graph

    def graph_stats(self) -> qnn.GraphStats:
        return self._graph.stats

    def close(self) -> None:
        self._backend.free()
        if self._bound is not None:
            self._bound.close()


_Model = _CpuModel | _AcceleratedModel


def _checked_shapes(shapes: Mapping[str, Iterable[int]] | None) -> dict[str, tuple[int, ...]] | None:
    if shapes is None:
        return None
    if not isinstance(shapes, Mapping):
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"shapes {shapes!r}", "must map input names to dimensions")
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
