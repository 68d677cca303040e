"""The compiler of the command loop, a program of its own: the process that runs models never loads numba."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from isthmus.backends.gpu.runtime import loop, machine
from isthmus.compiled import objects
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

# The only function of the C library that the compiled loop may call by name.
_MAY_CALL = frozenset(("syscall",))
_I32, _I64 = ir.IntType(32), ir.IntType(64)
# The largest number of operands of the OpenCL functions used here. Functions with fewer operands ignore the rest.
_OPERANDS = 10
_CLOCK_MONOTONIC = 1
# Operations of Linux's futex call; 128 is its flag for a word that only this process uses.
_FUTEX_WAIT, _FUTEX_WAKE = 0 | 128, 1 | 128


def _pointer(builder: Any, address: Any) -> Any:
    """Return an address as a pointer to a 64-bit word, in LLVM's code."""
    return builder.inttoptr(address, _I64.as_pointer())


def _calling(result: ir.Type) -> Any:
    """Return an intrinsic that calls the C function at an address, which returns a `result`, with ten operands."""
    # On both processors (x86-64 and arm64) every operand takes 64 bits, so all OpenCL functions can be called alike.

    @intrinsic
    def call(context: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any,
             j: Any) -> Any:  # fmt: skip
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(result, [_I64] * _OPERANDS).as_pointer()
            value = builder.call(builder.inttoptr(args[0], kind), args[1:])
            return value if result is _I64 else builder.sext(value, _I64)

        return types.int64(*[types.int64] * (_OPERANDS + 1)), emit

    return call


@intrinsic
def _load(context: Any, address: Any) -> Any:
    """Return the 64-bit word at an address."""

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
    # `loop` refers to them without defining them. A `word` or `place` is an address, and a `span` is the address of two
    # words: seconds and nanoseconds (C's timespec).
    futex, clock, nanosleep, give_way = (numbers[architecture] for numbers in (FUTEX, CLOCK, NANOSLEEP, YIELD))
    inline: Callable[[Any], Any] = njit(forceinline=True, **objects.OPTIONS)

    @inline
    def nanoseconds(place):  # type: ignore[no-untyped-def]
        """Return the time of a clock that never goes back; `place` is the address of two words to compute it in."""
        system_call(clock, _CLOCK_MONOTONIC, place, 0, 0)  # type: ignore[call-arg]
        return atomic_load(place) * 1_000_000_000 + atomic_load(place + 8)

    @inline
    def sleep(span):  # type: ignore[no-untyped-def]
        system_call(nanosleep, span, 0, 0, 0)  # type: ignore[call-arg]

    @inline
    def make_way():  # type: ignore[no-untyped-def]
        """Let another thread run on this processor."""
        system_call(give_way, 0, 0, 0, 0)  # type: ignore[call-arg]

    @inline
    def sleep_on(word, span):  # type: ignore[no-untyped-def]
        """Sleep until another thread rings, at most for a span; return at once if the word is not 0."""
        system_call(futex, word, _FUTEX_WAIT, 0, span)  # type: ignore[call-arg]

    @inline
    def ring(word):  # type: ignore[no-untyped-def]
        """Set a word to 1, and wake all threads that sleep on it."""
        atomic_store(word, 1)  # type: ignore[call-arg]
        system_call(futex, word, _FUTEX_WAKE, 1 << 30, 0)

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
    """Compile one function of the loop to an object file, for every machine of an architecture.

    - `triple`: LLVM's name of the architecture and system, such as "x86_64-unknown-linux-gnu".
    """
    scope = _scope(triple.partition("-")[0])
    # `execute` calls these two. The functions are compiled with the names of `scope` as their globals.
    for part in ("enqueue", "wait"):
        scope[part] = njit(forceinline=True, **objects.OPTIONS)(FunctionType(getattr(loop, part).__code__, scope, part))
    function = njit(**objects.OPTIONS)(FunctionType(getattr(loop, name).__code__, scope, name))
    with objects.front_end():
        text, inner = objects.intermediate(function)
    target = objects.machine_for(triple, "generic", "")
    return bytes(target.emit_object(objects.optimise(text, inner, machine.symbol(name), target, _MAY_CALL)))


def compile_job(function: str, architecture: str) -> tuple[str, bytes]:
    """Return the key and the object file of a function of the loop, for an architecture."""
    return machine.LOOP.compile_job(compile_function, function, architecture)
