"""How a graph on HTP gets memory when its user brings none: one shared buffer for all tensors, or raw memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from isthmus.backends.htp.graph import HtpGraphDriver
from isthmus.backends.htp.options import Descriptor
from isthmus.backends.seam.driver import DescriptorType, GraphDriver, MemDescriptor, TensorMemory
from isthmus.backends.seam.entry import IoPolicy, Provision
from isthmus.graph import MemType
from isthmus.memory import rpcmem

_ALIGNMENT = 64


class HtpIo(IoPolicy):
    """Memory handles unless raw memory is asked for."""

    kinds: ClassVar[Mapping[str, MemType]] = {"memhandle": MemType.MEMHANDLE, "raw": MemType.RAW}

    def io(self, graph: GraphDriver, kind: str | None) -> Provision:
        if kind == "raw":
            return super().io(graph, kind)
        assert isinstance(graph, HtpGraphDriver)
        offsets, total = [], 0
        for info in graph.info.tensors:
            offsets.append(total)
            total += -(-max(info.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
        buffer = rpcmem.share(total)
        assert buffer.fd is not None
        registrations = graph.context.register(
            [
                MemDescriptor(
                    info.dims, info.dtype, DescriptorType.CUSTOM, custom=Descriptor(buffer.nbytes, buffer.fd, offset)
                )
                for info, offset in zip(graph.info.tensors, offsets, strict=True)
            ]
        )
        return Provision([TensorMemory(known.window, known) for known in registrations], [buffer])
