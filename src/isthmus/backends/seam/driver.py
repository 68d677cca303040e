"""What the QNN API asks of a backend: abstract classes, and the values that pass between them.

Everything an accelerator does in its own way (memory, properties, configs, binaries, execution) is behind these;
handles, names and the order of calls are the API's business. Nothing here knows a program or an address: a graph is
described by a `GraphInfo`, memory by windows, a context binary by its bytes. Only who is native code itself, and runs a
graph of its own, may ask for addresses (`NativeCall`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

from isthmus.backends.seam.execution_deadline import ExecutionDeadline
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, GraphInfo, TensorInfo
from isthmus.graph.operation import Call
from isthmus.graph.ops import OPERATIONS
from isthmus.log import Log
from isthmus.memory import Window, holds
from isthmus.prepare.schedule import Plan
from isthmus.prepare.tiling import ScratchLimit

Source = Any
"""A context binary as a client gives it: a path, or an object with its bytes."""


class DescriptorType(IntEnum):
    """QNN_MEM_TYPE_*: what a memory descriptor points to."""

    ION = 1
    CUSTOM = 2
    DMA_BUF = 3


@dataclass(frozen=True)
class MemDescriptor:
    """Memory to register for a tensor (Qnn_MemDescriptor_t).

    Parameters
    ----------
    dims, dtype
        The tensor that the memory is for.
    mem_type
        What follows: a file descriptor, a backend's own structure, or a DMA buffer.
    fd
        The file descriptor of ION and DMA_BUF memory; -1 when unused.
    custom
        The backend's own structure.
    address
        Where the client has mapped DMA_BUF memory.

    Examples
    --------
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
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        count = 1
        for dim in self.dims:
            count *= dim
        return count * self.dtype.itemsize


class Registration(ABC):
    """Registered memory: what a memory handle stands for in the backend."""

    descriptor: MemDescriptor
    window: Window
    """The memory."""
    is_open: bool = True
    _released: bool = False

    def close(self) -> None:
        """Forget it; safe to call again, and after an interrupt it goes on where that came."""
        if not self._released:
            self.is_open = False
            holds.changed()
            self._release()
            self._released = True

    @abstractmethod
    def _release(self) -> None:
        """Take the memory away from the backend; safe to call again."""


@dataclass(frozen=True, eq=False)
class TensorMemory:
    """The memory that a client gives for one tensor of an execution: raw, or registered."""

    window: Window
    registration: Registration | None = None

    def check_there(self, what: str) -> None:
        """Refuse memory that has ended."""
        if self.registration is not None and not self.registration.is_open:
            raise QnnError(Code.MEM_INVALID_HANDLE, what, "its memory handle has been deregistered")
        if self.window.buffer.is_closed:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"its {self.window.buffer.what} is closed")


Memories = Sequence[TensorMemory | None]
"""A memory for each input, then each output; None leaves the choice to the backend."""


@dataclass(frozen=True)
class Traffic:
    """What one execution does with the memory of inputs and outputs, in bytes.

    Parameters
    ----------
    copied_in, copied_out
        Copied between the client's memory and memory of the backend.
    in_place
        Used where they lay, by the kind of memory.
    """

    copied_in: int = 0
    copied_out: int = 0
    in_place: Mapping[str, int] = field(default_factory=dict)


