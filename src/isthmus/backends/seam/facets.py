"""Declarations of a backend for the C libraries and the TFLite delegate. The defaults suit one that makes none."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.graph import BinaryInfo, Tensor
from isthmus.log import LogLevel
from isthmus.memory import Buffer

LogFunction = Callable[[LogLevel, str], None]
"""Writes a message to the client's log."""
ConfigReader = Callable[[int, LogFunction], dict[Any, Any]]
"""Reads a custom config at an address, with the client's log; returns the settings that it means."""


@dataclass(frozen=True)
class BinaryBlobs:
    """A backend's own structures in the description of a context binary.

    - `graphs`: One of each graph, for descriptions in version 3.
    - `context`: One of the context, for version 3.
    - `hardware`: One for versions 1 and 2.
    """

    graphs: tuple[bytes, ...]
    context: bytes
    hardware: bytes


class Feature(str, Enum):
    """What QNN's own configs and calls turn on in a context; a backend's own features are texts too."""

    SWITCHING = "graph switching (PERSISTENT_BINARY and MEMORY_LIMIT_HINT)"
    PERSISTENT = "a persistent binary"
    RETENTION = "a retention order"
    ENABLED = "enabled graphs"
    DEFERRED = "deferred graphs"
    PRIORITY = "a priority"
    OTHER_PRIORITY = "another priority"
    BATCH = "a batch above the prepared one"
    SIGNAL = "a creation that a signal can end"
    COMPOSED = "graphs that the client composes"
    SINGLE = "a binary outside a list"
    LIST = "a list of binaries"
    CALLBACKS = "data callbacks"
    BUFFERS = "buffers of the client's (memory for weights, spill-fill or VTCM)"


@dataclass(frozen=True)
class CFacet:
    """A backend as its C library presents it.

    - `backend_id`, `version`: Its id among QNN's backends, and the version of its own interface.
    - `capabilities`: The keys of QnnProperty that it supports besides those that every backend supports.
    - `config`: Configuration that precedes the client's, for settings that a C client cannot express.
    - `memory`: Reads a custom memory descriptor at an address; without it, custom memory is refused.
    - `configs`: Readers of custom configs, by the kind of object: "backend", "graph", "context" or "device". The
      settings of a backend are a configuration. A config of an object without a reader is logged and ignored.
    - `without_effect`: Its custom configs that are accepted and change nothing, by the kind of object, each with the
      reason; for the document of options.
    - `write_property`: Writes a custom property for the client. Its arguments are the function that looks properties up
      by number, the address of the client's structure, and a function that makes an error of a rule. Without it, custom
      properties are refused.
    - `device_info`: Makes the structure that extends the description of a device, given the number of its chip and the
      version of its processor, 0 for what is not known.
    - `blobs`: Makes its structures in the description of a binary. Binaries of a backend without them are described in
      version 1.
    - `power_options`: The power settings that a client may request. They have no effect.
    - `allocate`: Allocates a buffer in the memory type of one of its contexts. Its arguments are the context, a name
      and a size.
    - `hints`: Regular expressions that match Python calls in errors, each with the C call that replaces it.
    - `features`: Names what a custom config at an address turns on, with a value: of a "context", "graph" or "device".
      Also what a custom memory descriptor ("memory") and a level of profiling ("profile", a number) do.
      Validation asks it, and for the others down to `reused`.
    - `combine`: Returns features with those that they have together only.
    - `exclusions`: Pairs of features that exclude each other.
    - `alone`: The features whose value is a group of contexts, in which one graph executes at a time.
    - `sole`: The features of graphs beside which no other graph executes.
    - `alike`: A feature of contexts, one whose value their graphs must have in common, and its default.
    - `limits`: How many graphs of a context have these features at most; a graph with two of them counts twice.
    - `single`: The features of memory that serves one context.
    - `reused`: The feature whose value is a limit of what is registered with a context at a time, in bytes.
    - `formats`: Data formats that inputs and outputs may have until their graph is finalized, each with the function
      that refuses these tensors then. Other formats than dense are refused at once.
    - `binaries_of_composed`: Whether a C client gets binaries of contexts whose graphs it has composed only, and none
      of a context that comes from a binary.
    - `headers`: The headers that declare its structures, by file below the folder ``QNN``: functions that return their
      text.
    """

    backend_id: int = 0
    version: tuple[int, int, int] = (0, 0, 0)
    capabilities: frozenset[int] = frozenset()
    config: Any = None
    memory: Callable[[int], Any] | None = None
    configs: Mapping[str, ConfigReader] = field(default_factory=dict)
    without_effect: Mapping[str, Mapping[IntEnum, str]] = field(default_factory=dict)
    write_property: Callable[[Callable[[int], Any], int, Callable[[str], QnnError]], None] | None = None
    device_info: Callable[[int, int], ctypes.Structure] | None = None
    blobs: Callable[[BinaryInfo], BinaryBlobs] | None = None
    power_options: Iterable[IntEnum] = ()
    allocate: Callable[[Any, str, int], Buffer] | None = None
    hints: Sequence[tuple[str, str]] = ()
    features: Callable[[str, int], Mapping[str, int]] | None = None
    combine: Callable[[Mapping[str, int]], Mapping[str, int]] = lambda found: found
    exclusions: Sequence[tuple[str, str]] = ()
    alone: Sequence[str] = ()
    sole: Sequence[str] = ()
    alike: Sequence[tuple[str, str, int]] = ()
    limits: Sequence[tuple[tuple[str, ...], int]] = ()
    single: Sequence[str] = ()
    reused: str = ""
    formats: Mapping[int, Callable[[Sequence[Tensor]], None]] = field(default_factory=dict)
    binaries_of_composed: bool = False
    headers: Mapping[str, Callable[[], str]] = field(default_factory=dict)


