"""QnnSystemDlc_*: DLC files, their contents, and composing their graphs on a library that the client names.

Descriptions of a DLC live as long as its handle. The result of composing belongs to the client; it is allocated by
malloc, as by QNN's own library.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
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
    read_array,
    read_large,
    text,
    write_bytes,
    write_number,
)
from isthmus.cabi.tables import BACKEND_FUNCTIONS, COMPOSING_ENTRIES, Interface
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
from isthmus.memory import identity
from isthmus.qnn.composer import ComposedGraph, Composer
from isthmus.system.writing import write_whole

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

_libc = ctypes.CDLL(None)
_libc.malloc.argtypes, _libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p

INVALID_HANDLE = 30000
MAX_CONFIGS = 4096
MAX_BYTES = 1 << 36
METADATA, MODEL, PARAMS, RAW_WEIGHTS, HTP_CACHE = 1, 2, 3, 4, 7
"""QNN's types of records."""
_RECORD_TYPES: dict[int, Callable[[str], bool]] = {
    METADATA: lambda name: name.startswith("dlc.metadata"),
    MODEL: lambda name: name == "model",
    PARAMS: lambda name: name == "model.params",
    RAW_WEIGHTS: lambda name: name == "model.params.bin",
    HTP_CACHE: lambda name: name.startswith("htp.cache"),
}
"""By type: whether an entry of the archive, given its name, is of that type."""
_Kind = TypeVar("_Kind")


@dataclass(eq=False)
class Dlc:
    """A client's DLC.

    Parameters
    ----------
    data
        The whole file.
    records
        The entries of its archive.
    file_graphs, graphs
        Its graphs with the tensor names of the file, and with those that QNN's own reader gives.
    client_objects, texts
        Objects that clients have pointers to.
    """

    data: memoryview
    records: Mapping[str, memoryview]
    file_graphs: tuple[GraphEntry, ...]
    graphs: tuple[GraphEntry, ...]
    client_objects: list[Any] = field(default_factory=list)
    texts: dict[str, Any] = field(default_factory=dict)

    def keep(self, thing: Any) -> Any:
        """Keep an object alive as long as this DLC."""
        self.client_objects.append(thing)
        return thing

    def keep_text(self, value: str) -> int:
        """Return the address of a text, which lives as long as this DLC; equal texts have the same address."""
        copy = ctypes.create_string_buffer(value.encode(errors="backslashreplace"))
        return ctypes.addressof(self.texts.setdefault(value, copy))


@dataclass(eq=False)
class DlcRecord:
    """An entry of a DLC's archive; `view` is an array of the same bytes, whose address a client may read."""

    data: memoryview
    view: np.ndarray


class _BadHandle(Exception):
    """The error of an unknown handle, for which the system library has its own code."""


def object_of(server: LibraryServer, number: int, kind: type[_Kind], noun: str) -> _Kind:
    """Return the object of a system library handle, if it is of this kind; `noun` is the kind's name in messages."""
    try:
        return server.handles.get(number, kind, Code.COMMON_INVALID_ARGUMENT, noun)
    except QnnError as problem:
        raise _BadHandle(str(problem)) from None


