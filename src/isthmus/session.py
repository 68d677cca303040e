"""`Session`: a model file, ready to run, with inputs and outputs as numpy views of its memory."""

from __future__ import annotations

import numbers
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from isthmus import audit_log, qnn
from isthmus.backends.seam import registry
from isthmus.errors import Code, QnnError, did_you_mean, invalid_argument
from isthmus.frontends import ModelSource, NeedsStages, is_library, open_dims, with_contents
from isthmus.graph import GraphInfo
from isthmus.log import Log
from isthmus.prepare.schedule import Plan
from isthmus.prepare.tiling import ScratchLimit
from isthmus.qnn.models import binary_info, load, prepared_graph
from isthmus.qnn.specialization import DynamicModel, GraphSettings, PlannedStage
from isthmus.system.lock import Lock
from isthmus.system.shield import shielded, unless_exiting

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
        Dimensions for inputs that the file leaves dynamic, by input name; dimensions that are not given become 1. They
        are the greatest: inputs of an ONNX model may be smaller in a run, see `resize`.
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
        do not fit are computed tile by tile; results have the bits of whole tensors without Winograd's algorithm.
    slower
        Maximum estimated slowdown that the limit may cost, as a fraction of the model's time. ``"least"`` goes that far
        (0.05 if omitted); a limit that costs more is refused.
    timeout
        How many seconds a run may take; a longer run is aborted with GRAPH_TIMED_OUT. If omitted, only the backend's
        own limit applies.
    graph
        Which graph to take from a file that contains several.
    bounds
        The greatest values, by name, of values inside an ONNX model that decide shapes, where they cannot be inferred.

    Attributes
    ----------
    inputs, outputs
        The inputs and outputs by name: views of the memory that the model reads and writes, at their true shapes.
        Outputs whose shapes are known only at run time are other views after each run. Views of BFLOAT_16 have the bits
        as ``uint16``: write numbers to ``inputs["x"].view(ml_dtypes.bfloat16)``.
    info
        A description of the model: inputs, outputs, required memory. Shapes are the greatest.
    plan
        The scratch plan, if the backend makes and reports one; else None. Of a model in stages, that of the stage with
        most scratch.
    stages
        The stages of an ONNX model that cannot be one graph, at the greatest shapes; empty if it is one graph.
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
        bounds: Mapping[str, Any] | None = None,
    ) -> None:
        limit = ScratchLimit.if_any(scratch_limit, slower)
        if not isinstance(path, (str, os.PathLike)):
            raise invalid_argument(f"model {path!r}", "must be a path")
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
        # The memory of the only graph, if there is one, and the model for other shapes or in stages. Both None before
        # they are needed and after `close`.
        self._open: qnn.GraphMemory | None = None
        self._dynamic: DynamicModel | None = None
        self._source = with_contents(ModelSource(self.path, _checked_shapes(shapes), constants, graph, whole_rows=True))
        # Which dimensions of inputs may change.
        self._open_dims = open_dims(self._source)
        self._settings = GraphSettings(threads, limit, mem_type)
        self._graph: qnn.Graph | None = None
        self._backend = qnn.Backend(backend, config, log)
        try:
            self._signal = time_limit(self._backend, timeout)
            if binary is not None and graph is not None:
                self._graph = self._backend.create_context_from_binary(self.path).retrieve(graph)
            else:
                self._bounds = bounds
                self._compose(io, bounds)
            if self._graph is not None:
                self._open = self._graph.allocate(io)
        except Exception:
            self._backend.free()
            raise
        self.inputs: Mapping[str, np.ndarray]
        self.outputs: Mapping[str, np.ndarray]
        self.info: GraphInfo
        self.plan: Plan | None
        self.stages: Sequence[PlannedStage] = ()
        if self._graph is not None and self._open is not None:
            self.info, self.plan = self._graph.info, self._graph.plan
            self.inputs, self.outputs = self._open.inputs, self._open.outputs
            self.inputs_survive = self._open.inputs_survive
        elif self._dynamic is not None:
            model = self._dynamic
            self.info, self.stages, self.inputs_survive = model.info, model.stages, True
            largest = max(model.stages, key=lambda stage: stage.info.memory.scratch_bytes, default=None)
            self.plan = None if largest is None else largest.plan
            views = {name: model.input_view(name, dims) for name, dims in model.greatest.items()}
            self.inputs, self.outputs = MappingProxyType(views), MappingProxyType({})
        # The shapes of the inputs now; None if they are those of the only graph.
        self._shapes: dict[str, tuple[int, ...]] | None = None
        if self._dynamic is not None:
            self._shapes = self._dynamic.greatest

    def _compose(self, io: str | None, bounds: Mapping[str, Any] | None) -> None:
        """Make one graph of the model, or stages if its shapes are known only at run time."""
        context = self._backend.create_context()
        try:
            graph = load(replace(self._source, operations=self._backend.driver.definitions))
        except NeedsStages:
            self._dynamic = DynamicModel(context, self._source, self._settings, bounds, io)
            return
        self._graph = self._settings.compose(context, graph, self._settings.limit)
        if not any(map(any, self._open_dims.values())):
            # The file is not needed again.
            self._source = replace(self._source, model=None)

    def __repr__(self) -> str:
        def describe(views: Mapping[str, np.ndarray]) -> str:
            return ", ".join(f"'{name}' {view.dtype}{list(view.shape)}" for name, view in views.items())

        what, closed = f"'{self.path.name}' on {self.backend}", ", closed" * self._is_closed
        return f"<Session {what}: {describe(self.inputs)} -> {describe(self.outputs)}{closed}>"

    @property
    def graph(self) -> qnn.Graph:
        """The QNN graph behind the session."""
        self._check()
        if self._graph is None:
            rule = f"it runs in {len(self.stages)} stages and is not one graph"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, f"session of '{self.path.name}'", rule)
        return self._graph

    @property
    def in_stages(self) -> bool:
        """Whether the model runs in stages, because it cannot be one graph."""
        return self._graph is None

    @property
    def engine_run(self) -> Callable[[], None]:
        """The function that runs once on the bound memory, without the session's lock, timeout and `stats`."""
        self._check()
        if self._open is not None and self._shapes is None:
            return self._open.binding.execute
        return self._execute

    def _execute(self, profile: qnn.Profile | None = None, signal: qnn.Signal | None = None) -> None:
        """Run once on the memory of the inputs, at their shapes."""
        if self._open is not None and self._shapes is None:
            self._open.binding.execute(profile, signal)
            return
        model, shapes = self._dynamic, self._shapes
        if model is None or shapes is None:
            # A signal handler has closed the session since it was checked.
            raise self._closed_error()
        self.outputs = MappingProxyType(model.run(shapes, profile, signal))

    def resize(self, shapes: Mapping[str, Iterable[int]]) -> None:
        """Set the true shapes of inputs for the runs that follow, in dimensions that an ONNX file leaves open.

        `inputs` has views of these shapes then. Memory is not allocated: the shapes that the session was created with
        are the greatest. The first run with a shape prepares graphs for it, which are kept.

        Parameters
        ----------
        shapes
            Dimensions by input name. Inputs that are not named keep theirs.
        """
        self._check()
        true_shapes = {name: view.shape for name, view in self.inputs.items()} | (_checked_shapes(shapes, 0) or {})
        with self._lock:
            self._take_shapes(true_shapes)

    def _take_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make these the shapes of the inputs, all or none; the caller holds the lock."""
        if shapes == {name: view.shape for name, view in self.inputs.items()}:
            return
        greatest = {info.name: tuple(info.dims) for info in self.info.inputs}
        for name, dims in shapes.items():
            if name not in greatest:
                names = ", ".join(f"'{each}'" for each in greatest)
                rule = f"the model has no such input; it has {names}"
                raise QnnError(Code.GRAPH_INVALID_TENSOR, f"input '{name}'", rule, did_you_mean(name, greatest))
            is_open = self._open_dims.get(name, ())
            fits = len(dims) == len(greatest[name]) and all(
                size == most or (free and size < most)
                for size, most, free in zip(dims, greatest[name], is_open or [False] * len(dims), strict=False)
            )
            if not fits:
                raise self._wrong_shape(name, dims, greatest[name], any(is_open))
        model = self._dynamic
        if model is None:
            assert self._open is not None
            model = DynamicModel(self.graph.context, self._source, self._settings, self._bounds, whole=self._open)
            self._dynamic = model
        if self._open is not None and shapes == greatest:
            self._shapes, self.inputs, self.outputs = None, self._open.inputs, self._open.outputs
        else:
            views = {name: model.input_view(name, tuple(dims)) for name, dims in shapes.items()}
            self._shapes, self.inputs = dict(shapes), MappingProxyType(views)

    def _wrong_shape(self, name: str, dims: Sequence[int], greatest: Sequence[int], is_open: bool) -> QnnError:
        """Return the refusal of an input's shape."""
        rule = f"must have shape {tuple(greatest)}, has {tuple(dims)}"
        hint = ""
        if is_open:
            rule = f"must have at most shape {tuple(greatest)}, has {tuple(dims)}"
            hint = f"Give the greatest shape: shapes={{{name!r}: {tuple(dims)}}}, or --shape."
        return QnnError(Code.GRAPH_INVALID_TENSOR, f"input '{name}'", rule, hint)

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
            first, and copies of all outputs are returned. Arrays for inputs of BFLOAT_16 are of ``ml_dtypes.bfloat16``,
            or their bits as ``uint16``.
        allow_nan
            Accept NaN in `feeds`; it is refused otherwise, since it is nearly always a mistake.
        profile
            Records the times of this run.

        Returns
        -------
        dict
            Copies of the outputs by name; empty if run in place. Those of BFLOAT_16 are bits of type ``uint16``, which
            ``array.view(ml_dtypes.bfloat16)`` or `DataType.decode` turn into numbers.
        """
        if more:
            rule = "takes feeds only, as run({'input': array})"
            raise invalid_argument("Session.run", rule, "All outputs are returned, as a dictionary by name.")
        arrays = None
        if feeds is not None:
            self._check()
            arrays = self._checked_feeds(feeds, allow_nan)
        with self._lock:
            self._check()
            if arrays is not None:
                self._fill(arrays)
                self.stats.copied_in_bytes += sum(view.nbytes for view in self.inputs.values())
            begin = time.perf_counter()
            self._execute(profile, self._signal)
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
        self._check()
        arrays = self._checked_feeds(feeds, allow_nan)
        with self._lock:
            self._check()
            self._fill(arrays)

    def _fill(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write arrays into the inputs, which get their shapes; the caller holds the lock."""
        self._take_shapes({name: array.shape for name, array in arrays.items()})
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
        with self._lock:
            self._check()
            stats = qnn.GraphStats() if self._graph is None else self._graph.stats
            return stats if self._dynamic is None else self._dynamic.stats(stats)

    @property
    def threads(self) -> int:
        """Number of threads of a run."""
        self._check()
        return self._settings.threads if self._graph is None else self._graph.get_property(qnn.GraphConfig.THREADS)

    def reset(self) -> None:
        """Reset the model's state to its initial values; a model in stages has none."""
        self._check()
        if self._graph is not None:
            with self._lock:
                self._graph.reset()

    @unless_exiting
    @shielded
    def close(self) -> None:
        """Free the session's resources; safe to call again. Existing views stay readable.

        A run in progress in another thread ends first, or its backend aborts it with an error.
        """
        # Not under the lock that a run holds: this call aborts a run that does not end by itself.
        self._backend.free()
        with self._lock:
            model, self._dynamic = self._dynamic, None
            if model is not None:
                model.close()
            memory, self._open = self._open, None
            if memory is not None:
                memory.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # A parameter, since names of this module may be gone when the interpreter exits.
        if not is_finalizing() and not getattr(self, "_is_closed", True):
            self.close()
            warnings.warn(f"session of '{self.path.name}' was never closed", ResourceWarning, stacklevel=2, source=self)

    @property
    def _is_closed(self) -> bool:
        return self._open is None and self._dynamic is None

    def _check(self) -> None:
        """Refuse if the session is closed."""
        if self._open is None and self._dynamic is None:
            raise self._closed_error()

    def _closed_error(self) -> QnnError:
        """Return the error for a session that is closed."""
        return QnnError(Code.GRAPH_INVALID_HANDLE, f"session of '{self.path.name}'", "it is closed")

    def _checked_feeds(self, feeds: Mapping[str, Any], allow_nan: bool) -> dict[str, np.ndarray]:
        """Return the feeds as arrays by input name; refuse all if one is invalid, before anything is written."""

        def refuse(what: str, rule: str, hint: str = "") -> QnnError:
            return QnnError(Code.GRAPH_INVALID_TENSOR, what, rule, hint)

        names = ", ".join(f"'{name}'" for name in self.inputs)
        if not isinstance(feeds, Mapping):
            raise refuse(f"feeds of type {type(feeds).__name__}", f"must map input names to arrays; inputs are {names}")
        for name in feeds:
            if name not in self.inputs:
                rule, hint = f"the model has no such input; it has {names}", did_you_mean(name, self.inputs)
                raise refuse(f"input '{name}'", rule, hint)
        arrays = {}
        for name, dtype in ((info.name, info.dtype) for info in self.info.inputs):
            if name not in feeds:
                raise refuse(f"input '{name}'", "it is missing", f"The model needs {names}.")
            array = dtype.elements(np.asarray(feeds[name]))
            if array.dtype != dtype.numpy:
                is_bfloat16 = dtype is qnn.DataType.BFLOAT_16
                hint = "Pass an array of ml_dtypes.bfloat16, or its bits as uint16." if is_bfloat16 else ""
                raise refuse(f"input '{name}'", f"must be {dtype.numpy}, is {array.dtype}", hint)
            if not allow_nan and dtype.is_float and np.isnan(dtype.decode(array)).any():
                raise refuse(f"input '{name}'", "it holds NaN", "Pass allow_nan=True to run it all the same.")
            arrays[name] = array
        return arrays


