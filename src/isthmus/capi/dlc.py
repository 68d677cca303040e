"""QnnSystemDlc_*: DLC files, what they hold, and their graphs composed on whatever library the client names.

What is told of a DLC lives as long as its handle. What composing answers is the client's, made by malloc as it is by
QNN's own library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from isthmus.cabi import system
from isthmus.cabi.client import (
    BadPointer,
    checked,
    listed_all,
    pointer,
    read,
    read_large,
    text,
    write_bytes,
    write_number,
)
from isthmus.cabi.tables import Interface
from isthmus.cabi.types import (
    AxisScaleOffset,
    BwAxisScaleOffset,
    QuantizationEncoding,
    ScaleOffset,
    Tensor,
)
from isthmus.capi.functions import serves
from isthmus.errors import Code, QnnError
from isthmus.frontends import dlc
from isthmus.frontends.composed.entries import GraphEntry
from isthmus.frontends.dlc.operations import translated
from isthmus.log import LogLevel
from isthmus.qnn.composer import ComposedGraph, Composer
from isthmus.system.writing import write_whole

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

INVALID_HANDLE = 30000
MOST_CONFIGS = 4096
MOST_BYTES = 1 << 36
METADATA, MODEL, PARAMS, RAW_WEIGHTS, HTP_CACHE = 1, 2, 3, 4, 7
_RECORD_TYPES: dict[int, Callable[[str], bool]] = {
    METADATA: lambda name: name.startswith("dlc.metadata"),
    MODEL: lambda name: name == "model",
    PARAMS: lambda name: name == "model.params",
    RAW_WEIGHTS: lambda name: name == "model.params.bin",
    HTP_CACHE: lambda name: name.startswith("htp.cache"),
}
_Kind = TypeVar("_Kind")


@dataclass(eq=False)
class Dlc:
    """A DLC as the client knows it.

    Parameters
    ----------
    data
        The whole file.
    records
        The entries of its archive.
    told, graphs
        Its graphs in the words of the file, and in QNN's.
    kept, texts
        What clients were given pointers to.
    """

    data: memoryview
    records: Mapping[str, memoryview]
    told: tuple[GraphEntry, ...]
    graphs: tuple[GraphEntry, ...]
    kept: list[Any] = field(default_factory=list)
    texts: dict[str, Any] = field(default_factory=dict)

    def keep(self, thing: Any) -> Any:
        """Have something live as long as this."""
        self.kept.append(thing)
        return thing

    def keep_text(self, value: str) -> int:
        """Where a text is that lives as long as this; the same text is always in the same place."""
        made = ctypes.create_string_buffer(value.encode(errors="backslashreplace"))
        return ctypes.addressof(self.texts.setdefault(value, made))


@dataclass(eq=False)
class DlcRecord:
    """An entry of a DLC's archive."""

    data: memoryview
    view: np.ndarray


class _BadHandle(Exception):
    """The system library has a code of its own for it."""


def object_of(server: LibraryServer, number: int, kind: type[_Kind], noun: str) -> _Kind:
    """What a handle of the system library stands for."""
    try:
        return server.handles.get(number, kind, Code.COMMON_INVALID_ARGUMENT, noun)
    except QnnError as problem:
        raise _BadHandle(str(problem)) from None


