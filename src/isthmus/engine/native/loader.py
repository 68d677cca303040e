"""Addresses of compiled kernels: from the cache, or compiled now by child processes, with progress on the terminal.

The process that runs models needs LLVM's loader only; numba is loaded by the children.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.engine.native import cache
from isthmus.engine.native.target import Target
from isthmus.errors import Code, QnnError

if TYPE_CHECKING:
    import llvmlite.binding as llvm

_lock = threading.Lock()
_addresses: dict[tuple[str, str], int] = {}
_ensured: set[tuple[str, str]] = set()
_engines: dict[str, llvm.ExecutionEngine] = {}


def addresses(kernels: Iterable[str], target: Target) -> dict[str, int]:
    """The address of each kernel's code in this process."""
    wanted = sorted(set(kernels))
    with _lock:
        missing = [k for k in wanted if (k, target.name) not in _addresses]
        if missing:
            _load(_objects(missing, target), target)
        return {k: _addresses[k, target.name] for k in wanted}


def ensure(kernels: Iterable[str], target: Target) -> None:
    """Compile what the cache lacks, for another process to load."""
    with _lock:
        missing = [k for k in sorted(set(kernels)) if (k, target.name) not in _ensured]
        if missing:
            _objects(missing, target)
            _ensured.update((k, target.name) for k in missing)


def _objects(kernels: Sequence[str], target: Target) -> dict[str, bytes]:
    objects: dict[str, bytes] = {}
    # A second try is for sources that were edited while the compiler read them.
    for _ in range(2):
        objects = {kernel: code for kernel in kernels if (code := cache.read(kernel, target)) is not None}
        absent = [kernel for kernel in kernels if kernel not in objects]
        if not absent:
            break
        compile_into_cache(absent, target)
        cache.forget_sources()
        objects |= {kernel: code for kernel in absent if (code := cache.read(kernel, target)) is not None}
    if len(objects) != len(kernels):
        raise QnnError(
            Code.COMMON_SYSTEM,
            f"kernel cache {cache.directory()}",
            "code that was just compiled cannot be read back",
            "Check that the folder is writable, has space and belongs to you, or set ISTHMUS_CACHE_DIR.",
        )
    return objects


def _load(objects: dict[str, bytes], target: Target) -> None:
    import llvmlite.binding as llvm  # here, so that preparing and planning without running do without it

    # A kernel has the same symbol on every target, so each target has an engine of its own.
    engine = _engines.get(target.name)
    if engine is None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        engine = _engines[target.name] = llvm.create_mcjit_compiler(
            llvm.parse_assembly(""), llvm.Target.from_default_triple().create_target_machine()
        )
    for code in objects.values():
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    for kernel in objects:
        _addresses[kernel, target.name] = engine.get_function_address(cache.symbol(kernel))


def compile_into_cache(kernels: Sequence[str], target: Target) -> None:
    """Compile the kernels that the cache lacks; what several processes need at a time, one of them compiles."""
    with _alone_in_cache():
        absent = [kernel for kernel in kernels if cache.read(kernel, target) is None]
        if absent:
            _compile(absent, target)


@contextmanager
def _alone_in_cache() -> Iterator[None]:
    """Make the cache folder, and keep other processes from compiling into it."""
    try:
        cache.directory().mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(cache.directory() / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as problem:
        raise QnnError(
            Code.COMMON_SYSTEM,
            f"kernel cache {cache.directory()}",
            f"cannot be written: {problem.strerror}",
            "Set ISTHMUS_CACHE_DIR to a folder that can be written.",
        ) from None
    try:
        _wait_for(lock)
        yield
    finally:
        os.close(lock)


def _wait_for(lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("isthmus: waiting for another process that compiles kernels", file=sys.stderr, flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        pass  # a file system without locks: work may be done twice, the cache stays sound


def _compile(kernels: Sequence[str], target: Target) -> None:
    """Compile kernels in as many child processes as there are processors, showing progress on a terminal."""
    shares = [s for s in (kernels[i :: len(os.sched_getaffinity(0))] for i in range(len(os.sched_getaffinity(0)))) if s]
    source = str(Path(__file__).parents[3])
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH")))))
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "isthmus.engine.native.compiler", target.name, *share],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for share in shares
    ]
    progress = _Progress(len(kernels), target)
    readers = [threading.Thread(target=progress.follow, args=(child,)) for child in children]
    errors: list[str] = []

    def collect(child: subprocess.Popen) -> None:
        assert child.stderr is not None
        errors.append(child.stderr.read())

    readers += [threading.Thread(target=collect, args=(child,)) for child in children]
    try:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    except BaseException:
        # Interrupted: the children's work is of no use to anybody.
        for child in children:
            child.kill()
        raise
    finally:
        failed = [child.wait() for child in children]
        for child in children:
            for pipe in (child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()
        progress.end()
    if any(failed):
        raise QnnError(
            Code.COMMON_SYSTEM,
            f"compiling kernels for {target.name}",
            f"the compiler failed: {_last_lines(errors)}",
        )


def _last_lines(errors: Sequence[str]) -> str:
    """What each failing compiler said last."""
    return "; ".join(text.strip().splitlines()[-1] for text in errors if text.strip())


class _Progress:
    """A line on the terminal that counts kernels as they are compiled."""

    def __init__(self, total: int, target: Target) -> None:
        self._total, self._target, self._done = total, target, 0
        self._lock = threading.Lock()
        self._shown = sys.stderr.isatty()
        if not self._shown:
            print(f"isthmus: compiling {total} kernels for {target.name}, once", file=sys.stderr, flush=True)

    def follow(self, child: subprocess.Popen) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            with self._lock:
                self._done += 1
                self._show(line.strip())

    def _show(self, kernel: str) -> None:
        if self._shown:
            text = f"isthmus: compiling kernels for {self._target.name}: {self._done}/{self._total} {kernel}"
            print(f"\r\x1b[K{text[:110]}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
