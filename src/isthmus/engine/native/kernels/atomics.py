"""What the instructions that threads and processes meet with are on a target, and which processor runs a thread."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from isthmus.compiled.instructions import pause_on
from isthmus.engine.native.kernels.base import I32, I64
from isthmus.engine.native.target import Target


def architecture(target: Target) -> str:
    """The processor family of a target, which system call numbers depend on."""
    return target.triple.partition("-")[0]


def pause_of(target: Target) -> Any:
    """The instruction that a spinning processor rests with."""
    return pause_on(architecture(target))


@intrinsic
def current_cpu(typing_context: Any) -> Any:
    """The number of the processor that runs this."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = builder.module.globals.get("sched_getcpu")
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(I32, []), "sched_getcpu")
        return builder.sext(builder.call(function, []), I64)

    return types.int64(), emit
