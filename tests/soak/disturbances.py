"""What happens to a program while it runs: its accelerator dies or stops, it forks, memory shrinks, threads meet."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError

from calls import compose, execute, register, replace_scratch
from execution import Place, feeds_for, fill, padded, tensors
from subjects import Subject
from world import FREED, GONE, ExpectedGraph, Failure, World

from isthmus import memory, qnn
from isthmus.errors import Code, QnnError
from isthmus.qnn import DescriptorType, MemDescriptor, htp, lpai

_SECONDS_FOR_A_CHILD = 60
_SECONDS_FOR_A_CROWD = 120.0
_RIGHT = 0


def _victim(world: World, rng: random.Random) -> tuple[int, qnn.Device | None] | None:
    """An accelerator of this program's, and the device that it belongs to."""
    if not world.kind.remote:
        return None
    device = rng.choice((None, *(device for device in world.devices if device.alive)))
    pid = world.pid(device)
    return None if pid is None else (pid, device)


def kill(world: World, rng: random.Random) -> None:
    """The accelerator dies between calls: all that lived there answers 1007, can be freed, and made again."""
    victim = _victim(world, rng)
    if victim is None:
        return
    world.kill(*victim)
    for context in [context for context in world.contexts if context.dead and not context.freed]:
        for graph in [graph for graph in context.graphs if graph.finalized][:2]:
            given = tensors(graph.subject, _private(world, graph.subject))
            if not world.kind.in_tcm:
                world.call("execute, dead", lambda graph=graph, given=given: graph.handle.execute(*given), must=GONE)
    _free_dead(world)
    if rng.random() < 0.7:
        compose(world, rng)
        execute(world, rng)


def kill_during(world: World, rng: random.Random) -> None:
    """The accelerator dies while calls are under way."""
    victim = _victim(world, rng)
    if victim is None or not world.graphs():
        return
    pid, device = victim
    world.weather.note("kills")
    world.last.append(f"{world.name} kill {pid} soon")
    killer = threading.Timer(10 ** rng.uniform(-5, -1.5), os.kill, (pid, signal.SIGKILL))
    world.also = GONE
    killer.start()
    try:
        for _ in range(rng.randint(1, 4)):
            rng.choice((execute, execute, register, compose, replace_scratch))(world, rng)
    finally:
        killer.join()
        world.mourn(pid, device)
    # A context that was made on its successor is alive.
    for context in world.contexts:
        context.dead = context.dead and context.device is device
    _free_dead(world)


def stop(world: World, rng: random.Random) -> None:
    """The accelerator stands still for a while; calls wait for it, and are right."""
    victim = _victim(world, rng)
    if victim is None:
        return
    pid, _ = victim
    world.weather.note("stops")
    os.kill(pid, signal.SIGSTOP)
    waker = threading.Timer(10 ** rng.uniform(-2, -0.5), os.kill, (pid, signal.SIGCONT))
    waker.start()
    try:
        rng.choice((execute, execute, register, compose))(world, rng)
    finally:
        waker.join()


# -- memory that shrinks -----------------------------------------------------------------------------------------------


