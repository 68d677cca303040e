"""Operations that move BFLOAT_16 elements, or write numbers in that type, mean what they mean in FLOAT_32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus import qnn
from isthmus.graph import DataType, Tensor, TensorType
from isthmus.graph.datatypes import to_bfloat16
from isthmus.graph.evaluate import evaluate
from isthmus.qnn import ClientTensor

X = np.arange(-3, 3, dtype=np.float32).reshape(2, 3) * np.float32(1.5)
CASES: dict[str, tuple[str, list[Any], dict[str, Any], np.ndarray]] = {
    "Pad": ("Pad", [X], {"scheme": 0, "pad_amount": [[0, 1], [1, 0]], "pad_constant_value": 2.5},
            np.pad(X, ((0, 1), (1, 0)), constant_values=np.float32(2.5))),
    "Pad that repeats": ("Pad", [X], {"scheme": 3, "pad_amount": [[0, 1], [1, 0]]},
                         np.pad(X, ((0, 1), (1, 0)), "edge")),
    "OneHot": ("OneHot", [np.int32([2, 0])], {"depth": 3, "axis": 1, "on_value": 1.5, "off_value": -1.0},
               np.float32([[-1, -1, 1.5], [1.5, -1, -1]])),
    "Reshape": ("Reshape", [X], {}, X.reshape(3, 2)),
    "Transpose": ("Transpose", [X], {"perm": [1, 0]}, X.T),
    "Concat": ("Concat", [X, X], {"axis": 0}, np.concatenate([X, X])),
    "Gather": ("Gather", [X, np.int32([1, 1, 0])], {"axis": 0}, X[[1, 1, 0]]),
    "Select": ("ElementWiseSelect", [X > 0, X, -X], {}, np.where(X > 0, X, -X)),
}  # fmt: skip


def stored(array: np.ndarray) -> tuple[DataType, np.ndarray]:
    """An array as a tensor has it: floats in BFLOAT_16, all else as it is."""
    if array.dtype == np.float32:
        return DataType.BFLOAT_16, to_bfloat16(array)
    return DataType.of(array.dtype), np.ascontiguousarray(array)


@pytest.mark.parametrize("case", CASES)
def test_elements_are_moved_and_written_as_in_float32(case: str) -> None:
    op, arrays, given, expected = CASES[case]
    params = {name: np.asarray(value, np.uint32) if isinstance(value, list) else value for name, value in given.items()}
    pairs = [stored(array) for array in arrays]
    inputs = [array for _, array in pairs]
    wanted = to_bfloat16(np.ascontiguousarray(expected))
    with qnn.Backend("cpu") as backend:
        graph = backend.create_context().create_graph(op)
        tensors = [
            graph.create_tensor(f"x{number}", TensorType.APP_WRITE, kind, array.shape)
            for number, (kind, array) in enumerate(pairs)
        ]
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.BFLOAT_16, expected.shape)
        graph.add_node("node", op, tensors, [y], params)
        graph.finalize()
        result = np.zeros(expected.shape, np.uint16)
        clients = [ClientTensor(tensor.name, array) for tensor, array in zip(tensors, inputs, strict=True)]
        graph.execute(clients, [ClientTensor("y", result)])
    np.testing.assert_array_equal(result, wanted)
    declared = [Tensor(f"x{n}", TensorType.STATIC, k, a.shape, data=a) for n, (k, a) in enumerate(pairs)]
    output = Tensor("y", TensorType.NATIVE, DataType.BFLOAT_16, expected.shape)
    np.testing.assert_array_equal(evaluate(op, declared, inputs, params, [output])[0], wanted)
