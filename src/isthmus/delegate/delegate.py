"""`QnnDelegate`: runs nodes of a LiteRT interpreter on a backend of this project."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from isthmus import qnn
from isthmus.backends.seam.driver import GraphStats
from isthmus.delegate import callbacks, custom_memory, foreign, probe, structures, view
from isthmus.delegate.block import NodeBlock, functions
from isthmus.delegate.custom_memory import CustomMemory
from isthmus.delegate.options import DelegateLogLevel, DelegateSettings, Options, Profiling, check_options
from isthmus.delegate.partition import Partition, PartitionEnvironment, check_memory
from isthmus.delegate.structures import DEFAULT_TENSOR_ALIGNMENT, Allocation
from isthmus.delegate.survey import NodeSet, Survey, settle, survey
from isthmus.errors import Code, QnnError
from isthmus.frontends.tflite.entries import OperatorEntry
from isthmus.log import Log, LogLevel, deferred, to_standard_error
from isthmus.system.interrupts import Finalizer
from isthmus.system.lock import Lock

NAME = b"TfLiteQnnDelegate"
REMEMBERED = 256
"""Maximum number of subgraphs that a delegate reports on."""


@dataclass(frozen=True)
class Delegation:
    """The result for one subgraph: its nodes, how many were delegated, in how many partitions, and why others stay."""

    subgraph: int
    nodes: int
    delegated: int
    partitions: int
    staying: dict[int, str]
    """Reasons by node number."""


class _State:
    """The state that outlives the delegate object while interpreters use it.

    - `ended`: The totals of nodes that interpreters have freed.
    """

    def __init__(self, backend: qnn.Backend) -> None:
        self.backend = backend
        self.partitions: list[Partition] = []
        self.ended = GraphStats()
        self.structure = structures.Delegate(
            data=callbacks.DELEGATE, prepare=functions().apply, flags=structures.ALLOW_DYNAMIC_TENSORS
        )

    def end(self) -> None:
        """End everything; safe to call again."""
        for partition in list(self.partitions):
            partition.close()
        self.partitions.clear()
        self.backend.free()


@dataclass(frozen=True)
class _Taking:
    """The nodes that a delegate takes over, the partitions (`parts`) that it expects, and those created so far."""

    nodes: view.Nodes
    survey: Survey
    parts: list[NodeSet]
    partitions: list[Partition] = field(default_factory=list)


class QnnDelegate:
    """A delegate (TfLiteQnnDelegateCreate).

    Parameters
    ----------
    options
        The options; the backend type is mandatory.
    log
        A callback that takes a level and a text. Without it, lines go to standard error, like TFLite's own. Python's
        logging gets the same lines under the name ``isthmus``.

    Raises
    ------
    QnnError
        If options are wrong, the backend is not available, or the LiteRT version is not known.

    Examples
    --------
    ::

        delegate = QnnDelegate(Options(BackendType.HTP))
        interpreter = Interpreter("model.tflite", experimental_delegates=[delegate])
        interpreter.allocate_tensors()
        interpreter.invoke()
        del interpreter
        delegate.close()
    """

    def __init__(self, options: Options | None = None, log: Callable[[LogLevel, str], object] | None = None) -> None:
        settings = check_options(Options() if options is None else options)
        probe.check()
        callbacks.sweep()
        self.settings: DelegateSettings = settings
        if log is None:
            log = to_standard_error
            _write_that_the_runtime_is_ready()
        self._log = Log(log)
        quiet = settings.log_level is DelegateLogLevel.OFF
        backend_log = Log() if quiet else Log(log, LogLevel(int(settings.log_level)))
        backend = qnn.Backend(settings.backend, settings.config or None, backend_log)
        self._state = state = _State(backend)
        self._ending = Finalizer(self, state.end, at_exit=True)
        self.profile: qnn.Profile | None = None
        """The events of executions, if profiling is on."""
        if settings.profiling is not Profiling.OFF:
            self.profile = qnn.Profile(backend, qnn.ProfileLevel(int(settings.profiling)))
        self.delegations: deque[Delegation] = deque(maxlen=REMEMBERED)
        """The results of the latest subgraphs that it was applied to, in order."""
        self._lock = Lock()
        self._environment = PartitionEnvironment(backend, settings, self._log, self.profile)
        # Only during `_prepare`, in which LiteRT calls `_take` for each partition.
        self._taking: _Taking | None = None
        self._registration = structures.Registration(
            init=functions().begin,
            free=functions().free,
            prepare=functions().prepare,
            invoke=functions().invoke,
            custom_name=NAME,
            version=1,
        )
        for line in settings.without_effect:
            self._log(LogLevel.INFO, line)
        callbacks.delegates[ctypes.addressof(state.structure)] = self

    # -- called by users -----------------------------------------------------------------------------------------------

    @property
    def backend_name(self) -> str:
        """The backend's short name."""
        return self.settings.backend

    def alloc_custom_mem(self, num_bytes: int, alignment: int = DEFAULT_TENSOR_ALIGNMENT) -> CustomMemory | None:
        """Allocate shared memory for a tensor (TfLiteQnnDelegateAllocCustomMem); return None on failure.

        Raises
        ------
        QnnError
            COMMON_NOT_SUPPORTED if the backend shares no memory with the interpreter.
        """
        self._check_open()
        self.settings.check_shares("custom memory")
        memory = custom_memory.allocate(num_bytes, alignment)
        if memory is None:
            what = f"Custom memory of {num_bytes} bytes aligned to {alignment}"
            self._log(LogLevel.ERROR, f"{what} could not be allocated")
        return memory

    def free_custom_mem(self, memory: Any) -> None:
        """Free shared memory (TfLiteQnnDelegateFreeCustomMem); it is released when no interpreter has tensors there."""
        custom_memory.free(memory)

    @property
    def stats(self) -> GraphStats:
        """Totals of all its nodes: executions, bytes copied, bytes used in place."""
        self._check_own()
        with self._lock:
            total = self._state.ended
            for partition in list(self._state.partitions):
                total += partition.stats()
            return total

    @property
    def partitions(self) -> Sequence[Partition]:
        """Its partitions in living interpreters."""
        return tuple(self._state.partitions)

    def close(self) -> None:
        """Delete it (TfLiteQnnDelegateDelete), after its interpreters; safe to call again."""
        callbacks.sweep()
        with self._lock:
            if self._ending.waits and self._state.partitions:
                rule = f"an interpreter still runs {len(self._state.partitions)} of its nodes"
                hint = "Let go of the interpreter first: a delegate outlives it."
                raise QnnError(Code.COMMON_OPERATION_NOT_PERMITTED, "delegate", rule, hint)
            self.end()

    def end(self) -> None:
        """Delete it even if interpreters have its nodes, which fail from then on: the process is about to end."""
        with self._lock:
            callbacks.delegates.pop(ctypes.addressof(self._state.structure), None)
            self._ending.run()

    def __enter__(self) -> QnnDelegate:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- called by LiteRT ----------------------------------------------------------------------------------------------

    def _get_native_delegate_pointer(self) -> int:
        """Return the address of TFLite's structure; LiteRT's Python calls this method by its name."""
        self._check_open()
        return ctypes.addressof(self._state.structure)

    def _prepare(self, address: int) -> int:
        """Take over the nodes of a context that the backend supports; return LiteRT's status."""
        self._check_open()
        callbacks.sweep()
        with deferred(), self._lock:
            if any(address in partition.initializers for partition in self._state.partitions):
                # Only a CALL_ONCE that was taken over ran this subgraph, so it is never run again.
                return structures.OK
            foreign.check(address)
            nodes = view.read(address)
            check_memory(nodes, self.settings)
            _check_allocated(nodes)
            findings = self._survey(nodes)
            parts = settle(findings, lambda numbers: _preview(nodes, numbers))
            numbers = [number for part in parts for number in part.nodes]
            self.delegations.append(
                Delegation(nodes.index, len(nodes.operators), len(numbers), len(parts), dict(findings.reasons))
            )
            self._log(
                LogLevel.INFO,
                f"{NAME.decode()} delegate: {len(numbers)} nodes delegated out of {len(nodes.operators)} nodes "
                f"with {len(parts)} partitions.",
            )
            if not numbers:
                if nodes.index == 0:
                    self._report_idleness(nodes, findings)
                return structures.OK
            self._taking = _Taking(nodes, findings, parts)
            try:
                taken = structures.integer_array(numbers)
                status: int = nodes.structure.replace_node_subsets(
                    address, self._registration, ctypes.addressof(taken), ctypes.addressof(self._state.structure)
                )
                if status == structures.OK:
                    self._confirm(self._taking)
            finally:
                self._taking = None
            self._log(
                LogLevel.INFO,
                f"Replacing {len(numbers)} node(s) with delegate ({NAME.decode()}) node, "
                f"yielding {_subsets(nodes)} partitions.",
            )
            return status

    def _take(self, context: int, params: structures.DelegateParams) -> Partition:
        """Create a partition for one of the nodes that replace others (TfLiteRegistration.init)."""
        taking = self._taking
        assert taking is not None
        nodes, part = taking.nodes, _part(params)
        number = next((n for n, each in enumerate(taking.parts) if each.nodes == part.nodes), len(taking.partitions))
        constants = {index for index in part.inputs if nodes.is_constant(index)}
        computed = frozenset(taking.survey.constant_contents()) & frozenset(part.inputs) - constants
        partition = Partition(self._environment, nodes, part, number, computed, NodeBlock(callbacks.NODE))
        callbacks.partitions[partition.block.address] = self, partition
        self._state.partitions.append(partition)
        taking.partitions.append(partition)
        return partition

    def _confirm(self, taking: _Taking) -> None:
        """Check that the interpreter has received every node's block: an interrupt may have prevented it."""
        received = view.user_data(taking.nodes.context)
        for partition in taking.partitions:
            partition.is_held = partition.block.address in received
        if sum(partition.is_held for partition in taking.partitions) < len(taking.parts):
            raise QnnError(Code.COMMON_GENERAL, "delegate", "not all of its nodes were taken over")

    def _is_lost(self, partition: Partition) -> bool:
        """Return whether a partition was created that no interpreter has."""
        if partition.is_held:
            return False
        with self._lock:
            return not partition.is_held and self._taking is None

    def _give_up(self, partition: Partition) -> None:
        """End a node (TfLiteRegistration.free); safe to call again."""
        with self._lock:
            partition.close()
            if partition in self._state.partitions:
                rest = [each for each in self._state.partitions if each is not partition]
                # No signal handler runs within one assignment.
                self._state.partitions, self._state.ended = rest, self._state.ended + partition.stats()
        # It may have been the last user of memory that has been freed.
        custom_memory.end_freed()

    # -- internals -----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        """Refuse to be used after its deletion, or in a forked process."""
        if not self._ending.waits:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "delegate", "it has been deleted")
        self._check_own()

    def _check_own(self) -> None:
        """Refuse to be used in a forked process."""
        if self._state.backend.is_inherited:
            rule, hint = "it belongs to the process that this one was forked from", "Create one in the forked process."
            raise QnnError(Code.COMMON_SYSTEM_COMMUNICATION, "delegate", rule, hint)

    def _survey(self, nodes: view.Nodes) -> Survey:
        """Find out which nodes may go to this delegate's backend."""
        return survey(nodes, self._state.backend.driver.supports, self._skips)

    def _skips(self, operator: OperatorEntry) -> str:
        """Return why the client excludes a node, or an empty string."""
        code = operator.code.partition(":")[0]
        listed = code in self.settings.skipped_codes or operator.index in self.settings.skipped_nodes
        return "it is on a skip list" if listed else ""

    def _report_idleness(self, nodes: view.Nodes, findings: Survey) -> None:
        """Warn if no node of any subgraph is taken over; refuse the model if another delegate has all nodes already."""
        others = (each for each in view.subgraphs(nodes.context) if each.index != nodes.index)
        if any(self._survey(each).accepted_nodes for each in others):
            return
        reasons = "; ".join(sorted(set(findings.reasons.values()))[:3]) or "it has no nodes"
        rule = f"backend '{self.settings.backend}' takes none of its {len(nodes.operators)} nodes: {reasons}"
        if nodes.operators and len(nodes.delegated) == len(nodes.operators):
            hint = (
                "Apply a delegate once. LiteRT applies XNNPACK by itself when tensors are allocated: pass "
                "this delegate as experimental_delegates, or create the interpreter with "
                "OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES."
            )
            raise QnnError(Code.COMMON_NOT_SUPPORTED, "model", rule, hint)
        self._log(LogLevel.WARN, f"The model stays in the interpreter: {rule}")


