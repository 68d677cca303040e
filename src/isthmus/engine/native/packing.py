"""Packed constants by what they are made of: each is made once in a program, and large ones once for all processes.

A packed constant is the result of a function of the modules in `lowering`, which depends on nothing but its arguments.
Its key is a hash of the function, the sources of these modules, and all arguments with the contents of arrays; so no
choice of a layout can be missing from it. What was packed before is mapped from the user's folder of packed weights.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.compiled.folder import Folder, Unavailable
from isthmus.compiled.weights import WeightFolder, Weights
from isthmus.errors import Code, QnnError
from isthmus.prepare.tiling.limit import parse_size

KEPT_BYTES = 1 << 16
"""The size from which packed constants are kept."""
_VARIABLE = "ISTHMUS_CACHE_WEIGHTS"
_LIMIT = 2 << 30
# The types of arguments that their `repr` describes.
_PLAIN = (int, float, str, bool, type(None), np.generic, enum.Enum, type)
# Whether packed constants may be written to a disk.
_are_kept = ContextVar("packed constants are kept", default=True)


@contextmanager
def keep_nothing() -> Iterator[None]:
    """Write no packed constants to a disk inside the block: they may come from a file that is encrypted there."""
    token = _are_kept.set(False)
    try:
        yield
    finally:
        _are_kept.reset(token)


class Packing:
    """The packed constants of a program under construction."""

    def __init__(self) -> None:
        self._folder = weight_folder()
        # The hashes of arrays by where and what they are, with the owner of the memory: while that lives, no other
        # array gets the place. Several steps pack the same array, and so do all pieces of a step.
        self._known: dict[tuple[Any, ...], tuple[bytes | int, weakref.ref[np.ndarray]]] = {}
        self._numbers = itertools.count()

    def key(self, pack: Callable[..., np.ndarray], arguments: tuple[Any, ...]) -> bytes:
        """Return a key of what a function makes of its arguments."""
        described = _version(), pack.__module__, pack.__qualname__, self._describe(arguments)
        return hashlib.sha256(repr(described).encode()).digest()

    def make(self, key: bytes, pack: Callable[..., np.ndarray], arguments: tuple[Any, ...]) -> Weights:
        """Return what a function makes of its arguments: mapped, if it is kept or can be."""
        if self._folder is None:
            return Weights.of(pack(*arguments))
        found = self._folder.find(key)
        if found is not None:
            return found
        weights = Weights.of(pack(*arguments))
        # A client's memory or a file may have been written since the key was made.
        self._known.clear()
        return self._folder.keep(key, weights) if self.key(pack, arguments) == key else weights

    def _describe(self, value: Any) -> Any:
        """Return what tells an argument from all others, as an object with a `repr` that is the same everywhere."""
        if isinstance(value, np.ndarray):
            return value.dtype.str, value.shape, self._digest(value)
        if isinstance(value, (tuple, list)):
            return [self._describe(item) for item in value]
        if not isinstance(value, _PLAIN):
            raise TypeError(f"no key can have a {type(value).__name__}")
        return type(value).__name__, value

    def _digest(self, array: np.ndarray) -> tuple[bytes | int, list[int]]:
        """Return a hash of an array's contents in the order in which they are stored, and the order of its axes.

        Where nothing is kept, a number takes the place of the hash.
        """
        axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
        stored = array.transpose(axes)
        if not stored.flags.c_contiguous:
            axes, stored = list(range(array.ndim)), array
        place = array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str
        known = self._known.get(place)
        if known is None or known[1]() is None:
            digest: bytes | int = next(self._numbers)
            if self._folder is not None:
                digest = hashlib.sha256(np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data).digest()
            owner = array
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            known = self._known[place] = digest, weakref.ref(owner)
        return known[0], axes


def is_large(arguments: tuple[Any, ...]) -> bool:
    """Return whether something is packed that is worth being kept."""
    return any(isinstance(value, np.ndarray) and value.nbytes >= KEPT_BYTES for value in arguments)


def weight_folder() -> WeightFolder | None:
    """Return the user's folder of packed weights; None if ``ISTHMUS_CACHE_WEIGHTS`` is 0, or nothing may be kept."""
    text = os.environ.get(_VARIABLE)
    limit = parse_size(text) if text else _LIMIT
    if limit is None:
        rule = "must be a size: a number of bytes, or with a unit as in 500MiB or 2GiB"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"{_VARIABLE} '{text}'", rule)
    if limit == 0 or not _are_kept.get() or not _version():
        return None
    try:
        return WeightFolder(Folder(Folder.of_user().path / "weights"), limit)
    except Unavailable:
        return None


def as_stored(array: np.ndarray) -> np.ndarray:
    """Return a constant that kernels read as the model declares it."""
    return array


@cache
def _version() -> str:
    """Return a hash of everything that packs, with numpy's version; empty without sources."""
    folder = Path(__file__).parent
    files = sorted(file for room in ("", "lowering", "signatures") for file in (folder / room).glob("*.py"))
    digest = hashlib.sha256(np.__version__.encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest() if files else ""
