"""Counts what the engine allocates while it infers. The aim is nothing at all.

With a C compiler at hand a small library is preloaded that counts the calls of malloc and its kin in all threads.
Without one, glibc's `mallinfo2` is asked before and after: that sees memory which stays allocated, but not memory
that is given back within the same call, and the output says which of the two was used.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import stimuli, zoo

SOURCE = Path(__file__).with_name("malloc_counter.c")
KINDS = ("malloc", "calloc", "realloc", "aligned", "free", "mmap", "munmap", "brk")
PRELOADED = "ISTHMUS_BENCH_MALLOC_COUNTER"
WARM_UP = 10

# Runs a callable a number of times; what was allocated meanwhile, by kind.
Counter = Callable[[Callable[[], object], int], dict[str, int]]


def build(folder: Path) -> Path | None:
    """Compile the counter; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    library = folder / "malloc_counter.so"
    # Without -fno-builtin a compiler may turn our calloc into a call of itself.
    flags = ("-shared", "-fPIC", "-O2", "-fno-builtin")
    command = [compiler, *flags, "-o", str(library), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"the counter could not be compiled: {done.stderr.strip()}", file=sys.stderr)
        return None
    return library


def preloaded_counter(library: str) -> Counter:
    """Counts calls, in the process that the library was preloaded into."""
    counter = ctypes.CDLL(library)
    result = (ctypes.c_long * len(KINDS))()
    start, stop = counter.allocation_count_start, counter.allocation_count_stop

    def measure(call: Callable[[], object], times: int) -> dict[str, int]:
        totals = [0] * len(KINDS)
        for _ in range(times):
            start()
            call()
            stop(result)
            for kind in range(len(KINDS)):
                totals[kind] += result[kind]
        return dict(zip(KINDS, totals, strict=True))

    process = ctypes.CDLL(None)
    process.malloc.restype, process.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    seen = measure(lambda: process.free(process.malloc(1000)), 1)
    if not seen["malloc"] or not seen["free"]:
        raise SystemExit("the counter was not preloaded: a malloc went by unseen")
    return measure


class _MallInfo2(ctypes.Structure):
    _fields_ = (
        ("arena", ctypes.c_size_t),
        ("ordblks", ctypes.c_size_t),
        ("smblks", ctypes.c_size_t),
        ("hblks", ctypes.c_size_t),
        ("hblkhd", ctypes.c_size_t),
        ("usmblks", ctypes.c_size_t),
        ("fsmblks", ctypes.c_size_t),
        ("uordblks", ctypes.c_size_t),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    )


def mallinfo_counter() -> Counter:
    """Compares the heap before and after: bytes that stay, and mapped regions that stay."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        raise SystemExit("counting needs a C compiler, or glibc 2.33 or newer") from None
    mallinfo2.restype = _MallInfo2

    def measure(call: Callable[[], object], times: int) -> dict[str, int]:
        before = mallinfo2()
        for _ in range(times):
            call()
        after = mallinfo2()
        return {
            "bytes kept": max(0, after.uordblks - before.uordblks),
            "regions kept": max(0, after.hblks - before.hblks),
        }

    return measure


def count(key: str, threads: int, times: int, counter: Counter) -> dict[str, int]:
    """Allocations of many inferences of one model, less what an empty call costs the interpreter."""
    isthmus: Any = importlib.import_module("isthmus")
    model = zoo.MODELS[key]
    feed = stimuli.stimuli(key)[0]
    options: dict[str, Any] = {"shapes": dict(model.shapes) or None, "threads": threads}
    if model.constants:
        options["constants"] = {name: feed[name] for name in model.constants}
    with isthmus.Session(zoo.path(key), backend="cpu", **options) as session:
        for name, value in feed.items():
            if name not in model.constants:
                session.inputs[name][...] = value
        run = session.engine_run
        for call in (run, _nothing):
            for _ in range(WARM_UP):
                call()
            counter(call, WARM_UP)
        gc.disable()  # a collection in between would be Python's doing, not the engine's
        found = counter(run, times)
        baseline = counter(_nothing, times)
        gc.enable()
    return {kind: max(0, found[kind] - baseline[kind]) for kind in found}


def _nothing() -> None:
    """What is called for the baseline."""


def restart_with_counter() -> None:
    """Start this program again with the library preloaded; returns only without a compiler."""
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        if library is None:
            return
        environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            PRELOADED: str(library),
            "PYTHONMALLOC": "pymalloc",  # Python's small objects stay out of malloc
        }
        done = subprocess.run([sys.executable, __file__, *sys.argv[1:]], env=environment)
    raise SystemExit(done.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(model.key for model in zoo.CORE), help="keys (the core models)")
    parser.add_argument("--threads", default="1,2", help="numbers of threads (1,2)")
    parser.add_argument("--inferences", type=int, default=100, help="inferences to count over (100)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the counts to this file")
    arguments = parser.parse_args()
    library = os.environ.get(PRELOADED)
    if library is None:
        restart_with_counter()
    counter = preloaded_counter(library) if library else mallinfo_counter()
    how = "calls counted by a preloaded library" if library else "what stays allocated, by mallinfo2"
    print(f"allocations per inference over {arguments.inferences} inferences ({how})")
    isthmus: Any = importlib.import_module("isthmus")
    counts = []
    for key in arguments.models.split(","):
        for threads in (int(text) for text in arguments.threads.split(",")):
            try:
                found = count(key, threads, arguments.inferences, counter)
            except (zoo.Unavailable, isthmus.QnnError) as reason:
                print(f"{key:34} {threads} thread(s)  left out: {str(reason).splitlines()[0]}")
                continue
            allocations = sum(number for kind, number in found.items() if kind not in ("free", "munmap"))
            details = ", ".join(f"{number} {kind}" for kind, number in found.items() if number)
            print(f"{key:34} {threads} thread(s)  {allocations / arguments.inferences:g}  {details}".rstrip())
            counts.append({"model": key, "threads": threads, "allocations": allocations, "calls": found})
    if arguments.json:
        report = {"inferences": arguments.inferences, "method": how, "counts": counts}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    raise SystemExit(any(entry["allocations"] for entry in counts))


if __name__ == "__main__":
    main()
