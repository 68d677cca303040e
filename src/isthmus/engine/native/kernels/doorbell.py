"""The doorbell between processes: a request is posted and answered in shared memory, without a system call while both
sides are awake.

A side that waits spins for a while, unless the other side was last seen on its own processor, then sleeps on a futex
that both processes share. The layout is in `isthmus.engine.native.doorbell`.
"""

from __future__ import annotations

from typing import Any

from isthmus.engine.native.control import BASES
from isthmus.engine.native.doorbell import (
    CLIENT_CPU,
    GONE,
    GRAPH,
    GRAPH_CONTROL,
    GRAPH_COUNT,
    GRAPH_IO,
    GRAPH_ROW,
    GRAPH_SIZES,
    GRAPH_THREADS,
    GRAPHS,
    MEMORY,
    MEMORY_ADDRESS,
    MEMORY_COUNT,
    MEMORY_ROW,
    MEMORY_SIZE,
    REQUEST,
    REQUEST_SLEEPER,
    RESPONSE,
    RESPONSE_SLEEPER,
    RUN,
    SERVER_CPU,
    SLOTS,
    STATUS,
)
from isthmus.engine.native.kernels.atomics import (
    FUTEX,
    architecture,
    atomic_load,
    atomic_store,
    current_cpu,
    pause_of,
    system_call,
)
from isthmus.engine.native.kernels.base import device, generated, load_i64, store_i64
from isthmus.engine.native.kernels.executor import call_kernel
from isthmus.engine.native.target import Target
from isthmus.errors import Code
from isthmus.prepare.schedule import Pool

_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_LOOKS_AT_CPU = 63
_FIRST_IO = int(Pool.IO)
_NO_GRAPH, _NO_MEMORY, _TOO_SMALL = (
    int(Code.GRAPH_INVALID_HANDLE),
    int(Code.MEM_INVALID_HANDLE),
    int(Code.MEM_INVALID_SHAPE),
)


def _post(target: Target) -> Any:
    """Write a word that the other side waits for, and wake it if it sleeps."""
    futex = FUTEX[architecture(target)]

    @device
    def post(word, sleeper, value):  # type: ignore[no-untyped-def]
        atomic_store(word, value)
        if atomic_load(sleeper) != 0:
            system_call(futex, word, _FUTEX_WAKE, 1 << 30, 0)

    return post


def _await_change(target: Target) -> Any:
    """Wait until a word differs from `known`, and give its new value."""
    pause, futex = pause_of(target), FUTEX[architecture(target)]

    @device
    def await_change(word, sleeper, known, own_cpu, other_cpu, spins):  # type: ignore[no-untyped-def]
        for i in range(spins):
            value = atomic_load(word)
            if value != known:
                return value
            if (i & _LOOKS_AT_CPU) == 0:
                here = current_cpu()
                atomic_store(own_cpu, here)
                if atomic_load(other_cpu) == here:
                    break
            pause()
        while True:
            atomic_store(sleeper, 1)
            value = atomic_load(word)
            if value == known:
                # The futex compares the low half of the word.
                system_call(futex, word, _FUTEX_WAIT, known & 0xFFFFFFFF, 0)
                value = atomic_load(word)
            if value != known:
                atomic_store(sleeper, 0)
                return value

    return await_change


@generated
def call(target: Target, variant: str) -> Any:
    """Post a request and wait for its answer. Arguments: page, number of the request, spins, 0."""
    post, await_change = _post(target), _await_change(target)

    @device
    def call_server(page, number, spins, unused):  # type: ignore[no-untyped-def]
        answered = number - 1
        atomic_store(page + CLIENT_CPU, current_cpu())
        post(page + REQUEST, page + REQUEST_SLEEPER, number)
        await_change(page + RESPONSE, page + RESPONSE_SLEEPER, answered, page + CLIENT_CPU, page + SERVER_CPU, spins)

    return call_server


@generated
def hang_up(target: Target, variant: str) -> Any:
    """Tell a waiting client that its server is gone. Arguments: page, 0, 0, 0."""
    futex = FUTEX[architecture(target)]

    @device
    def tell_client(page, a, b, c):  # type: ignore[no-untyped-def]
        atomic_store(page + RESPONSE, GONE)
        system_call(futex, page + RESPONSE, _FUTEX_WAKE, 1 << 30, 0)

    return tell_client


@device
def _bind(page: int, graph: int, service: int) -> int:
    """Point a graph at the memory that a request names; QNN's code."""
    sizes, bases = load_i64(graph + GRAPH_SIZES, 0), load_i64(load_i64(graph + GRAPH_CONTROL, 0) + BASES, 0)
    memory, count = load_i64(service + MEMORY, 0), load_i64(service + MEMORY_COUNT, 0)
    for i in range(load_i64(graph + GRAPH_IO, 0)):
        slot = load_i64(page + SLOTS, i)
        if slot < 0 or slot >= count:
            return _NO_MEMORY
        row = memory + slot * MEMORY_ROW
        if atomic_load(row + MEMORY_ADDRESS) == 0:
            return _NO_MEMORY
        if load_i64(row + MEMORY_SIZE, 0) < load_i64(sizes, i):
            return _TOO_SMALL
        store_i64(bases, _FIRST_IO + i, load_i64(row + MEMORY_ADDRESS, 0))
    return 0


@generated
def serve(target: Target, variant: str) -> Any:
    """Run what is asked for until the end is asked for. Arguments: page, service block, spins, 0."""
    post, await_change = _post(target), _await_change(target)

    @device
    def serve_until_ended(page, service, spins, unused):  # type: ignore[no-untyped-def]
        done = atomic_load(page + RESPONSE)
        ended = False
        while not ended:
            done = await_change(
                page + REQUEST, page + REQUEST_SLEEPER, done, page + SERVER_CPU, page + CLIENT_CPU, spins
            )
            atomic_store(page + SERVER_CPU, current_cpu())
            number = load_i64(page + GRAPH, 0)
            status = 0
            if number == -1:
                ended = True
            elif number < 0 or number >= load_i64(service + GRAPH_COUNT, 0):
                status = _NO_GRAPH
            else:
                graph = load_i64(service + GRAPHS, 0) + number * GRAPH_ROW
                control = load_i64(graph + GRAPH_CONTROL, 0)
                status = _NO_GRAPH if control == 0 else _bind(page, graph, service)
                if status == 0:
                    call_kernel(load_i64(service + RUN, 0), control, 0, 0, load_i64(graph + GRAPH_THREADS, 0))
            atomic_store(page + STATUS, status)
            post(page + RESPONSE, page + RESPONSE_SLEEPER, done)

    return serve_until_ended
