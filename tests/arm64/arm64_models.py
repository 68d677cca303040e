"""Real models on both machines: the same file and the same feeds, and the answers held against each other.

As a program, of either machine, it runs cases on the feeds that lie in a folder and leaves the answers beside them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support import zoo

import isthmus

Feeds = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Case:
    """A model, where it runs and with how many threads."""

    key: str
    backend: str = "cpu"
    threads: int = 1

    def __str__(self) -> str:
        return f"{self.key}-{self.backend}-{self.threads}"

    @property
    def model(self) -> zoo.Model:
        return zoo.MODELS[self.key]


@dataclass(frozen=True)
class Comparison:
    """How the answers of two machines differ: in nothing, or by a part of the largest value."""

    case: Case
    identical: bool
    apart: float

    @property
    def as_promised(self) -> bool:
        """Models of 8-bit arithmetic give the same bits everywhere, those of floats the tests' tolerance."""
        return self.identical or (self.case.model.numerics == "float" and self.apart <= self.case.model.tolerance)


def save(path: Path, series: Sequence[Feeds]) -> None:
    """Keep named arrays of several runs in one file."""
    np.savez(path, **{f"{step}:{name}": array for step, feeds in enumerate(series) for name, array in feeds.items()})


def load(path: Path) -> list[Feeds]:
    """The named arrays of each run in a file that `save` wrote."""
    series: list[Feeds] = []
    with np.load(path) as arrays:
        for label in arrays:
            step, _, name = label.partition(":")
            series += [{} for _ in range(int(step) + 1 - len(series))]
            series[int(step)][name] = arrays[label]
    return series


def answers(case: Case, feeds: Sequence[Feeds]) -> list[Feeds]:
    """Return what the model says to each of its feeds in turn."""
    model = case.model
    constants = {name: feeds[0][name] for name in model.constants} or None
    shapes = dict(model.shapes) or None
    with isthmus.Session(zoo.path(case.key), case.backend, shapes, case.threads, constants) as session:
        return [session.run({n: v for n, v in feed.items() if n not in model.constants}) for feed in feeds]


def compare(case: Case, here: Sequence[Feeds], there: Sequence[Feeds]) -> Comparison:
    """Hold the answers of this machine against those of the other one."""
    identical, apart = len(here) == len(there), 0.0
    for ours, theirs in zip(here, there, strict=True):
        assert {n: (a.dtype, a.shape) for n, a in ours.items()} == {n: (a.dtype, a.shape) for n, a in theirs.items()}
        for name, array in ours.items():
            identical &= array.tobytes() == theirs[name].tobytes()
            largest = float(np.abs(array.astype(np.float64)).max(initial=0))
            difference = float(np.abs(array.astype(np.float64) - theirs[name]).max(initial=0))
            apart = max(apart, difference / (largest or 1.0)) if difference == difference else np.inf
    return Comparison(case, identical, apart)


def compile_for(cases: Iterable[Case], target: str) -> None:
    """Compile on the host, in one batch, what the cases run on the CPU backend of a machine with that target."""
    from support import compilation, stimuli

    from isthmus.backends.seam import native
    from isthmus.engine.native.target import by_name
    from isthmus.frontends import load as load_model

    programs = []
    for case in cases:
        model = case.model
        constants = {name: stimuli.stimuli(case.key)[0][name] for name in model.constants} or None
        with suppress(isthmus.QnnError):
            graph = load_model(zoo.path(case.key), dict(model.shapes) or None, constants)
            programs.append(native.prepare(graph, case.threads, by_name(target)).program)
    compilation.compile_for(programs)


def main(folder: Path, machine: str, cases: Iterable[Case]) -> None:
    """Answer the feeds of each case, and name the case with the seconds it took or the refusal it met."""
    for case in cases:
        start = time.monotonic()
        reported: dict[str, Any] = {"case": str(case)}
        try:
            save(folder / f"{case}.{machine}.npz", answers(case, load(folder / f"{case.key}.feeds.npz")))
        except isthmus.QnnError as refusal:
            reported["refused"] = str(refusal)
        print(json.dumps(reported | {"seconds": time.monotonic() - start}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], [Case(**fields) for fields in json.loads(sys.argv[3])])
