"""Checks that a program stays within its memory, instruction by instruction, before any of it is compiled or run.

Each signature is compiled once to a Python function. It reads an instruction's words and checks every number, table and
operand against the program's memory. So an untrusted program can do nothing worse than compute wrong results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from isthmus.engine.native import words as declared
from isthmus.engine.native.program import BRANCHES, OPERAND_BITS, PIPELINE, REPEAT, VARY, Program
from isthmus.engine.native.signatures import KERNELS, arithmetic, parts_of
from isthmus.engine.native.signatures.tiles import changes
from isthmus.engine.native.target import by_name
from isthmus.errors import QnnError
from isthmus.prepare.schedule import Pool

_OFFSET = (1 << OPERAND_BITS) - 1
_KINDS: dict[str, np.dtype] = {"i32": np.dtype("<i4"), "i64": np.dtype("<i8")}
# The methods of `_Memory` that check operands which are not only read, by the kind of word.
_ACCESSES: dict[type[declared.Word], str] = {declared.WorkSpace: "work", declared.Write: "write"}
# How often the tables of a program may read all constants together, which limits the time of the check.
_READINGS = 4
Span = tuple[int, int, int]
"""The bytes that an operand uses: a pool, the first byte, and the byte after the last one."""


class Unsafe(Exception):
    """The error for an instruction that is not allowed."""


@dataclass
class Accesses:
    """The bytes that an instruction reads and writes."""

    reads: list[Span] = field(default_factory=list)
    writes: list[Span] = field(default_factory=list)

    def conflict(self, other: Accesses, program: Program) -> bool:
        """Return whether one of two instructions writes what the other accesses.

        An input and an output are the same bytes if clients may put them into the same memory.
        """
        first_output = Pool.IO + len(program.inputs)
        return any(
            (write[0] == span[0] and write[1] < span[2] and span[1] < write[2])
            or (span[0] - Pool.IO, write[0] - first_output) in program.shareable_io
            for one, two in ((self, other), (other, self))
            for write in one.writes
            for span in (*two.reads, *two.writes)
        )


def accesses(program: Program, io_offsets: Sequence[int] = ()) -> Iterator[Accesses]:
    """Yield what each instruction of a program without repetitions accesses; `io_offsets` as for `verify`."""
    checks = [(_check_of(KERNELS[kernel]), parts_of(kernel)) for kernel in program.kernels]
    memory, words, lanes = _Memory(program, io_offsets), program.words.tolist(), by_name(program.target).lanes
    for number, start, shares in program.table.tolist():
        check, parts = checks[number]
        memory.accesses = Accesses()
        check(words, start, shares, lanes, parts, memory)
        yield memory.accesses


def verify(program: Program, io_offsets: Sequence[int] = ()) -> None:
    """Raise `Unsafe` unless every instruction is well-formed and stays within the program's memory.

    Its kernels must be declared, each once; their numbers and the shares must be in bounds. If inputs and outputs may
    be in scratch, `io_offsets` are their offsets.
    """
    try:
        target = by_name(program.target)
    except QnnError as problem:
        raise Unsafe(problem.rule) from None
    checks = [(_check_of(KERNELS[kernel]), parts_of(kernel)) for kernel in program.kernels]
    memory = _Memory(program, io_offsets)
    words = program.words.tolist()
    # The first word that no instruction has used so far; the last instruction that is being repeated (-1: none yet),
    # and whether it is pipelined.
    position, end, pipelining = 0, -1, False
    owners: set[tuple[int, int]] = set()
    changed = _ChangedWords(words)
    branches = _Branches(program)
    for index, (number, start, shares) in enumerate(program.table.tolist()):
        # Equal instructions share the words of the first one.
        if start != position and (number, start) not in owners:
            raise Unsafe(f"instruction {index} neither begins where the one before it ends nor equals an earlier one")
        check, parts = checks[number]
        pipelined = program.kernels[number] == PIPELINE
        repeats = pipelined or program.kernels[number] == REPEAT
        if repeats and index <= end:
            raise Unsafe(f"instruction {index} repeats others, and is itself repeated")
        varies = program.kernels[number] == VARY
        joins = program.kernels[number] == BRANCHES
        if varies and (index <= end or shares != 1):
            raise Unsafe(f"instruction {index} changes others, and is itself repeated or shared")
        if index > end:
            _end_repeat(memory, index)
        elif pipelining and shares != 1:
            raise Unsafe(f"instruction {index} is shared, inside a pipelined repetition")
        memory.accesses = Accesses()
        try:
            changed.begin(start, repeats or varies or joins)
            after = check(words, start, shares, target.lanes, parts, memory)
        except Unsafe as problem:
            raise Unsafe(f"instruction {index}, kernel '{program.kernels[number]}': {problem}") from None
        except IndexError:
            raise Unsafe(f"instruction {index} has too few words") from None
        if start == position:
            owners.add((number, start))
            position = after
        try:
            changed.end(start, after)
            if varies:
                changed.change(start)
        except Unsafe as problem:
            raise Unsafe(f"instruction {index}: {problem}") from None
        if repeats:
            end = index + words[start]
            if end >= len(program.table) or (shares != 1) != pipelined:
                raise Unsafe(f"instruction {index} repeats {words[start]} that follow it, but fewer follow")
            pipelining = pipelined
            memory.begin_repeat(index, words[start:after], shares)
        if joins:
            if index <= end:
                raise Unsafe(f"instruction {index} shares those after it together, and is itself repeated")
            branches.begin(index, words[start], shares)
        elif branches.left:
            if repeats or varies:
                raise Unsafe(f"instruction {index} controls others, and is shared together with them")
            branches.add(index, shares, memory.accesses)
    _end_repeat(memory, len(program.table))
    if branches.left:
        raise Unsafe(f"{branches.left} more instructions are shared together than there are")
    if position != len(words):
        raise Unsafe("it has words that belong to no instruction")
    changed.finish()


def _end_repeat(memory: _Memory, index: int) -> None:
    """End the repetition, if there is one, that the instruction with this index does not belong to."""
    try:
        memory.end_repeat()
    except Unsafe as problem:
        raise Unsafe(f"before instruction {index}: {problem}") from None


class _Branches:
    """The instructions that are being checked and that threads share together: none may access another one's results.

    Attributes
    ----------
    left
        How many of them have not been added.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._others: list[Accesses] = []
        self._shares = self.left = 0

    def begin(self, index: int, count: int, shares: int) -> None:
        """Begin with the instruction before them, which has this number and as many shares as they have together."""
        if self.left:
            raise Unsafe(f"instruction {index} controls others, and is shared together with them")
        self._others, self._shares, self.left = [], shares, count

    def add(self, index: int, shares: int, accesses: Accesses) -> None:
        """Check the next one."""
        if any(accesses.conflict(other, self._program) for other in self._others):
            raise Unsafe(f"instruction {index} accesses memory that one which is shared together with it writes")
        self._others.append(accesses)
        self._shares -= shares
        self.left -= 1
        if self.left == 0 and self._shares != 0:
            raise Unsafe(f"the instructions up to {index} have other shares than they have together")


