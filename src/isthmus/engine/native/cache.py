"""Compiled kernels on disk: one file per kernel and target, named by everything that it depends on.

A file carries a checksum. One that is damaged, or that another user could have written, is compiled again.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import os
import re
import tempfile
from functools import cache as remembered
from pathlib import Path

from isthmus.engine.native.target import Target
from isthmus.errors import Code, QnnError

_MAGIC = b"ISTHMUS\x01"
_KERNELS = Path(__file__).parent / "kernels"
_LAYOUTS = {"isthmus.engine.native.control": "../control", "isthmus.engine.native.doorbell": "../doorbell"}
"""What kernels import from outside their folder that decides about their code: layouts of memory."""


def directory() -> Path:
    """Where compiled code is kept: ``ISTHMUS_CACHE_DIR``, else the user's cache folder."""
    explicit = os.environ.get("ISTHMUS_CACHE_DIR")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "isthmus"
    try:
        return Path.home() / ".cache" / "isthmus"
    except RuntimeError:
        raise QnnError(
            Code.COMMON_SYSTEM,
            "kernel cache",
            "the user has no home folder to keep it in",
            "Set ISTHMUS_CACHE_DIR to a folder that can be written.",
        ) from None


def symbol(kernel: str) -> str:
    """The C name of a kernel."""
    return "isthmus_" + re.sub(r"[^A-Za-z0-9]", "_", kernel)


@remembered
def _sources(module: str) -> frozenset[str]:
    """A kernel module and the kernel modules it imports, by name."""
    found = {module}
    tree = ast.parse((_KERNELS / f"{module}.py").read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            prefix, _, rest = node.module.partition("isthmus.engine.native.kernels")
            if prefix == "" and rest.startswith("."):
                found |= _sources(rest[1:])
            elif prefix == rest == "":
                found = found.union(*(_sources(name.name) for name in node.names))
            elif node.module in _LAYOUTS:
                found.add(_LAYOUTS[node.module])
    return frozenset(found)


@remembered
def _file_hash(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


@remembered
def _toolchain() -> bytes:
    versions = ";".join(f"{name}={importlib.metadata.version(name)}" for name in ("llvmlite", "numba"))
    return versions.encode() + _file_hash(Path(__file__).with_name("compiler.py"))


def forget_sources() -> None:
    """Read the kernels' sources again when they are next needed."""
    _sources.cache_clear()
    _file_hash.cache_clear()


def key(kernel: str, target: Target) -> str:
    """The hash of all that a kernel's code depends on: its sources, the compiler, the target."""
    digest = hashlib.sha256(_MAGIC + kernel.encode() + b"\0" + target.key.encode() + b"\0" + _toolchain())
    for name in sorted(_sources(kernel.partition(":")[0])):
        digest.update(_file_hash(_KERNELS / f"{name}.py"))
    return digest.hexdigest()


def path(kernel: str, target: Target) -> Path:
    """The file a kernel's code is kept in."""
    return directory() / f"{symbol(kernel)[8:]}-{target.name}-{key(kernel, target)[:24]}.o"


def read(kernel: str, target: Target) -> bytes | None:
    """The object code of a kernel, or None where there is none that can be trusted."""
    file = path(kernel, target)
    try:
        with file.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if status.st_uid not in (os.getuid(), 0) or status.st_mode & 0o022:
                return None
            content = stream.read()
    except OSError:
        return None
    header, code = content[:40], content[40:]
    if header != _MAGIC + hashlib.sha256(key(kernel, target).encode() + code).digest():
        return None
    return code


def write(kernel: str, target: Target, code: bytes) -> None:
    """Keep the object code of a kernel; other processes see the whole file or none."""
    file = path(kernel, target)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(_MAGIC + hashlib.sha256(key(kernel, target).encode() + code).digest() + code)
        os.chmod(temporary, 0o600)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
