"""QNN's headers, declared once in ``headers.txt``: C gets headers of it, and Python ctypes structures.

Headers of single backends are declared in a ``headers.txt`` of their package. An entry of such a file begins a line,
and continues in lines that are indented:

- ``header FILE INCLUDES: DOC`` begins a header.
- ``enum TYPE PREFIX: MEMBERS`` is an enumeration. ``A B=4 C`` are members, numbered as in C; ``@Class`` are those of a
  Python enumeration, except numbers from 20001 on, which are this project's own, ``@Class=hex`` the same as hexadecimal
  numbers, and ``@Code`` the error codes of this prefix. A member for undefined values is added, unless the entry begins
  with ``enum!``.
- ``macros PREFIX: MEMBERS`` are macros, with members like those of an enumeration.
- ``struct TYPE: MEMBERS`` is a structure, with a macro for its initial value, unless the entry begins with ``struct!``.
  ``+TYPE`` are the members of another one. A second name before the colon is the structure's tag.
- ``functions GROUP`` are the prototypes of a group of functions (`declarations`).
- Everything else is C: type definitions, macros, comments. What precedes the first header is in none.
"""

from __future__ import annotations

import ctypes
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import POINTER, c_char_p, c_uint32, c_uint64, c_void_p
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.cabi.declarations import BACKEND, SYSTEM, function_name, name_of
from isthmus.errors import Code

WIDTH = 120
_SIZED = (f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64))
_HANDLES = ("", "Backend", "Context", "Device", "Graph", "Log", "Mem", "OpPackage", "Profile", "Signal")
known_types: dict[str, Any] = {
    **{name: getattr(ctypes, f"c_{name[:-2]}") for name in _SIZED}, "bool": ctypes.c_bool, "int": ctypes.c_int,
    "float": ctypes.c_float, "double": ctypes.c_double, "size_t": ctypes.c_size_t, "Qnn_ErrorHandle_t": c_uint64,
    **{f"Qnn_{name}Handle_t": c_void_p for name in _HANDLES},
}  # fmt: skip
"""The ctypes types of C types; each declaration adds its own to those of C itself and of ``QnnCommon.h``."""
# The members of structures in C.
_members: dict[str, str] = {}
# The structures whose pointers are plain addresses in Python.
_plain: set[str] = set()
# The initial values of enumerations in C.
_undefined: dict[str, str] = {}
# The numbers that are this project's own.
_OWN = range(20001, 30000)
Entries = list[str]
"""The entries of a header; the first is that of the header itself."""


def _read(text: str, named: Mapping[str, Any], is_plain: bool) -> list[Entries]:
    """Make the entries of a text known, with their types; return those of each header."""
    headers: list[Entries] = []
    texts = {name: value for name, value in named.items() if isinstance(value, str)}
    text = re.sub(r"@(\w+)", lambda word: texts.get(word[1], word[0]), text)
    for entry in filter(None, re.split(r"\n(?! )", text.strip())):
        if entry.startswith("header "):
            headers.append([])
        if headers:
            headers[-1].append(entry)
        _enter(entry, named, is_plain)
    return headers


def _enter(entry: str, named: Mapping[str, Any], is_plain: bool) -> None:
    """Make the types of an entry known."""
    match = re.match(r"(enum|struct)(!?) (\w+)(?: (\w+))?:\s+(.*)", entry, re.S)
    if match is None:
        _enter_types(entry)
    elif match[1] == "enum":
        undefined = re.search(r"(\w+)=QNN_UNDEFINED", match[5])
        has_undefined = "Version" not in match[3] and not match[2]
        first = "UNDEFINED" if has_undefined else undefined[1] if undefined else re.split(r"[=\s]", match[5])[0]
        first = next(iter(_members_by_name(named[first[1:]]))) if first.startswith("@") else first
        known_types[match[3]], _undefined[match[3]] = c_uint32, f"{match[4]}_{first}" if match[4] else first
    else:
        members = re.sub(r"\+(\w+)", lambda first: _members[first[1]], match[5])
        _members[match[3]] = " ".join(members.split())
        if is_plain:
            _plain.add(match[3])


