"""Linking of object files into one block of position-independent code, for x86-64 and arm64.

Compiled code is simple: functions, constants, references between them, and calls of the C library. So a few kinds of
relocation suffice, and any other is refused. The block may be placed at any page of memory: everything in it is found
by distance, except for the C library, whose addresses are in the stubs at the block's end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from isthmus.errors import Code, QnnError

# ELF's numbers of the instruction sets.
_X86, _ARM = 62, 183
# ELF's types of sections. x86-64 has a type of its own for unwind tables, which C code without exceptions never uses.
_PROGBITS, _SYMTAB, _RELA, _UNWIND = 1, 2, 4, 0x70000001
# ELF's flags of sections.
_WRITE, _ALLOCATED = 1, 2
_PAGE = 4096
# The most bytes of a symbol's name.
_MAX_NAME = 4096
_STUB_BYTES = 16
_STUBS = {
    _X86: bytes.fromhex("ff2500000000"),  # jmp [rip]: to the address that follows
    _ARM: struct.pack("<II", 0x58000050, 0xD61F0200),  # ldr x16, the address that follows; br x16
}


@dataclass
class _Section:
    """A section that the code needs at run time."""

    content: bytes
    alignment: int
    # For each reference to fill in: its offset in the section, its kind, the index of its symbol, the addend.
    relocations: list[tuple[int, int, int, int]] = field(default_factory=list)
    # The offset of the section in the block.
    place: int = 0


@dataclass(frozen=True)
class _Symbol:
    """A symbol: its name, which may be empty; its section, None if another file has it; its offset there."""

    name: str
    section: _Section | None
    value: int
    is_global: bool


@dataclass(frozen=True)
class _ObjectFile:
    """An object file: ELF's number of its instruction set, its sections and its table of symbols."""

    machine: int
    sections: list[_Section]
    symbols: list[_Symbol]


def link(objects: Iterable[bytes], address_of: Callable[[str], int]) -> tuple[bytes, dict[str, int]]:
    """Return a block of code, to be placed at the beginning of a page, and the offsets of its global symbols.

    The objects are relocatable ELF files of one instruction set, which may call each other. `address_of` returns the
    address of a function of the C library.
    """
    try:
        return _link([_parse(code) for code in objects], address_of)
    except (struct.error, IndexError, ValueError, OverflowError):
        raise _refusal("it is damaged") from None


