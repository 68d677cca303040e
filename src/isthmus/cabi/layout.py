"""C declarations that serve twice: printed in a header for C, and as ctypes for Python.

An `Enumeration` takes its members from a Python enumeration, a `Structure` its members from C text, from which its
ctypes structure is made. A `Header` is a file of them. A structure in a printed header asserts the size of its ctypes
structure, so a compiler checks that the two agree.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from isthmus.cabi import notation
from isthmus.cabi.notation import WIDTH, block, ctypes_fields, header_text, known_types, pack, split_members


@dataclass(frozen=True)
class Enumeration:
    """An enumeration of 32 bits.

    - `prefix`: The beginning of its members' names in C, without the underscore that follows; empty if they have none.
    - `members`: Its members, with aliases. Numbers from 20001 on, which are this project's own, are left out.
    - `undefined`: The name of the member for an undefined value, after the prefix; empty if it has none.
    """

    name: str
    prefix: str
    members: type[IntEnum] | Mapping[str, int]
    undefined: str = "UNDEFINED"

    def __post_init__(self) -> None:
        known_types[self.name] = ctypes.c_uint32

    def numbers(self) -> dict[str, int]:
        """Return its members by their names in C."""
        members = self.members if isinstance(self.members, Mapping) else self.members.__members__
        own = range(20001, 30000)
        beginning = f"{self.prefix}_" if self.prefix else ""
        return {
            f"{beginning}{name}": int(value)
            for name, value in members.items()
            if name != self.undefined and value not in own
        }

    def lines(self) -> Iterator[str]:
        """Yield its declaration in C."""
        members = [f"{name} = {value}" for name, value in self.numbers().items()]
        members += [f"{self.prefix}_{self.undefined} = QNN_UNDEFINED"] if self.undefined else []
        yield from block("typedef enum", [*(f"{each}," for each in members[:-1]), members[-1]], self.name)


@dataclass(frozen=True)
class Structure:
    """A structure.

    - `members`: Its members in C. A union without a name may be one of them; pointers become plain addresses in ctypes.
    - `initial`: Its initial value in C, from which its ``_INIT`` macro is made; empty if it has none.
    - `macro`: The name of that macro without ``_INIT``, if it does not follow from the structure's name.
    """

    name: str
    members: str
    initial: str = ""
    macro: str = ""
    tag: str = ""

    def __post_init__(self) -> None:
        known_types[self.name] = self.ctype

    @cached_property
    def ctype(self) -> Any:
        """Its ctypes structure."""
        fields, anonymous = ctypes_fields(self.members, plain_pointers=True)
        return type(self.name, (ctypes.Structure,), {"_anonymous_": anonymous, "_fields_": fields})

    def lines(self) -> Iterator[str]:
        """Yield its declaration in C, and its macro."""
        yield from block(f"typedef struct {self.tag}".rstrip(), split_members(self.members), self.name)
        yield f"QNN_LAYOUT({self.name}, {ctypes.sizeof(self.ctype)});"
        if self.initial:
            macro = f"{self.macro}_INIT" if self.macro else notation.init_macro(self.name)
            line = f"#define {macro} {self.initial}"
            yield line if len(line) <= WIDTH else f"#define {macro} \\\n  {self.initial}"


@dataclass(frozen=True)
class Macros:
    """Macros with values, by name."""

    values: Mapping[str, int | str]

    def lines(self) -> Iterator[str]:
        """Yield their definitions in C."""
        yield from (f"#define {name} {value}" for name, value in self.values.items())


@dataclass(frozen=True)
class Numbers:
    """Names for numbers of 32 bits."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        known_types.update(dict.fromkeys(self.names, ctypes.c_uint32))

    def lines(self) -> Iterator[str]:
        """Yield their declaration in C."""
        yield from pack(
            "", ["typedef uint32_t", *(f"{name}," for name in self.names[:-1]), f"{self.names[-1]};"], " " * 4
        )


@dataclass(frozen=True)
class Functions:
    """Types of pointers to functions that return an error: their parameters in C, by the type's name."""

    parameters: Mapping[str, str]

    def __post_init__(self) -> None:
        known_types.update(dict.fromkeys(self.parameters, ctypes.c_void_p))

    def lines(self) -> Iterator[str]:
        """Yield their declarations in C."""
        for name, parameters in self.parameters.items():
            line = f"typedef Qnn_ErrorHandle_t (*{name})({parameters});"
            opening, _, rest = line.partition(f"({parameters}")
            yield from [line] if len(line) <= WIDTH else [f"{opening}(", f"    {parameters}{rest}"]


@dataclass(frozen=True)
class Prototype:
    """A function of a library that returns an error: its name, and its parameters in C."""

    name: str
    parameters: str

    def lines(self) -> Iterator[str]:
        """Yield its declaration in C."""
        yield f"QNN_API Qnn_ErrorHandle_t {self.name}({self.parameters});"


Declaration = Enumeration | Structure | Macros | Numbers | Functions | Prototype


@dataclass(frozen=True)
class Header:
    """A header: its file below the folder ``QNN``, what it is for, the headers that it includes, its declarations."""

    file: str
    doc: str
    includes: tuple[str, ...]
    declarations: tuple[Declaration, ...]

    def text(self) -> str:
        """Return its text."""
        lines = (line for each in self.declarations for line in each.lines())
        return header_text(self.file, self.doc, self.includes, lines)


def api_header(folder: str, number: int, version: tuple[int, int, int]) -> Header:
    """Return the header that names a backend: its number among QNN's backends, and the version of its interface."""
    macro = f"QNN_{folder}_API_VERSION"
    parts = {f"{macro}_{part}": value for part, value in zip(_PARTS, version, strict=True)}
    core = ", ".join(f"QNN_API_VERSION_{part}" for part in _PARTS)
    both = f"\\\n  {{{{{core}}}, \\\n   {{{', '.join(parts)}}}}}"
    values = Macros({f"QNN_BACKEND_ID_{folder}": number, **parts, f"{macro}_INIT": both})
    file = f"{folder}/Qnn{folder.capitalize()}Common.h"
    return Header(file, f"Which backend {folder} is.", ("../QnnCommon.h",), (values,))


_PARTS = ("MAJOR", "MINOR", "PATCH")