def _enter_types(entry: str) -> None:
    """Make the types of a definition in C known; those of functions are addresses."""
    match = re.match(r"typedef (?:struct )?(\w+)([^({]*);", entry)
    if match is not None:
        for stars, name in re.findall(r"(\**)\s*(\w+)", match[2]):
            known_types[name] = c_void_p if stars else known_types.get(match[1])
    known_types.update(dict.fromkeys(re.findall(r"typedef .*\(\*(\w+)\)\(", entry), c_void_p))
    known_types.update(dict.fromkeys(re.findall(r"typedef enum [^}]*\}\s+(\w+);", entry), c_uint32))


def init_macro(name: str) -> str:
    """Return the macro with the initial value of a structure."""
    words = name.removesuffix("_t").replace("OpConfig", "Opconfig")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", words).upper() + "_INIT"


# -- ctypes ------------------------------------------------------------------------------------------------------------


# Checkers of types cannot derive from the type of structures, whose name is not public.
_StructureType: Any = type(ctypes.Structure)


class _Declared(_StructureType):
    """The type of structures whose members are those that the headers declare."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], declares: str = "") -> Any:
        names = declares.split()
        if names:
            # A structure that points to itself has a plain address there.
            known_types[names[0]] = None
            fields, anonymous = ctypes_fields(_members[names[0]], names[0] in _plain)
            namespace |= {"_anonymous_": anonymous, "_fields_": fields}
        structure = super().__new__(cls, name, bases, namespace)
        known_types.update(dict.fromkeys(names, structure))
        return structure

    def __init__(self, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: str) -> None:
        super().__init__(name, bases, namespace)


if TYPE_CHECKING:

    class CStructure(ctypes.Structure):
        """A structure of C, declared in the headers: ``declares`` names it, and further ones with the same members."""

        def __init_subclass__(cls, declares: str = "") -> None: ...

else:
    CStructure = _Declared("CStructure", (ctypes.Structure,), {})


def type_named(name: str) -> Any:
    """Return the ctypes type of a C type, or None; a structure that no class declares for Python gets one here."""
    if name not in known_types and name in _members:
        _Declared(name, (CStructure,), {}, declares=name)
    return known_types.get(name)


def _declarators(members: str) -> Iterator[tuple[str, str, int, str, str]]:
    """Yield for each member of a structure: the members of a union, or else base type, stars, name and array length."""
    for member in split_members(members):
        union = re.fullmatch(r"union \{(.*)\};", member)
        if union:
            yield union[1], "", 0, "", ""
            continue
        match = re.fullmatch(r"(?:const |struct )*(\w+)\b(.*);", member.replace("*const *", "**"))
        assert match, member
        for stars, name, count in re.findall(r"(\**)\s*(\w+)(?:\[(\d+)\])?", match[2]):
            yield "", match[1], len(stars), name, count


def ctypes_fields(members: str, plain_pointers: bool = False) -> tuple[list[tuple[str, Any]], tuple[str, ...]]:
    """Return the ctypes fields of a structure in C, and the names that its unions got; one of one member has none.

    With `plain_pointers`, a pointer is an address, whatever it points to.

    >>> ctypes_fields("uint32_t option; union { bool flag; void *config; };")[0][0]
    ('option', <class 'ctypes.c_uint'>)
    """
    fields: list[tuple[str, Any]] = []
    unions: list[str] = []
    for union, base, stars, name, count in _declarators(members):
        if union:
            inner, _ = ctypes_fields(union, plain_pointers)
            if len(inner) > 1:
                unions.append(f"union{len(unions)}")
                inner = [(unions[-1], type("Union", (ctypes.Union,), {"_fields_": inner}))]
            fields += inner
            continue
        kind = c_char_p if base == "char" else type_named(base)
        stars -= base == "char"
        if plain_pointers and stars + (base == "char"):
            kind, stars = c_void_p, 0
        elif kind is None:
            # A type that is known only by name is used only through pointers.
            kind, stars = c_void_p, stars - 1
        for _ in range(stars):
            kind = POINTER(kind)
        fields.append((name, kind * int(count) if count else kind))
    return fields, tuple(unions)


# -- C -----------------------------------------------------------------------------------------------------------------


def header_text(file: str, doc: str, includes: Iterable[str], body: Iterable[str]) -> str:
    """Return a header with its comment, include guard and includes; C++ gets C's linkage."""
    stem = file.rpartition("/")[2].removesuffix(".h")
    guard = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", stem).upper() + "_H"
    opening = ["", "#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    ending = ["", "#ifdef __cplusplus", "}", "#endif"]
    files = (file if file.startswith("<") else f'"{file}"' for file in includes)
    lines = [
        f"/* {doc}", " * Generated by `isthmus.capi.headers`. */",
        f"#ifndef {guard}", f"#define {guard}", "", *(f"#include {file}" for file in files), *opening, *body,
        *ending, "#endif", "",
    ]  # fmt: skip
    return "\n".join(lines)


def block(opening: str, members: Sequence[str], name: str) -> Iterator[str]:
    """Yield a declaration with members: in one line if it fits, else with the members in lines of their own."""
    line = f"{opening} {{ {' '.join(members)} }} {name}".rstrip() + ";"
    if len(line) <= WIDTH:
        yield line
        return
    indent = " " * (len(opening) - len(opening.lstrip()) + 2)
    yield f"{opening} {{"
    for union, others in groupby(members, lambda member: member.startswith("union {")):
        if union:
            for each in others:
                inner = each.removeprefix("union {").removesuffix("};")
                yield from block(f"{indent}union", split_members(inner), "")
        else:
            yield from pack(indent, others)
    yield f"{indent[2:]}}} {name}".rstrip() + ";"


def split_members(text: str) -> list[str]:
    """Split members in C."""
    return re.findall(r"\S[^;{}]*(?:\{[^}]*\}\w*)?;", " ".join(text.split()))


def pack(indent: str, items: Iterable[str], hanging: str = "") -> list[str]:
    """Put items into indented lines of C, as many as fit; no item is broken. `hanging` indents all but the first."""
    text = " ".join(item.replace(" ", "\0") for item in items)
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent + hanging, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace("\0", " ") for line in lines]


