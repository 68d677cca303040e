"""Compiled kernels on disk: one file per kernel and target, named by everything that it depends on.

A wheel contains all kernels (see `isthmus.compiled.shipped`); others are compiled into the user's folder. Damaged files
are compiled again. Files that another user could have written are refused (see `isthmus.compiled.folder`).
"""

from __future__ import annotations

import ast
import hashlib
import re
from functools import cache as remembered
from pathlib import Path

from isthmus.compiled import shipped
from isthmus.compiled.folder import Folder
from isthmus.compiled.toolchain import toolchain, usage
from isthmus.engine.native import callback, control, doorbell
from isthmus.engine.native.signatures import KERNELS
from isthmus.engine.native.target import Target
from isthmus.engine.native.words import layout
from isthmus.errors import Code

_KERNELS = Path(__file__).parent / "kernels"
_SIGNATURES = "isthmus.engine.native.signatures."
# Sources of numbers that are compiled into kernels, by the module that kernels import.
_OTHERS = {
    "isthmus.compiled.instructions": "../../../compiled/instructions",
    "isthmus.engine.native.control": "../control",
    "isthmus.graph.evaluation": "../../../graph/evaluation/random",
    "isthmus.prepare.schedule": "../../../prepare/schedule",
}


def symbol(kernel: str) -> str:
    """Return the C name of a kernel."""
    return "isthmus_" + re.sub(r"[^A-Za-z0-9]", "_", kernel)


@remembered
def _sources(module: str) -> frozenset[str]:
    """Return the source files on which a kernel module depends, relative to the kernels' folder, without ``.py``."""
    # These are the module itself and, recursively, what it imports of kernels, signatures and other sources of numbers.
    sources = {module}
    tree = ast.parse((_KERNELS / f"{module}.py").read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            prefix, _, rest = node.module.partition("isthmus.engine.native.kernels")
            if prefix == "" and rest.startswith("."):
                sources |= _sources(rest[1:])
            elif prefix == rest == "":
                sources = sources.union(*(_sources(name.name) for name in node.names))
            elif f"{node.module}." == _SIGNATURES:
                sources.update(f"../signatures/{name.name}" for name in node.names)
            elif node.module.startswith(_SIGNATURES):
                sources.add(f"../signatures/{node.module.removeprefix(_SIGNATURES)}")
            else:
                names = node.module, *(f"{node.module}.{name.name}" for name in node.names)
                sources.update(_OTHERS[name] for name in names if name in _OTHERS)
    return frozenset(sources)


@remembered
def _file_hash(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


@remembered
def _toolchain() -> bytes:
    """Return a hash of the compiler: numba, LLVM and the module that calls them."""
    return toolchain() + _file_hash(Path(__file__).with_name("compiler.py"))


def _layouts(kernel: str) -> bytes:
    """Return, as bytes to hash, what is compiled into a kernel but is not in its source files."""
    # For a kernel that programs call, this is its signature and the encoding of operands. The others have no signature:
    # it is that encoding, the constants of shared memory's layouts, and the error codes.
    if kernel in KERNELS:
        return repr((KERNELS[kernel].digest, layout())).encode()
    modules = (callback, control, doorbell)
    shared = [sorted(item for item in vars(module).items() if item[0].isupper()) for module in modules]
    return repr((layout(), shared, [(code.name, int(code)) for code in Code])).encode()


def forget_sources() -> None:
    """Forget the kernels' sources, so that they are read again when needed."""
    _sources.cache_clear()
    _file_hash.cache_clear()
    shipped_key.cache_clear()


def key(kernel: str, target: Target) -> str:
    """Return a hash of all that a kernel's code depends on: sources, signature, layouts, compiler and target."""
    digest = hashlib.sha256(kernel.encode() + b"\0" + target.key.encode() + b"\0" + _toolchain())
    digest.update(_layouts(kernel))
    for name in sorted(_sources(kernel.partition(":")[0])):
        digest.update(_file_hash(_KERNELS / f"{name}.py"))
    return digest.hexdigest()


@remembered
def shipped_key(target: Target) -> str:
    """Return a hash of all that the shipped code of any kernel depends on, except for the compiler's versions.

    It is one key for all kernels of a target, since that takes less time: no source has to be parsed. A wheel's sources
    are those that its kernels were compiled from.
    """
    digest = hashlib.sha256(target.key.encode() + b"\0" + usage())
    for file in sorted(shipped_sources()):
        digest.update(_file_hash(file))
    return digest.hexdigest()


def shipped_sources() -> set[Path]:
    """Return the source files that the code of any kernel depends on."""
    engine = _KERNELS.parent
    return {
        *_KERNELS.glob("*.py"),
        *(engine / "signatures").glob("*.py"),
        *(engine / f"{name}.py" for name in ("callback", "compiler", "doorbell", "words")),
        *((_KERNELS / f"{name}.py").resolve() for name in _OTHERS.values()),
        engine.parent.parent / "errors.py",
    }


def shipped_file(kernel: str) -> str:
    """Return the name of a kernel's file in the archive of a target."""
    return f"{symbol(kernel)[8:]}.o"


def file_name(kernel: str, target: Target) -> str:
    """Return the name of a kernel's file; it changes with everything that the code depends on."""
    return f"{symbol(kernel)[8:]}-{target.name}-{key(kernel, target)[:24]}.o"


def path(kernel: str, target: Target) -> Path:
    """Return the path of the file that holds a kernel's code."""
    return Folder.of_user().path / file_name(kernel, target)


def read_shipped(kernel: str, target: Target) -> bytes | None:
    """Return a kernel's object code if it came with this package."""
    return shipped.read(target.name, shipped_file(kernel), shipped_key(target))


def read(kernel: str, target: Target) -> bytes | None:
    """Return a kernel's object code: shipped, or from the user's folder. None if it is absent or damaged."""
    code = read_shipped(kernel, target)
    return code if code is not None else Folder.of_user().read(file_name(kernel, target), key(kernel, target))
