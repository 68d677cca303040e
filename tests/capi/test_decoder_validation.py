"""Nodes of decoders in all precisions validate as on the vendor's library."""

from __future__ import annotations

import csv
import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capi.qnn_calls import Client
from isthmus.cabi import types
from isthmus.errors import Code
from isthmus.graph import DataType, TensorType

D = DataType
TYPES = {
    "f32": D.FLOAT_32, "f16": D.FLOAT_16, "u16": D.UFIXED_POINT_16, "u8": D.UFIXED_POINT_8, "s8": D.SFIXED_POINT_8,
    "s16": D.SFIXED_POINT_16, "i32": D.INT_32, "u32": D.UINT_32,
}  # fmt: skip
VERDICTS = Path(__file__).parents[2].parent / "shared" / "data" / "contexts" / "validation.csv"
"""What the vendor's library answered, where a copy is at hand."""
STATE, CACHE, SCORES = (1, 8, 32, 64), (1, 8, 128, 64), (1, 8, 32, 128)
NEURON_SILU = 6
"""Not a number that QNN lists for ElementWiseNeuron; both libraries leave it to the graph."""


class Nodes:
    """Descriptions of nodes."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def tensor(self, name: str, dtype: str, dims: tuple[int, ...], **more: Any) -> types.Tensor:
        """An intermediate tensor, or a constant with `data`; `more` are its `encoding` and its format, `layout`."""
        encoding, data = more.get("encoding"), more.get("data")
        if encoding is None and TYPES[dtype].is_fixed_point:
            unsigned = {"u8": -128, "u16": -32768}.get(dtype, 0)
            encoding = self.client.quantize(0.01, unsigned)
        kind = TensorType.NATIVE if data is None else TensorType.STATIC
        made = self.client.tensor(name, kind, TYPES[dtype], dims, encoding, data)
        made.v1.dataFormat = more.get("layout", 0)
        return made

    def constant(self, name: str, dtype: str, dims: tuple[int, ...], encoding: Any = None) -> types.Tensor:
        """A constant."""
        return self.tensor(name, dtype, dims, encoding=encoding, data=np.zeros(dims, TYPES[dtype].numpy))

    def node(self, op: str, inputs: list[types.Tensor], outputs: list[types.Tensor], **params: Any) -> types.OpConfig:
        """A node; numbers are parameters of 32 bits without a sign, arrays are tensors."""
        kinds = {bool: D.BOOL_8, int: D.UINT_32, np.int32: D.INT_32}
        scalars = {key: (int(kinds[type(value)]), int(value)) for key, value in params.items() if type(value) in kinds}
        arrays = {key: value for key, value in params.items() if isinstance(value, np.ndarray)}
        return self.client.operation("node", op, inputs, outputs, scalars, arrays)

    def plain(self, name: str, dtype: str, index: str) -> types.OpConfig:
        """A node of one data type: its name as in the table, and the type of its indices, if it has any."""
        x, y = self.tensor("x", dtype, STATE), self.tensor("y", dtype, STATE)
        along = {"ScatterElements axis2": 2, "ScatterElements axis3": 3}
        if name in along:
            updates = (1, 8, 1, 64) if along[name] == 2 else (1, 8, 32, 1)
            parts = [x, self.tensor("i", index, updates), self.tensor("u", dtype, updates)]
            return self.node("ScatterElements", parts, [y], axis=along[name])
        if name == "ScatterNd":
            rows = [x, self.tensor("i", index, (1, 1, 2)), self.tensor("u", dtype, (1, 1, 32, 64))]
            return self.node(name, rows, [y])
        if name == "Gather embed":
            table = self.constant("table", dtype, (100, 64))
            found = self.tensor("y", dtype, (1, 32, 64))
            return self.node("Gather", [table, self.tensor("i", index, (1, 32))], [found], axis=np.int32(0))
        if name == "GatherElements":
            return self.node(name, [x, self.tensor("i", index, STATE)], [y], axis=3)
        if name.startswith("RmsNorm"):
            last = np.array([3], np.uint32)
            beta = [] if "no beta" in name else [self.constant("beta", dtype, (64,))]
            return self.node("RmsNorm", [x, self.constant("gamma", dtype, (64,)), *beta], [y], axes=last)
        if name == "MatMul qk":
            return self.node("MatMul", [x, self.tensor("k", dtype, (1, 8, 64, 128))], [self.tensor("y", dtype, SCORES)])
        if name == "Concat ctx":
            return self.node(
                "Concat", [self.tensor("c", dtype, (1, 8, 96, 64)), x], [self.tensor("y", dtype, CACHE)], axis=2
            )
        if name == "ElementWiseAdd mask":
            mask = self.tensor("m", dtype, (1, 1, 32, 128))
            return self.node(
                "ElementWiseAdd", [self.tensor("x", dtype, SCORES), mask], [self.tensor("y", dtype, SCORES)]
            )
        if name == "ElementWiseSelect mask":
            mask = self.client.tensor("m", TensorType.NATIVE, D.BOOL_8, STATE)
            return self.node("ElementWiseSelect", [mask, x, self.tensor("z", dtype, STATE)], [y])
        if name == "Silu neuron":
            return self.node("ElementWiseNeuron", [x], [y], operation=NEURON_SILU)
        if name == "StridedSlice half":
            ranges = np.array([[0, 1, 1], [0, 8, 1], [0, 32, 1], [0, 32, 1]], np.int32)
            return self.node("StridedSlice", [x], [self.tensor("y", dtype, (1, 8, 32, 32))], ranges=ranges)
        if name == "Transpose":
            order = np.array([0, 2, 1, 3], np.uint32)
            return self.node(name, [x], [self.tensor("y", dtype, (1, 32, 8, 64))], perm=order)
        if name == "Split qkv":
            parts = [self.tensor(f"y{number}", dtype, (1, 8, 32, 32)) for number in range(2)]
            return self.node("Split", [x], parts, axis=3, split_index=np.array([32], np.uint32))
        if name == "Tile gqa":
            multiples = np.array([1, 4, 1, 1], np.uint32)
            return self.node("Tile", [x], [self.tensor("y", dtype, (1, 32, 32, 64))], multiples=multiples)
        return self.node({"MaskedSoftmax i32 mask": "MaskedSoftmax"}.get(name, name), [x], [y])

    def product(self, query: str, key: str, how: str) -> types.OpConfig:
        """A product of queries with cached keys: as they are, transposed, or in another format."""
        turned = how == "transposed"
        layout = int(how.removeprefix("format ")) if how.startswith("format") else 0
        keys = self.tensor("k", key, CACHE if turned else (1, 8, 64, 128), layout=layout)
        x, y = self.tensor("x", query, STATE), self.tensor("y", query, SCORES)
        return self.node("MatMul", [x, keys], [y], **({"transpose_in1": True} if turned else {}))

    def native(self, op: str, dtype: str, flat: bool) -> types.OpConfig:
        """An update of a cache in HTP's own layout."""
        cache = self.tensor("c", dtype, CACHE, layout=8)
        new = self.tensor("n", dtype, (1, 8, 32, 64), layout=0 if flat else 8)
        if op == "Concat":
            return self.node(op, [cache, new], [self.tensor("y", dtype, (1, 8, 160, 64), layout=8)], axis=2)
        index = self.tensor("i", "i32", (1, 8, 32, 64))
        return self.node(op, [cache, index, new], [self.tensor("y", dtype, CACHE, layout=8)], axis=2)

    def weighted(self, op: str, dtype: str, weights: str) -> types.OpConfig:
        """A node with constant weights."""
        axis, dims = {"Conv2d": (3, (1, 1, 64, 64)), "FullyConnected": (0, (64, 64)), "MatMul": (None, (64, 64))}[op]
        scales = [0.01] * 64
        encoding = {
            "w8 tensor": lambda: self.client.quantize(0.01, 0), "w8 static": lambda: self.client.quantize(0.01, 0),
            "w8 axis": lambda: self.client.quantize_axis(axis or 0, scales),
            "w4 axis": lambda: self.client.quantize_bits(4, axis, scales),
            "w4 tensor": lambda: self.client.quantize_bits(4, None, scales),
            "lpbq": lambda: self.client.quantize_expansion(axis or 0, scales, np.ones((64, 4), np.uint8)),
            "w f16": lambda: None,
        }[weights]()  # fmt: skip
        w = self.constant("w", "f16" if weights == "w f16" else "s8", dims, encoding)
        shape = (1, 4, 8, 64) if op == "Conv2d" else (1, 32, 64) if op == "MatMul" else (32, 64)
        x, y = self.tensor("x", dtype, shape), self.tensor("y", dtype, shape)
        if op == "Conv2d":
            pads = np.zeros((2, 2), np.uint32)
            return self.node(op, [x, w], [y], stride=np.ones(2, np.uint32), pad_amount=pads)
        return self.node(op, [x, w], [y])

    def named(self, case: str) -> types.OpConfig:
        """The node of a case of the table."""
        if found := re.fullmatch(r"MatMul qk (\w+) x (\w+) KV ?(.*)", case):
            return self.product(*found.groups())
        if found := re.fullmatch(r"(ScatterElements|Concat) native( in, flat update)? (\w+)", case):
            return self.native(found[1], found[3], bool(found[2]))
        if found := re.fullmatch(r"(FullyConnected|Conv2d|MatMul) (\w+) (w\d? ?\w+|lpbq)", case):
            return self.weighted(*found.groups())
        found = re.fullmatch(r"(.+?) (f32|f16|u16|u8|s8|s16)(?: (i32|u32))?", case)
        assert found, case
        return self.plain(found[1], found[2], found[3] or "")


