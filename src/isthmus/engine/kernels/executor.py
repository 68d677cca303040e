"""The executor: walks a program's table and calls one kernel after the other, alone or as one of several threads.

Threads meet at a barrier after each instruction. A worker waits for the next run by spinning briefly, then sleeping
on a futex. All shared words are in the control block, one to a cache line, laid out in `isthmus.engine.control`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from isthmus.engine.control import ARRIVED, BARRIER_BASE, BASES, COUNT, REQUEST, SLEEPERS, STOP, TABLE
from isthmus.engine.kernels.base import I64, device, generated, load_i64
from isthmus.engine.target import Target

_SPINS_BEFORE_SLEEP = 20_000
_SPINS_BEFORE_YIELD = 2_000
_FUTEX = {"x86_64": 202, "aarch64": 98}
_YIELD = {"x86_64": 24, "aarch64": 124}
_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = 128, 129


@intrinsic
def _call_kernel(typing_context: Any, function: Any, p: Any, b: Any, tid: Any, nt: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I64] * 4)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), emit


@intrinsic
def _atomic_load(typing_context: Any, address: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], I64.as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), emit


@intrinsic
def _atomic_store(typing_context: Any, address: Any, value: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], I64.as_pointer()), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def _atomic_add(typing_context: Any, address: Any, value: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], I64.as_pointer()), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), emit


@intrinsic
def _system_call(typing_context: Any, number: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        module = builder.module
        function = module.globals.get("syscall")
        if function is None:
            function = ir.Function(module, ir.FunctionType(I64, [I64], var_arg=True), "syscall")
        return builder.call(function, args)

    return types.int64(*[types.int64] * 5), emit


def _pause(target: Target) -> Any:
    """The instruction that tells an x86 processor it is spinning; nothing elsewhere."""
    name = "llvm.x86.sse2.pause"

    @intrinsic
    def pause(typing_context: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            if target.triple.startswith("x86_64"):
                function = builder.module.globals.get(name)
                if function is None:
                    function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), []), name)
                builder.call(function, [])
            return context.get_dummy_value()

        return types.void(), emit

    return pause


@device
def _alone(control: int) -> None:
    table, count, bases = load_i64(control + TABLE, 0), load_i64(control + COUNT, 0), load_i64(control + BASES, 0)
    for i in range(count):
        _call_kernel(load_i64(table, 2 * i), load_i64(table, 2 * i + 1), bases, 0, 1)


def _walk(target: Target) -> Any:
    """One thread's share of a run, with a barrier after each instruction."""
    architecture = target.triple.partition("-")[0]
    pause, yield_number = _pause(target), _YIELD[architecture]

    @device
    def walk(control, tid, nt):  # type: ignore[no-untyped-def]
        table, count = load_i64(control + TABLE, 0), load_i64(control + COUNT, 0)
        bases, base = load_i64(control + BASES, 0), load_i64(control + BARRIER_BASE, 0)
        for i in range(count):
            _call_kernel(load_i64(table, 2 * i), load_i64(table, 2 * i + 1), bases, tid, nt)
            goal = base + nt * (i + 1)
            _atomic_add(control + ARRIVED, 1)
            spins = 0
            while _atomic_load(control + ARRIVED) < goal:
                pause()
                spins += 1
                if spins > _SPINS_BEFORE_YIELD:
                    # A sibling may be waiting for this very processor.
                    _system_call(yield_number, 0, 0, 0, 0)
                    spins = 0

    return walk


@generated
def run(target: Target, variant: str) -> Any:
    """Run the program once; the calling thread is thread 0. Arguments: control block, 0, 0, number of threads."""
    walk, futex = _walk(target), _FUTEX[target.triple.partition("-")[0]]

    @device
    def run_program(control, unused, zero, nt):  # type: ignore[no-untyped-def]
        if nt == 1:
            _alone(control)
            return
        _atomic_store(control + BARRIER_BASE, _atomic_load(control + ARRIVED))
        _atomic_add(control + REQUEST, 1)
        if _atomic_load(control + SLEEPERS) > 0:
            _system_call(futex, control + REQUEST, _FUTEX_WAKE_PRIVATE, 1 << 30, 0)
        walk(control, 0, nt)

    return run_program


@generated
def work(target: Target, variant: str) -> Any:
    """The life of a worker thread: wait for a run, take part, until stopped.

    Arguments: control block, 0, thread, threads.
    """
    walk, pause = _walk(target), _pause(target)
    futex = _FUTEX[target.triple.partition("-")[0]]

    @device
    def work_until_stopped(control, unused, tid, nt):  # type: ignore[no-untyped-def]
        seen = 0
        while True:
            spins = 0
            while _atomic_load(control + REQUEST) == seen:
                if spins < _SPINS_BEFORE_SLEEP:
                    pause()
                    spins += 1
                else:
                    _atomic_add(control + SLEEPERS, 1)
                    if _atomic_load(control + REQUEST) == seen:
                        # The futex compares the low half of the counter.
                        _system_call(futex, control + REQUEST, _FUTEX_WAIT_PRIVATE, seen & 0xFFFFFFFF, 0)
                    _atomic_add(control + SLEEPERS, -1)
            seen += 1
            if _atomic_load(control + STOP) != 0:
                return
            walk(control, tid, nt)

    return work_until_stopped


@generated
def stop(target: Target, variant: str) -> Any:
    """End the workers. Arguments: control block, 0, 0, threads."""
    futex = _FUTEX[target.triple.partition("-")[0]]

    @device
    def stop_workers(control, unused, zero, nt):  # type: ignore[no-untyped-def]
        _atomic_store(control + STOP, 1)
        _atomic_add(control + REQUEST, 1)
        _system_call(futex, control + REQUEST, _FUTEX_WAKE_PRIVATE, 1 << 30, 0)

    return stop_workers
