"""TfLiteQnnDelegateOptions: what a delegate is made with, under the names and with the defaults of QNN's header.

The backend type is mandatory. What a backend here has no use for (clocks, the precision of a DSP) is checked and
changes nothing; a line of the log says so, and docs/delegate.md has the table.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, TypeVar

from isthmus.backends.seam import registry
from isthmus.errors import Code, QnnError
from isthmus.frontends.tflite.schema import OPERATORS
from isthmus.memory.integers import is_int

_Enum = TypeVar("_Enum", bound=IntEnum)


class BackendType(IntEnum):
    """TfLiteQnnDelegateBackendType; LPAI and CPU are this software's own."""

    UNDEFINED = 0
    GPU = 1
    HTP = 2
    DSP = 3
    LPAI = 100
    CPU = 101


class DelegateLogLevel(IntEnum):
    """TfLiteQnnDelegateLogLevel: what the backend tells. The delegate's own lines are the interpreter's log."""

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


class HtpPerformanceMode(IntEnum):
    """TfLiteQnnDelegateHtpPerformanceMode."""

    DEFAULT = 0
    SUSTAINED_HIGH_PERFORMANCE = 1
    BURST = 2
    HIGH_PERFORMANCE = 3
    POWER_SAVER = 4
    LOW_POWER_SAVER = 5
    HIGH_POWER_SAVER = 6
    LOW_BALANCED = 7
    BALANCED = 8
    EXTREME_POWER_SAVER = 9


class HtpPrecision(IntEnum):
    """TfLiteQnnDelegateHtpPrecision."""

    QUANTIZED = 0
    FP16 = 1


class GpuPerformanceMode(IntEnum):
    """TfLiteQnnDelegateGpuPerformanceMode."""

    DEFAULT = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3


class GpuPrecision(IntEnum):
    """TfLiteQnnDelegateGpuPrecision."""

    USER_PROVIDED = 0
    FP32 = 1
    FP16 = 2
    HYBRID = 3


class GraphPriority(IntEnum):
    """TfLiteQnnDelegateGraphPriority."""

    DEFAULT = 0
    LOW = 1
    NORMAL = 2
    NORMAL_HIGH = 3
    HIGH = 4


_BACKENDS = {BackendType.GPU: "gpu", BackendType.HTP: "htp", BackendType.LPAI: "lpai", BackendType.CPU: "cpu"}


@dataclass
class HtpOptions:
    """TfLiteQnnDelegateHtpBackendOptions."""

    performance_mode: HtpPerformanceMode = HtpPerformanceMode.DEFAULT
    precision: HtpPrecision = HtpPrecision.QUANTIZED


@dataclass
class GpuOptions:
    """TfLiteQnnDelegateGpuBackendOptions, with the defaults that QNN's header has."""

    performance_mode: GpuPerformanceMode = GpuPerformanceMode.DEFAULT
    precision: GpuPrecision = GpuPrecision.FP16


@dataclass
class SkipOptions:
    """TfLiteQnnDelegateSkipOption: what is to stay in the interpreter.

    Parameters
    ----------
    skip_delegate_ops
        Operators, by number (`kTfLiteBuiltin…`) or by name ("CONV_2D"): all nodes of these kinds stay.
    skip_delegate_node_ids
        Nodes, by their number in the model.
    """

    skip_delegate_ops: Iterable[int | str] = ()
    skip_delegate_node_ids: Iterable[int] = ()


@dataclass
class Options:
    """TfLiteQnnDelegateOptions.

    Parameters
    ----------
    backend_type
        Where nodes go. Mandatory: a delegate without it is refused.
    library_path
        The backend's library, ``libQnnHtp.so`` for one. It must be one of the backend's own.
    skel_library_dir
        Where a device finds the other half of that library. There is none here.
    htp_options, gpu_options
        What one backend alone has.
    log_level
        How much the backend tells.
    profiling
        Whether executions are measured: `QnnDelegate.profile` has the events then.
    cache_dir, model_token
        A folder, and a name for the model, to keep a context binary of each partition under; both or neither.
    skip_options
        What stays.
    graph_priority
        What goes first where executions wait for the accelerator.

    Examples
    --------
    >>> options = Options(BackendType.HTP)
    >>> options.htp_options.performance_mode.name, options.profiling.name, options.cache_dir
    ('DEFAULT', 'OFF', None)
    """

    backend_type: BackendType = BackendType.UNDEFINED
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
    """Options that were checked, in this software's own words."""

    backend: str
    config: Mapping[str, str]
    """The backend's configuration."""
    log_level: DelegateLogLevel
    profiling: Profiling
    priority: int | None
    cache: tuple[Path, str] | None
    skipped_codes: frozenset[str]
    skipped_nodes: frozenset[int]
    without_effect: tuple[str, ...]
    """What was asked for and changes nothing here, in a sentence each."""


_PRIORITIES = {
    GraphPriority.DEFAULT: None,
    GraphPriority.LOW: 0,
    GraphPriority.NORMAL: 100,
    GraphPriority.NORMAL_HIGH: 150,
    GraphPriority.HIGH: 200,
}
_MODES: dict[tuple[str, str], type[IntEnum]] = {
    ("htp", "performance_mode"): HtpPerformanceMode,
    ("htp", "precision"): HtpPrecision,
    ("gpu", "performance_mode"): GpuPerformanceMode,
    ("gpu", "precision"): GpuPrecision,
}
"""What one backend alone has."""
_NO_USE = {
    ("htp", "performance_mode"): "the accelerator here is a process, and has no clocks to set",
    ("htp", "precision"): "floats are computed in single precision here",
    ("gpu", "performance_mode"): "OpenCL has no clocks to set",
}
"""Why a backend has no use for what is its own."""


