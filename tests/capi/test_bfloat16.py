"""BFLOAT_16: 16 bits in memory, computed in 32, with results that are rounded once."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from capi import ort_provider
from capi.qnn_calls import Client, at, opened
from isthmus.cabi import types
from isthmus.errors import Code
from isthmus.graph import DataType, Tensor, TensorType
from isthmus.graph.datatypes import from_bfloat16, to_bfloat16
from isthmus.graph.evaluate import evaluate

BF16, F32 = DataType.BFLOAT_16, DataType.FLOAT_32
ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs the package ml_dtypes, for comparison")


def patterns() -> np.ndarray:
    """Floats of all kinds: ties, numbers that round to the next power or to infinity, denormals, NaNs."""
    random = np.random.default_rng(0).integers(0, 1 << 32, 4000, np.uint32)
    upper = np.arange(0, 1 << 16, 37, dtype=np.uint32) << 16
    near = upper[:, None] + np.uint32([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    special = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-45, 1.00390625, 1.01171875])
    return np.concatenate([random, near.reshape(-1), special.view(np.uint32)]).view(np.float32)


def expected(values: np.ndarray) -> np.ndarray:
    """The bits that ml_dtypes stores for these numbers."""
    with np.errstate(all="ignore"):
        return values.astype(ml_dtypes.bfloat16).view(np.uint16)


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    """Compare stored bits; any NaN is as good as another."""
    numbers = ~np.isnan(from_bfloat16(wanted))
    np.testing.assert_array_equal(found[numbers], wanted[numbers])
    assert np.isnan(from_bfloat16(found)[~numbers]).all()


class Net:
    """A graph of one client, node by node."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.backend, self.context = opened(client)
        self.graph = client.make("graphCreate", self.context, b"net", None)

    def tensor(
        self, name: str, kind: TensorType, dtype: DataType, dims: tuple[int, ...], data: np.ndarray | None = None
    ) -> types.Tensor:
        made = self.client.tensor(name, kind, dtype, dims, data=data)
        self.client.do("tensorCreateGraphTensor", self.graph, ctypes.byref(made))
        return made

    def add(self, op: str, inputs: list[types.Tensor], outputs: list[types.Tensor]) -> int:
        node = self.client.operation(f"{op} of {outputs[0].v1.name.decode()}", op, inputs, outputs)
        asked = self.client.backendValidateOpConfig(self.backend, node)
        answered = int(self.client.graphAddNode(self.graph, node))
        assert (asked == 0) == (answered == 0), (asked, answered)
        return answered

    def restored(self) -> int:
        """The graph out of its context's binary."""
        size = ctypes.c_uint64()
        self.client.do("contextGetBinarySize", self.context, ctypes.byref(size))
        binary = ctypes.create_string_buffer(size.value)
        self.client.do("contextGetBinary", self.context, binary, len(binary), ctypes.byref(size))
        again = ctypes.c_void_p()
        self.client.do(
            "contextCreateFromBinary", self.backend, None, None, binary, len(binary), ctypes.byref(again), None
        )
        return self.client.make("graphRetrieve", again, b"net")


