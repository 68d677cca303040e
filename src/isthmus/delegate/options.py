"""TfLiteQnnDelegateOptions: the options of a delegate, with the names and defaults of QNN's header.

The backend type is mandatory. Options without meaning for a backend here (clocks, the precision of a DSP) are checked
but have no effect; the log says so, and docs/delegate.md has the table.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from functools import partial
from pathlib import Path
from typing import Any

from isthmus.backends.gpu.delegate import GpuOptions
from isthmus.backends.htp.delegate import HtpOptions
from isthmus.backends.seam import registry
from isthmus.backends.seam.driver import member
from isthmus.backends.seam.entry import BackendEntry
from isthmus.backends.seam.facets import BackendOptions, DelegateFacet
from isthmus.errors import Code, QnnError, did_you_mean
from isthmus.frontends.tflite.schema import OPERATORS
from isthmus.memory.integers import is_int


class BackendType(IntEnum):
    """TfLiteQnnDelegateBackendType; LPAI and CPU are specific to this software."""

    UNDEFINED = 0
    GPU = 1
    HTP = 2
    DSP = 3
    LPAI = 100
    CPU = 101


class DelegateLogLevel(IntEnum):
    """TfLiteQnnDelegateLogLevel: the backend's log level. The delegate's own lines go to the interpreter's log."""

    OFF = 0
    ERROR = 1
    WARN = 2
    INFO = 3
    VERBOSE = 4
    DEBUG = 5


class Profiling(IntEnum):
    """TfLiteQnnDelegateProfilingOptions."""

    OFF = 0
    BASIC = 1
    PER_OP = 2


class GraphPriority(IntEnum):
    """TfLiteQnnDelegateGraphPriority."""

    DEFAULT = 0
    LOW = 1
    NORMAL = 2
    NORMAL_HIGH = 3
    HIGH = 4


@dataclass
class SkipOptions:
    """TfLiteQnnDelegateSkipOption: nodes that stay in the interpreter.

    Parameters
    ----------
    skip_delegate_ops
        Operators, by number (`kTfLiteBuiltin…`) or by name ("CONV_2D"): all nodes of these operators stay.
    skip_delegate_node_ids
        Nodes, by number in the model.
    """

    skip_delegate_ops: Iterable[int | str] = ()
    skip_delegate_node_ids: Iterable[int] = ()


@dataclass
class Options:
    """TfLiteQnnDelegateOptions.

    Parameters
    ----------
    backend_type
        The backend that runs the nodes; for a backend of another package, the number that it declares. Mandatory: a
        delegate without it is refused.
    library_path
        The backend's library, ``libQnnHtp.so`` for example. It must belong to the backend.
    skel_library_dir
        The folder of the device-side library. There is none here.
    htp_options, gpu_options
        Options specific to one backend.
    log_level
        The backend's log level.
    profiling
        Whether executions are measured; `QnnDelegate.profile` then has the events.
    cache_dir, model_token
        A folder and a name for the model, under which a context binary of each partition is stored; both or neither.
    skip_options
        The nodes that stay in the interpreter.
    graph_priority
        The priority of executions that wait for the accelerator.

    Examples
    --------
    >>> options = Options(BackendType.HTP)
    >>> options.htp_options.performance_mode.name, options.profiling.name, options.cache_dir
    ('DEFAULT', 'OFF', None)
    """

    backend_type: BackendType | int = BackendType.UNDEFINED
    library_path: str | os.PathLike[str] | None = None
    skel_library_dir: str | os.PathLike[str] | None = None
    htp_options: HtpOptions = field(default_factory=HtpOptions)
    gpu_options: GpuOptions = field(default_factory=GpuOptions)
    log_level: DelegateLogLevel = DelegateLogLevel.OFF
    profiling: Profiling = Profiling.OFF
    cache_dir: str | os.PathLike[str] | None = None
    model_token: str | None = None
    skip_options: SkipOptions = field(default_factory=SkipOptions)
    graph_priority: GraphPriority = GraphPriority.DEFAULT