def _link(files: Sequence[_ObjectFile], address_of: Callable[[str], int]) -> tuple[bytes, dict[str, int]]:
    """Lay out the sections of files and fill in their references; see `link`."""
    size = 0
    for section in (section for file in files for section in file.sections):
        if section.alignment > _PAGE:
            raise _refusal(f"it wants an alignment of {section.alignment} bytes")
        section.place = -(-size // section.alignment) * section.alignment
        size = section.place + len(section.content)
    exports = {
        symbol.name: symbol.section.place + symbol.value
        for file in files
        for symbol in file.symbols
        if symbol.is_global and symbol.section is not None
    }
    block = bytearray(size)
    stubs = _Stubs(-(-size // _STUB_BYTES) * _STUB_BYTES, address_of)
    for file in files:
        for section in file.sections:
            block[section.place : section.place + len(section.content)] = section.content
            for offset, kind, index, addend in section.relocations:
                symbol = file.symbols[index]
                if symbol.section is not None:
                    target = symbol.section.place + symbol.value
                elif symbol.name in exports:
                    target = exports[symbol.name]
                else:
                    target = stubs.place_of(symbol.name, file.machine)
                _fill(block, section.place + offset, file.machine, kind, target + addend)
    block.extend(bytes(stubs.place - size))
    return bytes(block + stubs.content), exports


class _Stubs:
    """Jumps to functions of the C library, which may be farther away than a call reaches."""

    def __init__(self, place: int, address_of: Callable[[str], int]) -> None:
        self.place, self.content = place, bytearray()
        self._address_of = address_of
        self._places: dict[str, int] = {}

    def place_of(self, name: str, machine: int) -> int:
        """Return the offset of the jump to a function, which is added if it is new."""
        if name not in self._places:
            self._places[name] = self.place + len(self.content)
            jump = _STUBS[machine] + struct.pack("<Q", self._address_of(name))
            self.content += jump.ljust(_STUB_BYTES, b"\0")
        return self._places[name]


def _parse(code: bytes) -> _ObjectFile:
    """Read an object file; refuse what `link` cannot do."""
    machine = struct.unpack_from("<H", code, 18)[0]
    if code[:6] != b"\x7fELF\x02\x01" or machine not in _STUBS:
        raise _refusal("it is not an ELF file for x86-64 or arm64")
    (headers_at,), (_, count, _) = struct.unpack_from("<Q", code, 40), struct.unpack_from("<HHH", code, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", code, headers_at + 64 * index) for index in range(count)]
    sections: dict[int, _Section] = {}
    symbols: list[_Symbol] = []
    for index, (_, kind, flags, _, at, size, _, _, alignment, _) in enumerate(headers):
        if not flags & _ALLOCATED or not size or kind == _UNWIND:
            continue
        if flags & _WRITE or kind != _PROGBITS:
            raise _refusal("it has variables")
        sections[index] = _Section(code[at : at + size], max(alignment, 1))
    # A sound file has each part once, so damaged headers cannot multiply the work.
    if sum(len(section.content) for section in sections.values()) > len(code):
        raise _refusal("its sections overlap")
    for _, kind, _, _, at, size, link_, info, _, _ in headers:
        if kind == _SYMTAB:
            if symbols:
                raise _refusal("it has two tables of symbols")
            names = headers[link_][4]
            symbols = list(_symbols(code, range(at, at + size, 24), names, sections))
        elif kind == _RELA and info in sections:
            if sections[info].relocations:
                raise _refusal("a section has two tables of relocations")
            for entry in range(at, at + size, 24):
                offset, what, addend = struct.unpack_from("<QQq", code, entry)
                sections[info].relocations.append((offset, what & 0xFFFFFFFF, what >> 32, addend))
    return _ObjectFile(machine, list(sections.values()), symbols)


def _symbols(code: bytes, entries: range, names: int, sections: Mapping[int, _Section]) -> Iterator[_Symbol]:
    """Read a table of symbols, given by the offsets of its entries and of the table of their names."""
    for entry in entries:
        name, info, _, section, value, _ = struct.unpack_from("<IBBHQQ", code, entry)
        text = code[names + name : code.index(b"\0", names + name, names + name + _MAX_NAME)].decode()
        yield _Symbol(text, sections.get(section), value, is_global=info >> 4 != 0)


def _fill(block: bytearray, at: int, machine: int, kind: int, target: int) -> None:
    """Fill in the reference at an offset of the block to another offset, by ELF's kind of relocation."""
    distance = target - at
    if (machine, kind) in ((_X86, 2), (_X86, 4), (_ARM, 261)):  # a 32-bit distance
        struct.pack_into("<i", block, at, distance)
        return
    if machine == _ARM and kind in _ARM_FIELDS:
        (instruction,) = struct.unpack_from("<I", block, at)
        struct.pack_into("<I", block, at, instruction | _ARM_FIELDS[kind](target, at))
        return
    raise _refusal(f"it has a relocation of kind {kind}")


def _call(target: int, at: int) -> int:
    """Return the operand of a call or a jump of arm64."""
    words = (target - at) >> 2
    if not -(1 << 25) <= words < 1 << 25:
        raise _refusal("it is too large for the reach of a call")
    return words & 0x03FFFFFF


def _page(target: int, at: int) -> int:
    """Return the operand of arm64's instruction that computes the page of an address."""
    pages = target // _PAGE - at // _PAGE
    return (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5


def _within_page(shift: int) -> Callable[[int, int], int]:
    """Return the function for the offset within a page, in units of an operand of ``1 << shift`` bytes."""
    return lambda target, at: (target % _PAGE >> shift) << 10


# The bits that arm64's relocations put into an instruction, by kind.
_ARM_FIELDS: dict[int, Callable[[int, int], int]] = {
    275: _page,
    277: _within_page(0),
    278: _within_page(0),
    282: _call,
    283: _call,
    284: _within_page(1),
    285: _within_page(2),
    286: _within_page(3),
    299: _within_page(4),
}


def _refusal(rule: str) -> QnnError:
    """Return the error for an object file that cannot be linked."""
    return QnnError(Code.COMMON_LOADING_BINARIES, "object file of compiled code", rule)
