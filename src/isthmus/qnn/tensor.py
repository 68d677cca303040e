"""What a client passes to an execution for one input or output: a name and the memory it lies in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.backends.driver import TensorMemory
from isthmus.engine.native.program import TensorInfo
from isthmus.errors import Code, QnnError
from isthmus.graph.datatypes import MemType
from isthmus.memory import Region
from isthmus.qnn.handle import Handle
from isthmus.qnn.mem import MemHandle


@dataclass(frozen=True, eq=False)
class ClientTensor:
    """Memory for one tensor of an execution (the client's part of Qnn_Tensor_t).

    Parameters
    ----------
    name
        The tensor's name in the graph.
    data
        RAW memory: a buffer, an array of the tensor's type and shape, or any writable bytes. Without it and without a
        handle, the tensor lies where the backend planned it.
    mem_handle
        Registered memory instead.

    Examples
    --------
    >>> ClientTensor("x", bytearray(64)).mem_type.name
    'RAW'
    """

    name: str
    data: Any = None
    mem_handle: MemHandle | None = None

    @property
    def mem_type(self) -> MemType:
        """RAW or MEMHANDLE."""
        return MemType.RAW if self.mem_handle is None else MemType.MEMHANDLE

    def memory(self, info: TensorInfo, context: Handle, writable: bool) -> TensorMemory | None:
        """The memory, if it fits a tensor of a graph of `context`."""
        what = f"tensor '{self.name}'"
        if self.mem_handle is not None:
            return self._registered(what, info, context)
        if self.data is None:
            return None
        if isinstance(self.data, np.ndarray) and self.data.dtype != np.uint8:
            expected = (info.dtype.numpy, tuple(info.dims))
            if (self.data.dtype, self.data.shape) != expected:
                raise QnnError(
                    Code.GRAPH_INVALID_TENSOR,
                    what,
                    f"its array is {self.data.dtype}{list(self.data.shape)}, the tensor {expected[0]}{list(info.dims)}",
                )
        return TensorMemory(Region.of(self.data, what, writable))

    def check(self) -> None:
        """Refuse memory that has ended since it was last used."""
        if self.mem_handle is not None:
            self.mem_handle._check()
        elif self.data is not None and not isinstance(self.data, np.ndarray):
            # A closed buffer of this package refuses to show its region.
            _ = getattr(self.data, "region", None)

    def _registered(self, what: str, info: TensorInfo, context: Handle) -> TensorMemory:
        handle = self.mem_handle
        if not isinstance(handle, MemHandle):
            raise QnnError(Code.MEM_INVALID_HANDLE, what, f"{handle!r} is not a memory handle")
        if self.data is not None:
            raise QnnError(Code.GRAPH_INVALID_TENSOR, what, "has both RAW memory and a memory handle")
        handle._check()
        if handle.context is not context:
            raise QnnError(Code.MEM_INVALID_HANDLE, what, "its memory handle belongs to another context")
        descriptor = handle.descriptor
        if tuple(descriptor.dims) != tuple(info.dims) or descriptor.dtype is not info.dtype:
            raise QnnError(
                Code.MEM_INVALID_SHAPE,
                what,
                f"its memory is registered as {descriptor.dtype.name}{list(descriptor.dims)}, "
                f"the tensor is {info.dtype.name}{list(info.dims)}",
            )
        return TensorMemory(handle.registration.region, handle.registration)