@dataclass(frozen=True)
class DelegateSettings:
    """Checked options, in this software's own terms.

    - `backend`, `facet`: The backend's short name, and its declarations for delegates.
    - `priority`: QNN's priority of executions; None for the default.
    - `cache`: The folder and the client's token of the model cache; None without a cache.
    - `skipped_codes`, `skipped_nodes`: Operators by name, and nodes by number, that stay in the interpreter.
    """

    backend: str
    facet: DelegateFacet
    config: Mapping[str, str]
    """The backend's configuration."""
    log_level: DelegateLogLevel
    profiling: Profiling
    priority: int | None
    cache: tuple[Path, str] | None
    skipped_codes: frozenset[str]
    skipped_nodes: frozenset[int]
    without_effect: tuple[str, ...]
    """Options that were set but have no effect here, one sentence each."""

    def check_shares(self, what: str, hint: str = "") -> None:
        """Refuse shared memory if the backend does not support it; `what` and `hint` are for the message."""
        if self.facet.shared_memory is None:
            rule = f"backend '{self.backend}' shares no memory with the interpreter"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, what, rule, hint)


# QNN's priorities.
_PRIORITIES = {
    GraphPriority.DEFAULT: None,
    GraphPriority.LOW: 0,
    GraphPriority.NORMAL: 100,
    GraphPriority.NORMAL_HIGH: 150,
    GraphPriority.HIGH: 200,
}
BACKEND_OPTIONS: dict[str, type[Any]] = {
    name: type(value) for name, value in vars(Options()).items() if isinstance(value, BackendOptions)
}
"""The options specific to one backend, by name."""


def check_options(options: Any) -> DelegateSettings:
    """Check options; an error names the option at fault."""
    if not isinstance(options, Options):
        raise _refusal("options", f"must be Options, are a {type(options).__name__}")
    _check_names(options, "option ")
    own = {name: _own(getattr(options, name), kind, name) for name, kind in BACKEND_OPTIONS.items()}
    skip = _part(options.skip_options, SkipOptions, "skip_options")
    entry = _backend(options)
    priority = _member(options.graph_priority, GraphPriority, "option graph_priority")
    return DelegateSettings(
        entry.name,
        entry.delegate,
        entry.delegate.config(own.get(f"{entry.name}_options")),
        _member(options.log_level, DelegateLogLevel, "option log_level"),
        _member(options.profiling, Profiling, "option profiling"),
        _PRIORITIES[priority],
        _cache(options),
        frozenset(_code(item) for item in _several(skip.skip_delegate_ops, "skip_delegate_ops")),
        frozenset(_node(item) for item in _several(skip.skip_delegate_node_ids, "skip_delegate_node_ids")),
        tuple(_without_effect(entry, own, priority, options.skel_library_dir)),
    )


def _own(options: Any, kind: type[Any], name: str) -> Any:
    """Check the options of one backend; convert numbers to members of the enumerations of their defaults."""
    values, defaults = vars(_part(options, kind, name)), vars(kind())
    return kind(**{mode: _member(values[mode], type(each), f"option {name}.{mode}") for mode, each in defaults.items()})


def _without_effect(
    entry: BackendEntry, own: Mapping[str, Any], priority: GraphPriority, skel: object
) -> Iterator[str]:
    """Describe each option that was set but has no effect on this backend; a default counts as not set."""
    for name, options in own.items():
        owner = name.removesuffix("_options")
        for mode, default in vars(type(options)()).items():
            reason: str | None = f"it is for the {owner.upper()} backend, this delegate's is '{entry.name}'"
            if owner == entry.name:
                reason = entry.delegate.without_effect.get(mode)
            if getattr(options, mode) is not default and reason is not None:
                yield f"Option {name}.{mode} = {getattr(options, mode).name} has no effect: {reason}"
    if priority and not entry.delegate.priority:
        yield f"Option graph_priority = {priority.name} has no effect: '{entry.name}' executes in the order of asking"
    if skel is not None:
        yield "Option skel_library_dir has no effect: there is no DSP library to load"


def backend_types() -> dict[str, int]:
    """Return the numbers of all backends that have one, by short name."""
    numbers = {entry.name: entry.delegate.number for entry in registry.usable()}
    return {name: number for name, number in numbers.items() if number is not None}