@pytest.fixture(scope="module")
def opened(libraries: Path) -> Iterator[tuple[Client, int]]:
    """A client of HTP and a backend."""
    client = Client(libraries / "libQnnHtp.so")
    backend = client.make("backendCreate", None, None)
    yield client, backend
    client.do("backendFree", backend)


def verdict(opened: tuple[Client, int], case: str) -> int:
    """Return whether a node validates: 0, or a code."""
    client, backend = opened
    return int(client.backendValidateOpConfig(backend, Nodes(client).named(case)))


OURS = {
    "MatMul qk u16 x u8 KV format 8": True, "MatMul qk f16 x f16 KV format 7": True, "Concat native s8": True,
    "ScatterElements native in, flat update u16": True, "ScatterElements native s8": False,
    "MatMul qk u8 x u16 KV format 9": False, "FullyConnected f16 w8 axis": True, "FullyConnected f16 w8 tensor": False,
    "FullyConnected f16 w4 axis": True, "FullyConnected f16 w4 tensor": False, "FullyConnected f16 lpbq": False,
    "Conv2d f16 w4 axis": True, "Conv2d f16 lpbq": False, "MatMul f16 w8 static": False, "MatMul u8 w8 static": True,
    "Conv2d u16 lpbq": True, "RmsNorm s16": False, "RmsNorm no beta s16": True, "Tile gqa s16": False,
    "MaskedSoftmax f16": False,
}  # fmt: skip
"""Cases that show each rule, and whether the vendor's library accepts them."""