def serves_dlc(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have a function answer for the one of this name in C, with the system's code for handles that are none."""

    def enter(call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(server: LibraryServer, *arguments: int) -> Any:
            try:
                return call(server, *arguments)
            except _BadHandle as problem:
                server.say(LogLevel.ERROR, f"{name}: {problem}")
                return INVALID_HANDLE

        serves(name)(guarded)
        return call

    return enter


# -- files -------------------------------------------------------------------------------------------------------------


def _open(server: LibraryServer, data: memoryview, name: str, out: int) -> int | None:
    """A handle for a DLC; what is none is answered as QNN's own library answers it, with the reason in the log."""
    try:
        contents = dlc.parse(data, name)
        graphs = tuple(translated(graph, clean_names=True) for graph in contents.graphs)
        made = Dlc(data, dlc.records(data, name), contents.graphs, graphs)
    except QnnError as problem:
        server.say(LogLevel.ERROR, f"systemDlcCreate: {problem}")
        return int(Code.COMMON_MEM_ALLOC)
    write_number(out, server.handles.add(made))
    return None


@serves_dlc("systemDlcCreateFromFile")
def create_from_file(server: LibraryServer, log: int, path: int, out: int) -> int | None:
    """A DLC out of a file, which is copied: it may be written or removed meanwhile."""
    write_number(checked(out), 0)
    name = text(checked(path)) or ""
    return _open(server, dlc.mapped(name), Path(name).name, out)


@serves_dlc("systemDlcCreateFromFileWithDestinationDir")
def create_from_file_with_destination_dir(
    server: LibraryServer, log: int, path: int, folder: int, out: int
) -> int | None:
    """The same: nothing is unpacked, so the folder is not needed."""
    text(folder)
    return create_from_file(server, log, path, out)


@serves_dlc("systemDlcCreateFromBinary")
def create_from_binary(server: LibraryServer, log: int, address: int, nbytes: int, out: int) -> int | None:
    """A DLC out of memory, which is copied."""
    write_number(checked(out), 0)
    if not 1 <= nbytes <= MOST_BYTES:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "DLC", f"it cannot have {nbytes} bytes")
    return _open(server, read_large(checked(address), nbytes), "DLC in memory", out)


@serves_dlc("systemDlcCreateFromBinaryWithDestinationDir")
def create_from_binary_with_destination_dir(
    server: LibraryServer, log: int, address: int, nbytes: int, folder: int, out: int
) -> int | None:
    """The same."""
    text(folder)
    return create_from_binary(server, log, address, nbytes, out)


@serves_dlc("systemDlcFree")
def free(server: LibraryServer, handle: int) -> None:
    """End a DLC, its records and all that it told."""
    object_of(server, handle, Dlc, "DLC")
    server.handles.remove(handle)


@serves_dlc("systemDlcSave")
def save(server: LibraryServer, handle: int, path: int) -> None:
    """Write the DLC to a file, which is there whole or stays as it was."""
    known = object_of(server, handle, Dlc, "DLC")
    target = Path(text(checked(path)) or "")
    if not target.name:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "DLC file", f"'{target}' is not a file name")
    try:
        write_whole(target, known.data, 0o666)
    except OSError as problem:
        rule = f"it cannot be written: {problem.strerror or problem}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"DLC file '{target}'", rule) from None


@serves_dlc("systemDlcGetBinarySize")
def get_binary_size(server: LibraryServer, handle: int, out: int) -> None:
    """How many bytes a DLC has."""
    write_number(out, len(object_of(server, handle, Dlc, "DLC").data))


@serves_dlc("systemDlcGetBinary")
def get_binary(server: LibraryServer, handle: int, target: int, nbytes: int, written: int) -> None:
    """The bytes of a DLC, where the client wants them."""
    data = object_of(server, handle, Dlc, "DLC").data
    write_number(checked(written), 0)
    if nbytes < len(data):
        rule = f"{nbytes} bytes are not enough for {len(data)}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "buffer for a DLC", rule)
    write_bytes(target, data)
    write_number(written, len(data))


@serves_dlc("systemDlcGetOpMappings")
def get_op_mappings(server: LibraryServer, handle: int, out: int, count: int) -> None:
    """Which operations came from which of the source model: it is not read."""
    object_of(server, handle, Dlc, "DLC")
    write_number(checked(out), 0)
    write_number(checked(count), 0, ctypes.c_uint32)


# -- records -----------------------------------------------------------------------------------------------------------


def _record(server: LibraryServer, handle: int, data: memoryview) -> int:
    return server.handles.add(DlcRecord(data, np.frombuffer(data, np.uint8)), handle)


