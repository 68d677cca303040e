"""The interface between the QNN API and a backend: abstract classes, and the values that pass between them.

Everything that is particular to an accelerator (memory, properties, configs, binaries, execution) is behind these
classes; the API itself handles handles, names and the order of calls. Nothing here knows a program or an address: a
graph is described by a `GraphInfo`, memory by windows, a context binary by its bytes. Only native code that runs a
graph of its own may ask for addresses (`NativeCall`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from isthmus import audit_log
from isthmus.backends.seam.config import ContextSettings
from isthmus.backends.seam.execution_deadline import ExecutionDeadline
from isthmus.backends.seam.loading import Loading
from isthmus.backends.seam.provider import BinarySection, ProvidedBuffer
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, GraphInfo, TensorInfo, TensorType
from isthmus.graph.operation import Call, Operation
from isthmus.graph.ops import OPERATIONS
from isthmus.log import Log
from isthmus.memory import Window, holds
from isthmus.memory.integers import is_int
from isthmus.prepare.schedule import Plan
from isthmus.prepare.tiling import ScratchLimit

_Member = TypeVar("_Member", bound=IntEnum)
Source = Any
"""A context binary as a client passes it: a path, or an object with its bytes."""


class DescriptorType(IntEnum):
    """QNN_MEM_TYPE_*: the kind of memory of a descriptor."""

    ION = 1
    CUSTOM = 2
    DMA_BUF = 3


@dataclass(frozen=True)
class MemDescriptor:
    """Memory to register for a tensor (Qnn_MemDescriptor_t).

    - `dims`, `dtype`: The tensor that the memory is for.
    - `mem_type`: The kind of memory: a file descriptor, a backend's own structure, or a DMA buffer.
    - `fd`: The file descriptor of ION and DMA_BUF memory; -1 when unused.
    - `custom`: The backend's own structure.
    - `address`: The address at which the client has mapped DMA_BUF memory.

    >>> MemDescriptor((1, 224, 224, 3), DataType.FLOAT_32, DescriptorType.ION, fd=7).nbytes
    602112
    """

    dims: tuple[int, ...]
    dtype: DataType
    mem_type: DescriptorType
    fd: int = -1
    custom: Any = None
    address: int = 0

    @property
    def is_tensor(self) -> bool:
        """Whether it is memory for a tensor. A backend's own structure says if not, with a `title` for messages; then
        `dims` and `dtype` mean nothing.
        """
        return bool(getattr(self.custom, "is_tensor", True))

    @property
    def title(self) -> str:
        """What it is for, in messages: the tensor's type and dimensions, or what the backend's structure says."""
        return f"{self.dtype.name}{list(self.dims)}" if self.is_tensor else str(self.custom.title)

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes."""
        count = 1
        for dim in self.dims:
            count *= dim
        return count * self.dtype.itemsize


class Registration(ABC):
    """Registered memory, as a backend represents a memory handle."""

    descriptor: MemDescriptor
    window: Window
    """The memory."""
    is_open: bool = True
    """Whether executions may use the memory; false as soon as `close` begins."""
    # Whether `close` has completed.
    _released: bool = False
    audit_key: audit_log.AuditKey | None = None
    """Its key in audits, if the backend registered it for itself; a client's registration has a handle with a key."""

    def close(self) -> None:
        """Deregister the memory; safe to call again. After an interrupt another call completes it."""
        if not self._released:
            self.is_open = False
            # Bindings that use the memory must check it again before they run.
            holds.record_change()
            self._release()
            self._released = True
        if self.audit_key is not None:
            audit_log.end(self.audit_key)

    @abstractmethod
    def _release(self) -> None:
        """Remove the memory from the backend; safe to call again."""


@dataclass(frozen=True)
class ListEntry:
    """A binary of a list, as a backend sees it before it is loaded.

    - `open`: Returns the binary.
    - `enabled`: The graphs that the client wants; None for all.
    - `priority`: QNN_PRIORITY_* of its graphs.
    """

    open: Callable[[], Source]
    enabled: tuple[str, ...] | None = None
    priority: int = 100


