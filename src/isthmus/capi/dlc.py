"""QnnSystemDlc_*: DLC files, their contents, and composing their graphs on a library that the client names.

Descriptions of a DLC live as long as its handle. The result of composing belongs to the client; it is allocated by
malloc, as by QNN's own library.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from isthmus.capi.functions import handle_type, serves
from isthmus.errors import Code, QnnError
from isthmus.frontends import dlc
from isthmus.frontends.composed.entries import GraphEntry
from isthmus.frontends.dlc.operations import translate
from isthmus.log import LogLevel
from isthmus.memory import identity
from isthmus.qnn.composer import ComposedGraph, Composer
from isthmus.system.writing import write_whole

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

_libc = ctypes.CDLL(None)
_libc.malloc.argtypes, _libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p

MAX_CONFIGS = 4096
MAX_BYTES = 1 << 36
METADATA, MODEL, PARAMS, RAW_WEIGHTS, HTP_CACHE = 1, 2, 3, 4, 7
"""QNN's types of records."""
# By type: whether an entry of the archive, given its name, is of that type.
_RECORD_TYPES: dict[int, Callable[[str], bool]] = {
    METADATA: lambda name: name.startswith("dlc.metadata"),
    MODEL: lambda name: name == "model",
    PARAMS: lambda name: name == "model.params",
    RAW_WEIGHTS: lambda name: name == "model.params.bin",
    HTP_CACHE: lambda name: name.startswith("htp.cache"),
}


@handle_type("QnnSystemDlc_Handle_t", "DLC", is_system=True)
@dataclass(eq=False)
class Dlc:
    """A client's DLC.

    - `file_graphs`, `graphs`: Its graphs with the tensor names of the file, and with those that QNN's own reader gives.
    - `client_objects`, `texts`: Objects that clients have pointers to.
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


@handle_type("QnnSystemDlc_RecordHandle_t", "record", is_system=True)
@dataclass(eq=False)
class DlcRecord:
    """An entry of a DLC's archive; `view` is an array of the same bytes, whose address a client may read."""

    data: memoryview

    @cached_property
    def view(self) -> np.ndarray:
        return np.frombuffer(self.data, np.uint8)


# -- files -------------------------------------------------------------------------------------------------------------


def _open(server: LibraryServer, data: memoryview, name: str) -> Dlc | int:
    """Return a DLC. Invalid data gets the error code of QNN's own library, and the reason is logged."""
    try:
        contents = dlc.parse(data, name)
        graphs = tuple(translate(graph, clean_names=True) for graph in contents.graphs)
        return Dlc(data, dlc.records(data, name), contents.graphs, graphs)
    except QnnError as problem:
        server.log(LogLevel.ERROR, f"systemDlcCreate: {problem}")
        return int(Code.COMMON_MEM_ALLOC)


@serves("systemDlcCreateFromFile")
@serves("systemDlcCreateFromFileWithDestinationDir")
def create_from_file(server: LibraryServer, log: int, path: str, folder: str | None = None) -> Dlc | int:
    """Create a DLC from a copy of a file, which may be changed or removed then; nothing is unpacked into the folder."""
    return _open(server, dlc.map_copy(path), Path(path).name)


@serves("systemDlcCreateFromBinary")
@serves("systemDlcCreateFromBinaryWithDestinationDir")
def create_from_binary(
    server: LibraryServer, log: int, address: int, nbytes: int, folder: str | None = None
) -> Dlc | int:
    """Create a DLC from a copy of memory; nothing is unpacked into the folder."""
    if not 1 <= nbytes <= MAX_BYTES:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "DLC", f"it cannot have {nbytes} bytes")
    return _open(server, read_large(checked(address), nbytes), "DLC in memory")


@serves("systemDlcFree")
def free(server: LibraryServer, file: Dlc) -> None:
    """Free a DLC, its records and its descriptions: all that its handle owns."""