def serves_dlc(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function under its C name; unknown handles get the system library's code."""

    def enter(call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(server: LibraryServer, *arguments: int) -> Any:
            try:
                return call(server, *arguments)
            except _BadHandle as problem:
                server.log(LogLevel.ERROR, f"{name}: {problem}")
                return INVALID_HANDLE

        serves(name)(guarded)
        return call

    return enter


# -- files -------------------------------------------------------------------------------------------------------------


def _open(server: LibraryServer, data: memoryview, name: str, out: int) -> int | None:
    """Create a handle for a DLC. Invalid data gets the error code of QNN's own library, and the reason is logged."""
    try:
        contents = dlc.parse(data, name)
        graphs = tuple(translated(graph, clean_names=True) for graph in contents.graphs)
        opened = Dlc(data, dlc.records(data, name), contents.graphs, graphs)
    except QnnError as problem:
        server.log(LogLevel.ERROR, f"systemDlcCreate: {problem}")
        return int(Code.COMMON_MEM_ALLOC)
    write_number(out, server.handles.add(opened))
    return None


@serves_dlc("systemDlcCreateFromFile")
def create_from_file(server: LibraryServer, log: int, path: int, out: int) -> int | None:
    """Create a DLC from a copy of a file; the file may be changed or removed afterwards."""
    write_number(checked(out), 0)
    name = text(checked(path)) or ""
    return _open(server, dlc.mapped(name), Path(name).name, out)


@serves_dlc("systemDlcCreateFromFileWithDestinationDir")
def create_from_file_with_destination_dir(
    server: LibraryServer, log: int, path: int, folder: int, out: int
) -> int | None:
    """Create a DLC from a file; nothing is unpacked, so the folder is not needed."""
    text(folder)
    return create_from_file(server, log, path, out)


@serves_dlc("systemDlcCreateFromBinary")
def create_from_binary(server: LibraryServer, log: int, address: int, nbytes: int, out: int) -> int | None:
    """Create a DLC from a copy of memory."""
    write_number(checked(out), 0)
    if not 1 <= nbytes <= MAX_BYTES:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "DLC", f"it cannot have {nbytes} bytes")
    return _open(server, read_large(checked(address), nbytes), "DLC in memory", out)


@serves_dlc("systemDlcCreateFromBinaryWithDestinationDir")
def create_from_binary_with_destination_dir(
    server: LibraryServer, log: int, address: int, nbytes: int, folder: int, out: int
) -> int | None:
    """Create a DLC from memory; the folder is not needed."""
    text(folder)
    return create_from_binary(server, log, address, nbytes, out)


@serves_dlc("systemDlcFree")
def free(server: LibraryServer, handle: int) -> None:
    """Free a DLC, its records and its descriptions."""
    object_of(server, handle, Dlc, "DLC")
    server.handles.remove(handle)


@serves_dlc("systemDlcSave")
def save(server: LibraryServer, handle: int, path: int) -> None:
    """Write the DLC to a file: completely, or not at all."""
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
    """Write the size of a DLC in bytes."""
    write_number(out, len(object_of(server, handle, Dlc, "DLC").data))


@serves_dlc("systemDlcGetBinary")
def get_binary(server: LibraryServer, handle: int, target: int, nbytes: int, written: int) -> None:
    """Copy a DLC's bytes into the client's buffer."""
    data = object_of(server, handle, Dlc, "DLC").data
    write_number(checked(written), 0)
    if nbytes < len(data):
        rule = f"{nbytes} bytes are not enough for {len(data)}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "buffer for a DLC", rule)
    write_bytes(target, data)
    write_number(written, len(data))


@serves_dlc("systemDlcGetOpMappings")
def get_op_mappings(server: LibraryServer, handle: int, out: int, count: int) -> None:
    """Write an empty list: mappings to the source model's operations are not read."""
    object_of(server, handle, Dlc, "DLC")
    write_number(checked(out), 0)
    write_number(checked(count), 0, ctypes.c_uint32)


# -- records -----------------------------------------------------------------------------------------------------------


def _record(server: LibraryServer, handle: int, data: memoryview) -> int:
    """Return a new handle for an entry of the DLC with this handle."""
    return server.handles.add(DlcRecord(data, np.frombuffer(data, np.uint8)), handle)


@serves_dlc("systemDlcGetRecordByName")
def get_record_by_name(server: LibraryServer, handle: int, name: int, out: int) -> None:
    """Write the handle of an archive entry, given its name."""
    known = object_of(server, handle, Dlc, "DLC")
    write_number(checked(out), 0)
    record_name = text(checked(name)) or ""
    if record_name not in known.records:
        names = ", ".join(f"'{each}'" for each in known.records)
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"record '{record_name}'", f"the DLC has {names}")
    write_number(out, _record(server, handle, known.records[record_name]))


@serves_dlc("systemDlcGetRecordsByType")
def get_records_by_type(server: LibraryServer, handle: int, kind: int, best: int, out: int, count: int) -> None:
    """Write handles of the entries of one kind, in order; none is preferred here."""
    known = object_of(server, handle, Dlc, "DLC")
    write_number(checked(out), 0)
    write_number(checked(count), 0, ctypes.c_uint32)
    belongs = _RECORD_TYPES.get(kind)
    if belongs is None:
        kinds = ", ".join(map(str, _RECORD_TYPES))
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"record type {kind}", f"must be one of {kinds}")
    handles = [_record(server, handle, data) for name, data in known.records.items() if belongs(name)]
    if handles:
        write_number(out, ctypes.addressof(known.keep((ctypes.c_uint64 * len(handles))(*handles))))
        write_number(count, len(handles), ctypes.c_uint32)


@serves_dlc("systemDlcGetRecordDataSize")
def get_record_data_size(server: LibraryServer, record: int, out: int) -> None:
    """Write the size of a record in bytes."""
    write_number(out, len(object_of(server, record, DlcRecord, "record").data))


