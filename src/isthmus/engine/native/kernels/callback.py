"""The function that another runtime calls to run a program: it points the program at that runtime's tensors, and runs.

Nothing of Python is touched, unless the program cannot run as things are: then a function is called that can say why.
The layout is in `isthmus.engine.native.callback`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from isthmus.engine.native.callback import (
    CONTROL,
    COPIES,
    COPY_COUNT,
    IO,
    OTHERWISE,
    READY,
    ROW_BYTES,
    ROW_COUNT,
    ROW_DATA,
    ROW_LENGTH,
    ROW_SIZE,
    ROW_SOURCE,
    ROWS,
    RUN,
    RUNS,
    TENSORS,
    THREADS,
)
from isthmus.engine.native.kernels.atomics import atomic_add, atomic_load
from isthmus.engine.native.kernels.base import I32, I64, copy_bytes, device, generated, load_i64, store_i64
from isthmus.engine.native.kernels.executor import call_kernel
from isthmus.engine.native.target import Target


@intrinsic
def _call_function(typing_context: Any, function: Any, context: Any, node: Any) -> Any:
    """Call a C function ``int (void*, void*)``."""

    def emit(own: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(I32, [I64] * 2)
        answer = builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return builder.sext(answer, I64)

    return types.int64(*[types.int64] * 3), emit


@generated
def invoke(target: Target, variant: str) -> Any:
    """Run a program on the tensors of a runtime. Arguments: context, node; the answer is the runtime's status.

    The variant says where in a node the block's address is.
    """
    where = int(variant)

    @device
    def run_on_tensors(context, node, unused, also_unused):  # type: ignore[no-untyped-def]
        block = load_i64(node + where, 0)
        tensors = load_i64(context + load_i64(block + TENSORS, 0), 0)
        ready = atomic_load(block + READY)
        if ready != 0:
            row, io = load_i64(block + ROWS, 0), load_i64(block + IO, 0)
            for i in range(load_i64(block + ROW_COUNT, 0)):
                address, nbytes = load_i64(tensors + load_i64(row + ROW_DATA, 0), 0), load_i64(row + ROW_BYTES, 0)
                if load_i64(tensors + load_i64(row + ROW_SIZE, 0), 0) != nbytes or (address == 0 and nbytes != 0):
                    ready = 0
                source = load_i64(row + ROW_SOURCE, 0)
                store_i64(io, i, source if source != 0 else address)
                row += ROW_LENGTH
        if ready == 0:
            return _call_function(load_i64(block + OTHERWISE, 0), context, node)
        call_kernel(load_i64(block + RUN, 0), load_i64(block + CONTROL, 0), 0, 0, load_i64(block + THREADS, 0))
        row = load_i64(block + COPIES, 0)
        for _ in range(load_i64(block + COPY_COUNT, 0)):
            address = load_i64(tensors + load_i64(row + ROW_DATA, 0), 0)
            copy_bytes(address, load_i64(row + ROW_SOURCE, 0), load_i64(row + ROW_BYTES, 0))
            row += ROW_LENGTH
        atomic_add(block + RUNS, 1)
        return 0

    return run_on_tensors