@serves_dlc("systemDlcGetRecordByName")
def get_record_by_name(server: LibraryServer, handle: int, name: int, out: int) -> None:
    """An entry of the archive by its name."""
    known = object_of(server, handle, Dlc, "DLC")
    write_number(checked(out), 0)
    wanted = text(checked(name)) or ""
    if wanted not in known.records:
        there = ", ".join(f"'{each}'" for each in known.records)
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"record '{wanted}'", f"the DLC has {there}")
    write_number(out, _record(server, handle, known.records[wanted]))


@serves_dlc("systemDlcGetRecordsByType")
def get_records_by_type(server: LibraryServer, handle: int, kind: int, best: int, out: int, count: int) -> None:
    """The entries of one kind, in their order; none is better than another here."""
    known = object_of(server, handle, Dlc, "DLC")
    write_number(checked(out), 0)
    write_number(checked(count), 0, ctypes.c_uint32)
    belongs = _RECORD_TYPES.get(kind)
    if belongs is None:
        kinds = ", ".join(map(str, _RECORD_TYPES))
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"record type {kind}", f"must be one of {kinds}")
    found = [_record(server, handle, data) for name, data in known.records.items() if belongs(name)]
    if found:
        write_number(out, ctypes.addressof(known.keep((ctypes.c_uint64 * len(found))(*found))))
        write_number(count, len(found), ctypes.c_uint32)


@serves_dlc("systemDlcGetRecordDataSize")
def get_record_data_size(server: LibraryServer, record: int, out: int) -> None:
    """How many bytes a record has."""
    write_number(out, len(object_of(server, record, DlcRecord, "record").data))


@serves_dlc("systemDlcReadRecordDataMemoryMapped")
def read_record_data_memory_mapped(server: LibraryServer, record: int, out: int, size: int) -> None:
    """Where a record's bytes are; they live as long as the DLC."""
    known = object_of(server, record, DlcRecord, "record")
    write_number(checked(out), known.view.ctypes.data)
    write_number(checked(size), len(known.data))


@serves_dlc("systemDlcFreeRecord")
def free_record(server: LibraryServer, record: int) -> None:
    """End a record's handle; the DLC keeps the record."""
    object_of(server, record, DlcRecord, "record")
    server.handles.remove(record)


# -- graphs that are composed ------------------------------------------------------------------------------------------


@serves_dlc("systemDlcComposeGraphs")
def compose_graphs(
    server: LibraryServer, handle: int, configs: int, config_count: int, backend: int, context: int, interface: int,
    version: int, out: int, count: int,
) -> int | None:  # fmt: skip
    """Compose all graphs by the client's table; whatever goes wrong meanwhile is 1002, and its reason in the log.

    Nothing is composed, and the answer is 1004, where there is no such version of graph information or nowhere to put
    it.
    """
    known = object_of(server, handle, Dlc, "DLC")
    write_number(checked(out), 0)
    write_number(checked(count), 0, ctypes.c_uint32)
    if version not in (1, 2, 3):
        rule = f"there is no version {version} of them; there are 1, 2 and 3"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "graph information", rule)
    try:
        wanted = _configs(configs, config_count, {graph.name for graph in known.graphs})
        composer = Composer(_table(interface), backend, context)
        known.keep(composer)
        made = [composer.compose(graph, wanted.get(graph.name)) for graph in known.graphs]
    except (QnnError, BadPointer) as problem:
        if isinstance(problem, BadPointer):
            problem = QnnError(Code.COMMON_INVALID_ARGUMENT, "its arguments", str(problem))
        server.failed("systemDlcComposeGraphs", problem)
        return int(Code.COMMON_MEM_ALLOC)
    write_number(out, _informed(made, version))
    write_number(count, len(made), ctypes.c_uint32)
    return None


def _table(interface: int) -> Any:
    given = read(checked(interface), Interface)
    for name in ("graphCreate", "tensorCreateGraphTensor", "backendValidateOpConfig", "graphAddNode",
                 "propertyHasCapability"):  # fmt: skip
        if not getattr(given.table, name):
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "the back end's table", f"its entry {name} is null")
    return given.table


