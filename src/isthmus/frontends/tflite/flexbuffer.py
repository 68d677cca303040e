"""A reader of the numbers in a flexbuffer, the format of custom operators' options. Every offset is checked."""

from __future__ import annotations

import struct

# The types of a map and of a truth value.
_MAP, _BOOL = 9, 26
# Scalars that are stored inline, by type, with a format for 1, 2, 4 and 8 bytes.
_KINDS = {1: "bhiq", 2: "BHIQ", 3: "?efd", _BOOL: "BHIQ"}
MAX_ENTRIES = 1024
"""The most entries of a map."""


def scalars(data: bytes) -> dict[str, int | float | bool]:
    """Read the numbers of a map; other values are ignored.

    Raises `ValueError` if the bytes are not a valid map.
    """
    try:
        return _scalars(data)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ValueError(f"they are damaged ({error})") from error


def _scalars(data: bytes) -> dict[str, int | float | bool]:
    """Read the numbers of a map."""
    # The last byte of a flexbuffer is the width of its root, the one before it the root's type (upper six bits) and
    # width of elements (lower two bits). Before a map's values are their number, the width of the keys' offsets, and
    # the offset of the keys. A byte for the type of each value follows the values.
    if len(data) < 3:
        raise ValueError("they are empty")
    root_type, width = data[-2], data[-1]
    if root_type >> 2 != _MAP:
        raise ValueError("they are not a map")
    step = 1 << (root_type & 3)
    values = _follow(data, len(data) - 2 - width, width)
    count = _number(data, values - step, step)
    keys = _follow(data, values - 3 * step, step)
    key_step = _number(data, values - 2 * step, step)
    if count > MAX_ENTRIES or count * (step + 1) + values > len(data):
        raise ValueError(f"a map of {count} entries is larger than they are")
    numbers: dict[str, int | float | bool] = {}
    for entry in range(count):
        kind = data[values + count * step + entry] >> 2
        name_at = _follow(data, keys + entry * key_step, key_step)
        name = data[name_at : data.index(b"\0", name_at)].decode()
        if kind in _KINDS:
            value = struct.unpack_from("<" + _KINDS[kind][step.bit_length() - 1], data, values + entry * step)[0]
            numbers[name] = bool(value) if kind == _BOOL else value
    return numbers


def _number(data: bytes, at: int, width: int) -> int:
    """Read an unsigned number of 1, 2, 4 or 8 bytes."""
    if at < 0 or width not in (1, 2, 4, 8) or at + width > len(data):
        raise ValueError(f"{width} bytes at {at} lie outside")
    return int.from_bytes(data[at : at + width], "little")


def _follow(data: bytes, at: int, width: int) -> int:
    """Follow an offset, which counts back from its own position."""
    target = at - _number(data, at, width)
    if not 0 <= target < at:
        raise ValueError(f"an offset at {at} leads outside")
    return target