@pytest.mark.parametrize("case", OURS)
def test_nodes_of_decoders_validate_as_on_the_vendors_library(opened: tuple[Client, int], case: str) -> None:
    assert (verdict(opened, case) == 0) == OURS[case]


def test_all_recorded_verdicts_of_the_vendors_library_are_followed(opened: tuple[Client, int]) -> None:
    if not VERDICTS.exists():
        pytest.skip("needs the recorded verdicts")
    rows = list(csv.DictReader(VERDICTS.read_text().splitlines()))
    assert len(rows) > 200
    wrong = {
        row["case"]: (row["vendor_SM8750"], found)
        for row in rows
        if (int(row["vendor_SM8750"]) == 0) != ((found := verdict(opened, row["case"])) == 0)
    }
    assert wrong == {}


@pytest.mark.parametrize("made", [(TensorType.APP_WRITE, 7), (TensorType.NATIVE, 8), (TensorType.STATIC, 8)])
def test_a_tensor_that_is_not_dense_is_validated_and_not_created(opened: tuple[Client, int], made) -> None:
    client, backend = opened
    context = client.make("contextCreate", backend, None, None)
    graph = client.make("graphCreate", context, b"g", None)
    kind, data_format = made
    data = np.zeros(STATE, np.float32) if kind is TensorType.STATIC else None
    x = client.tensor("x", kind, D.FLOAT_32, STATE, data=data)
    x.v1.dataFormat = data_format
    assert client.tensorCreateGraphTensor(graph, ctypes.byref(x)) == Code.TENSOR_UNSUPPORTED_TENSOR_PARAM
    assert f"its data format {data_format} is not dense" in client.reason(Code.TENSOR_UNSUPPORTED_TENSOR_PARAM)
    client.do("contextFree", context, None)


@pytest.mark.parametrize("native", [0, 1], ids=["input", "output"])
@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [
        ((D.FLOAT_32, None), 6004, "Detected tensor with unsupported data type been set to format8."),
        ((D.UFIXED_POINT_16, -32768), 6004, "Detected tensor with unsupported data type been set to format8."),
        ((D.UFIXED_POINT_8, -100), 6004, "Detected tensor with unsupported encodings been set to format8."),
        ((D.UFIXED_POINT_8, -128), 1002, "Current graph pattern is unsupported."),
    ],
)
def test_a_graph_with_native_caches_is_refused_when_it_is_finalized_in_the_vendors_words(
    opened: tuple[Client, int], native, kind, code, line
) -> None:
    client, backend = opened
    context = client.make("contextCreate", backend, None, None)
    graph = client.make("graphCreate", context, b"g", None)
    tensors = [
        client.tensor(name, role, kind[0], (1, 8, 128, 64), client.quantize(0.1, kind[1]) if kind[1] else None)
        for name, role in (("x", TensorType.APP_WRITE), ("y", TensorType.APP_READ))
    ]
    tensors[native].v1.dataFormat = 8
    for each in tensors:
        client.do("tensorCreateGraphTensor", graph, ctypes.byref(each))
    client.do("graphAddNode", graph, client.operation("relu", "Relu", tensors[:1], tensors[1:]))
    assert client.graphFinalize(graph, None, None) == code
    assert line in client.reason(code)
    assert client.graphFinalize(graph, None, None) == code
    client.do("contextFree", context, None)