def checked(options: Any) -> DelegateSettings:
    """The options, or a refusal that names the one at fault."""
    if not isinstance(options, Options):
        raise _refusal("options", f"must be Options, are a {type(options).__name__}")
    own = {
        "htp": _part(options.htp_options, HtpOptions, "htp_options"),
        "gpu": _part(options.gpu_options, GpuOptions, "gpu_options"),
    }
    modes = {
        (owner, mode): _member(getattr(own[owner], mode), kind, f"{owner}_options.{mode}")
        for (owner, mode), kind in _MODES.items()
    }
    skip = _part(options.skip_options, SkipOptions, "skip_options")
    backend = _backend(options)
    priority = _member(options.graph_priority, GraphPriority, "graph_priority")
    return DelegateSettings(
        backend,
        {"precision_mode": modes["gpu", "precision"].name.lower()} if backend == "gpu" else {},
        _member(options.log_level, DelegateLogLevel, "log_level"),
        _member(options.profiling, Profiling, "profiling"),
        _PRIORITIES[priority],
        _cache(options),
        frozenset(_code(given) for given in _several(skip.skip_delegate_ops, "skip_delegate_ops")),
        frozenset(_node(given) for given in _several(skip.skip_delegate_node_ids, "skip_delegate_node_ids")),
        tuple(_without_effect(backend, modes, priority, options.skel_library_dir)),
    )


def _without_effect(
    backend: str, modes: Mapping[tuple[str, str], IntEnum], priority: GraphPriority, skel: object
) -> Iterator[str]:
    """What was asked for that this backend has no use for; a default is not asked for."""
    defaults = {"htp": HtpOptions(), "gpu": GpuOptions()}
    for (owner, mode), chosen in modes.items():
        foreign = f"it is for the {owner.upper()} backend, this delegate's is '{backend}'"
        reason = _NO_USE.get((owner, mode)) if owner == backend else foreign
        if chosen is not getattr(defaults[owner], mode) and reason is not None:
            yield f"Option {owner}_options.{mode} = {chosen.name} has no effect: {reason}"
    if priority and backend != "htp":
        yield f"Option graph_priority = {priority.name} has no effect: '{backend}' executes in the order of asking"
    if skel is not None:
        yield "Option skel_library_dir has no effect: there is no other half of a library here"


def _backend(options: Options) -> str:
    kind = _member(options.backend_type, BackendType, "backend_type")
    if kind is BackendType.UNDEFINED:
        hint = f"Set backend_type to one of {', '.join(known.name for known in _BACKENDS)}."
        raise _refusal("option backend_type", "it is mandatory, and not set", hint)
    name = _BACKENDS.get(kind)
    if name is None or name not in registry.names():
        there = ", ".join(known.name for known, short in _BACKENDS.items() if short in registry.names())
        rule = f"there is none here; there are {there}"
        raise QnnError(Code.BACKEND_NOT_SUPPORTED, f"backend type {kind.name}", rule)
    if options.library_path is not None:
        library = _text(options.library_path, "library_path")
        if Path(library).name != registry.entry(name).library:
            raise _refusal("option library_path", f"'{library}' is not a library of backend type {kind.name}")
    if options.skel_library_dir is not None:
        _text(options.skel_library_dir, "skel_library_dir")
    return name


def _cache(options: Options) -> tuple[Path, str] | None:
    if options.cache_dir is None and options.model_token is None:
        return None
    if options.cache_dir is None or options.model_token is None:
        raise _refusal("options cache_dir and model_token", "they are given together or not at all")
    token = options.model_token
    if not isinstance(token, str) or not token or len(token) > 128 or not set(token) <= _TOKEN:
        rule = f"must be 1 to 128 letters, digits, '-', '_' or '.', is {token!r}"
        raise _refusal("option model_token", rule)
    return Path(_text(options.cache_dir, "cache_dir")), token


_TOKEN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


def _code(given: Any) -> str:
    if isinstance(given, str) and given in OPERATORS:
        return given
    if is_int(given) and 0 <= given < len(OPERATORS):
        return OPERATORS[int(given)]
    raise _refusal("option skip_delegate_ops", f"{given!r} is no operator of TFLite")


def _node(given: Any) -> int:
    if not is_int(given) or given < 0:
        raise _refusal("option skip_delegate_node_ids", f"{given!r} is no number of a node")
    return int(given)


def _several(given: Any, name: str) -> list[Any]:
    if isinstance(given, (str, bytes, bytearray)) or not isinstance(given, Iterable):
        raise _refusal(f"option {name}", f"must be a list, is {given!r}")
    return list(given)


def _part(given: Any, kind: type[Any], name: str) -> Any:
    if not isinstance(given, kind):
        known = ", ".join(each.name for each in fields(kind))
        raise _refusal(f"option {name}", f"must be {kind.__name__} ({known}), is {given!r}")
    return given


def _member(value: Any, kind: type[_Enum], name: str) -> _Enum:
    if isinstance(value, kind):
        return value
    if is_int(value) and not isinstance(value, Enum) and value in {int(each) for each in kind}:
        return kind(int(value))
    known = ", ".join(f"{each.name} {int(each)}" for each in kind)
    raise _refusal(f"option {name}", f"must be one of {known}, is {value!r}")


def _text(value: Any, name: str) -> str:
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise _refusal(f"option {name}", f"must be a path, is {value!r}")
    return text


def _refusal(what: str, rule: str, hint: str = "") -> QnnError:
    return QnnError(Code.BACKEND_INVALID_ARGUMENT, what, rule, hint)
