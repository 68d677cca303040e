"""QNN's two function tables in ctypes: their entries, the parameters of each, and how a client gets the tables.

Entries have only ever been added at the end: a table of an older version is a prefix of this one. If a table is passed
by value (`QnnSystemDlc_composeGraphs`, `QnnModel_composeGraphs`), its size is part of the call.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_uint32, c_uint64, c_void_p
from typing import Any

from isthmus.cabi import objects, system  # noqa: F401 - these declare structures for Python
from isthmus.cabi.declarations import BACKEND, FREED, SYSTEM, Parameter
from isthmus.cabi.notation import type_named
from isthmus.cabi.types import Version
from isthmus.errors import Code, QnnError

CORE_VERSION = (2, 40, 0)
"""The version of the core API that this table is of."""
SYSTEM_VERSION = (1, 15, 0)
"""The version of the system API that this table is of."""
COMPOSING_ENTRIES = 25
"""How many of the first entries a library that composes graphs may call: up to tensorCreateGraphTensor."""

BACKEND_FUNCTIONS, SYSTEM_FUNCTIONS = tuple(BACKEND), tuple(SYSTEM)


class FunctionTable(ctypes.Structure):
    """The backend's functions (QNN_INTERFACE_VER_TYPE)."""

    _fields_ = [(name, c_void_p) for name in BACKEND_FUNCTIONS]


class SystemFunctionTable(ctypes.Structure):
    """The system library's functions (QNN_SYSTEM_INTERFACE_VER_TYPE)."""

    _fields_ = [(name, c_void_p) for name in SYSTEM_FUNCTIONS]


class Interface(ctypes.Structure):
    """The interface of a backend's library (QnnInterface_t)."""

    _fields_ = [
        ("backendId", c_uint32),
        ("providerName", c_char_p),
        ("coreApiVersion", Version),
        ("backendApiVersion", Version),
        ("table", FunctionTable),
    ]


class SystemInterface(ctypes.Structure):
    """The interface of the system library (QnnSystemInterface_t)."""

    _fields_ = [
        ("backendId", c_uint32),
        ("providerName", c_char_p),
        ("systemApiVersion", Version),
        ("table", SystemFunctionTable),
    ]


# Types that are only used through pointers here.
_OPAQUE = ("void", "QnnContext_Buffer_t", "Qnn_OpMapping_t", "QnnSystemProfile_SerializationTargetConfig_t")
_NAMES = {each.base for parameters in (*BACKEND.values(), *SYSTEM.values()) for each in parameters or ()}
TYPES: dict[str, Any] = {name: type_named(name) for name in sorted(_NAMES) if type_named(name) is not None}
TYPES |= {"QnnInterface_t": Interface, "Qnn_ApiVersion_t": Version * 2}
"""The types of parameters by C name; texts and bytes have none."""


def _argument_type(parameter: Parameter) -> Any:
    """Return the ctypes type of a parameter. Handles, and pointers to opaque types or bytes, are plain addresses."""
    base, stars = parameter.base, parameter.stars
    kind: Any = c_void_p
    if base == "char":
        # An object to be freed is identified by its address, not by its contents.
        kind, stars = c_void_p if parameter.mark == FREED else c_char_p, stars - 1
    elif stars and base in ("uint8_t", *_OPAQUE):
        stars -= 1
    else:
        kind = TYPES[base]
    for _ in range(stars):
        kind = POINTER(kind)
    return kind


ARGUMENTS: dict[str, list[Any]] = {
    name: [_argument_type(each) for each in parameters]
    for name, parameters in {**BACKEND, **SYSTEM}.items()
    if parameters is not None
}
"""The parameter types of functions, by name; each function returns a 64-bit error. Functions whose parameters are not
public are missing.
"""


class ComposingTable(ctypes.Structure):
    """A table for a library that composes graphs, whatever version it was built for.

    Such a library takes its table by value, with further arguments after it on the stack. It calls only the first
    entries. What it reads as its further arguments is zero in any version: no debugging, no callback, no level.
    """

    # With the zeros it is longer than the table of any version.
    _fields_ = [("entries", c_void_p * COMPOSING_ENTRIES), ("zeros", c_void_p * 150)]

    @classmethod
    def of(cls, table: FunctionTable) -> ComposingTable:
        """Copy the first entries of a table."""
        copy = cls()
        for index, name in enumerate(BACKEND_FUNCTIONS[:COMPOSING_ENTRIES]):
            copy.entries[index] = getattr(table, name)
        return copy


LOG_CALLBACK = ctypes.CFUNCTYPE(None, c_char_p, c_uint32, c_uint64, c_void_p)
"""QnnLog_Callback_t: a format, a level, nanoseconds, and a va_list."""


def function(table: FunctionTable | SystemFunctionTable, name: str) -> Any:
    """Return a callable function of a table.

    Raises `QnnError`: COMMON_INVALID_ARGUMENT if the table has no function of that name, or its parameters are not
    documented.
    """
    is_declared = name in BACKEND_FUNCTIONS if isinstance(table, FunctionTable) else name in SYSTEM_FUNCTIONS
    address, arguments = getattr(table, name) if is_declared else None, ARGUMENTS.get(name)
    if address is None or arguments is None:
        rule = "the table has no function of that name" if address is None else "its parameters are not documented"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"function {name!r}", rule)
    return ctypes.CFUNCTYPE(c_uint64, *arguments)(address)


def providers(library: ctypes.CDLL) -> list[Interface]:
    """Return the interfaces that a backend's library provides (QnnInterface_getProviders).

    Raises `QnnError`: COMMON_LOADING_BINARIES if it is not such a library, or returns an error or no provider.
    """
    return _providers(library, "QnnInterface_getProviders", Interface)


def system_providers(library: ctypes.CDLL) -> list[SystemInterface]:
    """Return the interfaces that a system library provides (QnnSystemInterface_getProviders); see `providers`."""
    return _providers(library, "QnnSystemInterface_getProviders", SystemInterface)


def _providers(library: ctypes.CDLL, name: str, kind: Any) -> list[Any]:
    """Return the structures of type `kind` that a library's function `name` lists."""

    def refuse(rule: str) -> QnnError:
        return QnnError(Code.COMMON_LOADING_BINARIES, f"library '{library._name}'", rule)

    ask = getattr(library, name, None)
    if ask is None:
        raise refuse(f"it has no {name}")
    listed, count = POINTER(POINTER(kind))(), c_uint32()
    ask.argtypes, ask.restype = [c_void_p, c_void_p], c_uint64
    error = ask(ctypes.byref(listed), ctypes.byref(count))
    if error:
        raise refuse(f"it answers {error} when it is asked for its providers")
    if not count.value or not listed:
        raise refuse("it has no provider")
    return [listed[index].contents for index in range(count.value)]