@dataclass
class GraphStats:
    """What a graph or a binding did so far.

    Parameters
    ----------
    executions
        How often it ran.
    copied_in_bytes, copied_out_bytes
        Bytes that executions copied between the client's memory and memory of the backend.
    in_place_bytes
        Bytes of inputs and outputs that executions used where they lay, by the kind of memory.
    staging_prepare_bytes, staging_execute_bytes
        Memory that the backend has reserved for copies of raw buffers: when the graph was prepared, and since then by
        executions that came with raw buffers after all.
    first_execution_us
        How long the first execution took.
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
        """All bytes copied."""
        return self.copied_in_bytes + self.copied_out_bytes

    @property
    def staging_bytes(self) -> int:
        """All memory reserved for copies."""
        return self.staging_prepare_bytes + self.staging_execute_bytes

    def plus(self, traffic: Traffic, executions: int) -> GraphStats:
        """With so many executions more."""
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
    """What one operation of an execution took, as the device has it."""

    name: str
    microseconds: float


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Change:
    """A config that has been set: what settles it for good, and what takes it back."""

    keep: Callable[[], None] = _nothing
    undo: Callable[[], None] = _nothing


class Configurable:
    """What properties can be asked of, and configs be set on. An option belongs to one enumeration of one object."""

    properties: ClassVar[type[IntEnum] | None] = None
    configs: ClassVar[type[IntEnum] | None] = None

    def get_property(self, option: IntEnum) -> Any:
        """The value of a property, a member of `properties`."""
        raise AssertionError(f"{option!r} is listed, not answered")

    def get_config(self, option: IntEnum) -> Any:
        """The present value of a config, a member of `configs`."""
        raise AssertionError(f"{option!r} is listed, not answered")

    def set_config(self, option: IntEnum, value: Any) -> Change:
        """Set a config, a member of `configs`; refused whole or done whole."""
        raise AssertionError(f"{option!r} is listed, not taken")


class DriverBinding(ABC):
    """Memory bound to a graph, for any number of executions."""

    closed: bool = False
    """Whether it was closed, and refuses to execute."""

    @abstractmethod
    def execute(self, limit: ExecutionDeadline | None = None) -> None:
        """Run once, within a limit. Memory that is no longer the client's to use is refused, never written."""

    def execute_timed(self, limit: ExecutionDeadline | None = None) -> Sequence[OperationTime]:
        """The same, and what each operation took; nothing where the backend does not measure that."""
        self.execute(limit)
        return ()

    def enqueue(self, wait_for: Any) -> Any:
        """Have it run after events of the device's, without waiting for it; the answer is the event of its end."""
        rule = "this backend has no events that executions could wait for"
        raise QnnError(Code.COMMON_NOT_SUPPORTED, "execution with wait_for", rule)

    @property
    @abstractmethod
    def stats(self) -> GraphStats:
        """What was executed with this binding."""

    @abstractmethod
    def close(self) -> None:
        """Forget it; safe to call again."""

    @abstractmethod
    def abandon(self) -> None:
        """The same without waiting for anything: the garbage collector says so, in the midst of whatever goes on."""


@dataclass(frozen=True)
class NativeCall:
    """How native code of somebody else's executes a graph by itself, without Python.

    It writes the address of each input, then each output, where `io` says, and calls ``run(control, 0, 0, threads)``.
    The answer is 0, unless the run failed.

    Parameters
    ----------
    keeps
        What must live as long as it is called.
    check
        Raises if the last run failed, and says why; its argument is what messages call the graph.
    """

    run: int
    control: int
    io: int
    threads: int
    keeps: object
    check: Callable[[str], None]


class GraphDriver(Configurable, ABC):
    """A graph in a backend. To ask for what depends on all its nodes ends its composition."""

    graph: Graph
    finalized: bool = False
    """Whether it is ready to execute, be it out of a context binary."""
    priority: int = 100
    """QNN_PRIORITY_*, as the client has set it."""
    inputs_survive: bool = True
    """Whether an execution leaves inputs as they were that lie where the backend planned them."""

    @property
    @abstractmethod
    def info(self) -> GraphInfo:
        """What a client may know of it."""

    @abstractmethod
    def finalize(self) -> None:
        """Make the graph ready to execute; refused whole or done whole."""

    @abstractmethod
    def bind(self, memories: Memories) -> DriverBinding:
        """Bind a memory for each input and output, or refuse: all checks happen here."""

    @abstractmethod
    def stats(self) -> GraphStats:
        """What happened so far."""

    @abstractmethod
    def reset(self) -> None:
        """Set the initial state."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; safe to call again."""

    def place(self, index: int) -> Window | None:
        """The backend's own memory for an input or output (inputs first), where it has one."""
        return None

    def native_call(self) -> NativeCall | None:
        """How native code executes it, where the backend runs in this process. It is then that code's alone."""
        return None

    @property
    def plan(self) -> Plan | None:
        """How its scratch was planned, where the backend plans and can tell."""
        return None

    @property
    def threads(self) -> int:
        """How many threads an execution uses."""
        return 1

    def set_threads(self, threads: int) -> Change:
        """Have executions use so many threads; to be set before the graph is finalized."""
        if threads != 1:
            rule = "this backend runs a graph on one thread"
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"threads={threads} of graph '{self.graph.name}'", rule)
        return Change()

    @property
    def scratch_limit(self) -> ScratchLimit | None:
        """How much scratch it may take; None for as much as whole tensors need."""
        return None

    def set_scratch_limit(self, limit: ScratchLimit | None) -> Change:
        """Have it take no more scratch than that; to be set before the graph is finalized."""
        if limit is not None:
            rule = "this backend knows no limit on scratch"
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"graph '{self.graph.name}'", rule)
        return Change()