@serves_dlc("systemDlcReadRecordDataMemoryMapped")
def read_record_data_memory_mapped(server: LibraryServer, record: int, out: int, size: int) -> None:
    """Write the address of a record's bytes, which live as long as the DLC."""
    known = object_of(server, record, DlcRecord, "record")
    write_number(checked(out), known.view.ctypes.data)
    write_number(checked(size), len(known.data))


@serves_dlc("systemDlcFreeRecord")
def free_record(server: LibraryServer, record: int) -> None:
    """Free a record's handle; the DLC keeps the record."""
    object_of(server, record, DlcRecord, "record")
    server.handles.remove(record)


# -- composed graphs ---------------------------------------------------------------------------------------------------


@serves_dlc("systemDlcComposeGraphs")
def compose_graphs(
    server: LibraryServer, handle: int, configs: int, config_count: int, backend: int, context: int, interface: int,
    version: int, out: int, count: int,
) -> int | None:  # fmt: skip
    """Compose all graphs with the client's function table; return 1002 on any error, and log the reason.

    If the version of graph information does not exist or there is nowhere to write it, nothing is composed and the code
    is 1004.
    """
    known = object_of(server, handle, Dlc, "DLC")
    out, count = _behind_the_table(interface) or (out, count)
    _clear(out, count)
    if version not in (1, 2, 3):
        rule = f"there is no version {version} of them; there are 1, 2 and 3"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "graph information", rule)
    try:
        graph_configs = _configs(configs, config_count, {graph.name for graph in known.graphs})
        composer = Composer(_table(interface), backend, context)
        known.keep(composer)
        composed = [composer.compose(graph, graph_configs.get(graph.name)) for graph in known.graphs]
    except (QnnError, BadPointer) as problem:
        if isinstance(problem, BadPointer):
            problem = QnnError(Code.COMMON_INVALID_ARGUMENT, "its arguments", str(problem))
        server.failed("systemDlcComposeGraphs", problem)
        return int(Code.COMMON_MEM_ALLOC)
    write_number(out, _describe(composed, version))
    write_number(count, len(composed), ctypes.c_uint32)
    return None


def _clear(out: int, count: int) -> None:
    """Write that there are no graphs."""
    write_number(checked(out), 0)
    write_number(checked(count), 0, ctypes.c_uint32)


def _behind_the_table(interface: int) -> tuple[int, int] | None:
    """Return the last two arguments of a client whose table is shorter than ours; None if it is not.

    On x86-64 the table is on the stack with these arguments behind it, and no word of it tells the length that it has
    in the client's headers. An entry is null or the address of code and the arguments are addresses of data, so the
    table ends before the first word that is one of data. Where the words fit neither, or nulls before it may be the
    arguments, so that the client's own stack has begun, the call is refused and nothing is written.
    """
    if platform.machine() != "x86_64":
        return None
    entries = len(BACKEND_FUNCTIONS)
    words = read_array(checked(interface) + Interface.table.offset, np.uint64, (entries + 1,)).tolist()
    mappings = identity.mappings()

    def mapping(address: int) -> identity.Mapping | None:
        return next((each for each in mappings if each.start <= address < each.end), None)

    stack = mapping(interface)

    def is_entry(word: int) -> bool:
        found = mapping(word)
        # A stack may be executable, but no function is on it.
        return word == 0 or (found is not None and found.executable and found is not stack)

    def is_data(word: int) -> bool:
        found = mapping(word)
        return found is not None and found.writable and not is_entry(word)

    for index in range(COMPOSING_ENTRIES, entries):
        if is_entry(words[index]):
            continue
        # One null before it may be the first argument, two nulls anywhere may be both.
        is_clear = words[index - 1] and (0, 0) not in pairwise(words[COMPOSING_ENTRIES:index])
        if is_clear and is_data(words[index]) and is_data(words[index + 1]):
            return words[index], words[index + 1]
        rule = f"word {index} of the back end's table is neither an entry nor, beyond doubt, the place for the graphs"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "its arguments", rule)
    return None


def _table(interface: int) -> Any:
    """Read the client's function table; refuse it if a function that composing needs is missing."""
    client_interface = read(checked(interface), Interface)
    for name in ("graphCreate", "tensorCreateGraphTensor", "backendValidateOpConfig", "graphAddNode",
                 "propertyHasCapability"):  # fmt: skip
        if not getattr(client_interface.table, name):
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "the back end's table", f"its entry {name} is null")
    return client_interface.table


