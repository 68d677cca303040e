"""Composed graphs cross from one process to another whole, and nothing that is not well-formed gets through."""

import io
import random
from dataclasses import replace

import numpy as np
import pytest
from support.containers import START, with_right_checksum
from support.dlc_graphs import convolution, fully_connected
from support.dlc_write import static, tensor

from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.build import ComposedBuilder
from isthmus.frontends.composed.entries import EncodingEntry
from isthmus.frontends.composed.serialization import FORMAT, read, write
from isthmus.graph import DataType, TensorType

WEIGHTS = static("w", np.int8([[1, 2, 3], [4, 5, 6]]), dtype=DataType.SFIXED_POINT_8, scale=[0.5, 0.25], axis=0, bits=4)
GRAPHS = [convolution("first"), fully_connected(WEIGHTS)]


def serialized(graphs) -> bytes:
    stream = io.BytesIO()
    write(graphs, stream)
    return stream.getvalue()


def facts(entry):
    """Everything that a graph says, comparable."""

    def fields_of(one):
        code = one.encoding
        encoding = code and (code.scales.tolist(), code.offsets.tolist(), code.axis, code.bits, code.kind)
        return (one.name, one.type, one.dtype, one.dims, encoding, one.data and bytes(one.data), one.mem_type)

    nodes = [
        (n.name, n.type, n.package, n.inputs, n.outputs,
         {k: fields_of(v) if hasattr(v, "dims") else v for k, v in n.params.items()})
        for n in entry.nodes
    ]  # fmt: skip
    return entry.name, [fields_of(one) for one in entry.tensors], nodes


def test_graphs_are_restored_unchanged() -> None:
    assert [facts(g) for g in read(memoryview(serialized(GRAPHS)), "it")] == [facts(g) for g in GRAPHS]


def test_bytes_are_aligned_views() -> None:
    data = memoryview(serialized(GRAPHS))
    for graph in read(data, "it"):
        for one in graph.tensors:
            if one.data is not None:
                assert one.data.obj is data.obj
                place = np.frombuffer(one.data, np.uint8).ctypes.data - np.frombuffer(data, np.uint8).ctypes.data
                assert place % FORMAT.alignment == 0


def test_a_memory_type_is_kept() -> None:
    graph = replace(GRAPHS[0], tensors=(replace(tensor("x", TensorType.APP_WRITE, (1,)), mem_type=1),))
    assert read(memoryview(serialized([graph])), "it")[0].tensors[0].mem_type == 1


@pytest.mark.parametrize("data", [b"", b"ISTHMCMP", bytes(100), b"ISTHMCMP" + b"\xff" * 8, b"ISTHMCMP" + bytes(80)])
def test_bytes_that_are_no_composed_graph_are_refused(data) -> None:
    with pytest.raises(QnnError, match="not well-formed") as caught:
        read(memoryview(data), "library 'l'")
    assert caught.value.code is Code.COMMON_LOADING_BINARIES


def test_damaged_graphs_are_built_or_refused() -> None:
    rng, data = random.Random(5), serialized(GRAPHS)
    for _ in range(1500):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(START, len(changed))] = rng.choice(b'0123456789"[]{},:nul- \xff\0')
        try:
            for graph in read(memoryview(with_right_checksum(FORMAT, bytes(changed))), "it"):
                ComposedBuilder(graph, graph.name or "net").build()
        except QnnError:
            continue


def test_tensors_that_share_their_bytes_are_refused() -> None:
    many = replace(GRAPHS[0], tensors=tuple(static(f"w{i}", np.zeros(64, np.int8)) for i in range(8)), nodes=())
    header, sections = FORMAT.unpack(serialized([many]))
    for fields in header["graphs"][0]["tensors"]:
        fields["data"] = "0"
    with pytest.raises(QnnError, match="section '0' is missing or belongs to another tensor"):
        read(memoryview(b"".join(FORMAT.pack(header, sections))), "it")


def test_scales_are_not_part_of_the_serialized_header() -> None:
    scales = np.arange(100_000, dtype=np.float32)
    encoding = EncodingEntry(scales, np.zeros(len(scales), np.int32), 0, 8, 1)
    graph = replace(GRAPHS[0], tensors=(replace(tensor("x", TensorType.APP_WRITE, (1,)), encoding=encoding),), nodes=())
    data = serialized([graph])
    # The size of the header is at this offset of the container.
    assert int.from_bytes(data[12:16], "little") < 1000
    np.testing.assert_array_equal(read(memoryview(data), "it")[0].tensors[0].encoding.scales, scales)
