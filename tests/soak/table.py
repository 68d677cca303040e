"""Programs that call the function table in C: libraries that are built, and loaded into this process.

They have steps of their own, since in C there are handles, structures and codes only. A code becomes the `QnnError`
that it stands for, so that `World.call` judges it as it judges every call.
"""

from __future__ import annotations

import ctypes
import random
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from capi.qnn_calls import Client, at, doubling, in_handle, opened
from world import Outcome, World

from isthmus.backends.htp import headers as htp_headers
from isthmus.cabi import objects, types
from isthmus.capi.installation import install
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, TensorType
from isthmus.memory import rpcmem

_MAX_CONTEXTS, _MAX_GRAPHS = 3, 3
_WIDTHS = (8, 4096)
_PAGE = 4096
_SECONDS = 120.0
_INTERRUPTED = frozenset({int(Code.COMMON_SYSTEM), int(Code.COMMON_GENERAL)})
"""What a call answers in C that the handler of a signal has raised in."""


@lru_cache
def _libraries() -> tempfile.TemporaryDirectory[str]:
    """The folder with the libraries, which are built once."""
    folder = tempfile.TemporaryDirectory()
    install(folder.name)
    return folder


def client_of(library: str) -> Client:
    """A client of a library, with structures of its own.

    Raises
    ------
    QnnError
        If the libraries are not built and there is no compiler.
    """
    return Client(Path(_libraries().name, library))


def warm_up(library: str) -> None:
    """Load and compile what programs need."""
    client = client_of(library)
    back_end, context = opened(client)
    for width in _WIDTHS:
        graph, x, y = doubling(client, context, f"warm {width}")
        arrays = np.zeros((2, 1, 8), np.float32)
        client.execute(graph, [at(x, arrays[0])], [at(y, arrays[1])])
    client.do("backendFree", back_end)


@dataclass(eq=False)
class Twice:
    """A graph y = x + x, and its tensors."""

    handle: int
    x: types.Tensor
    y: types.Tensor
    width: int
    name: bytes


@dataclass(eq=False)
class Context:
    """A context and its graphs; one that is restored gives no binary of HTP."""

    handle: int
    graphs: list[Twice] = field(default_factory=list)
    is_restored: bool = False


class TableWorld(World):
    """What one program has made through a table."""

    def _open(self) -> Any:
        self.client = client_of(self.kind.table)
        self.opened: list[Context] = []
        return None

    def code(
        self, name: str, *arguments: Any, must: tuple[int, ...] = (), may: tuple[int, ...] = (), calm: bool = False
    ) -> Outcome:
        """Call a function of the table."""
        interrupts = self.weather.counts["interrupts"]

        def do() -> None:
            error = int(getattr(self.client, name)(*arguments))
            if error:
                raise QnnError(Code(error), name, self.client.reason(error))

        try:
            done = self.call(name, do, must=must, may=(*may, *_INTERRUPTED), calm=calm)
        finally:
            sent = self.weather.counts["interrupts"] - interrupts
        if done.code in _INTERRUPTED and done.code not in may:
            if not sent:
                raise AssertionError(f"{name} answers {done.code}, and nothing has interrupted it")
            return Outcome(interrupted=True)
        return done

    def make(self, name: str, *arguments: Any, then: tuple[Any, ...] = (), **how: Any) -> int | None:
        """Call a function that makes a handle; `then` is what it takes besides where to put that."""
        out = ctypes.c_void_p()
        done = self.code(name, *arguments, ctypes.byref(out), *then, **how)
        return out.value if done.done else None

    def end(self, rng: random.Random) -> None:
        """Free contexts, or leave them to the end of the back end."""
        for context in self.opened:
            if rng.random() < 0.5:
                self.code("contextFree", context.handle, None)
        self.opened.clear()
        if self.backend is not None:
            self.code("backendFree", self.backend)
            self.backend = None
        self.client._kept.clear()


Step = Callable[[TableWorld, random.Random], Any]


def backend(world: TableWorld, rng: random.Random) -> bool:
    """The back end, made when it is first needed."""
    if world.backend is None:
        world.backend = world.make("backendCreate", None, None)
    return world.backend is not None


def create_context(world: TableWorld, rng: random.Random) -> None:
    """A context, or the end of one."""
    if not backend(world, rng):
        return None
    if len(world.opened) >= _MAX_CONTEXTS:
        return free_context(world, rng)
    made = world.make("contextCreate", world.backend, None, None)
    if made is not None:
        world.opened.append(Context(made))
    return None


