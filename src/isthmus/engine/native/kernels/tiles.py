"""Kernels that control others where steps are computed tile by tile: advancing cursors, changing words."""

from __future__ import annotations

from typing import Any

from isthmus.engine.native.control import WORDS
from isthmus.engine.native.kernels.base import device, generated, kernel, load_i64, store_i64, word
from isthmus.engine.native.signatures.tiles import REPEAT, VARY
from isthmus.engine.native.target import Target


@device
def point_cursors(bases, first, cursors, pools, strides, iteration):
    """Point cursors from number `first` on at their positions in an iteration."""
    for i in range(cursors):
        store_i64(bases, first + i, load_i64(bases, word(pools, i)) + iteration * word(strides, i))


@generated
def repeat(target: Target, variant: str) -> Any:
    """Point all cursors at their positions in an iteration, whose number comes as `tid`. The executor repeats."""

    @kernel(REPEAT)
    def execute(first_cursor, cursors, pools, strides, bases, tid):
        point_cursors(bases, first_cursor, cursors, pools, strides, tid)

    return execute


@generated
def vary(target: Target, variant: str) -> Any:
    """Write the words that differ between the instructions of different tiles into the program.

    For each changed instruction, `firsts` has the index of its first word and `masks` the words that change, as bits.
    `values` has the new words in order. The address of the program's words is in the header of the base table.
    """

    @kernel(VARY)
    def execute(targets, firsts, masks, values, bases):
        program, value = load_i64(bases, WORDS), 0
        for i in range(targets):
            index, mask = word(firsts, i), word(masks, i)
            while mask > 0:
                if mask & 1:
                    store_i64(program, index, word(values, value))
                    value += 1
                mask >>= 1
                index += 1

    return execute
