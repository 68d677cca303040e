"""What a filter of system calls answers, computed as the kernel computes it."""

from __future__ import annotations

from collections.abc import Sequence

_LOAD, _RETURN = 0x20, 0x06


def filter_answer(
    instructions: Sequence[tuple[int, int, int, int]], architecture: int, number: int, arguments: Sequence[int] = ()
) -> int:
    """Return what a filter answers to a system call; missing arguments are 0."""
    data = {0: number, 4: architecture}
    data |= {16 + 8 * index: value & 0xFFFFFFFF for index, value in enumerate((*arguments, *[0] * 6)[:6])}
    place, loaded = 0, 0
    while True:
        code, yes, no, value = instructions[place]
        place += 1
        if code == _RETURN:
            return value
        if code == _LOAD:
            loaded = data[value]
        else:
            jumps = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
            place += yes if jumps else no
