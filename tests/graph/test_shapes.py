"""Every operation derives its outputs' shapes, and refuses what does not fit with a sentence that names the node."""

from __future__ import annotations

import numpy as np
import pytest
from support.graph_cases import CONV, GATES, I32, LSTM, POOL, SHAPES, U8

from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, Quantization, Tensor, TensorType
from isthmus.graph.operation import Call
from isthmus.graph.ops import OPERATIONS

F32, Q8 = DataType.FLOAT_32, DataType.SFIXED_POINT_8


def tensors(graph: Graph, operands: list) -> list[Tensor | None]:
    """Graph inputs for operands given as dimensions, as (type, dimensions), or as None."""
    made: list[Tensor | None] = []
    for index, operand in enumerate(operands):
        if operand is None:
            made.append(None)
            continue
        dtype, dims = operand if operand and isinstance(operand[0], DataType) else (F32, operand)
        quantization = Quantization.per_tensor(0.1) if dtype.is_fixed_point else None
        made.append(graph.create_tensor(f"in{index}", TensorType.APP_WRITE, dtype, dims, quantization))
    return made


def derive(op: str, operands: list, params: dict, **more) -> list[tuple[int, ...]]:
    graph = Graph("g")
    operation = OPERATIONS[op]
    count = operation.outputs[1] or 1
    return [t.dims for t in graph.emit(op, tensors(graph, operands), params, name="n", outputs=count, **more)]


def numbered(cases: list) -> list[str]:
    return [f"{index}-{case[0]}" for index, case in enumerate(cases)]


@pytest.mark.parametrize(("op", "operands", "params", "expected"), SHAPES, ids=numbered(SHAPES))
def test_shapes_follow_from_inputs_and_parameters(op: str, operands: list, params: dict, expected: list) -> None:
    more = {"dtypes": [F32]} if op == "OneHot" else {}
    assert derive(op, operands, params, **more) == expected


DECLARED: list[tuple[str, list, dict, tuple, tuple]] = [
    ("Reshape", [(2, 6)], {}, (3, 4), (3, 5)),
    ("Squeeze", [(1, 3, 1, 2)], {}, (3, 1, 2), (3, 2, 1)),
    ("Squeeze", [(1, 3, 1)], {}, (3,), (1,)),
    ("Resize", [(1, 4, 4, 3)], {}, (1, 8, 2, 3), (1, 8, 3)),
    ("ResizeBilinear", [(1, 4, 4, 3)], {}, (1, 8, 2, 3), (1, 8, 2, 4)),
    ("ResizeNearestNeighbor", [(1, 4, 4, 3)], {}, (1, 8, 2, 3), (2, 8, 2, 3)),
    ("Nv12ToRgb", [(U8, (1, 24))], {"output_order": 0}, (1, 4, 4, 3), (1, 4, 5, 3)),
    ("Nv21ToRgb", [(U8, (1, 24))], {"output_order": 0}, (1, 2, 8, 3), (1, 3, 8, 3)),
    ("NonZero", [(4, 5)], {}, (20, 2), (20, 3)),
    ("NonMaxSuppression", [(1, 6, 4), (1, 2, 6)], {"iou_threshold": 0.5}, (12, 3), (12, 4)),
]


@pytest.mark.parametrize(("op", "operands", "params", "right", "wrong"), DECLARED)
def test_declared_shapes_are_taken_when_they_fit(
    op: str, operands: list, params: dict, right: tuple, wrong: tuple
) -> None:
    assert derive(op, operands, params, dims=[right]) == [right]
    with pytest.raises(QnnError, match=r"6005.*node 'n' \(" + op):
        derive(op, operands, params, dims=[wrong])
    with pytest.raises(QnnError, match="must be declared"):
        derive(op, operands, params)


