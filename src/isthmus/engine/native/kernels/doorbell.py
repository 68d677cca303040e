"""The doorbell between processes: a request is posted and answered in shared memory, without a system call while both
sides are awake.

A waiting side spins for a while, unless the other side last ran on the same processor. Then it sleeps on a futex that
both processes share. A client sleeps only briefly: it must return to Python, where signals are handled and deadlines
checked. The layout is in `isthmus.engine.native.doorbell`.
"""

from __future__ import annotations

from typing import Any

from isthmus.compiled.instructions import FUTEX, atomic_load, atomic_store, system_call
from isthmus.engine.native import doorbell as layout
from isthmus.engine.native.control import BASES, FAULT
from isthmus.engine.native.kernels.atomics import architecture, current_cpu, pause_of
from isthmus.engine.native.kernels.base import device, generated, load_i64, store_i64
from isthmus.engine.native.kernels.executor import call_kernel
from isthmus.engine.native.target import Target
from isthmus.errors import Code
from isthmus.prepare.schedule import Pool

_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
# While spinning, the processor is looked up in one of 64 iterations, where these bits are 0.
_CPU_CHECK_MASK = 63
_FIRST_IO = int(Pool.IO)
_NO_GRAPH, _ABORTED = int(Code.GRAPH_INVALID_HANDLE), int(Code.GRAPH_ABORTED)
_OUTSIDE, _NO_MEMORY = int(Code.GRAPH_INVALID_TENSOR), int(Code.MEM_INVALID_HANDLE)
_TOO_SMALL = int(Code.MEM_INVALID_SHAPE)


def _post(target: Target) -> Any:
    """Return a function that writes a word which the other side waits for, and wakes that side if it sleeps."""
    futex = FUTEX[architecture(target)]

    @device
    def post(word, sleeper, value):  # type: ignore[no-untyped-def]
        atomic_store(word, value)
        if atomic_load(sleeper) != 0:
            system_call(futex, word, _FUTEX_WAKE, 1 << 30, 0)

    return post


def _await_change(target: Target) -> Any:
    """Return a function that waits until a word differs from `old`, and returns its value.

    It first spins up to `spins` times, unless the other side runs on the same processor. With the address of a time
    span, it then sleeps once, at most that long, and may return `old`. Without one (0), it sleeps until the word has
    changed. `sleeper` is the address of the word that tells the other side whether this one sleeps; `own_cpu` and
    `other_cpu` are those of the words with the processors of both sides.
    """
    pause, futex = pause_of(target), FUTEX[architecture(target)]

    @device
    def await_change(word, sleeper, old, own_cpu, other_cpu, spins, span):  # type: ignore[no-untyped-def]
        for i in range(spins):
            value = atomic_load(word)
            if value != old:
                return value
            if (i & _CPU_CHECK_MASK) == 0:
                cpu = current_cpu()
                atomic_store(own_cpu, cpu)
                if atomic_load(other_cpu) == cpu:
                    break
            pause()
        atomic_store(sleeper, 1)
        value = atomic_load(word)
        while value == old:
            # The futex compares the low 32 bits of the word.
            system_call(futex, word, _FUTEX_WAIT, old & 0xFFFFFFFF, span)
            value = atomic_load(word)
            if span != 0:
                break
        atomic_store(sleeper, 0)
        return value

    return await_change


def _await_answer(target: Target) -> Any:
    """Return a function that waits for the answer to a request: the response changes from the number before it."""
    await_change = _await_change(target)

    @device
    def await_answer(page, number, spins, span):  # type: ignore[no-untyped-def]
        own, other = page + layout.CLIENT_CPU, page + layout.SERVER_CPU
        await_change(page + layout.RESPONSE, page + layout.RESPONSE_SLEEPER, number - 1, own, other, spins, span)

    return await_answer


@generated
def call(target: Target, variant: str) -> Any:
    """Post a request and wait briefly for its answer. Arguments: page, number of the request, spins, time span."""
    post, await_answer = _post(target), _await_answer(target)

    @device
    def call_server(page, number, spins, span):  # type: ignore[no-untyped-def]
        atomic_store(page + layout.CLIENT_CPU, current_cpu())
        post(page + layout.REQUEST, page + layout.REQUEST_SLEEPER, number)
        await_answer(page, number, spins, span)

    return call_server


@generated
def wait(target: Target, variant: str) -> Any:
    """Continue to wait for the answer to a request. Arguments: page, number of the request, spins, time span."""
    return _await_answer(target)


@generated
def end(target: Target, variant: str) -> Any:
    """End the service of a queue that is no longer used. Arguments: page, 0, 0, 0."""
    post = _post(target)

    @device
    def end_service(page, a, b, c):  # type: ignore[no-untyped-def]
        store_i64(page + layout.GRAPH, 0, -1)
        post(page + layout.REQUEST, page + layout.REQUEST_SLEEPER, atomic_load(page + layout.REQUEST) + 1)

    return end_service


