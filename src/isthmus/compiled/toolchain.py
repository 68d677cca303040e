"""What all compiled code depends on, whatever it was compiled from: numba, LLVM, and how this room uses them."""

from __future__ import annotations

import hashlib
import importlib.metadata
from functools import cache
from pathlib import Path


@cache
def toolchain() -> bytes:
    """A part of every key that code is kept under."""
    versions = ";".join(f"{name}={importlib.metadata.version(name)}" for name in ("llvmlite", "numba"))
    return versions.encode() + hashlib.sha256(Path(__file__).with_name("objects.py").read_bytes()).digest()
