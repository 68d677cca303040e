"""Forms of nodes that clients of QNN use: single numbers, slices of one element, mixed types, weights at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.suites import sampled

from isthmus import qnn
from isthmus.errors import QnnError
from isthmus.graph import Quantization
from isthmus.graph.evaluate import evaluate
from isthmus.graph.tensor import Tensor
from isthmus.qnn import DataType, TensorType

RNG = np.random.default_rng(3)
F32, F16, I32 = DataType.FLOAT_32, DataType.FLOAT_16, DataType.INT_32
U8, S8, U16, S32 = (DataType[f"{name}FIXED_POINT_{bits}"] for name, bits in (("U", 8), ("S", 8), ("U", 16), ("S", 32)))
STEPS = {
    U8: Quantization.per_tensor(0.05, 128), S8: Quantization.per_tensor(0.05, 0),
    U16: Quantization.per_tensor(0.0005, 32768),
}  # fmt: skip
ROOM = {F32: 1e-5, F16: 5e-3, U8: 1, S8: 1, U16: 2}
"""How far a result may be from the numpy reference: as a share of floats, in steps of others."""


@pytest.fixture(scope="module")
def cpu() -> Any:
    with qnn.Backend("cpu") as backend:
        yield backend


def tensor(name: str, dtype: DataType, dims: tuple[int, ...], data: np.ndarray | None = None) -> Tensor:
    """Return an operand: an input, or a constant if it has data."""
    kind = TensorType.APP_WRITE if data is None else TensorType.STATIC
    return Tensor(name, kind, dtype, dims, STEPS.get(dtype), None if data is None else data.astype(dtype.numpy))


def contents(dtype: DataType, dims: tuple[int, ...]) -> np.ndarray:
    """Return random elements between about -2 and 2."""
    reals = RNG.uniform(-2, 2, dims)
    return STEPS[dtype].quantize(reals, dtype.numpy) if dtype in STEPS else reals.astype(dtype.numpy)


def run(backend: Any, op: str, inputs: list[Tensor], output: Tensor, params: dict | None = None) -> np.ndarray:
    """Execute a graph of one node, and check its result against the numpy reference; return the result."""
    with backend.create_context() as context:
        graph = context.create_graph(op)
        for each in (*inputs, output):
            graph.driver.graph.add_tensor(each)
        graph.add_node("node", op, inputs, [output], params)
        memory, [node] = graph.allocate(), graph.driver.graph.nodes
        given = {each.name: contents(each.dtype, each.dims) for each in inputs if not each.is_static}
        for name, array in given.items():
            memory.inputs[name][...] = array
        memory.binding.execute()
        result = memory.outputs[output.name].copy()
        memory.close()
    arrays = [each.data if each.is_static else given[each.name] for each in inputs]
    [expected] = evaluate(op, node.inputs, arrays, node.params, [output])
    off = np.abs(result.astype(np.float64) - expected.astype(np.float64))
    if output.dtype.is_float:
        off /= 1 + np.abs(expected.astype(np.float64)).max(initial=0)
    assert off.max(initial=0) <= ROOM.get(output.dtype, 0)
    return result


def written(dtype: DataType, dims: tuple[int, ...]) -> Tensor:
    return Tensor("y", TensorType.APP_READ, dtype, dims, STEPS.get(dtype))


@pytest.mark.parametrize("dims", [(), (1,)])
def test_a_single_number_is_declared_with_a_dimension_or_without(cpu: Any, dims: tuple[int, ...]) -> None:
    x = tensor("x", F32, (2, 3))
    assert run(cpu, "ReduceMean", [x], written(F32, dims), {"axes": [0, 1]}).shape == dims
    assert run(cpu, "Argmax", [tensor("x", F32, (4,))], written(I32, dims), {"axis": 0}).shape == dims
    assert run(cpu, "Cast", [tensor("x", F32, (1,))], written(I32, dims)).shape == dims


def test_htp_validates_a_single_number_with_a_dimension_only() -> None:
    with qnn.Backend("htp") as backend:
        x = tensor("x", F32, (2, 3))
        backend.validate_op_config("node", "ReduceMean", [x], [written(F32, (1,))], {"axes": [0, 1]})
        for inputs, output in (([x], written(F32, ())), ([tensor("x", F32, ())], written(F32, (1,)))):
            params = {"axes": [0, 1]} if inputs == [x] else None
            with pytest.raises(QnnError, match="no tensors of rank 0"):
                backend.validate_op_config("node", "ReduceMean" if params else "Relu", inputs, [output], params)


def test_other_dimensions_of_a_single_number_are_refused(cpu: Any) -> None:
    with pytest.raises(QnnError, match=r"must have dimensions \[\]"):
        run(cpu, "ReduceSum", [tensor("x", F32, (2, 3))], written(F32, (1, 1)), {"axes": [0, 1]})


@pytest.mark.parametrize("bounds", [(1, 1, 1), (1, 0, 1), (1, 99, 0), (-1, 0, 1)])
def test_a_shrunk_axis_is_the_element_at_begin(cpu: Any, bounds: tuple[int, int, int]) -> None:
    run(cpu, "StridedSlice", [tensor("x", F32, (2, 4))], written(F32, (4,)),
        {"ranges": [bounds, [0, 4, 1]], "shrink_axes": 1})  # fmt: skip


def test_negative_bounds_count_from_the_end(cpu: Any) -> None:
    run(cpu, "StridedSlice", [tensor("x", F32, (2, 4))], written(F32, (2, 2)), {"ranges": [[0, 2, 1], [-3, -1, 1]]})


@pytest.mark.parametrize("mode", [0, 1])
def test_a_block_is_stored_along_the_depth_in_two_ways(cpu: Any, mode: int) -> None:
    params = {"block_size": [2, 1], "mode": mode}
    run(cpu, "SpaceToDepth", [tensor("x", F32, (1, 4, 3, 3))], written(F32, (1, 2, 3, 6)), params)


@pytest.mark.parametrize("dtype", [U8, S8, U16])
def test_the_exponent_of_a_fixed_point_base_may_have_another_type(cpu: Any, dtype: DataType) -> None:
    base = tensor("x", dtype, (4, 4))
    for other in (F32, I32):
        exponent = tensor("e", other, (1,), np.array([2]))
        run(cpu, "ElementWisePower", [base, exponent], written(dtype, (4, 4)))
        run(cpu, "ElementWiseBinary", [base, exponent], written(dtype, (4, 4)), {"operation": 16})
    with pytest.raises(QnnError, match="must have the data type"):
        run(cpu, "ElementWisePower", [tensor("z", F32, (4,)), base], written(F32, (4, 4)))
    with pytest.raises(QnnError, match="must have the data type"):
        run(cpu, "ElementWiseAdd", [base, tensor("z", F32, (1,))], written(dtype, (4, 4)))


def test_slopes_beyond_the_channels_are_not_used(cpu: Any) -> None:
    x = tensor("x", F32, (2, 5, 1, 3))
    run(cpu, "Prelu", [x, tensor("s", F32, (5,), np.arange(5))], written(F32, x.dims))
    run(cpu, "Prelu", [x, tensor("s", F32, (5,))], written(F32, x.dims))
    narrow = tensor("s", U8, (3,), np.array([100, 128, 150]))
    run(cpu, "Prelu", [tensor("x", U16, (2, 3)), narrow], written(U16, (2, 3)))


@pytest.mark.parametrize("dtype", [U8, S8, U16], ids=lambda dtype: dtype.name)
def test_fp16_is_quantized_and_dequantized(cpu: Any, dtype: DataType) -> None:
    run(cpu, "Dequantize", [tensor("x", dtype, (4, 4))], written(F16, (4, 4)))
    run(cpu, "Quantize", [tensor("x", F16, (4, 4))], written(dtype, (4, 4)))


PADS = [[1, 1], [1, 0]]
PRODUCTS: dict[str, tuple] = {
    "Conv1d": ((1, 9, 4), (3, 2, 6), (1, 4, 6), {"stride": 2, "pad_amount": [1, 0], "group": 2}),
    "Conv2d": ((2, 7, 6, 3), (3, 2, 3, 5), (2, 3, 6, 5),
               {"stride": [2, 1], "pad_amount": PADS, "dilation": [2, 1]}),
    "Conv2d in groups": ((1, 5, 5, 4), (3, 3, 2, 6), (1, 5, 4, 6),
                         {"stride": [1, 1], "pad_amount": PADS, "group": 2}),
    "Conv3d": ((1, 3, 4, 4, 2), (2, 2, 2, 2, 3), (1, 2, 3, 3, 3), {"stride": [1] * 3, "pad_amount": [[0, 0]] * 3}),
    "DepthWiseConv1d": ((1, 9, 3), (3, 1, 6), (1, 7, 6), {"stride": 1, "pad_amount": [0, 0]}),
    "DepthWiseConv2d": ((1, 5, 5, 3), (3, 3, 1, 6), (1, 5, 4, 6), {"stride": [1, 1], "pad_amount": PADS}),
    "TransposeConv1d": ((1, 4, 3), (3, 3, 2), (1, 8, 2), {"stride": 2, "pad_amount": [1, 1], "output_padding": 1}),
    "TransposeConv2d": ((1, 4, 3, 4), (3, 3, 4, 2), (1, 8, 6, 4),
                        {"stride": [2, 2], "pad_amount": PADS, "group": 2, "output_padding": [1, 0]}),
    "TransposeConv2d of wide pads": ((1, 6, 6, 2), (2, 2, 2, 3), (1, 3, 3, 3),
                                     {"stride": [1, 1], "pad_amount": [[2, 2], [3, 1]]}),
    "TransposeConv3d": ((1, 2, 3, 3, 2), (2, 2, 2, 2, 3), (1, 4, 5, 5, 3),
                        {"stride": [1] * 3, "pad_amount": [[0, 0]] * 3, "dilation": [2] * 3}),
    "FullyConnected": ((4, 6), (5, 6), (4, 5), {}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, F16, U8, S8, U16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("case", sampled(PRODUCTS, 3))
def test_weights_and_bias_may_be_known_at_run_time_only(cpu: Any, case: str, dtype: DataType) -> None:
    dims, weights, out, params = PRODUCTS[case]
    second = tensor("w", {U16: U8}.get(dtype, dtype), weights)
    constant = tensor("b", F32, (out[-1],), RNG.standard_normal(out[-1]))
    given = tensor("b", F32, (out[-1],))
    for bias in ([], [constant], [given]):
        operands = [tensor("x", dtype, dims), second, *bias]
        if bias != [given] or dtype in (F32, F16):
            run(cpu, case.split()[0], operands, written(dtype, out), dict(params))


def by_channel(op: str, dtype: DataType) -> list[Tensor]:
    """Return the operands of a product with a scale for each channel, and a bias without scales."""
    dims, weights, out, _ = PRODUCTS[op]
    axis = 0 if op == "FullyConnected" else len(weights) - 1
    scales = tuple(0.01 * (index + 1) for index in range(weights[axis]))
    second = Tensor("w", TensorType.STATIC, S8, weights, Quantization(scales, (0,) * len(scales), axis),
                    RNG.integers(-9, 10, weights).astype(np.int8))  # fmt: skip
    bias = Tensor("b", TensorType.STATIC, S32, (out[-1],), None, RNG.integers(-99, 99, out[-1]).astype(np.int32))
    return [tensor("x", dtype, dims), second, bias]


@pytest.mark.parametrize("dtype", [U8, S8, U16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("op", ["Conv2d", "Conv3d", "DepthWiseConv2d", "TransposeConv2d", "FullyConnected"])
def test_a_bias_without_scales_is_in_units_of_its_products(cpu: Any, op: str, dtype: DataType) -> None:
    x, weights, bias = by_channel(op, dtype)
    out, params = PRODUCTS[op][2:]
    assert weights.quantization is not None
    assert bias.data is not None
    with cpu.create_context() as context:
        graph = context.create_graph(op)
        y = written(dtype, out)
        for each in (x, weights, bias, y):
            graph.driver.graph.add_tensor(each)
        graph.add_node("node", op, [x, weights, bias], [y], dict(params))
        [node] = graph.driver.graph.nodes
    units = np.resize(np.float32(weights.quantization.scales), out[-1]) * STEPS[dtype].scale
    reals = node.inputs[2].quantization.dequantize(bias.data)
    np.testing.assert_allclose(reals, bias.data * units, rtol=1e-5)
    run(cpu, op, by_channel(op, dtype), written(dtype, out), dict(params))


def test_an_operand_without_scales_is_refused_where_it_is_no_bias(cpu: Any) -> None:
    bias = Tensor("b", TensorType.STATIC, S32, (4,), None, np.ones(4, np.int32))
    with pytest.raises(QnnError, match="is not the bias of a fixed-point product"):
        run(cpu, "Concat", [bias], Tensor("y", TensorType.APP_READ, S32, (4,), STEPS[S8]), {"axis": 0})
    x, weights = tensor("x", F32, (2, 6)), tensor("w", F32, (4, 6), np.ones((4, 6)))
    with pytest.raises(QnnError, match="is not the bias of a fixed-point product"):
        run(cpu, "FullyConnected", [x, weights, bias], written(F32, (2, 4)))


def test_two_nodes_may_have_one_name(cpu: Any) -> None:
    with cpu.create_context() as context:
        graph = context.create_graph("g")
        x, middle, y = (
            graph.create_tensor(name, kind, F32, (4,))
            for name, kind in (("x", TensorType.APP_WRITE), ("m", TensorType.NATIVE), ("y", TensorType.APP_READ))
        )
        graph.add_node("same", "Relu", [x], [middle])
        graph.add_node("same", "ElementWiseNeg", [middle], [y])
        memory = graph.allocate()
        memory.inputs["x"][...] = [-1, 2, -3, 4]
        memory.binding.execute()
        assert memory.outputs["y"].tolist() == [0, -2, 0, -4]
        memory.close()
