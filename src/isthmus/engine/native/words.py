"""The vocabulary in which kernels declare the words of their instructions.

A `Signature` lists the words in order: what each one is, and of an operand how many bytes the kernel touches there.
Extents are arithmetic over the other words, kept as text: so a declaration can be shown, hashed and made into a check.
Lowerings write instructions by it, `verification` checks those of others by it, and `describe` makes them readable.

Nothing here needs the compiler of kernels: the process that runs models imports it.
"""

from __future__ import annotations

import hashlib
import struct
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from isthmus.engine.native.program import OPERAND_BITS, Operand
from isthmus.errors import Code, QnnError
from isthmus.prepare.schedule import Pool

LARGEST = 1 << 40
"""No count is larger: it would count bytes of a tensor that nobody may have."""
LONGEST_LIST = 32
Value = int | float | Sequence[int]


class IllTypedWord(Exception):
    """A word that is not what its declaration says."""


def _whole(value: Any) -> int:
    if value.__class__ is int:
        return value
    if isinstance(value, (float, np.floating, Operand)) or not isinstance(value, (int, np.integer)):
        raise IllTypedWord(f"is {value!r}, not a whole number")
    return int(value)


@dataclass(frozen=True)
class Word:
    """One word of an instruction, or several of one name."""

    name: str

    @property
    def many(self) -> int | str:
        """How many words it is, or the name of the `Count` that says it."""
        return 1

    def encode(self, value: Any) -> list[int]:
        """The words that hold a value."""
        return [_whole(value)]

    def decode(self, words: Sequence[int]) -> Any:
        """The value that words hold."""
        return int(words[0])

    def meaning(self) -> tuple[Any, ...]:
        """What must not change while instructions in this form are about; limits may."""
        return type(self).__name__, self.name


@dataclass(frozen=True)
class Number(Word):
    """A whole number within limits."""

    least: int = 0
    most: int = LARGEST

    def encode(self, value: Any) -> list[int]:
        number = _whole(value)
        if not self.least <= number <= self.most:
            raise IllTypedWord(f"is {number}, not from {self.least} to {self.most}")
        return [number]


def flag(name: str) -> Number:
    """A number that is 0 or 1."""
    return Number(name, 0, 1)


def signed(name: str, most: int = LARGEST) -> Number:
    """A number that may be negative."""
    return Number(name, -most, most)


@dataclass(frozen=True)
class Bits(Word):
    """Any 64 bits: a value as a tensor stores it."""


@dataclass(frozen=True)
class Real(Word):
    """A float, as the bits of a double."""

    def encode(self, value: Any) -> list[int]:
        if not isinstance(value, (float, np.floating)):
            raise IllTypedWord(f"is {value!r}, not a float")
        return list(struct.unpack("<q", struct.pack("<d", float(value))))

    def decode(self, words: Sequence[int]) -> float:
        return float(struct.unpack("<d", struct.pack("<q", words[0]))[0])


@dataclass(frozen=True)
class Count(Word):
    """How many numbers each of the lists has that name it."""


@dataclass(frozen=True)
class Numbers(Word):
    """A list of whole numbers. Its length is a number, or the name of the `Count` before it."""

    length: int | str
    least: int = 0
    most: int = LARGEST

    @property
    def many(self) -> int | str:
        return self.length

    def encode(self, value: Any) -> list[int]:
        numbers = [_whole(number) for number in value]
        if any(not self.least <= number <= self.most for number in numbers):
            raise IllTypedWord(f"is {numbers}, not all from {self.least} to {self.most}")
        return numbers

    def decode(self, words: Sequence[int]) -> list[int]:
        return [int(word) for word in words]

    def meaning(self) -> tuple[Any, ...]:
        return *super().meaning(), self.length


@dataclass(frozen=True)
class Memory(Word):
    """An operand: a pool and where in it something begins.

    Parameters
    ----------
    extent
        How many bytes are touched from there on; or a pair, how far before it (not above 0) and how far after.
    absent
        When there may be none: the word is 0 then.
    """

    extent: str
    absent: str = ""

    def encode(self, value: Any) -> list[int]:
        if value.__class__ is not Operand:
            raise IllTypedWord(f"is {value!r}, not an operand")
        if not value and not self.absent:
            raise IllTypedWord("is absent")
        return [int(value)]

    def decode(self, words: Sequence[int]) -> Operand:
        return Operand(words[0])

    def meaning(self) -> tuple[Any, ...]:
        return *super().meaning(), self.extent


class ReadOperand(Memory):
    """An operand that is only read."""


class Write(Memory):
    """An operand that is written, and perhaps read back."""

    def encode(self, value: Any) -> list[int]:
        encoded = super().encode(value)
        if value.pool == Pool.CONSTANT:
            raise IllTypedWord("is written, but lies among the constants")
        return encoded