def free_context(world: TableWorld, rng: random.Random) -> None:
    """The end of a context; nothing of it can be used afterwards."""
    if not world.opened:
        return
    context = world.opened.pop(rng.randrange(len(world.opened)))
    done = world.code("contextFree", context.handle, None)
    if done.interrupted:
        # It may be half freed; to free it once more ends it, if there is anything left.
        world.code("contextFree", context.handle, None, may=(5002,), calm=True)
    world.code("contextFree", context.handle, None, must=(5002,), calm=True)
    for graph in context.graphs[:1]:
        world.code("graphFinalize", graph.handle, None, None, must=(6001,), calm=True)


def compose(world: TableWorld, rng: random.Random) -> None:
    """A graph, and mostly ready to run."""
    open_ = [context for context in world.opened if len(context.graphs) < _MAX_GRAPHS]
    if not open_:
        return create_context(world, rng)
    context, width, name = rng.choice(open_), rng.choice(_WIDTHS), world.fresh("twice").encode()
    graph = world.make("graphCreate", context.handle, name, None)
    if graph is None:
        return None
    x = world.client.tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, width))
    y = world.client.tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, width))
    for tensor in (x, y):
        if not world.code("tensorCreateGraphTensor", graph, ctypes.byref(tensor)).done:
            return None
    if rng.random() < 0.1:
        world.code("tensorCreateGraphTensor", graph, ctypes.byref(x), must=(7002, 7003), calm=True)
    if not world.code("graphAddNode", graph, world.client.operation("add", "ElementWiseAdd", [x, x], [y])).done:
        return None
    if world.code("graphFinalize", graph, None, None).done:
        context.graphs.append(Twice(graph, x, y, width, name))
    return None


def _graph(world: TableWorld, rng: random.Random) -> tuple[Context, Twice] | None:
    known = [(context, graph) for context in world.opened for graph in context.graphs]
    if not known:
        compose(world, rng)
        return None
    return rng.choice(known)


def execute(world: TableWorld, rng: random.Random) -> None:
    """A graph on the client's memory, several times the same or another each time."""
    found = _graph(world, rng)
    if found is None:
        return
    _, graph = found
    x, y = _arrays(graph.width)
    profile = None
    if rng.random() < 0.15:
        profile = world.make("profileCreate", world.backend, rng.choice((1, 2)), calm=True)
    for _ in range(rng.choice((1, 2, 20))):
        if rng.random() < 0.2:
            x, y = _arrays(graph.width)
        x[:] = rng.randrange(100)
        y[:] = -1
        given, made = (types.Tensor * 1)(at(graph.x, x)), (types.Tensor * 1)(at(graph.y, y))
        if not world.code("graphExecute", graph.handle, given, 1, made, 1, profile, None).done:
            break
        if not (y == 2 * x).all():
            raise AssertionError(f"graphExecute makes {y[0, 0]} of {x[0, 0]}")
    if profile is not None:
        world.code("profileFree", profile, calm=True)