# The line that TFLite printed when a process created its first interpreter. LiteRT 2.3, the known version, does not
# print it.
_unwritten = ["Initialized TensorFlow Lite runtime."]


def _write_that_the_runtime_is_ready() -> None:
    """Print TFLite's line once per process, after the runtime has been checked; QNN's documents show it first."""
    with suppress(IndexError):
        to_standard_error(LogLevel.INFO, _unwritten.pop())


def _part(params: structures.DelegateParams) -> NodeSet:
    """Copy LiteRT's description of a partition."""
    return NodeSet(
        structures.integers(params.nodes_to_replace),
        structures.integers(params.input_tensors),
        structures.integers(params.output_tensors),
    )


def _preview(nodes: view.Nodes, numbers: Sequence[int]) -> list[NodeSet]:
    """Return the partitions that the interpreter would make from some nodes."""
    nodes_to_take = structures.integer_array(numbers)
    partitions, count = ctypes.c_void_p(), ctypes.c_int()
    status = nodes.structure.preview_delegate_partitioning(
        nodes.context, ctypes.addressof(nodes_to_take), ctypes.byref(partitions), ctypes.byref(count)
    )
    if status != structures.OK:
        raise QnnError(Code.COMMON_GENERAL, "interpreter", "it does not report how it would partition its nodes")
    parts = []
    for row in structures.rows(partitions.value, structures.DelegateParams, count.value):
        assert isinstance(row, structures.DelegateParams)
        parts.append(_part(row))
    return parts


