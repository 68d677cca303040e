"""Programs of a LiteRT interpreter whose nodes run on a backend: what its user does, in any order.

What the interpreter raises where memory is short is not ours to name; it counts as the refusal that the trouble of the
step explains, and as a failure without such.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from delegate.harness import chain, doubled, run, with_delegate
from world import Outcome, World

from isthmus.delegate import BackendType, Options, QnnDelegate
from isthmus.errors import Code, QnnError

_MAX = 3
_WIDTHS = (4, 4096)


@dataclass(eq=False)
class Opened:
    """An interpreter, its delegate, and what must come out."""

    interpreter: Any
    delegate: QnnDelegate
    width: int
    answer: Callable[[np.ndarray], np.ndarray]
    resizable: bool


class InterpreterWorld(World):
    """What one program has made of interpreters and delegates."""

    def _open(self) -> Any:
        self.opened: list[Opened] = []
        return None

    def interpret(self, what: str, do: Callable[[], Any]) -> Outcome:
        """Call a function of an interpreter, and judge the outcome."""

        def translated() -> Any:
            try:
                return do()
            except (RuntimeError, ValueError) as problem:
                raise QnnError(Code.COMMON_MEM_ALLOC, what, str(problem)) from None

        return self.call(what, translated)

    def end(self, rng: random.Random) -> None:
        """Forget what is left, in some order."""
        while self.opened:
            drop(self, rng)


def warm_up(backend: str) -> None:
    """Load and compile what programs need."""
    for content, width, _, _ in _models():
        delegate = _delegate(backend)
        run(with_delegate(content, delegate), np.zeros((1, width), np.float32))
        delegate.close()


def _models() -> list[tuple[bytes, int, Callable[[np.ndarray], np.ndarray], bool]]:
    found = [(doubled(1, width), width, lambda x: x + x, True) for width in _WIDTHS]
    return [*found, (chain("ABS", "NEG", "RELU"), 4, lambda x: np.maximum(-np.abs(x), 0), False)]


def _delegate(backend: str) -> QnnDelegate:
    return QnnDelegate(Options(BackendType[backend.upper()]), lambda level, text: None)


def open_(world: InterpreterWorld, rng: random.Random) -> None:
    """An interpreter with a delegate of its own, or with another's."""
    if len(world.opened) >= _MAX:
        return drop(world, rng)
    content, width, answer, resizable = rng.choice(_models())
    shared = world.opened[0].delegate if world.opened and rng.random() < 0.3 else None

    def make() -> tuple[Any, QnnDelegate]:
        delegate = shared or _delegate(world.kind.backend)
        return with_delegate(content, delegate), delegate

    got = world.interpret("Interpreter", make)
    if got.done:
        world.opened.append(Opened(*got.value, width, answer, resizable))
    return None


def invoke(world: InterpreterWorld, rng: random.Random) -> None:
    """Invoke, once or several times, and look at what comes out."""
    if not world.opened:
        return open_(world, rng)
    chosen = rng.choice(world.opened)
    for _ in range(rng.choice((1, 1, 5, 20))):
        x = np.float32([[rng.randrange(-99, 99) for _ in range(4)] * (chosen.width // 4)])
        got = world.interpret("invoke", lambda x=x: run(chosen.interpreter, x))
        if not got.done:
            return None
        if not np.array_equal(got.value[0], chosen.answer(x)):
            raise AssertionError(f"an interpreter makes {got.value[0][0, :4]} of {x[0, :4]}")
    return None


def resize(world: InterpreterWorld, rng: random.Random) -> None:
    """Another shape: nodes that were a backend's are prepared again, or are the interpreter's from then on."""
    found = [opened for opened in world.opened if opened.resizable]
    if not found:
        return
    chosen, width = rng.choice(found), rng.choice((4, 8, 64))

    def change() -> None:
        [detail] = chosen.interpreter.get_input_details()
        chosen.interpreter.resize_tensor_input(detail["index"], [1, width])
        chosen.interpreter.allocate_tensors()

    if world.interpret("resize", change).done:
        chosen.width = width
    else:
        world.opened.remove(chosen)


def drop(world: InterpreterWorld, rng: random.Random) -> None:
    """The end of an interpreter, and of its delegate if nobody else has it."""
    if not world.opened:
        return
    chosen = world.opened.pop(rng.randrange(len(world.opened)))
    delegate = chosen.delegate
    alone = all(other.delegate is not delegate for other in world.opened)
    del chosen
    if alone and rng.random() < 0.7:
        world.call("delegate.close()", delegate.close, calm=True)


STEPS: dict[Any, float] = {open_: 4, invoke: 12, resize: 2, drop: 2}
"""What a step may be, and how often."""