def time_limit(backend: qnn.Backend, seconds: float | None) -> qnn.Signal | None:
    """Return a signal that ends executions after this many seconds; None for no limit."""
    return None if seconds is None else qnn.Signal(backend, round(checked_seconds(seconds) * 1e6))


def checked_seconds(seconds: float, what: str = "timeout") -> float:
    """Return a time limit in seconds, or refuse it; `what` names it in the error."""
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real) or not 1e-6 <= seconds <= MAX_SECONDS:
        raise invalid_argument(what, f"must be a number of seconds from 0.000001 to {MAX_SECONDS}, is {seconds!r}")
    return float(seconds)


def _checked_shapes(shapes: Mapping[str, Iterable[int]] | None, least: int = 1) -> dict[str, tuple[int, ...]] | None:
    """Return the caller's shapes as tuples of integers, by input name; refuse dimensions below the least."""
    if shapes is None:
        return None
    if not isinstance(shapes, Mapping):
        raise invalid_argument(f"shapes {shapes!r}", "must map input names to dimensions")
    checked = {}
    for name, dims in shapes.items():
        try:
            checked[name] = tuple(int(d) for d in dims)
        except (TypeError, ValueError):
            raise invalid_argument(f"shape of '{name}'", f"{dims!r} is not a list of dimensions") from None
        if any(d < least for d in checked[name]):
            rule = f"dimensions {checked[name]} must be positive" if least else f"{checked[name]} is below 0"
            raise invalid_argument(f"shape of '{name}'", rule)
    return checked