def cut(world: World, rng: random.Random) -> None:
    """The client makes shared memory smaller under an execution.

    A registration seals what it can. Other memory is refused by the backend that works in the client's own process; of
    it, an accelerator in a process of its own dies, or answers that it is too small.
    """
    graphs = [graph for graph in world.graphs() if graph.context.device is None]
    if not graphs or world.kind.in_tcm or world.kind.backend not in ("htp", "lpai"):
        return
    graph = rng.choice(graphs)
    subject, context, pid = graph.subject, graph.context, world.pid(None)
    spec = rng.choice(subject.tensors)
    places, sealable = _private(world, subject), rng.random() < 0.5
    fill(subject, places, feeds_for(subject, rng))
    fd = os.memfd_create("cut", os.MFD_ALLOW_SEALING if sealable else 0)
    try:
        os.ftruncate(fd, padded(spec.nbytes))
        custom = lpai.MemInfo(fd, 0) if world.kind.is_lpai else htp.Descriptor(padded(spec.nbytes), fd, 0)
        descriptor = MemDescriptor(spec.dims, spec.dtype, DescriptorType.CUSTOM, custom=custom)
        refused = [] if sealable or world.kind.remote else [8000]
        name = f"mem_register, {'sealable' if sealable else 'not sealable'}"
        got = world.call(name, lambda: context.handle.mem_register([descriptor]), must=refused, calm=True)
        if not got.done:
            return
        places[spec.name].tensor = qnn.ClientTensor(spec.name, mem_handle=got.value[0])
        given = tensors(subject, places)
        world.weather.note("cuts")
        cutter = threading.Thread(target=_shrink, args=(fd, 10 ** rng.uniform(-5, -2)))
        cutter.start()
        codes = frozenset() if sealable else GONE | {int(Code.MEM_INVALID_SHAPE)}
        run = lambda: graph.handle.execute(*given)  # noqa: E731
        outcomes = [world.call("execute, being cut", run, may=codes, calm=True) for _ in range(20)]
        cutter.join()
        outcomes.append(world.call("execute, cut", run, must=codes, calm=True))
        graph.least += sum(outcome.done for outcome in outcomes)
        graph.most += len(outcomes)
        graph.state = None
        world.call("mem_deregister", lambda: context.handle.mem_deregister(got.value), may=GONE, calm=True)
        size = os.fstat(fd).st_size
    finally:
        os.close(fd)
    if bool(size) is not sealable:
        raise Failure(f"memory has {size} bytes after it was cut, sealable: {sealable}")
    if any(outcome.code in GONE for outcome in outcomes):
        assert pid is not None
        world.mourn(pid, None)
        _free_dead(world)


def _shrink(fd: int, seconds: float) -> None:
    """Make a file empty after a while, if that is allowed."""
    time.sleep(seconds)
    with contextlib.suppress(PermissionError):
        os.ftruncate(fd, 0)


def _free_dead(world: World) -> None:
    """Free contexts whose accelerator has died."""
    for context in [context for context in world.contexts if context.dead and not context.freed]:
        world.call("context.free(), dead", context.handle.free, calm=True)
        context.freed = True
        world.contexts.remove(context)


def _private(world: World, subject: Subject) -> dict[str, Place]:
    """Private memory for every tensor, allocated without disturbance."""
    places = {}
    for spec in subject.tensors:
        buffer = memory.host(padded(spec.nbytes), 128)
        tensor = qnn.ClientTensor(spec.name, buffer, nbytes=spec.nbytes)
        view = lambda buffer=buffer, spec=spec: buffer.view(spec.dtype.numpy, spec.dims)  # noqa: E731
        places[spec.name] = Place(tensor, view, buffer)
    return places


# -- forks -------------------------------------------------------------------------------------------------------------


def fork(world: World, rng: random.Random) -> None:
    """A child: it is refused what is its parent's, frees all, and disturbs nobody."""
    graphs = world.graphs()
    if not graphs or world.kind.in_tcm:
        return
    graph = rng.choice(graphs)
    places = _private(world, graph.subject)
    feeds = feeds_for(graph.subject, rng)
    fill(graph.subject, places, feeds)
    frees = rng.random() < 0.5
    world.weather.note("forks")
    world.last.append(f"{world.name} fork")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _in_child(writing, lambda: _child(world, graph, places, frees))
    os.close(writing)
    with open(reading, errors="replace") as reported:
        complaint = reported.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != _RIGHT:
        raise Failure(f"a forked child ended with {status}: {complaint or 'it reported nothing'}")
    given = tensors(graph.subject, places)
    done = world.call("execute after a fork", lambda: graph.handle.execute(*given), calm=True)
    graph.least += done.done
    graph.most += 1
    graph.state = None
    if done.done and graph.subject.state is None:
        expected, _ = graph.subject.answer(feeds, None)
        for name, array in expected.items():
            problem = graph.subject.wrong(name, array, places[name].view())
            if problem:
                raise AssertionError(f"after a fork: {problem}")


def _in_child(writing: int, work: Callable[[], None]) -> None:
    """Do something in a forked child, and end it."""
    code = 1
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        # A dump of all threads, and then the end that the signal has by default.
        faulthandler.register(signal.SIGALRM, file=writing, chain=True)
        signal.alarm(_SECONDS_FOR_A_CHILD)
        work()
        code = _RIGHT
    except BaseException as problem:
        os.write(writing, f"{type(problem).__name__}: {problem}".encode())
    finally:
        os._exit(code)


