"""What a backend validates, it finalizes; what it cannot execute it says beforehand, node by node."""

import pytest

from isthmus import Code, QnnError, qnn
from isthmus.graph import Tensor
from isthmus.qnn import DataType, TensorType

FLOAT, UINT8 = DataType.FLOAT_32, DataType.UINT_8
CORRELATION, RGB = {"displacement": 1, "shift": 0}, {"output_order": 0}
BACKENDS = ("cpu", "htp", "lpai")
CASES = {
    "NonZero": ([(FLOAT, (2, 3))], [(DataType.INT_32, (6, 2))], {}),
    "NonMaxSuppression": (
        [(FLOAT, (1, 4, 4)), (FLOAT, (1, 2, 4))],
        [(DataType.INT_32, (8, 3)), (DataType.UINT_32, (1,))],
        {"iou_threshold": 0.5},
    ),
    "Correlation1D": ([(FLOAT, (1, 4, 8, 2)), (FLOAT, (1, 4, 8, 2))], [(FLOAT, (1, 4, 8, 3))], CORRELATION),
    "Nv12ToRgb": ([(UINT8, (1, 24))], [(UINT8, (1, 4, 4, 3))], RGB),
    "Nv21ToRgb": ([(UINT8, (1, 24))], [(UINT8, (1, 4, 4, 3))], RGB),
}


def tensors(specs, kind, names):
    return [Tensor(f"{names}{i}", kind, dtype, dims) for i, (dtype, dims) in enumerate(specs)]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("op", CASES)
def test_what_cannot_be_executed_does_not_validate(name, op):
    inputs, outputs, params = CASES[op]
    given, made = tensors(inputs, TensorType.APP_WRITE, "in"), tensors(outputs, TensorType.APP_READ, "out")
    with qnn.Backend(name) as backend, pytest.raises(QnnError) as refusal:
        backend.validate_op_config("node", op, given, made, params)
    assert refusal.value.code is Code.OP_PACKAGE_VALIDATION_FAILURE, "its shapes are right, the backend refuses it"


@pytest.mark.parametrize("name", BACKENDS)
def test_finalize_names_every_node_that_cannot_be_executed(name):
    with qnn.Backend(name) as backend:
        graph = backend.create_context().create_graph("two")
        x = graph.create_tensor("x", TensorType.APP_WRITE, UINT8, (1, 24))
        for number, op in enumerate(("Nv12ToRgb", "Nv21ToRgb")):
            y = graph.create_tensor(f"y{number}", TensorType.APP_READ, UINT8, (1, 4, 4, 3))
            graph.add_node(f"camera {number}", op, [x], [y], RGB)
        with pytest.raises(QnnError) as refusal:
            _ = graph.info
        assert "camera 0" in str(refusal.value)
        assert "camera 1" in str(refusal.value)


@pytest.mark.parametrize("name", BACKENDS)
def test_what_validates_finalizes(name):
    x = Tensor("x", TensorType.APP_WRITE, FLOAT, (1, 4))
    y = Tensor("y", TensorType.APP_READ, FLOAT, (1, 4))
    with qnn.Backend(name) as backend:
        backend.validate_op_config("n", "Softmax", [x], [y])
        graph = backend.create_context().create_graph("g")
        given = [graph.create_tensor(t.name, t.type, t.dtype, t.dims) for t in (x, y)]
        graph.add_node("n", "Softmax", given[:1], given[1:])
        graph.allocate().binding.execute()


@pytest.mark.parametrize("name", BACKENDS)
def test_the_list_of_operations_leaves_out_what_is_never_executed(name):
    with qnn.Backend(name) as backend:
        listed = backend.get_supported_operations()
    assert {"Conv2d", "Softmax", "Mish", "Quantize", "Dequantize"} <= set(listed)
    assert not set(CASES) & set(listed)
