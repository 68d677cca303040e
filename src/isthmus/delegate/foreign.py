"""A check of a program's own TFLite: its structures are verified before they are used.

The layout of structures (`structures`) was tested on the LiteRT of this process (`probe`). A C++ program may contain
another TFLite, of any version. Its version cannot be queried; but if its structures differ, the known layout finds
invalid values in them. No pointer is followed before the system confirms that there is memory.
"""

from __future__ import annotations

import bisect
import ctypes
from typing import Any

from isthmus.delegate import library, structures
from isthmus.delegate.structures import Allocation
from isthmus.errors import Code, QnnError
from isthmus.frontends.tflite.entries import MAX_OPERATORS
from isthmus.frontends.tflite.schema import OPERATORS
from isthmus.memory.identity import mappings

MAX_TENSORS = 1 << 22
MAX_RANK = 32
MAX_VERSION = 1 << 12


# The functions of a context that a delegate needs.
_FUNCTIONS = (
    "get_execution_plan", "get_node_and_registration", "replace_node_subsets", "report_error",
    "acquire_subgraph_context", "release_subgraph_context",
)  # fmt: skip


class _Misfit(Exception):
    """The error that a value found in memory cannot be what the layout says is there."""


def check(address: int) -> None:
    """Refuse the context of a TFLite whose structures differ from those of the tested LiteRT."""
    memory = _Memory()
    try:
        context = memory.structure(structures.Context, address, "a context")
        if library.has_code_at(_pointer(context, "get_execution_plan")):
            # The context is one of the LiteRT that `probe` has tested.
            return
        for name in _FUNCTIONS:
            memory.code(_pointer(context, name), f"the function '{name}'")
        _check_tensors(memory, context)
        _check_nodes(memory, context, address)
    except _Misfit as misfit:
        rule = f"its TFLite is not the LiteRT {library.version()} that was tried, and its structures differ: {misfit}"
        hint = "Use a TFLite whose C structures are those of that version."
        raise QnnError(Code.COMMON_PLATFORM_NOT_SUPPORTED, "interpreter", rule, hint) from None


def _check_tensors(memory: _Memory, context: structures.Context) -> None:
    """Check the types, kinds of memory, dimensions, names and flags of all tensors."""
    if not 0 < context.tensors_size <= MAX_TENSORS:
        raise _Misfit(f"there would be {context.tensors_size} tensors")
    first = _pointer(context, "tensors")
    memory.readable(first, context.tensors_size * ctypes.sizeof(structures.Tensor), "the tensors")
    for index in range(context.tensors_size):
        at = first + index * ctypes.sizeof(structures.Tensor)
        tensor, what = structures.Tensor.from_address(at), f"tensor {index}"
        if tensor.type and tensor.type not in structures.TYPES:
            raise _Misfit(f"{what} would be of type {tensor.type}")
        if tensor.allocation_type not in Allocation._value2member_map_:
            raise _Misfit(f"the memory of {what} would be of kind {tensor.allocation_type}")
        memory.integers(tensor.dims, MAX_RANK, f"the dimensions of {what}")
        name = _pointer(tensor, "name")
        if name:
            memory.readable(name, 1, f"the name of {what}")
        for flag in ("data_is_stale", "is_variable"):
            byte = ctypes.c_ubyte.from_address(at + getattr(structures.Tensor, flag).offset).value
            if byte > 1:
                raise _Misfit(f"'{flag}' of {what} would be {byte}")


def _check_nodes(memory: _Memory, context: structures.Context, address: int) -> None:
    """Check the inputs, outputs, operators and versions of all nodes."""
    plan = ctypes.c_void_p()
    if context.get_execution_plan(address, ctypes.byref(plan)) != structures.OK:
        raise _Misfit("it does not report its execution plan")
    for number in memory.integers(plan.value, MAX_OPERATORS, "the execution plan"):
        at, kind = ctypes.c_void_p(), ctypes.c_void_p()
        if context.get_node_and_registration(address, number, ctypes.byref(at), ctypes.byref(kind)) != structures.OK:
            raise _Misfit(f"it does not report what node {number} is")
        node = memory.structure(structures.Node, at.value, f"node {number}")
        for side in ("inputs", "outputs"):
            for index in memory.integers(getattr(node, side), MAX_TENSORS, f"the {side} of node {number}"):
                if not -1 <= index < context.tensors_size:
                    raise _Misfit(f"node {number} would have tensor {index} among its {side}")
        registration = memory.structure(structures.Registration, kind.value, f"the registration of node {number}")
        if not 0 <= registration.builtin_code < len(OPERATORS) or not 0 < registration.version < MAX_VERSION:
            operator = f"{registration.builtin_code}, version {registration.version}"
            raise _Misfit(f"node {number} would be of operator {operator}")


def _pointer(structure: ctypes.Structure, name: str) -> int:
    """Read a pointer of a structure as an integer."""
    at = ctypes.addressof(structure) + getattr(type(structure), name).offset
    return ctypes.c_void_p.from_address(at).value or 0


class _Memory:
    """The memory that this process can read, as the system reports it at one time."""

    def __init__(self) -> None:
        self._table = [mapping for mapping in mappings() if mapping.readable]
        self._starts = [mapping.start for mapping in self._table]

    def readable(self, address: int | None, nbytes: int, what: str) -> int:
        """Return an address after checking that the bytes there are readable; they may be in several mappings."""
        position, index = address or 0, bisect.bisect_right(self._starts, address or 0) - 1
        while 0 <= index < len(self._table) and self._table[index].start <= position < self._table[index].end:
            position = self._table[index].end
            if position >= (address or 0) + nbytes:
                assert address is not None
                return address
            index += 1
        raise _Misfit(f"{what} would be at {address or 0:#x}, where there is no memory")

    def code(self, address: int, what: str) -> None:
        """Check that an address may be called."""
        self.readable(address, 1, what)
        if not self._table[bisect.bisect_right(self._starts, address) - 1].executable:
            raise _Misfit(f"{what} would be at {address:#x}, where there is no code")

    def structure(self, kind: Any, address: int | None, what: str) -> Any:
        """View the structure at an address."""
        return kind.from_address(self.readable(address, ctypes.sizeof(kind), what))

    def integers(self, address: int | None, most: int, what: str) -> tuple[int, ...]:
        """Read the contents of a TfLiteIntArray; empty for null."""
        if not address:
            return ()
        count = ctypes.c_int.from_address(self.readable(address, 4, what)).value
        if not 0 <= count <= most:
            raise _Misfit(f"{what} would be {count} numbers")
        self.readable(address, 4 + 4 * count, what)
        return structures.integers(address)