class NamesContext(ABC):
    """A value of a custom config in C that names another context, by its handle."""

    @abstractmethod
    def resolved(self, find: Callable[[int], Any]) -> Any:
        """Return the value with the context; `find` returns the context of a handle, or None if there is none."""


def option_of(kind: type[IntEnum], number: int, noun: str, code: Code) -> IntEnum:
    """Return the option with a number of the C interface, or refuse it.

    - `kind`: The enumeration of options.
    - `noun`, `code`: The object that has the options, for the error, and the error's code.
    """
    try:
        return kind(number)
    except ValueError:
        names = ", ".join(f"{each.name} {int(each)}" for each in kind)
        raise QnnError(code, noun, f"it has no option {number}; it has {names}") from None


def show_number(kind: type[IntEnum], number: int) -> str:
    """Return the name of a number of the C interface, or the number itself if it has none."""
    return next((each.name for each in kind if each == number), str(number))


class UnionOption(IntEnum):
    """A custom config in C whose structure has the option's number and a union.

    A member is its number, the union's member for its value in C ("bool weightsPacking"), the members in C of the value
    if that is a structure of its own, and why the option is refused, if it is.
    """

    declaration: str
    structure: str
    refusal: str

    def __new__(cls, number: int, declaration: str, structure: str = "", refusal: str = "") -> UnionOption:
        option = int.__new__(cls, number)
        option._value_ = number
        option.declaration, option.structure, option.refusal = declaration, structure, refusal
        return option

    @property
    def field(self) -> str:
        """The name of the union's member."""
        return self.declaration.split()[-1].lstrip("*")

    def read(self, config: ctypes.Structure, kind: Callable[..., Any]) -> Any:
        """Return the value in a config that has this option; a structure as a `kind`, made from its members."""
        value = getattr(config, self.field)
        if not isinstance(value, ctypes.Structure):
            return value
        return kind(*(getattr(value, name) for name, *_ in value._fields_))

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

    - `number`: Its number among the delegate's backend types; without one, no delegate runs on it.
    - `takes_client_memory`: Whether it executes on an interpreter's tensors wherever they are. Otherwise they are
      copied to and from the backend's own memory.
    - `shared_memory`: Describes a tensor at an offset of a shared buffer, for registration; without it, shared memory
      is refused.
    - `threads`, `priority`: Whether its graphs use the interpreter's threads, and whether they have priorities.
    - `config`: Turns its own delegate options, if it has any, into its configuration.
    - `without_effect`: Its options without effect, by name, each with the reason.
    - `performance_modes`, `capabilities`: What a C client may vote for and request, by number.
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
