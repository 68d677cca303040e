"""What programs do with contexts, graphs, memory and binaries: each a function of the world and a generator.

Every one leaves the world's record true: it asks `World.call` for what it does and notes what came of it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from execution import compare, counted, feeds_for, refuse_wrong_execution, run
from subjects import Spec, Subject
from world import Ctx, ExpectedGraph, Held, Registered, World

import isthmus
from isthmus import memory, qnn
from isthmus.backends.gpu.buffers import shared_buffer
from isthmus.errors import Code
from isthmus.graph import TensorMemType
from isthmus.memory import rpcmem
from isthmus.qnn import DescriptorType, MemDescriptor, gpu, htp, lpai

_PAGE = 4096
_MAX_CONTEXTS, _MAX_GRAPHS, _MAX_BUFFERS = 3, 4, 5
_DAMAGED = (
    Code.CONTEXT_CREATE_FROM_BINARY,
    Code.CONTEXT_BINARY_VERSION,
    Code.CONTEXT_INVALID_ARGUMENT,
    Code.COMMON_INCOMPATIBLE_BINARIES,
)

# -- contexts ----------------------------------------------------------------------------------------------------------


def create_context(world: World, rng: random.Random) -> None:
    """A context, on a device of its own now and then."""
    if len(world.live) >= _MAX_CONTEXTS:
        return free_context(world, rng)
    device = None
    if world.kind.backend == "htp" and rng.random() < 0.15:
        made = world.call("backend.create_device()", world.backend.create_device)
        if not made.done:
            return
        device = made.value
        world.devices.append(device)
    elif world.devices and rng.random() < 0.5:
        device = rng.choice(world.devices)
    configs = None
    if world.kind.backend == "htp" and rng.random() < 0.3:
        configs = {htp.REREGISTRATION: htp.Reregistration.REFUSE}
    got = world.call("backend.create_context()", lambda: world.backend.create_context(configs, device))
    if got.done:
        world.contexts.append(Ctx(got.value, device))


def free_context(world: World, rng: random.Random) -> None:
    """The end of a context with all that it owns; nothing of it can be used afterwards."""
    contexts = [context for context in world.contexts if not context.freed]
    if not contexts:
        return
    context = rng.choice(contexts)
    freed = world.call("context.free()", context.handle.free)
    if freed.interrupted:
        # It may be half freed; to free it once more must end it.
        freed = world.call("context.free() again", context.handle.free, calm=True)
    context.freed = True
    world.call("context.create_graph() after free", lambda: context.handle.create_graph("late"), must=[5002], calm=True)
    for graph in context.graphs[:1]:
        world.call("graph.execute() after free", graph.handle.execute, must=[6001], calm=True)
        world.call("graph.stats after free", lambda graph=graph: graph.handle.stats, must=[6001], calm=True)
    world.contexts.remove(context)


def wrong_context_calls(backend: qnn.Backend, context: qnn.Context) -> list[tuple[str, Callable[[], Any], set[int]]]:
    """Calls with wrong arguments of backend and context, and the codes that answer them."""
    return [
        ("create_context(device=5)", lambda: backend.create_context(device=5), {5000}),
        ("create_context_from_binary(b'...')", lambda: backend.create_context_from_binary(b"no binary" * 99), {5005}),
        ("create_context_from_binary(no file)", lambda: backend.create_context_from_binary("/nowhere.bin"), {5000}),
        ("compose(no file)", lambda: context.compose("/nowhere.onnx"), {1004}),
        ("create_graph('')", lambda: context.create_graph(""), {6003}),
        ("retrieve(unknown)", lambda: context.retrieve("nobody"), {6003}),
        ("context.set_config(99)", lambda: context.set_config(99, 1), {5010}),
        ("backend.get_property(99)", lambda: backend.get_property(99), {4003}),
        ("Backend(unknown)", lambda: qnn.Backend("nobody"), {4004}),
        ("Profile(9)", lambda: qnn.Profile(backend, 9), {1004}),
        ("get_binary_info(b'...')", lambda: qnn.SystemContext().get_binary_info(b"no binary" * 99), {5005}),
    ]


def refuse_wrong_context(world: World, rng: random.Random) -> None:
    """Wrong arguments of backend and context."""
    if not world.live:
        return
    what, do, codes = rng.choice(wrong_context_calls(world.backend, rng.choice(world.live).handle))
    world.call(what, do, must=codes)


# -- graphs ------------------------------------------------------------------------------------------------------------


def compose(world: World, rng: random.Random) -> None:
    """A graph, by hand or from a file, and mostly ready to run."""
    live = [context for context in world.live if len(context.graphs) < _MAX_GRAPHS]
    if not live:
        return create_context(world, rng)
    context, subject = rng.choice(live), rng.choice(world.subjects)
    name, kind = world.fresh(subject.name), rng.choice((TensorMemType.RAW, TensorMemType.MEMHANDLE))
    got = world.call(f"compose {subject.name}", lambda: subject.compose(context.handle, name, kind))
    if not got.done:
        context.unsure = True
        return
    graph = ExpectedGraph(got.value, subject, context)
    context.graphs.append(graph)
    if rng.random() < 0.1:
        world.call("compose once more", lambda: subject.compose(context.handle, name, kind), must=[6003], calm=True)
    if rng.random() < 0.1:
        world.call("execute before finalize", graph.handle.execute, must=[6023], calm=True)
    if world.kind.backend in ("cpu", "htp") and rng.random() < 0.2:
        world.call("set_config(THREADS, 2)", lambda: graph.handle.set_config(qnn.GraphConfig.THREADS, 2))
    if rng.random() < 0.8:
        finalize(world, rng, graph)


def finalize(world: World, rng: random.Random, graph: ExpectedGraph | None = None) -> None:
    """Make a graph ready, with pools where the client brings them."""
    if graph is None:
        waiting = [made for made in world.graphs(usable=False) if not made.finalized and not made.context.dead]
        if not waiting:
            return
        graph = rng.choice(waiting)
    if world.kind.is_lpai and not _give_pools(world, rng, graph):
        return
    profile = None
    if rng.random() < 0.1:
        profile = qnn.Profile(world.backend, rng.choice((1, 2)))
        world.kept.append(profile)
    done = world.call(f"finalize {graph.subject.name}", lambda: graph.handle.finalize(profile))
    if not done.done and not graph.handle.finalized:
        done = world.call("finalize again", graph.handle.finalize, calm=True)
    graph.finalized = graph.handle.finalized
    if done.done and not graph.finalized:
        raise AssertionError("a graph that was finalized says that it is not")
    graph.start()
    if done.done and rng.random() < 0.1:
        world.call("finalize twice", graph.handle.finalize, must=[6024], calm=True)


def _give_pools(world: World, rng: random.Random, graph: ExpectedGraph) -> bool:
    handle = graph.handle
    if rng.random() < 0.1 and not graph.pools and graph.subject.state is not None:
        world.call("finalize without pools", handle.finalize, must=[6022], calm=True)
    for size, option in ((lpai.SCRATCH_MEM_SIZE, lpai.SCRATCH_MEM), (lpai.PERSISTENT_MEM_SIZE, lpai.PERSISTENT_MEM)):
        got = world.call(f"get_property({size.name})", lambda size=size: handle.get_property(size))
        if not got.done:
            return False
        nbytes = got.value
        if nbytes == 0:
            continue
        found = world.pool(rng, nbytes)
        if found is None:
            return False
        given, owner = found
        mem = lpai.Mem(lpai.MemType.DDR, nbytes, given)
        done = world.call(f"set_config({option.name})", lambda option=option, mem=mem: handle.set_config(option, mem))
        # An interrupted one may have been taken.
        graph.pools.append(owner)
        if not done.done:
            return False
        if option is lpai.SCRATCH_MEM:
            graph.scratch = owner
    return True


def replace_scratch(world: World, rng: random.Random) -> None:
    """Other scratch for a graph on LPAI, or memory that cannot be."""
    graphs = [graph for graph in world.graphs() if graph.scratch is not None]
    if not world.kind.is_lpai or not graphs:
        return
    graph = rng.choice(graphs)
    nbytes = graph.handle.get_property(lpai.SCRATCH_MEM_SIZE)
    found = world.pool(rng, nbytes)
    if found is None:
        return
    given, owner = found
    if rng.random() < 0.3:
        mem, option = lpai.Mem(lpai.MemType.DDR, nbytes, given), lpai.SCRATCH_MEM
        wrong = [
            (lpai.Mem(lpai.MemType.TCM, nbytes, given), option, 6000),
            (lpai.Mem(lpai.MemType.DDR, nbytes - 128, given), option, 6000),
            (lpai.Mem(lpai.MemType.DDR, nbytes, None), option, 6000),
            (lpai.Mem(lpai.MemType.DDR, nbytes, 0), option, 6000),
            (lpai.Mem(lpai.MemType.DDR, 1 << 40, given), option, 6000),
            ("scratch", option, 6000),
            (mem, 98765, 6000),
        ]
        if graph.subject.state is not None:
            big = lpai.Mem(lpai.MemType.DDR, nbytes, given)
            wrong.append((big, lpai.PERSISTENT_MEM, 6024 if nbytes >= 256 else 6000))
        mem, option, code = rng.choice(wrong)
        world.call(f"set_config({option})", lambda: graph.handle.set_config(option, mem), must=[code, 6024])
        return
    before, mem = graph.scratch, lpai.Mem(lpai.MemType.DDR, nbytes, given)
    done = world.call("replace scratch", lambda: graph.handle.set_config(lpai.SCRATCH_MEM, mem))
    graph.pools.append(owner)
    if done.done:
        graph.scratch = owner
        # Somebody else may work in it, as graphs of one context share.
        if not any(other.scratch is before for other in world.graphs(usable=False)) and rng.random() < 0.7:
            world.call("close replaced scratch", before.close, calm=True)
            graph.pools.remove(before)
    elif done.interrupted:
        graph.scratch = None


def configure(world: World, rng: random.Random) -> None:
    """Configs of a graph, right and wrong; all or none."""
    graphs = world.graphs()
    if not graphs:
        return
    graph = rng.choice(graphs).handle
    right: list[tuple[Any, Any]] = [(qnn.GraphConfig.PRIORITY, rng.choice(list(qnn.Priority)))]
    if world.kind.is_lpai:
        right += [(lpai.PERF_CFG, lpai.PerfCfg(rng.randint(1, 60))), (lpai.CORE_AFFINITY, lpai.CoreAffinity())]
    wrong = [
        (qnn.GraphConfig.PRIORITY, 7, 6000),
        (qnn.GraphConfig.THREADS, 65, 6000),
        (98765, 1, 6000),
        (htp.REREGISTRATION, 1, 6000),
        (None, None, 6000),
    ]
    if rng.random() < 0.4:
        option, value, code = rng.choice(wrong)
        world.call(f"set_config({option!r})", lambda: graph.set_config({**dict(right), option: value}), must=[code])
        return
    world.call("set_config of several", lambda: graph.set_config(dict(right)))
    for option, value in right:
        found = world.call("get_property of it", lambda option=option: graph.get_property(option), calm=True)
        if world.around is contextlib.nullcontext and found.value != value:
            raise AssertionError(f"{option!r} was set to {value!r} and is {found.value!r}")


def reset(world: World, rng: random.Random) -> None:
    """The initial state again."""
    graphs = world.graphs()
    if graphs:
        graph = rng.choice(graphs)
        done = world.call("reset", graph.handle.reset)
        if done.done:
            graph.start()
        else:
            graph.state = None


def execute(world: World, rng: random.Random) -> None:
    """A graph on memory of any kind, once or several times."""
    graphs = world.graphs()
    if not graphs:
        return compose(world, rng)
    graph = rng.choice(graphs)
    if rng.random() < 0.12:
        return refuse_wrong_execution(world, rng, graph)
    run(world, rng, graph)


def ask(world: World, rng: random.Random) -> None:
    """Ask graphs for their statistics and descriptions."""
    for graph in world.graphs():
        got = world.call("graph.stats", lambda graph=graph: graph.handle.stats)
        if got.done and not graph.least <= got.value.executions <= graph.most:
            raise AssertionError(
                f"{graph.subject.name} counts {got.value.executions} executions, must be {graph.least} to {graph.most}"
            )
        world.call("graph.info", lambda graph=graph: graph.handle.info)


def forget_bindings(world: World, rng: random.Random) -> None:
    """Bindings closed, or dropped for the garbage collector."""
    for graph in world.graphs(usable=False):
        for binding, *_ in graph.bindings:
            if rng.random() < 0.5:
                world.call("binding.close()", binding.close)
        graph.bindings.clear()
    if rng.random() < 0.5:
        gc.collect()


# -- memory ------------------------------------------------------------------------------------------------------------


def register(world: World, rng: random.Random) -> None:
    """Shared memory for a tensor, or what cannot be."""
    graphs = [graph for graph in world.graphs(usable=False) if not graph.context.dead]
    if not graphs:
        return compose(world, rng)
    graph = rng.choice(graphs)
    context, spec = graph.context, rng.choice(graph.subject.tensors)
    if world.kind.backend == "cpu":
        with contextlib.ExitStack() as stack:
            buffer = stack.enter_context(rpcmem.alloc(25, 1, 64))
            descriptor = MemDescriptor((16,), spec.dtype, DescriptorType.ION, fd=buffer.fd)
            world.call("mem_register on cpu", lambda: context.handle.mem_register([descriptor]), must=[1000], calm=True)
        return
    if world.kind.backend == "gpu":
        return _register_opencl(world, rng, context, spec)
    if rng.random() < 0.25:
        return _refuse_wrong_registration(world, rng, context, spec)
    held = _buffer_for(world, rng, spec)
    if held is None:
        return
    places = held.buffer.nbytes // held.step
    offset, kind = rng.randrange(places) * held.step, DescriptorType.CUSTOM
    if not world.kind.is_lpai:
        kind = rng.choice((DescriptorType.ION, DescriptorType.CUSTOM, DescriptorType.DMA_BUF))
    whole = kind is not DescriptorType.CUSTOM
    offset = 0 if whole else offset
    known = [h for h in held.handles if h.alive and h.context is context]
    there = [h for h in known if h.handle is not None]
    if world.kind.is_lpai:
        taken = any(h.offset == offset for h in there)
    else:
        taken = bool(there) if whole else any(h.whole or h.offset == offset for h in there)
    descriptor = _descriptor(world, spec, kind, held.buffer, offset)
    got = world.call(
        f"mem_register({kind.name}, {spec.name}, {offset})",
        lambda: context.handle.mem_register([descriptor]),
        must=[8002] if taken else (),
        may=[8002] if len(there) < len(known) else (),
    )
    if got.done:
        held.handles.append(Registered(got.value[0], context, spec, held, offset, whole))
    elif got.interrupted:
        # It may be registered, and nobody has the handle: the buffer is the context's until that is freed.
        held.handles.append(Registered(None, context, Spec("", spec.dtype, ()), held, offset, True))  # type: ignore[arg-type]


def _register_opencl(world: World, rng: random.Random, context: Ctx, spec: Spec) -> None:
    """Memory that the device and the host share, or what is no memory of the device's."""
    custom = DescriptorType.CUSTOM

    def described(buffer: Any, dims: Any = spec.dims) -> MemDescriptor:
        return MemDescriptor(dims, spec.dtype, custom, custom=gpu.GpuMemInfo(gpu.MemType.OPENCL, buffer))

    free = [held for held in world.buffers if held.step >= spec.nbytes and not held.handles]
    if free and (len(world.buffers) >= _MAX_BUFFERS or rng.random() < 0.5):
        held = rng.choice(free)
    elif len(world.buffers) >= 2 * _MAX_BUFFERS:
        return
    else:
        nbytes = -(-spec.nbytes // _PAGE) * _PAGE
        got = world.call("shared_buffer", lambda: shared_buffer(context.handle.driver.opencl, nbytes))
        if not got.done:
            return
        held = Held(got.value, nbytes)
        world.buffers.append(held)
    if rng.random() < 0.25:
        wrong: list[tuple[str, list[MemDescriptor], set[int]]] = [
            ("no buffer", [described(7)], {8001}),
            ("no structure", [MemDescriptor(spec.dims, spec.dtype, custom)], {8000}),
            ("a descriptor", [MemDescriptor(spec.dims, spec.dtype, DescriptorType.ION, fd=0)], {8005}),
            ("too large", [described(held.buffer, (1 << 20,))], {8004}),
            ("twice", [described(held.buffer), described(held.buffer)], {8002}),
        ]
        what, given, codes = rng.choice(wrong)
        world.call(f"mem_register: {what}", lambda: context.handle.mem_register(given), must=codes)
        return
    got = world.call(f"mem_register({spec.name})", lambda: context.handle.mem_register([described(held.buffer)]))
    if got.done:
        held.handles.append(Registered(got.value[0], context, spec, held, 0, True))
        again = lambda: context.handle.mem_register([described(held.buffer)])  # noqa: E731
        world.call("mem_register once more", again, must=[8002], calm=True)
    elif got.interrupted:
        held.handles.append(Registered(None, context, Spec("", spec.dtype, ()), held, 0, True))  # type: ignore[arg-type]


def _descriptor(world: World, spec: Spec, kind: DescriptorType, buffer: rpcmem.RpcBuffer, offset: int) -> MemDescriptor:
    if kind is not DescriptorType.CUSTOM:
        return MemDescriptor(spec.dims, spec.dtype, kind, fd=buffer.fd or -1, address=buffer.address)
    assert buffer.fd is not None
    custom = lpai.MemInfo(buffer.fd, offset) if world.kind.is_lpai else htp.Descriptor(buffer.nbytes, buffer.fd, offset)
    return MemDescriptor(spec.dims, spec.dtype, kind, custom=custom)


def _buffer_for(world: World, rng: random.Random, spec: Spec) -> Held | None:
    fitting = [held for held in world.buffers if held.step >= spec.nbytes]
    if fitting and (len(world.buffers) >= _MAX_BUFFERS or rng.random() < 0.6):
        return rng.choice(fitting)
    if len(world.buffers) >= 2 * _MAX_BUFFERS:
        return None
    step = -(-spec.nbytes // _PAGE) * _PAGE
    got = world.call("rpcmem.alloc", lambda: rpcmem.alloc(25, 1, step * rng.choice((1, 2, 4))))
    if not got.done:
        return None
    world.buffers.append(Held(got.value, step))
    return world.buffers[-1]


def _refuse_wrong_registration(world: World, rng: random.Random, context: Ctx, spec: Spec) -> None:
    """Nothing of a list is registered when one of it is wrong."""
    buffer = rpcmem.alloc(25, 1, _PAGE)
    ends = os.pipe()
    try:
        custom = DescriptorType.CUSTOM

        def described(fd: int, offset: int = 0, dims: Any = spec.dims) -> MemDescriptor:
            mine = lpai.MemInfo(fd, offset) if world.kind.is_lpai else htp.Descriptor(_PAGE, fd, offset)
            return MemDescriptor(dims, spec.dtype, custom, custom=mine)

        small = (1, 4)
        wrong: list[tuple[str, Any, set[int]]] = [
            ("no fd", [described(-1)], {8000}),
            ("a pipe", [described(ends[0])], {8000}),
            ("a closed fd", [described(1 << 20)], {8000}),
            ("past its end", [described(buffer.fd, _PAGE, small)], {8004}),
            ("negative", [described(buffer.fd, -4, small)], {8000}),
            ("too large", [described(buffer.fd, 0, (1 << 20,))], {8004}),
            ("no dimension", [described(buffer.fd, 0, (0,))], {8004}),
            ("no structure", [MemDescriptor(small, spec.dtype, custom)], {8000}),
            ("unknown type", [MemDescriptor(small, spec.dtype, 9, fd=buffer.fd)], {8005}),
            ("twice", [described(buffer.fd, 0, small), described(buffer.fd, 0, small)], {8002}),
            ("one right, one wrong", [described(buffer.fd, 0, small), described(-1)], {8000}),
            ("nothing", [], {8000}),
            ("no list", 5, {8000}),
        ]
        what, given, codes = rng.choice(wrong)
        world.call(f"mem_register: {what}", lambda: context.handle.mem_register(given), must=codes)
        world.call("mem_deregister([7])", lambda: context.handle.mem_deregister([7]), must=[8001], calm=True)
    finally:
        os.close(ends[0])
        os.close(ends[1])
        # Nothing was registered, so nothing holds it; what an interrupted call has registered lives with its context.
        with contextlib.suppress(isthmus.QnnError):
            buffer.close()


def deregister(world: World, rng: random.Random) -> None:
    """The end of some handles, and of one that has ended before."""
    known = [(held, h) for held in world.buffers for h in held.handles if h.alive and h.handle and not h.context.dead]
    if not known:
        return register(world, rng)
    held, chosen = rng.choice(known)
    done = world.call("mem_deregister", lambda: chosen.context.handle.mem_deregister([chosen.handle]))
    if done.interrupted and chosen.handle.alive:
        world.call("mem_deregister again", lambda: chosen.context.handle.mem_deregister([chosen.handle]), calm=True)
    chosen.ended = True
    held.handles.remove(chosen)
    again = lambda: chosen.context.handle.mem_deregister([chosen.handle])  # noqa: E731
    world.call("mem_deregister twice", again, must=[8001], calm=True)


def close_buffer(world: World, rng: random.Random) -> None:
    """The end of a shared buffer, refused while it is registered; or nobody has it any more."""
    if not world.buffers:
        return
    held = rng.choice(world.buffers)
    held.handles[:] = [handle for handle in held.handles if not handle.context.freed]
    unsure = any(handle.handle is None for handle in held.handles)
    if world.kind.backend == "gpu" and held.in_use:
        # A device works in the host's own pages, which must outlast what is registered of them.
        return
    if rng.random() < 0.3:
        world.last.append(f"{world.name} drop a buffer")
        world.buffers.remove(held)
        # Memory that a context has registered stays registered.
        return
    if unsure:
        world.call("buffer.close(), perhaps registered", held.buffer.close, may=[1005])
    else:
        done = world.call("buffer.close()", held.buffer.close, must=[1005] if held.in_use else ())
        if done.interrupted:
            world.call("buffer.close() again", held.buffer.close, may=[1005], calm=True)
    if held.buffer.is_closed:
        world.buffers.remove(held)
        world.call("view of a closed buffer", lambda: held.buffer.view(np.uint8, (1,)), must=[1004], calm=True)


def close_pool(world: World, rng: random.Random) -> None:
    """Pools of a graph are not closed before its context ends."""
    graphs = [graph for graph in world.graphs() if graph.scratch is not None]
    if graphs and world.kind.is_lpai:
        world.call("close scratch in use", rng.choice(graphs).scratch.close, must=[1005])


def allocate_wrong(world: World, rng: random.Random) -> None:
    """Memory that there is not."""
    wrong: list[tuple[str, Callable[[], Any], set[int]]] = [
        ("host(-1)", lambda: memory.host(-1), {1004}),
        ("host(1 << 62)", lambda: memory.host(1 << 62), {1002}),
        ("host(8, 3)", lambda: memory.host(8, 3), {1004}),
        ("rpcmem.alloc(0)", lambda: rpcmem.alloc(25, 1, 0), {1002}),
        ("rpcmem.alloc(1 << 31)", lambda: rpcmem.alloc(25, 1, 1 << 31), {1002}),
        ("rpcmem.alloc2(1 << 60)", lambda: rpcmem.alloc2(25, 1, 1 << 60), {1002}),
        ("rpcmem.alloc2('a')", lambda: rpcmem.alloc2("a", 1, 1), {1004}),
        ("tcm 3 MB", lambda: memory.current("tcm").allocate(3_000_000), {1002, 1011}),
    ]
    what, do, codes = rng.choice(wrong)
    world.call(what, do, must=codes)


# -- binaries and sessions ---------------------------------------------------------------------------------------------


def make_binary(world: World, rng: random.Random) -> None:
    """A context as a binary, described without a backend."""
    if not world.live:
        return
    context = rng.choice(world.live)
    whole = all(graph.finalized for graph in context.graphs)
    got = world.call(
        "get_binary",
        context.handle.get_binary,
        must=() if whole or context.unsure else [5003],
        may=[5003, 6022] if context.unsure else (),
    )
    if not got.done:
        return
    info = world.call("get_binary_info", lambda: qnn.SystemContext().get_binary_info(got.value))
    if info.done and [graph.name for graph in info.value.graphs] != list(context.handle.graphs):
        raise AssertionError(f"a binary describes {info.value.graphs}, its context has {list(context.handle.graphs)}")
    world.binaries = [*world.binaries[-1:], (got.value, [(g.handle.name, g.subject) for g in context.graphs])]


def restore(world: World, rng: random.Random) -> None:
    """A context out of a binary, whole or damaged."""
    if not world.binaries or len(world.live) >= _MAX_CONTEXTS:
        return make_binary(world, rng)
    binary, known = rng.choice(world.binaries)
    if rng.random() < 0.3:
        damaged = bytearray(binary)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        given = bytes(damaged) if rng.random() < 0.7 else binary[: rng.randrange(len(binary))]
        world.call("restore a damaged binary", lambda: world.backend.create_context_from_binary(given), must=_DAMAGED)
        return
    got = world.call("restore a binary", lambda: world.backend.create_context_from_binary(binary))
    if not got.done:
        return
    context = Ctx(got.value)
    world.contexts.append(context)
    for name, subject in known:
        found = world.call(f"retrieve {subject.name}", lambda name=name: context.handle.retrieve(name), calm=True)
        graph = ExpectedGraph(found.value, subject, context, finalized=found.value.finalized)
        graph.start()
        context.graphs.append(graph)
    # Names of the binary may come again in this context.
    for graph in list(context.graphs):
        if not graph.finalized:
            finalize(world, rng, graph)


def session(world: World, rng: random.Random) -> None:
    """A model file run the short way, closed or forgotten."""
    subject: Subject = rng.choice([subject for subject in world.subjects if subject.path is not None])
    io = rng.choice((None, "raw", "memhandle")) if world.kind.backend in ("htp", "gpu") else None
    kind = world.kind

    def work() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        feeds = feeds_for(subject, rng)
        opened = isthmus.Session(subject.path, kind.backend, config=kind.config, io=io)
        try:
            return feeds, opened.run(feeds)
        finally:
            if rng.random() < 0.7:
                opened.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        got = world.call(f"Session({subject.name}, {io})", work)
        if not got.done:
            return
    feeds, results = got.value
    expected, _ = subject.answer(feeds, None)
    for name, array in expected.items():
        problem = subject.wrong(name, array, results[name])
        if problem:
            raise AssertionError(f"session: {problem}")


def allocated(world: World, rng: random.Random) -> None:
    """A graph in memory that its backend chooses."""
    if not world.live:
        return create_context(world, rng)
    context, subject = rng.choice(world.live), rng.choice(world.subjects)
    name = world.fresh(subject.name)
    got = world.call(f"compose {subject.name}", lambda: subject.compose(context.handle, name, TensorMemType.RAW))
    if not got.done:
        context.unsure = True
        return
    graph = ExpectedGraph(got.value, subject, context)
    context.graphs.append(graph)
    got = world.call("graph.allocate()", graph.handle.allocate)
    graph.finalized = graph.handle.finalized
    graph.start()
    if not got.done:
        return
    given = got.value
    world.kept.append(given)
    feeds = feeds_for(subject, rng)
    for name_, array in feeds.items():
        given.inputs[name_][...] = array
    done = world.call("execute allocated", given.binding.execute)
    counted(graph, done)
    if done.done:
        compare(graph, feeds, dict(given.outputs))