class _ChangedWords:
    """The words that `VARY` instructions change, checked against the instructions that own them.

    An instruction that is ever changed is changed before its first use, and always at the same words. So its effect
    does not depend on what was executed before, in this run or the last one.

    Instructions are identified by the index of their first word.

    Parameters
    ----------
    words
        The program's words; `begin` changes them as the run would.
    """

    def __init__(self, words: list[int]) -> None:
        self._words = words
        # For each changed instruction, its current words by index.
        self._now: dict[int, dict[int, int]] = {}
        # For each instruction that was checked, the index after its last word.
        self._ends: dict[int, int] = {}

    def change(self, start: int) -> None:
        """Record what the `VARY` instruction at this word changes."""
        values, _ = KERNELS[VARY].decode(self._words, start)
        if sum(mask.bit_count() for mask in values["masks"]) != len(values["values"]):
            raise Unsafe("it has more or fewer words than it changes")
        if len(set(values["firsts"])) != len(values["firsts"]):
            raise Unsafe("it changes an instruction twice")
        for first, new in changes(self._words, start).items():
            if first in self._ends and first not in self._now:
                raise Unsafe("it changes an instruction that was used as it is")
            if self._now.setdefault(first, new).keys() != new.keys():
                raise Unsafe("it changes other words of an instruction than those that were changed before")
            self._now[first] = new

    def begin(self, start: int, special: bool) -> None:
        """Write the current words of an instruction before it is checked; those of a `special` one may not change."""
        new = self._now.get(start)
        if new is None:
            return
        if special or max(new) >= len(self._words):
            raise Unsafe("its words may not be changed")
        for index, value in new.items():
            self._words[index] = value

    def end(self, start: int, after: int) -> None:
        """Check that the changed words belong to the instruction, which ends before the word `after`."""
        if self._ends.setdefault(start, after) != after or max(self._now.get(start, {}), default=start) >= after:
            raise Unsafe("words are changed that are not its own")

    def finish(self) -> None:
        """Check that every changed instruction is one of the program."""
        if not self._now.keys() <= self._ends.keys():
            raise Unsafe("it changes words that no instruction begins with")


