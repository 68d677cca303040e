"""`Session`: a model file, ready to run, with inputs and outputs as numpy views of its memory."""

from __future__ import annotations

import numbers
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isthmus import audit_log, qnn
from isthmus.backends.seam import registry
from isthmus.errors import Code, QnnError, did_you_mean
from isthmus.graph import GraphInfo
from isthmus.log import Log
from isthmus.prepare.schedule import Plan
from isthmus.prepare.tiling import ScratchLimit
from isthmus.qnn.model_library import is_library
from isthmus.qnn.models import binary_info, prepared_graph
from isthmus.system.lock import Lock
from isthmus.system.shield import shielded

MAX_SECONDS = 10**9
"""The longest time limit: about thirty years, which timers can still count."""


@dataclass
class Stats:
    """Totals of a session: runs, and bytes copied between the caller's arrays and the memory of inputs and outputs.

    `last_ms` is the time of the last run in milliseconds.
    """

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
        A ``.tflite``, ``.onnx`` or ``.dlc`` file, a model library (``libqnn_model.so``), or a context binary. A context
        binary is prepared: shapes, threads and scratch are those that it was made with.
    backend
        The backend: "cpu", "htp", "lpai", "gpu", or another registered name. If omitted, "cpu", or the backend that a
        context binary is for.
    shapes
        Dimensions for inputs that the file leaves dynamic, by input name; dimensions that are not given become 1.
    threads
        Number of threads of an inference. Results do not depend on it.
    constants
        Values for inputs to be fixed when the model is loaded (an input that determines a shape, say); they are not
        inputs of the session.
    config
        The backend's configuration: a file, a mapping, or a list of them.
    log
        The log for the backend's messages.
    io
        The memory of inputs and outputs, if the backend has a choice: "memhandle", memory shared with the accelerator,
        or "raw", memory that the backend uses or copies.
    scratch_limit
        Maximum scratch of the model: bytes, a fraction of the unlimited size (``"25%"``), or ``"least"``. Tensors that
        do not fit are computed tile by tile; results stay bit-identical.
    slower
        Maximum estimated slowdown that the limit may cost, as a fraction of the model's time. ``"least"`` goes that far
        (0.05 if omitted); a limit that costs more is refused.
    timeout
        How many seconds a run may take; a longer run is aborted with GRAPH_TIMED_OUT. If omitted, only the backend's
        own limit applies.
    graph
        Which graph to take from a file that contains several.

    Attributes
    ----------
    inputs, outputs
        The inputs and outputs by name: views of the memory that the model reads and writes.
    info
        A description of the model: inputs, outputs, required memory.
    plan
        The scratch plan, if the backend makes and reports one; else None.
    stats
        Totals of this session: runs, bytes copied, time of the last run.
    inputs_survive
        Whether a run leaves the inputs unchanged; inputs inside scratch must be written before each run.
    path, backend
        The model's file, and the backend's short name.

    Raises
    ------
    QnnError
        If the file cannot be read or uses unsupported features, or the backend refuses its configuration or memory.

    Examples
    --------
    ::

        with isthmus.Session("model.tflite") as session:
            session.inputs["x"][...] = frame      # a view of the memory the model reads
            session.run()                          # in place, nothing copied
            print(session.outputs["y"])
    """

    @shielded(release=lambda session: session.close())
    def __init__(
        self,
        path: str | os.PathLike[str],
        backend: str | None = None,
        shapes: Mapping[str, Iterable[int]] | None = None,
        threads: int = 1,
        constants: Mapping[str, np.ndarray] | None = None,
        config: Any = None,
        log: Log | None = None,
        io: str | None = None,
        timeout: float | None = None,
        graph: str | None = None,
        scratch_limit: int | str | ScratchLimit | None = None,
        slower: float | None = None,
    ) -> None:
        limit = ScratchLimit.if_any(scratch_limit, slower)
        if not isinstance(path, (str, os.PathLike)):
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"model {path!r}", "must be a path")
        self.path = Path(path)
        binary = binary_info(self.path)
        if backend is None:
            backend = registry.DEFAULT if binary is None else binary.backend
        entry = registry.entry(backend)
        self.backend = entry.name
        if binary is not None:
            graph = prepared_graph(binary, self.path, graph, bool(shapes or constants), threads, limit).name
        self.stats = Stats()
        self._lock = Lock()
        # A model library's own memory types apply unless the caller asks for others.
        mem_type = None if io is None and is_library(self.path) else entry.io_kind(io)
        # None before the memory is allocated and after `close`.
        self._open: qnn.GraphMemory | None = None
        self._backend = qnn.Backend(backend, config, log)
        try:
            self._signal = time_limit(self._backend, timeout)
            if binary is not None and graph is not None:
                self._graph = self._backend.create_context_from_binary(self.path).retrieve(graph)
            else:
                context = self._backend.create_context()
                self._graph = context.compose(self.path, None, _checked_shapes(shapes), constants, mem_type, graph)
                self._graph.set_config(qnn.GraphConfig.THREADS, threads)
                if limit is not None:
                    self._graph.set_config(qnn.GraphConfig.SCRATCH_LIMIT, limit)
            self._open = memory = self._graph.allocate(io)
        except Exception:
            self._backend.free()
            raise
        self.info: GraphInfo = self._graph.info
        self.plan: Plan | None = self._graph.plan
        self.inputs_survive = memory.inputs_survive
        self.inputs: Mapping[str, np.ndarray] = memory.inputs
        self.outputs: Mapping[str, np.ndarray] = memory.outputs

    def __repr__(self) -> str:
        def listed(views: Mapping[str, np.ndarray]) -> str:
            return ", ".join(f"'{name}' {view.dtype}{list(view.shape)}" for name, view in views.items())

        what, closed = f"'{self.path.name}' on {self.backend}", ", closed" * (self._open is None)
        return f"<Session {what}: {listed(self.inputs)} -> {listed(self.outputs)}{closed}>"

    @property
    def graph(self) -> qnn.Graph:
        """The QNN graph behind the session."""
        self._memory()
        return self._graph

    @property
    def engine_run(self) -> Callable[[], None]:
        """The function that runs once on the bound memory, without the session's lock, timeout and `stats`."""
        return self._memory().binding.execute

    def run(
        self,
        feeds: Mapping[str, Any] | None = None,
        *more: object,
        allow_nan: bool = False,
        profile: qnn.Profile | None = None,
    ) -> dict[str, np.ndarray]:
        """Execute once.

        Parameters
        ----------
        feeds
            If omitted, the model runs in place on the current contents of `inputs`. Otherwise every input is copied in
            first, and copies of all outputs are returned.
        allow_nan
            Accept NaN in `feeds`; it is refused otherwise, since it is nearly always a mistake.
        profile
            Records the times of this run.

        Returns
        -------
        dict
            Copies of the outputs by name; empty if run in place.
        """
        if more:
            rule = "takes feeds only, as run({'input': array})"
            raise QnnError(
                Code.COMMON_INVALID_ARGUMENT, "Session.run", rule, "All outputs are returned, as a dictionary by name."
            )
        execute = self._memory().binding.execute
        arrays = None if feeds is None else self._checked_feeds(feeds, allow_nan)
        with self._lock:
            if arrays is not None:
                for name, array in arrays.items():
                    np.copyto(self.inputs[name], array)
                    self.stats.copied_in_bytes += self.inputs[name].nbytes
            begin = time.perf_counter()
            execute(profile, self._signal)
            self.stats.last_ms = (time.perf_counter() - begin) * 1e3
            self.stats.runs += 1
            if arrays is None:
                return {}
            if audit_log.active:
                self._report_copies()
            results = {name: view.copy() for name, view in self.outputs.items()}
            self.stats.copied_out_bytes += sum(result.nbytes for result in results.values())
            return results

    def fill(self, feeds: Mapping[str, Any], *, allow_nan: bool = False) -> None:
        """Write arrays into `inputs`, for a run in place; the parameters are those of `run`."""
        self._memory()
        arrays = self._checked_feeds(feeds, allow_nan)
        with self._lock:
            for name, array in arrays.items():
                np.copyto(self.inputs[name], array)

    def _report_copies(self) -> None:
        """Report the copies of a run with feeds to the audits in progress."""
        remedy = "Write into `inputs`, call run() without feeds, and read `outputs`."
        for name, view in (*self.inputs.items(), *self.outputs.items()):
            what, reason = f"session of '{self.path.name}'", "run(feeds) copies arrays"
            audit_log.note(audit_log.Action.COPY, what, view.nbytes, f"'{name}'", reason, remedy)

    @property
    def graph_stats(self) -> qnn.GraphStats:
        """The backend's totals: bytes copied and reserved, bytes used in place."""
        return self.graph.stats

    def reset(self) -> None:
        """Reset the model's state to its initial values."""
        graph = self.graph
        with self._lock:
            graph.reset()

    @shielded
    def close(self) -> None:
        """Free the session's resources; safe to call again. Existing views stay readable.

        A run in progress in another thread ends first, or its backend aborts it with an error.
        """
        # Not under the lock that a run holds: this call aborts a run that does not end by itself.
        self._backend.free()
        with self._lock:
            memory, self._open = self._open, None
            if memory is not None:
                memory.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_open", None) is not None and not sys.is_finalizing():
            self.close()
            warnings.warn(f"session of '{self.path.name}' was never closed", ResourceWarning, stacklevel=2, source=self)

    def _memory(self) -> qnn.GraphMemory:
        """Return the graph's memory; refuse if the session is closed."""
        memory = self._open
        if memory is None:
            raise QnnError(Code.GRAPH_INVALID_HANDLE, f"session of '{self.path.name}'", "it is closed")
        return memory

    def _checked_feeds(self, feeds: Mapping[str, Any], allow_nan: bool) -> dict[str, np.ndarray]:
        """Return the feeds as arrays by input name; refuse all if one is invalid, before anything is written."""

        def refuse(what: str, rule: str, hint: str = "") -> QnnError:
            return QnnError(Code.GRAPH_INVALID_TENSOR, what, rule, hint)

        known = ", ".join(f"'{name}'" for name in self.inputs)
        if not isinstance(feeds, Mapping):
            raise refuse(f"feeds of type {type(feeds).__name__}", f"must map input names to arrays; inputs are {known}")
        for name in feeds:
            if name not in self.inputs:
                rule, hint = f"the model has no such input; it has {known}", did_you_mean(name, self.inputs)
                raise refuse(f"input '{name}'", rule, hint)
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


def time_limit(backend: qnn.Backend, seconds: float | None) -> qnn.Signal | None:
    """Return a signal that ends executions after this many seconds; None for no limit."""
    return None if seconds is None else qnn.Signal(backend, round(checked_seconds(seconds) * 1e6))


def checked_seconds(seconds: float, what: str = "timeout") -> float:
    """Return a time limit in seconds, or refuse it; `what` names it in the error."""
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real) or not 1e-6 <= seconds <= MAX_SECONDS:
        rule = f"must be a number of seconds from 0.000001 to {MAX_SECONDS}, is {seconds!r}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule)
    return float(seconds)


def _checked_shapes(shapes: Mapping[str, Iterable[int]] | None) -> dict[str, tuple[int, ...]] | None:
    """Return the caller's shapes as tuples of integers, by input name; refuse those that are not positive."""
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
