"""Addresses of compiled kernels, which are read from the cache or compiled now by child processes.

The process that runs models loads no compiler; the children do. A process that may not open files gets
the object code from another one (`objects` in one process, `load` in the other).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from isthmus.compiled import image
from isthmus.compiled.children import CodePiece, Compiler, prepare, provide
from isthmus.compiled.toolchain import toolchain
from isthmus.engine.native import cache
from isthmus.engine.native.target import Target, host, request_permissions
from isthmus.errors import Code, QnnError, counted
from isthmus.system.lock import Lock

_COMPILER = "isthmus.engine.native.compiler"

# Guards the tables below, whose keys are a kernel's name and a target's name.
_lock = Lock()
# The address of each kernel that is loaded.
_addresses: dict[tuple[str, str], int] = {}
# The kernels that are known to be in the cache.
_ensured: set[tuple[str, str]] = set()
# Whether this process uses only code that another process sent.
_only_given = False


def addresses(kernels: Iterable[str], target: Target) -> dict[str, int]:
    """Return the address of each kernel's code in this process; what is absent is compiled in the order of use."""
    names = list(dict.fromkeys(kernels))
    with _lock:
        missing = [k for k in names if (k, target.name) not in _addresses]
        if missing:
            _load(_objects(missing, target), target)
        return {k: _addresses[k, target.name] for k in names}


def anticipate(kernels: Iterable[str]) -> None:
    """Start a compiler in the background if one of these kernels is absent for this machine: others will be, too."""
    # An error is reported when the kernels are needed.
    with suppress(QnnError):
        target = host()
        if not _only_given and any(cache.read(kernel, target) is None for kernel in kernels):
            toolchain()
            prepare()


def ensure(kernels: Iterable[str], target: Target) -> None:
    """Compile the kernels that the cache lacks, for another process to load."""
    with _lock:
        missing = [k for k in dict.fromkeys(kernels) if (k, target.name) not in _ensured]
        if missing:
            _objects(missing, target)
            _ensured.update((k, target.name) for k in missing)


def objects(kernels: Iterable[str], target: Target) -> dict[str, bytes]:
    """Return the object code of each kernel, to be sent to another process."""
    with _lock:
        return _objects(list(dict.fromkeys(kernels)), target)


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
    objects = {kernel: code for kernel in kernels if (code := cache.read_shipped(kernel, target)) is not None}
    absent = [kernel for kernel in kernels if kernel not in objects]
    return objects | compile_absent(absent, target) if absent else objects


def compile_absent(kernels: Sequence[str], target: Target) -> dict[str, bytes]:
    """Return the object code of kernels that are not shipped: from the cache, or compiled now and stored there.

    If several processes need a kernel, only one compiles it.
    """
    compiler = Compiler(_COMPILER, (target.name,), lambda count: f"{counted(count, 'kernel')} for {target.name}")

    def pieces() -> list[CodePiece]:
        return [CodePiece(each, cache.file_name(each, target), cache.key(each, target)) for each in kernels]

    return provide(compiler, pieces, cache.forget_sources)


def prepare_to_load() -> None:
    """Get what loading and running code needs: this process may be unable to open files or to ask for it later."""
    image.prepare()
    request_permissions()


def _load(objects: dict[str, bytes], target: Target) -> None:
    """Load object code into this process and record the addresses of its kernels."""
    symbols = {kernel: cache.symbol(kernel) for kernel in objects}
    addresses_of_symbols = image.load(objects.values(), symbols.values())
    _addresses.update(((kernel, target.name), addresses_of_symbols[symbol]) for kernel, symbol in symbols.items())
