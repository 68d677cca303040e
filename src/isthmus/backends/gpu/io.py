"""Memory for graphs on the GPU whose user provides none.

For a device that works in host memory, inputs and outputs are registered buffers there. They are handed back to the
host after each execution, and nothing is copied. For a device with its own memory, they are pinned host memory,
transferred at the speed of the bus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from isthmus.backends.gpu.buffers import pinned_buffer, shared_buffer
from isthmus.backends.gpu.graph import GpuGraphDriver
from isthmus.backends.gpu.options import GpuMemInfo, GpuMemType
from isthmus.backends.seam.driver import GraphDriver, TensorMemory
from isthmus.backends.seam.entry import IoMemory, IoPolicy, register_custom
from isthmus.graph import TensorInfo, TensorMemType
from isthmus.memory import Buffer


class GpuIo(IoPolicy):
    """A policy of registered buffers or raw memory, whichever suits the device better, unless one is requested."""

    kinds: ClassVar[Mapping[str, TensorMemType]] = {"memhandle": TensorMemType.MEMHANDLE, "raw": TensorMemType.RAW}

    def io(self, graph: GraphDriver, kind: str | None, tensors: Sequence[TensorInfo] | None = None) -> IoMemory:
        """Allocate memory for all inputs and outputs; `kind` is a key of `kinds`, or None for what suits the device."""
        assert isinstance(graph, GpuGraphDriver)
        context, infos = graph.context.opencl, graph.info.tensors if tensors is None else tensors
        buffers: list[Buffer] = []
        if kind == "raw" or (kind is None and not context.device.unified):
            buffers += [pinned_buffer(context, max(info.nbytes, 1)) for info in infos]
            return IoMemory([TensorMemory(buffer.window()) for buffer in buffers], buffers)
        buffers += [shared_buffer(context, max(info.nbytes, 1)) for info in infos]
        customs = [GpuMemInfo(GpuMemType.OPENCL, buffer) for buffer in buffers]
        return IoMemory(register_custom(graph.context, infos, customs), buffers)
