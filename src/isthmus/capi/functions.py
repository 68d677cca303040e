"""QNN's C functions: a Python function for each, under its C name.

A library calls a function with the client's plain numbers: handles, addresses, values. They are converted as the
function is declared (`cabi.declarations`) and annotated. A parameter that is annotated as `int` stays a number, a
handle becomes its object (None where it may be null), a text a `str`, a list of configs or properties a list of
structures. A function that creates an object returns it, so the place of its handle is no parameter. A handle that a
call frees is removed after the call.

It returns a QNN code, or None for success; a `QnnError` is turned into its code. No other exception leaves it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from isthmus.cabi.client import checked, listed, text, write_number
from isthmus.cabi.declarations import BACKEND, CREATED, FREED, OPTIONAL, SYSTEM, Parameter
from isthmus.cabi.tables import TYPES
from isthmus.errors import Code, QnnError
from isthmus.system.shield import shielded

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

_Class = TypeVar("_Class", bound=type)
SYSTEM_INVALID_HANDLE = 30000
"""The system library's code for most unknown handles; it is not among the errors of `Code`."""
_DECLARED = {**BACKEND, **SYSTEM}


@dataclass(frozen=True)
class HandleType:
    """What the handles of a C type refer to.

    - `kind`, `noun`: The class of the objects, and its name in messages.
    - `code`: The code for an unknown handle, where `_CODES` has no other.
    - `null`: The code for a null handle, if it is another one.
    - `is_system`: Whether the system library's own code is returned for an unknown handle.
    """

    kind: type
    noun: str
    code: Code = Code.COMMON_INVALID_ARGUMENT
    null: Code | None = None
    is_system: bool = False


HANDLE_TYPES: dict[str, HandleType] = {}
"""The types of handles by C type."""
# The codes for unknown handles that depend on the function, or on the group of functions, too.
_CODES = {
    ("backend", "log"): Code.BACKEND_INVALID_ARGUMENT,
    ("context", "backend"): Code.CONTEXT_INVALID_HANDLE,
    ("context", "device"): Code.CONTEXT_INVALID_HANDLE,
    ("context", "profile"): Code.CONTEXT_INVALID_ARGUMENT,
    ("contextCreateFromBinary", "profile"): Code.CONTEXT_SET_PROFILE,
    ("contextCreateFromBinaryWithSignal", "profile"): Code.CONTEXT_SET_PROFILE,
    ("contextCreateFromBinaryWithCallback", "profile"): Code.CONTEXT_SET_PROFILE,
    ("context", "signal"): Code.GRAPH_INVALID_ARGUMENT,
    ("graphCreate", "context"): Code.GRAPH_INVALID_ARGUMENT,
    ("graph", "profile"): Code.GRAPH_INVALID_ARGUMENT,
    ("graph", "signal"): Code.GRAPH_INVALID_ARGUMENT,
    ("profile", "backend"): Code.PROFILE_INVALID_HANDLE,
    ("tensor", "context"): Code.TENSOR_INVALID_HANDLE,
    ("tensor", "graph"): Code.TENSOR_INVALID_HANDLE,
}


class UnknownSystemHandle(Exception):
    """The error of an unknown handle for which `SYSTEM_INVALID_HANDLE` is returned; its cause is the `QnnError`."""


def handle_type(type: str, noun: str, *more: Any, **named: Any) -> Callable[[_Class], _Class]:
    """Register a class: handles of a C type refer to its objects. Other arguments are those of `HandleType`."""

    def enter(kind: _Class) -> _Class:
        HANDLE_TYPES[type] = HandleType(kind, noun, *more, **named)
        return kind

    return enter


