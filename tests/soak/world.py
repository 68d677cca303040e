"""The world of one program: the objects it has made, what is known of each, and the one way through which it calls.

`World.call` makes a call, writes it down, and judges what came of it: a value, a refusal that the program expects at
this place or that the weather explains, or an interrupt that was sent. Anything else is a failure of the soak.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from subjects import Spec, Subject
from weather import INTERRUPTS, Weather

from isthmus import memory, qnn
from isthmus.errors import Code, QnnError
from isthmus.memory import rpcmem
from isthmus.qnn import htp, lpai

GONE = frozenset({int(Code.COMMON_SYSTEM_COMMUNICATION)})
FREED = frozenset({int(Code.CONTEXT_INVALID_HANDLE), int(Code.GRAPH_INVALID_HANDLE)})
_SECONDS_TO_DIE = 10.0
_REMEMBERED = 40


@dataclass(frozen=True)
class Kind:
    """A backend with a configuration.

    Parameters
    ----------
    has_place
        Whether a graph has memory of its own for inputs and outputs.
    remote
        Whether graphs run in an accelerator process.
    table
        The library in C that it is called through; none for Python's objects.
    interpreted
        Whether it is called by interpreters of LiteRT, through a delegate.
    """

    backend: str
    config: Any = None
    has_place: bool = True
    remote: bool = False
    table: str = ""
    interpreted: bool = False

    @property
    def is_lpai(self) -> bool:
        """Whether the client brings the pools."""
        return self.backend == "lpai"

    @property
    def in_tcm(self) -> bool:
        """Whether inputs and outputs lie in TCM."""
        return "tcm" in str(self.config)


def _lpai(environment: str, **graph: Any) -> dict[str, Any]:
    return {"lpai_backend": {"target_env": environment}, "lpai_graph": graph}


KINDS = {
    "cpu": Kind("cpu"),
    "htp": Kind("htp", has_place=False, remote=True),
    "lpai-x86": Kind("lpai", _lpai("x86")),
    "lpai-out": Kind("lpai", _lpai("x86", prepare={"exclude_io": True}), has_place=False),
    "lpai-adsp": Kind("lpai", _lpai("adsp")),
    "lpai-tcm": Kind("lpai", _lpai("adsp", execute={"mem_type": "tcm"})),
    "lpai-arm": Kind("lpai", _lpai("arm"), remote=True),
    "gpu": Kind("gpu", has_place=False),
    "c-cpu": Kind("cpu", table="libQnnCpu.so"),
    "c-htp": Kind("htp", has_place=False, remote=True, table="libQnnHtp.so"),
    "litert-cpu": Kind("cpu", interpreted=True),
    "litert-htp": Kind("htp", has_place=False, remote=True, interpreted=True),
}


class Failure(Exception):
    """Something that must not happen."""


@dataclass
class Outcome:
    """What came of a call: its value, the code of its refusal, or that it was interrupted."""

    value: Any = None
    code: int | None = None
    interrupted: bool = False

    @property
    def done(self) -> bool:
        """Whether the call returned a value."""
        return self.code is None and not self.interrupted


@dataclass(eq=False)
class Held:
    """A shared buffer, the size of its places, and what is registered in it."""

    buffer: rpcmem.RpcBuffer
    step: int
    handles: list[Registered] = field(default_factory=list)

    @property
    def in_use(self) -> bool:
        """Whether something is registered in it."""
        return any(handle.alive for handle in self.handles)


@dataclass(eq=False)
class Registered:
    """A memory handle: for which tensor, in which buffer, where."""

    handle: qnn.MemHandle
    context: Ctx
    spec: Spec
    held: Held
    offset: int
    whole: bool
    ended: bool = False

    @property
    def alive(self) -> bool:
        """Whether it is registered."""
        return not self.ended and not self.context.freed

    @property
    def view(self) -> np.ndarray:
        """The tensor in it."""
        return self.held.buffer.view(self.spec.dtype.numpy, self.spec.dims, self.offset)


@dataclass(eq=False)
class ExpectedGraph:
    """A graph, and what must be true of it."""

    handle: qnn.Graph
    subject: Subject
    context: Ctx
    finalized: bool = False
    state: np.ndarray | None = None
    """Its state; None where it has none, or after something that leaves it open."""
    least: int = 0
    most: int = 0
    """How often it was executed: between these."""
    pools: list[Any] = field(default_factory=list)
    scratch: Any = None
    bindings: list[Any] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        """Whether it can be executed."""
        return self.finalized and not self.context.dead and not self.context.freed

    def start(self) -> None:
        """Set the expected state to the initial one."""
        self.state = None if self.subject.state is None else self.subject.state.copy()

    @property
    def certain(self) -> bool:
        """Whether its next outputs are known."""
        return self.subject.state is None or self.state is not None


@dataclass(eq=False)
class Ctx:
    """A context, and what must be true of it."""

    handle: qnn.Context
    device: qnn.Device | None = None
    graphs: list[ExpectedGraph] = field(default_factory=list)
    freed: bool = False
    dead: bool = False
    """Whether its accelerator has died."""
    unsure: bool = False
    """Whether a composition was interrupted or refused, and part of a graph may be there that nobody has."""


class World:
    """All that one program has made.

    Parameters
    ----------
    kind
        The backend.
    main
        Whether it runs in the main thread, where signals are handled.
    backend
        A backend that was there before and stays, or none.
    trace
        Where each call is written before it is made.
    """

    def __init__(
        self,
        name: str,
        subjects: tuple[Subject, ...],
        weather: Weather,
        main: bool,
        backend: qnn.Backend | None,
        trace: Callable[[str], None],
    ) -> None:
        self.name, self.kind = name, KINDS[name]
        self.subjects, self.weather, self.main = subjects, weather, main
        self.resident = backend is not None
        self.backend: Any = backend or self._open()
        self.devices: list[qnn.Device] = []
        self.contexts: list[Ctx] = []
        self.buffers: list[Held] = []
        self.kept: list[Any] = []
        """What must live until the backend has ended: views, profiles, memory of graphs."""
        self.binaries: list[tuple[bytes, list[tuple[str, Subject]]]] = []
        self.calls = 0
        self.refusals: Counter[int] = Counter()
        self.around: Callable[[], AbstractContextManager[Any]] = nullcontext
        """What is put around each call of the present step."""
        self.also: frozenset[int] = frozenset()
        """Codes that the present step explains."""
        self.crowded = False
        """Whether other threads execute in the same contexts, and so in the memory that graphs have of their own."""
        self.last: deque[str] = deque(maxlen=_REMEMBERED)
        self._trace = trace
        self._names = 0

    def _open(self) -> Any:
        return qnn.Backend(self.kind.backend, self.kind.config)

    # -- calling -------------------------------------------------------------------------------------------------------

    @property
    def scarce(self) -> frozenset[int]:
        """Codes that are right at any time: the pool of TCM is small, and all programs share it."""
        return frozenset({1002, 1011} if self.kind.in_tcm else ())

    def call(
        self, what: str, do: Callable[[], Any], *, must: Iterable[int] = (), may: Iterable[int] = (), calm: bool = False
    ) -> Outcome:
        """Make a call.

        Parameters
        ----------
        must
            Codes one of which must come; without any, the call must succeed.
        may
            Further codes that are right here.
        calm
            Whether to make it without the disturbance of the present step.
        """
        must, may = frozenset(map(int, must)), frozenset(map(int, may))
        self.calls += 1
        moment = self.weather.moment()
        line = f"{self.name} {what}"
        self.last.append(line)
        self._trace(line)
        try:
            with nullcontext() if calm else self.around():
                value = do()
        except QnnError as refusal:
            code = int(refusal.code)
            self.refusals[code] += 1
            self.last[-1] += f" -> {code}"
            if code not in must | may | self.also | self.weather.explained(moment):
                raise Failure(f"{what} was refused: {refusal}; expected {sorted(must | may) or 'success'}") from refusal
            return Outcome(code=code)
        except INTERRUPTS as problem:
            self.last[-1] += f" -> {type(problem).__name__}"
            return Outcome(interrupted=True)
        except BaseException as problem:
            raise Failure(f"{what} raised {type(problem).__name__}: {problem}") from problem
        if must:
            raise Failure(f"{what} was not refused; expected {sorted(must)}, got {value!r}")
        return Outcome(value)

    def fresh(self, stem: str) -> str:
        """A new name."""
        self._names += 1
        return f"{stem}_{self._names}"

    # -- what there is -------------------------------------------------------------------------------------------------

    @property
    def live(self) -> list[Ctx]:
        """Contexts that can be used."""
        return [context for context in self.contexts if not context.freed and not context.dead]

    def graphs(self, usable: bool = True) -> list[ExpectedGraph]:
        """Graphs of contexts that have not been freed; those that can be executed."""
        made = [graph for context in self.contexts if not context.freed for graph in context.graphs]
        return [graph for graph in made if graph.usable] if usable else made

    def handles(self, context: Ctx, spec: Spec) -> list[Registered]:
        """Memory handles for such a tensor."""
        known = (handle for held in self.buffers for handle in held.handles)
        return [h for h in known if h.alive and h.context is context and h.spec == spec]

    @property
    def alignment(self) -> int:
        """What addresses must be multiples of."""
        return self.backend.get_property(lpai.ALIGNMENT_REQ).start_addr_alignment if self.kind.is_lpai else 1

    # -- memory --------------------------------------------------------------------------------------------------------

    def pool(self, rng: random.Random, nbytes: int) -> tuple[Any, Any] | None:
        """Memory for a pool: what is given, and what keeps it alive."""
        if self.kind.remote:
            got = self.call(f"rpcmem.alloc({nbytes})", lambda: rpcmem.alloc(25, 1, max(nbytes, 128)))
            return (got.value, got.value) if got.done else None
        start = rng.choice((0, 1, 3)) * self.alignment
        got = self.call(f"memory.host({nbytes + start})", lambda: memory.host(nbytes + start, self.alignment))
        if not got.done:
            return None
        buffer = got.value
        part = buffer.array[start : start + nbytes]
        return rng.choice((buffer.window(start, nbytes), part, buffer.address + start)), buffer

    # -- the accelerator -----------------------------------------------------------------------------------------------

    def pid(self, device: qnn.Device | None = None) -> int | None:
        """The accelerator process of the backend or of a device."""
        if device is not None:
            return device.driver.pid
        if self.kind.backend == "htp":
            return self.backend.get_property(htp.ACCELERATOR_PID)
        device = getattr(self.backend.driver, "device", None)
        return None if device is None else device.pid

    def kill(self, pid: int, device: qnn.Device | None = None) -> None:
        """Kill an accelerator and see it dead."""
        self.weather.note("kills")
        self.last.append(f"{self.name} kill {pid}")
        os.kill(pid, signal.SIGKILL)
        self.mourn(pid, device)

    def mourn(self, pid: int, device: qnn.Device | None) -> None:
        """Wait for an accelerator that is dying, and know its contexts for dead."""
        deadline = time.monotonic() + _SECONDS_TO_DIE
        while _state(pid) not in ("Z", "X", ""):
            if time.monotonic() > deadline:
                raise Failure(f"accelerator {pid} was killed and is still there")
            time.sleep(0.001)
        for context in self.contexts:
            if context.device is device and not context.freed:
                context.dead = True


def _state(pid: int) -> str:
    """The state of a process as the system tells it; empty for one that is gone."""
    try:
        with open(f"/proc/{pid}/stat") as text:
            return text.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