@serves("systemDlcSave")
def save(server: LibraryServer, file: Dlc, path: str) -> None:
    """Write the DLC to a file: completely, or not at all."""
    target = Path(path)
    if not target.name:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "DLC file", f"'{target}' is not a file name")
    try:
        write_whole(target, file.data, 0o666)
    except OSError as problem:
        rule = f"it cannot be written: {problem.strerror or problem}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"DLC file '{target}'", rule) from None


@serves("systemDlcGetBinarySize")
def get_binary_size(server: LibraryServer, file: Dlc, out: int) -> None:
    """Write the size of a DLC in bytes."""
    write_number(out, len(file.data))


@serves("systemDlcGetBinary")
def get_binary(server: LibraryServer, file: Dlc, target: int, nbytes: int, written: int) -> None:
    """Copy a DLC's bytes into the client's buffer."""
    write_number(written, 0)
    if nbytes < len(file.data):
        rule = f"{nbytes} bytes are not enough for {len(file.data)}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "buffer for a DLC", rule)
    write_bytes(target, file.data)
    write_number(written, len(file.data))


@serves("systemDlcGetOpMappings")
def get_op_mappings(server: LibraryServer, file: Dlc, out: int, count: int) -> None:
    """Write an empty list: mappings to the source model's operations are not read."""
    write_handles(file, [], out, count)


# -- records -----------------------------------------------------------------------------------------------------------


def write_handles(file: Dlc, handles: list[int], out: int, count: int) -> None:
    """Write the address of a list of handles, which lives as long as the DLC, and their number; null if it is empty."""
    array = file.keep((ctypes.c_uint64 * len(handles))(*handles)) if handles else None
    write_number(out, 0 if array is None else ctypes.addressof(array))
    write_number(count, len(handles), ctypes.c_uint32)


@serves("systemDlcGetRecordByName")
def get_record_by_name(server: LibraryServer, file: Dlc, name: str) -> DlcRecord:
    """Return an archive entry, given its name."""
    if name not in file.records:
        names = ", ".join(f"'{each}'" for each in file.records)
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"record '{name}'", f"the DLC has {names}")
    return DlcRecord(file.records[name])


@serves("systemDlcGetRecordsByType")
def get_records_by_type(server: LibraryServer, file: Dlc, kind: int, best: int, out: int, count: int) -> None:
    """Write handles of the entries of one kind, in order; `best` is ignored, since no entry is preferred here."""
    write_handles(file, [], out, count)
    belongs = _RECORD_TYPES.get(kind)
    if belongs is None:
        kinds = ", ".join(map(str, _RECORD_TYPES))
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"record type {kind}", f"must be one of {kinds}")
    owner = server.handles.number_of(file)
    records = [DlcRecord(data) for name, data in file.records.items() if belongs(name)]
    write_handles(file, [server.handles.add(each, owner) for each in records], out, count)


@serves("systemDlcGetRecordDataSize")
def get_record_data_size(server: LibraryServer, record: DlcRecord, out: int) -> None:
    """Write the size of a record in bytes."""
    write_number(out, len(record.data))


@serves("systemDlcReadRecordDataMemoryMapped")
def read_record_data_memory_mapped(server: LibraryServer, record: DlcRecord, out: int, size: int) -> None:
    """Write the address of a record's bytes, which live as long as the DLC."""
    write_number(out, record.view.ctypes.data)
    write_number(size, len(record.data))


@serves("systemDlcFreeRecord")
def free_record(server: LibraryServer, record: DlcRecord) -> None:
    """Free a record's handle only; the DLC keeps the record."""


# -- composed graphs ---------------------------------------------------------------------------------------------------


