"""Executions on memory of every kind, with every result compared; and those that must be refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from subjects import Spec, Subject
from world import ExpectedGraph, Outcome, World

from isthmus import memory, qnn
from isthmus.memory import rpcmem, tcm
from isthmus.qnn import ClientTensor

_GARBAGE = 0x5A


@dataclass(eq=False)
class Place:
    """Where a tensor lies for an execution: what the client passes, the view of it, and what keeps it alive."""

    tensor: ClientTensor | None
    view: Callable[[], np.ndarray]
    owner: Any = None


def feeds_for(subject: Subject, rng: random.Random) -> dict[str, np.ndarray]:
    """Random inputs: integers, so that sums of floats are exact."""
    generator = np.random.default_rng(rng.randrange(1 << 30))
    return {s.name: generator.integers(-99, 99, s.dims).astype(s.dtype.numpy) for s in subject.inputs}


def place(world: World, rng: random.Random, graph: ExpectedGraph, spec: Spec, taken: list[Any]) -> Place | None:
    """Memory for a tensor of some kind; `taken` are handles that this execution uses already."""
    ways: list[Callable[[], Place | None]] = [lambda: _host(world, rng, spec), lambda: _host(world, rng, spec)]
    dtype, dims = spec.dtype.numpy, spec.dims
    if world.kind.in_tcm:
        ways = [lambda: _tcm(world, spec)]
    elif not world.kind.is_lpai:
        ways += [lambda: _array(spec)]
    if world.kind.has_place and not world.crowded:
        index = spec in graph.subject.inputs

        def own() -> np.ndarray:
            return (graph.handle.inputs if index else graph.handle.outputs)[spec.name]

        ways += [lambda: Place(None, own)] * 2
    known = [handle for handle in world.handles(graph.context, spec) if handle not in taken and handle.handle]
    if known and not world.kind.in_tcm:
        chosen = rng.choice(known)

        def registered() -> Place:
            taken.append(chosen)
            return Place(ClientTensor(spec.name, mem_handle=chosen.handle), lambda: chosen.view, chosen)

        ways += [registered] * 6
    if not world.kind.in_tcm:

        def shared() -> Place | None:
            got = world.call("rpcmem.alloc", lambda: rpcmem.alloc(25, 1, padded(spec.nbytes)))
            if not got.done:
                return None
            buffer = got.value
            return Place(ClientTensor(spec.name, buffer, nbytes=spec.nbytes), lambda: buffer.view(dtype, dims), buffer)

        ways += [shared]
    return rng.choice(ways)()


def padded(nbytes: int) -> int:
    """The size of an allocation for a tensor, as LPAI asks for it with any hardware version."""
    return -(-nbytes // 128) * 128


def _array(spec: Spec) -> Place:
    array = np.zeros(spec.dims, spec.dtype.numpy)
    return Place(ClientTensor(spec.name, array), lambda: array, array)


def _host(world: World, rng: random.Random, spec: Spec) -> Place | None:
    start = rng.choice((0, 0, 2)) * max(world.alignment, 64)
    got = world.call("memory.host", lambda: memory.host(padded(spec.nbytes) + start, max(world.alignment, 64)))
    if not got.done:
        return None
    buffer = got.value
    given: Any = rng.choice((buffer.window(start, spec.nbytes), buffer.address + start, buffer.array[start:]))
    tensor = ClientTensor(spec.name, given, nbytes=spec.nbytes)
    return Place(tensor, lambda: buffer.view(spec.dtype.numpy, spec.dims, start), buffer)


def _tcm(world: World, spec: Spec) -> Place | None:
    # The 33rd buffer is refused, and so is what does not fit.
    say = lambda level, text: None  # noqa: E731
    got = world.call("tcm.allocate", lambda: tcm.allocate(padded(spec.nbytes), 128, say), may=[1002, 1011])
    if not got.done:
        return None
    buffer = got.value
    tensor = ClientTensor(spec.name, buffer, nbytes=spec.nbytes)
    return Place(tensor, lambda: buffer.view(spec.dtype.numpy, spec.dims), buffer)


def run(world: World, rng: random.Random, graph: ExpectedGraph) -> None:
    """Execute a graph on memory of some kind, one to several times, in one of the ways there are."""
    if graph.bindings and not world.crowded and rng.random() < 0.3:
        binding, places = rng.choice(graph.bindings)
        if not any(getattr(p.owner, "ended", False) or getattr(p.owner, "is_closed", False) for p in places.values()):
            _repeat(world, rng, graph, places, binding.execute, "binding.execute")
            return
        world.call("binding.execute on ended memory", binding.execute, must=[8001, 1004])
        return
    taken: list[Any] = []
    places: dict[str, Place] = {}
    for spec in graph.subject.tensors:
        found = place(world, rng, graph, spec, taken)
        if found is None:
            return
        places[spec.name] = found
    inputs, outputs = tensors(graph.subject, places)
    way = rng.randrange(4)
    if way == 0:
        got = world.call(f"bind {graph.subject.name}", lambda: graph.handle.bind(inputs, outputs))
        if not got.done:
            return
        graph.bindings = [*graph.bindings[-2:], (got.value, places)]
        _repeat(world, rng, graph, places, got.value.execute, "binding.execute")
        stats = world.call("binding.stats", lambda: got.value.stats)
        if stats.done and not 0 <= stats.value.executions <= graph.most:
            raise AssertionError(f"a binding counts {stats.value.executions} executions of {graph.most}")
    elif way == 1:
        profile = qnn.Profile(world.backend, rng.choice((1, 2)))
        _repeat(world, rng, graph, places, lambda: graph.handle.execute(inputs, outputs, profile), "execute, profiled")
        world.call("profile.get_events", profile.get_events, calm=True)
        world.call("profile.free", profile.free, calm=True)
    elif way == 2:
        _asynchronous(world, rng, graph, places)
    else:
        # Fresh structures each time, or the same.
        fresh = rng.random() < 0.5
        execute = graph.handle.execute
        again = (lambda: execute(*tensors(graph.subject, places))) if fresh else (lambda: execute(inputs, outputs))
        _repeat(world, rng, graph, places, again, f"execute {graph.subject.name}")


def tensors(subject: Subject, places: dict[str, Place]) -> tuple[list[ClientTensor], list[ClientTensor]]:
    """Return what a client passes."""

    def client_tensors(specs: Sequence[Spec]) -> list[ClientTensor]:
        found = (places[spec.name].tensor for spec in specs)
        return [ClientTensor(*tensor) for tensor in found if tensor is not None]

    return client_tensors(subject.inputs), client_tensors(subject.outputs)


def _repeat(
    world: World,
    rng: random.Random,
    graph: ExpectedGraph,
    places: dict[str, Place],
    execute: Callable[[], Any],
    what: str,
) -> None:
    for _ in range(rng.choice((1, 1, 3, 20))):
        feeds = feeds_for(graph.subject, rng)
        fill(graph.subject, places, feeds)
        done = world.call(what, execute)
        counted(graph, done)
        if not done.done:
            return
        compare(graph, feeds, {spec.name: places[spec.name].view() for spec in graph.subject.outputs})


def fill(subject: Subject, places: dict[str, Place], feeds: dict[str, np.ndarray]) -> None:
    """Write inputs; outputs hold garbage before, unless they may lie over an input."""
    for spec in subject.outputs:
        if places[spec.name].tensor is not None:
            places[spec.name].view().view(np.uint8)[...] = _GARBAGE
    for name, array in feeds.items():
        places[name].view()[...] = array


def _asynchronous(world: World, rng: random.Random, graph: ExpectedGraph, places: dict[str, Place]) -> None:
    feeds = feeds_for(graph.subject, rng)
    fill(graph.subject, places, feeds)
    inputs, outputs = tensors(graph.subject, places)
    # Inputs that lie in scratch are gone after one execution.
    in_scratch = world.kind.is_lpai and any(places[spec.name].tensor is None for spec in graph.subject.inputs)
    count = 1 if in_scratch else rng.choice((1, 2, 8, 80))
    reported: list[Any] = []

    def submit_all() -> list[Any]:
        waiting = []
        for _ in range(count):
            got = world.call("execute_async", lambda: graph.handle.execute_async(inputs, outputs, reported.append))
            if got.interrupted:
                # The execution may have been submitted; only a later one, which ends after it, can be waited for.
                graph.state, graph.most = None, graph.most + 1
            if got.done:
                waiting.append(got.value)
        return waiting

    finished = 0
    for execution in submit_all():
        done = world.call("wait for it", lambda execution=execution: execution.result(), calm=True)
        counted(graph, done)
        if done.done:
            finished += 1
    last = lambda: graph.handle.execute_async(inputs, outputs)  # noqa: E731
    barrier = world.call("execute_async last", last, calm=True)
    if barrier.done:
        done = world.call("wait for the last", barrier.value.result, calm=True)
        counted(graph, done)
        finished += done.done
    if graph.subject.state is not None:
        if graph.state is not None and not in_scratch:
            for _ in range(finished):
                expected, graph.state = graph.subject.answer(feeds, graph.state)
            if finished:
                _judge(graph, expected, places)
        else:
            graph.state = None
    elif finished and not in_scratch:
        _judge(graph, graph.subject.answer(feeds, None)[0], places)


def _judge(graph: ExpectedGraph, expected: dict[str, np.ndarray], places: dict[str, Place]) -> None:
    for name, array in expected.items():
        problem = graph.subject.wrong(name, array, places[name].view())
        if problem:
            raise AssertionError(problem)


def counted(graph: ExpectedGraph, done: Outcome) -> None:
    """Note an execution that was asked for."""
    graph.most += 1
    if done.done:
        graph.least += 1
    else:
        graph.state = None


def compare(graph: ExpectedGraph, feeds: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    """Compare results, where they are known beforehand."""
    if graph.certain:
        expected, graph.state = graph.subject.answer(feeds, graph.state)
        for name, array in expected.items():
            problem = graph.subject.wrong(name, array, found[name])
            if problem:
                raise AssertionError(problem)


def refuse_wrong_execution(world: World, rng: random.Random, graph: ExpectedGraph) -> None:
    """Executions that must be refused, and change nothing."""
    subject, first, last = graph.subject, graph.subject.inputs[0], graph.subject.outputs[0]
    alignment = max(world.alignment, 64)
    if world.kind.in_tcm:
        return
    buffers = {spec.name: memory.host(padded(spec.nbytes), alignment) for spec in subject.tensors}
    right = {spec.name: ClientTensor(spec.name, buffers[spec.name], nbytes=spec.nbytes) for spec in subject.tensors}
    closed = memory.host(first.nbytes, alignment)
    closed.close()
    short = memory.host(max(first.nbytes - 4, 1), alignment)
    frozen = np.zeros(last.dims, last.dtype.numpy)
    frozen.flags.writeable = False
    other = np.zeros((3, 3), np.float64)
    wrong: list[tuple[str, dict[str, Any], set[int]]] = [
        ("an unknown name", {"nobody": ClientTensor("nobody", short)}, {6004}),
        ("another type", {first.name: ClientTensor(first.name, other)}, {6004}),
        ("a closed buffer", {first.name: ClientTensor(first.name, closed)}, {1004}),
        ("a short buffer", {first.name: ClientTensor(first.name, short)}, {1004, 6004}),
        ("a null address", {first.name: ClientTensor(first.name, 0, nbytes=first.nbytes)}, {1004}),
        ("an address without a size", {first.name: ClientTensor(first.name, 4096)}, {1004}),
        ("an address of nobody", {first.name: ClientTensor(first.name, 4096, nbytes=first.nbytes)}, {1004}),
        ("a number that is no address", {first.name: ClientTensor(first.name, 0.5)}, {1004}),
        ("read-only memory", {last.name: ClientTensor(last.name, frozen)}, {1004}),
        ("no handle", {first.name: ClientTensor(first.name, mem_handle=7)}, {8001}),
        ("no tensor", {first.name: 7}, {6004}),
    ]
    # Exactly the memory of an input is legal for an output.
    if world.kind.backend != "htp" and first.nbytes != last.nbytes:
        over = ClientTensor(last.name, buffers[first.name])
        wrong.append(("an output over an input", {last.name: over}, {6004, 1004}))
    known = [h for held in world.buffers for h in held.handles if h.handle and h.alive]
    foreign = [handle for handle in known if handle.context is not graph.context]
    if foreign:
        wrong.append(("another's handle", {first.name: ClientTensor(first.name, mem_handle=foreign[0].handle)}, {8001}))
    what, change, codes = rng.choice(wrong)
    given = {**right, **change}
    outputs = [given.pop(spec.name) for spec in subject.outputs]
    before = {name: bytes(buffer) for name, buffer in buffers.items()}
    do = rng.choice((graph.handle.execute, graph.handle.bind))
    world.call(f"execute on {what}", lambda: do(list(given.values()), outputs), must=codes)
    for name, buffer in buffers.items():
        if bytes(buffer) != before[name]:
            raise AssertionError(f"a refused execution wrote '{name}'")
