"""The search as machine code: from the cache, or compiled now by a child process.

It is compiled for every machine of an architecture: wider vectors would not make it faster.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np

from isthmus.compiled.children import compile_into
from isthmus.compiled.folder import Folder, Unavailable
from isthmus.compiled.image import Image
from isthmus.compiled.toolchain import toolchain

from .search import Advance, State

SYMBOL = "isthmus_planning_search"
_COMPILER = "isthmus.planning.compiler"
_SOURCES = ("search.py", "compiler.py")


def triple() -> str:
    """The architecture of this machine, as LLVM calls it."""
    return f"{platform.machine().replace('arm64', 'aarch64')}-unknown-linux-gnu"


def key() -> str:
    """The hash of all that the code depends on."""
    digest = hashlib.sha256(triple().encode() + b"\0" + toolchain())
    for source in _SOURCES:
        digest.update(hashlib.sha256(Path(__file__).with_name(source).read_bytes()).digest())
    return digest.hexdigest()


def name() -> str:
    """The file that the code is kept in."""
    return f"planning_search-{platform.machine()}-{key()[:24]}.o"


@lru_cache(maxsize=1)
def load() -> Advance:
    """The search as machine code. The first call of a process loads LLVM; the first of a user compiles."""
    image = Image()
    image.add([_object()])
    # The image must live as long as the function does.
    return _Search(image)


class _Search:
    """`advance` on a state of arrays, without Python's lock."""

    def __init__(self, image: Image) -> None:
        self._image = image
        words = [ctypes.c_int64] * 4
        self._function = ctypes.CFUNCTYPE(None, *words)(image.address(SYMBOL))

    def __call__(self, state: State, nodes: int) -> int:
        table = np.array([field.__array_interface__["data"][0] for field in state], dtype=np.int64)
        answer = ctypes.c_int64()
        self._function(table.__array_interface__["data"][0], nodes, ctypes.addressof(answer), 0)
        return answer.value


def _object() -> bytes:
    try:
        return _from(Folder.of_user())
    except Unavailable as problem:
        # Nothing to keep it in is no reason not to plan.
        print(f"isthmus: {problem} The planner's search is compiled for this process alone.", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="isthmus-") as temporary:
        return _from(Folder(Path(temporary)))


def _from(folder: Folder) -> bytes:
    """The object file as a folder has it, compiled into it if need be."""
    found = folder.read(name(), key())
    if found is None:
        with folder.alone():
            found = folder.read(name(), key())
            if found is None:
                compile_into(folder, _COMPILER, [], ["planning"], "the planner's search")
                found = folder.read(name(), key())
    if found is None:
        raise folder.not_kept()
    return found
