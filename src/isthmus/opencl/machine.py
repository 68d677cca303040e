"""The loop as machine code: from the cache, or compiled now by a child process."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import sys
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from isthmus.compiled.children import compile_into
from isthmus.compiled.folder import Folder, Unavailable
from isthmus.compiled.image import Image
from isthmus.compiled.toolchain import toolchain

FUNCTIONS = ("execute", "enqueue", "wait", "notify")
_COMPILER = "isthmus.opencl.compiler"
_SOURCES = ("loop.py", "compiler.py")


def triple() -> str:
    """The architecture of this machine, as LLVM calls it."""
    return f"{platform.machine().replace('arm64', 'aarch64')}-unknown-linux-gnu"


def symbol(name: str) -> str:
    """The C name of a function of the loop."""
    return f"isthmus_opencl_{name}"


@lru_cache(maxsize=1)
def key() -> str:
    """The hash of all that the code depends on."""
    digest = hashlib.sha256(triple().encode() + b"\0" + toolchain())
    for source in _SOURCES:
        digest.update(hashlib.sha256(Path(__file__).with_name(source).read_bytes()).digest())
    return digest.hexdigest()


def file(name: str) -> str:
    """The file that the code of a function is kept in."""
    return f"opencl_{name}-{platform.machine()}-{key()[:24]}.o"


class Loop:
    """The functions of the loop: each is one call without Python's lock, with the address of a block."""

    def __init__(self, objects: list[bytes]) -> None:
        self._image = Image()
        self._image.add(objects)
        entry = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
        self.execute: Callable[..., None] = entry(self._image.address(symbol("execute")))
        self.enqueue: Callable[..., None] = entry(self._image.address(symbol("enqueue")))
        self.wait: Callable[..., None] = entry(self._image.address(symbol("wait")))
        self.notify: int = self._image.address(symbol("notify"))
        """Where the function is that the driver calls back."""


@lru_cache(maxsize=1)
def load() -> Loop:
    """The loop as machine code. The first call of a process loads LLVM; the first of a user compiles."""
    try:
        return Loop(_from(Folder.of_user()))
    except Unavailable as problem:
        # Nothing to keep it in is no reason not to run.
        print(f"isthmus: {problem} The loop of launches is compiled for this process alone.", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="isthmus-") as temporary:
        return Loop(_from(Folder(Path(temporary))))


def _from(folder: Folder) -> list[bytes]:
    """The object files as a folder has them, compiled into it if need be."""
    found = [folder.read(file(name), key()) for name in FUNCTIONS]
    if None in found:
        with folder.alone():
            absent = [name for name in FUNCTIONS if folder.read(file(name), key()) is None]
            if absent:
                compile_into(folder, _COMPILER, [], absent, "the loop of OpenCL launches")
            found = [folder.read(file(name), key()) for name in FUNCTIONS]
    whole = [code for code in found if code is not None]
    if len(whole) != len(FUNCTIONS):
        raise folder.not_kept()
    return whole