@dataclass(frozen=True)
class Function:
    """A registered function.

    - `handler`: The Python function: it takes the server of the library and the client's arguments as objects.
    - `invalid`: The code for an argument that is null or an invalid pointer.
    - `expected`: Whether an error is an ordinary result (when a node is validated, say), not a mistake to report.
    - `failure`: The return value on failure, if that is not a code: a null pointer, say.
    - `is_shielded`: Whether an interrupt must not come between the creation of an object and that of its handle.
    """

    name: str
    handler: Callable[..., Any]
    invalid: Code
    expected: bool = False
    failure: int | None = None
    is_shielded: bool = False

    @cached_property
    def call(self) -> Callable[..., Any]:
        """The function that takes the server of the library and the client's arguments as numbers."""
        declared = _DECLARED.get(self.name)
        if declared is None or inspect.unwrap(self.handler).__code__.co_flags & inspect.CO_VARARGS:
            return self.handler
        call = self._converting(declared)
        return shielded(call) if self.is_shielded else call

    def _converting(self, declared: Sequence[Parameter]) -> Callable[..., Any]:
        """Return a function that converts arguments, calls the handler, and adds or removes a handle."""
        # Of the handler's parameters after the server. The place of a created handle is none of them.
        annotations = iter([each for name, each in self.handler.__annotations__.items() if name != "return"][1:])
        converters: list[tuple[int, Callable[[LibraryServer, int], Any]]] = []
        created = freed = owner = None
        for index, parameter in enumerate(declared):
            handle = HANDLE_TYPES.get(parameter.base)
            if handle is not None and parameter.stars == 1 and parameter.mark == CREATED:
                created = index
                continue
            annotation = next(annotations)
            converters.append((index, self._converter(parameter, annotation, handle)))
            if handle is not None and annotation != "int":
                freed = index if parameter.mark == FREED else freed
                # A log owns nothing: objects created with it may outlive it.
                owner = index if owner is None and handle.noun != "log" else owner

        def call(server: LibraryServer, *arguments: int) -> Any:
            if created is not None:
                write_number(arguments[created], 0)
            result = self.handler(server, *[convert(server, arguments[index]) for index, convert in converters])
            if freed is not None and result is None:
                server.handles.remove(arguments[freed])
            if created is None or result is None or isinstance(result, int):
                return result
            number = server.handles.number_of(result)
            number = number or server.handles.add(result, 0 if owner is None else arguments[owner])
            write_number(arguments[created], number)
            return None

        return call

    def _converter(
        self, parameter: Parameter, annotation: str, handle: HandleType | None
    ) -> Callable[[LibraryServer, int], Any]:
        """Return the function that converts an argument."""
        is_optional = parameter.mark == OPTIONAL
        if annotation == "int":
            return lambda server, value: value
        if handle is not None:
            group = re.match("[a-z]*", self.name)
            code = _CODES.get((self.name, handle.noun)) or _CODES.get((group[0] if group else "", handle.noun))
            return partial(_find, handle, code or handle.code, is_optional)
        if annotation.startswith("list["):
            kind = TYPES[parameter.base]
            return lambda server, value: list(listed(value if is_optional else checked(value), kind))
        if annotation == "str":
            return lambda server, value: text(checked(value)) or ""
        return lambda server, value: text(value)


def _find(handle: HandleType, code: Code, is_optional: bool, server: LibraryServer, number: int) -> Any:
    """Return the object of a handle; None for null if it is optional."""
    if not number and is_optional:
        return None
    try:
        return server.handles.get(number, handle.kind, code if number else handle.null or code, handle.noun)
    except QnnError as problem:
        if handle.is_system:
            raise UnknownSystemHandle from problem
        raise


TABLE: dict[str, Function] = {}
"""All functions by C name."""
SPECIAL: dict[tuple[str, str], Function] = {}
"""Functions that a library serves in its own way, by the library's name and the C name."""


def serves(
    name: str,
    invalid: Code = Code.COMMON_INVALID_ARGUMENT,
    expected: bool = False,
    failure: int | None = None,
    is_shielded: bool = False,
    libraries: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function under its C name, for some libraries only or for all; the rest is as for `Function`."""

    def enter(handler: Callable[..., Any]) -> Callable[..., Any]:
        function = Function(name, handler, invalid, expected, failure, is_shielded)
        for library in libraries:
            SPECIAL[library, name] = function
        if not libraries:
            TABLE[name] = function
        return handler

    return enter
