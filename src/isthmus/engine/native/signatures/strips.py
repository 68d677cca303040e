"""Words of the kernels in `kernels.strips`: what computing by strips needs besides the kernels of whole steps.

Some instructions are about others. Those that follow `REPEAT` are executed several times. Cursors are pools that move:
operands in them are bytes of another pool, a stride further each time. Those that follow `TURNS` are too, by several
threads at once: one takes a turn after the other, with what a turn makes for itself in a lane of its own. `VARY` writes
words of instructions that differ from strip to strip in these alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.engine.native.words import (
    LARGEST,
    Count,
    Number,
    Numbers,
    ReadOperand,
    Real,
    Signature,
    Write,
    flag,
    signed,
)

MOST_TIMES = 4096
"""No more repetitions: no tensor has so many rows that strips of them would be worth it."""
_INT32 = 1 << 31

REPEAT = Signature(
    "strips:repeat",
    (
        Number("instructions", 1),
        Number("times", 1, MOST_TIMES),
        Number("first_cursor"),
        Count("cursors"),
        Numbers("pools", "cursors", 2),
        Numbers("strides", "cursors", -LARGEST),
    ),
)
TURNS = Signature(
    "turns:take",
    (
        Number("instructions", 1),
        Number("times", 1, MOST_TIMES),
        # The first cursor is the thread's lane: bytes of scratch, so many further for each thread.
        Number("first_cursor"),
        Number("lane_bytes"),
        # How many instructions a turn must be ahead of the next one, besides the one that this is about to execute.
        Number("lead"),
        Count("cursors"),
        Numbers("pools", "cursors", 2),
        Numbers("strides", "cursors", -LARGEST),
    ),
)
VARY = Signature(
    "strips:vary",
    (
        Count("targets"),
        # Where the words of each changed instruction begin, and which of them change, a bit for each.
        Numbers("firsts", "targets"),
        Numbers("masks", "targets", 1, (1 << 63) - 1),
        Count("changes"),
        # What they are from now on, for one instruction after the other.
        Numbers("values", "changes", -(1 << 63), (1 << 63) - 1),
    ),
)
ADD_ROWS = Signature(
    "strips:add_rows",
    (
        Write("sums", "channels * 4"),
        ReadOperand("x", "pixels * channels * 4"),
        Number("pixels"),
        Number("channels", 1),
        flag("goes_on"),
        Real("factor"),
    ),
)
ADD_BYTES = Signature(
    "strips:add_bytes",
    (
        Write("sums", "channels * 4"),
        ReadOperand("x", "pixels * channels"),
        Number("pixels"),
        Number("channels", 1),
        flag("goes_on"),
    ),
    variants={"s8": {}, "u8": {}},
)
MEAN_OF_SUMS = Signature(
    "strips:mean_of_sums",
    (
        ReadOperand("sums", "channels * 4"),
        Write("y", "channels"),
        Number("channels", 1),
        Real("scale"),
        signed("offset"),
        Real("bias"),
        signed("zero", _INT32),
        signed("least", _INT32),
        signed("most", _INT32),
    ),
    variants={"s8": {}, "u8": {}},
)


def changes(words: Sequence[int], start: int) -> dict[int, dict[int, int]]:
    """What an instruction that changes others makes of them: by where each begins, its changed words and their places.

    A number of values that is not the number of places leaves some of either out.
    """
    values, _ = VARY.decode(words, start)
    left = iter(values["values"])
    return {
        first: dict(zip((first + bit for bit in range(mask.bit_length()) if mask >> bit & 1), left, strict=False))
        for first, mask in zip(values["firsts"], values["masks"], strict=True)
    }


SIGNATURES = (REPEAT, TURNS, VARY, ADD_ROWS, ADD_BYTES, MEAN_OF_SUMS)