def _backend(options: Options) -> BackendEntry:
    """Return the backend that the options choose; refuse a library of another backend."""
    kind: Any = options.backend_type
    # A plain number or a `BackendType`, not a member of another enumeration.
    is_number = is_int(kind) and isinstance(kind, BackendType) == isinstance(kind, Enum)
    # Lazily: backends after the match are not imported.
    entries = registry.usable(None if is_number else ())
    entry = next((each for each in entries if each.delegate.number == kind), None)
    if entry is None:
        kind = _member(kind, BackendType, "option backend_type")
        names = ", ".join(name.upper() for name in backend_types())
        if kind is BackendType.UNDEFINED:
            hint = f"Set backend_type to one of {names}."
            raise _refusal("option backend_type", "it is mandatory but not set", hint)
        rule = f"not available here; available are {names}"
        raise QnnError(Code.BACKEND_NOT_SUPPORTED, f"backend type {kind.name}", rule)
    if options.library_path is not None:
        library = _text(options.library_path, "library_path")
        if Path(library).name != entry.library:
            rule = f"'{library}' is not a library of backend type {entry.name.upper()}"
            raise _refusal("option library_path", rule)
    if options.skel_library_dir is not None:
        _text(options.skel_library_dir, "skel_library_dir")
    return entry


def _cache(options: Options) -> tuple[Path, str] | None:
    """Return the folder and the token of the model cache; None without a cache."""
    if options.cache_dir is None and options.model_token is None:
        return None
    if options.cache_dir is None or options.model_token is None:
        raise _refusal("options cache_dir and model_token", "set both or neither")
    token = options.model_token
    if not isinstance(token, str) or not token or len(token) > 128 or not set(token) <= _TOKEN:
        rule = f"must be 1 to 128 letters, digits, '-', '_' or '.', is {token!r}"
        raise _refusal("option model_token", rule)
    return Path(_text(options.cache_dir, "cache_dir")), token


# The characters of a token, which is a part of file names.
_TOKEN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


def _code(operator: Any) -> str:
    """Return the name of an operator to skip, given by number or name."""
    if isinstance(operator, str) and operator in OPERATORS:
        return operator
    if is_int(operator) and 0 <= operator < len(OPERATORS):
        return OPERATORS[int(operator)]
    raise _refusal("option skip_delegate_ops", f"{operator!r} is not an operator of TFLite")


def _node(node: Any) -> int:
    """Return the number of a node to skip."""
    if not is_int(node) or node < 0:
        raise _refusal("option skip_delegate_node_ids", f"{node!r} is not the number of a node")
    return int(node)


def _several(value: Any, name: str) -> list[Any]:
    """Return the items of an option that is a list."""
    if isinstance(value, (str, bytes, bytearray)) or not isinstance(value, Iterable):
        raise _refusal(f"option {name}", f"must be a list, is {value!r}")
    return list(value)


def _part(value: Any, kind: type[Any], name: str) -> Any:
    """Return options inside the options, after checking that they are of the right class."""
    if not isinstance(value, kind):
        names = ", ".join(each.name for each in fields(kind))
        raise _refusal(f"option {name}", f"must be {kind.__name__} ({names}), is {value!r}")
    _check_names(value, f"option {name}.")
    return value


def _check_names(options: Any, prefix: str) -> None:
    """Refuse attributes that are no options: names that were misspelt when they were set."""
    names = [each.name for each in fields(options)]
    for name in vars(options):
        if name not in names:
            hint = did_you_mean(name, names) or f"Options are {', '.join(names)}."
            raise _refusal(f"{prefix}{name}", "there is no such option", hint)


_member = partial(member, code=Code.BACKEND_INVALID_ARGUMENT)


def _text(value: Any, name: str) -> str:
    """Return a path as text."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise _refusal(f"option {name}", f"must be a path, is {value!r}")
    return text


def _refusal(what: str, rule: str, hint: str = "") -> QnnError:
    return QnnError(Code.BACKEND_INVALID_ARGUMENT, what, rule, hint)
