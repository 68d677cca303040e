"""Compiles the kernels that many tests need in one batch, which takes a fraction of compiling them test by test."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from isthmus.engine.native import loader
from isthmus.engine.native.executor import KERNELS as EXECUTOR
from isthmus.engine.native.program import Program
from isthmus.engine.native.target import by_name
from isthmus.errors import QnnError


def compile_for(programs: Iterable[Program]) -> None:
    """Bring all kernels of some programs into the cache."""
    expected: dict[str, set[str]] = {}
    for program in programs:
        expected.setdefault(program.target, set(EXECUTOR)).update(program.kernels)
    for name, kernels in expected.items():
        target = by_name(name)
        # What cannot be compiled is told by the tests that need it.
        with suppress(QnnError):
            loader.ensure(kernels, target)