def _child(world: World, graph: ExpectedGraph, places: dict[str, Place], frees: bool) -> None:
    given = tensors(graph.subject, places)
    try:
        graph.handle.execute(*given)
    except QnnError as refusal:
        if int(refusal.code) not in GONE:
            raise
    else:
        raise AssertionError("a child executed its parent's graph")
    if frees:
        for context in world.contexts:
            context.handle.free()
        world.backend.free()


# -- threads -----------------------------------------------------------------------------------------------------------


def crowd(world: World, rng: random.Random) -> None:
    """Threads that execute in one context while something about it changes."""
    graphs = [graph for graph in world.graphs() if graph.subject.state is None]
    if not graphs or world.kind.in_tcm:
        return
    chosen = [rng.choice(graphs) for _ in range(rng.randint(2, 3))]
    ends = rng.random() < 0.25
    problems: list[BaseException] = []
    work = [_Member(world, random.Random(rng.random()), graph, ends, problems) for graph in chosen]
    moment = world.weather.moment()
    world.last.append(f"{world.name} crowd of {len(work)} on {[graph.subject.name for graph in chosen]}")
    threads = [threading.Thread(target=member.run, daemon=True) for member in work]
    for thread in threads:
        thread.start()
    time.sleep(rng.choice((0, 0.001, 0.005)))
    if ends:
        context = chosen[0].context
        world.call("context.free() in a crowd", context.handle.free, calm=True)
        context.freed = True
        world.contexts.remove(context)
    else:
        world.crowded = True
        try:
            rng.choice((replace_scratch, register, execute, compose, _collect))(world, rng)
        except QnnError as refusal:
            # Memory of the step's own was scarce; the crowd is counted all the same.
            if int(refusal.code) not in world.weather.explained(moment):
                raise
        finally:
            world.crowded = False
    deadline = time.monotonic() + _SECONDS_FOR_A_CROWD
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            faulthandler.dump_traceback()
            raise Failure("a thread of a crowd did not end")
    # The step beside the crowd may have filled the queue.
    explained = world.weather.explained(moment) | (FREED if ends else frozenset())
    for problem in problems:
        if ends and isinstance(problem, CancelledError):
            # What waits when its context is freed is cancelled.
            continue
        if not isinstance(problem, QnnError) or int(problem.code) not in explained:
            raise Failure(f"in a crowd{', its context freed,' if ends else ''}: {problem!r}") from problem
        world.refusals[int(problem.code)] += 1
    for graph, member in zip(chosen, work, strict=True):
        graph.least += member.done
        graph.most += member.asked
        world.calls += member.asked


class _Member:
    """One thread of a crowd: it executes a graph on memory of its own, and looks at every result."""

    def __init__(
        self, world: World, rng: random.Random, graph: ExpectedGraph, ends: bool, problems: list[BaseException]
    ) -> None:
        self.asked = self.done = 0
        self._rng, self._graph, self._problems = rng, graph, problems
        self._places = _private(world, graph.subject)
        self._times = rng.choice((5, 20, 60)) if ends else rng.choice((5, 20))

    def run(self) -> None:
        """Execute until it has been refused, or often enough."""
        subject = self._graph.subject
        try:
            execute = self._execute()
            for _ in range(self._times):
                feeds = feeds_for(subject, self._rng)
                fill(subject, self._places, feeds)
                self.asked += 1
                execute()
                self.done += 1
                expected, _ = subject.answer(feeds, None)
                for name, array in expected.items():
                    problem = subject.wrong(name, array, self._places[name].view())
                    if problem:
                        raise AssertionError(problem)
        except BaseException as problem:
            self._problems.append(problem)

    def _execute(self) -> Callable[[], None]:
        inputs, outputs = tensors(self._graph.subject, self._places)
        if self._rng.random() < 0.5:
            return lambda: self._graph.handle.execute(inputs, outputs)
        if self._rng.random() < 0.5:
            return lambda: self._graph.handle.execute_async(inputs, outputs).result()
        return self._graph.handle.bind(inputs, outputs).execute


def _collect(world: World, rng: random.Random) -> None:
    import gc

    with contextlib.suppress(IndexError):
        world.buffers.pop(rng.randrange(len(world.buffers) or 1))
    gc.collect()
