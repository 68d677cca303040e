"""The LiteRT in this process: its version, its Python objects, and the functions it does not export.

Unknown versions are refused. A version that was not examined has no layout here (`structures.LAYOUTS`). A known layout
is tested on a live interpreter (`probe`) before the first delegate is created.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import re
import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.delegate import structures
from isthmus.errors import Code, QnnError

PACKAGE = "ai-edge-litert"
# tflite::impl::Interpreter::SetCustomAllocationForTensor(int, const TfLiteCustomAllocation&, int64_t).
_SET_CUSTOM_ALLOCATION = b"_ZN6tflite4impl11Interpreter28SetCustomAllocationForTensorEiRK22TfLiteCustomAllocationl"
# ELF's type of a section with symbols, and the layout of a symbol.
_SYMBOL_TABLE, _SYMBOL = 2, np.dtype([("name", "<u4"), ("info", "<u4"), ("value", "<u8"), ("size", "<u8")])

SetCustomAllocation = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)


def module() -> Any:
    """Return LiteRT's interpreter module."""
    try:
        return importlib.import_module("ai_edge_litert.interpreter")
    except ImportError as problem:
        rule, hint = f"it cannot be imported: {problem}", "Install isthmus[delegate]."
        raise QnnError(Code.COMMON_PLATFORM_NOT_SUPPORTED, "LiteRT", rule, hint) from None


def version() -> str:
    """Return the version of LiteRT."""
    module()
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def check_version(version: str) -> None:
    """Refuse a version whose layout is not known."""
    numbers = re.match(r"(\d+)\.(\d+)\b", version)
    layout = structures.LAYOUTS.get((int(numbers[1]), int(numbers[2]))) if numbers else None
    if layout is None or not layout.fits():
        versions = ", ".join(f"{major}.{minor}" for major, minor in structures.LAYOUTS)
        rule = f"its C structures are not known; known are those of {versions}, on machines of 64 bits"
        hint = f"Install {PACKAGE} of one of these versions."
        raise QnnError(Code.COMMON_PLATFORM_NOT_SUPPORTED, f"LiteRT {version}", rule, hint)


def native(interpreter: Any) -> Any:
    """Return the native object inside an interpreter."""
    kind = module().Interpreter
    if not isinstance(interpreter, kind):
        rule = f"must be an ai_edge_litert Interpreter, is a {type(interpreter).__name__}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "interpreter", rule)
    wrapper = getattr(interpreter, "_interpreter", None)
    if wrapper is None:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "interpreter", "it has ended")
    return wrapper


def check_no_views(interpreter: Any) -> None:
    """Refuse to move an interpreter's tensors while arrays of them exist, as LiteRT itself does."""
    native(interpreter)
    if not interpreter._safe_to_run():
        rule = "numpy views of its tensors are still alive and would dangle"
        raise QnnError(Code.COMMON_OPERATION_NOT_PERMITTED, "interpreter", rule, "Let go of them first.")


@lru_cache(maxsize=1)
def set_custom_allocation() -> Any:
    """Return LiteRT's SetCustomAllocationForTensor, which Python cannot reach, found in the library's symbols."""
    for path, base in _libraries():
        address = _address_of(path, _SET_CUSTOM_ALLOCATION)
        if address:
            return SetCustomAllocation(base + address)
    rule = "SetCustomAllocationForTensor cannot be found in its library, whose symbols were stripped"
    hint = "Use ordinary tensors with this build."
    raise QnnError(Code.COMMON_PLATFORM_NOT_SUPPORTED, f"LiteRT {version()}", rule, hint)


def has_code_at(address: int) -> bool:
    """Return whether an address is in a library of LiteRT's package."""
    return any(start <= address < end for _, start, end, _ in _mappings())


def _libraries() -> list[tuple[Path, int]]:
    """Return the loaded libraries of LiteRT's package with their base addresses."""
    return sorted({path: start for path, start, _, offset in _mappings() if offset == 0}.items())


def _mappings() -> Iterator[tuple[Path, int, int, int]]:
    """Yield the mappings of LiteRT's libraries: file, start address, end address, and offset in the file."""
    folder = Path(module().__file__).parent.resolve()
    with open("/proc/self/maps") as table:
        for line in table:
            fields = line.rstrip("\n").split(maxsplit=5)
            path = Path(fields[-1])
            if len(fields) == 6 and path.suffix == ".so" and path.parent.resolve() == folder:
                start, end = (int(part, 16) for part in fields[0].split("-"))
                yield path, start, end, int(fields[2], 16)


def _address_of(path: Path, symbol: bytes) -> int:
    """Return a symbol's offset from a library's load address; 0 if the file does not contain it."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        header = file.read(64)
        if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
            return 0
        # The offset of the section headers in the file, and the size and number of them.
        (at,), (entry, count) = struct.unpack_from("<Q", header, 40), struct.unpack_from("<HH", header, 58)

        def part(offset: int, nbytes: int) -> bytes:
            """Read a part of the file; empty if the file is too short."""
            if offset + nbytes > size:
                return b""
            file.seek(offset)
            return file.read(nbytes)

        table = part(at, entry * count)
        if entry != 64 or len(table) != entry * count:
            return 0
        sections = list(struct.iter_unpack("<IIQQQQIIQQ", table))
        for _, kind, _, _, offset, nbytes, link, *_ in sections:
            if kind != _SYMBOL_TABLE or link >= count or nbytes % _SYMBOL.itemsize:
                continue
            # The section of the symbols' names. A symbol has the position of its name in there.
            names = part(*sections[link][4:6])
            position = names.find(b"\0" + symbol + b"\0") + 1
            symbols = np.frombuffer(part(offset, nbytes), _SYMBOL)
            values = symbols["value"][(symbols["name"] == position) & (symbols["value"] != 0)]
            if position and len(values):
                return int(values[0])
    return 0