@dataclass(frozen=True, eq=False)
class TensorMemory:
    """The client's memory for one tensor of an execution: raw, or registered."""

    window: Window
    registration: Registration | None = None

    def check_there(self, what: str) -> None:
        """Refuse memory that is closed or deregistered."""
        if self.registration is not None and not self.registration.is_open:
            raise QnnError(Code.MEM_INVALID_HANDLE, what, "its memory handle has been deregistered")
        if self.window.buffer.is_closed:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"its {self.window.buffer.what} is closed")


Memories = Sequence[TensorMemory | None]
"""Memory for each input, then each output; None leaves the choice to the backend."""


class TensorCopy(NamedTuple):
    """A copy of one tensor that every execution makes, and its bytes.

    `overwritten` says why: because an output overwrites the tensor's memory, not because the device cannot access it.
    """

    tensor: str
    nbytes: int
    overwritten: bool = False


@dataclass(frozen=True)
class Traffic:
    """The memory traffic of inputs and outputs in one execution, in bytes.

    - `copied_in`, `copied_out`: Bytes copied between the client's memory and memory of the backend.
    - `in_place`: Bytes used in place, by the kind of memory.
    - `copies`: The single copies, for audits.
    """

    copied_in: int = 0
    copied_out: int = 0
    in_place: Mapping[str, int] = field(default_factory=dict)
    copies: tuple[TensorCopy, ...] = ()


@dataclass
class GraphStats:
    """Statistics of a graph or a binding so far.

    - `executions`: Number of executions.
    - `copied_in_bytes`, `copied_out_bytes`: Bytes that executions copied between the client's memory and memory of the
      backend.
    - `in_place_bytes`: Bytes of inputs and outputs that executions used in place, by the kind of memory.
    - `staging_prepare_bytes`, `staging_execute_bytes`: Memory that the backend has reserved for copies of raw buffers:
      when the graph was prepared, and since then by executions with raw buffers that were not expected.
    - `first_execution_us`: Duration of the first execution.
    """

    executions: int = 0
    copied_in_bytes: int = 0
    copied_out_bytes: int = 0
    in_place_bytes: dict[str, int] = field(default_factory=dict)
    staging_prepare_bytes: int = 0
    staging_execute_bytes: int = 0
    first_execution_us: float = 0.0

    @property
    def copied_bytes(self) -> int:
        """Total bytes copied."""
        return self.copied_in_bytes + self.copied_out_bytes

    @property
    def staging_bytes(self) -> int:
        """Total memory reserved for copies."""
        return self.staging_prepare_bytes + self.staging_execute_bytes

    def __add__(self, other: GraphStats) -> GraphStats:
        """Return the totals of two graphs; `first_execution_us` is that of the first graph that has been executed."""
        kinds = (*self.in_place_bytes, *other.in_place_bytes)
        return GraphStats(
            self.executions + other.executions,
            self.copied_in_bytes + other.copied_in_bytes,
            self.copied_out_bytes + other.copied_out_bytes,
            {kind: self.in_place_bytes.get(kind, 0) + other.in_place_bytes.get(kind, 0) for kind in kinds},
            self.staging_prepare_bytes + other.staging_prepare_bytes,
            self.staging_execute_bytes + other.staging_execute_bytes,
            self.first_execution_us or other.first_execution_us,
        )

    def plus(self, traffic: Traffic, executions: int) -> GraphStats:
        """Return the statistics with a number of executions added."""
        in_place = dict(self.in_place_bytes)
        for kind, nbytes in traffic.in_place.items():
            in_place[kind] = in_place.get(kind, 0) + executions * nbytes
        return replace(
            self,
            executions=self.executions + executions,
            copied_in_bytes=self.copied_in_bytes + executions * traffic.copied_in,
            copied_out_bytes=self.copied_out_bytes + executions * traffic.copied_out,
            in_place_bytes=in_place,
        )


class OperationTime(NamedTuple):
    """The time of one operation of an execution, as the device measured it."""

    name: str
    microseconds: float


class TimeSpan(NamedTuple):
    """A part of an execution: what it is, and its begin and end in seconds on the system's monotonic clock."""

    name: str
    begin: float
    end: float


ON_DEVICE = -1
"""Stands for the process of operations that a device runs without a process of its own."""


