"""Target-specific instructions for synchronising threads and processes, and the number of the current processor."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from isthmus.compiled.instructions import pause_on
from isthmus.engine.native.kernels.base import I32, I64
from isthmus.engine.native.target import Target


def architecture(target: Target) -> str:
    """Return the processor family of a target; system call numbers depend on it."""
    return target.triple.partition("-")[0]


def pause_of(target: Target) -> Any:
    """Return the instruction that a processor executes while it spins."""
    return pause_on(architecture(target))


@intrinsic
def current_cpu(typing_context: Any) -> Any:
    """Return the number of the processor that runs the calling thread."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = builder.module.globals.get("sched_getcpu")
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(I32, []), "sched_getcpu")
        return builder.sext(builder.call(function, []), I64)

    return types.int64(), emit
