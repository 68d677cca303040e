"""The vocabulary in which kernels declare the words of their instructions.

A `Signature` lists the words in order: the type of each, and, for an operand, how many bytes the kernel accesses.
Extents are arithmetic over the other words, stored as text, so that a signature can be shown, hashed and compiled into
a check. Lowerings encode instructions by it, `verification` checks untrusted instructions by it, and `describe` makes
them readable.

Nothing here needs the kernel compiler: the process that runs models imports this module.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from isthmus.engine.native.program import OPERAND_BITS, Operand
from isthmus.errors import Code, QnnError
from isthmus.prepare.schedule import Pool

MAX_COUNT = 1 << 40
"""The largest count; no tensor may have more bytes."""
MAX_LIST = 32
"""The largest number of entries in a list of an instruction."""
Value = int | float | Sequence[int]
"""The value of a word before it is encoded; operands are integers too."""


AnyWord = TypeVar("AnyWord", bound="Word")


class IllTypedWord(Exception):
    """The error for a word that does not match its declaration."""


def _integer(value: Any) -> int:
    """Return a value as an int; operands and floats are refused, so that they are not taken for numbers by mistake."""
    if value.__class__ is int:
        return value
    if isinstance(value, (float, np.floating, Operand)) or not isinstance(value, (int, np.integer)):
        raise IllTypedWord(f"is {value!r}, not an integer")
    return int(value)


@dataclass(frozen=True)
class Word:
    """The declaration of one word of an instruction, or of several with one name."""

    name: str

    @classmethod
    def each(cls: type[AnyWord], names: str, *parts: Any, **named: Any) -> tuple[AnyWord, ...]:
        """Return a word for each of these names, which are separated by spaces, alike in all other fields."""
        return tuple(cls(name, *parts, **named) for name in names.split())

    @property
    def many(self) -> int | str:
        """The number of words, or the name of the `Count` that holds it."""
        return 1

    def encode(self, value: Any) -> list[int]:
        """Return the words that encode a value."""
        return [_integer(value)]

    def decode(self, words: Sequence[int]) -> Any:
        """Return the value that words encode."""
        return int(words[0])

    def meaning(self) -> tuple[Any, ...]:
        """Return the facts that decide how a stored instruction is read, for `Signature.digest`; limits may change."""
        return type(self).__name__, self.name


@dataclass(frozen=True)
class Number(Word):
    """An integer from `least` to `most`."""

    least: int = 0
    most: int = MAX_COUNT

    def encode(self, value: Any) -> list[int]:
        number = _integer(value)
        if not self.least <= number <= self.most:
            raise IllTypedWord(f"is {number}, not from {self.least} to {self.most}")
        return [number]


def flag(name: str) -> Number:
    """Return a number that is 0 or 1."""
    return Number(name, 0, 1)


def flags(names: str) -> tuple[Number, ...]:
    """Return a flag for each of these names, which are separated by spaces."""
    return Number.each(names, 0, 1)


def signed(name: str, most: int = MAX_COUNT) -> Number:
    """Return a number that may be negative."""
    return Number(name, -most, most)


@dataclass(frozen=True)
class Bits(Word):
    """Any 64 bits: a value as a tensor stores it."""


@dataclass(frozen=True)
class Real(Word):
    """A float, stored as the 64 bits of a double."""

    def encode(self, value: Any) -> list[int]:
        if not isinstance(value, (float, np.floating)):
            raise IllTypedWord(f"is {value!r}, not a float")
        return list(struct.unpack("<q", struct.pack("<d", float(value))))

    def decode(self, words: Sequence[int]) -> float:
        return float(struct.unpack("<d", struct.pack("<q", words[0]))[0])


@dataclass(frozen=True)
class Count(Word):
    """The length of each list that refers to it by name; it is encoded before them."""


@dataclass(frozen=True)
class Numbers(Word):
    """A list of integers. Its length is a number, or the name of the `Count` before it."""

    length: int | str
    least: int = 0
    most: int = MAX_COUNT

    @property
    def many(self) -> int | str:
        return self.length

    def encode(self, value: Any) -> list[int]:
        numbers = [_integer(number) for number in value]
        if any(not self.least <= number <= self.most for number in numbers):
            raise IllTypedWord(f"is {numbers}, not all from {self.least} to {self.most}")
        return numbers

    def decode(self, words: Sequence[int]) -> list[int]:
        return [int(word) for word in words]

    def meaning(self) -> tuple[Any, ...]:
        return *super().meaning(), self.length


@dataclass(frozen=True)
class Memory(Word):
    """An operand: a pool and an offset in it.

    Parameters
    ----------
    extent
        The number of bytes accessed from the offset on; or a pair: how far before it (at most 0) and how far after it.
        It is a Python expression over the names of other words, of the variant's numbers and of `Signature.where`.
    absent
        An expression for when the operand may be absent; the word is then 0. Empty if it is always needed.
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
            raise IllTypedWord("is written, but is among the constants")
        return encoded