class Timings(NamedTuple):
    """The times of one execution.

    - `operations`: The time of each operation; empty if the backend does not measure it.
    - `preparation_us`: How long the call took to prepare the measurement and to read it, which is no part of the
      execution.
    - `spans`: When each operation ran; empty if the backend does not measure it. All processes of a system share the
      clock.
    - `pid`: The process that ran the operations; 0 for that of the caller, or `ON_DEVICE`.
    - `phases`: What the caller's process did or waited for: copy (by itself or the device), wait.
    """

    operations: Sequence[OperationTime] = ()
    preparation_us: float = 0.0
    spans: Sequence[TimeSpan] = ()
    pid: int = 0
    phases: Sequence[TimeSpan] = ()


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Change:
    """A config that has been set. A client may set several at once, all or none.

    - `keep`: Makes it final; called after all of them are set.
    - `undo`: Restores the previous value; called after another one was refused.
    """

    keep: Callable[[], None] = _nothing
    undo: Callable[[], None] = _nothing

    @classmethod
    def attribute(cls, owner: object, name: str, value: object) -> Change:
        """Set an attribute of an object."""
        before = getattr(owner, name)
        setattr(owner, name, value)
        return cls(undo=lambda: setattr(owner, name, before))

    @classmethod
    def entry(cls, values: dict[Any, Any], key: object, value: object) -> Change:
        """Set an entry of a dictionary that has it."""
        before, values[key] = values[key], value
        return cls(undo=lambda: values.update({key: before}))


class Configurable:
    """An object with properties, which a client can read, and configs, which it can also set.

    The caller has checked that an option is a member of `properties` or `configs`, so a class overrides the methods
    below only if it declares options.
    """

    properties: ClassVar[type[IntEnum] | None] = None
    """The numbers of its properties; None if it has none."""
    configs: ClassVar[type[IntEnum] | None] = None
    """The numbers of its configs; None if it has none."""

    def get_property(self, option: IntEnum) -> Any:
        """Return the value of a property, a member of `properties`."""
        raise AssertionError(f"{option!r} is listed, not answered")

    def get_config(self, option: IntEnum) -> Any:
        """Return the current value of a config, a member of `configs`."""
        raise AssertionError(f"{option!r} is listed, not answered")

    def set_config(self, option: IntEnum, value: Any) -> Change:
        """Set a config, a member of `configs`; a refusal changes nothing."""
        raise AssertionError(f"{option!r} is listed, not taken")


def member(value: Any, kind: type[_Member], what: str, code: Code = Code.COMMON_INVALID_ARGUMENT) -> _Member:
    """Return a member of the enumeration `kind`, given as itself or as its number; `what` names it in messages."""
    if isinstance(value, kind):
        return value
    if is_int(value) and not isinstance(value, Enum) and value in {int(each) for each in kind}:
        return kind(int(value))
    names = ", ".join(f"{each.name} {int(each)}" for each in kind)
    raise QnnError(code, f"{what} {value!r}", f"must be one of {names}")


def check_member(option: IntEnum, value: Any, kind: type, code: Code) -> None:
    """Refuse the value of an option that must be a member of an enumeration, and is not."""
    if not isinstance(value, kind):
        raise QnnError(code, f"{option.name.lower()} {value!r}", f"must be a member of {kind.__name__}")


class DriverBinding(ABC):
    """Memory bound to a graph, for any number of executions."""

    closed: bool = False
    """Whether it is closed and refuses to execute."""

    @abstractmethod
    def execute(self, limit: ExecutionDeadline | None = None) -> None:
        """Run once, within a deadline. Memory that the client may no longer use is refused, never written."""

    def execute_timed(self, limit: ExecutionDeadline | None = None) -> Timings:
        """Run once and return the time of each operation, or nothing if the backend does not measure it."""
        self.execute(limit)
        return Timings()

    def enqueue(self, wait_for: Any) -> Any:
        """Enqueue an execution after some of the device's events and return the event of its end, without waiting."""
        rule = "this backend has no events that executions could wait for"
        raise QnnError(Code.COMMON_NOT_SUPPORTED, "execution with wait_for", rule)

    @property
    @abstractmethod
    def stats(self) -> GraphStats:
        """Statistics of this binding's executions."""

    @abstractmethod
    def close(self) -> None:
        """Close the binding; safe to call again."""

    @abstractmethod
    def abandon(self) -> None:
        """Close the binding without waiting: the garbage collector calls this at any point."""


