"""DLC files that we write are read as what was written, by us and by QNN's own reader."""

from __future__ import annotations

import dataclasses
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.dlc_graphs import NATIVE, READ, STATIC, WRITE, convolution, single
from support.dlc_write import node, static, tensor
from support.qnn_export import library

from frontends.dlc import vendor_compose
from isthmus.errors import Code, QnnError
from isthmus.frontends import dlc
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, GraphEntry
from isthmus.frontends.dlc import writing
from isthmus.frontends.dlc.version4 import QuantizationField, ScaleOffsetField
from isthmus.frontends.dlc.writing import dlc as written
from isthmus.graph import DataType

U8, I8, I32 = DataType.UFIXED_POINT_8, DataType.SFIXED_POINT_8, DataType.SFIXED_POINT_32


def quantized() -> GraphEntry:
    """A convolution of bytes and a softmax, with scales for the tensor and along an axis."""
    weights = (np.arange(72) % 17 - 8).astype(np.int8).reshape(3, 3, 2, 4)
    tensors = (
        tensor("x", WRITE, (1, 6, 6, 2), U8, scale=0.5, offset=-128),
        static("w", weights, dtype=I8, scale=[0.25, 0.5, 1, 2], axis=3),
        static("b", np.arange(4, dtype=np.int32), dtype=I32, scale=[0.125, 0.25, 0.5, 1], axis=0),
        tensor("c", NATIVE, (1, 6, 6, 4), U8, scale=1.0, offset=-3),
        tensor("y", READ, (1, 6, 6, 4), U8, scale=1.0, offset=-3),
    )
    params = {"stride": np.uint32([1, 1]), "pad_amount": np.uint32([[1, 1], [1, 1]]), "group": 1}
    nodes = (
        node("conv", "Conv2d", ["x", "w", "b"], ["c"], params),
        node("softmax", "Softmax", ["c"], ["y"], {"axis": 3, "beta": 0.5}),
    )
    return GraphEntry("bytes", tensors, nodes)


def plain(value: object) -> object:
    """An entry as values that can be compared: arrays and bytes as lists."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if dataclasses.is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, tuple) else value


def without_kinds(graphs: object) -> object:
    """Graphs without the data types of scalars, which a file has and these entries have not."""
    found = plain(graphs)
    for graph in found:  # type: ignore[attr-defined]
        for each in graph["nodes"]:
            each.pop("kinds")
    return found


def test_graphs_are_read_as_they_were_written() -> None:
    graphs = (convolution(), quantized())
    contents = dlc.parse(written(graphs, "a tool", "1.2"), "net.dlc")
    assert (contents.version, contents.producer) == (4, "a tool 1.2")
    assert without_kinds(contents.graphs) == without_kinds(graphs)


def test_data_types_of_scalars_are_kept() -> None:
    values = {"axis": -1, "count": 3, "flag": True, "beta": 0.5, "word": "text"}
    kinds = {"axis": 0x0032, "count": 0x0064, "flag": 0x0508, "beta": 0x0232, "word": 0x0608}
    one = dataclasses.replace(node("n", "Softmax", ["x"], ["y"], values), kinds=kinds)
    (graph,) = dlc.parse(written([single(one)], "t", "1"), "net.dlc").graphs
    assert (graph.nodes[0].params, {key: graph.nodes[0].kinds[key] for key in kinds}) == (values, kinds)


def test_constants_that_no_node_reads_are_left_out() -> None:
    graph = single(node("n", "Relu", ["x"], ["y"]), more=(static("unread", np.ones(1000, np.float32)),))
    (read,) = dlc.parse(written([graph], "t", "1"), "net.dlc").graphs
    assert [each.name for each in read.tensors] == ["x", "y"]


def test_entries_are_aligned_and_stored_for_any_reader_of_archives(tmp_path: Path) -> None:
    file = tmp_path / "net.dlc"
    file.write_bytes(written([quantized()], "t", "1"))
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            assert (info.compress_type, info.CRC) == (zipfile.ZIP_STORED, 0)
            name, extra = struct.unpack_from("<HH", file.read_bytes(), info.header_offset + 26)
            assert (info.header_offset + 30 + name + extra) % 8 == 0


@pytest.mark.parametrize("kind", [4, 5, 6])
def test_an_encoding_without_a_known_form_is_refused(kind: int) -> None:
    scales, offsets = np.ones(4, np.float32), np.zeros(4, np.int32)
    held = ComposedTensor("w", STATIC, int(I8), (2, 2), EncodingEntry(scales, offsets, kind=kind), memoryview(bytes(4)))
    graph = single(node("n", "ElementWiseAdd", ["x", "w"], ["y"]), more=(held,))
    with pytest.raises(QnnError, match=f"encoding {kind} has no known form") as refusal:
        written([graph], "t", "1")
    assert refusal.value.code is Code.COMMON_NOT_SUPPORTED


def test_qnns_own_reader_reads_the_same(tmp_path: Path) -> None:
    system = library("QnnSystem")
    file = tmp_path / "net.dlc"
    for graph in (convolution(), quantized()):
        file.write_bytes(written([graph], "t", "1"))
        assert vendor_compose.compared(system, file) == []


def test_a_scalar_that_no_signed_integer_holds_is_refused() -> None:
    one = dataclasses.replace(node("n", "Relu", ["x"], ["y"], {"count": 1 << 63}), kinds={"count": 0x0164})
    with pytest.raises(QnnError, match="parameter 'count'") as refusal:
        written([single(one)], "t", "1")
    assert refusal.value.code is Code.COMMON_NOT_SUPPORTED


@pytest.mark.parametrize(("dtype", "bits"), [(U8, 8), (DataType.UFIXED_POINT_16, 16), (I32, 32)])
def test_a_scale_has_the_bits_of_its_tensor(dtype: DataType, bits: int) -> None:
    fields = writing._quantization(tensor("x", WRITE, (1, 2), dtype, scale=0.5, offset=0))
    assert fields[QuantizationField.SCALE_OFFSET][1][ScaleOffsetField.BITS] == ("u32", bits)
