"""Branches: neighbouring instructions that do not depend on each other, which threads share without waiting in between.

The plan decides which ones these are: a result that takes the place of another one depends on its last reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from isthmus.engine.native.program import BRANCHES, MAX_SHARES, Program
from isthmus.engine.native.signatures import KERNELS
from isthmus.engine.native.signatures.tiles import MAX_BRANCHES
from isthmus.engine.native.verification import Accesses, accesses


def join_branches(program: Program, io_offsets: Sequence[int]) -> Program:
    """Return a program of several threads, without repetitions, whose independent neighbours are shared together.

    `io_offsets` are the offsets of inputs and outputs in scratch, if they may be there.
    """
    kernels = (*program.kernels, BRANCHES)
    ends = [*program.table[1:, 1].tolist(), len(program.words)]
    words = program.words.tolist()
    table, new_words, labels = list[tuple[int, int, int]](), list[int](), list[str]()
    for group in _groups(program, list(accesses(program, io_offsets))):
        if len(group) > 1:
            shares = int(program.table[group.start : group.stop, 2].sum())
            table.append((len(kernels) - 1, len(new_words), shares))
            new_words += KERNELS[BRANCHES].encode({"instructions": len(group)})
            labels.append(BRANCHES)
        for index in group:
            number, begin, shares = program.table[index].tolist()
            table.append((number, len(new_words), shares))
            new_words += words[begin : ends[index]]
            labels.append(program.labels[index])
    if len(table) == len(program.table):
        return program
    rows, content = np.array(table, np.int64), np.array(new_words, np.int64)
    return replace(program, kernels=kernels, labels=tuple(labels), table=rows, words=content)


def _groups(program: Program, of: list[Accesses]) -> Iterator[range]:
    """Yield the instructions, those together that may be shared together."""
    begin = 0
    for index in range(1, len(of) + 1):
        if index == len(of) or not _may_join(program, of, range(begin, index), index):
            yield range(begin, index)
            begin = index


def _may_join(program: Program, of: list[Accesses], group: range, index: int) -> bool:
    """Return whether an instruction may be shared together with those before it."""
    shares = program.table[group.start : index + 1, 2]
    return (
        len(group) < MAX_BRANCHES
        # Instructions that a single thread computes take less time than handing them over.
        and bool((shares > 1).all())
        and int(shares.sum()) <= MAX_SHARES
        and not any(of[index].conflict(of[each], program) for each in group)
    )
