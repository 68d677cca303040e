"""Runs a model file here and compares with what the reference runtime answered."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

import isthmus
from isthmus.errors import QnnError
from random_operations.onnx_model import Refused

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A model file, its inputs, and the answers of the reference runtime.

    `steps` is how far stored integers may be off; `describe` says what the model is; `others` are answers that are as
    right as the first.
    """

    suffix: str
    content: bytes
    feeds: Arrays
    answers: Arrays
    describe: Callable[[], str]
    steps: int = 0
    others: tuple[Arrays, ...] = ()


Make = Callable[[Random], Case]
"""Makes a case by random choices; raises `Refused` when the reference runtime does not take what came out."""


@dataclass
class Account:
    """What became of cases: `agreed`, refused by the `peer` or by `us`, and what differed, by seed."""

    counts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, seed: str, make: Make) -> None:
        """Make a case from a seed, run it and record how it ended."""
        try:
            case = make(Random(seed))
        except Refused:
            self.counts["refused by the peer"] += 1
            return
        try:
            problem = difference(case)
        except QnnError as error:
            self.counts["refused here"] += 1
            self.refusals[f"{error}".splitlines()[0][:150]] += 1
            return
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        self.counts["agreed" if problem is None else "differed"] += 1
        if problem is not None:
            self.failures[seed] = f"{problem}\n{case.describe()}"


def answers(case: Case) -> dict[str, np.ndarray]:
    """The outputs that this project computes for a case."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model{case.suffix}"
        path.write_bytes(case.content)
        with isthmus.Session(path) as session:
            return session.run(case.feeds)


def difference(case: Case) -> str | None:
    """Return how our answers differ from the reference's; None where they agree."""
    ours = answers(case)
    problems = [_difference(ours, expected, case.steps) for expected in (case.answers, *case.others)]
    return None if None in problems else problems[0]


def _difference(ours: Arrays, theirs: Arrays, steps: int) -> str | None:
    for name, expected in theirs.items():
        got = ours[name]
        if (got.shape, got.dtype) != (expected.shape, expected.dtype):
            return f"{name}: {got.dtype}{list(got.shape)} instead of {expected.dtype}{list(expected.shape)}"
        problem = _distance(got, expected, steps)
        if problem:
            return f"{name}: {problem}"
    return None


def _distance(got: np.ndarray, expected: np.ndarray, steps: int) -> str | None:
    if expected.dtype.kind != "f":
        off = np.abs(got.astype(np.float64) - expected.astype(np.float64))
        most = steps if expected.dtype.itemsize == 1 and expected.dtype.kind != "b" else 0
        return f"off by {off.max()} in {np.mean(off > most):.1%}" if off.size and off.max() > most else None
    finite = np.isfinite(expected)
    if not np.array_equal(np.isnan(got), np.isnan(expected)) or not np.array_equal(
        got[~finite], expected[~finite], True
    ):
        return "infinities or NaN differ"
    size = max(1.0, float(np.abs(expected[finite]).max(initial=0)))
    off = np.abs(got[finite].astype(np.float64) - expected[finite])
    # Errors of sums grow with the largest number around; a function's own error is relative.
    if off.size and off.max() > 2e-5 * size:
        return f"off by {off.max():.3g} of {size:.3g} in {np.mean(off > 2e-5 * size):.1%}"
    return None
