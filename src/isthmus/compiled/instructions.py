"""Intrinsics of native code: atomic words, system calls, and the pause of a spinning processor.

Compilers of all rooms use them. Code compiled with them depends on this file, so its cache key must cover it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_I32, _I64 = ir.IntType(32), ir.IntType(64)

# Numbers of the system calls futex, sched_yield, clock_gettime and nanosleep, by processor family.
FUTEX = {"x86_64": 202, "aarch64": 98}
YIELD = {"x86_64": 24, "aarch64": 124}
CLOCK = {"x86_64": 228, "aarch64": 113}
NANOSLEEP = {"x86_64": 35, "aarch64": 101}

# The LLVM intrinsic of the pause instruction and its operands, by processor family.
_PAUSE: dict[str, tuple[str, tuple[ir.Constant, ...]]] = {
    "x86_64": ("llvm.x86.sse2.pause", ()),
    # An instruction barrier over the whole system: it drains the pipeline, while "yield" does nothing on most
    # processors.
    "aarch64": ("llvm.aarch64.isb", (ir.Constant(_I32, 15),)),
}


@intrinsic
def atomic_load(typing_context: Any, address: Any) -> Any:
    """Load the 64-bit word at an address; like the other atomic operations, in sequentially consistent order."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], _I64.as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), emit


@intrinsic
def atomic_store(typing_context: Any, address: Any, value: Any) -> Any:
    """Store a 64-bit word at an address."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], _I64.as_pointer()), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def atomic_add(typing_context: Any, address: Any, value: Any) -> Any:
    """Add to the 64-bit word at an address and return its old value."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], _I64.as_pointer()), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), emit


@intrinsic
def system_call(typing_context: Any, number: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Make a system call with four arguments, by the C function ``syscall``."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        module = builder.module
        function = module.globals.get("syscall")
        if function is None:
            function = ir.Function(module, ir.FunctionType(_I64, [_I64], var_arg=True), "syscall")
        return builder.call(function, args)

    return types.int64(*[types.int64] * 5), emit


def pause_on(architecture: str) -> Any:
    """Return an intrinsic for the instruction with which a spinning processor pauses for some tens of cycles."""
    name, operands = _PAUSE[architecture]

    @intrinsic
    def pause(typing_context: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            function = builder.module.globals.get(name)
            if function is None:
                kind = ir.FunctionType(ir.VoidType(), [operand.type for operand in operands])
                function = ir.Function(builder.module, kind, name)
            builder.call(function, operands)
            return context.get_dummy_value()

        return types.void(), emit

    return pause
