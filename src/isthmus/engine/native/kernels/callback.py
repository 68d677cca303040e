"""The functions that another runtime calls for a node: to run its program, to prepare it and to free it.

The first points the program at that runtime's tensors and runs it. It does not enter Python unless the program cannot
run; then it calls a function that reports why. The others wrap Python functions, because a signal may interrupt those.
The layout is in `isthmus.engine.native.callback`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from isthmus.compiled.instructions import atomic_add, atomic_load, atomic_store
from isthmus.engine.native import callback as layout
from isthmus.engine.native.control import FAULT
from isthmus.engine.native.kernels.base import I64, copy_bytes, device, generated, load_i64, store_i64
from isthmus.engine.native.kernels.executor import call_kernel
from isthmus.engine.native.target import Target


@intrinsic
def _ask(typing_context: Any, function: Any, context: Any, subject: Any) -> Any:
    """Call a C function ``void (void*, void*, int64_t*)``; return what it writes to its last argument, or 0."""

    def emit(compiler_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        answer = cgutils.alloca_once(builder, I64)
        builder.store(I64(0), answer)
        kind = ir.FunctionType(ir.VoidType(), [I64] * 3)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [*args[1:], builder.ptrtoint(answer, I64)])
        return builder.load(answer)

    return types.int64(*[types.int64] * 3), emit


@device
def _status(function, context, subject):  # type: ignore[no-untyped-def]
    """Return the status that a Python function reports about its `subject` (a node or delegate), or an error if it
    reports none.
    """
    answer = _ask(function, context, subject)
    return layout.NO_ANSWER if answer == 0 else answer - layout.ANSWERED


@device
def _is_own(pointer):  # type: ignore[no-untyped-def]
    """Return whether this process owns the block or delegate, and is not a fork of the owner.

    `pointer` is the address of its word `OWN` or `FOR_OWN`, which holds the address of a word that is zero in a fork.
    """
    return load_i64(load_i64(pointer, 0), 0) != 0


@generated
def invoke(target: Target, variant: str) -> Any:
    """Run a program on a runtime's tensors. Arguments: context, node. The result is the runtime's status.

    The variant is the offset of the block's address in a node.
    """
    offset = int(variant)

    @device
    def run_on_tensors(context, node, unused, also_unused):  # type: ignore[no-untyped-def]
        block = load_i64(node + offset, 0)
        if block == 0 or not _is_own(block + layout.OWN):
            return layout.NO_ANSWER
        tensors = load_i64(context + load_i64(block + layout.TENSORS, 0), 0)
        ready = atomic_load(block + layout.READY)
        if ready != 0:
            # The program is pointed at each tensor, which must exist and have the expected size.
            row, io = load_i64(block + layout.ROWS, 0), load_i64(block + layout.IO, 0)
            for i in range(load_i64(block + layout.ROW_COUNT, 0)):
                address = load_i64(tensors + load_i64(row + layout.ROW_DATA, 0), 0)
                nbytes = load_i64(row + layout.ROW_BYTES, 0)
                size = load_i64(tensors + load_i64(row + layout.ROW_SIZE, 0), 0)
                if size != nbytes or (address == 0 and nbytes != 0):
                    ready = 0
                source = load_i64(row + layout.ROW_SOURCE, 0)
                store_i64(io, i, source if source != 0 else address)
                row += layout.ROW_LENGTH
        if ready == 0:
            return _status(load_i64(block + layout.FALLBACK, 0), context, node)
        control = load_i64(block + layout.CONTROL, 0)
        call_kernel(load_i64(block + layout.RUN, 0), control, 0, 0, load_i64(block + layout.THREADS, 0))
        if load_i64(control + FAULT, 0) != 0:
            return _status(load_i64(block + layout.FALLBACK, 0), context, node)
        row = load_i64(block + layout.COPIES, 0)
        for _ in range(load_i64(block + layout.COPY_COUNT, 0)):
            address = load_i64(tensors + load_i64(row + layout.ROW_DATA, 0), 0)
            copy_bytes(address, load_i64(row + layout.ROW_SOURCE, 0), load_i64(row + layout.ROW_BYTES, 0))
            row += layout.ROW_LENGTH
        atomic_add(block + layout.RUNS, 1)
        return 0

    return run_on_tensors


@generated
def prepare(target: Target, variant: str) -> Any:
    """Prepare a node. Arguments: context, node. The result is the runtime's status. The variant is that of `invoke`.

    The program does not run until this has completed.
    """
    offset = int(variant)

    @device
    def prepare_node(context, node, unused, also_unused):  # type: ignore[no-untyped-def]
        block = load_i64(node + offset, 0)
        if block == 0 or not _is_own(block + layout.OWN):
            return layout.NO_ANSWER
        atomic_store(block + layout.READY, 0)
        return _status(load_i64(block + layout.PREPARE, 0), context, node)

    return prepare_node


@generated
def free(target: Target, variant: str) -> Any:
    """Mark a node as freed, and report it. Arguments: context, block.

    If the call returns an answer, the block has been released and is not accessed again.
    """

    @device
    def free_node(context, block, unused, also_unused):  # type: ignore[no-untyped-def]
        if block != 0 and _is_own(block + layout.OWN):
            function = load_i64(block + layout.FREE, 0)
            atomic_store(block + layout.ENDED, layout.FREEING)
            if _ask(function, context, block) == 0:
                atomic_store(block + layout.ENDED, layout.UNANSWERED)
        return 0

    return free_node


@generated
def apply(target: Target, variant: str) -> Any:
    """Prepare a delegate. Arguments: context, delegate. The result is the runtime's status.

    The variant is the offset, in a delegate, of the address of its words; the same applies to `begin`.
    """
    offset = int(variant)

    @device
    def apply_delegate(context, delegate, unused, also_unused):  # type: ignore[no-untyped-def]
        words = load_i64(delegate + offset, 0)
        if not _is_own(words + layout.FOR_OWN):
            return layout.NO_ANSWER
        return _status(load_i64(words + layout.FOR_DELEGATE, 0), context, delegate)

    return apply_delegate


@generated
def begin(target: Target, variant: str) -> Any:
    """Make a node. Arguments: context, the structure that it replaces. The result is the address of its block, or 0.

    The variant is that of `apply`. The structure that a node replaces begins with its delegate.
    """
    offset = int(variant)

    @device
    def begin_node(context, replaced, unused, also_unused):  # type: ignore[no-untyped-def]
        words = load_i64(load_i64(replaced, 0) + offset, 0)
        if not _is_own(words + layout.FOR_OWN):
            return 0
        return _ask(load_i64(words + layout.FOR_BEGIN, 0), context, replaced)

    return begin_node
