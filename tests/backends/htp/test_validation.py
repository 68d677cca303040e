"""The HTP backend validates what the vendor's library validates, and still executes what else a graph has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus import Code, QnnError, qnn
from isthmus.backends.htp.accepted import RULES, TABLE
from isthmus.backends.htp.datatype_sets import DatatypeSet, format_table, parse
from isthmus.graph import Quantization, Tensor
from isthmus.graph.ops import OPERATIONS
from isthmus.qnn import DataType, TensorType

F32, I32 = DataType.FLOAT_32, DataType.INT_32
U8, S8, U16, S16, S32 = (
    DataType.UFIXED_POINT_8, DataType.SFIXED_POINT_8, DataType.UFIXED_POINT_16, DataType.SFIXED_POINT_16,
    DataType.SFIXED_POINT_32,
)  # fmt: skip
IMAGE = (1, 4, 4, 2)
Spec = tuple[DataType, tuple[int, ...]]


def tensor(name: str, type: TensorType, spec: Spec) -> Tensor:
    dtype, dims = spec
    quantization = Quantization.per_tensor(0.1) if dtype.is_fixed_point else None
    data = np.zeros(dims, dtype.numpy) if type is TensorType.STATIC else None
    return Tensor(name, type, dtype, dims, quantization, data=data)


def refusal(backend: str, op: str, inputs: list[Spec], output: Spec, **params: Any) -> str | None:
    """Say why a backend refuses a node whose inputs after the first are constants."""
    kinds = [TensorType.APP_WRITE, *[TensorType.STATIC] * len(inputs)]
    given = [tensor(f"in{index}", kind, spec) for index, (kind, spec) in enumerate(zip(kinds, inputs, strict=False))]
    with qnn.Backend(backend) as opened:
        try:
            opened.validate_op_config("node", op, given, [tensor("out", TensorType.APP_READ, output)], params)
        except QnnError as problem:
            return f"{int(problem.code)} {problem.rule}"
    return None


VOLUME = (1, 4, 4, 4, 2)
WEIGHTS = (3, 3, 2, 5)
CONVOLUTION: dict[str, Any] = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}
REFUSED: list[tuple[str, list[Spec], Spec, dict[str, Any], str]] = [
    ("HardSwish", [(S16, IMAGE)], (S16, IMAGE), {}, "in[0] SFIXED_POINT_16"),
    ("Argmin", [(I32, IMAGE)], (I32, IMAGE[:3]), {"axis": 3}, "in[0] INT_32"),
    ("Conv2d", [(U8, IMAGE), (F32, WEIGHTS)], (U8, (1, 4, 4, 5)), CONVOLUTION, "in[1] FLOAT_32"),
    ("Tanh", [(F32, (1, *IMAGE))], (F32, (1, *IMAGE)), {}, "rank 4 at most"),
    ("GridSample", [(F32, VOLUME), (F32, (1, 4, 4, 4, 3))], (F32, VOLUME), {}, "in[0] FLOAT_32"),
    ("L2Norm", [(F32, IMAGE)], (F32, IMAGE), {}, "the parameter 'axis'"),
    ("Conv1d", [(F32, (1, 4, 2)), (F32, (3, 2, 5))], (F32, (1, 4, 5)), {"stride": 1, "pad_amount": [1, 1]},
     "does not have this operation"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "output", "params", "reason"), REFUSED, ids=[each[0] for each in REFUSED])
def test_what_the_vendors_library_refuses_does_not_validate(
    op: str, inputs: list[Spec], output: Spec, params: dict[str, Any], reason: str
) -> None:
    given = refusal("htp", op, inputs, output, **params) or ""
    assert given.startswith(f"{int(Code.OP_PACKAGE_VALIDATION_FAILURE)} ")
    assert reason in given
    assert refusal("cpu", op, inputs, output, **params) is None, "only HTP has this rule"


ACCEPTED: list[tuple[str, list[Spec], Spec, dict[str, Any]]] = [
    ("HardSwish", [(U16, IMAGE)], (U16, IMAGE), {}),
    ("Conv2d", [(U8, IMAGE), (S8, WEIGHTS), (S32, (5,))], (U8, (1, 4, 4, 5)), CONVOLUTION),
    ("GridSample", [(U8, VOLUME), (U8, (1, 4, 4, 4, 3))], (U8, VOLUME), {}),
    ("GridSample", [(U16, VOLUME), (U16, (1, 4, 4, 4, 3))], (U16, VOLUME), {}),
    ("L2Norm", [(F32, IMAGE)], (F32, IMAGE), {"axis": 3}),
    ("Concat", [(F32, IMAGE)] * 3, (F32, (1, 4, 4, 6)), {"axis": 3}),
    ("Squeeze", [(U8, IMAGE)], (U8, IMAGE[1:]), {"axes": [0]}),
    ("Erf", [(F32, IMAGE)], (F32, IMAGE), {}),
]


@pytest.mark.parametrize(("op", "inputs", "output", "params"), ACCEPTED, ids=[each[0] for each in ACCEPTED])
def test_what_the_vendors_library_accepts_validates_and_operations_of_our_own_do(
    op: str, inputs: list[Spec], output: Spec, params: dict[str, Any]
) -> None:
    assert refusal("htp", op, inputs, output, **params) is None


def test_a_graph_executes_what_a_device_would_refuse() -> None:
    with qnn.Backend("htp") as backend:
        graph = backend.create_context().create_graph("deep")
        x = graph.create_tensor("x", TensorType.APP_WRITE, F32, (1, 1, 1, 2, 3))
        y = graph.create_tensor("y", TensorType.APP_READ, F32, (1, 1, 1, 2, 3))
        graph.add_node("only", "Tanh", [x], [y])
        memory = graph.allocate()
        memory.inputs["x"][...] = 1
        memory.binding.execute()
        np.testing.assert_allclose(memory.outputs["y"], np.tanh(1), rtol=1e-6)
    memory.close()


def test_the_table_is_read_as_it_is_written() -> None:
    assert format_table(RULES) == TABLE.read_text("ascii")
    assert parse(format_table(RULES)) == RULES
    assert RULES.keys() <= OPERATIONS.keys()


def test_sets_that_differ_in_one_tensor_are_written_as_one() -> None:
    lines = ["f16 u8 -> f16", "f16 i32 -> f16", "f32 i32 -> f32"]
    assert list(map(str, DatatypeSet.merge(map(DatatypeSet.parse, lines)))) == ["f16 i32,u8 -> f16", "f32 i32 -> f32"]
