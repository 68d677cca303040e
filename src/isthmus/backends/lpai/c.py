"""LPAI in C: its structures as QNN's headers declare them, and their meaning here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from ctypes import c_uint8, c_uint32
from dataclasses import fields
from enum import IntEnum
from typing import Any

from isthmus.backends.lpai import BACKEND_ID, INTERFACE_VERSION, headers, options
from isthmus.backends.lpai.config import HARDWARE, TARGET_ENVIRONMENTS
from isthmus.backends.seam.facets import CFacet, LogFunction, option_of, show_number
from isthmus.cabi.client import checked, pointer, read, text, write, write_number
from isthmus.errors import Code, QnnError
from isthmus.log import LogLevel


def _memory(address: int) -> options.MemInfo:
    """Read a custom memory descriptor."""
    structure = read(address, headers.MEM_INFO)
    return options.MemInfo(structure.fd, structure.offset)


def _words_of(kind: type[IntEnum], words: Collection[str]) -> dict[IntEnum, str]:
    """Return the words of configuration files for numbers in C structures; those without a word are not simulated."""
    return {each: word for each in kind if (word := each.name.lower().replace("_", ".")) in words}


_TARGETS = _words_of(options.LpaiTarget, TARGET_ENVIRONMENTS)
_VERSIONS = _words_of(options.LpaiHwVersion, HARDWARE)


def _backend(address: int, log: LogFunction) -> dict[str, Any]:
    """Read a custom config of the backend; return it in the form of a configuration file."""
    config = read(address, headers.CUSTOM)
    option_of(options.LpaiBackendOption, config.option, "LPAI backend", Code.BACKEND_INVALID_CONFIG)
    info = read(config.config, headers.HW_INFO)
    settings = {"target_env": _word(info.lpaiTarget, _TARGETS, "target")}
    if info.hwVersion == options.LpaiHwVersion.NA:
        log(LogLevel.INFO, "LPAI backend option HW_INFO names no hardware version: it stays as configured")
    else:
        settings["enable_hw_ver"] = _word(info.hwVersion, _VERSIONS, "hardware version")
    return {"lpai_backend": settings}


def _word(number: int, words: Mapping[IntEnum, str], noun: str) -> str:
    """Return the word of a configuration file for a number, or refuse it."""
    word = next((word for each, word in words.items() if each == number), None)
    if word is None:
        rule = f"must be one of {', '.join(f'{each.name} {int(each)}' for each in words)}"
        raise QnnError(Code.BACKEND_INVALID_CONFIG, f"{noun} {number} of the LPAI backend", rule)
    return word


def _graph(address: int, log: LogFunction) -> dict[Any, Any]:
    """Read a custom config of a graph; return its option with its value. One without effect is logged."""
    config = read(address, headers.CUSTOM)
    option = option_of(options.LpaiGraphOption, config.option, "LPAI graph", Code.GRAPH_INVALID_ARGUMENT)
    assert isinstance(option, options.LpaiGraphOption)
    if option is options.LpaiGraphOption.RESET_STATE:
        return {option: None}
    if option is options.LpaiGraphOption.PREPARE:
        prepare = read(config.config, headers.PREPARE)
        cores = text(prepare.enableCoreSelection)
        said = f"enablePerLayer = {prepare.enablePerLayer}" + ("" if cores is None else f", cores '{cores}'")
        log(LogLevel.INFO, f"LPAI graph option PREPARE, {said}: accepted, but without effect here")
        return {}
    structure, row = read(config.config, headers.STRUCTURES[option]), options.GRAPH_STRUCTURES[option]
    # ctypes has None for an address of 0.
    numbers = {name: getattr(structure, name) or 0 for name, _ in structure._fields_}
    value = row.kind(*numbers.values())
    if not row.effective:
        kinds = (type(each.default) for each in fields(row.kind))
        said = ", ".join(
            f"{name} {show_number(kind, number) if issubclass(kind, IntEnum) else number}"
            for kind, (name, number) in zip(kinds, numbers.items(), strict=True)
        )
        log(LogLevel.INFO, f"LPAI graph option {option.name} = {said}: accepted, but without effect here")
    return {option: value}


def _context(address: int, log: LogFunction) -> dict[Any, Any]:
    """Read a custom config of a context; return its option with its value."""
    config = read(address, headers.CUSTOM)
    option = option_of(options.LpaiContextOption, config.option, "LPAI context", Code.CONTEXT_INVALID_CONFIG)
    if option is options.LpaiContextOption.MODEL_BUFFER_MEM_TYPE:
        return {option: read(config.config, c_uint32).value}
    # The value of ENABLE_ISLAND is the name of a graph.
    graph_name = text(config.config)
    if graph_name is not None:
        log(LogLevel.INFO, f"graph '{graph_name}' is to run in an island: so do all of its context")
    return {option: True}


def _write_property(get: Callable[[int], Any], address: int, refusal: Callable[[str], QnnError]) -> None:
    """Write a custom property where the client's structure points to (`CFacet.write_property`)."""
    request = read(address, headers.CUSTOM)
    value = get(int(request.option))
    where = checked(pointer(request, "config"))
    if isinstance(value, options.BufferAlignmentReq):
        write(where, headers.ALIGNMENT(value.start_addr_alignment, value.size_alignment))
    elif isinstance(value, int):
        write_number(where, value, c_uint8 if isinstance(value, bool) else c_uint32)
    else:
        raise refusal(f"property {request.option} cannot be answered in C")


FACET = CFacet(
    BACKEND_ID,
    INTERFACE_VERSION,
    # Custom properties, buffers of the backend, finalization; memory handles of all kinds.
    capabilities=frozenset({108, 318, 319, 320, 502, 1101, 1102, 1103, 1104}),
    memory=_memory,
    configs={"backend": _backend, "graph": _graph, "context": _context},
    headers=headers.HEADERS,
    write_property=_write_property,
    allocate=lambda context, what, size: context.allocator.allocate(what, size),
    hints=(
        (r"\blpai\.MemInfo\b", "QnnLpaiMem_MemInfoCustom_t"),
        (r"\bset_config\((\w+), Mem\(MemType\.DDR, (\d+), buffer\)\) before finalize\(\)",
         r"graphSetConfig with QNN_LPAI_GRAPH_SET_CFG_\1 and \2 bytes of QNN_LPAI_MEM_TYPE_DDR before graphFinalize"),
        (r"\bMemType\.(DDR|TCM)\b", r"QNN_LPAI_MEM_TYPE_\1"),
    ),
)  # fmt: skip
