"""The compiler of the command loop, a program of its own: the process that runs models never loads numba."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from isthmus.backends.gpu.runtime import loop, machine
from isthmus.compiled import objects
from isthmus.compiled.ahead import compile_ahead
from isthmus.compiled.instructions import (
    CLOCK,
    FUTEX,
    NANOSLEEP,
    YIELD,
    atomic_load,
    atomic_store,
    pause_on,
    system_call,
)

_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "boundscheck": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
_MAY_CALL = frozenset(("syscall",))
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_OPERANDS = 10
"""The largest number of operands of the OpenCL functions used here. Functions with fewer operands ignore the rest."""
_CLOCK_MONOTONIC = 1
_FUTEX_WAIT, _FUTEX_WAKE = 0 | 128, 1 | 128


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _I64.as_pointer())


def _calling(answer: ir.Type) -> Any:
    """Return an intrinsic that calls the C function at an address; on both processors every operand takes 64 bits."""

    @intrinsic
    def call(context: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any,
             j: Any) -> Any:  # fmt: skip
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(answer, [_I64] * _OPERANDS).as_pointer()
            given = builder.call(builder.inttoptr(args[0], kind), args[1:])
            return given if answer is _I64 else builder.sext(given, _I64)

        return types.int64(*[types.int64] * (_OPERANDS + 1)), emit

    return call


@intrinsic
def _load(context: Any, address: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, args[0]))

    return types.int64(types.int64), emit


@intrinsic
def _low_half(context: Any, word: Any) -> Any:
    """Return the signed 32-bit number in the low half of a word."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.sext(builder.trunc(args[0], _I32), _I64)

    return types.int64(types.int64), emit


def _scope(architecture: str) -> dict[str, Any]:
    """Return the global names that the functions of the loop use."""
    futex, clock, nanosleep, give_way = (numbers[architecture] for numbers in (FUTEX, CLOCK, NANOSLEEP, YIELD))
    inline: Callable[[Any], Any] = njit(forceinline=True, **_OPTIONS)

    @inline
    def nanoseconds(place):  # type: ignore[no-untyped-def]
        system_call(clock, _CLOCK_MONOTONIC, place, 0, 0)  # type: ignore[call-arg]
        return atomic_load(place) * 1_000_000_000 + atomic_load(place + 8)

    @inline
    def sleep(span):  # type: ignore[no-untyped-def]
        system_call(nanosleep, span, 0, 0, 0)  # type: ignore[call-arg]

    @inline
    def make_way():  # type: ignore[no-untyped-def]
        system_call(give_way, 0, 0, 0, 0)  # type: ignore[call-arg]

    @inline
    def sleep_on(word, span):  # type: ignore[no-untyped-def]
        system_call(futex, word, _FUTEX_WAIT, 0, span)  # type: ignore[call-arg]

    @inline
    def ring(word):  # type: ignore[no-untyped-def]
        atomic_store(word, 1)  # type: ignore[call-arg]
        system_call(futex, word, _FUTEX_WAKE, 1 << 30, 0)  # type: ignore[call-arg]

    return {
        **vars(loop),
        "call": _calling(_I32),
        "call_for_address": _calling(_I64),
        "load": _load,
        "load_now": atomic_load,
        "store": atomic_store,
        "low_half": _low_half,
        "pause": pause_on(architecture),
        "make_way": make_way,
        "nanoseconds": nanoseconds,
        "sleep": sleep,
        "sleep_on": sleep_on,
        "ring": ring,
    }


def compile_function(name: str, triple: str) -> bytes:
    """Compile one function of the loop to an object file, for every machine of an architecture."""
    scope = _scope(triple.partition("-")[0])
    for part in ("enqueue", "wait"):
        scope[part] = njit(forceinline=True, **_OPTIONS)(FunctionType(getattr(loop, part).__code__, scope, part))
    function = njit(**_OPTIONS)(FunctionType(getattr(loop, name).__code__, scope, name))
    with objects.front_end():
        text, inner = objects.intermediate(function)
    target = objects.machine_for(triple, "generic", "")
    return target.emit_object(objects.optimised(text, inner, machine.symbol(name), target, _MAY_CALL))


if __name__ == "__main__":
    sys.exit(compile_ahead(machine.LOOP, compile_function, sys.argv[1:]))