def header_files(enumerations: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield QNN's headers: their files below the folder ``QNN``, and their texts.

    `enumerations` are the Python enumerations that entries name.
    """
    yield from ((_heading(entries)[1], _print(entries, enumerations)) for entries in _HEADERS)


def declare_headers(
    folder: Path, named: Mapping[str, Any], plain_pointers: bool = True
) -> dict[str, Callable[[], str]]:
    """Declare the headers of a backend's package; return functions that return their texts, by file.

    - `named`: What entries name by ``@``: enumerations or numbers by name, and texts that stand for declarations.
    - `plain_pointers`: Whether pointers in their structures are plain addresses in Python.
    """
    headers = _read((folder / "headers.txt").read_text("ascii"), named, plain_pointers)
    return {_heading(entries)[1]: partial(_print, entries, named) for entries in headers}


def api_header(folder: str, number: int, version: tuple[int, int, int], file: str = "") -> tuple[str, str]:
    """Return the header that names a backend, as its file and its text.

    - `number`, `version`: Its number among QNN's backends, and the version of its interface.
    - `file`: The file, if it does not follow from the folder.
    """
    file, macro = file or f"{folder}/Qnn{folder.capitalize()}Common.h", f"QNN_{folder}_API_VERSION"
    parts = ("MAJOR", "MINOR", "PATCH")
    core, own = (", ".join(f"{start}_{part}" for part in parts) for start in ("QNN_API_VERSION", macro))
    lines = [f"#define QNN_BACKEND_ID_{folder} {number}"]
    lines += [f"#define {macro}_{part} {value}" for part, value in zip(parts, version, strict=True)]
    lines.append(f"#define {macro}_INIT \\\n  {{{{{core}}}, \\\n   {{{own}}}}}")
    return file, header_text(file, f"Which backend {folder} is.", ["../QnnCommon.h"], lines)


def _heading(entries: Entries) -> re.Match[str]:
    """Return a header's file, the headers that it includes, and what it is for."""
    match = re.fullmatch(r"header (\S+) (.*?): (.*)", " ".join(entries[0].split()))
    assert match, entries[0]
    return match


def _print(entries: Entries, named: Mapping[str, Any]) -> str:
    """Return the text of a header."""
    file, includes, doc = _heading(entries).groups()
    lines = (line for entry in entries[1:] for line in _lines(entry, named))
    doc = "\n".join(textwrap.wrap(doc, WIDTH - 4, subsequent_indent=" * "))
    return header_text(file, doc, includes.split(), lines)


def _lines(entry: str, enumerations: Mapping[str, Any]) -> Iterator[str]:
    """Yield an entry in C."""
    match = re.match(r"(enum|macros|struct|functions)(!?) (\w+)(?: (\w+))?(?::\s+(.*))?", entry, re.S)
    if match is None:
        yield entry
        return
    kind, mark, name, prefix, members = match.groups()
    if kind == "functions":
        yield from _prototypes(name)
    elif kind == "macros":
        yield from (f"#define {key} {value}" for key, value in _numbers(name, members, enumerations))
    elif kind == "enum":
        items = [f"{key} = {value}" for key, value in _numbers(prefix, members, enumerations)]
        items += [] if mark else [f"{prefix}_UNDEFINED = QNN_UNDEFINED"]
        yield from block("typedef enum", [*(f"{each}," for each in items[:-1]), items[-1]], name)
    else:
        members = _members[name]
        tag = prefix or (name if f"struct {name} *" in members else "")
        yield from block(f"typedef struct {tag}".rstrip(), split_members(members), name)
        yield f"QNN_LAYOUT({name}, {ctypes.sizeof(type_named(name))});"
        if not mark:
            line = f"#define {init_macro(name)} {_initial_value(members)}"
            yield line if len(line) <= WIDTH else line.replace(" {", " \\\n  {", 1)


def _numbers(prefix: str, members: str, enumerations: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the members of an enumeration: their names in C, and what they are set to."""
    number = -1
    for name, value in re.findall(r"(@?\w+)(?:=(\S+))?", members):
        if name == "@Code":
            codes = {name_of(code): str(int(code)) for code in Code}
            yield from ((key, code) for key, code in codes.items() if key.startswith(f"{prefix}_ERROR_"))
        elif name.startswith("@"):
            for key, member in _members_by_name(enumerations[name[1:]]).items():
                if key != "UNDEFINED" and member not in _OWN:
                    yield f"{prefix}_{key}" if prefix else key, f"{member:#06x}" if value == "hex" else str(int(member))
        else:
            number = int(value, 0) if value[:1].isdecimal() else number + 1
            yield name if name.startswith("QNN_") else f"{prefix}_{name}", value or str(number)


def _members_by_name(members: Any) -> Mapping[str, int]:
    """Return the members of an enumeration by name, with aliases; or the numbers that stand for one."""
    return members if isinstance(members, Mapping) else members.__members__


def _initial_value(members: str) -> str:
    """Return the initial value of a structure: nulls, zeros, undefined values, and those of its structures."""
    values = []
    for union, base, stars, *_ in _declarators(members):
        if union:
            values.append(_initial_value(union.partition(";")[0] + ";"))
        elif stars or type_named(base) in (c_void_p, None):
            values.append("NULL")
        else:
            values.append(init_macro(base) if base in _members else _undefined.get(base, "0"))
    return f"{{{', '.join(values)}}}"


def _prototypes(group: str) -> Iterator[str]:
    """Yield the prototypes of a group of functions, such as ``QnnGraph``."""
    api = "QNN_SYSTEM_API" if group.startswith("QnnSystem") else "QNN_API"
    for entry, parameters in {**BACKEND, **SYSTEM}.items():
        if parameters is not None and function_name(entry).startswith(f"{group}_"):
            opening = f"{api} Qnn_ErrorHandle_t {function_name(entry)}("
            items = [*(f"{each.declaration}," for each in parameters[:-1]), f"{parameters[-1].declaration});"]
            line = opening + " ".join(items)
            yield from [line] if len(line) <= WIDTH else [opening, *pack("    ", items)]


_HEADERS = _read(Path(__file__).with_name("headers.txt").read_text("ascii"), {}, is_plain=False)