@serves("systemDlcComposeGraphs")
def compose_graphs(
    server: LibraryServer, file: Dlc, configs: int, config_count: int, backend: int, context: int, interface: int,
    version: int, out: int, count: int,
) -> int | None:  # fmt: skip
    """Compose all graphs with the client's function table; return 1002 on any error, and log the reason.

    If the version of graph information does not exist or there is nowhere to write it, nothing is composed and the code
    is 1004.
    """
    out, count = _behind_the_table(interface) or (out, count)
    write_handles(file, [], out, count)
    if version not in (1, 2, 3):
        rule = f"there is no version {version} of them; there are 1, 2 and 3"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "graph information", rule)
    try:
        graph_configs = _configs(configs, config_count, {graph.name for graph in file.graphs})
        composer = Composer(_table(interface), backend, context)
        file.keep(composer)
        composed = [composer.compose(graph, graph_configs.get(graph.name)) for graph in file.graphs]
    except (QnnError, BadPointer) as problem:
        if isinstance(problem, BadPointer):
            problem = QnnError(Code.COMMON_INVALID_ARGUMENT, "its arguments", str(problem))
        server.record_failure("systemDlcComposeGraphs", problem)
        return int(Code.COMMON_MEM_ALLOC)
    write_number(out, _describe(composed, version))
    write_number(count, len(composed), ctypes.c_uint32)
    return None


def _behind_the_table(interface: int) -> tuple[int, int] | None:
    """Return the last two arguments of a client whose table is shorter than ours; None if it is not."""
    # On x86-64 the table is on the stack with these arguments behind it, and no word of it tells the length that it has
    # in the client's headers. An entry is null or the address of code and the arguments are addresses of data, so the
    # table ends before the first word that is an address of data. The call is refused, and nothing is written, if a
    # word is neither, or if nulls before the first address of data may be the arguments: then it is on the client's own
    # stack.
    if platform.machine() != "x86_64":
        return None
    entries = len(BACKEND_FUNCTIONS)
    words = read_array(checked(interface) + Interface.table.offset, np.uint64, (entries + 1,)).tolist()
    mappings = identity.mappings()

    def mapping(address: int) -> identity.Mapping | None:
        return next((each for each in mappings if each.start <= address < each.end), None)

    stack = mapping(interface)

    def is_entry(word: int) -> bool:
        segment = mapping(word)
        # A stack may be executable, but no function is on it.
        return word == 0 or (segment is not None and segment.executable and segment is not stack)

    def is_data(word: int) -> bool:
        segment = mapping(word)
        return segment is not None and segment.writable and not is_entry(word)

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
    """Return the configs by graph, in the form that graphCreate takes: a null-terminated list of pointers."""
    if count > MAX_CONFIGS:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "graph configs", f"{count} are too many, {MAX_CONFIGS} at most")
    by_graph: dict[str, Any] = {}
    for entry in listed_all(configs, system.DlcGraphConfigInfo, count) if count else []:
        name = text(pointer(entry, "graphName")) or ""
        if name not in names:
            known_names = ", ".join(f"'{each}'" for each in sorted(names))
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"configs of graph '{name}'", f"the DLC has {known_names}")
        if entry.numGraphConfigs > MAX_CONFIGS:
            rule = f"{entry.numGraphConfigs} are too many, {MAX_CONFIGS} at most"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"configs of graph '{name}'", rule)
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
        _put(fields, "name", _client_text(tensor.v2.name))
        if fields.rank:
            dims = (ctypes.c_uint32 * fields.rank)(*tensor.v2.dimensions[: fields.rank])
            _put(fields, "dimensions", _client_copy(dims))
        params, original = fields.quantizeParams, tensor.v2.quantizeParams
        if params.quantizationEncoding == QuantizationEncoding.AXIS_SCALE_OFFSET:
            by_axis: AxisScaleOffset = original.axisScaleOffsetEncoding
            pairs = (ScaleOffset * by_axis.numScaleOffsets)(*by_axis.scaleOffset[: by_axis.numScaleOffsets])
            _put(params.axisScaleOffsetEncoding, "scaleOffset", _client_copy(pairs))
        elif params.quantizationEncoding == QuantizationEncoding.BW_AXIS_SCALE_OFFSET:
            encoding: BwAxisScaleOffset = original.bwAxisScaleOffsetEncoding
            n = encoding.numElements
            _put(params.bwAxisScaleOffsetEncoding, "scales", _client_copy((ctypes.c_float * n)(*encoding.scales[:n])))
            _put(params.bwAxisScaleOffsetEncoding, "offsets", _client_copy((ctypes.c_int32 * n)(*encoding.offsets[:n])))
    return _client_copy(array)