REFUSED: list[tuple[str, list, dict, str]] = [
    ("Squeeze", [(1, 3, 1)], {"axes": [1]}, r"axes \[1\] of in\[0\] \[1, 3, 1\] must have size 1"),
    ("Conv2d", [(1, 8, 8, 3), (3, 3, 3, 8)], CONV | {"stride": [0, 1]}, "stride must be at least 1"),
    ("Conv2d", [(1, 8, 8, 3), (3, 3, 3, 8)], CONV | {"dilation": [1, 0]}, "dilation must be at least 1"),
    ("Conv2d", [(1, 8, 8, 3), (3, 3, 3, 8)], CONV | {"stride": [1]}, "stride must have shape"),
    ("Conv2d", [(1, 2, 8, 3), (3, 3, 3, 8)], CONV, "reaches over 3 elements .* has only 2"),
    ("Conv2d", [(1, 8, 8, 3), (0, 3, 3, 8)], CONV, "at least 1 along each axis"),
    ("Conv2d", [(1, 8, 8, 4), (3, 3, 3, 8)], CONV, "take 3 input channels, .* has 4"),
    ("Conv2d", [(1, 8, 8, 4), (3, 3, 4, 8)], CONV | {"group": 3}, "group 3 must divide"),
    ("Conv2d", [(1, 8, 8, 4), (3, 3, 4, 8)], CONV | {"group": 0}, "group must be at least 1"),
    ("Conv2d", [(1, 8, 8, 4), (3, 3, 4, 8), (4,)], CONV, r"in\[2\] .* must have dimensions \[8\]"),
    ("DepthWiseConv2d", [(1, 8, 8, 4), (3, 3, 1, 6)], CONV, "multiple of 4 input channels"),
    ("DepthWiseConv2d", [(1, 8, 8, 0), (3, 3, 1, 6)], CONV, "multiple of 0 input channels"),
    ("TransposeConv2d", [(1, 1, 1, 2), (2, 2, 2, 3)], CONV | {"pad_amount": [[1, 1], [0, 0]]}, "leaves nothing"),
    ("TransposeConv2d", [(1, 1, 1, 2), (2, 2, 2, 3)], CONV | {"output_padding": [1, 0]}, "below the stride"),
    ("FullyConnected", [(2, 5), (7, 4)], {}, "rows of 4 features"),
    ("FullyConnected", [(2, 5), (7, 0)], {}, "at least one feature"),
    ("MatMul", [(2, 3), (4, 5)], {}, "cannot multiply"),
    ("MatMul", [(3,), (3, 5)], {}, "rank 2 or more"),
    ("PoolMax2d", [(1, 4, 4, 1)], POOL | {"pad_amount": [[2, 0], [0, 0]]}, "below filter_size"),
    ("PoolMax2d", [(1, 4, 4, 1)], POOL | {"filter_size": [0, 2]}, "filter_size must be at least 1"),
    ("ElementWiseAdd", [(2, 3), (2, 4)], {}, "do not broadcast"),
    ("Prelu", [(3,), (2, 3)], {}, "must broadcast to"),
    ("ReluMinMax", [(3,)], {"min_value": 1, "max_value": 0}, "in this order"),
    ("ElementWiseUnary", [(3,)], {"operation": 16}, r"operation must be in 0\.\.15"),
    ("ElementWiseUnary", [(3,)], {"operation": 9}, "ElementWiseNot does not take"),
    ("Transpose", [(2, 3)], {"perm": [0, 0]}, "each axis .* once"),
    ("Concat", [(2, 3), (3, 3)], {"axis": 1}, "except along axis 1"),
    ("Concat", [(), ()], {}, "outside rank 0"),
    ("Pack", [(2,), (3,)], {"axis": 0}, "must have the dimensions"),
    ("UnPack", [(0, 2)], {"axis": 0}, "must have 1 to"),
    ("UnPack", [(2**31, 2)], {"axis": 0}, "must have 1 to"),
    ("Split", [(4,)], {"axis": 0, "split_index": [3, 2]}, "must ascend"),
    ("StridedSlice", [(4,)], {"ranges": [[0, 4, 0]]}, "must not be 0"),
    ("StridedSlice", [(4,)], {"ranges": [[0, 5, 1]]}, r"must be in 0\.\.4"),
    ("StridedSlice", [(4,)], {"ranges": [[4, 5, 1]], "shrink_axes": 1}, "cannot be shrunk"),
    ("StridedSlice", [(4,)], {"ranges": [[-5, 0, 1]], "shrink_axes": 1}, "cannot be shrunk"),
    ("StridedSlice", [(4,)], {"ranges": [[-5, 4, 1]]}, r"must be in 0\.\.4"),
    ("SpaceToDepth", [(1, 2, 2, 1)], {"block_size": [2, 2], "mode": 2}, r"mode must be in 0\.\.1"),
    ("Prelu", [(2, 3), (2,)], {}, "do not broadcast"),
    ("StridedSlice", [(4,)], {"ranges": [[0, 4, 1]], "new_axes_mask": 1}, "use ExpandDims"),
    ("Pad", [(2,)], {"scheme": 2, "pad_amount": [[2, 0]]}, "more than its 2 elements"),
    ("Pad", [(2,)], {"scheme": 4, "pad_amount": [[2, 0]]}, r"scheme must be in 0\.\.3"),
    ("Tile", [(2**20, 2**20)], {"multiples": [2**20, 2**20]}, "above the limit"),
    ("Gather", [(2,), (I32, (2,))], {"axis": 1}, "outside rank 1"),
    ("Gather", [(2,), (2,)], {"axis": 0}, "unsupported data type"),
    ("GatherElements", [(2, 3), (I32, (2, 4))], {}, "be within it"),
    ("GatherNd", [(2, 3), (I32, (2, 3))], {}, "do not fit"),
    ("GatherNd", [(2, 3), (I32, (2, 1))], {"batch_dims": 2}, "batch_dims 2 must be below"),
    ("ScatterNd", [(5, 6), (I32, (4, 1)), (4, 5)], {}, "must have dimensions"),
    ("ScatterElements", [(5,), (I32, (2,)), (2,)], {"reduction": 9}, "reduction must be"),
    ("DepthToSpace", [(1, 2, 2, 6)], {"block_size": [2, 2]}, "not a multiple"),
    ("SpaceToDepth", [(1, 3, 2, 6)], {"block_size": [2, 2]}, "not a multiple"),
    ("BatchToSpace", [(4, 1, 1, 1)], {"block_size": [2, 2], "crops": [[2, 1], [0, 0]]}, "more than there is"),
    ("ChannelShuffle", [(1, 6)], {"num_groups": 4}, "must divide"),
    ("ChannelShuffle", [(1, 6)], {"num_groups": 0}, "at least 1"),
    ("ReduceMax", [(2, 0)], {"axes": [1]}, "no elements to choose from"),
    ("ReduceSum", [(2, 3)], {"axes": [1, 1]}, "different axes"),
    ("ReduceSum", [(2, 3)], {"axes": [2]}, "below rank 2"),
    ("TopK", [(2, 3)], {"k": 4}, "more than the last axis"),
    ("Batchnorm", [(2, 3), (2,)], {}, r"must have dimensions \[3\]"),
    ("LayerNorm", [(2, 3)], {"axes": []}, "at least one axis"),
    ("GroupNorm", [(2, 3, 4)], {"epsilon": 0.1, "group": 3}, "must divide"),
    ("Lrn", [(1, 4, 4, 3)], {"radius": -1}, "radius must be"),
    ("Lstm", [LSTM[0], (4, 2), *LSTM[2:]], {}, r"in\[1\]|in\[2\]"),
    ("Lstm", [*LSTM, (4,)], {}, "layer normalisation"),
    ("Lstm", [*LSTM, *[None] * 4, (4, 3)], {}, "given together"),
    ("Gru", [(5, 2, 3), *GATES], {"direction": 2}, "direction must be"),
    ("Shape", [(2, 3)], {"start": 2, "end": 1}, "within rank"),
    ("ReverseSequence", [(4, 3), (I32, (3,))], {"batch_axis": 0, "time_axis": 0}, "must differ"),
    ("GridSample", [(2, 8, 8, 3), (1, 4, 5, 2)], {}, r"grid .* must be"),
    ("GridSample", [(2, 4, 8, 8, 3), (2, 4, 5, 6, 2)], {}, r"grid .* must be \[2,depth,height,width,3\]"),
    ("GridSample", [(2, 4, 8, 8, 3), (2, 4, 5, 2)], {}, r"in\[1\] must have rank 5"),
    ("GridSample", [(2, 4, 8, 0, 3), (2, 4, 5, 6, 3)], {}, "no pixels"),
    ("ElementWiseSoftplus", [(2,)], {"beta": 0}, "beta must not be 0"),
]


