"""A node or tensor that is refused leaves its graph as it was, also where a client's node becomes three of ours."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from capi.qnn_calls import Client, at, opened
from isthmus.errors import Code
from isthmus.graph import DataType, TensorType

BATCH, TIME, FEATURES, UNITS = 2, 4, 3, 2
ORDER = ["x", "w0", "w1", "w2", "r0", "r1", "r2", "b0", "b1", "b2", "h", "c", *["none"] * 4, "w3", "r3",
         *["none"] * 3, "b3", "none", "none"]  # fmt: skip


class Recurrent:
    """A graph with the tensors of an Lstm whose sequence begins with the batch."""

    def __init__(self, client: Client, more: tuple[str, ...] = ()) -> None:
        self.client = client
        self.backend, context = opened(client)
        self.graph = client.make("graphCreate", context, b"net", None)
        self.tensors = {"none": client.tensor("none", TensorType.NULL, DataType.FLOAT_32, (0,))}
        random = np.random.default_rng(0)
        self.create("x", TensorType.APP_WRITE, (BATCH, TIME, FEATURES))
        for kind, dims in (("w", (UNITS, FEATURES)), ("r", (UNITS, UNITS)), ("b", (UNITS,))):
            for number in range(4):
                self.static(f"{kind}{number}", random.standard_normal(dims).astype(np.float32))
        self.static("wrong", np.zeros((UNITS, FEATURES + 1), np.float32))
        for name in ("h", "c", *more):
            self.static(name, np.zeros((BATCH, UNITS), np.float32))
        self.create("y", TensorType.APP_READ, (BATCH, TIME, UNITS))
        for name in ("cell", "last"):
            self.create(name, TensorType.APP_READ, (BATCH, UNITS))

    def create(self, name: str, kind: TensorType, dims: tuple[int, ...], data: np.ndarray | None = None) -> None:
        self.tensors[name] = self.client.tensor(name, kind, DataType.FLOAT_32, dims, data=data)
        self.client.do("tensorCreateGraphTensor", self.graph, ctypes.byref(self.tensors[name]))

    def static(self, name: str, data: np.ndarray) -> None:
        self.create(name, TensorType.STATIC, data.shape, data)

    def add(self, **other: str) -> int:
        """Add the node, with other tensors than the right ones; the answer."""
        inputs = [self.tensors[other.get(name, name)] for name in ORDER]
        outputs = [self.tensors[other.get(name, name)] for name in ("y", "cell", "last")]
        return self.client.graphAddNode(self.graph, self.client.operation("lstm", "Lstm", inputs, outputs))

    def results(self) -> list[np.ndarray]:
        """Return what the graph makes of one sequence."""
        self.client.do("graphFinalize", self.graph, None, None)
        x = np.random.default_rng(1).standard_normal((BATCH, TIME, FEATURES)).astype(np.float32)
        found = [np.zeros(dims, np.float32) for dims in ((BATCH, TIME, UNITS), (BATCH, UNITS), (BATCH, UNITS))]
        kind = type(self.tensors["x"])
        inputs = (kind * 1)(at(self.tensors["x"], x))
        outputs = (kind * 3)(*map(at, (self.tensors[name] for name in ("y", "cell", "last")), found))
        self.client.do("graphExecute", self.graph, inputs, 1, outputs, 3, None, None)
        self.client.do("backendFree", self.backend)
        return found


@pytest.fixture(scope="module")
def wanted(libraries) -> list[np.ndarray]:
    """Return what comes out where nothing went wrong."""
    right = Recurrent(Client(libraries / "libQnnCpu.so"))
    assert right.add() == 0
    return right.results()


@pytest.mark.parametrize("other", [{"w1": "wrong"}, {"cell": "y"}, {"y": "w0"}, {"last": "x"}], ids=str)
def test_a_recurrent_node_that_is_refused_can_be_added_rightly(client: Client, wanted, other: dict[str, str]) -> None:
    net = Recurrent(client)
    for _ in range(2):
        assert net.add(**other) in (Code.GRAPH_INVALID_OP_CONFIG, Code.OP_PACKAGE_VALIDATION_FAILURE)
    assert net.add() == 0
    for ours, right in zip(net.results(), wanted, strict=True):
        np.testing.assert_array_equal(ours, right)


def test_the_transposes_of_a_recurrent_node_take_names_that_the_client_does_not_use(client: Client, wanted) -> None:
    net = Recurrent(client, more=("lstm/time_first", "lstm/hidden", "lstm/batch_first"))
    assert net.add() == 0
    for ours, right in zip(net.results(), wanted, strict=True):
        np.testing.assert_array_equal(ours, right)


@pytest.mark.parametrize(
    ("kind", "code"),
    [(TensorType.STATIC, 0), (TensorType.NATIVE, 0), (TensorType.APP_WRITE, Code.OP_PACKAGE_VALIDATION_FAILURE)],
)
def test_weights_that_earlier_nodes_may_compute_from_constants_are_validated_as_constants(
    client: Client, kind: TensorType, code: int
) -> None:
    net = Recurrent(client)
    for name in ORDER:
        if name[0] in "wrb":
            net.tensors[name].v1.type = kind
    inputs, outputs = ([net.tensors[name] for name in names] for names in (ORDER, ("y", "cell", "last")))
    node = client.operation("lstm", "Lstm", inputs, outputs)
    assert client.backendValidateOpConfig(net.backend, node) == code
    if code:
        assert "weights or bias, must be a constant" in client.reason(Code(code))
    client.do("backendFree", net.backend)


def test_a_tensor_whose_id_cannot_be_written_is_not_created(client: Client) -> None:
    backend, context = opened(client)
    graph = client.make("graphCreate", context, b"net", None)
    x = client.tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 4))
    page = mmap.mmap(-1, mmap.PAGESIZE)
    fixed = type(x).from_buffer(page)
    ctypes.memmove(ctypes.byref(fixed), ctypes.byref(x), ctypes.sizeof(x))
    protect = ctypes.CDLL(None).mprotect
    assert protect(ctypes.c_void_p(ctypes.addressof(fixed)), mmap.PAGESIZE, mmap.PROT_READ) == 0
    assert client.tensorCreateGraphTensor(graph, ctypes.byref(fixed)) == Code.TENSOR_INVALID_TENSOR_PARAM
    client.do("tensorCreateGraphTensor", graph, ctypes.byref(x))
    assert x.v1.id == 1
    client.do("backendFree", backend)
