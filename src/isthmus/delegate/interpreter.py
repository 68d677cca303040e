"""Functions that Python's TFLite interpreter lacks: client memory for a tensor, and adding a delegate later.

`set_custom_allocation` is Interpreter::SetCustomAllocationForTensor, `modify_graph_with_delegate` is
Interpreter::ModifyGraphWithDelegate. Both report errors before LiteRT would.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from operator import not_
from typing import Any

import numpy as np

from isthmus.delegate import custom_memory, library, probe, structures
from isthmus.delegate.custom_memory import CustomMemory
from isthmus.delegate.delegate import QnnDelegate
from isthmus.delegate.structures import DEFAULT_TENSOR_ALIGNMENT, Allocation
from isthmus.errors import Code, QnnError
from isthmus.memory.integers import is_int
from isthmus.system.lock import Lock

# The kinds of tensors that LiteRT lets a client place in its own memory.
_TAKES_MEMORY = (Allocation.ARENA_RW, Allocation.ARENA_RW_PERSISTENT, Allocation.CUSTOM)


@dataclass(frozen=True)
class CustomAllocation:
    """TfLiteCustomAllocation: memory, as an address or as `CustomMemory`, and how many bytes of it to use."""

    data: CustomMemory | int | None
    bytes: int


class _Finder:
    """A delegate that takes over nothing: applied to an interpreter, it finds the context of the first subgraph."""

    # The interpreter keeps its address, so there is one for the lifetime of the process.

    def __init__(self) -> None:
        self.lock = Lock()
        self.context = 0
        self._thunk = structures.DelegatePrepare(self._prepare)
        address = ctypes.cast(self._thunk, ctypes.c_void_p).value
        self.structure = structures.Delegate(prepare=address, flags=structures.ALLOW_DYNAMIC_TENSORS)
        for immortal in (self._thunk, self.structure):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(immortal))

    def _prepare(self, context: int, delegate: int) -> int:
        """Remember the context of subgraph 0, and take over nothing. LiteRT calls it for every subgraph."""
        first = ctypes.c_void_p()
        layout = structures.Context.from_address(context)
        if layout.acquire_subgraph_context(context, 0, ctypes.byref(first)) == structures.OK:
            layout.release_subgraph_context(context, 0)
            self.context = first.value or 0
        return structures.OK


_finder = _Finder()
# The contexts that were found, by LiteRT's native object.
_contexts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


# No variable here may hold the native object: an exception's frames would keep it alive, and LiteRT, which counts
# references, would take that for an array of a tensor and refuse to run.


def _context(interpreter: Any) -> int:
    """Return the context of an interpreter's first subgraph."""
    with _finder.lock:
        context = _contexts.get(library.native(interpreter))
        if context is None:
            _finder.context = 0
            try:
                library.native(interpreter).ModifyGraphWithDelegate(ctypes.addressof(_finder.structure))
            except RuntimeError as problem:
                raise QnnError(Code.COMMON_GENERAL, "interpreter", f"LiteRT refuses: {problem}") from None
            if not _finder.context:
                raise QnnError(Code.COMMON_GENERAL, "interpreter", "LiteRT does not show its first subgraph")
            context = _contexts[library.native(interpreter)] = _finder.context
        return context


def set_custom_allocation(
    interpreter: Any, tensor_index: int, allocation: CustomAllocation | CustomMemory, flags: int = 0
) -> None:
    """Place a tensor in custom memory (SetCustomAllocationForTensor). AllocateTensors must follow.

    Parameters
    ----------
    interpreter
        An ``ai_edge_litert`` interpreter.
    tensor_index
        The tensor's index, as in `get_input_details` and `get_output_details`.
    allocation
        Memory from `QnnDelegate.alloc_custom_mem`, all or part of it, with at least the tensor's bytes, at a multiple
        of 64.
    flags
        LiteRT's flags; must be 0.

    Raises
    ------
    QnnError
        COMMON_INVALID_ARGUMENT if an argument is not an interpreter, tensor or custom memory, MEM_INVALID_SHAPE if the
        memory is too small or misaligned, COMMON_OPERATION_NOT_PERMITTED if the tensor cannot be in custom memory.
        Nothing has changed then.
    """
    probe.check()
    library.check_no_views(interpreter)
    what = f"custom memory of tensor {tensor_index!r}"
    memory, address, nbytes = _check_allocation(what, allocation)
    context = _context(interpreter)
    tensor = _tensor(what, context, tensor_index)
    if tensor.allocation_type not in _TAKES_MEMORY:
        kind = Allocation(tensor.allocation_type)
        reason = {Allocation.DYNAMIC: "dynamic", Allocation.MMAP_RO: "a constant"}.get(kind, f"of kind {kind.name}")
        rule = f"the tensor is {reason}, which cannot use the client's memory"
        raise QnnError(Code.COMMON_OPERATION_NOT_PERMITTED, what, rule)
    if nbytes < tensor.bytes:
        raise QnnError(Code.MEM_INVALID_SHAPE, what, f"it has {nbytes} bytes, the tensor takes {tensor.bytes}")
    if not is_int(flags) or flags != 0:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"flags {flags!r} are not known; they are 0")
    _assign(interpreter, what, custom_memory.Use(memory, context, int(tensor_index), address, nbytes))


