"""QnnSystemDlc_get*Info*: inputs and outputs of a DLC's graphs without composing them, one fact per function."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isthmus.cabi.client import write, write_number
from isthmus.cabi.types import Definition, QuantizationEncoding
from isthmus.capi.dlc import Dlc, write_handles
from isthmus.capi.functions import HANDLE_TYPES, handle_type, serves
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, GraphEntry
from isthmus.graph import TensorType

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer


@handle_type("QnnSystemDlc_GraphInfoHandle_t", "graph", is_system=True)
@dataclass(eq=False)
class GraphDescription:
    """A graph that is described without composing it, with the handles of its input and output tensors."""

    dlc: Dlc
    name: str
    inputs: list[int]
    outputs: list[int]


@handle_type("QnnSystemDlc_TensorInfoHandle_t", "tensor", is_system=True)
@dataclass(eq=False)
class TensorDescription:
    """An input or output of a described graph.

    - `number`: Its id: its position among the graph's tensors, from 1.
    """

    dlc: Dlc
    entry: ComposedTensor
    number: int
    quantization: int


@handle_type("QnnSystemDlc_QuantParamsHandle_t", "quantization", is_system=True)
@dataclass(eq=False)
class QuantDescription:
    """The encoding of a described tensor; None if it has none."""

    entry: EncodingEntry | None


@serves("systemDlcGetComposableGraphInfoHandles")
def get_composable_graph_info_handles(server: LibraryServer, file: Dlc, out: int, count: int) -> None:
    """Write handles of the graphs that can be composed; names are the source model's, as in QNN's own library."""
    write_handles(file, [], out, count)
    owner = server.handles.number_of(file)
    numbers = [server.handles.add(_describe(server, owner, file, graph), owner) for graph in file.file_graphs]
    write_handles(file, numbers, out, count)


def _describe(server: LibraryServer, handle: int, file: Dlc, graph: GraphEntry) -> GraphDescription:
    """Create handles for the inputs and outputs of a graph, owned by the DLC's handle, and describe the graph."""
    sides: dict[int, list[int]] = {TensorType.APP_WRITE: [], TensorType.APP_READ: []}
    for number, entry in enumerate(graph.tensors, 1):
        if entry.type in sides:
            encoding = server.handles.add(QuantDescription(entry.encoding), handle)
            sides[entry.type].append(server.handles.add(TensorDescription(file, entry, number, encoding), handle))
    return GraphDescription(file, graph.name, sides[TensorType.APP_WRITE], sides[TensorType.APP_READ])


def _answers(name: str, ask: Callable[[Any], Any], form: Any) -> None:
    """Register a C function that writes one fact about a described object."""
    # `ask` returns it from the object. `form` is the C type of the number to write; None for a text, which lives as
    # long as the DLC.

    @serves(name)
    def answer(server: LibraryServer, described: Any, out: int) -> None:
        value = ask(described)
        if form is None:
            write_number(out, described.dlc.keep_text(value))
        else:
            write(out, form(value))


def _answers_at(name: str, ask: Callable[[Any], Any], form: Any) -> None:
    """Register a C function that writes one item of a list, given its index; `ask` returns the list."""

    @serves(name)
    def answer(server: LibraryServer, described: Any, index: int, out: int) -> None:
        several = ask(described)
        if index >= len(several):
            noun = next(each.noun for each in HANDLE_TYPES.values() if each.kind is type(described))
            rule = f"index {index} is out of range: it has {len(several)}"
            what = f"{noun} {server.handles.number_of(described):#x}"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule)
        write(out, form(several[index]))


_U32, _I32, _F32, _HANDLE = ctypes.c_uint32, ctypes.c_int32, ctypes.c_float, ctypes.c_uint64
_GRAPH, _TENSOR, _QUANT = "systemDlcGetComposableGraphInfo", "systemDlcGetTensorInfo", "systemDlcGetQuantParams"