def _configs(configs: int, count: int, names: set[str]) -> dict[str, Any]:
    """The configs of each graph, as graphCreate takes them."""
    if count > MOST_CONFIGS:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "graph configs", f"{count} of them are too many")
    found: dict[str, Any] = {}
    for given in listed_all(configs, system.DlcGraphConfigInfo, count) if count else []:
        name = text(pointer(given, "graphName")) or ""
        if name not in names:
            there = ", ".join(f"'{each}'" for each in sorted(names))
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"configs of graph '{name}'", f"the DLC has {there}")
        if given.numGraphConfigs > MOST_CONFIGS:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"configs of graph '{name}'", "they are too many")
        listed = [
            read(pointer(given, "graphConfigs"), ctypes.c_uint64, index).value
            for index in range(given.numGraphConfigs)
        ]
        array = (ctypes.c_uint64 * (len(listed) + 1))(*listed, 0)
        found[name] = ctypes.cast(array, system.GRAPH_CONFIGS)
    return found


_libc = ctypes.CDLL(None)
_libc.malloc.argtypes, _libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p


def _given(thing: Any) -> int:
    """A copy of a value of ctypes that is the client's, to be freed by `free`."""
    nbytes = ctypes.sizeof(thing)
    address = _libc.malloc(max(nbytes, 1))
    if not address:
        raise MemoryError
    ctypes.memmove(address, ctypes.addressof(thing), nbytes)
    return int(address)


def _given_text(value: bytes) -> int:
    return _given(ctypes.create_string_buffer(value))


def _put(structure: Any, name: str, address: int) -> None:
    """Set a pointer of a structure, which ctypes would want an object for."""
    offset = getattr(type(structure), name).offset
    ctypes.c_uint64.from_address(ctypes.addressof(structure) + offset).value = address


def _informed(made: list[ComposedGraph], version: int) -> int:
    """What graphs were composed, in memory of the client's."""
    infos = (system.GraphInfo * len(made))()
    for info, graph in zip(infos, made, strict=True):
        info.version = version
        inner = info.graphInfoV3
        _put(inner, "graphName", _given_text(graph.name.encode()))
        inner.numGraphInputs, inner.numGraphOutputs = len(graph.inputs), len(graph.outputs)
        _put(inner, "graphInputs", _given_tensors(graph.inputs))
        _put(inner, "graphOutputs", _given_tensors(graph.outputs))
    return _given(infos)


def _given_tensors(tensors: tuple[Tensor, ...]) -> int:
    array = (Tensor * len(tensors))()
    for copy, tensor in zip(array, tensors, strict=True):
        ctypes.memmove(ctypes.addressof(copy), ctypes.addressof(tensor), ctypes.sizeof(Tensor))
        fields = copy.v2
        _put(fields, "name", _given_text(tensor.v2.name or b""))
        if fields.rank:
            _put(fields, "dimensions", _given((ctypes.c_uint32 * fields.rank)(*tensor.v2.dimensions[: fields.rank])))
        params, known = fields.quantizeParams, tensor.v2.quantizeParams
        if params.quantizationEncoding == QuantizationEncoding.AXIS_SCALE_OFFSET:
            along: AxisScaleOffset = known.axisScaleOffsetEncoding
            pairs = (ScaleOffset * along.numScaleOffsets)(*along.scaleOffset[: along.numScaleOffsets])
            _put(params.axisScaleOffsetEncoding, "scaleOffset", _given(pairs))
        elif params.quantizationEncoding == QuantizationEncoding.BW_AXIS_SCALE_OFFSET:
            many: BwAxisScaleOffset = known.bwAxisScaleOffsetEncoding
            n = many.numElements
            _put(params.bwAxisScaleOffsetEncoding, "scales", _given((ctypes.c_float * n)(*many.scales[:n])))
            _put(params.bwAxisScaleOffsetEncoding, "offsets", _given((ctypes.c_int32 * n)(*many.offsets[:n])))
    return _given(array)
