"""The process that runs programs: rounds of them, one after the other or side by side, and an account after each."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from array import array
from collections import Counter
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any, TextIO

import account
import subjects
import table
from origins import Origins
from program import KINDS, Failure, Program
from weather import INTERRUPTS, Weather

from isthmus import QnnError, memory, qnn

_STAYING = ("htp", "lpai-arm")
"""Backends that stay from one program to the next, so that growth of an accelerator is seen."""
_WARM_UP_OVER_THERE = 12
"""Rounds before the memory of an accelerator is first looked at: it seldom lives long."""
_MIN_LOOKED_AT, _MAX_LOOKED_AT = 8, 12
"""How many sizes at each end say how much memory there is: one alone says what its round needed."""
_SECONDS_OF_SILENCE = 300


class Worker:
    """Runs programs and keeps the account.

    Parameters
    ----------
    kinds
        The backends.
    without
        Steps and trouble to do without.
    threads
        The most programs side by side.
    trace
        Where every call is written before it is made, for whoever has to tell what the last ones were.
    warm_up
        Rounds before this process's memory is first looked at: until then its allocator has not met its largest need.
    origins
        What traces where growth comes from, if that is asked for.
    """

    def __init__(
        self,
        kinds: list[str],
        without: Container[str],
        threads: int,
        trace: TextIO,
        warm_up: int,
        origins: Origins | None = None,
    ) -> None:
        self.left_out = {kind: why for kind in kinds if (why := _missing(kind))}
        """Backends that this machine does not have, and why."""
        self.kinds = [kind for kind in kinds if kind not in self.left_out]
        self.without, self.threads, self._warm_up, self._origins = without, threads, warm_up, origins
        self.weather = Weather()
        self.programs = self.calls = 0
        self.seconds_over = 0.0
        """How long it has gone on after its time, because growth could not be judged."""
        self.refusals: Counter[int] = Counter()
        self.by_kind: Counter[str] = Counter()
        # Arrays, so that the account itself takes no block for a round.
        self.client = array("q")
        """Resident bytes of this process after each round."""
        self.blocks = array("q")
        """Blocks of memory that Python has handed out by then: no matter how they lie."""
        self.heap = array("q")
        """Bytes that the C library has handed out by then; nothing where it does not tell."""
        self._over_there = array("q")
        """An accelerator that stays and its resident bytes, by turns."""
        self.begin: account.Account | None = None
        """What the process had before the first round."""
        self._trace = trace
        self._residents: dict[str, qnn.Backend] = {}
        self._folder = tempfile.TemporaryDirectory()
        self._subjects = subjects.subjects(Path(self._folder.name))

    def warm_up(self) -> None:
        """Compile every kernel and import every module that programs may need."""
        for kind in self.kinds:
            entry = KINDS[kind]
            if entry.table:
                table.warm_up(entry.table)
                continue
            if entry.interpreted:
                import interpreters

                interpreters.warm_up(entry.backend)
                continue
            with qnn.Backend(entry.backend, entry.config) as backend:
                context = backend.create_context()
                graphs = [subject.compose(context, subject.name, qnn.TensorMemType.RAW) for subject in self._subjects]
                for graph in graphs:
                    if entry.backend in ("cpu", "htp"):
                        graph.set_config(qnn.GraphConfig.THREADS, 2)
                    graph.allocate().binding.execute()
        self.start_staying()
        gc.collect()

    def start_staying(self) -> None:
        """See to it that every backend that stays has a living accelerator."""
        for kind in self.kinds:
            self._start_staying(kind)

    def round(self, seed: int, only: Container[int] | None = None) -> None:
        """Some programs side by side, and the account when they have ended.

        Raises
        ------
        Failure
            With the last calls of the program that failed.
        """
        rng = random.Random(f"round {seed}")
        count = rng.choice((1, 1, rng.randint(1, self.threads)))
        made = [Program(seed * 1000 + index, self.kinds, self.without, count == 1) for index in range(count)]
        for program in made:
            self._start_staying(program.kind)
        gc.collect()
        before = account.take()
        self.begin = self.begin or before
        self.weather.landed.clear()
        with memory.audit() as record:
            faulthandler.dump_traceback_later(_SECONDS_OF_SILENCE, exit=True)
            self._side_by_side(made, only)
            faulthandler.cancel_dump_traceback_later()
            for program in made:
                program.world = None
            # An object that its destructor revived goes at the second collection.
            for _ in range(3):
                gc.collect()
        after = account.settled(before)
        self._look_at_accelerators()
        more = after.more_than(before)
        left = [f"{one.nbytes} bytes of {one.kind} from {one.where}" for one in record.live]
        # The record's own events must not count as objects of the programs.
        del record
        if more or left:
            raise Failure(f"left behind: {more} {left[:5]} after interrupts at {self.weather.landed}")
        self.blocks.append(account.blocks())
        self.client.append(account.own_bytes())
        if (used := account.heap_bytes()) is not None:
            self.heap.append(used)
        if self._origins is not None and len(self.client) == self._warm_up:
            self._origins.settle()

    def _start_staying(self, kind: str) -> None:
        if kind in _STAYING and kind not in self._residents:
            backend = self._residents[kind] = qnn.Backend(KINDS[kind].backend, KINDS[kind].config)
            # The backend's accelerator is started now, so that it belongs to no program.
            _ping(backend, self._subjects[0])
        elif kind in _STAYING:
            _ping(self._residents[kind], self._subjects[0])

    def _side_by_side(self, made: list[Program], only: Container[int] | None) -> None:
        taken: set[str] = set()
        problems: list[tuple[Program, BaseException]] = []

        def go(program: Program, main: bool, backend: qnn.Backend | None) -> None:
            try:
                world = program.run(self._subjects, self.weather, main, backend, self._write, only)
                self.calls += world.calls
                self.refusals.update(world.refusals)
                self.by_kind[program.kind] += 1
                self.programs += 1
            except BaseException as problem:
                problems.append((program, problem))

        threads = []
        for program in made[1:]:
            backend = None if program.kind in taken else self._residents.get(program.kind)
            taken.add(program.kind)
            threads.append(threading.Thread(target=go, args=(program, False, backend)))
        first = made[0]
        backend = None if first.kind in taken else self._residents.get(first.kind)
        for thread in threads:
            thread.start()
        go(first, True, backend)
        for thread in threads:
            thread.join()
        for program, problem in problems:
            last = "\n".join(program.world.last if program.world else ())
            reported = "".join(traceback.format_exception(problem))
            raise Failure(f"{last}\nprogram {program.seed} on {program.kind}: {problem}\n{reported}") from problem

    def _look_at_accelerators(self) -> None:
        """Nothing of a program is left in an accelerator that stays."""
        for kind, backend in self._residents.items():
            driver: Any = backend.driver
            accelerator = driver.device._accelerator
            if accelerator is None or not accelerator.alive:
                continue
            counts = accelerator.counts()
            left = {name: counts[name] for name in ("queues", "graphs", "memory") if counts[name]}
            if left:
                raise Failure(f"left behind in the accelerator of {kind}: {left}")
            self._over_there.extend((accelerator.pid, account.resident_bytes(accelerator.pid)))

    def close(self) -> None:
        """End what stays."""
        for backend in self._residents.values():
            backend.free()
        self._folder.cleanup()

    def figures(self) -> dict[str, Any]:
        """What was done, what there was at the start and at the end, and how memory has grown since the warm-up."""
        accelerators: dict[int, list[int]] = {}
        for pid, size in zip(self._over_there[::2], self._over_there[1::2], strict=True):
            accelerators.setdefault(pid, []).append(size)
        measured = [_growth(sizes, _WARM_UP_OVER_THERE) for sizes in accelerators.values()]
        over_there = [size for size in measured if size is not None]
        longest = max(accelerators.values(), key=len, default=[])
        begin = self.begin or account.take()
        now = account.settled(begin)
        return {
            "programs": self.programs,
            "by backend": dict(self.by_kind),
            "left out": self.left_out,
            "calls": self.calls,
            **dict(self.weather.counts),
            "refusals": {str(code): count for code, count in sorted(self.refusals.items())},
            "open files": [len(begin.descriptors), len(now.descriptors)],
            "threads": [begin.tasks, now.tasks],
            "processes": [len(begin.children), len(now.children)],
            "rounds": len(self.client),
            "seconds over": self.seconds_over,
            "client bytes": [*self.client[:1], *self.client[self._warm_up : self._warm_up + 1], *self.client[-1:]],
            "client growth": _growth(self.client, self._warm_up),
            **({"client heap growth": _growth(self.heap, self._warm_up)} if self.heap else {}),
            "client blocks growth": _growth(self.blocks, self._warm_up),
            "accelerator bytes": [*longest[:1], *longest[-1:]],
            "accelerator rounds": len(longest),
            "accelerator growth": max(over_there, default=None),
            "accelerators measured": len(over_there),
            "accelerators": len(accelerators),
            "not judged": self.unjudged(),
            **({} if self._origins is None else {"origins": self._origins.grown()}),
        }

    def unjudged(self) -> dict[str, str]:
        """Return the figures of growth that there are too few rounds for, and how many they need."""
        found = {}
        needed = self._warm_up + 2 * _MIN_LOOKED_AT
        if self.kinds and len(self.client) < needed:
            names = ("client growth", "client blocks growth", *(["client heap growth"] * bool(self.heap)))
            found = dict.fromkeys(names, f"{len(self.client)} rounds are too few, {needed} are needed")
        needed = _WARM_UP_OVER_THERE + 2 * _MIN_LOOKED_AT
        longest = max(Counter(self._over_there[::2]).values(), default=0)
        if set(_STAYING).intersection(self.kinds) and longest < needed:
            rule = f"no accelerator has lived for {needed} rounds, the longest for {longest}"
            found["accelerator growth"] = rule
        return found

    def _write(self, line: str) -> None:
        self._trace.write(line + "\n")
        self._trace.flush()


def _growth(sizes: Sequence[int], warm_up: int) -> int | None:
    """How much more there is at the end than after the warm-up, each the median of some; None if that is too soon."""
    some = min(_MAX_LOOKED_AT, (len(sizes) - warm_up) // 2)
    if some < _MIN_LOOKED_AT:
        return None
    middle = lambda part: sorted(part)[len(part) // 2]  # noqa: E731
    return middle(sizes[-some:]) - middle(sizes[warm_up : warm_up + some])


def _missing(kind: str) -> str:
    """Return why this machine has no such backend; nothing if it has."""
    try:
        if KINDS[kind].table:
            table.client_of(KINDS[kind].table)
        elif KINDS[kind].interpreted:
            import interpreters  # noqa: F401
        else:
            qnn.Backend(KINDS[kind].backend, KINDS[kind].config).free()
    except (QnnError, ImportError) as problem:
        return f"{kind}: {problem}"
    return ""


def _ping(backend: qnn.Backend, subject: subjects.Subject) -> None:
    """See to it that a backend has its accelerator."""
    with backend.create_context() as context:
        graph = subject.compose(context, "ping", qnn.TensorMemType.RAW)
        given = graph.allocate()
        given.binding.execute()
    given.close()


def main(arguments: list[str]) -> int:
    """Run rounds until the time is up; answers with figures in JSON on standard output."""
    options = json.loads(arguments[0])
    faulthandler.enable()
    warnings.simplefilter("error", RuntimeWarning)
    with open(options["trace"], "w") as trace:
        origins = Origins() if options["origins"] else None
        worker = Worker(options["kinds"], options["without"], options["threads"], trace, options["warm_up"], origins)
        sys.unraisablehook = lambda problem: _unraisable(worker.weather, problem)
        worker.weather.install()
        worker.warm_up()
        deadline = time.monotonic() + options["seconds"]
        seeds = itertools.count(options["seed"]) if options["rounds"] is None else iter(options["rounds"])
        if not worker.kinds:
            seeds = iter(())
        only = None if options["only"] is None else frozenset(options["only"])
        code = 0
        for seed in seeds:
            print(json.dumps({"round": seed}), flush=True)
            try:
                worker.round(seed, only)
            except BaseException as problem:
                print(json.dumps({"failure": f"round {seed}: {problem}"}), flush=True)
                code = 1
                break
            if _unraised:
                print(json.dumps({"failure": f"round {seed}: in a destructor: {_unraised[0]}"}), flush=True)
                code = 1
                break
            late = time.monotonic() - deadline
            if options["rounds"] is None and late > 0:
                # A loaded machine gets through few rounds: go on until growth can be judged, but not forever.
                if late > options["extra_seconds"] or origins is not None or not worker.unjudged():
                    break
                worker.seconds_over = round(late, 1)
        if code == 0:
            worker.start_staying()
        print(json.dumps({"figures": worker.figures()}), flush=True)
        if code == 0:
            with contextlib.suppress(OSError):
                worker.close()
    if code:
        # Threads of a failed round may never end.
        os._exit(code)
    return code


_unraised: list[str] = []


def _unraisable(weather: Weather, problem: Any) -> None:
    reported = "".join(traceback.format_exception(problem.exc_value))
    # An interrupt in a destructor is lost; one in Python's own `Thread.start` breaks Python's record of threads.
    if isinstance(problem.exc_value, INTERRUPTS) or "del _limbo[self]" in reported:
        weather.counts["lost interrupts"] += 1
        return
    _unraised.append(reported)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