def _subsets(nodes: view.Nodes) -> int:
    """Return how many pieces the interpreter has cut its plan into: delegated nodes, and what stays between them."""
    # `nodes` was read before. A node that is new in the plan is a delegate's, and so counts by itself, like one that
    # another delegate had before.
    now = view.plan(nodes.context)
    before = {operator.index for operator in nodes.operators}
    kinds = ["stays" if number in before and number not in nodes.delegated else number for number in now]
    return sum(1 for index, kind in enumerate(kinds) if kind != "stays" or index == 0 or kinds[index - 1] != "stays")


def _check_allocated(nodes: view.Nodes) -> None:
    """Refuse to be applied between setting custom memory and AllocateTensors, which checks that memory."""
    if not custom_memory.uses_of(nodes.context):
        return
    for operator in nodes.operators:
        for index in (*operator.inputs, *operator.outputs):
            tensor = nodes.tensor(index) if index >= 0 else None
            if tensor is None or tensor.allocation_type != Allocation.ARENA_RW or not tensor.bytes or tensor.data:
                continue
            rule = "the interpreter has tensors in custom memory, and was not asked to allocate the others since"
            hint = "Call AllocateTensors after SetCustomAllocationForTensor, and ModifyGraphWithDelegate after it."
            raise QnnError(Code.COMMON_OPERATION_NOT_PERMITTED, "delegate", rule, hint)
