"""A graph: composed, finalized, bound to memory, executed (QnnGraph_*, QnnTensor_*)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus import audit_log
from isthmus import graph as ir
from isthmus.backends.seam.driver import Change, DriverBinding, GraphDriver, GraphStats, Memories, TensorMemory, member
from isthmus.errors import Code, QnnError
from isthmus.graph import folding
from isthmus.log import LogLevel, deferred
from isthmus.memory.integers import is_int
from isthmus.prepare.schedule import Plan
from isthmus.prepare.tiling import ScratchLimit
from isthmus.qnn import batches, options
from isthmus.qnn.asynchronous import Execution
from isthmus.qnn.binding import Binding, Bindings, check_finalized, check_kinds, enqueue_after, run, run_watched
from isthmus.qnn.handle import Handle
from isthmus.qnn.memory import GraphMemory
from isthmus.qnn.profile import Profile, ProfileLevel, ProfilingEvent
from isthmus.qnn.signal import Reservation, Signal
from isthmus.qnn.tensor import ClientTensor, match_tensors
from isthmus.system.shield import shielded

if TYPE_CHECKING:
    from isthmus.qnn.context import Context


def _run_plainly(binding: DriverBinding) -> None:
    """Run a binding once, without deadline and timings."""
    binding.execute()


class GraphConfig(IntEnum):
    """Options that graphs of every backend have; a backend's own options are in the module of its name."""

    PRIORITY = 3
    """QNN_GRAPH_CONFIG_OPTION_PRIORITY: a `Priority`."""
    THREADS = 30001
    """Number of threads of an execution; set it before the graph is finalized. Specific to this project."""
    SCRATCH_LIMIT = 30002
    """Maximum scratch of the graph; set it before the graph is finalized. Bytes, a fraction of the unlimited size
    (``"25%"``), ``"least"``, a `ScratchLimit`, or None for no limit. Specific to this project.
    """
    WINOGRAD = 30003
    """Whether float convolutions may use Winograd's algorithm where it is faster; set it before the graph is finalized.
    Only graphs on cpu without a limit on scratch do; others have the bits of those for which this is False. Specific to
    this project.
    """


class Priority(IntEnum):
    """QNN_PRIORITY_*."""

    LOW = 0
    NORMAL = 100
    NORMAL_HIGH = 150
    HIGH = 200


