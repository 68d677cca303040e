"""Compiles all code of the package for the targets of an architecture, which may differ from this machine's.

`python packaging/precompiled.py ARCHITECTURE FOLDER` writes an archive for each target, and one for the functions that
are the same on all machines of the architecture. They belong into `isthmus/compiled/archives` (see
`isthmus.compiled.shipped`). Code is compiled once, into the user's cache; a later run compiles only what has changed.
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
from isthmus.engine.native.target import TARGETS, Target
from isthmus.engine.native.timed import CLOCK
from isthmus.errors import QnnError
from isthmus.planning import compiler as planning_compiler
from isthmus.planning.machine import SEARCH

CATALOGUE = tuple(sorted({*KERNELS, *EXECUTOR, *SERVING, *RINGING, *DELEGATE, CLOCK}))
"""All kernels: those of programs, a closed list, and those that run or time programs and serve queues or LiteRT."""
ARCHITECTURES = ("x86_64", "aarch64")

_FUNCTIONS: tuple[tuple[Ahead, Callable[[str, str], bytes]], ...] = (
    (SEARCH, lambda name, machine: planning_compiler.compile_search(machine)),
    (LOOP, opencl_compiler.compile_function),
)
"""The groups of functions that are the same on all machines of an architecture, each with its compiler."""


def targets(architecture: str) -> Iterator[Target]:
    """Yield the targets of an architecture."""
    return (target for target in TARGETS if target.triple.startswith(architecture))


def write_kernels(target: Target, file: Path) -> int:
    """Write the archive of all kernels for a target; return the bytes of their object files."""
    key = cache.shipped_key(target)
    objects = loader.objects(CATALOGUE, target)
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


def write_all(architecture: str, folder: Path) -> None:
    """Write all archives of an architecture into a folder, and print the size of each."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.zip"):
        old.unlink()
    began = time.monotonic()
    for target in targets(architecture):
        _report(folder / f"{target.name}.zip", len(CATALOGUE), write_kernels(target, folder / f"{target.name}.zip"))
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
    options = parser.parse_args()
    try:
        write_all(options.architecture, options.folder)
    except QnnError as refusal:
        print(refusal, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