class WorkSpace(Write):
    """Work space that is divided among the threads; its contents do not outlive the instruction.

    A kernel may store addresses there, so nothing else of the instruction may write to it.
    """


@dataclass(frozen=True)
class OffsetTable(Memory):
    """A constant whose entries determine which memory is accessed: offsets or indices.

    In extents and rules, its name has `least` and `most`: the limits of its entries, as lists if it has several
    columns.

    Parameters
    ----------
    extent
        The number of rows, where other operands have a number of bytes.
    kind
        The type of an entry, ``i32`` or ``i64``.
    columns
        The number of entries in a row.
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
    """A list of tables of 64-bit offsets. `length` names its `Count`, `rows` the list of the tables' lengths."""

    length: str
    rows: str

    @property
    def many(self) -> str:
        return self.length

    def encode(self, value: Any) -> list[int]:
        single = OffsetTable(self.name, self.rows)
        return [word for operand in value for word in single.encode(operand)]

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
        The kernel's name without a variant, ``module:function``.
    words
        The words in the order of the instruction.
    variants
        The existing variants, and the values of names that extents and rules use: for ``f32``, for example, a size
        of 4.
    where
        Expressions by name, as text; extents and rules may use the names.
    rules
        Other conditions under which the kernel stays within its operands and terminates.
    functions
        Functions that `where`, extents and rules call besides `signatures.arithmetic`.
    """

    kernel: str
    words: tuple[Word, ...]
    variants: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: {"": {}})
    where: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    @cached_property
    def at(self) -> dict[str, int]:
        """The index of each word, up to the first list of variable length."""
        indices: dict[str, int] = {}
        index = 0
        for word in self.words:
            indices[word.name] = index
            if isinstance(word.many, str):
                break
            index += word.many
        return indices

    @cached_property
    def _first_lists(self) -> dict[str, str]:
        """For the name of each count, the name of the first list with that length."""
        return {word.many: word.name for word in reversed(self.words) if isinstance(word.many, str)}

    @cached_property
    def digest(self) -> str:
        """A short hash of the meaning and order of the words; programs hold it, so that a changed kernel is noticed."""
        meaning = self.kernel, [word.meaning() for word in self.words], sorted(self.where.items())
        return hashlib.sha256(repr((meaning, layout())).encode()).hexdigest()[:16]

    def encode(self, values: Mapping[str, Value]) -> list[int]:
        """Return the words of an instruction; the counts of lists are derived from the lists."""
        try:
            return self._encode(dict(values))
        except IllTypedWord as problem:
            what = f"instruction of kernel '{self.kernel}'"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, str(problem)) from None

    def _encode(self, values: dict[str, Value]) -> list[int]:
        """Encode the values, which are removed one by one: any that remain have no word."""
        words: list[int] = []
        counts: dict[str, int] = {}
        for word in self.words:
            name = word.name
            if word.__class__ is Count:
                # A count is the length of the first list that uses it.
                counts[name] = count = len(values.get(self._first_lists[name], ()))  # type: ignore[arg-type]
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
        """Return the values of the instruction that begins at a word, and the index of the next instruction."""
        values: dict[str, Any] = {}
        for word in self.words:
            count = values[word.many] if isinstance(word.many, str) else word.many
            values[word.name] = word.decode(words[start : start + count])
            start += count
        return values, start


def layout() -> tuple[Any, ...]:
    """Return how operands are encoded: the position of a pool's number in a word, and the numbers of the pools."""
    return OPERAND_BITS, tuple((pool.name, int(pool)) for pool in Pool)