class WorkSpace(Write):
    """Work space of which each thread has a part: nothing in it outlives the instruction.

    A kernel may keep addresses there, so that nothing else of the instruction may be written to it.
    """


@dataclass(frozen=True)
class OffsetTable(Memory):
    """A constant whose entries decide which memory is touched: offsets or indices. `extent` counts its rows.

    In extents and rules its name has `least` and `most`: the limits of its entries, a list of them where it has several
    columns.
    """

    kind: str = "i64"
    columns: int = 1

    def encode(self, value: Any) -> list[int]:
        encoded = super().encode(value)
        if value and value.pool != Pool.CONSTANT:
            raise IllTypedWord("names memory, but is not a constant")
        return encoded

    def meaning(self) -> tuple[Any, ...]:
        return *super().meaning(), self.kind, self.columns


@dataclass(frozen=True)
class OffsetTables(Word):
    """A list of tables of 64-bit offsets. `length` names its `Count`, `rows` the list of how many entries each has."""

    length: str
    rows: str

    @property
    def many(self) -> str:
        return self.length

    def encode(self, value: Any) -> list[int]:
        one = OffsetTable(self.name, self.rows)
        return [word for operand in value for word in one.encode(operand)]

    def decode(self, words: Sequence[int]) -> list[Operand]:
        return [Operand(word) for word in words]

    def meaning(self) -> tuple[Any, ...]:
        return *super().meaning(), self.length, self.rows


@dataclass(frozen=True, eq=False)
class Signature:
    """The words of a kernel's instructions, declared once.

    Parameters
    ----------
    kernel
        Its name without a variant, ``module:function``.
    words
        In the order of the instruction.
    variants
        The variants that exist, and the numbers that each stands for in extents and rules.
    where
        Names for what several extents need, as text like those.
    rules
        What else must hold for the kernel to stay within its operands, or to come to an end.
    functions
        What `where`, extents and rules call besides `signatures.arithmetic`.
    """

    kernel: str
    words: tuple[Word, ...]
    variants: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: {"": {}})
    where: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    @cached_property
    def at(self) -> dict[str, int]:
        """Where each word stands; of lists after the first of unknown length nobody knows."""
        places: dict[str, int] = {}
        place = 0
        for word in self.words:
            places[word.name] = place
            if isinstance(word.many, str):
                break
            place += word.many
        return places

    @cached_property
    def place(self) -> Any:
        """The same by attributes, in the form in which kernels take numbers as constants."""
        return namedtuple("Place", self.at)(**self.at)

    @cached_property
    def _counted(self) -> dict[str, str]:
        """For each count the first list that has so many numbers."""
        return {word.many: word.name for word in reversed(self.words) if isinstance(word.many, str)}

    @cached_property
    def digest(self) -> str:
        """A short hash of what the words mean and in which order they stand."""
        meaning = self.kernel, [word.meaning() for word in self.words], sorted(self.where.items())
        return hashlib.sha256(repr((meaning, layout())).encode()).hexdigest()[:16]

    def encode(self, values: Mapping[str, Value]) -> list[int]:
        """The words of an instruction; counts of lists follow from the lists."""
        try:
            return self._encode(dict(values))
        except IllTypedWord as problem:
            what = f"instruction of kernel '{self.kernel}'"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, str(problem)) from None

    def _encode(self, values: dict[str, Value]) -> list[int]:
        words: list[int] = []
        counts: dict[str, int] = {}
        for word in self.words:
            name = word.name
            if word.__class__ is Count:
                # It is as long as the first list that it counts.
                counts[name] = count = len(values.get(self._counted[name], ()))  # type: ignore[arg-type]
                words.append(count)
                continue
            if name not in values:
                raise IllTypedWord(f"word '{name}' is missing")
            try:
                encoded = word.encode(values.pop(name))
            except IllTypedWord as problem:
                raise IllTypedWord(f"word '{name}' {problem}") from None
            length = word.many
            if len(encoded) != (counts[length] if isinstance(length, str) else length):
                raise IllTypedWord(f"list '{name}' has {len(encoded)} numbers")
            words += encoded
        if values:
            raise IllTypedWord(f"there is no word '{next(iter(values))}'")
        return words

    def decode(self, words: Sequence[int], start: int = 0) -> tuple[dict[str, Any], int]:
        """The values of an instruction that begins at a word, and where the next one begins."""
        values: dict[str, Any] = {}
        for word in self.words:
            count = values[word.many] if isinstance(word.many, str) else word.many
            values[word.name] = word.decode(words[start : start + count])
            start += count
        return values, start


def layout() -> tuple[Any, ...]:
    """How all instructions name memory: what compiled kernels and programs depend on besides the words themselves."""
    return OPERAND_BITS, tuple((pool.name, int(pool)) for pool in Pool)
