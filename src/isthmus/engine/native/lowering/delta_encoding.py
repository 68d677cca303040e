"""Shrinks a tiled program: instructions of one step in several tiles store the words that they have in common once.

They differ in where they read and write, and in a few row counts. An earlier instruction writes the differing words
into one shared copy, which all of them use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from isthmus.engine.native.program import PIPELINE, REPEAT, VARY
from isthmus.engine.native.signatures import KERNELS
from isthmus.engine.native.words import MAX_LIST

MAX_WORDS = 63
"""The largest number of words of an instruction whose words may change."""
# The size in bytes of an instruction besides its words.
_A_ROW = 12
# The assumed number of instructions that one other instruction changes; there may be more.
_TOGETHER = 4

Key = tuple[int, str]
"""Kernel and label, which the instructions of one step have in common in all tiles."""


@dataclass(frozen=True)
class Instruction:
    """One row of a program's table, with its words in place of their index."""

    kernel: int
    words: tuple[int, ...]
    shares: int
    label: str


@dataclass
class _Change:
    """An instruction that changes others.

    Attributes
    ----------
    values
        For each changed instruction, all words that it has afterwards.
    words
        How many words change in all of them.
    """

    values: dict[Key, tuple[int, ...]] = field(default_factory=dict)
    words: int = 0


@dataclass(frozen=True)
class Varied:
    """The table, words and labels of a `Program` in which some instructions change others."""

    table: list[tuple[int, int, int]]
    words: list[int]
    labels: list[str]


def encode_deltas(instructions: Sequence[Instruction], kernels: dict[str, int]) -> Varied:
    """Return the table of instructions; `kernels` numbers their names, and the changing kernel is added to it."""
    repeat = {kernels.get(REPEAT, -1), kernels.get(PIPELINE, -1)}
    places = _changing_words(instructions, repeat)
    rows = _with_changes(instructions, repeat, places)
    if any(isinstance(row, _Change) for row in rows):
        kernels.setdefault(VARY, len(kernels))
    return _laid_out(rows, kernels.get(VARY, -1), places)


def _group(instructions: Sequence[Instruction], repeat: Collection[int]) -> Iterator[Sequence[Instruction]]:
    """Yield the instructions in order, those of a repetition together; `repeat` has the repeating kernels' numbers."""
    at = 0
    while at < len(instructions):
        # The first word of a repeating instruction is the number of those that it repeats.
        end = at + 1 + (instructions[at].words[0] if instructions[at].kernel in repeat else 0)
        yield instructions[at:end]
        at = end


def _changing_words(instructions: Sequence[Instruction], repeat: Collection[int]) -> dict[Key, tuple[int, ...]]:
    """Return the indices of the words that change, for each instruction where that makes the program smaller."""
    # The words of each instruction in the order of tiles, without immediate repetitions.
    forms: dict[Key, list[tuple[int, ...]]] = {}
    excluded: set[Key] = set()
    for together in _group(instructions, repeat):
        group: dict[Key, tuple[int, ...]] = {}
        for one in together:
            key = one.kernel, one.label
            # Within a repetition, no instruction between two others could change the second.
            if one.kernel in repeat or group.setdefault(key, one.words) != one.words:
                excluded.add(key)
        for key, words in group.items():
            seen = forms.setdefault(key, [])
            if not seen or seen[-1] != words:
                seen.append(words)
    changing: dict[Key, tuple[int, ...]] = {}
    for key, seen in forms.items():
        length = len(seen[0])
        if key in excluded or len(seen) < 2 or length > MAX_WORDS or any(len(words) != length for words in seen):
            continue
        places = tuple(place for place in range(length) if len({words[place] for words in seen}) > 1)
        # A change costs two words, the new words and a part of a row; it saves all words of a form but the first.
        change = 8 * (2 + len(places)) + _A_ROW // _TOGETHER
        if len(places) <= MAX_LIST and len(seen) * change < 8 * length * (len(set(seen)) - 1):
            changing[key] = places
    return changing


def _with_changes(
    instructions: Sequence[Instruction], repeat: Collection[int], places: dict[Key, tuple[int, ...]]
) -> list[Instruction | _Change]:
    """Return the instructions with changes before them; `places` has the indices of the words that change."""
    # New words join the latest change, unless that is full or the instruction was executed after it with its old words.
    now: dict[Key, tuple[int, ...]] = {}
    rows: list[Instruction | _Change] = []
    change, used = _Change(), set[Key]()
    for together in _group(instructions, repeat):
        for one in together:
            key = one.kernel, one.label
            if key not in places or now.get(key) == one.words:
                continue
            full = len(change.values) == MAX_LIST or change.words + len(places[key]) > MAX_LIST
            if not change.values or full or key in used:
                change, used = _Change(), set()
                rows.append(change)
            change.values[key] = now[key] = one.words
            change.words += len(places[key])
        used.update((one.kernel, one.label) for one in together)
        rows += together
    return rows


def _laid_out(rows: list[Instruction | _Change], vary: int, places: dict[Key, tuple[int, ...]]) -> Varied:
    """Return the rows as a table: instructions with equal or changing words use those of the first one."""
    # `vary` is the number of the changing kernel, `places` has the indices of the words that change.
    # First the index of each instruction's words, since a change may refer to instructions after it; then the words.
    starts: dict[Key | tuple[int, tuple[int, ...]], int] = {}
    begins: list[int] = []
    end = 0
    for row in rows:
        if isinstance(row, _Change):
            begins.append(end)
            end += 2 + 2 * len(row.values) + row.words
            continue
        key = row.kernel, row.label
        begin = starts.setdefault(key if key in places else (row.kernel, row.words), end)
        begins.append(begin)
        if begin == end:
            end += len(row.words)
    result = Varied([], [], [])
    for row, begin in zip(rows, begins, strict=True):
        if isinstance(row, _Change):
            firsts = [starts[key] for key in row.values]
            masks = [sum(1 << place for place in places[key]) for key in row.values]
            values = [words[place] for key, words in row.values.items() for place in places[key]]
            words = KERNELS[VARY].encode({"firsts": firsts, "masks": masks, "values": values})
            result.table.append((vary, begin, 1))
            result.labels.append(VARY)
        else:
            words = list(row.words)
            result.table.append((row.kernel, begin, row.shares))
            result.labels.append(row.label)
        if begin == len(result.words):
            result.words.extend(words)
    return result
