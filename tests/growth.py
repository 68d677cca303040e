"""How much a process grows while something is done in it many times.

Inside a process that runs other tests the answer is noise: their threads end, their garbage is collected, and their
allocators keep what they had. So it is asked of a process that does nothing else.

    python growth.py FILE NAME ROUNDS COLLECTED [ARGUMENT ...]

prints as JSON what doing NAME of a test file so many times leaves behind: with COLLECTED "no", without the help of the
cyclic garbage collector.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from importlib import util
from pathlib import Path

_TESTS = Path(__file__).parent
_SECONDS = 600
_SHARE_BEFORE = 4
"""A quarter of the rounds, and some more, comes first: allocators and caches have what they keep by then."""


@dataclass(frozen=True)
class Growth:
    """What there is more of than before: bytes of resident memory, objects of Python, descriptors and threads."""

    resident: int
    objects: int
    descriptors: int
    threads: int


def growth(
    file: str, name: str, *arguments: str, rounds: int, seconds: float = _SECONDS, collected: bool = True
) -> Growth:
    """What is left behind by rounds of a deed, in a process of its own.

    Parameters
    ----------
    file, name
        A test file, and a context manager in it that yields the deed: a function without arguments.
    arguments
        What the context manager is called with.
    rounds
        How often the deed is done between the two counts.
    seconds
        How long that may take.
    collected
        Whether the cyclic garbage collector runs. Without it, objects that keep each other alive stay.
    """
    child = subprocess.run(
        [sys.executable, __file__, file, name, str(rounds), "yes" if collected else "no", *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    return Growth(**json.loads(child.stdout.splitlines()[-1]))


def _now(collected: bool) -> Growth:
    if collected:
        gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Growth(
        pages * os.sysconf("SC_PAGE_SIZE"),
        len(gc.get_objects()),
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
    )


def _left_by(deed: Callable[[], object], rounds: int, collected: bool) -> Growth:
    if not collected:
        gc.disable()
    for _ in range(rounds // _SHARE_BEFORE + 5):
        deed()
    # To count takes memory too, which stays with the allocator: once for that.
    _now(collected)
    before = _now(collected)
    for _ in range(rounds):
        deed()
    after = _now(collected)
    return Growth(*(getattr(after, field.name) - getattr(before, field.name) for field in fields(Growth)))


def _main(file: str, name: str, rounds: str, collected: str, *arguments: str) -> None:
    # As pytest has it: the folders of all tests.
    sys.path[:0] = [str(_TESTS), *sorted({str(file.parent) for file in _TESTS.rglob("*.py")})]
    specification = util.spec_from_file_location("grown", file)
    assert specification is not None
    assert specification.loader is not None
    module = util.module_from_spec(specification)
    specification.loader.exec_module(module)
    with getattr(module, name)(*arguments) as deed:
        print(json.dumps(asdict(_left_by(deed, int(rounds), collected == "yes"))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
