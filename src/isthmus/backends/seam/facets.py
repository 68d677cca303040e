"""Declarations of a backend for the C libraries and the TFLite delegate. The defaults suit one that makes none."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.log import LogLevel
from isthmus.memory import Buffer

LogFunction = Callable[[LogLevel, str], None]
"""Writes a message to the client's log."""
ConfigReader = Callable[[int, LogFunction], dict[Any, Any]]
"""Reads a custom config at an address, with the client's log; returns the settings that it means."""


@dataclass(frozen=True)
class CFacet:
    """A backend as its C library presents it.

    Parameters
    ----------
    backend_id, version
        Its id among QNN's backends, and the version of its own interface.
    capabilities
        The keys of QnnProperty that it supports besides those that every backend supports.
    config
        Configuration that precedes the client's, for settings that a C client cannot express.
    memory
        Reads a custom memory descriptor at an address; without it, custom memory is refused.
    configs
        Readers of custom configs, by the kind of object: "backend", "graph", "context" or "device". The settings of a
        backend are a configuration. A config of an object without a reader is logged and ignored.
    write_property
        Returns a custom property. Its arguments are the function that looks properties up by number, the address of the
        client's structure, and a function that makes an error of a rule. Without it, custom properties are refused.
    device_info
        Makes the structure that extends the description of a device.
    power_options
        The power settings that a client may request. They have no effect.
    allocate
        Allocates a buffer in the memory type of one of its contexts. Its arguments are the context, a name and a size.
    hints
        Regular expressions that match Python calls in errors, each with the C call that replaces it.
    headers
        The headers that declare its structures, by file below the folder ``QNN``: functions that return their text.
    """

    backend_id: int = 0
    version: tuple[int, int, int] = (0, 0, 0)
    capabilities: frozenset[int] = frozenset()
    config: Any = None
    memory: Callable[[int], Any] | None = None
    configs: Mapping[str, ConfigReader] = field(default_factory=dict)
    write_property: Callable[[Callable[[int], Any], int, Callable[[str], QnnError]], None] | None = None
    device_info: Callable[[], ctypes.Structure] | None = None
    power_options: Iterable[IntEnum] = ()
    allocate: Callable[[Any, str, int], Buffer] | None = None
    hints: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, Callable[[], str]] = field(default_factory=dict)


def option_of(kind: type[IntEnum], number: int, noun: str, code: Code) -> IntEnum:
    """Return the option with a number of the C interface, or refuse it.

    - `kind`: The enumeration of options.
    - `noun`, `code`: The object that has the options, for the error, and the error's code.
    """
    try:
        return kind(number)
    except ValueError:
        known = ", ".join(f"{each.name} {int(each)}" for each in kind)
        raise QnnError(code, noun, f"it has no option {number}; it has {known}") from None


class UnionOption(IntEnum):
    """A custom config in C whose structure has the option's number and a union.

    A member is its number, the union's member for its value in C ("bool weightsPacking") and, if the value is a
    structure of its own, that structure's members in C.
    """

    declaration: str
    structure: str

    def __new__(cls, number: int, declaration: str, structure: str = "") -> UnionOption:
        option = int.__new__(cls, number)
        option._value_ = number
        option.declaration, option.structure = declaration, structure
        return option

    @property
    def field(self) -> str:
        """The name of the union's member."""
        return self.declaration.split()[-1].lstrip("*")

    def show(self, config: ctypes.Structure) -> str:
        """Describe the value in a config that has this option, for the log."""
        value = getattr(config, self.field)
        if not isinstance(value, ctypes.Structure):
            return str(value)
        parts = ((name, getattr(value, name)) for name, *_ in value._fields_)
        return ", ".join(f"{name} {part:g}" for name, part in parts if isinstance(part, (int, float))) or "a structure"


class BackendOptions:
    """Options of the delegate for one backend only: a dataclass whose fields are enumerations."""


@dataclass(frozen=True)
class DelegateFacet:
    """A backend as the TFLite delegate uses it.

    Parameters
    ----------
    number
        Its number among the delegate's backend types; without one, no delegate runs on it.
    takes_client_memory
        Whether it executes on an interpreter's tensors wherever they are. Otherwise they are copied to and from the
        backend's own memory.
    shared_memory
        Describes a tensor at an offset of a shared buffer, for registration; without it, shared memory is refused.
    threads, priority
        Whether its graphs use the interpreter's threads, and whether they have priorities.
    config
        Turns its own delegate options, if it has any, into its configuration.
    without_effect
        Its options without effect, by name, each with the reason.
    performance_modes, capabilities
        What a C client may vote for and request, by number.
    """

    number: int | None = None
    takes_client_memory: bool = True
    shared_memory: Callable[[Buffer, int], Any] | None = None
    threads: bool = False
    priority: bool = False
    config: Callable[[Any], Mapping[str, Any]] = lambda options: {}
    without_effect: Mapping[str, str] = field(default_factory=dict)
    performance_modes: Iterable[int] = ()
    capabilities: Iterable[int] = ()