@generated
def hang_up(target: Target, variant: str) -> Any:
    """Tell a waiting client that its server is gone. Arguments: page, 0, 0, 0."""
    futex = FUTEX[architecture(target)]

    @device
    def notify_client(page, a, b, c):  # type: ignore[no-untyped-def]
        atomic_store(page + layout.RESPONSE, layout.GONE)
        system_call(futex, page + layout.RESPONSE, _FUTEX_WAKE, 1 << 30, 0)

    return notify_client


@generated
def publish(target: Target, variant: str) -> Any:
    """Assign a row of the memory table to a window, or clear it. Arguments: row, address, bytes, generation.

    A concurrent reader of the row finds no address, or a generation other than the one it expects. A reader that has
    not been seen to enter by the time this returns will find the new contents.
    """

    @device
    def publish_row(row, address, nbytes, generation):  # type: ignore[no-untyped-def]
        atomic_store(row + layout.MEMORY_ADDRESS, 0)
        atomic_store(row + layout.MEMORY_GENERATION, generation)
        atomic_store(row + layout.MEMORY_SIZE, nbytes)
        atomic_store(row + layout.MEMORY_ADDRESS, address)
        # Prevents the caller's later reads from being executed before this one.
        atomic_load(row + layout.MEMORY_ADDRESS)

    return publish_row


@device
def _bind(page: int, graph: int, service: int) -> int:
    """Point a graph at the memory that a request names; return 0 or QNN's error code.

    `page` has the request, `graph` is the graph's row in the table of graphs, `service` the server's own words.
    """
    sizes = load_i64(graph + layout.GRAPH_SIZES, 0)
    bases = load_i64(load_i64(graph + layout.GRAPH_CONTROL, 0) + BASES, 0)
    memory, count = load_i64(service + layout.MEMORY, 0), load_i64(service + layout.MEMORY_COUNT, 0)
    for i in range(load_i64(graph + layout.GRAPH_IO, 0)):
        slot = load_i64(page + layout.SLOTS, i)
        index = slot & ((1 << layout.SLOT_BITS) - 1)
        if slot < 0 or index >= count:
            return _NO_MEMORY
        row = memory + index * layout.MEMORY_ROW
        address: int = atomic_load(row + layout.MEMORY_ADDRESS)
        nbytes: int = atomic_load(row + layout.MEMORY_SIZE)
        # The generation is written first and read last: if it is right, so is everything read before it.
        if atomic_load(row + layout.MEMORY_GENERATION) != slot >> layout.SLOT_BITS or address == 0:
            return _NO_MEMORY
        if nbytes < load_i64(sizes, i):
            return _TOO_SMALL
        store_i64(bases, _FIRST_IO + i, address)
    return 0


@generated
def serve(target: Target, variant: str) -> Any:
    """Serve requests of one client until one ends the service.

    Arguments: the page shared with the client, the service block (tables of all graphs and memory), the spins before
    sleeping, and the queue block. In the queue block, the number of a request is written as ENTERED before it runs and
    as LEFT after it, so that the accelerator knows which executions are in progress.
    """
    post, await_change = _post(target), _await_change(target)

    @device
    def serve_until_ended(page, service, spins, queue):  # type: ignore[no-untyped-def]
        done = atomic_load(page + layout.RESPONSE)
        ended = False
        while not ended:
            own, other = page + layout.SERVER_CPU, page + layout.CLIENT_CPU
            done = await_change(page + layout.REQUEST, page + layout.REQUEST_SLEEPER, done, own, other, spins, 0)
            atomic_store(page + layout.SERVER_CPU, current_cpu())
            number = load_i64(page + layout.GRAPH, 0)
            status = 0
            if number == -1:
                ended = True
            elif number < 0 or number >= load_i64(service + layout.GRAPH_COUNT, 0):
                status = _NO_GRAPH
            else:
                # Written before the tables are read: entries removed from now on stay valid until LEFT is written.
                atomic_store(queue + layout.ENTERED, done)
                graph = load_i64(service + layout.GRAPHS, 0) + number * layout.GRAPH_ROW
                control = load_i64(graph + layout.GRAPH_CONTROL, 0)
                status = _NO_GRAPH if control == 0 else _bind(page, graph, service)
                if status == 0:
                    threads = load_i64(graph + layout.GRAPH_THREADS, 0)
                    call_kernel(load_i64(service + layout.RUN, 0), control, page + layout.ABORT, done, threads)
                    if load_i64(control + FAULT, 0) != 0:
                        status = _OUTSIDE
                    if atomic_load(page + layout.ABORT) == done:
                        status = _ABORTED
                atomic_store(queue + layout.LEFT, done)
            atomic_store(page + layout.STATUS, status)
            post(page + layout.RESPONSE, page + layout.RESPONSE_SLEEPER, done)

    return serve_until_ended
