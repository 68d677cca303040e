"""Addresses of compiled kernels: from the cache, or compiled now by child processes.

The process that runs models needs LLVM's loader only; numba is loaded by the children.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from isthmus.compiled.children import compile_into
from isthmus.compiled.folder import Folder
from isthmus.compiled.image import Image
from isthmus.engine.native import cache
from isthmus.engine.native.target import Target

_COMPILER = "isthmus.engine.native.compiler"

_lock = threading.Lock()
_addresses: dict[tuple[str, str], int] = {}
_ensured: set[tuple[str, str]] = set()
_images: dict[str, Image] = {}


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
        raise Folder.of_user().not_kept()
    return objects


def _load(objects: dict[str, bytes], target: Target) -> None:
    # A kernel has the same symbol on every target, so each target has an image of its own.
    if target.name not in _images:
        _images[target.name] = Image()
    image = _images[target.name]
    image.add(objects.values())
    for kernel in objects:
        _addresses[kernel, target.name] = image.address(cache.symbol(kernel))


def compile_into_cache(kernels: Sequence[str], target: Target) -> None:
    """Compile the kernels that the cache lacks; what several processes need at a time, one of them compiles."""
    folder = Folder.of_user()
    with folder.alone():
        absent = [kernel for kernel in kernels if cache.read(kernel, target) is None]
        if absent:
            compile_into(folder, _COMPILER, [target.name], absent, f"{len(absent)} kernels for {target.name}")
