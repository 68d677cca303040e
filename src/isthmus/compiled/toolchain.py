"""The versions of numba and LLVM that compiled code depends on, and a hash of how this room uses them."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from isthmus.errors import Code, QnnError


@cache
def toolchain() -> bytes:
    """Return the part of every cache key: the versions of numba and LLVM, and a hash of the module that uses them."""
    # Imported here, since it takes longer than all else that a process without a compiler needs of this room.
    import importlib.metadata

    try:
        versions = ";".join(f"{name}={importlib.metadata.version(name)}" for name in ("llvmlite", "numba"))
    except importlib.metadata.PackageNotFoundError as absent:
        raise QnnError(
            Code.COMMON_RESOURCE_UNAVAILABLE,
            "code that must be compiled",
            f"the package '{absent.name}' is not installed",
            "Install the compiler: pip install 'isthmus[compile]'",
        ) from None
    return versions.encode() + usage()


@cache
def usage() -> bytes:
    """Return a hash of the module that uses numba and LLVM."""
    return hashlib.sha256(Path(__file__).with_name("objects.py").read_bytes()).digest()
