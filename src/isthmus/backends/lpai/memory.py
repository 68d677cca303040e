"""LPAI's memory: the rules for what clients bring, pools of graphs, and registered shared buffers.

Pools are held as long as a graph uses them. Shared buffers are registered by file descriptor and 32-bit offset, mapped
and used in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from isthmus.backends.lpai.options import UINT32_MAX, BufferAlignmentReq, LpaiGraphOption, LpaiMemType, Mem, MemInfo
from isthmus.backends.seam.driver import DescriptorType, MemDescriptor
from isthmus.backends.seam.planned import PlannedGraph, plan
from isthmus.backends.seam.registration import RegistrationTable, TableEntry
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph
from isthmus.memory import SharedFd, Window, holds, tcm, window
from isthmus.memory.integers import is_int
from isthmus.memory.shareable import mapped_window, shared_file
from isthmus.prepare import PlanOptions
from isthmus.prepare.tiling import ScratchLimit

_IN_DDR = "Only IO buffers and the model binary can be in TCM."


def pool_window(what: str, memory: Mem, required: int, alignment: BufferAlignmentReq) -> Window | None:
    """Return the client's scratch or persistent memory; refuse it if a graph cannot work in it.

    Returns None for no memory at all, which is correct for a pool of size 0.

    - `required`: The size that the graph needs.
    """

    def refuse(rule: str, hint: str = "", mistake: str = "") -> QnnError:
        return QnnError(Code.GRAPH_INVALID_ARGUMENT, what, rule, hint, mistake=mistake)

    if not is_int(memory.mem_type) or memory.mem_type != LpaiMemType.DDR:
        name = memory.mem_type.name if isinstance(memory.mem_type, LpaiMemType) else repr(memory.mem_type)
        raise refuse(f"must be in DDR, is given as {name}", _IN_DDR)
    if not is_int(memory.size) or not 0 <= memory.size <= UINT32_MAX:
        raise refuse(f"size {memory.size!r} must be an integer of at most 32 bits")
    size, start, step = int(memory.size), alignment.start_addr_alignment, alignment.size_alignment
    if memory.addr is None or (is_int(memory.addr) and memory.addr == 0):
        if required == 0 and size == 0:
            return None
        raise refuse("its address is null", f"The graph needs {required} bytes.")
    found = window(memory.addr, what, nbytes=size, code=Code.GRAPH_INVALID_ARGUMENT)
    _check_start(refuse, "starts", found.address, start)
    if size % step:
        raise refuse(f"size {size} is not a multiple of {step}", f"Round it up to {alignment.padded(size)}.")
    if size < required:
        raise refuse(f"has {size} bytes, {required} are needed")
    if tcm.pool().touches(found):
        raise refuse("must be in DDR, is in TCM", _IN_DDR)
    return found


def io_window(what: str, source: Window, nbytes: int, alignment: BufferAlignmentReq, tcm_bytes: int | None) -> Window:
    """Return the bytes of a client's buffer that a tensor takes; refuse a buffer that cannot hold it.

    An allocation must have room for the tensor's size rounded up to the size alignment. For a view or a pointer only
    the size that the client gives is known. It must be the tensor's own, as QNN's sample passes it, or a multiple of
    the size alignment.

    - `source`: The client's buffer.
    - `nbytes`: Size of the tensor.
    - `tcm_bytes`: The size of TCM, if the buffer must be in it; None if it must not.
    """

    def refuse(rule: str, hint: str = "", mistake: str = "") -> QnnError:
        return QnnError(Code.GRAPH_INVALID_TENSOR, what, rule, hint, mistake=mistake)

    if source.nbytes < nbytes:
        raise refuse(f"its buffer has {source.nbytes} bytes, {nbytes} are needed")
    _check_start(refuse, "its buffer starts", source.address, alignment.start_addr_alignment)
    if source.nbytes != nbytes and source.nbytes % alignment.size_alignment:
        raise refuse(
            f"its buffer has {source.nbytes} bytes, neither the tensor's {nbytes} nor "
            f"a multiple of {alignment.size_alignment}",
            f"Round it up to {alignment.padded(source.nbytes)}, or pass the size of the part to use.",
        )
    padded, room = alignment.padded(nbytes), source.buffer.nbytes - source.offset
    if source.buffer.is_allocation and room < padded:
        raise refuse(
            f"its buffer has {room} bytes, {padded} are needed: the tensor's {nbytes} as a multiple of "
            f"{alignment.size_alignment}",
            f"Allocate {padded} bytes.",
        )
    pool, in_tcm = tcm.pool(), tcm_bytes is not None
    if not pool.encloses(source) if in_tcm else pool.touches(source):
        place, other = ("TCM", "DDR") if in_tcm else ("DDR", "TCM")
        raise refuse(f"its buffer is in {other}, the model binary in {place}; memory types cannot be mixed")
    if tcm_bytes is not None and not pool.encloses(source, tcm_bytes):
        raise refuse(f"its buffer is not within the {tcm_bytes} bytes of TCM that the configuration states")
    return source.part(0, nbytes)


def _check_start(refuse: Callable[[str, str, str], QnnError], subject: str, address: int, alignment: int) -> None:
    """Refuse a misaligned address; `subject` is the beginning of the message."""
    if address % alignment:
        raise refuse(
            f"{subject} at {address:#x}, which is not a multiple of {alignment}",
            f"isthmus.memory.host(nbytes, alignment={alignment}) allocates aligned memory.",
            "misaligned",
        )


def plan_pools(
    graph: Graph, alignment: BufferAlignmentReq, io_in_scratch: bool, limit: ScratchLimit | None
) -> PlannedGraph:
    """Plan a complete graph whose pools start at aligned addresses and have aligned sizes.

    The sizes in its description and in its plan are those of the pools, so a limit on scratch limits the pool.
    """
    options = PlanOptions(io_in_scratch=io_in_scratch, size_alignment=alignment.size_alignment)
    return plan(graph, alignment=alignment.start_addr_alignment, limit=limit, options=options)


@dataclass(frozen=True)
class PoolMemory:
    """Memory of a pool, with the hold on it.

    - `memory`: The memory as the client has set it; None if it has not.
    - `window`, `hold`: The memory itself and the hold on it; None also for a pool of size 0.
    """

    memory: Mem | None = None
    window: Window | None = None
    hold: holds.Hold | None = None

    def release(self) -> None:
        """Release the hold; safe to call again."""
        if self.hold is not None:
            self.hold.release()


class GraphPool:
    """A pool of one graph.

    - `name`, `until`: Its name, and how long it belongs to the graph, for messages.
    - `option`: The config that sets it.
    - `group`: Pools of one group may share memory, because their graphs execute one at a time.
    """

    def __init__(self, name: str, until: str, option: LpaiGraphOption, graph: str, group: object | None = None) -> None:
        self.name, self.option = name, option
        self.what = f"{name} of {graph}"
        self.present = PoolMemory()
        """Its current memory."""
        self._until, self._group = until, group

    def take(self, memory: Mem, required: int, alignment: BufferAlignmentReq) -> PoolMemory:
        """Check new memory for this pool and hold it, while the pool still has its current memory."""
        found = pool_window(self.what, memory, required, alignment)
        if found is None:
            return PoolMemory(memory)
        hold = holds.claim(
            found,
            self.what,
            f"{self.what} {self._until}",
            group=self._group,
            # New memory may overlap the current one, which it replaces.
            besides=self.present.hold,
            code=Code.GRAPH_INVALID_ARGUMENT,
        )
        return PoolMemory(memory, found, hold)

    def release(self) -> None:
        """Release its current memory."""
        self.present.release()
        self.present = PoolMemory()


class SharedBuffers(RegistrationTable[TableEntry]):
    """The shared buffers of one context.

    - `remote`: Whether another process simulates the core and works in them: then this process does not touch them.
    """

    def __init__(self, remote: bool) -> None:
        super().__init__()
        self._remote = remote

    def _entry(self, what: str, descriptor: MemDescriptor) -> TableEntry:
        """Check a descriptor and make an entry for it, which maps and holds the memory."""
        info = descriptor.custom
        if descriptor.mem_type is not DescriptorType.CUSTOM:
            rule = f"LPAI takes CUSTOM memory (lpai.MemInfo), not {descriptor.mem_type.name}"
            raise QnnError(Code.MEM_UNSUPPORTED_MEMTYPE, what, rule)
        if not isinstance(info, MemInfo):
            raise QnnError(Code.MEM_INVALID_ARGUMENT, what, f"its custom structure must be a MemInfo, is {info!r}")
        if not is_int(info.offset) or not 0 <= info.offset <= UINT32_MAX:
            rule = f"offset {info.offset!r} must be an integer of 32 bits"
            raise QnnError(Code.MEM_INVALID_ARGUMENT, what, rule)
        fd = int(info.fd) if is_int(info.fd) else info.fd
        file = shared_file(fd, what)
        key = file.identity, int(info.offset)
        for other in self._find(key):
            rule = f"offset {info.offset} of this buffer is registered as {other.name}"
            raise QnnError(Code.MEM_ALREADY_REGISTERED, what, rule, "Deregister it first.")
        part = mapped_window(SharedFd(fd, int(info.offset), descriptor.nbytes), what, untouched=self._remote, file=file)
        entry = TableEntry(next(self._numbers), descriptor, part, self._forget, [key])
        entry.hold()
        return entry