class QnnGraph(Handle):
    """A graph of a context. Created by `Context.create_graph`, `Context.compose` or `Context.retrieve`.

    Examples
    --------
    >>> from isthmus import qnn
    >>> with qnn.Backend("cpu") as backend:
    ...     graph = backend.create_context().create_graph("double")
    ...     x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, (1, 4))
    ...     y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, (1, 4))
    ...     graph.add_node("add", "ElementWiseAdd", [x, x], [y])
    ...     graph.finalize()
    ...     graph.inputs["x"][...] = 1, 2, 3, 4
    ...     graph.execute()
    ...     graph.outputs["y"].tolist(), graph.info.io_bytes
    ([[2.0, 4.0, 6.0, 8.0]], 32)
    """

    invalid = Code.GRAPH_INVALID_HANDLE

    def __init__(self, context: Context, driver: GraphDriver) -> None:
        self.context = context
        self.driver = driver
        self.name = driver.graph.name
        # Held during `finalize`, so that two threads do not finalize at once.
        self._finalizing = threading.Lock()
        self._bindings = Bindings(partial(batches.bind, driver))
        super().__init__(f"graph '{self.name}'", context)

    # -- composition ---------------------------------------------------------------------------------------------------

    def create_tensor(
        self,
        name: str,
        type: ir.TensorType,
        dtype: ir.DataType,
        dims: Iterable[int],
        quantization: ir.Quantization | None = None,
        data: np.ndarray | None = None,
        **more: Any,
    ) -> ir.Tensor:
        """Create a tensor (QnnTensor_createGraphTensor) from the arguments of `isthmus.graph.Graph.create_tensor`."""
        self._check_composing()
        return self.driver.graph.create_tensor(name, type, dtype, dims, quantization, data, **more)

    def add_node(
        self,
        name: str,
        op: str,
        inputs: Sequence[ir.Tensor | None],
        outputs: Sequence[ir.Tensor],
        params: dict[str, Any] | None = None,
    ) -> None:
        """Add a node (QnnGraph_addNode). A node on constants alone is computed at once and yields constants.

        Names of nodes need not differ: one that is taken gets a number.
        """
        self._check_composing()
        what = f"node {name!r} ({op})"
        if not all(isinstance(tensors, Sequence) and not isinstance(tensors, str) for tensors in (inputs, outputs)):
            raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, "its inputs and outputs must be lists of tensors")
        if any(tensor is not None and not isinstance(tensor, ir.Tensor) for tensor in (*inputs, *outputs)):
            raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, "its inputs and outputs must be tensors")
        if not isinstance(name, str) or not isinstance(op, str) or not isinstance(params, (dict, type(None))):
            raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, "its name and operation must be texts, params a dict")
        graph = self.driver.graph
        folding.add_node(graph, graph.fresh_node(name), op, inputs, outputs, params)

    def update_state(self, state: ir.Tensor, value: ir.Tensor) -> None:
        """Declare which value a state (an APP_READWRITE tensor) has after an execution."""
        self._check_composing()
        self.driver.graph.update_state(state, value)

    # -- properties and configs ----------------------------------------------------------------------------------------

    def get_property(self, option: Any) -> Any:
        """Return a property, or the current value of a config (QnnGraph_getProperty).

        Parameters
        ----------
        option
            A member of `GraphConfig` or of an enumeration of the backend's graphs, or a number specific to the backend.
        """
        self._check()
        option = self._general(option)
        if isinstance(option, GraphConfig):
            return self._general_value(option)
        return options.ask(self.driver, option, self._what, Code.GRAPH_INVALID_ARGUMENT)

    def _general_value(self, option: GraphConfig) -> Any:
        """Return the current value of an option that graphs of every backend have."""
        if option is GraphConfig.PRIORITY:
            return Priority(self.driver.priority)
        if option is GraphConfig.WINOGRAD:
            return self.driver.winograd
        return self.driver.threads if option is GraphConfig.THREADS else self.driver.scratch_limit

    @shielded
    def set_config(self, option: Any, value: Any = None) -> None:
        """Set a config, or several from a mapping of options to values: all or none (QnnGraph_setConfig)."""
        self._check()
        pairs = options.pairs(option, value, self._what, Code.GRAPH_INVALID_ARGUMENT)
        options.together(lambda key=key, value=value: self._set(key, value) for key, value in pairs).keep()

    def _general(self, option: Any) -> Any:
        """Convert a number that is none of the backend's own options to a `GraphConfig` if it is one."""
        own = [int(config) for kind in (self.driver.properties, self.driver.configs) for config in kind or ()]
        if is_int(option) and not isinstance(option, IntEnum) and option not in own:
            return next((config for config in GraphConfig if config == option), option)
        return option

    def _set(self, option: Any, value: Any) -> Change:
        """Set one config; the result can undo it if another config of the same call is refused."""
        option = self._general(option)
        if option is GraphConfig.THREADS:
            return self.driver.set_threads(value)
        if option is GraphConfig.SCRATCH_LIMIT:
            return self.driver.set_scratch_limit(None if value is None else ScratchLimit.of(value))
        if option is GraphConfig.WINOGRAD:
            if not isinstance(value, bool):
                rule = "must be True or False"
                raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"winograd={value!r} of {self._what}", rule)
            return self.driver.set_winograd(value)
        if option is GraphConfig.PRIORITY:
            priority = int(member(value, Priority, "priority", Code.GRAPH_INVALID_ARGUMENT))
            self.context.driver.check_priority_change()
            return Change.attribute(self.driver, "priority", priority)
        own = options.option(option, self.driver.configs, "config", self._what, Code.GRAPH_INVALID_ARGUMENT)
        return self.driver.set_config(own, value)

    # -- finalize and execute ------------------------------------------------------------------------------------------

    @property
    def finalized(self) -> bool:
        """Whether it is ready to execute."""
        return self.driver.finalized

    @shielded
    def finalize(self, profile: Profile | None = None) -> None:
        """Prepare the graph for execution (QnnGraph_finalize)."""
        self._check()
        with deferred(), self._finalizing:
            if self.finalized:
                raise QnnError(Code.GRAPH_FINALIZED, self._what, "it is finalized already")
            begin = time.perf_counter()
            self.driver.finalize()
        plan = self.driver.plan
        if plan is not None and plan.bounded:
            text = "the search for tiles left out long regions: the graph has too many steps to try all"
            self.context.backend.log(LogLevel.INFO, f"{self._what}: {text}")
        if profile is not None:
            profile.add(ProfilingEvent("finalize", (time.perf_counter() - begin) * 1e6, "us"))
            if profile.level is ProfileLevel.DETAILED:
                profile.add(ProfilingEvent("staging reserved", self.driver.stats().staging_bytes, "bytes"))

    @shielded(release=Binding.close)
    @audit_log.reported
    def bind(self, inputs: Sequence[ClientTensor] = (), outputs: Sequence[ClientTensor] = ()) -> Binding:
        """Bind memory to the graph for any number of executions, with all checks.

        Parameters
        ----------
        inputs, outputs
            Memory for tensors by name, in any order. A tensor that is not named uses the memory that the backend
            planned for it, if any; `inputs` and `outputs` of this object are views of that memory. On HTP the first
            dimension of all of them may be a multiple of what the graph was prepared with.
        """
        self._check()
        check_finalized(self)
        try:
            tensors = self._tensors(inputs, outputs)
            multiple = self._multiple(*tensors)
            return Binding(self, batches.bind(self.driver, self._memories(*tensors, multiple), multiple))
        except QnnError:
            # If the graph was freed meanwhile, that is the cause, whatever error the backend reports.
            self._check()
            raise

    def execute(
        self,
        inputs: Sequence[ClientTensor] = (),
        outputs: Sequence[ClientTensor] = (),
        profile: Profile | None = None,
        signal: Signal | Reservation | None = None,
        wait_for: Any = None,
    ) -> Any:
        """Run once (QnnGraph_execute) on the binding of this memory, creating the binding if the memory is new.

        Parameters
        ----------
        inputs, outputs
            As for `bind`.
        profile
            Where to record timings.
        signal
            What may end it early.
        wait_for
            As for `Binding.execute`: events to run after, without waiting. The return value is then the event of its
            end.
        """
        if not self.usable:
            self._check()
        try:
            if profile is None and signal is None and wait_for is None:
                self._execute(inputs, outputs, _run_plainly)
            elif wait_for is not None:
                return self._execute(
                    inputs, outputs, lambda binding: enqueue_after(binding.enqueue, wait_for, profile, signal)
                )
            else:
                run_watched(
                    lambda limit, timed: self._execute(inputs, outputs, lambda binding: run(binding, limit, timed)),
                    self.driver, profile, signal,
                )  # fmt: skip
            return None
        except QnnError as error:
            audit_log.refuse(error)
            # If the graph was freed meanwhile, that is the cause, whatever error the backend reports.
            self._check()
            raise

    def bound(self, inputs: Sequence[ClientTensor] = (), outputs: Sequence[ClientTensor] = ()) -> DriverBinding:
        """Return the binding that `execute` uses for this memory, creating it with all checks if needed.

        It is closed when it is evicted from the cache; `execute` then creates another.
        """
        self._check()
        try:
            return self._find_binding(inputs, outputs)
        except QnnError:
            # If the graph was freed meanwhile, that is the cause, whatever error the backend reports.
            self._check()
            raise

    def _execute(self, inputs: Any, outputs: Any, how: Callable[[DriverBinding], Any]) -> Any:
        """Run the binding of this memory with the function `how`, and return what that returns."""
        binding = self._find_binding(inputs, outputs)
        try:
            return how(binding)
        except QnnError:
            # Another thread's execution may have evicted the binding from the cache, which closes it: try again.
            if not binding.closed or not self.usable:
                raise
            return self._execute(inputs, outputs, how)

    def execute_async(
        self,
        inputs: Sequence[ClientTensor] = (),
        outputs: Sequence[ClientTensor] = (),
        notify: Callable[[Execution], object] | None = None,
        profile: Profile | None = None,
        signal: Signal | None = None,
    ) -> Execution:
        """Run once on another thread (QnnGraph_executeAsync), in the order of such calls on the context.

        The return value is a future that can be awaited; `notify` is called with it at the end. If as many executions
        of the context wait as its `queue_depth` says, the call waits for the end of one; within `notify` it is refused
        then. A signal's timeout starts now, and the signal is in use until the execution has ended.
        """
        return self._submit(partial(self.execute, inputs, outputs), notify, profile, signal)

    @shielded(release=lambda memory: memory.binding.close())
    def allocate(self, io: str | None = None) -> GraphMemory:
        """Allocate all memory that the graph needs, finalize the graph if it is not yet, and bind it.

        Parameters
        ----------
        io
            The memory of inputs and outputs: "raw" or "memhandle", if the backend supports it. If omitted, the backend
            chooses.
        """
        self._check()
        return GraphMemory(self, io)

    # -- description ---------------------------------------------------------------------------------------------------

    @property
    def info(self) -> ir.GraphInfo:
        """A description of the graph: inputs, outputs, required memory. Reading it ends composition."""
        self._check()
        return self.driver.info

    @property
    def input_tensors(self) -> tuple[ir.TensorInfo, ...]:
        """A description of each input: name, type, dimensions, bytes."""
        return self.info.inputs

    @property
    def output_tensors(self) -> tuple[ir.TensorInfo, ...]:
        """A description of each output."""
        return self.info.outputs

    @property
    def inputs(self) -> Mapping[str, np.ndarray]:
        """Views of the memory that the backend planned for inputs; inputs without such memory are missing."""
        return self._views(0, self.info.inputs)

    @property
    def outputs(self) -> Mapping[str, np.ndarray]:
        """Views of the memory that the backend planned for outputs; outputs without such memory are missing."""
        return self._views(len(self.info.inputs), self.info.outputs)

    @property
    def stats(self) -> GraphStats:
        """Totals so far: executions, bytes copied, bytes used in place."""
        self._check()
        return self.driver.stats()

    @property
    def plan(self) -> Plan | None:
        """The scratch plan, if the backend makes one and it is known; a graph from a context binary has none."""
        self._check()
        return self.driver.plan

    @shielded
    def reset(self) -> None:
        """Reset the state to its initial values."""
        self._check()
        self.driver.reset()

    # -- internals -----------------------------------------------------------------------------------------------------

    def free(self) -> None:
        """Do nothing: QNN has no call that frees a graph; a graph ends with its context."""

    def _release(self) -> None:
        self._bindings.clear()

    def _check_composing(self) -> None:
        """Refuse to change a graph whose composition has ended."""
        self._check()
        if self.driver.graph.finalized:
            rule, hint = "it is complete and cannot be changed", "Querying a size or finalizing ends composition."
            raise QnnError(Code.GRAPH_FINALIZED, self._what, rule, hint)

    def _views(self, start: int, infos: Sequence[ir.TensorInfo]) -> Mapping[str, np.ndarray]:
        """Return views by name; `start` is the driver's index of the first of these tensors."""
        windows = [(info, self.driver.place(start + index)) for index, info in enumerate(infos)]
        return MappingProxyType(
            {info.name: window.view(info.dtype.numpy, info.dims) for info, window in windows if window is not None}
        )

    def _submit(
        self,
        execute: Callable[[Profile | None, Reservation | None], object],
        notify: Callable[[Execution], object] | None,
        profile: Profile | None,
        signal: Signal | None,
    ) -> Execution:
        """Run `execute` on the context's thread, and reserve the signal until it has ended; then call `notify`."""
        self._check()
        if notify is not None and not callable(notify):
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, self._what, f"notify {notify!r} cannot be called")
        check_kinds(profile, signal)
        submit = self.context.executions.submit
        if signal is None:
            return submit(self._what, lambda: execute(profile, None), notify)
        reserved = signal.reserve()

        def finish(execution: Execution) -> None:
            # A cancelled execution has never used its reservation.
            reserved.end()
            if notify is not None:
                notify(execution)

        try:
            return submit(self._what, lambda: execute(profile, reserved), finish)
        except BaseException:
            reserved.end()
            raise

    def _tensors(self, inputs: Any, outputs: Any) -> tuple[tuple[ClientTensor, ...], tuple[ClientTensor, ...]]:
        """Return the client's inputs and outputs as tuples, which the cache of bindings can compare."""
        try:
            return tuple(inputs), tuple(outputs)
        except TypeError:
            rule = "inputs and outputs must be sequences of ClientTensor"
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, self._what, rule) from None

    def _find_binding(self, inputs: Any, outputs: Any) -> DriverBinding:
        """Return the cached binding of this memory, or a new one."""
        tensors = self._tensors(inputs, outputs)
        try:
            binding = self._bindings.find(*tensors)
        except (TypeError, ValueError):
            # One of them is not a tensor; the code below reports it.
            binding = None
        if binding is None:
            check_finalized(self)
            binding = self._new_binding(tensors)
        return binding

    @shielded
    @audit_log.reported
    def _new_binding(self, tensors: tuple[tuple[ClientTensor, ...], tuple[ClientTensor, ...]]) -> DriverBinding:
        """Check the memory and bind it. Apart from `_find_binding`, since only this slow part needs a shield."""
        multiple = self._multiple(*tensors)
        return self._bindings.of(*tensors, self._memories(*tensors, multiple), multiple)

    def _multiple(self, *tensors: tuple[ClientTensor, ...]) -> int:
        """Return how many times the batch that the graph was prepared with the client's memory has."""
        if not self.context.backend.driver.takes_other_batches:
            return 1
        return batches.multiple_in(self._what, self.info.tensors, tensors)

    def _memory(self, client: ClientTensor, info: ir.TensorInfo, writable: bool) -> TensorMemory | None:
        """Return the memory that a client gives for a tensor; report to the audits in progress what it is for."""
        memory = client.memory(info, self.context, writable)
        if memory is not None and audit_log.active:
            audit_log.name_memory(memory.window.spans, f"'{info.name}'")
            self._report_raw(client, info)
        return memory

    def _report_raw(self, client: ClientTensor, info: ir.TensorInfo) -> None:
        """Report raw memory for a tensor that was prepared for registered memory."""
        if client.data is not None and info.mem_type is ir.TensorMemType.MEMHANDLE:
            rule = "was prepared for a memory handle and is given raw memory"
            remedy = "Register the memory (mem_register) and pass its handle, or create the tensor with RAW memory."
            what, name = f"tensor '{info.name}' of {self._what}", f"'{info.name}'"
            audit_log.mistake("prepared for memhandle, run raw", what, rule, remedy, name)

    def _memories(self, inputs: tuple[ClientTensor, ...], outputs: tuple[ClientTensor, ...], multiple: int) -> Memories:
        """Return the memory of each input and output in the graph's order; None where the client gives none."""
        memories: list[TensorMemory | None] = []
        infos = (self.info.inputs, self.info.outputs)
        for kind, tensors, known_infos in zip(("input", "output"), (inputs, outputs), infos, strict=True):
            for info, client in zip(known_infos, match_tensors(self._what, kind, tensors, known_infos), strict=True):
                scaled = batches.times(info, multiple)
                memories.append(None if client is None else self._memory(client, scaled, kind == "output"))
        return memories
