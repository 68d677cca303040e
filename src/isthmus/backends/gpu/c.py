"""The GPU backend in C: its structures as QNN's headers declare them, and what they mean here."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from isthmus.backends.gpu import BACKEND_ID, INTERFACE_VERSION, headers, options
from isthmus.backends.gpu.options import GRAPH_OPTIONS, GpuBackendOption, GpuContextOption, GpuMemType, PerfHint
from isthmus.backends.seam.facets import CFacet, LogFunction, option_of, show_number
from isthmus.cabi.client import read, text
from isthmus.errors import Code
from isthmus.log import LogLevel


def _memory(address: int) -> options.GpuMemInfo:
    """Convert the structure at an address; a type that QNN does not define stays a number, and is refused later."""
    structure = read(address, headers.MEM_INFO)
    kind = next((each for each in GpuMemType if each == structure.memType), structure.memType)
    return options.GpuMemInfo(kind, structure.buffer)


def _backend(address: int, log: LogFunction) -> dict[str, Any]:
    """Read and log a custom config of the backend; return no settings, because none of these options has an effect."""
    config = read(address, headers.BACKEND_CONFIG)
    option = option_of(GpuBackendOption, config.option, "GPU backend", Code.BACKEND_INVALID_CONFIG)
    log(LogLevel.INFO, f"GPU backend option {option.name}: accepted, but without effect here")
    return {}


# The readers of the values of context options.
_CONTEXT_VALUES: dict[IntEnum, Callable[[Any], Any]] = {
    GpuContextOption.PERF_HINT: lambda c: c.perfHint,
    GpuContextOption.USE_GL_BUFFERS: lambda c: c.useGLBuffers,
    GpuContextOption.KERNEL_REPO_DIR: lambda c: text(c.kernelRepoDir),
    GpuContextOption.INVALIDATE_KERNEL_REPO: lambda c: c.invalidateKernelRepo,
}


def _context(address: int, log: LogFunction) -> dict[Any, Any]:
    """Read a custom config of a context; return its option with its value. One without effect is logged."""
    config = read(address, headers.CONTEXT_CONFIG)
    option = option_of(GpuContextOption, config.option, "GPU context", Code.CONTEXT_INVALID_CONFIG)
    value = _CONTEXT_VALUES[option](config)
    if option is GpuContextOption.PERF_HINT:
        hint = show_number(PerfHint, value)
        log(LogLevel.INFO, f"GPU context option PERF_HINT = {hint}: accepted, but without effect here")
    return {option: value}


def _graph(address: int, log: LogFunction) -> dict[Any, Any]:
    """Return the values of all graph options from the structure at an address; nothing is logged."""
    config = read(address, headers.GRAPH_CONFIG)
    return {option: getattr(config, headers.field(option)) for option in GRAPH_OPTIONS}


FACET = CFacet(
    BACKEND_ID,
    INTERFACE_VERSION,
    capabilities=frozenset({502, 1101, 1103}),  # custom memory handles
    # Only a client's buffers tell which OpenCL context they belong to.
    config={"gpu": {"follow_client": True}},
    memory=_memory,
    configs={"backend": _backend, "context": _context, "graph": _graph},
    headers=headers.HEADERS,
    hints=((r"\bqnn\.gpu\.allocate makes it for a backend", "clCreateBuffer makes it, in the context of the others"),),
)