def _configs(configs: int, count: int, names: set[str]) -> dict[str, Any]:
    """Return the configs by graph, in the form that graphCreate takes: a null-terminated list of pointers.

    Parameters
    ----------
    configs, count
        The address and length of the client's list.
    names
        The graphs of the DLC.
    """
    if count > MAX_CONFIGS:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "graph configs", f"{count} of them are too many")
    by_graph: dict[str, Any] = {}
    for entry in listed_all(configs, system.DlcGraphConfigInfo, count) if count else []:
        name = text(pointer(entry, "graphName")) or ""
        if name not in names:
            known_names = ", ".join(f"'{each}'" for each in sorted(names))
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"configs of graph '{name}'", f"the DLC has {known_names}")
        if entry.numGraphConfigs > MAX_CONFIGS:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"configs of graph '{name}'", "they are too many")
        listed = [
            read(pointer(entry, "graphConfigs"), ctypes.c_uint64, index).value for index in range(entry.numGraphConfigs)
        ]
        array = (ctypes.c_uint64 * (len(listed) + 1))(*listed, 0)
        by_graph[name] = ctypes.cast(array, system.GRAPH_CONFIGS)
    return by_graph


def _client_copy(thing: Any) -> int:
    """Copy a ctypes value into memory that the client owns and frees with `free`."""
    nbytes = ctypes.sizeof(thing)
    address = _libc.malloc(max(nbytes, 1))
    if not address:
        raise MemoryError
    ctypes.memmove(address, ctypes.addressof(thing), nbytes)
    return int(address)


def _client_text(value: bytes) -> int:
    """Copy a text into memory that the client owns."""
    return _client_copy(ctypes.create_string_buffer(value))


def _put(structure: Any, name: str, address: int) -> None:
    """Set a pointer of a structure to an address; ctypes itself would require an object."""
    offset = getattr(type(structure), name).offset
    ctypes.c_uint64.from_address(ctypes.addressof(structure) + offset).value = address


def _describe(graphs: list[ComposedGraph], version: int) -> int:
    """Write descriptions of the composed graphs into memory that the client owns, and return its address."""
    infos = (system.GraphInfo * len(graphs))()
    for info, graph in zip(infos, graphs, strict=True):
        info.version = version
        # Versions 1 and 2 are the beginning of version 3.
        inner = info.graphInfoV3
        _put(inner, "graphName", _client_text(graph.name.encode()))
        inner.numGraphInputs, inner.numGraphOutputs = len(graph.inputs), len(graph.outputs)
        _put(inner, "graphInputs", _client_tensors(graph.inputs))
        _put(inner, "graphOutputs", _client_tensors(graph.outputs))
    return _client_copy(infos)


def _client_tensors(tensors: tuple[Tensor, ...]) -> int:
    """Copy inputs or outputs and all that they point to into memory that the client owns, and return its address."""
    array = (Tensor * len(tensors))()
    for copy, tensor in zip(array, tensors, strict=True):
        ctypes.memmove(ctypes.addressof(copy), ctypes.addressof(tensor), ctypes.sizeof(Tensor))
        fields = copy.v2
        _put(fields, "name", _client_text(tensor.v2.name or b""))
        if fields.rank:
            dims = (ctypes.c_uint32 * fields.rank)(*tensor.v2.dimensions[: fields.rank])
            _put(fields, "dimensions", _client_copy(dims))
        params, known = fields.quantizeParams, tensor.v2.quantizeParams
        if params.quantizationEncoding == QuantizationEncoding.AXIS_SCALE_OFFSET:
            by_axis: AxisScaleOffset = known.axisScaleOffsetEncoding
            pairs = (ScaleOffset * by_axis.numScaleOffsets)(*by_axis.scaleOffset[: by_axis.numScaleOffsets])
            _put(params.axisScaleOffsetEncoding, "scaleOffset", _client_copy(pairs))
        elif params.quantizationEncoding == QuantizationEncoding.BW_AXIS_SCALE_OFFSET:
            encoding: BwAxisScaleOffset = known.bwAxisScaleOffsetEncoding
            n = encoding.numElements
            _put(params.bwAxisScaleOffsetEncoding, "scales", _client_copy((ctypes.c_float * n)(*encoding.scales[:n])))
            _put(params.bwAxisScaleOffsetEncoding, "offsets", _client_copy((ctypes.c_int32 * n)(*encoding.offsets[:n])))
    return _client_copy(array)