@pytest.mark.parametrize(("op", "operands", "params", "sentence"), REFUSED, ids=numbered(REFUSED))
def test_a_call_that_breaks_a_shape_rule_is_refused(op: str, operands: list, params: dict, sentence: str) -> None:
    with pytest.raises(QnnError, match=sentence) as caught:
        derive(op, operands, params)
    assert caught.value.code in (Code.GRAPH_INVALID_OP_CONFIG, Code.TENSOR_INVALID_TENSOR_PARAM)


def test_a_constant_shape_gives_the_dimensions_of_constant_of_shape() -> None:
    graph = Graph("g")
    shape = graph.constant("shape", np.int64([2, 3]))
    (filled,) = graph.emit("ConstantOfShape", [shape], {"value": 1}, dtypes=[F32])
    assert filled.dims == (2, 3)
    negative = graph.constant("negative", np.int64([2, -3]))
    with pytest.raises(QnnError, match="must not be negative"):
        graph.emit("ConstantOfShape", [negative], {"value": 1}, dtypes=[F32])


def test_unary_operations_keep_shape_and_type_also_on_fixed_point() -> None:
    for name in ("Relu", "Sigmoid", "Tanh", "HardSwish", "Gelu", "ElementWiseExp", "ElementWiseNeg"):
        graph = Graph("g")
        (out,) = graph.emit(name, tensors(graph, [(Q8, (2, 3))]))
        assert (out.dims, out.dtype) == ((2, 3), Q8)