@dataclass(frozen=True)
class Entries:
    """The contents of a table: its rows, and the limits of each column."""

    entries: np.ndarray
    least: Any
    most: Any


class _Memory:
    """The pools of a program, and the bytes that operands may use in them.

    Parameters
    ----------
    io_offsets
        The offset of each input, then of each output, in scratch, if that is where they may be.
    """

    def __init__(self, program: Program, io_offsets: Sequence[int] = ()) -> None:
        self._io_offsets = io_offsets
        self._constants = np.ascontiguousarray(program.constants)
        self._segments, self._first_segment = [segment.nbytes for segment in program.segments], program.first_segment
        tensors = [info.nbytes for info in (*program.inputs, *program.outputs)]
        # The size of each pool in bytes, by its number. Pool 0 holds no operands: with -1 bytes, none fits into it.
        self._sizes = [-1, self._constants.nbytes, program.scratch_bytes, program.state_bytes, *tensors]
        self._first_output = Pool.IO + len(program.inputs)
        # Tables that were checked already, by operand word, rows, columns and kind.
        self._tables: dict[tuple[int, int, int, str], Entries] = {}
        # While instructions are repeated, their operands may also be in cursors, which are numbered after the pools.
        # For each cursor: its pool, and how many bytes it has advanced (or, if negative, gone back) in the last
        # iteration.
        self._cursors: list[tuple[int, int]] = []
        # While they are repeated by pipelining: the scratch that its threads access.
        self._arenas: _Arenas | None = None
        # What the present instruction accesses.
        self.accesses = Accesses()
        # How many bytes of tables may still be read. Tables of a valid program do not overlap, so it reads each
        # constant about once; the limit bounds the time that a malicious program can cost.
        self._readable_bytes = _READINGS * self._constants.nbytes

    def begin_repeat(self, index: int, words: list[int], threads: int) -> None:
        """Record the cursors of an instruction that repeats others on this many threads."""
        values, _ = KERNELS[REPEAT if threads == 1 else PIPELINE].decode(words)
        if values["first_cursor"] != len(self._sizes) or any(pool >= len(self._sizes) for pool in values["pools"]):
            raise Unsafe(f"instruction {index} has cursors that are pools, or in no pool")
        reaches = [(values["times"] - 1) * stride for stride in values["strides"]]
        self._cursors = list(zip(values["pools"], reaches, strict=True))
        if threads > 1:
            self._arenas = _Arenas(threads, values["arena_bytes"])
            # The first cursor of pipelining threads is their arena.
            self._cursors.insert(0, (Pool.SCRATCH, (threads - 1) * values["arena_bytes"]))

    def end_repeat(self) -> None:
        """Remove the cursors, and check the threads' arenas."""
        self._cursors = []
        if self._arenas is not None:
            self._arenas.check()
            self._arenas = None

    def read(self, name: str, word: int, extent: Any) -> Span:
        """Check an operand that is read and return its span; for one that advances, over all iterations."""
        span = self._span(name, word, extent)
        self.accesses.reads += {span, self._in_scratch(span)}
        return span

    def _in_scratch(self, span: Span) -> Span:
        """Return where in scratch an input or output may be; any other span as it is."""
        if not self._io_offsets or not Pool.IO <= span[0] < len(self._sizes):
            return span
        offset = self._io_offsets[span[0] - Pool.IO]
        return Pool.SCRATCH, offset + span[1], offset + span[2]

    def _span(self, name: str, word: int, extent: Any) -> Span:
        """Return the span of an operand that is within its pool.

        Parameters
        ----------
        name, word
            The operand's name, for errors, and its value.
        extent
            The number of bytes from its offset on; or a pair: how far before and how far after it.
        """
        pool, offset = word >> OPERAND_BITS, word & _OFFSET
        low, high = extent if extent.__class__ is tuple else (0, extent)
        # The operand as the instruction names it; a cursor is then replaced by its pool.
        named, taken = pool, (offset + low, offset + high)
        if len(self._sizes) <= pool < len(self._sizes) + len(self._cursors):
            pool, moved = self._cursors[pool - len(self._sizes)]
            low, high = low + min(moved, 0), high + max(moved, 0)
        if 0 < pool < len(self._sizes):
            size = self._sizes[pool]
        elif 0 <= pool - self._first_segment < len(self._segments):
            size = self._segments[pool - self._first_segment]
        else:
            raise Unsafe(f"'{name}' is in no pool")
        if offset + low < 0 or offset + high > size:
            raise Unsafe(
                f"'{name}' takes bytes {offset + low} to {offset + high} of {_pool_name(pool)}, which has {size}"
            )
        if self._arenas is not None and named == len(self._sizes):
            # Every thread has its own arena, which no other thread accesses.
            self._arenas.inside.append(taken)
            return named, *taken
        return pool, offset + low, offset + high

    def work(self, name: str, word: int, extent: Any) -> Span:
        """Check work space and return its span; nothing else may write it while an instruction uses it."""
        span = self.write(name, word, extent)
        if self._arenas is not None and span[0] != len(self._sizes) and span[1] < span[2]:
            raise Unsafe(f"'{name}' is work space of several threads at once")
        return span

    def write(self, name: str, word: int, extent: Any) -> Span:
        """Check an operand that is written and return its span: in scratch, if an output may be there."""
        span = self._span(name, word, extent)
        if span[0] == Pool.CONSTANT or Pool.IO <= span[0] < self._first_output or span[0] >= self._first_segment:
            raise Unsafe(f"'{name}' is written, but is in {_pool_name(span[0])}")
        self.accesses.writes += {span, self._in_scratch(span)}
        span = self._in_scratch(span)
        if self._arenas is not None and span[0] == Pool.SCRATCH:
            self._arenas.outside.append(span[1:])
        return span

    def table(self, name: str, word: int, rows: int, columns: int, kind: str) -> Entries:
        """Check a constant table of `kind` (a key of `_KINDS`) and return its entries."""
        key = word, rows, columns, kind
        if key in self._tables:
            return self._tables[key]
        size = _KINDS[kind].itemsize
        pool, offset, _ = self._span(name, word, rows * columns * size)
        if pool != Pool.CONSTANT:
            raise Unsafe(f"'{name}' names memory, but is not a constant")
        self._readable_bytes -= rows * columns * size
        if self._readable_bytes < 0:
            raise Unsafe("its tables overlap too often")
        entries = np.frombuffer(self._constants.data, _KINDS[kind], rows * columns, offset).reshape(rows, columns)
        if rows:
            least, most = entries.min(0).tolist(), entries.max(0).tolist()
        else:
            least, most = [0] * columns, [0] * columns
        table = Entries(entries, least, most) if columns > 1 else Entries(entries, least[0], most[0])
        self._tables[key] = table
        return table


