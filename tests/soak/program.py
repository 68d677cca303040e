"""A program: a number of steps, each drawn from its own seed, and the end of all that they made.

A step takes one call from the table and, now and then, trouble to go with it. Since each step has a generator of its
own, steps can be left out: that is how a failure is made small.
"""

from __future__ import annotations

import contextlib
import gc
import random
import warnings
from collections.abc import Callable, Container
from typing import Any

import calls
import disturbances
import table
from subjects import Subject
from weather import Weather
from world import KINDS, Failure, Kind, World

from isthmus import QnnError, qnn

Step = Callable[[World, random.Random], Any]

STEPS: dict[Step, float] = {
    calls.create_context: 3,
    calls.free_context: 2,
    calls.refuse_wrong_context: 2,
    calls.compose: 8,
    calls.finalize: 3,
    calls.replace_scratch: 4,
    calls.configure: 2,
    calls.reset: 2,
    calls.execute: 30,
    calls.ask: 2,
    calls.forget_bindings: 2,
    calls.register: 10,
    calls.deregister: 4,
    calls.close_buffer: 3,
    calls.close_pool: 1,
    calls.allocate_wrong: 1,
    calls.make_binary: 2,
    calls.restore: 2,
    calls.session: 1,
    calls.allocated: 3,
    disturbances.kill: 0.7,
    disturbances.kill_during: 0.7,
    disturbances.stop: 1.5,
    disturbances.fork: 1,
    disturbances.cut: 1,
    disturbances.crowd: 3,
}
"""What a step may be, and how often."""

TROUBLE = {"": 70, "fault": 8, "limit": 4, "descriptors": 5, "interrupts": 13}
"""What goes with a step, and how often."""

_CALM = (
    disturbances.kill, disturbances.kill_during, disturbances.stop, disturbances.fork, disturbances.cut,
    disturbances.crowd,
)  # fmt: skip


class Program:
    """A program of the soak, made by its seed.

    Parameters
    ----------
    seed
        What it is made from.
    kinds
        The backends it may choose of.
    without
        Names of steps and of trouble that it does without.
    alone
        Whether no other program runs beside it; only then may descriptors be short, which its own book-keeping needs.
    """

    def __init__(self, seed: int, kinds: list[str], without: Container[str] = (), alone: bool = True) -> None:
        self.seed = seed
        rng = random.Random(f"program {seed}")
        self.kind = rng.choice(kinds)
        self.length = rng.choice((10, 25, 60))
        self._without, self._alone = without, alone
        self.world: World | None = None

    def run(
        self,
        subjects: tuple[Subject, ...],
        weather: Weather,
        main: bool,
        backend: qnn.Backend | None,
        trace: Callable[[str], None],
        only: Container[int] | None = None,
    ) -> World:
        """Do all steps, or only those, and end everything."""
        make, known = _client(KINDS[self.kind])
        world = self.world = make(self.kind, subjects, weather, main, backend, trace)
        steps = [step for step in known if step.__name__ not in self._without]
        weights = [known[step] for step in steps]
        for index in range(self.length):
            if only is not None and index not in only:
                continue
            rng = random.Random(f"program {self.seed} step {index}")
            [step] = rng.choices(steps, weights)
            [trouble] = rng.choices(list(TROUBLE), list(TROUBLE.values()))
            world.also, world.around = world.scarce, contextlib.nullcontext
            if trouble and trouble not in self._without and step not in _CALM and self._fits(trouble, main):
                world.around = lambda trouble=trouble, rng=rng: getattr(weather, trouble)(rng)
            world.last.append(f"-- step {index} of program {self.seed}: {step.__name__} {trouble}")
            trace(world.last[-1])
            moment = weather.moment()
            try:
                step(world, rng)
            except QnnError as refusal:
                # Memory of the step's own that a program beside it had made scarce.
                if int(refusal.code) not in weather.explained(moment):
                    raise
        world.also, world.around = frozenset(), contextlib.nullcontext
        rng = random.Random(f"program {self.seed} end")
        if hasattr(world, "end"):
            world.end(rng)
        else:
            self._end(world, rng)
        return world

    def _fits(self, trouble: str, main: bool) -> bool:
        # What an OpenCL driver or an interpreter makes of missing descriptors is its own affair, and so is where an
        # interrupt goes that comes up in a call of the interpreter's.
        kind = KINDS[self.kind]
        can_be_short = self._alone and kind.backend != "gpu" and not kind.table and not kind.interpreted
        can_be_interrupted = main and not kind.interpreted
        return (trouble != "interrupts" or can_be_interrupted) and (trouble != "descriptors" or can_be_short)

    def _end(self, world: World, rng: random.Random) -> None:
        """Free what there is, in any order, or forget it."""
        calls.ask(world, rng)
        order = [("context", context) for context in world.contexts if not context.freed]
        order += [("buffer", held) for held in world.buffers]
        rng.shuffle(order)
        for what, thing in order:
            if what == "context" and (world.resident or rng.random() < 0.7):
                world.call("context.free() at the end", thing.handle.free)
                thing.freed = True
            elif what == "buffer" and rng.random() < 0.5:
                world.call("close at the end", thing.buffer.close, may=(1005,) if thing.in_use else ())
        if world.resident:
            # Also what an interrupted call has left in the backend.
            for handle in reversed(list(world.backend._owned)):
                world.call(f"free {handle._what}", handle.free)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                if rng.random() < 0.7:
                    world.call("backend.free()", world.backend.free)
                backend = world.backend
                del world.backend, backend
        for name in ("contexts", "buffers", "kept", "binaries", "devices"):
            getattr(world, name).clear()
        gc.collect()


def _client(kind: Kind) -> tuple[type[World], dict[Any, float]]:
    """Return what a program of a kind has, and its steps."""
    if kind.table:
        return table.TableWorld, table.STEPS
    if kind.interpreted:
        import interpreters

        return interpreters.InterpreterWorld, interpreters.STEPS
    return World, STEPS


__all__ = ["KINDS", "Failure", "Program"]
