"""The accelerator's side: answers control messages, and serves each queue on a thread that stays in native code."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from isthmus.backends.accelerator.memory import ENTRY, PLACE, Quiet, SharedMemory, paged
from isthmus.backends.seam import program_binary
from isthmus.engine.native import doorbell, loader
from isthmus.engine.native.executor import Executor
from isthmus.engine.native.program import Program
from isthmus.engine.native.target import Target, by_name
from isthmus.engine.native.timed import TimedExecutor
from isthmus.errors import Code, QnnError
from isthmus.memory import Buffer, Window, host
from isthmus.system.channel import Channel, ChannelClosed, Message, system_refusal

MAX_GRAPHS = 1 << 14
"""Number of rows of the table of graphs."""
# How long to wait for the thread of a closed queue to end.
_SECONDS_TO_END = 2.0
# Maximum number of characters of each text of an error.
_MAX_TEXT = 4096
# The kernels that serve queues, which the client sends first.
_OWN = ("doorbell:serve", "doorbell:end", "doorbell:publish", "executor:run")


@dataclass(eq=False)
class _Graph:
    """A loaded graph; `number` is its row in the table of graphs."""

    number: int
    executor: Executor
    # The sizes of its inputs, then its outputs in bytes; native code reads them.
    sizes: np.ndarray
    # None if the client provides state and scratch.
    state: Buffer | None
    # Whether its scratch is that of its queue.
    is_in_queue: bool
    # What executes it while its steps are timed.
    timed: TimedExecutor | None = None


@dataclass(eq=False)
class _Queue:
    """An open queue: the doorbell's page, its graphs, and the thread that serves it in native code."""

    page: np.ndarray
    # The scratch of all its graphs, which run one at a time, unless the client provides it.
    scratch: Buffer
    # Words in which native code records `entered` and `left`.
    block: np.ndarray = field(default_factory=lambda: np.zeros(doorbell.QUEUE_BYTES // 8, np.int64))
    graphs: list[_Graph] = field(default_factory=list)
    # The segments that its graphs use, by name, and those that the next graphs to be loaded will use.
    segments: WeakValueDictionary[str, np.ndarray] = field(default_factory=WeakValueDictionary)
    arrived: list[np.ndarray] = field(default_factory=list)
    thread: threading.Thread | None = None

    @property
    def entered(self) -> int:
        """The last request whose memory was looked up."""
        return int(self.block[doorbell.ENTERED // 8])

    @property
    def left(self) -> int:
        """The last request that no longer uses its memory."""
        return int(self.block[doorbell.LEFT // 8])


class _Service:
    """What serves queues: native code and the tables that it reads."""

    def __init__(self, target: Target, quiet: Callable[[], Quiet]) -> None:
        code = loader.addresses(_OWN, target)
        self.serve, self.end = (ENTRY(code[f"doorbell:{name}"]) for name in ("serve", "end"))
        self.memory = SharedMemory(code["doorbell:publish"], quiet)
        self.rows = np.zeros((MAX_GRAPHS, doorbell.GRAPH_ROW // 8), np.int64)
        # The addresses of the code that runs graphs and of the tables, and the sizes of these, for native code.
        self.block = np.zeros(doorbell.SERVICE_BYTES // 8, np.int64)
        for word, value in (
            (doorbell.RUN, code["executor:run"]),
            (doorbell.GRAPHS, self.rows.ctypes.data),
            (doorbell.GRAPH_COUNT, MAX_GRAPHS),
            (doorbell.MEMORY, self.memory.table.ctypes.data),
            (doorbell.MEMORY_COUNT, len(self.memory.table)),
        ):
            self.block[word // 8] = value


class AcceleratorServer:
    """The accelerator's state: graphs, memory and queues. `unconfined` are the rights that it could not give up."""

    def __init__(self, channel: Channel, unconfined: list[str]) -> None:
        self._channel = channel
        self._unconfined = unconfined
        # None until the client has sent its native code.
        self._started_service: _Service | None = None
        self._graphs: dict[int, _Graph] = {}
        self._free_numbers = list(range(MAX_GRAPHS - 1, -1, -1))
        self._queues: dict[int, _Queue] = {}
        self._next_queue = 0
        # The programs and segments that are mapped.
        self._contents: WeakSet[mmap.mmap] = WeakSet()
        loader.use_only_what_is_given()

    def run(self) -> None:
        """Answer calls until the client closes its end."""
        while True:
            try:
                request = self._channel.receive()
                try:
                    answer = self._answer(request)
                finally:
                    request.close()
                self._channel.send(Message(answer, number=request.number))
            except (ChannelClosed, QnnError):
                # The client has ended, or what came is no message.
                return

    def _answer(self, request: Message) -> dict[str, Any]:
        """Make a call and return the reply: the result or the error."""
        try:
            return self._result(request)
        except Exception as problem:
            # Whatever fails in a call, the accelerator keeps serving others.
            error = _refusal(problem)
            # Names in its texts may have any length.
            return {"error": [int(error.code), *(text[:_MAX_TEXT] for text in (error.what, error.rule, error.hint))]}

    def _result(self, request: Message) -> dict[str, Any]:
        """Make a call and return the result. Every call gets the descriptors that came with it, and its arguments."""
        if request.missing:
            arrived = len(request.descriptors)
            rule = f"of {arrived + request.missing} descriptors {arrived} arrived: {os.strerror(errno.EMFILE)}"
            raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, "accelerator", rule)
        name = request.header.pop("call", None)
        call: Callable[..., dict[str, Any] | None] | None = getattr(self, f"do_{name}", None)
        if call is None:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "accelerator", f"call {name!r} is unknown")
        return call(request.descriptors, **request.header) or {}

    @property
    def _service(self) -> _Service:
        """The native code; an error before the client has sent it."""
        if self._started_service is None:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "accelerator", "it has received no kernels")
        return self._started_service

    def _quiet(self) -> Quiet:
        """Return a function that tells whether the executions that run now have ended."""
        running = [(queue, queue.entered) for queue in self._queues.values() if queue.entered != queue.left]

        def over() -> bool:
            return all(queue.left >= number for queue, number in running)

        return over

    # -- calls: the parameters are the fields of the client's messages -------------------------------------------------

    def do_hello(self, fds: Sequence[int]) -> dict[str, Any]:
        """Report that the process has started and is confined."""
        return {"pid": os.getpid(), "unconfined": self._unconfined}

    def do_kernels(self, fds: Sequence[int], target: str, sizes: list[tuple[str, int]]) -> None:
        """Load the code of kernels, which are stored one after the other in sealed memory.

        `sizes` are their names and sizes in bytes. The first call sends the kernels that serve queues.
        """
        content = bytes(_immutable(fds[0]))
        objects, position = {}, 0
        for kernel, nbytes in sizes:
            objects[kernel] = content[position : position + nbytes]
            position += nbytes
        loader.load(objects, by_name(target))
        if self._started_service is None:
            self._started_service = _Service(by_name(target), self._quiet)

    def do_register(self, fds: Sequence[int], spans: list[list[int]]) -> dict[str, Any]:
        """Map a span (offset, bytes) of each file; reply with the slots by which executions name this memory."""
        slots: list[int] = []
        try:
            for fd, (offset, nbytes) in zip(fds, spans, strict=True):
                slots.append(self._service.memory.register(fd, offset, nbytes))
        except Exception:
            self.do_deregister([], slots)
            raise
        return {"slots": slots}

    def do_deregister(self, fds: Sequence[int], slots: list[int]) -> None:
        """Remove memory, which is unmapped when no execution uses it any more."""
        for slot in slots:
            self._service.memory.deregister(slot)

    def do_open(self, fds: Sequence[int]) -> dict[str, Any]:
        """Open a queue: map its doorbell's page and start a thread that serves it; reply with its number."""
        service = self._service
        nbytes = os.fstat(fds[0]).st_size
        if nbytes < doorbell.PAGE_BYTES:
            rule = f"it has {nbytes} bytes, {doorbell.PAGE_BYTES} are needed"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "doorbell", rule)
        page = np.frombuffer(mmap.mmap(fds[0], doorbell.PAGE_BYTES), np.int64)
        queue = _Queue(page, host(0))
        arguments = page.ctypes.data, service.block.ctypes.data, doorbell.IDLE_SPINS, queue.block.ctypes.data
        queue.thread = threading.Thread(target=service.serve, args=arguments, daemon=True)
        try:
            queue.thread.start()
        except RuntimeError as problem:
            rule = f"the system starts no more threads: {problem}"
            raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, "accelerator", rule) from None
        self._next_queue += 1
        self._queues[self._next_queue] = queue
        return {"queue": self._next_queue}

    def do_absent(self, fds: Sequence[int], queue: int, names: list[str]) -> dict[str, Any]:
        """Return those of the named segments that no graph of a queue uses; the others stay until graphs are loaded."""
        target_queue = self._queue(queue)
        target_queue.arrived = [segment for name in names if (segment := target_queue.segments.get(name)) is not None]
        return {"names": [name for name in names if name not in target_queue.segments]}

    def do_segments(self, fds: Sequence[int], queue: int, names: list[str]) -> None:
        """Map segments, each a file, that graphs of a queue may share; they are unmapped with the last such graph."""
        target_queue = self._queue(queue)
        for fd, name in zip(fds, names, strict=True):
            segment = np.frombuffer(self._content(fd), np.uint8)
            target_queue.segments[name] = segment
            target_queue.arrived.append(segment)

    def do_place(self, fds: Sequence[int], queue: int, names: list[str], places: list[list[int]]) -> None:
        """Take segments that graphs of a queue may share from registered memory, which they keep mapped."""
        target_queue = self._queue(queue)
        for name, (slot, offset, nbytes) in zip(names, places, strict=True):
            segment = self._service.memory.part(slot, offset, nbytes)
            target_queue.segments[name] = segment
            target_queue.arrived.append(segment)

    def do_load(
        self,
        fds: Sequence[int],
        queue: int,
        pools: list[int] | None = None,
        scratch: int | None = None,
        weights: int | None = None,
    ) -> dict[str, Any]:
        """Load a binary into a queue and return the numbers of its graphs, in order.

        `pools` are the slots of the client's own scratch and state memory, for the only graph. By default graphs share
        the queue's scratch, or the memory of the slot `scratch`, and each has its own state. Constants are copied into
        the memory of the slot `weights`, if there is one.
        """
        target_queue = self._queue(queue)
        # If no graph is loaded, nothing else keeps what was sent for it.
        arrived, target_queue.arrived = target_queue.arrived, []
        # Sealed contents were checked by the client; others may have changed since and are checked here, in a copy.
        verify = not program_binary.is_sealed(fds[0])
        graphs = program_binary.read_programs(self._content(fds[0]), verify, target_queue.segments)
        if weights is not None:
            graphs = _with_constants_in(self._service.memory.array(weights), graphs)
        del arrived
        if len(graphs) > len(self._free_numbers):
            raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, "accelerator", f"it has {MAX_GRAPHS} graphs already")
        is_in_queue = not pools and scratch is None
        nbytes = max((program.scratch_bytes for program in graphs.values()), default=0) if is_in_queue else 0
        common = target_queue.scratch
        if common.nbytes < nbytes:
            common = host(nbytes, program_binary.FORMAT.alignment)
        window = common.window() if scratch is None else self._service.memory.window(scratch)
        loaded: list[_Graph] = []
        try:
            for program in graphs.values():
                loaded.append(self._new_graph(program, window, pools, is_in_queue))
        except Exception:
            for incomplete in loaded:
                self._forget(incomplete)
            raise
        target_queue.scratch = common
        for older in target_queue.graphs:
            if older.is_in_queue:
                older.executor.bind_scratch(common.window())
        target_queue.graphs += loaded
        return {"graphs": [graph.number for graph in loaded]}

    def _new_graph(
        self, program: Program, scratch: Window | None, pools: list[int] | None, is_in_queue: bool
    ) -> _Graph:
        """Load one graph: bind its program to memory, and add it to the table of graphs. `pools` as for `do_load`."""
        state = None if pools else host(program.state_bytes, program.alignment)
        if pools:
            scratch = self._service.memory.window(pools[0])
        persistent = self._service.memory.window(pools[1]) if pools else state.window()  # type: ignore[union-attr]
        sizes = np.array([info.nbytes for info in program.info.tensors], np.int64)
        # Inputs and outputs are bound by each request.
        executor = Executor(program, scratch, persistent, [None] * len(sizes))
        executor.reset()
        loaded = _Graph(self._free_numbers.pop(), executor, sizes, state, is_in_queue)
        self._graphs[loaded.number] = loaded
        self._service.rows[loaded.number] = executor.control, program.threads, len(sizes), sizes.ctypes.data
        return loaded

    def _forget(self, graph: _Graph) -> None:
        """Unload a graph that is not being executed; its number may be reused."""
        self._service.rows[graph.number] = 0
        del self._graphs[graph.number]
        self._free_numbers.append(graph.number)
        self._stop_timing(graph)
        graph.executor.close()

    def do_unload(self, fds: Sequence[int], graphs: list[int]) -> None:
        """Unload graphs that are not being executed; those that are unloaded already are passed over."""
        for number in graphs:
            if number not in self._graphs:
                continue
            graph = self._graph(number)
            for queue in self._queues.values():
                if graph in queue.graphs:
                    queue.graphs.remove(graph)
            self._forget(graph)

    def do_reset(self, fds: Sequence[int], graph: int) -> None:
        """Write the initial state into a graph's state memory."""
        self._graph(graph).executor.reset()

    def do_state(self, fds: Sequence[int], graph: int, restore: bool) -> None:
        """Write a graph's state into a file, or restore it from there; its state is the accelerator's own."""
        state = self._graph(graph).state
        if state is None or not state.nbytes:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"graph {graph} of the accelerator", "it has no state here")
        with mmap.mmap(fds[0], state.nbytes) as file:
            if restore:
                state.array[:] = np.frombuffer(file[:], np.uint8)
            else:
                file[:] = state.array.tobytes()

    def do_rebind(self, fds: Sequence[int], graph: int, scratch: int) -> None:
        """Make a graph use the scratch memory at another slot."""
        self._graph(graph).executor.bind_scratch(self._service.memory.window(scratch))

    def do_time(self, fds: Sequence[int], graph: int) -> dict[str, Any]:
        """Time the steps of a graph's executions from now on; reply with its number, for the call that undoes this."""
        timed = self._graph(graph)
        self._stop_timing(timed)
        timed.timed = TimedExecutor(timed.executor)
        self._service.rows[graph, doorbell.GRAPH_CONTROL // 8] = timed.timed.control
        return {"graph": graph}

    def do_times(self, fds: Sequence[int], graph: int) -> dict[str, Any]:
        """Stop timing a graph's executions.

        Returns the label of each step and its microseconds ("times"); and for each run of a step its index in "times",
        with begin and end in nanoseconds ("spans").
        """
        timed = self._graph(graph)
        times = [] if timed.timed is None else timed.timed.times()
        numbers = {label: number for number, (label, _) in enumerate(times)}
        spans = [] if timed.timed is None else timed.timed.spans()
        self._service.rows[graph, doorbell.GRAPH_CONTROL // 8] = timed.executor.control
        self._stop_timing(timed)
        return {"times": times, "spans": [(numbers[label], begin, end) for label, begin, end in spans]}

    def _stop_timing(self, graph: _Graph) -> None:
        """Release what times a graph's executions; safe to call again."""
        if graph.timed is not None:
            graph.timed.close()
            graph.timed = None

    def do_close(self, fds: Sequence[int], queue: int) -> None:
        """Close a queue that the client no longer uses."""
        ended = self._queue(queue)
        assert ended.thread is not None
        if ended.thread.is_alive():
            self._service.end(ended.page.ctypes.data, 0, 0, 0)
            ended.thread.join(_SECONDS_TO_END)
            if ended.thread.is_alive():
                raise QnnError(Code.COMMON_OPERATION_NOT_PERMITTED, f"queue {queue}", "it is still in use")
        del self._queues[queue]
        for graph in ended.graphs:
            self._forget(graph)
        self._service.memory.release()

    def do_counts(self, fds: Sequence[int]) -> dict[str, Any]:
        """Report the number of queues, graphs and registered windows, and the bytes that are mapped for all of them."""
        counts = {"queues": len(self._queues), "graphs": len(self._graphs)}
        if self._started_service is None:
            return {**counts, "memory": 0, "mapped_bytes": 0}
        memory = self._service.memory
        pools = [queue.scratch for queue in self._queues.values()]
        pools += [graph.state for graph in self._graphs.values() if graph.state is not None]
        own = (
            self._service.rows.nbytes
            + sum(paged(len(content)) for content in self._contents)
            + sum(pool.nbytes for pool in pools)
        )
        return {**counts, "memory": len(memory), "mapped_bytes": memory.mapped_bytes + own}

    def _content(self, fd: int) -> mmap.mmap | memoryview:
        """Return a descriptor's contents as `_immutable` does, and count what is mapped."""
        content = _immutable(fd)
        if isinstance(content, mmap.mmap):
            self._contents.add(content)
        return content

    def do_loaded(self, fds: Sequence[int]) -> dict[str, Any]:
        """Report the names of all loaded graphs."""
        return {"names": [graph.executor.program.name for graph in self._graphs.values()]}

    def _queue(self, number: int) -> _Queue:
        """Return the queue with a number, or refuse it."""
        if number not in self._queues:
            raise QnnError(Code.CONTEXT_INVALID_HANDLE, f"queue {number} of the accelerator", "unknown queue")
        return self._queues[number]

    def _graph(self, number: int) -> _Graph:
        """Return the graph with a number, or refuse it."""
        if number not in self._graphs:
            raise QnnError(Code.GRAPH_INVALID_HANDLE, f"graph {number} of the accelerator", "unknown graph")
        return self._graphs[number]


def _with_constants_in(memory: np.ndarray, programs: dict[str, Program]) -> dict[str, Program]:
    """Copy the constants of programs into memory, those that they share once; return the programs with these."""
    copies: dict[tuple[int, int], np.ndarray] = {}
    free = memory

    def copy(array: np.ndarray) -> np.ndarray:
        nonlocal free
        key = array.ctypes.data, array.nbytes
        if key not in copies:
            if array.nbytes > free.nbytes:
                rule = f"{memory.nbytes} bytes do not hold the constants"
                raise QnnError(Code.MEM_INVALID_SHAPE, "weights buffer", rule)
            copies[key] = free[: array.nbytes]
            copies[key][...] = array
            free = free[-(-array.nbytes // PLACE) * PLACE :]
        return copies[key]

    return {
        name: replace(program, constants=copy(program.constants), segments=tuple(map(copy, program.segments)))
        for name, program in programs.items()
    }


def _refusal(problem: Exception) -> QnnError:
    """Convert any error of a call to a `QnnError`."""
    if isinstance(problem, MemoryError):
        return QnnError(Code.COMMON_MEM_ALLOC, "accelerator", "it is out of memory")
    if isinstance(problem, OSError):
        problem = system_refusal(problem, "accelerator", "the system refuses")
    if isinstance(problem, QnnError):
        return problem
    return QnnError(Code.COMMON_GENERAL, "accelerator", f"{type(problem).__name__}: {problem}")


def _immutable(fd: int) -> mmap.mmap | memoryview:
    """Return a descriptor's contents, safe from changes: mapped if they are sealed, else copied."""
    try:
        nbytes = os.fstat(fd).st_size
        if nbytes == 0:
            raise QnnError(Code.CONTEXT_CREATE_FROM_BINARY, "contents of a descriptor", "it is empty")
        if program_binary.is_sealed(fd):
            return mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
        copy = host(nbytes, program_binary.FORMAT.alignment).array
        view, position = copy.data, 0
        while position < nbytes:
            read = os.preadv(fd, [view[position:]], position)
            if read == 0:
                raise QnnError(Code.CONTEXT_CREATE_FROM_BINARY, "contents of a descriptor", "they were cut short")
            position += read
        return view
    except OSError as problem:
        code = Code.CONTEXT_CREATE_FROM_BINARY
        raise system_refusal(problem, "contents of a descriptor", "they cannot be read", code) from None