class _Arenas:
    """The scratch accesses of pipelining threads: each has its own arena, which the others must not write.

    Parameters
    ----------
    threads, nbytes
        The number of threads, and the size of an arena.
    """

    def __init__(self, threads: int, nbytes: int) -> None:
        self._threads, self._bytes = threads, nbytes
        self.inside: list[tuple[int, int]] = []
        """Spans that are read or written in the first thread's arena."""
        self.outside: list[tuple[int, int]] = []
        """Spans that are written elsewhere, over all iterations."""

    def check(self) -> None:
        """Raise `Unsafe` if one thread could access bytes of another's arena."""
        if not self.inside:
            return
        low, high = min(low for low, _ in self.inside), max(high for _, high in self.inside)
        if high - low > self._bytes:
            raise Unsafe(f"its iterations use {high - low} bytes of arenas that have {self._bytes}")
        arenas = [(low + thread * self._bytes, high + thread * self._bytes) for thread in range(self._threads)]
        if any(first < end and begin < last for begin, end in arenas for first, last in self.outside):
            raise Unsafe("its tiles write into arenas that may belong to another thread")


def _pool_name(pool: int) -> str:
    return "the constants" if pool == Pool.CONSTANT else f"pool {Pool(pool).name if pool < Pool.IO else pool}"


def _check_apart(name: str, work: Span, other: Span) -> None:
    """Raise `Unsafe` if the written operand `name` has bytes in common with work space, which may hold addresses."""
    if work[0] == other[0] and work[1] < other[2] and other[1] < work[2]:
        raise Unsafe(f"'{name}' is written into work space")


