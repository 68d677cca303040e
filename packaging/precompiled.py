"""Compiles all code of the package for the targets of an architecture, which may differ from this machine's.

`python packaging/precompiled.py ARCHITECTURE FOLDER` writes an archive for each target, and one for the functions that
are the same on all machines of the architecture. They belong into `isthmus/compiled/archives` (see
`isthmus.compiled.shipped`). With `--targets native` there is only the archive of the target that this machine runs.
Code is compiled once, into the user's cache; a later run compiles only what has changed. A line now and then says how
far it is. Other commands wait only for kernels that they need themselves.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from isthmus.backends.accelerator.page import RINGING
from isthmus.backends.accelerator.process import SERVING
from isthmus.backends.gpu.runtime import compiler as opencl_compiler
from isthmus.backends.gpu.runtime.machine import LOOP
from isthmus.compiled import shipped
from isthmus.compiled.ahead import Ahead, triple
from isthmus.delegate.block import KERNELS as DELEGATE
from isthmus.engine.native import cache, loader
from isthmus.engine.native.executor import KERNELS as EXECUTOR
from isthmus.engine.native.signatures import KERNELS
from isthmus.engine.native.target import TARGETS, Target, host
from isthmus.engine.native.timed import CLOCK
from isthmus.errors import QnnError
from isthmus.planning import compiler as planning_compiler
from isthmus.planning.machine import SEARCH
from isthmus.system.progress import Progress

CATALOGUE = tuple(sorted({*KERNELS, *EXECUTOR, *SERVING, *RINGING, *DELEGATE, CLOCK}))
"""All kernels: those of programs, a closed list, and those that run or time programs and serve queues or LiteRT."""
ARCHITECTURES = ("x86_64", "aarch64")
_PART = 100
"""The number of kernels that are compiled between two lines of the report."""

_FUNCTIONS: tuple[tuple[Ahead, Callable[[str, str], bytes]], ...] = (
    (SEARCH, lambda name, machine: planning_compiler.compile_search(machine)),
    (LOOP, opencl_compiler.compile_function),
)
"""The groups of functions that are the same on all machines of an architecture, each with its compiler."""


def targets(architecture: str, choice: str = "all") -> Iterator[Target]:
    """Yield the targets of an architecture: all, or with "native" the one that this machine runs."""
    chosen = (host(),) if choice == "native" else TARGETS
    return (target for target in chosen if target.triple.startswith(architecture))


class Report:
    """The lines that say how far the compilation is.

    Parameters
    ----------
    total
        The number of kernels to compile or to find, over all targets.
    """

    def __init__(self, total: int) -> None:
        self._progress = Progress("kernels", total)

    def add(self, target: Target, count: int) -> None:
        """Count kernels of a target and print a line."""
        self._progress.done += count
        print(f"  {target.name}: {self._progress.line(time.monotonic()).partition('] ')[2]}", flush=True)


def write_kernels(target: Target, file: Path, report: Report | None = None) -> int:
    """Write the archive of all kernels for a target; return the bytes of their object files."""
    key = cache.shipped_key(target)
    objects: dict[str, bytes] = {}
    for first in range(0, len(CATALOGUE), _PART):
        part = CATALOGUE[first : first + _PART]
        objects |= loader.objects(part, target)
        if report is not None:
            report.add(target, len(part))
    shipped.write(file, {cache.shipped_file(kernel): (key, code) for kernel, code in objects.items()})
    return sum(map(len, objects.values()))


def write_functions(architecture: str, file: Path) -> int:
    """Write the archive of the functions of an architecture; return the bytes of their object files."""
    codes = {
        group.shipped_file(name): (group.shipped_key(architecture), compile_(name, triple(architecture)))
        for group, compile_ in _FUNCTIONS
        for name in group.functions
    }
    shipped.write(file, codes)
    return sum(len(code) for _, code in codes.values())


def write_all(architecture: str, folder: Path, choice: str = "all") -> None:
    """Write all archives of an architecture into a folder, and print the size of each; `choice` as for `targets`."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.zip"):
        old.unlink()
    began = time.monotonic()
    chosen = list(targets(architecture, choice))
    report = Report(len(chosen) * len(CATALOGUE))
    for target in chosen:
        file = folder / f"{target.name}.zip"
        _report(file, len(CATALOGUE), write_kernels(target, file, report))
    functions = sum(len(group.functions) for group, _ in _FUNCTIONS)
    file = folder / f"{architecture}.zip"
    _report(file, functions, write_functions(architecture, file))
    total = sum(file.stat().st_size for file in folder.glob("*.zip"))
    print(f"{architecture}: {total:,} bytes in {time.monotonic() - began:.0f} s", flush=True)


def _report(file: Path, count: int, nbytes: int) -> None:
    """Print the size of an archive."""
    compressed = file.stat().st_size
    print(f"  {file.name:<18} {count:5,} functions, {nbytes:10,} bytes, {compressed:9,} compressed", flush=True)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architecture", choices=ARCHITECTURES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--targets", choices=("all", "native"), default="all", help="which targets (default all)")
    options = parser.parse_args()
    try:
        write_all(options.architecture, options.folder, options.targets)
    except QnnError as refusal:
        print(refusal, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
