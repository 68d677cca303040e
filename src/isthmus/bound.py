"""A graph with memory for its inputs and outputs, ready to run: what a session and the tools need of every backend.

Each backend has its own way to memory (pools and views inside them on LPAI, shared or raw buffers on HTP); here they
become one: arrays to write and read, and a call that executes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from isthmus import qnn
from isthmus.engine.native.program import Program
from isthmus.graph import TensorInfo
from isthmus.memory import HostBuffer, Region, host, rpcmem, tcm
from isthmus.qnn import htp, lpai

_IO_ALIGNMENT = 64
_Allocate = Callable[[int, int], HostBuffer | rpcmem.RpcBuffer]


class _Closable(Protocol):
    def close(self) -> None: ...


class BoundGraph:
    """A finalized graph and the memory it runs in.

    Parameters
    ----------
    context, graph
        A graph of a context of any backend.
    """

    def __init__(self, context: qnn.Context, graph: qnn.Graph) -> None:
        self.graph = graph
        self.inputs: dict[str, np.ndarray] = {}
        """Views of the memory that the graph reads, by name."""
        self.outputs: dict[str, np.ndarray] = {}
        """Views of the memory that the graph writes, by name."""
        self.inputs_survive = True
        """Whether an execution leaves the inputs as they were."""
        self._buffers: list[_Closable] = []
        self._context = context
        self._infos: Sequence[TensorInfo] = ()
        self.execute: Callable[[], None] = graph.execute
        """Run once on that memory."""

    def bind(self, shared: bool) -> None:
        """Allocate, finalize the graph if it is not yet, and give it its memory.

        Parameters
        ----------
        shared
            On HTP and LPAI, whether inputs and outputs lie in memory that is registered, where they have no place yet.
        """
        graph = self.graph
        if self._context.backend.name == "lpai":
            self._give_pools()
        if not graph.finalized:
            graph.finalize()
        self._infos = (*graph.input_tensors, *graph.output_tensors)
        self.inputs, self.outputs = dict(graph.inputs), dict(graph.outputs)
        if not self.inputs and not self.outputs:
            self._bring_io(shared)

    def close(self) -> None:
        """Free the memory, after the context; safe to call again. Views that were taken stay readable."""
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()

    def _give_pools(self) -> None:
        """LPAI's workflow up to finalize."""
        alignment = self._context.backend.get_property(lpai.ALIGNMENT_REQ)
        in_accelerator = self._context.backend.get_property(lpai.SHARED_POOLS)
        for size, option in (
            (lpai.SCRATCH_MEM_SIZE, lpai.SCRATCH_MEM),
            (lpai.PERSISTENT_MEM_SIZE, lpai.PERSISTENT_MEM),
        ):
            nbytes = self.graph.get_property(size)
            if nbytes == 0:
                continue
            buffer = share(nbytes) if in_accelerator else host(nbytes, alignment.start_addr_alignment)
            self._buffers.append(buffer)
            self.graph.set_config(option, lpai.Mem(lpai.MemType.DDR, nbytes, buffer))
        self.inputs_survive = not self.graph.get_property(lpai.IO_OFFSETS)

    def _bring_io(self, shared: bool) -> None:
        makers = {"htp": self._bring_htp, "lpai": self._bring_lpai}
        tensors = makers[self._context.backend.name](shared)
        count = len(self.graph.input_tensors)
        self.execute = partial(self.graph.execute, tuple(tensors[:count]), tuple(tensors[count:]))

    def _bring_htp(self, shared: bool) -> list[qnn.ClientTensor]:
        """One buffer that holds all tensors, registered with an offset each, or as much raw memory."""

        def allocate(nbytes: int, alignment: int) -> HostBuffer | rpcmem.RpcBuffer:
            buffer = share(nbytes) if shared else host(nbytes, alignment)
            self._buffers.append(buffer)
            return buffer

        buffer, views, offsets = io_memory(self.graph.program, allocate)
        self._show(views)
        if not isinstance(buffer, rpcmem.RpcBuffer):
            return [qnn.ClientTensor(name, view) for name, view in views]
        handles = self._context.mem_register(
            qnn.MemDescriptor(
                info.dims,
                info.dtype,
                qnn.DescriptorType.CUSTOM,
                custom=htp.Descriptor(buffer.nbytes, buffer.fd, offset),
            )
            for info, offset in zip(self._infos, offsets, strict=True)
        )
        return [qnn.ClientTensor(name, mem_handle=h) for (name, _), h in zip(views, handles, strict=True)]

    def _bring_lpai(self, shared: bool) -> list[qnn.ClientTensor]:
        """Memory for IO that is planned out of scratch, of the type that the model binary has."""
        in_tcm = self._context.get_property(lpai.MODEL_BUFFER_MEM_TYPE) is lpai.MemType.TCM
        alignment = self._context.backend.get_property(lpai.ALIGNMENT_REQ)
        tensors, views = [], []
        for info in self._infos:
            size, start = alignment.padded(info.nbytes), alignment.start_addr_alignment
            buffer: HostBuffer | tcm.TcmBuffer | rpcmem.RpcBuffer
            if in_tcm:
                what = f"buffer of tensor '{info.name}'"
                buffer = tcm.pool().require(size, start, self._context.backend.log, what)
            else:
                buffer = share(size) if shared else host(size, start)
            self._buffers.append(buffer)
            region = Region(buffer.region.address, info.nbytes, buffer.array)
            views.append((info.name, region.view(info.dtype.numpy, info.dims)))
            if not isinstance(buffer, rpcmem.RpcBuffer):
                tensors.append(qnn.ClientTensor(info.name, buffer))
                continue
            custom = lpai.MemInfo(buffer.fd, 0)
            descriptor = qnn.MemDescriptor(info.dims, info.dtype, qnn.DescriptorType.CUSTOM, custom=custom)
            tensors.append(qnn.ClientTensor(info.name, mem_handle=self._context.mem_register([descriptor])[0]))
        self._show(views)
        return tensors

    def _show(self, views: Sequence[tuple[str, np.ndarray]]) -> None:
        count = len(self.graph.input_tensors)
        self.inputs, self.outputs = dict(views[:count]), dict(views[count:])


def share(nbytes: int) -> rpcmem.RpcBuffer:
    """Memory that an accelerator can see."""
    return rpcmem.alloc2(rpcmem.HEAP_ID_SYSTEM, rpcmem.DEFAULT_FLAGS, max(nbytes, 1))


def io_memory(
    program: Program, allocate: _Allocate
) -> tuple[HostBuffer | rpcmem.RpcBuffer, list[tuple[str, np.ndarray]], list[int]]:
    """One buffer for all inputs and outputs, with a view and the offset of each."""
    infos: tuple[TensorInfo, ...] = (*program.inputs, *program.outputs)
    offsets, total = [], 0
    for info in infos:
        offsets.append(total)
        total += -(-info.nbytes // _IO_ALIGNMENT) * _IO_ALIGNMENT
    buffer = allocate(total, _IO_ALIGNMENT)
    views = [
        (info.name, buffer.view(info.dtype.numpy, info.dims, offset))
        for info, offset in zip(infos, offsets, strict=True)
    ]
    return buffer, views, offsets