def _refuse_value(name: str, value: Any) -> None:
    """Refuse the value of a word."""
    raise Unsafe(f"'{name}' is {value}")


def _refuse_rule(rule: str) -> None:
    """Refuse an instruction that breaks a rule of its signature."""
    raise Unsafe(f"it must be that {rule}")


@cache
def _check_of(signature: declared.Signature) -> Callable[..., int]:
    """Return a function that checks one instruction of a kernel and returns the index of the word after it."""
    # Its parameters are the program's words, the index of the first word of the instruction, its number of shares, the
    # target's number of lanes, the numbers that the kernel's variant stands for, and the program's memory.
    namespace: dict[str, Any] = {name: getattr(arithmetic, name) for name in arithmetic.__all__}
    namespace |= {"_check_apart": _check_apart, "_refuse_value": _refuse_value, "_refuse_rule": _refuse_rule}
    namespace |= signature.functions
    exec("\n".join(_lines(signature)), namespace)
    check: Callable[..., int] = namespace["_check"]
    return check


def _lines(signature: declared.Signature) -> list[str]:
    """Return the source of the function of `_check_of`, from the signature alone: nothing in it comes from a program.

    Words, numbers of the variant and names of `where` are local variables there, so that extents and rules can use
    them. The function's own names begin with an underscore.
    """
    lines = ["def _check(_w, _at, shares, lanes, _parts, _memory):"]

    def line(text: str) -> None:
        lines.append("    " + text)

    for part in sorted({part for parts in signature.variants.values() for part in parts}):
        line(f"{part} = _parts[{part!r}]")
    # The index of a word, relative to `_at`, to which the lengths of lists of variable length are added.
    index = 0
    for word in signature.words:
        if isinstance(word, (declared.Numbers, declared.OffsetTables)):
            line(f"{word.name} = _w[_at + {index} : _at + {index} + {word.length}]")
            if isinstance(word.length, str):
                line(f"_at += {word.length}")
            else:
                index += word.length
        else:
            line(f"{word.name} = _w[_at + {index}]")
            index += 1
        if isinstance(word, declared.Count):
            line(f"if not 0 <= {word.name} <= {declared.MAX_LIST}: _refuse_value({word.name!r}, {word.name})")
        elif isinstance(word, declared.Number):
            line(f"if not {word.least} <= {word.name} <= {word.most}: _refuse_value({word.name!r}, {word.name})")
        elif isinstance(word, declared.Numbers):
            limits = f"{word.least} <= min({word.name}) and max({word.name}) <= {word.most}"
            line(f"if {word.name} and not ({limits}): _refuse_value({word.name!r}, {word.name})")
    line(f"_at += {index}")
    line("if _at > len(_w): raise IndexError")
    for word in signature.words:
        if isinstance(word, declared.OffsetTable):
            entries = f"_memory.table({word.name!r}, {word.name}, {word.extent}, {word.columns}, {word.kind!r})"
            line(f"{word.name} = {entries}" + _unless_absent(word, "None"))
        elif isinstance(word, declared.OffsetTables):
            entries = f"_memory.table({word.name!r}, _table, _rows, 1, 'i64')"
            line(f"{word.name} = [{entries} for _table, _rows in zip({word.name}, {word.rows})]")
    for name, text in signature.where.items():
        line(f"{name} = {text}")
    for rule in signature.rules:
        line(f"if not ({rule}): _refuse_rule({rule!r})")
    written, work = [], []
    for word in signature.words:
        if isinstance(word, declared.Memory) and not isinstance(word, declared.OffsetTable):
            access = _ACCESSES.get(type(word), "read")
            span = f"_memory.{access}({word.name!r}, {word.name}, ({word.extent}))"
            line(f"_span_{word.name} = {span}" + _unless_absent(word, "(0, 0, 0)"))
            if isinstance(word, declared.WorkSpace):
                work.append(word.name)
            elif isinstance(word, declared.Write):
                written.append(word.name)
    for name in work:
        for other in written:
            line(f"_check_apart({other!r}, _span_{name}, _span_{other})")
    line("return _at")
    return lines


def _unless_absent(word: declared.Memory, nothing: str) -> str:
    """Return the end of a conditional expression whose value is `nothing` if the operand may be and is absent."""
    return f" if {word.name} or not ({word.absent}) else {nothing}" if word.absent else ""