_answers(f"{_GRAPH}GraphName", lambda graph: graph.name, None)
_answers(f"{_GRAPH}NumInputTensors", lambda graph: len(graph.inputs), _U32)
_answers(f"{_GRAPH}NumOutputTensors", lambda graph: len(graph.outputs), _U32)
_answers_at("systemDlcGetGraphInfoInputTensorInfo", lambda graph: graph.inputs, _HANDLE)
_answers_at("systemDlcGetGraphInfoOutputTensorInfo", lambda graph: graph.outputs, _HANDLE)
_answers(f"{_TENSOR}Name", lambda tensor: tensor.entry.name, None)
_answers(f"{_TENSOR}Id", lambda tensor: tensor.number, _U32)
_answers(f"{_TENSOR}Type", lambda tensor: tensor.entry.type, _U32)
_answers(f"{_TENSOR}DataFormat", lambda tensor: 0, _U32)
_answers(f"{_TENSOR}DataType", lambda tensor: tensor.entry.dtype, _U32)
_answers(f"{_TENSOR}Rank", lambda tensor: len(tensor.entry.dims), _U32)
_answers(f"{_TENSOR}QuantParams", lambda tensor: tensor.quantization, _HANDLE)


@serves("systemDlcGetTensorInfoDimensions")
def get_tensor_info_dimensions(server: LibraryServer, tensor: TensorDescription, out: int) -> None:
    """Write the dimensions into the client's array, which has as many elements as the rank."""
    dims = tensor.entry.dims
    if dims:
        write(out, (_U32 * len(dims))(*dims))


def _encoding(*kinds: int) -> Callable[[QuantDescription], EncodingEntry]:
    """Return a function that returns a tensor's encoding if it is of one of these kinds, and refuses others."""

    def get(quant: QuantDescription) -> EncodingEntry:
        if quant.entry is None or quant.entry.kind not in kinds or not len(quant.entry.scales):
            rule = "its encoding is of another form"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "quantization", rule)
        return quant.entry

    return get


def _definition(quant: QuantDescription) -> int:
    """Return whether there is an encoding (Qnn_Definition_t)."""
    return Definition.UNDEFINED if quant.entry is None else Definition.DEFINED


def _form(quant: QuantDescription) -> int:
    """Return the kind of an encoding (Qnn_QuantizationEncoding_t)."""
    return QuantizationEncoding.UNDEFINED if quant.entry is None else quant.entry.kind


def _fact(name: str, ask: Callable[[EncodingEntry], Any], form: Any, kind: int) -> None:
    """Register a C function that writes one fact about encodings of a kind, and refuses others."""
    get = _encoding(kind)
    _answers(f"{_QUANT}{name}", lambda quant: ask(get(quant)), form)


def _fact_at(name: str, ask: Callable[[EncodingEntry], Any], form: Any, kind: int) -> None:
    """Register a C function that writes one item of a list of encodings of a kind, and refuses others."""
    get = _encoding(kind)
    _answers_at(f"{_QUANT}{name}AtIndex", lambda quant: ask(get(quant)), form)


_answers(f"{_QUANT}EncodingDefinition", _definition, _U32)
_answers(f"{_QUANT}Encoding", _form, _U32)
# The numbers are those of Qnn_QuantizationEncoding_t.
for _name, _number in (("ScaleOffset", 0), ("BwScaleOffset", 2)):
    _fact(f"{_name}Scale", lambda e: float(e.scales[0]), _F32, _number)
    _fact(f"{_name}Offset", lambda e: int(e.offsets[0]), _I32, _number)
for _name, _number, _count in (("AxisScaleOffset", 1, "NumScaleOffsets"), ("BwAxisScaleOffset", 3, "NumElements")):
    _fact(f"{_name}Axis", lambda e: e.axis or 0, _I32, _number)
    _fact(f"{_name}{_count}", lambda e: len(e.scales), _U32, _number)
    _fact_at(f"{_name}Scale", lambda e: e.scales.tolist(), _F32, _number)
    _fact_at(f"{_name}Offset", lambda e: e.offsets.tolist(), _I32, _number)
for _name, _number in (("BwScaleOffset", 2), ("BwAxisScaleOffset", 3)):
    _fact(f"{_name}Bitwidth", lambda e: e.bits, _U32, _number)