class ContextDriver(Configurable, ABC):
    """A context in a backend."""

    @property
    def seconds_to_finish(self) -> float | None:
        """How long an asynchronous execution may go on that runs when its context is freed; None: as long as it takes.

        A backend with a limit has `hasten`, too.
        """
        return None

    def hasten(self) -> None:
        """End the execution that runs, by force if it must be: whoever waits for it is told an error."""

    @abstractmethod
    def create_graph(self, graph: Graph) -> GraphDriver:
        """A driver for a graph, finished or still to be built."""

    def drop_graph(self, graph: Graph) -> None:
        """Forget the driver of a graph that its client never got, since an interrupt came; it may not be there yet."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; safe to call again."""

    def register(self, descriptors: Sequence[MemDescriptor]) -> Sequence[Registration]:
        """Register all of these, or none."""
        rule, hint = "this backend registers no memory", "Raw buffers are used in place here."
        raise QnnError(Code.COMMON_NOT_SUPPORTED, "memory registration", rule, hint)

    def get_binary(self) -> bytes:
        """The context with all its graphs, in the backend's own format."""
        raise QnnError(Code.COMMON_NOT_SUPPORTED, "context binary", "this backend does not make them")

    def restore(self, binary: Source) -> Sequence[GraphDriver]:
        """Drivers for the graphs of a context binary, all or none."""
        raise QnnError(Code.COMMON_NOT_SUPPORTED, "context binary", "this backend does not take them")


class DeviceDriver(ABC):
    """A device of a backend that has any."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; safe to call again."""


class BackendDriver(Configurable, ABC):
    """A backend.

    Parameters
    ----------
    config
        The backend's own configuration, as its entry in the registry has read it.
    log
        Where it says what it does.
    """

    @abstractmethod
    def __init__(self, config: Any, log: Log) -> None: ...

    @abstractmethod
    def create_context(self, device: DeviceDriver | None = None) -> ContextDriver:
        """A context on a device of this backend, or on its only one."""

    @abstractmethod
    def supports(self, call: Call) -> str | None:
        """Why a node cannot be executed here, as a sentence part; None if it can. Its shapes are right already."""

    def operations(self) -> Collection[str]:
        """The operations that it executes in some form; all there are, unless it says otherwise."""
        return OPERATIONS

    def create_device(self) -> DeviceDriver | None:
        """A device; None where the backend has nothing to it."""
        return None

    @property
    def keeps_binaries(self) -> bool:
        """Tell whether contexts use a binary in its own memory; then its owner keeps that until they are freed."""
        return False

    def close(self) -> None:
        """Let go of everything; safe to call again. Most backends hold nothing outside their contexts."""


def check_apart(graph: str, tensors: Sequence[TensorInfo], inputs: int, given: Sequence[Window | None]) -> None:
    """Refuse an output buffer that lies over another buffer of the client's; inputs may share one."""
    for index, window in enumerate(given):
        for earlier, other in enumerate(given[:index] if index >= inputs else ()):
            if window is not None and other is not None and holds.overlap(window, other):
                raise QnnError(
                    Code.GRAPH_INVALID_TENSOR,
                    f"tensor '{tensors[index].name}' of {graph}",
                    f"its buffer overlaps that of tensor '{tensors[earlier].name}'",
                )
