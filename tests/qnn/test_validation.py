"""What a backend validates, it finalizes; what it cannot execute it says beforehand, node by node."""

import pytest

from isthmus import Code, QnnError, qnn
from isthmus.graph import Tensor
from isthmus.graph.ops import OPERATIONS
from isthmus.qnn import DataType, TensorType

FLOAT, DOUBLE = DataType.FLOAT_32, DataType.FLOAT_64
BACKENDS = ("cpu", "htp", "lpai")
CASES = {
    "Gelu": ([(DOUBLE, (2, 3))], [(DOUBLE, (2, 3))], {}),
    "Softmax": ([(DOUBLE, (2, 3))], [(DOUBLE, (2, 3))], {}),
    "GridSample": ([(DOUBLE, (1, 4, 4, 2)), (DOUBLE, (1, 2, 2, 2))], [(DOUBLE, (1, 2, 2, 2))], {}),
}


def tensors(specs, kind, names):
    return [Tensor(f"{names}{i}", kind, dtype, dims) for i, (dtype, dims) in enumerate(specs)]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("op", CASES)
def test_what_cannot_be_executed_does_not_validate(name, op) -> None:
    inputs, outputs, params = CASES[op]
    given, made = tensors(inputs, TensorType.APP_WRITE, "in"), tensors(outputs, TensorType.APP_READ, "out")
    with qnn.Backend(name) as backend, pytest.raises(QnnError) as refusal:
        backend.validate_op_config("node", op, given, made, params)
    assert refusal.value.code is Code.OP_PACKAGE_VALIDATION_FAILURE, "its shapes are right, the backend refuses it"


@pytest.mark.parametrize("name", BACKENDS)
def test_finalize_names_every_node_that_cannot_be_executed(name) -> None:
    with qnn.Backend(name) as backend:
        graph = backend.create_context().create_graph("two")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DOUBLE, (2, 3))
        for number, op in enumerate(("Gelu", "Softmax")):
            y = graph.create_tensor(f"y{number}", TensorType.APP_READ, DOUBLE, (2, 3))
            graph.add_node(f"gate {number}", op, [x], [y])
        with pytest.raises(QnnError) as refusal:
            _ = graph.info
        assert "gate 0" in str(refusal.value)
        assert "gate 1" in str(refusal.value)


@pytest.mark.parametrize("name", BACKENDS)
def test_what_validates_finalizes(name) -> None:
    x = Tensor("x", TensorType.APP_WRITE, FLOAT, (1, 4))
    y = Tensor("y", TensorType.APP_READ, FLOAT, (1, 4))
    with qnn.Backend(name) as backend:
        backend.validate_op_config("n", "Softmax", [x], [y])
        graph = backend.create_context().create_graph("g")
        given = [graph.create_tensor(t.name, t.type, t.dtype, t.dims) for t in (x, y)]
        graph.add_node("n", "Softmax", given[:1], given[1:])
        graph.allocate().binding.execute()


@pytest.mark.parametrize("name", BACKENDS)
def test_the_list_of_operations_has_all_that_are_defined(name) -> None:
    with qnn.Backend(name) as backend:
        assert set(backend.get_supported_operations()) == set(OPERATIONS)
