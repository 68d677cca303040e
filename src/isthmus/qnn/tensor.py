"""A client's argument to an execution for one input or output: a name and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from isthmus.backends.seam.driver import TensorMemory
from isthmus.errors import Code, QnnError, did_you_mean
from isthmus.graph import TensorInfo, TensorMemType
from isthmus.memory import window
from isthmus.qnn.handle import Handle
from isthmus.qnn.mem import MemHandle


class ClientTensor(NamedTuple):
    """Memory for one tensor of an execution (the client-set fields of Qnn_Tensor_t).

    Parameters
    ----------
    name
        The tensor's name in the graph.
    data
        RAW memory: a buffer, an array of the tensor's type and shape (of ``ml_dtypes.bfloat16`` for BFLOAT_16), any
        writable bytes, or an address with `nbytes`. If neither this nor a handle is given, the tensor uses the memory
        that the backend planned for it.
    mem_handle
        Registered memory, instead of `data`.
    nbytes
        How many bytes of `data` to use; required with an address.

    Examples
    --------
    >>> ClientTensor("x", bytearray(64)).mem_type.name
    'RAW'
    """

    name: str
    data: Any = None
    mem_handle: MemHandle | None = None
    nbytes: int | None = None

    # A tuple, because clients that need speed create these for every execution. Two are equal if they name the same
    # memory by the same object or the same address; comparing contents would be slow and wrong.
    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, ClientTensor):
            return NotImplemented
        name, data, handle, nbytes = self
        other_name, other_data, other_handle, other_nbytes = other
        same = data is other_data or (type(data) is int and type(other_data) is int and data == other_data)
        return same and handle is other_handle and name == other_name and nbytes == other_nbytes

    def __hash__(self) -> int:
        return hash((self.name, self.data if type(self.data) is int else id(self.data), id(self.mem_handle)))

    def __repr__(self) -> str:
        return f"ClientTensor({self.name!r}, {self.mem_type.name})"

    @property
    def mem_type(self) -> TensorMemType:
        """RAW or MEMHANDLE."""
        return TensorMemType.RAW if self.mem_handle is None else TensorMemType.MEMHANDLE

    @property
    def place(self) -> tuple[Any, ...] | None:
        """A cache key of the memory's location and all that checks depend on; None unless an array or address."""
        data = self.data
        if type(data) is int and self.mem_handle is None:
            return self.name, data, self.nbytes
        if type(data) is not np.ndarray or self.mem_handle is not None:
            return None
        address_and_mode = data.__array_interface__["data"]
        return self.name, address_and_mode, data.shape, data.dtype, data.flags.c_contiguous, self.nbytes

    def memory(self, info: TensorInfo, context: Handle, writable: bool) -> TensorMemory | None:
        """Return the memory, after checking that it fits a tensor of a context; None if the client gives none."""
        what = f"tensor '{self.name}'"
        if self.mem_handle is not None:
            return self._registered_memory(what, info, context)
        if self.data is None:
            return None
        # An array of bytes may be memory of any type and shape; its size is checked when it is bound.
        data = self.data
        if isinstance(data, np.ndarray) and data.dtype != np.uint8:
            # For floats this is a view, so that a graph still writes to the client's own memory.
            data = info.dtype.elements(data) if info.dtype.is_float else data
            expected = (info.dtype.numpy, tuple(info.dims))
            if (data.dtype, data.shape) != expected:
                rule = f"its array is {data.dtype}{list(data.shape)}, the tensor {expected[0]}{list(info.dims)}"
                raise QnnError(Code.GRAPH_INVALID_TENSOR, what, rule)
        return TensorMemory(window(data, what, nbytes=self.nbytes, writable=writable))

    def _registered_memory(self, what: str, info: TensorInfo, context: Handle) -> TensorMemory:
        """Return the memory of the handle, after checking the handle and what it was registered for."""
        handle = self.mem_handle
        if not isinstance(handle, MemHandle):
            raise QnnError(Code.MEM_INVALID_HANDLE, what, f"{handle!r} is not a memory handle")
        if self.data is not None:
            raise QnnError(Code.GRAPH_INVALID_TENSOR, what, "has both RAW memory and a memory handle")
        handle._check()
        if handle.context is not context:
            rule, hint = "its memory handle belongs to another context", "Register the memory in the graph's context."
            raise QnnError(Code.MEM_INVALID_HANDLE, what, rule, hint, mistake="wrong context")
        descriptor = handle.descriptor
        if tuple(descriptor.dims) != tuple(info.dims) or descriptor.dtype is not info.dtype:
            raise QnnError(
                Code.MEM_INVALID_SHAPE,
                what,
                f"its memory is registered as {descriptor.dtype.name}{list(descriptor.dims)}, "
                f"the tensor is {info.dtype.name}{list(info.dims)}",
            )
        return TensorMemory(handle.registration.window, handle.registration)


def match_tensors(
    graph: str, kind: str, tensors: Sequence[ClientTensor], infos: Sequence[TensorInfo]
) -> list[ClientTensor | None]:
    """Return a client's tensors in the order of a graph's inputs or outputs; None for one that is not given."""
    named: dict[str, ClientTensor] = {}
    for tensor in tensors:
        if not isinstance(tensor, ClientTensor) or not isinstance(tensor.name, str):
            raise QnnError(Code.GRAPH_INVALID_TENSOR, graph, f"{tensor!r} is not a ClientTensor")
        if tensor.name in named:
            raise QnnError(Code.GRAPH_INVALID_TENSOR, f"{kind} '{tensor.name}'", "it is given twice")
        named[tensor.name] = tensor
    matched = [named.pop(info.name, None) for info in infos]
    for name in named:
        names = ", ".join(f"'{info.name}'" for info in infos)
        hint = did_you_mean(name, [info.name for info in infos])
        raise QnnError(
            Code.GRAPH_INVALID_TENSOR, f"{kind} '{name}'", f"{graph} has no such {kind}; it has {names}", hint
        )
    return matched