def test_numbers_are_rounded_as_another_implementation_rounds_them() -> None:
    values = patterns()
    same(to_bfloat16(values), expected(values))
    stored = np.arange(1 << 16, dtype=np.uint16)
    np.testing.assert_array_equal(from_bfloat16(stored), stored.view(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("library", ["libQnnCpu.so", "libQnnHtp.so"])
def test_casts_give_the_bits_of_the_reference(libraries: Path, library: str) -> None:
    values = patterns()
    net = Net(Client(libraries / library))
    x = net.tensor("x", TensorType.APP_WRITE, F32, values.shape)
    y = net.tensor("y", TensorType.APP_READ, BF16, values.shape)
    stored = net.tensor("stored", TensorType.APP_WRITE, BF16, values.shape)
    wide = net.tensor("wide", TensorType.APP_READ, F32, values.shape)
    assert (net.add("Cast", [x], [y]), net.add("Cast", [stored], [wide])) == (0, 0)
    net.client.do("graphFinalize", net.graph, None, None)
    narrow, found, given = np.zeros(values.shape, np.uint16), np.zeros_like(values), expected(values)
    inputs = [at(x, values), at(stored, given)]
    assert net.client.execute(net.graph, inputs, [at(y, narrow), at(wide, found)]) == 0
    same(narrow, expected(values))
    np.testing.assert_array_equal(found.view(np.uint32), given.astype(np.uint32) << 16)
    tensors = [Tensor(dtype.name, TensorType.NATIVE, dtype, values.shape) for dtype in (F32, BF16)]
    same(evaluate("Cast", tensors[:1], [values], {}, tensors[1:])[0], expected(values))
    np.testing.assert_array_equal(evaluate("Cast", tensors[1:], [given], {}, tensors[:1])[0], found)
    net.client.do("backendFree", net.backend)


@pytest.mark.parametrize("restored", [False, True], ids=["composed", "from a binary"])
def test_a_graph_in_bfloat16_has_16_bits_at_the_interface_and_rounds_once(htp: Client, restored: bool) -> None:
    random = np.random.default_rng(2)
    weights = to_bfloat16(random.standard_normal((16, 4)).astype(np.float32))
    given = to_bfloat16(random.standard_normal((3, 16)).astype(np.float32))
    net = Net(htp)
    x = net.tensor("x", TensorType.APP_WRITE, BF16, given.shape)
    w = net.tensor("w", TensorType.STATIC, BF16, weights.shape, weights)
    between = net.tensor("between", TensorType.NATIVE, BF16, (3, 4))
    y = net.tensor("y", TensorType.APP_READ, BF16, (3, 4))
    assert (net.add("MatMul", [x, w], [between]), net.add("Relu", [between], [y])) == (0, 0)
    htp.do("graphFinalize", net.graph, None, None)
    graph = net.graph
    if restored:
        graph, y.v1.id = net.restored(), 2
    found = np.zeros((3, 4), np.uint16)
    assert htp.execute(graph, [at(x, given)], [at(y, found)]) == 0
    exact = np.maximum(from_bfloat16(given).astype(np.float64) @ from_bfloat16(weights).astype(np.float64), 0)
    np.testing.assert_allclose(from_bfloat16(found), exact, rtol=2**-8)
    assert (found == to_bfloat16(exact.astype(np.float32))).mean() > 0.9, "one rounding, not one for each node"
    small = np.zeros((3, 4), np.uint8)
    assert htp.execute(graph, [at(x, given)], [at(y, small)]) == Code.GRAPH_INVALID_TENSOR
    wide = at(x, np.zeros(given.shape, np.float32))
    wide.v1.dataType = F32
    assert htp.execute(graph, [wide], [at(y, found)]) == Code.GRAPH_INVALID_TENSOR
    htp.do("backendFree", net.backend)


def test_bfloat16_beside_other_floats_needs_a_cast(client: Client) -> None:
    net = Net(client)
    x = net.tensor("x", TensorType.APP_WRITE, BF16, (1, 8))
    y = net.tensor("y", TensorType.APP_READ, F32, (1, 8))
    for op in ("Relu", "Convert"):
        assert net.add(op, [x], [y]) == Code.GRAPH_INVALID_OP_CONFIG
    assert "by a Cast only" in client.reason(Code.GRAPH_INVALID_OP_CONFIG)
    assert net.add("Cast", [x], [y]) == 0
    client.do("graphFinalize", net.graph, None, None)
    client.do("backendFree", net.backend)


def test_a_back_end_without_bfloat16_says_so_when_it_is_asked(libraries: Path) -> None:
    pytest.importorskip("pyopencl", reason="needs OpenCL")
    net = Net(Client(libraries / "libQnnGpu.so"))
    x = net.tensor("x", TensorType.APP_WRITE, BF16, (1, 8))
    between = net.tensor("between", TensorType.NATIVE, BF16, (1, 8))
    y = net.tensor("y", TensorType.APP_READ, BF16, (1, 8))
    for given, made in ((x, between), (between, y)):
        node = net.client.operation("node", "Relu", [given], [made])
        assert net.client.backendValidateOpConfig(net.backend, node) == Code.OP_PACKAGE_VALIDATION_FAILURE
    net.client.do("backendFree", net.backend)


def test_an_input_that_nothing_reads_and_an_output_that_is_read_again_are_right(client: Client) -> None:
    net = Net(client)
    x, unread = (net.tensor(name, TensorType.APP_WRITE, BF16, (1, 8)) for name in ("x", "unread"))
    y, z = (net.tensor(name, TensorType.APP_READ, BF16, (1, 8)) for name in ("y", "z"))
    assert (net.add("Relu", [x], [y]), net.add("ElementWiseAdd", [y, y], [z])) == (0, 0)
    client.do("graphFinalize", net.graph, None, None)
    given = to_bfloat16(np.float32([[-2, -1, 0, 1, 2, 3, 4, 5]]))
    first, second = np.zeros((2, 1, 8), np.uint16)
    assert client.execute(net.graph, [at(x, given), at(unread, given)], [at(y, first), at(z, second)]) == 0
    positive = np.maximum(from_bfloat16(given), 0)
    np.testing.assert_array_equal(from_bfloat16(first), positive)
    np.testing.assert_array_equal(from_bfloat16(second), 2 * positive)
    client.do("backendFree", net.backend)


def test_onnx_runtimes_provider_runs_a_model_in_bfloat16(libraries: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    pytest.importorskip("onnx")
    from capi.test_provider import convolution, image, reference

    model = convolution(tmp_path / "tiny.onnx")
    options = {"htp_bf16_enable": "1", "soc_model": "88"}
    session = ort_provider.session(model, libraries / "libQnnHtp.so", options, {"session.disable_cpu_ep_fallback": "1"})
    mine, total = ort_provider.assigned(session)
    assert mine == total
    np.testing.assert_allclose(session.run(None, image())[0], reference(model, image())[0], rtol=0, atol=0.05)