DOCUMENTED = """
Argmax Argmin Batchnorm BatchToSpace Cast ChannelShuffle Concat ConstantOfShape Conv1d Conv2d Conv3d Convert
Correlation1D CropAndResize CumulativeSum DepthToSpace DepthWiseConv1d DepthWiseConv2d Dequantize ElementWiseAbs
ElementWiseAdd ElementWiseAnd ElementWiseAsin ElementWiseAtan ElementWiseBinary ElementWiseCeil ElementWiseCos
ElementWiseDivide ElementWiseEqual ElementWiseExp ElementWiseFloor ElementWiseFloorDiv ElementWiseFmod
ElementWiseGreater ElementWiseGreaterEqual ElementWiseLess ElementWiseLessEqual ElementWiseLog ElementWiseMaximum
ElementWiseMinimum ElementWiseMod ElementWiseMultiply ElementWiseNeg ElementWiseNeuron ElementWiseNot
ElementWiseNotEqual ElementWiseOr ElementWisePower ElementWiseRound ElementWiseRsqrt ElementWiseSelect ElementWiseSign
ElementWiseSin ElementWiseSoftplus ElementWiseSquaredDifference ElementWiseSquareRoot ElementWiseSubtract
ElementWiseUnary ElementWiseXor Elu ExpandDims FullyConnected Gather GatherElements GatherNd Gelu GridSample GroupNorm
Gru HardSwish InstanceNorm L2Norm L2Pool2d LayerNorm LogSoftmax Lrn Lstm MatMul NonMaxSuppression NonZero Nv12ToRgb
Nv21ToRgb OneHot Pack Pad PoolAvg2d PoolAvg3d PoolMax2d PoolMax3d Prelu Quantize ReduceMax ReduceMean ReduceMin
ReduceProd ReduceSum Relu Relu1 Relu6 ReluMinMax Reshape Resize ResizeBilinear ResizeNearestNeighbor ScatterElements
ScatterNd Shape Sigmoid Softmax SpaceToBatch SpaceToDepth Split Squeeze StridedSlice Tanh Tile TopK Transpose
TransposeConv1d TransposeConv2d TransposeConv3d UnPack
"""


def test_every_documented_operation_is_there() -> None:
    assert set(DOCUMENTED.split()) <= set(OPERATIONS)


@pytest.mark.parametrize("op", ["UnPack", "Relu", "Split", "Transpose", "Cast", "Quantize", "Dequantize", "Softmax"])
def test_an_operation_of_one_operand_is_not_given_two(op) -> None:
    tensors = [Tensor(name, TensorType.APP_WRITE, DataType.FLOAT_32, (2, 2)) for name in "xy"]
    with pytest.raises(QnnError, match="takes 1 inputs, 2 given"):
        OPERATIONS[op].verify(Call("n", op, tensors, {}, [Tensor("z", TensorType.APP_READ, DataType.FLOAT_32, (2, 2))]))
