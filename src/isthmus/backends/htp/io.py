"""Memory for a graph on HTP if its user brings none: one shared buffer for all tensors, or raw memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from isthmus.backends.htp.graph import HtpGraphDriver
from isthmus.backends.htp.options import HtpDescriptor
from isthmus.backends.seam.driver import GraphDriver
from isthmus.backends.seam.entry import IoMemory, IoPolicy, register_custom
from isthmus.backends.seam.staging import pack
from isthmus.graph import TensorInfo, TensorMemType
from isthmus.memory import rpcmem


class HtpIo(IoPolicy):
    """Policy: memory handles unless raw memory is requested."""

    kinds: ClassVar[Mapping[str, TensorMemType]] = {"memhandle": TensorMemType.MEMHANDLE, "raw": TensorMemType.RAW}

    def io(self, graph: GraphDriver, kind: str | None, tensors: Sequence[TensorInfo] | None = None) -> IoMemory:
        """Provide raw memory, or by default one shared buffer with a registered part for each tensor."""
        if kind == "raw":
            return super().io(graph, kind, tensors)
        assert isinstance(graph, HtpGraphDriver)
        infos = graph.info.tensors if tensors is None else tensors
        # An empty tensor takes a byte too, since two registrations cannot have the same offset.
        offsets, total = pack(max(info.nbytes, 1) for info in infos)
        buffer = rpcmem.share(total)
        assert buffer.fd is not None
        customs = [HtpDescriptor(buffer.nbytes, buffer.fd, offset) for offset in offsets]
        return IoMemory(register_custom(graph.context, infos, customs), [buffer])