@dataclass(frozen=True)
class NativeCall:
    """What foreign native code needs to execute a graph without Python.

    It writes the address of each input, then each output, at `io`, and calls ``run(control, 0, 0, threads)``, which
    returns 0 unless the run failed.

    - `run`, `control`, `io`: The addresses of the function, of its first argument, and of the array of addresses.
    - `threads`: Number of threads of an execution, the last argument.
    - `keeps`: The object that must live as long as `run` may be called.
    - `check`: Raises the reason if the last run failed; its argument is the graph's name in messages.
    """

    run: int
    control: int
    io: int
    threads: int
    keeps: object
    check: Callable[[str], None]


class GraphDriver(Configurable, ABC):
    """A graph in a backend. Querying anything that depends on all its nodes ends its composition."""

    graph: Graph
    finalized: bool = False
    """Whether it is ready to execute, also if it comes from a context binary."""
    priority: int = 100
    """QNN_PRIORITY_*, as the client has set it."""
    winograd: bool = False
    """Whether its float convolutions may use Winograd's algorithm."""
    inputs_survive: bool = True
    """Whether an execution preserves inputs that are in the place the backend planned for them."""

    @property
    def what(self) -> str:
        """The graph's description in messages."""
        return f"graph '{self.graph.name}'"

    @property
    @abstractmethod
    def info(self) -> GraphInfo:
        """Its public description."""

    @abstractmethod
    def finalize(self) -> None:
        """Make the graph ready to execute; a refusal changes nothing."""

    @abstractmethod
    def bind(self, memories: Memories) -> DriverBinding:
        """Bind memory for each input and output, or refuse: all checks happen here."""

    @abstractmethod
    def stats(self) -> GraphStats:
        """Return the statistics so far."""

    @abstractmethod
    def reset(self) -> None:
        """Restore the initial state."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; safe to call again."""

    def place(self, index: int) -> Window | None:
        """Return the backend's own memory for an input or output (inputs first), if it has any."""
        return None

    def native_call(self) -> NativeCall | None:
        """Return how native code executes the graph, if the backend runs in this process. Only that code may then run
        it.
        """
        return None

    @property
    def plan(self) -> Plan | None:
        """The plan of its scratch, if the backend makes and reports one."""
        return None

    @property
    def figures_of_device(self) -> Mapping[str, float]:
        """What the device's own compiler reports of the graph, by name, for reports; empty if there is none."""
        return {}

    @property
    def threads(self) -> int:
        """Number of threads of an execution."""
        return 1

    def set_threads(self, threads: int) -> Change:
        """Set the number of threads of executions, before the graph is finalized; return how to keep or undo it.

        A backend that can use threads overrides this. By default only 1 is accepted, which changes nothing.
        """
        if threads != 1:
            rule = "this backend runs a graph on one thread"
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"threads={threads} of {self.what}", rule)
        return Change()

    @property
    def scratch_limit(self) -> ScratchLimit | None:
        """The limit on its scratch; None for as much as whole tensors need."""
        return None

    def set_scratch_limit(self, limit: ScratchLimit | None) -> Change:
        """Limit the graph's scratch, before the graph is finalized; return how to keep or undo it.

        A backend that can limit scratch overrides this. By default only None is accepted, which changes nothing.
        """
        if limit is not None:
            rule = "this backend does not support a limit on scratch"
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, self.what, rule)
        return Change()

    def set_winograd(self, allowed: bool) -> Change:
        """Allow or forbid Winograd's algorithm, before the graph is finalized; return how to keep or undo it.

        A backend that has it overrides this. By default only False is accepted, which changes nothing.
        """
        if allowed:
            rule = "this backend computes convolutions without Winograd's algorithm"
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, self.what, rule)
        return Change()


_Graph = TypeVar("_Graph", bound=GraphDriver)


