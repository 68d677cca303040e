"""Addresses of compiled kernels, which are read from the cache or compiled now by child processes.

The process that runs models loads no compiler; the children do. A process that may not open files gets
the object code from another one (`objects` in one process, `load` in the other).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from isthmus.compiled.children import compile_into
from isthmus.compiled.folder import Folder, Unavailable
from isthmus.compiled.image import Image
from isthmus.engine.native import cache
from isthmus.engine.native.target import Target
from isthmus.errors import Code, QnnError, counted
from isthmus.system.lock import Lock

_COMPILER = "isthmus.engine.native.compiler"

_lock = Lock()
"""Guards the tables below, whose keys are a kernel's name and a target's name."""
_addresses: dict[tuple[str, str], int] = {}
"""The address of each kernel that is loaded."""
_ensured: set[tuple[str, str]] = set()
"""The kernels that are known to be in the cache."""
_images: dict[str, Image] = {}
"""The loaded code for each target, by its name."""
_only_given = False
"""Whether this process uses only code that another process sent."""
_unkept: dict[tuple[str, str], bytes] = {}
"""Code that was compiled for this process alone, because no folder could store it."""


def addresses(kernels: Iterable[str], target: Target) -> dict[str, int]:
    """Return the address of each kernel's code in this process."""
    wanted = sorted(set(kernels))
    with _lock:
        missing = [k for k in wanted if (k, target.name) not in _addresses]
        if missing:
            _load(_objects(missing, target), target)
        return {k: _addresses[k, target.name] for k in wanted}


def ensure(kernels: Iterable[str], target: Target) -> None:
    """Compile the kernels that the cache lacks, for another process to load."""
    with _lock:
        missing = [k for k in sorted(set(kernels)) if (k, target.name) not in _ensured]
        if missing:
            _objects(missing, target)
            _ensured.update((k, target.name) for k in missing)


def objects(kernels: Iterable[str], target: Target) -> dict[str, bytes]:
    """Return the object code of each kernel, to be sent to another process."""
    with _lock:
        return _objects(sorted(set(kernels)), target)


def load(objects: Mapping[str, bytes], target: Target) -> None:
    """Load object code from another process; kernels that are already loaded stay."""
    with _lock:
        fresh = {kernel: code for kernel, code in objects.items() if (kernel, target.name) not in _addresses}
        if fresh:
            _load(fresh, target)


def use_only_what_is_given() -> None:
    """Make `load` the only source of kernels in this process: nothing is read or compiled from now on."""
    global _only_given
    _only_given = True


def _objects(kernels: Sequence[str], target: Target) -> dict[str, bytes]:
    """Return the object code of each kernel, from the cache or compiled now."""
    if _only_given:
        rule = "its code was not sent to this process, which compiles none"
        raise QnnError(Code.COMMON_LOADING_BINARIES, f"kernel '{kernels[0]}'", rule)
    try:
        return _kept_objects(kernels, target)
    except Unavailable as problem:
        return _unkept_objects(kernels, target, problem)


def _kept_objects(kernels: Sequence[str], target: Target) -> dict[str, bytes]:
    """Return object code from the cache, after compiling what it lacks."""
    objects: dict[str, bytes] = {}
    # The second attempt covers sources that were edited while the compiler read them.
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


def _unkept_objects(kernels: Sequence[str], target: Target, problem: Unavailable) -> dict[str, bytes]:
    """Return object code from the cache, if it can be read, and compile the rest for this process alone."""
    objects = {}
    for kernel in kernels:
        try:
            code = _unkept.get((kernel, target.name)) or cache.read(kernel, target)
        except Unavailable:
            code = None
        if code is not None:
            objects[kernel] = code
    absent = [kernel for kernel in kernels if kernel not in objects]
    if absent:
        with Folder.of_this_process(problem, "Kernels") as folder:
            _compile_into(folder, absent, target)
            for kernel in absent:
                code = cache.read(kernel, target, folder)
                if code is None:
                    raise folder.not_kept()
                objects[kernel] = _unkept[kernel, target.name] = code
    return objects


def prepare_to_load() -> None:
    """Open what loading code needs: this process may be unable to open files later."""
    Image()


def _load(objects: dict[str, bytes], target: Target) -> None:
    """Load object code into this process and record the addresses of its kernels."""
    # A kernel has the same symbol on every target, so each target has its own image.
    if target.name not in _images:
        _images[target.name] = Image()
    symbols = {kernel: cache.symbol(kernel) for kernel in objects}
    addresses_of_symbols = _images[target.name].add(objects.values(), symbols.values())
    _addresses.update(((kernel, target.name), addresses_of_symbols[symbol]) for kernel, symbol in symbols.items())


def _compile_into(folder: Folder, kernels: Sequence[str], target: Target) -> None:
    """Compile kernels for a target into a folder."""
    what = f"{counted(len(kernels), 'kernel')} for {target.name}"
    compile_into(folder, _COMPILER, [target.name], kernels, what)


def compile_into_cache(kernels: Sequence[str], target: Target) -> None:
    """Compile the kernels that the cache lacks; if several processes need one, only one process compiles it."""
    folder = Folder.of_user()
    with folder.alone():
        absent = [kernel for kernel in kernels if cache.read(kernel, target) is None]
        if absent:
            _compile_into(folder, absent, target)
