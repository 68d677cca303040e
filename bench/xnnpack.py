"""XNNPACK, which computes for LiteRT, limited to AVX2.

It reads no variable about instructions (LiteRT's `RUY_PATHS` is for its other library, ruy), and LiteRT passes no flag
on. But it asks the processor once, keeps the answer in a table of its own, and chooses kernels by that table when a
network is loaded. LiteRT's library for Python has its local symbols, so the table can be found. Its second word has a
bit for each set of instructions, from SSE (bit 0) to AVX2 (bit 7); AVX-512, VNNI and AMX follow. `limit_to_avx2` clears
those that follow, before a network is loaded.
"""

from __future__ import annotations

import ctypes
import importlib
import struct
from pathlib import Path

LIBRARY = "libpywrap_litert_common.so"
SYMBOL = b"xnn_init_hardware_config"
"""The function that asks the processor and returns the table."""
AVX2 = 0xFF
"""The bits of AVX2 and everything before it, all of which a processor with AVX2 has."""


def limit_to_avx2() -> None:
    """Limit LiteRT in this process to AVX2, before it loads a network; raise `LookupError` if it cannot be limited."""
    bits = instructions()
    if bits.value & AVX2 != AVX2:
        raise LookupError("XNNPACK's table is not the one that is known here")
    bits.value &= AVX2


def instructions() -> ctypes.c_uint64:
    """Return the word of XNNPACK's table that has a bit for each set of instructions, in its place in memory."""
    importlib.import_module("ai_edge_litert.interpreter")
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if LIBRARY in line]
    if not lines:
        raise LookupError(f"LiteRT has no library {LIBRARY}")
    start = min(int(line[0].split("-")[0], 16) for line in lines)
    address = _address(Path(lines[0][-1]).read_bytes(), SYMBOL)
    if address is None:
        raise LookupError("LiteRT's library has no local symbols")
    table = ctypes.CFUNCTYPE(ctypes.c_void_p)(start + address)()
    if table is None:
        raise LookupError("XNNPACK does not know the processor")
    return ctypes.c_uint64.from_address(table + 8)


def _address(library: bytes, symbol: bytes) -> int | None:
    """Return the address of a local symbol of a 64-bit ELF file."""
    (offset,) = struct.unpack_from("<Q", library, 40)
    size, count = struct.unpack_from("<HH", library, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", library, offset + i * size) for i in range(count)]
    for _, kind, _, _, start, length, strings, *_ in headers:
        if kind != 2:  # SHT_SYMTAB
            continue
        names = headers[strings][4]
        wanted = library.find(b"\0" + symbol + b"\0", names, names + headers[strings][5]) + 1 - names
        for place in range(start, start + length, 24):
            name, _, _, _, value = struct.unpack_from("<IBBHQ", library, place)
            if name == wanted:
                return int(value)
    return None