class ContextDriver(Configurable, ABC):
    """A context in a backend."""

    enabled: tuple[str, ...] | None = None
    """The graphs of its binary that the client wants, in its order; None for all."""
    loading: Loading = Loading()
    """How the graphs of its binary are loaded. The order of retention may change later; the next switch follows it."""
    switches: ClassVar[bool] = False
    """Whether it can load only some graphs at a time; otherwise `loading` has no effect besides `keeps_binaries`."""
    priority: int | None = None
    """The priority that the client gives its graphs when it creates it; None for those of the configuration."""

    strict: bool = False
    """Whether a binary that does not make full use of the device is refused. Most backends load no such binary."""
    memory_events: tuple[tuple[str, int], ...] = ()
    """What profiles get of the call that has created it, or freed it: names and bytes."""

    def check_priority_change(self) -> None:
        """Refuse to change the priority of its graphs, if they must keep theirs."""

    @property
    def seconds_to_finish(self) -> float | None:
        """Seconds that a running asynchronous execution may take when its context is freed; None for no limit.

        A backend with a limit also implements `abort_now`.
        """
        return None

    def abort_now(self) -> None:
        """End the running execution, by force if necessary; its caller gets an error."""

    @abstractmethod
    def create_graph(self, graph: Graph) -> GraphDriver:
        """Create a driver for a graph, finished or still to be built."""

    def drop_graph(self, graph: Graph) -> None:
        """Drop the driver of a graph that its client never got because of an interrupt; it may not exist yet."""

    def release_graph(self, graph: GraphDriver) -> None:
        """Release all that a graph has; nothing executes it."""
        self.drop_graph(graph.graph)
        graph.close()

    def share_scratch(self, graph: GraphDriver) -> None:
        """Let graphs that are created from now on use the scratch of `graph`.

        The caller finalizes `graph` before them, executes only one of all these at a time, creates none that needs more
        scratch, and brings memory for all inputs and outputs of graphs that are not finalized yet. A backend whose
        graphs share scratch anyway, or take it from the caller, has nothing to do.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything; safe to call again."""

    def register(self, descriptors: Sequence[MemDescriptor]) -> Sequence[Registration]:
        """Register memory for all of these descriptors, or for none."""
        rule, hint = "this backend registers no memory", "Raw buffers are used in place here."
        raise QnnError(Code.COMMON_NOT_SUPPORTED, "memory registration", rule, hint)

    def get_binary(self) -> bytes:
        """Return the context with all its graphs, in the backend's own format."""
        raise QnnError(Code.COMMON_NOT_SUPPORTED, "context binary", "this backend does not make them")

    def restore(self, binary: Source) -> Sequence[GraphDriver]:
        """Create drivers for the graphs of a context binary, all or none.

        A backend may leave out graphs that are not `enabled`.
        """
        raise QnnError(Code.COMMON_NOT_SUPPORTED, "context binary", "this backend does not take them")

    def defer(self, binary: Source) -> Sequence[str]:
        """Check a context binary and keep it for `restore_deferred`; return the names of its graphs."""
        raise QnnError(Code.COMMON_NOT_SUPPORTED, "context binary", "this backend loads them at once")

    def restore_deferred(self) -> Sequence[GraphDriver]:
        """Create drivers for the graphs of the binary that was deferred, as `restore` does."""
        raise AssertionError("nothing is deferred")

    def sections(self, binary: Source) -> Sequence[BinarySection]:
        """Check a context binary without its constants; return the sections with these, for `restore_provided`."""
        rule = "this backend takes no data of binaries by callbacks"
        raise QnnError(Code.COMMON_NOT_SUPPORTED, "context binary", rule, "Create the context without them.")

    def restore_provided(self, buffers: Sequence[ProvidedBuffer]) -> Sequence[GraphDriver]:
        """Create drivers for the graphs of that binary, as `restore` does, with its sections in these buffers.

        The buffers belong to the backend from then on, until `close`.
        """
        raise AssertionError("no sections were asked for")

    def join_list(self, shared: Any) -> None:
        """Share with other contexts of a list what `BackendDriver.open_list` has returned, before `restore`."""
        raise AssertionError("nothing is shared")


class GraphsContext(ContextDriver, Generic[_Graph]):
    """A context that keeps the drivers of its graphs."""

    def __init__(self) -> None:
        self._graphs: list[_Graph] = []

    @abstractmethod
    def _new_graph(self, graph: Graph) -> _Graph:
        """Return a new driver for a graph."""

    def create_graph(self, graph: Graph) -> _Graph:
        self._graphs.append(self._new_graph(graph))
        return self._graphs[-1]

    def drop_graph(self, graph: Graph) -> None:
        self._graphs = [each for each in self._graphs if each.graph is not graph]

    def _close_graphs(self) -> None:
        """Close all graphs; safe to call again."""
        for graph in self._graphs:
            graph.close()
        self._graphs.clear()