def _assign(interpreter: Any, what: str, use: custom_memory.Use) -> None:
    """Make LiteRT use memory for a tensor, and make it refuse to run until AllocateTensors has checked that memory."""
    # LiteRT itself would run: only a changed shape makes it require AllocateTensors. So an input gets another shape,
    # and then its own back. The use is recorded first, since an interrupt may come as soon as LiteRT has the memory.
    # All requests to LiteRT are made in one C call, which no interrupt can divide.
    allocation = structures.CustomAllocation(use.address, use.nbytes)
    set_memory = partial(
        library.set_custom_allocation(), interpreter._native_handle(), use.tensor, ctypes.addressof(allocation), 0
    )
    steps = [set_memory, *_reshaping(interpreter)]
    count = len(steps)
    try:
        custom_memory.use(library.native(interpreter), use)
        # Each call returns None or 0 on success; calls after a failure are not made.
        done = list(takewhile(not_, map(partial.__call__, steps)))
    finally:
        # The steps refer to the native object, which nothing may keep alive (see above).
        steps.clear()
    custom_memory.settle(library.native(interpreter), use, len(done) == count)
    if len(done) < count:
        raise QnnError(Code.COMMON_OPERATION_NOT_PERMITTED, what, "LiteRT does not take it")


def modify_graph_with_delegate(interpreter: Any, delegate: QnnDelegate) -> None:
    """Apply a delegate to an existing interpreter (ModifyGraphWithDelegate); the interpreter keeps it alive.

    Raises
    ------
    QnnError
        COMMON_INVALID_ARGUMENT if `interpreter` is not one, or the delegate was deleted.
    RuntimeError
        From LiteRT, with the rule that was broken: no node is supported, memory does not fit.
    """
    library.check_no_views(interpreter)
    if not isinstance(delegate, QnnDelegate):
        rule = f"must be a QnnDelegate, is a {type(delegate).__name__}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "delegate", rule)
    library.native(interpreter).ModifyGraphWithDelegate(delegate._get_native_delegate_pointer())
    # As the interpreter's constructor does: no delegate may end before the interpreter.
    interpreter._delegates = [*(interpreter._delegates or ()), delegate]


def _check_allocation(what: str, allocation: Any) -> tuple[CustomMemory, int, int]:
    """Check an allocation: custom memory, aligned and large enough. Return it with the address and size to use."""
    if isinstance(allocation, CustomMemory):
        allocation = CustomAllocation(allocation, allocation.nbytes)
    if not isinstance(allocation, CustomAllocation):
        rule = f"must be a CustomAllocation, is a {type(allocation).__name__}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule)
    data, nbytes = allocation.data, allocation.bytes
    if data is None or (is_int(data) and data == 0):
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "its address is null")
    if not isinstance(data, CustomMemory) and not is_int(data):
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"its address must be a number, is {data!r}")
    if not is_int(nbytes) or nbytes < 1:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"its size must be a positive number, is {nbytes!r}")
    address = data.address if isinstance(data, CustomMemory) else int(data)
    memory = custom_memory.find(address)
    if memory is None or memory.is_freed or (isinstance(data, CustomMemory) and memory is not data):
        hint = "Only what alloc_custom_mem has returned, and is not freed yet, is shared with an accelerator."
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"{address:#x} is not an address of custom memory", hint)
    if address + nbytes > memory.address + memory.nbytes:
        rule = f"{nbytes} bytes at {address:#x} reach beyond the {memory.nbytes} bytes at {memory.address:#x}"
        raise QnnError(Code.MEM_INVALID_SHAPE, what, rule)
    if address % DEFAULT_TENSOR_ALIGNMENT:
        rule = f"{address:#x} is not a multiple of {DEFAULT_TENSOR_ALIGNMENT}, which TFLite asks for"
        raise QnnError(Code.MEM_INVALID_SHAPE, what, rule)
    return memory, address, int(nbytes)


def _tensor(what: str, context: int, index: Any) -> structures.Tensor:
    """Return the structure of a client's tensor number; refuse a number that does not exist."""
    subgraph = structures.Context.from_address(context)
    if not is_int(index) or not 0 <= index < subgraph.tensors_size:
        rule = f"there is no tensor {index!r}, the interpreter has {subgraph.tensors_size}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule)
    tensor: structures.Tensor = subgraph.tensors[int(index)]
    return tensor


def _reshaping(interpreter: Any) -> list[partial[None]]:
    """Return calls that give an input another shape and then its own back; none if there are no inputs."""
    for detail in interpreter.get_input_details():
        dims = [int(size) for size in detail["shape"]]
        larger = [dims[0] + 1, *dims[1:]] if dims else [1]
        resize = partial(library.native(interpreter).ResizeInputTensor, detail["index"])
        return [partial(resize, np.array(shape, np.int32), False) for shape in (larger, dims)]
    return []
