"""Memory for a graph on LPAI if its user brings none: both pools, and IO that is not planned into scratch or TCM."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from isthmus.backends.lpai.graph import LpaiGraphDriver
from isthmus.backends.lpai.options import LpaiMemType, Mem, MemInfo
from isthmus.backends.seam.driver import GraphDriver, TensorMemory
from isthmus.backends.seam.entry import IoMemory, IoPolicy, register_custom
from isthmus.errors import Code, QnnError
from isthmus.graph import TensorInfo, TensorMemType
from isthmus.memory import Buffer, host, rpcmem


class LpaiIo(IoPolicy):
    """Policy: pools of the required sizes; IO in scratch or TCM by default, else raw or registered buffers."""

    kinds: ClassVar[Mapping[str, TensorMemType]] = {"raw": TensorMemType.RAW, "memhandle": TensorMemType.MEMHANDLE}

    def pools(self, graph: GraphDriver) -> list[Buffer]:
        """Allocate scratch and persistent memory of the required sizes, and set them."""
        assert isinstance(graph, LpaiGraphDriver)
        buffers = []
        for pool in graph.pools:
            nbytes = graph.required(pool)
            if nbytes:
                # The core of the "arm" environment sees shared memory only.
                shared = graph.context.remote
                buffer = rpcmem.share(nbytes) if shared else host(nbytes, graph.alignment.start_addr_alignment)
                graph.set_config(pool.option, Mem(LpaiMemType.DDR, nbytes, buffer)).keep()
                buffers.append(buffer)
        return buffers

    def io(self, graph: GraphDriver, kind: str | None, tensors: Sequence[TensorInfo] | None = None) -> IoMemory:
        """Provide buffers of a kind, by default only for inputs and outputs without a planned place; all or none."""
        assert isinstance(graph, LpaiGraphDriver)
        in_tcm = graph.context.mem_type is LpaiMemType.TCM
        if in_tcm and kind == "memhandle":
            rule = "TCM, where the model binary is, has no file descriptor to register it by"
            raise QnnError(Code.GRAPH_INVALID_TENSOR, f"memory handles for {graph.what}", rule, 'Take io "raw".')
        memories: list[TensorMemory | None] = []
        buffers: list[Buffer] = []
        # The accelerator sees only shared memory; other memory would be copied.
        registered = kind == "memhandle" or (kind is None and graph.context.remote)
        make: Callable[[LpaiGraphDriver, TensorInfo], tuple[Buffer, TensorMemory]]
        make = _register if registered else _allocate
        try:
            for index, info in enumerate(graph.info.tensors if tensors is None else tensors):
                if tensors is None and kind is None and graph.place(index) is not None:
                    memories.append(None)
                    continue
                buffer, memory = make(graph, info)
                buffers.append(buffer)
                memories.append(memory)
        except Exception:
            for memory_ in memories:
                if memory_ is not None and memory_.registration is not None:
                    memory_.registration.close()
            for buffer in buffers:
                buffer.close()
            raise
        return IoMemory(memories, buffers)


def _allocate(graph: LpaiGraphDriver, info: TensorInfo) -> tuple[Buffer, TensorMemory]:
    """Allocate a raw buffer for a tensor, in DDR or TCM as configured."""
    buffer = graph.allocator.allocate(f"buffer of tensor '{info.name}' of {graph.what}", info.nbytes)
    return buffer, TensorMemory(buffer.window())


def _register(graph: LpaiGraphDriver, info: TensorInfo) -> tuple[Buffer, TensorMemory]:
    """Allocate a shared buffer for a tensor and register it."""
    start = graph.alignment.start_addr_alignment
    # Shared memory is page-aligned; a larger alignment needs extra room.
    room = start if start > mmap.PAGESIZE else 0
    buffer = rpcmem.share(graph.alignment.padded(info.nbytes) + room)
    custom = MemInfo(rpcmem.to_fd(buffer), -buffer.address % start)
    [memory] = register_custom(graph.context, [info], [custom])
    return buffer, memory