class DeviceDriver(Configurable, ABC):
    """A device, for backends that have devices."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; safe to call again."""


class BackendDriver(Configurable, ABC):
    """A backend.

    - `config`: The backend's own configuration, as its registry entry has read it.
    - `log`: The destination of its messages.
    """

    @abstractmethod
    def __init__(self, config: Any, log: Log) -> None: ...

    contexts: ContextSettings = ContextSettings()
    """What its configuration says of contexts."""
    takes_other_batches: ClassVar[bool] = False
    """Whether the first dimension of inputs and outputs may be a multiple of what a graph was prepared with."""
    definitions: Mapping[str, Operation] = OPERATIONS
    """The operations that its graphs may have, by name; a client's op packages add more."""
    refuses_op_packages: ClassVar[str] = "this backend executes its own operations only"
    """Why it takes no op packages, unless it overrides `register_op_package`."""

    def register_op_package(self, path: str, provider: str, target: str | None) -> None:
        """Register a client's library with operations of its own; `provider` is the function with its interface."""
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"op package '{path}'", self.refuses_op_packages)

    @abstractmethod
    def create_context(self, device: DeviceDriver | None = None) -> ContextDriver:
        """Create a context on a device of this backend; None stands for the backend's only device."""

    def open_list(
        self, configs: Mapping[Any, Any], entries: Sequence[ListEntry], device: DeviceDriver | None = None
    ) -> tuple[Mapping[Any, Any], Sequence[Any]]:
        """Return the configs that each context of a list of binaries gets, and what each shares with the others.

        A backend overrides this if lists have configs of their own. What is None is nothing to share.

        - `configs`: Those of the list.
        """
        return configs, [None] * len(entries)

    @abstractmethod
    def supports(self, call: Call) -> str | None:
        """Return why a node cannot be executed, as a sentence part, or None. Its shapes are already checked."""

    def operations(self) -> Collection[str]:
        """Return the operations that it executes in some form; by default all."""
        return OPERATIONS

    def create_device(self) -> DeviceDriver | None:
        """Create a device, or return None if the backend has no devices."""
        return None

    copies_binaries: ClassVar[bool] = False
    """Whether its contexts copy binaries straight from the memory of a client in C, which may end while they do."""

    @property
    def keeps_binaries(self) -> bool:
        """Whether contexts use a binary in its own memory; its owner must then keep that until they are freed."""
        return False

    def close(self) -> None:
        """Release everything; safe to call again. Most backends hold nothing outside their contexts."""


def outline(info: GraphInfo) -> Graph:
    """Return a graph of a context binary as a client sees it: its inputs and outputs."""
    graph = Graph(info.name)
    for kind, infos in ((TensorType.APP_WRITE, info.inputs), (TensorType.APP_READ, info.outputs)):
        for each in infos:
            tensor = graph.create_tensor(each.name, kind, each.dtype, each.dims, each.quantization)
            tensor.mem_type = each.mem_type
    graph.finalized = True
    return graph


def check_overlaps(
    graph: str, tensors: Sequence[TensorInfo], inputs: int, windows: Sequence[Window | None]
) -> list[tuple[int, int]]:
    """Refuse an output buffer that overlaps another buffer of the client, unless it is exactly that of an input.

    Inputs may share memory in any way. Returns the pairs of an input and an output, by number, that are one memory.

    - `tensors`, `inputs`: The inputs, then the outputs, and the number of inputs.
    - `windows`: The client's memory for each tensor; None if it brings none.
    """
    pairs = []
    # An output is compared with all inputs and with the outputs before it.
    for index, window in enumerate(windows):
        for earlier, other in enumerate(windows[:index] if index >= inputs else ()):
            if window is None or other is None or not holds.overlap(window, other):
                continue
            if earlier >= inputs or window.spans != other.spans:
                raise QnnError(
                    Code.GRAPH_INVALID_TENSOR,
                    f"tensor '{tensors[index].name}' of {graph}",
                    f"its buffer overlaps that of tensor '{tensors[earlier].name}'",
                    "Give each output memory of its own, or exactly the memory of an input of its size.",
                )
            pairs.append((earlier, index - inputs))
    return pairs
