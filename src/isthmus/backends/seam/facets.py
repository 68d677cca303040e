"""What a backend declares for the C libraries and the TFLite delegate; the defaults serve one that declares nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.log import LogLevel
from isthmus.memory import Buffer

Say = Callable[[LogLevel, str], None]
ConfigReader = Callable[[int, Say], dict[Any, Any]]
"""Reads a custom config at an address, with the client's log; answers the settings that it stands for."""


@dataclass(frozen=True)
class CFacet:
    """A backend as its library in C presents it.

    Parameters
    ----------
    backend_id, version
        Its number among QNN's backends, and the version of its own interface.
    capabilities
        The keys of QnnProperty that it supports besides those that every backend supports.
    config
        Configuration that precedes the client's, for what a client in C cannot express.
    memory
        Reads a custom memory descriptor at an address; without it, custom memory is refused.
    configs
        Readers of custom configs, by "graph", "context" and "device"; others are logged and ignored.
    write_property
        Answers a custom property: it is given the function that looks properties up by number, the address of the
        client's structure, and a function that makes a refusal of a rule. Without it, custom properties are refused.
    device_info, power_options
        Makes the structure that extends the description of a device; the votes for clocks that are accepted.
    allocate
        Allocates a buffer in the memory type of one of its contexts: it is given the context, a name and a size.
    hints
        Regular expressions that match calls of Python in errors, each with the call of C that replaces it.
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


def option_of(kind: type[IntEnum], number: int, noun: str, code: Code) -> IntEnum:
    """Find an option by its number in C, or refuse it."""
    try:
        return kind(number)
    except ValueError:
        known = ", ".join(f"{each.name} {int(each)}" for each in kind)
        raise QnnError(code, noun, f"it has no option {number}; it has {known}") from None


class BackendOptions:
    """Options of the delegate that one backend alone has: a dataclass of members of enumerations."""


@dataclass(frozen=True)
class DelegateFacet:
    """A backend as the TFLite delegate uses it.

    Parameters
    ----------
    number
        Its number among the delegate's backend types; without one, no delegate runs on it.
    takes_client_memory
        Whether it executes on an interpreter's tensors wherever they are. Otherwise they are copied to and from memory
        of its own.
    shared_memory
        Describes a tensor at an offset of a shared buffer, for registration; without it, shared memory is refused.
    threads, priority
        Whether its graphs use the interpreter's threads, and whether they have priorities.
    config
        Turns its own options, where the delegate has some, into its configuration.
    without_effect
        Why options of its own have no effect, by name.
    performance_modes, capabilities
        What a client in C may vote for, and ask for, by number.
    """

    number: int | None = None
    takes_client_memory: bool = True
    shared_memory: Callable[[Buffer, int], Any] | None = None
    threads: bool = False
    priority: bool = False
    config: Callable[[Any], Mapping[str, str]] = lambda options: {}
    without_effect: Mapping[str, str] = field(default_factory=dict)
    performance_modes: Iterable[int] = ()
    capabilities: Iterable[int] = ()