def _arrays(width: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((1, width), np.float32), np.zeros((1, width), np.float32)


def execute_async(world: TableWorld, rng: random.Random) -> None:
    """Executions that tell of their end."""
    found = _graph(world, rng)
    if found is None:
        return
    _, graph = found
    x, y = _arrays(graph.width)
    x[:] = rng.randrange(100)
    reported: list[int] = []
    one = threading.Semaphore(0)

    @objects.NOTIFY
    def notify(parameter: int, error: int) -> None:
        reported.append(error)
        one.release()

    given, made = (types.Tensor * 1)(at(graph.x, x)), (types.Tensor * 1)(at(graph.y, y))
    asked = 0
    for _ in range(rng.choice((1, 3))):
        done = world.code("graphExecuteAsync", graph.handle, given, 1, made, 1, None, None, notify, 0, calm=True)
        asked += done.done
    for _ in range(asked):
        if not one.acquire(timeout=_SECONDS):
            raise AssertionError("an execution tells nothing of its end")
    if any(reported) or not (y == 2 * x).all():
        raise AssertionError(f"graphExecuteAsync tells {reported}, and makes {y[0, 0]} of {x[0, 0]}")


def register(world: TableWorld, rng: random.Random) -> None:
    """Shared memory on HTP, executed on and deregistered; elsewhere it is refused."""
    found = _graph(world, rng)
    if found is None:
        return
    context, graph = found
    step = -(-4 * graph.width // _PAGE) * _PAGE
    buffer = rpcmem.alloc(25, 1, 2 * step)
    handles: list[int] = []
    for offset in (0, step):
        shared = htp_headers.MEM_DESCRIPTOR(1, buffer.nbytes)
        shared.sharedBufferConfig.fd, shared.sharedBufferConfig.offset = buffer.fd, offset
        shape = objects.MemShape(2, (ctypes.c_uint32 * 2)(1, graph.width), None)
        descriptor = objects.MemDescriptor(shape, int(DataType.FLOAT_32), 2)
        descriptor.customInfo = ctypes.addressof(shared)
        must = () if world.kind.backend == "htp" else (8005,)
        handle = world.make("memRegister", context.handle, ctypes.byref(descriptor), 1, must=must)
        if handle is None:
            break
        handles.append(handle)
    if len(handles) == 2:
        x, y = (buffer.view(np.float32, (graph.width,), offset) for offset in (0, step))
        x[:] = rng.randrange(100)
        given = (types.Tensor * 1)(in_handle(graph.x, handles[0]))
        made = (types.Tensor * 1)(in_handle(graph.y, handles[1]))
        done = world.code("graphExecute", graph.handle, given, 1, made, 1, None, None)
        if done.done and not (y == 2 * x).all():
            raise AssertionError(f"graphExecute on shared memory makes {y[0]} of {x[0]}")
    for handle in handles:
        listed = (ctypes.c_void_p * 1)(handle)
        if world.code("memDeRegister", listed, 1).interrupted:
            world.code("memDeRegister", listed, 1, may=(8001,), calm=True)
        world.code("memDeRegister", listed, 1, must=(8001,), calm=True)


def binary(world: TableWorld, rng: random.Random) -> None:
    """A context as a binary, and a context out of it, whole or damaged."""
    found = _graph(world, rng)
    if found is None or len(world.opened) >= _MAX_CONTEXTS:
        return
    context, graph = found
    # A graph that was interrupted on its way cannot be told from one that is not finalized yet.
    size, unready = ctypes.c_uint64(), (5003, 6022, 6023, *((1005,) if context.is_restored else ()))
    if not world.code("contextGetBinarySize", context.handle, ctypes.byref(size), may=unready).done:
        return
    content = ctypes.create_string_buffer(size.value)
    if not world.code("contextGetBinary", context.handle, content, len(content), ctypes.byref(size), may=unready).done:
        return
    arguments = (world.backend, None, None, content, len(content))
    if rng.random() < 0.3:
        content[rng.randrange(len(content))] = rng.randrange(256)
        world.make("contextCreateFromBinary", *arguments, may=(5000, 5004, 5005, 5008, 1008), calm=True, then=(None,))
        return
    restored = world.make("contextCreateFromBinary", *arguments, then=(None,))
    if restored is None:
        return
    world.opened.append(Context(restored, is_restored=True))
    again = world.make("graphRetrieve", restored, graph.name, calm=True)
    if again is not None:
        world.opened[-1].graphs.append(Twice(again, graph.x, graph.y, graph.width, graph.name))


def refuse(world: TableWorld, rng: random.Random) -> None:
    """Handles and pointers that are nobody's."""
    out = ctypes.byref(ctypes.c_void_p())
    wrong: list[tuple[str, tuple[Any, ...], tuple[int, ...]]] = [
        ("contextCreate", (1, None, None, out), (4011, 5000, 5002)),
        ("contextFree", (3, None), (5002,)),
        ("graphCreate", (5, b"g", None, out), (6000, 5002, 6001)),
        ("graphFinalize", (7, None, None), (6001,)),
        ("graphRetrieve", (9, b"g", out), (6000, 5002, 6001)),
        ("profileFree", (11,), (12000,)),
        ("memDeRegister", ((ctypes.c_void_p * 1)(13), 1), (8001,)),
        ("backendFree", (15,), (4011,)),
    ]
    name, arguments, codes = rng.choice(wrong)
    world.code(name, *arguments, must=codes)


STEPS: dict[Step, float] = {
    create_context: 3,
    free_context: 2,
    compose: 8,
    execute: 20,
    execute_async: 4,
    register: 6,
    binary: 3,
    refuse: 3,
}
"""What a step may be, and how often."""
