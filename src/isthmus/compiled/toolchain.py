"""What all compiled code depends on besides its source: numba, LLVM, and how this room uses them."""

from __future__ import annotations

import hashlib
import importlib.metadata
from functools import cache
from pathlib import Path


@cache
def toolchain() -> bytes:
    """Return the part of every cache key: the versions of numba and LLVM, and a hash of the module that uses them."""
    versions = ";".join(f"{name}={importlib.metadata.version(name)}" for name in ("llvmlite", "numba"))
    return versions.encode() + hashlib.sha256(Path(__file__).with_name("objects.py").read_bytes()).digest()
