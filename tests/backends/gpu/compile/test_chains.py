"""Element-wise steps become part of the kernel before them, unless someone else needs what lies between."""

from __future__ import annotations

import numpy as np
import pytest

from backends.gpu.compile.checking import assert_close, expected, run, traits
from isthmus.backends.gpu.compile.describe import describe
from isthmus.backends.gpu.compile.lower import prepare
from isthmus.backends.gpu.compile.lowering.chains import operand_class
from isthmus.graph import DataType, Graph, Tensor, TensorType

_generator = np.random.default_rng(5)
F32 = DataType.FLOAT_32
CONV = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}


def _random(*dims: int) -> np.ndarray:
    return _generator.standard_normal(dims).astype(np.float32)


def residual(kept: bool = False) -> tuple[Graph, list[np.ndarray]]:
    """x + conv(x), hard-swished; the convolution's own result is an output too where it is to be kept."""
    graph = Graph("residual")
    x = graph.create_tensor("in0", TensorType.APP_WRITE, F32, (1, 6, 7, 8))
    weights = graph.create_tensor("in1", TensorType.STATIC, F32, (3, 3, 8, 8), None, _random(3, 3, 8, 8))
    conv = graph.emit("Conv2d", [x, weights], CONV)[0]
    if kept:
        conv.type = TensorType.APP_READ
        conv = graph.emit("ElementWiseNeg", [conv])[0]
    total = graph.emit("ElementWiseAdd", [x, conv])[0]
    y = graph.emit("HardSwish", [total])[0]
    y.type = TensorType.APP_READ
    graph.finalize()
    return graph, [_random(1, 6, 7, 8), weights.data]


def test_a_residual_and_an_activation_are_one_launch_with_the_convolution() -> None:
    graph, inputs = residual()
    program = prepare(graph, traits("cpu"))
    assert len(program.launches) == 1
    assert program.steps == ("Conv2d+ElementWiseAdd+HardSwish Conv2d",)
    assert_close(run(program, inputs[:1]), expected(graph, inputs), 1e-5, "fused")


def test_without_fusing_every_step_has_a_launch_and_the_same_result() -> None:
    graph, inputs = residual()
    program = prepare(graph, traits("cpu"), fuse=False)
    assert len(program.launches) == 3
    assert_close(run(program, inputs[:1]), expected(graph, inputs), 1e-5, "apart")


def test_a_result_that_is_an_output_is_stored() -> None:
    graph, inputs = residual(kept=True)
    program = prepare(graph, traits("cpu"))
    assert_close(run(program, inputs[:1]), expected(graph, inputs), 1e-5, "kept")


def test_a_part_of_a_joined_tensor_is_stored_though_only_one_other_step_reads_it() -> None:
    graph = Graph("joined")
    x = graph.create_tensor("in0", TensorType.APP_WRITE, F32, (1, 16))
    parts = [graph.emit(op, [x])[0] for op in ("Sigmoid", "Tanh")]
    whole = graph.emit("Concat", parts, {"axis": 1})[0]
    more = graph.emit("ElementWiseExp", [graph.emit("ElementWiseNeg", [parts[1]])[0]])[0]
    for tensor in (graph.emit("ElementWiseAbs", [whole])[0], more):
        tensor.type = TensorType.APP_READ
    graph.finalize()
    inputs = [_random(1, 16)]
    assert_close(run(prepare(graph, traits("cpu")), inputs), expected(graph, inputs), 1e-5, "joined")


def test_a_launch_is_described_with_the_names_of_its_arguments() -> None:
    graph, _ = residual()
    text = describe(prepare(graph, traits("cpu")), 0)
    assert text.startswith("isthmus_product(x=in0+0:")
    assert "M=42, N=8, K=72" in text
    assert "written" in text


@pytest.mark.parametrize(
    ("dims", "of", "kind"),
    [
        ((1,), (2, 3, 4), "one"), ((1, 1, 1), (2, 3, 4), "one"), ((), (2, 3), "one"), ((2, 3, 4), (2, 3, 4), "full"),
        ((3, 4), (1, 3, 4), "full"), ((4,), (2, 3, 4), "channel"), ((1, 1, 4), (2, 3, 4), "channel"),
        ((4,), (4,), "full"), ((4,), (2, 4), "channel"), ((3, 1), (2, 3, 4), None), ((3, 4), (2, 3, 4), None),
        ((2, 1, 1), (2, 3, 4), None),
    ],
)  # fmt: skip
def test_an_operand_of_a_chain_follows_all_elements_or_channels_or_is_one(dims, of, kind) -> None:
    assert operand_class(Tensor("x", TensorType.NATIVE, DataType.FLOAT_32, dims), of) == kind
