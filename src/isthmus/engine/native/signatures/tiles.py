"""Signatures of the kernels in `kernels.tiles`, which tiling needs besides the kernels of whole steps.

Some instructions control others. The instructions after `REPEAT` are executed several times. Cursors are pools that
advance: an operand in a cursor is in another pool, one stride further each time. The instructions after `PIPELINE` are
repeated too, pipelined on several threads: each thread takes one iteration after the other, with an iteration's own
data in the thread's arena. `VARY` writes the words that differ between the instructions of different tiles. The
instructions after `BRANCHES` do not depend on each other, and threads share them without waiting in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.engine.native.words import MAX_COUNT, Count, Number, Numbers, Signature, Word

MAX_TIMES = 4096
"""The largest number of repetitions; no tensor has enough rows for more tiles to be useful."""
MAX_BRANCHES = 16
"""The largest number of instructions that are shared together."""

_REPEATED: tuple[Word, ...] = (Number("instructions", 1), Number("times", 1, MAX_TIMES), Number("first_cursor"))
_CURSORS: tuple[Word, ...] = (
    Count("cursors"),
    Numbers("pools", "cursors", 2),
    Numbers("strides", "cursors", -MAX_COUNT),
)
REPEAT = Signature("tiles:repeat", (*_REPEATED, *_CURSORS))
PIPELINE = Signature(
    "pipelining:take",
    (
        # The first cursor is the thread's arena in scratch, `arena_bytes` further for each thread.
        *_REPEATED,
        Number("arena_bytes"),
        # How many instructions an iteration must be ahead of the next one, beyond the one that the next is about to
        # execute.
        Number("lead"),
        *_CURSORS,
    ),
)
BRANCHES = Signature("pipelining:branches", (Number("instructions", 2, MAX_BRANCHES),))
VARY = Signature(
    "tiles:vary",
    (
        Count("targets"),
        # The offset of each changed instruction's words, and a bit mask of the words that change.
        Numbers("firsts", "targets"),
        Numbers("masks", "targets", 1, (1 << 63) - 1),
        Count("changes"),
        # The new values of these words, instruction by instruction.
        Numbers("values", "changes", -(1 << 63), (1 << 63) - 1),
    ),
)


def changes(words: Sequence[int], start: int) -> dict[int, dict[int, int]]:
    """Return the changes of the `VARY` instruction at a word: for the first word of each changed instruction, its new
    values by index. All indices are those of a program's words.

    If there are more values than bits in the masks, or fewer, the surplus is ignored.
    """
    values, _ = VARY.decode(words, start)
    new_values = iter(values["values"])
    return {
        first: dict(zip((first + bit for bit in range(mask.bit_length()) if mask >> bit & 1), new_values, strict=False))
        for first, mask in zip(values["firsts"], values["masks"], strict=True)
    }
