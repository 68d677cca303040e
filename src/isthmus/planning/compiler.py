"""Compilation of the search to machine code, in a separate process, so that the planning process never loads numba.

Every field of a state becomes a bare pointer. The C function takes the address of a table of these pointers, the number
of nodes to examine, and the address for the result.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from isthmus.compiled import objects
from isthmus.planning import machine, search

# The functions that `search.advance` calls, each after those that it calls itself.
_PARTS = ("lift", "undo", "note", "reach_of_skipped", "sort_by_reach", "fits", "give_turns")
# The functions of other libraries that the object file may refer to.
_MAY_CALL = frozenset(("memcpy", "memmove", "memset"))
_WORD = ir.IntType(64)


@intrinsic
def _state_at(typing_context: Any, table: Any) -> Any:
    """Return the state whose pointers are stored at an address."""
    # Like every intrinsic of numba, it returns its type and a function that emits LLVM instructions for its arguments.
    fields = len(search.State._fields)
    state = types.NamedUniTuple(types.CPointer(types.int64), fields, search.State)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        table = builder.inttoptr(args[0], _WORD.as_pointer().as_pointer())
        places = [builder.gep(table, [ir.Constant(_WORD, k)]) for k in range(fields)]
        return context.make_tuple(builder, state, [builder.load(place) for place in places])

    return state(types.int64), emit


@intrinsic
def _store(typing_context: Any, address: Any, value: Any) -> Any:
    """Store a 64-bit integer at an address."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], _WORD.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


def compile_search(triple: str) -> bytes:
    """Return the object file of the search, for any machine of an architecture, named by its LLVM triple.

    The functions of `search` are copied, with a global scope in which the names of its functions mean the compiled
    ones; the originals stay interpreted.
    """
    scope = dict(vars(search))
    for name in _PARTS:
        scope[name] = njit(forceinline=True, **objects.OPTIONS)(FunctionType(scope[name].__code__, scope, name))
    advance = njit(**objects.OPTIONS)(FunctionType(search.advance.__code__, scope, "advance"))

    @njit(**objects.OPTIONS)
    def entry(table: int, nodes: int, answer: int, unused: int) -> None:
        # `objects.intermediate` takes functions of four integers; this one needs only three.
        _store(answer, advance(_state_at(table), nodes))  # type: ignore[call-arg]

    with objects.front_end():
        text, name = objects.intermediate(entry)
    target = objects.machine_for(triple, "generic", "")
    return bytes(target.emit_object(objects.optimise(text, name, machine.SYMBOL, target, _MAY_CALL)))


def compile_job(function: str, architecture: str) -> tuple[str, bytes]:
    """Return the key and the object file of the search, for an architecture."""
    return machine.SEARCH.compile_job(lambda name, triple: compile_search(triple), function, architecture)
