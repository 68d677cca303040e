"""Which kernel computes a step: the quick one for bytes where all its conditions hold, the one for floats beyond them.

Each line is one step outside of, or the last one inside of, a condition of `lowering`. Both kernels give the same
numbers, so only the choice tells that a condition has moved.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.native.harness import ON_TARGETS, Operand, Result, check, make_step, static
from isthmus.engine.native.lower import lowering_of
from isthmus.engine.native.lowering.emitter import Emitter
from isthmus.engine.native.lowering.movement import refuses_movement, refuses_selection
from isthmus.engine.native.target import by_name
from isthmus.errors import QnnError
from isthmus.graph import DataType, Quantization
from isthmus.graph.evaluate import evaluate
from isthmus.prepare.schedule import Place

pytestmark = ON_TARGETS
RNG = np.random.default_rng(6)
S8, U8, S16, F32 = DataType.SFIXED_POINT_8, DataType.UFIXED_POINT_8, DataType.SFIXED_POINT_16, DataType.FLOAT_32
CONV = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}
POOL = {"filter_size": [2, 2], "stride": [2, 2], "pad_amount": [[0, 0], [0, 0]]}


def q(scale: float = 0.1, zero: int = 3) -> Quantization:
    return Quantization.per_tensor(scale, zero)


def along(axis: int, count: int, zero: int = 0) -> Quantization:
    return Quantization.per_channel(np.linspace(0.01, 0.02, count), np.full(count, zero), axis)


def stored(*dims: int, q: Quantization = q(), kind: type = np.int8) -> Operand:  # noqa: B008
    return Operand(RNG.integers(0, 100, dims).astype(kind), False, q)


def weights(*dims: int, q: Quantization = q(0.01, 0), kind: type = np.int8, constant: bool = True) -> Operand:  # noqa: B008
    return Operand(RNG.integers(0, 100, dims).astype(kind), constant, q)


def to(scale: float = 0.2, zero: int = -5, dtype: DataType = S8) -> Result:
    return Result(None, dtype, None if dtype is F32 else q(scale, zero))


def chosen(op: str, inputs: list, params: dict[str, Any], result: Result, clamp=None, numerics: str = "litert") -> str:
    """The kernels of a step, without their variants, in the order of their use."""
    emitter = emitted("avx2", op, inputs, params, result, clamp, numerics)
    if isinstance(emitter, QnnError):
        return f"refused: {emitter.rule}"
    return " ".join(dict.fromkeys(kernel.partition(".")[0] for kernel in emitter.kernels))


def emitted(
    target: str, op: str, inputs: list, params: dict[str, Any], result: Result, clamp=None, numerics: str = "litert"
) -> Emitter | QnnError:
    """The instructions and constants of a step for a target, or why it is refused."""
    step, _ = make_step(op, inputs, params, [result], clamp)
    try:
        lowering = lowering_of(step)
    except QnnError as refused:
        return refused
    tensors = [t for t in (*step.inputs, *step.outputs) if t is not None and not t.is_static]
    emitter = Emitter(by_name(target), 1, {t: Place(4 + i, 0) for i, t in enumerate(tensors)}, numerics)
    emitter.begin(step, 0, 1)
    lowering.emit(step, emitter)
    return emitter


BYTES, FLAT = "quantized_convolution:convolve", "quantized_depthwise:convolve"
GROUPS = "quantized_convolution:convolve_groups"
REALS = "quantized_elementwise:dequantize"
X, W = stored(1, 6, 6, 4), weights(1, 1, 4, 8)
UNSIGNED = {"kind": np.uint8}

CHOICES: list[tuple[str, str, list, dict, Result, str]] = [
    ("bytes", "Conv2d", [X, W], CONV, to(), BYTES),
    ("a zero point", "Conv2d", [X, weights(1, 1, 4, 8, q=q(0.01, 1))], CONV, to(), BYTES),
    ("a zero point that is no byte", "Conv2d", [X, weights(1, 1, 4, 8, q=q(0.01, 128))], CONV, to(), REALS),
    ("unsigned in the middle", "Conv2d", [X, weights(1, 1, 4, 8, q=q(0.01, 128), **UNSIGNED)], CONV, to(), BYTES),
    ("unsigned beside it", "Conv2d", [X, weights(1, 1, 4, 8, q=q(0.01, 127), **UNSIGNED)], CONV, to(), BYTES),
    ("by filter", "Conv2d", [X, weights(1, 1, 4, 8, q=along(3, 8))], CONV, to(), BYTES),
    ("by input channel", "Conv2d", [X, weights(1, 1, 4, 8, q=along(2, 4))], CONV, to(), REALS),
    ("other zero points", "Conv2d", [X, weights(1, 1, 4, 8, q=along(3, 8, 1))], CONV, to(), BYTES),
    ("weights at run time", "Conv2d", [X, weights(1, 1, 4, 8, constant=False)], CONV, to(), "refused"),
    ("a bias", "Conv2d", [X, W, static(np.zeros(8, np.int32), q(0.001, 0))], CONV, to(), BYTES),
    ("a float bias", "Conv2d", [X, W, static(np.zeros(8, np.float32))], CONV, to(), BYTES),
    ("unsigned input", "Conv2d", [stored(1, 6, 6, 4, **UNSIGNED), W], CONV, to(dtype=U8), BYTES),
    (
        "16 bits",
        "Conv2d",
        [stored(1, 6, 6, 4, kind=np.int16), weights(1, 1, 4, 8, kind=np.int16)],
        CONV,
        to(dtype=S16),
        "quantized_convolution:convolve_wide",
    ),
    # 4 * 255 * 128 * 0.1 * 0.01 / scale < 2**31 - 256
    ("sums that fit", "Conv2d", [X, W], CONV, to(1e-7), BYTES),
    ("sums that do not fit", "Conv2d", [X, W], CONV, to(6e-8), REALS),
    ("rows", "FullyConnected", [stored(2, 4), weights(5, 4)], {}, to(), BYTES),
    ("rows by output", "FullyConnected", [stored(2, 4), weights(5, 4, q=along(0, 5))], {}, to(), BYTES),
    ("rows by input", "FullyConnected", [stored(2, 4), weights(5, 4, q=along(1, 4))], {}, to(), REALS),
    ("a matrix", "MatMul", [stored(2, 4), weights(4, 5)], {}, to(), BYTES),
    ("a matrix by column", "MatMul", [stored(2, 4), weights(4, 5, q=along(1, 5))], {}, to(), BYTES),
    ("a matrix by row", "MatMul", [stored(2, 4), weights(4, 5, q=along(0, 4))], {}, to(), REALS),
    (
        "a turned matrix by column",
        "MatMul",
        [stored(2, 4), weights(5, 4, q=along(0, 5))],
        {"transpose_in1": True},
        to(),
        BYTES,
    ),
    (
        "a turned matrix by row",
        "MatMul",
        [stored(2, 4), weights(5, 4, q=along(1, 4))],
        {"transpose_in1": True},
        to(),
        REALS,
    ),
    ("a turned operand", "MatMul", [stored(4, 2), weights(4, 5)], {"transpose_in0": True}, to(), REALS),
    ("a batch of one", "MatMul", [stored(1, 2, 4), weights(1, 4, 5)], {}, to(), BYTES),
    ("a batch of one by column", "MatMul", [stored(1, 2, 4), weights(1, 4, 5, q=along(2, 5))], {}, to(), BYTES),
    ("a batch of two", "MatMul", [stored(2, 2, 4), weights(2, 4, 5)], {}, to(), REALS),
    ("channels", "DepthWiseConv2d", [X, weights(3, 3, 1, 4)], CONV, to(), FLAT),
    ("channels by filter", "DepthWiseConv2d", [X, weights(3, 3, 1, 4, q=along(3, 4))], CONV, to(), FLAT),
    ("several filters a channel", "DepthWiseConv2d", [X, weights(3, 3, 1, 8)], CONV, to(), GROUPS),
    ("several of 64 channels", "DepthWiseConv2d", [stored(1, 4, 4, 64), weights(3, 3, 1, 128)], CONV, to(), GROUPS),
    ("small groups", "Conv2d", [X, weights(3, 3, 2, 32)], CONV | {"group": 2}, to(), GROUPS),
    ("groups wider than a panel", "Conv2d", [X, weights(3, 3, 2, 34)], CONV | {"group": 2}, to(), BYTES),
    ("several of 65 channels", "DepthWiseConv2d", [stored(1, 4, 4, 65), weights(3, 3, 1, 130)], CONV, to(), REALS),
    ("one of 65 channels", "DepthWiseConv2d", [stored(1, 4, 4, 65), weights(3, 3, 1, 65)], CONV, to(), FLAT),
    ("a sum", "ElementWiseAdd", [stored(9), stored(9)], {}, to(), "quantized_binary:add"),
    (
        "the finest sum",
        "ElementWiseAdd",
        [stored(9, q=q(2.0**-10)), stored(9, q=q(2.0**-12))],
        {},
        to(1.0),
        "quantized_binary:add",
    ),
    ("a finer sum", "ElementWiseAdd", [stored(9, q=q(2.0**-11)), stored(9, q=q(2.0**-12))], {}, to(1.0), REALS),
    ("the coarsest sum", "ElementWiseAdd", [stored(9, q=q(255.0)), stored(9)], {}, to(1.0), "quantized_binary:add"),
    ("a coarser sum", "ElementWiseAdd", [stored(9), stored(9, q=q(256.0))], {}, to(1.0), REALS),
    ("a product", "ElementWiseMultiply", [stored(9), stored(9)], {}, to(), "quantized_binary:multiply"),
    (
        "the coarsest product",
        "ElementWiseMultiply",
        [stored(9, q=q(127.0)), stored(9, q=q(128.0))],
        {},
        to(1.0),
        "quantized_binary:multiply",
    ),
    ("a coarser product", "ElementWiseMultiply", [stored(9, q=q(128.0)), stored(9, q=q(128.0))], {}, to(1.0), REALS),
    ("neighbouring axes", "ReduceMean", [stored(2, 3, 4, 5)], {"axes": [1, 2]}, to(), "quantized_reduction:mean"),
    ("axes apart", "ReduceMean", [stored(2, 3, 4, 5)], {"axes": [1, 3]}, to(), REALS),
    ("an average", "PoolAvg2d", [X], POOL, to(), "pooling:pool"),
    ("the last axis", "Softmax", [stored(3, 4)], {"axis": 1}, to(1 / 256, -128), "quantized_reduction:softmax"),
    ("an inner axis", "Softmax", [stored(3, 4)], {"axis": 0}, to(1 / 256, -128), REALS),
    ("one slope", "Prelu", [stored(3, 4), weights(1)], {}, to(), "quantized_elementwise:lookup"),
    ("slopes of channels", "Prelu", [stored(3, 4), weights(4)], {}, to(), REALS),
    ("a slope at run time", "Prelu", [stored(3, 4), weights(1, constant=False)], {}, to(), REALS),
    ("a function", "Sigmoid", [stored(9)], {}, to(1 / 256, -128), "quantized_elementwise:lookup"),
    ("a function of 16 bits", "Sigmoid", [stored(9, kind=np.int16)], {}, to(dtype=S16), "elementwise:unary"),
]


@pytest.mark.parametrize(
    ("op", "inputs", "params", "result", "kernel"), [c[1:] for c in CHOICES], ids=[f"{c[1]}: {c[0]}" for c in CHOICES]
)
def test_the_kernel_for_bytes_computes_exactly_what_its_conditions_allow(
    op: str, inputs: list, params: dict, result: Result, kernel: str
) -> None:
    found = chosen(op, inputs, params, result)
    assert found.split(" ")[0].rstrip(":") == kernel, found


@pytest.mark.parametrize(
    ("result", "clamp", "kernel"),
    [
        (Result((1, 8, 8, 4), S8, q()), None, "resize:bilinear"),
        (Result((1, 8, 8, 4), S8, q(0.2)), None, REALS),
        (Result((1, 8, 8, 4), S8, q()), (0.0, 1.0), REALS),
    ],
)
def test_images_of_bytes_are_resized_within_one_quantization(result: Result, clamp: Any, kernel: str) -> None:
    assert chosen("ResizeBilinear", [X], {}, result, clamp).startswith(kernel)


FLOATS = Operand(np.ones((1, 6, 6, 4), np.float32))
HYBRID = "quantized_convolution:convolve_to_float"


@pytest.mark.parametrize(
    ("op", "inputs", "params", "hybrid"),
    [
        ("Conv2d", [FLOATS, W], CONV, True),
        ("Conv2d", [FLOATS, weights(1, 1, 4, 8, q=along(3, 8))], CONV, True),
        ("Conv2d", [FLOATS, weights(1, 1, 4, 8, q=along(2, 4))], CONV, False),
        ("Conv2d", [FLOATS, weights(1, 1, 4, 8, q=q(0.01, 1))], CONV, False),
        ("Conv2d", [FLOATS, W, static(np.zeros(8, np.float32))], CONV, True),
        ("Conv2d", [FLOATS, W, static(np.zeros(8, np.int32), q(0.001, 0))], CONV, False),
        ("FullyConnected", [Operand(np.ones((2, 4), np.float32)), weights(5, 4, q=along(0, 5))], {}, True),
        ("FullyConnected", [Operand(np.ones((2, 4), np.float32)), weights(5, 4, q=along(1, 4))], {}, False),
        ("DepthWiseConv2d", [FLOATS, weights(3, 3, 1, 4)], CONV, False),
    ],
)
def test_products_of_floats_and_constant_bytes_have_a_kernel_of_their_own(
    op: str, inputs: list, params: dict, hybrid: bool
) -> None:
    assert (HYBRID in chosen(op, inputs, params, to(dtype=F32))) is hybrid


EMPTY: list[tuple[str, list[tuple[int, ...]], dict[str, Any], Result | None]] = [
    ("Transpose", [(0, 3)], {"perm": [1, 0]}, None),
    ("Concat", [(0, 3), (0, 4)], {"axis": 1}, None),
    ("Tile", [(2, 3)], {"multiples": [0, 2]}, None),
    ("StridedSlice", [(3, 4)], {"ranges": [[1, 1, 1], [0, 4, 1]]}, None),
    ("Pad", [(0, 3)], {"scheme": 0, "pad_amount": [[1, 0], [0, 0]], "pad_constant_value": 2.0}, None),
    ("Pad", [(0, 3)], {"scheme": 0, "pad_amount": [[0, 0], [1, 1]]}, None),
    ("Reverse", [(0, 3)], {"axes": [1]}, None),
    ("DepthToSpace", [(0, 2, 2, 4)], {"block_size": [2, 2]}, None),
    ("SpaceToBatch", [(1, 2, 2, 0)], {"block_size": [2, 2], "pad_amount": [[0, 0], [0, 0]]}, None),
    ("ElementWiseAdd", [(0, 3), (3,)], {}, None),
    ("Relu", [(0, 3)], {}, None),
    ("Sigmoid", [(0, 3)], {}, None),
    ("ReduceSum", [(2, 0)], {"axes": [1]}, None),
    ("ReduceSum", [(0, 2)], {"axes": [1]}, None),
    ("ReduceProd", [(2, 0, 3)], {"axes": [1]}, None),
    ("ReduceMax", [(0, 2)], {"axes": [1]}, None),
    ("Softmax", [(0, 3)], {}, None),
    ("Softmax", [(3, 0)], {}, None),
    ("LayerNorm", [(0, 3)], {"axes": [1]}, None),
    ("CumulativeSum", [(0, 3)], {"axis": 1}, None),
    ("PoolMax2d", [(0, 4, 4, 2)], POOL, None),
    ("PoolAvg2d", [(1, 4, 4, 0)], POOL, None),
    ("Conv2d", [(0, 6, 6, 4), (1, 1, 4, 8)], CONV, None),
    ("DepthWiseConv2d", [(0, 6, 6, 4), (1, 1, 1, 4)], CONV, None),
    ("TransposeConv2d", [(0, 6, 6, 4), (1, 1, 4, 8)], CONV, None),
    ("FullyConnected", [(0, 4), (5, 4)], {}, None),
    ("MatMul", [(0, 4), (4, 5)], {}, None),
    ("MatMul", [(3, 4), (4, 0)], {}, None),
    ("ResizeBilinear", [(0, 4, 4, 2)], {}, Result((0, 8, 8, 2), F32)),
    ("ResizeNearestNeighbor", [(0, 4, 4, 2)], {}, Result((0, 8, 8, 2), F32)),
    ("Argmax", [(0, 3)], {"axis": 1}, None),
]


@pytest.mark.parametrize(("op", "dims", "params", "result"), EMPTY, ids=lambda v: v if isinstance(v, str) else None)
def test_what_has_no_elements_is_computed_by_touching_none(
    op: str, dims: list[tuple[int, ...]], params: dict[str, Any], result: Result | None
) -> None:
    first, *others = (RNG.random(d).astype(np.float32) for d in dims)
    check(op, [first, *map(static, others)], params, [result] if result else None)


def test_gathers_of_nothing_touch_nothing() -> None:
    none = np.zeros((0, 2), np.int32)
    check("Gather", [RNG.random((4, 3)).astype(np.float32), none], {"axis": 0})
    check("Gather", [RNG.random((4, 0)).astype(np.float32), np.int32([1, 2])], {"axis": 0})
    check("GatherNd", [RNG.random((4, 3)).astype(np.float32), none])
    check("ScatterNd", [RNG.random((4, 3)).astype(np.float32), none, np.zeros(0, np.float32)])


def test_a_limit_of_a_limit_is_the_narrower() -> None:
    x = np.linspace(-3, 9, 50, dtype=np.float32)
    check("Relu6", [x], clamp=(1.0, 4.0))
    check("ReluMinMax", [x], {"min_value": -1.0, "max_value": 2.0}, clamp=(-2.0, 5.0))
    check("ReluMinMax", [x], {"min_value": -1.0, "max_value": 2.0}, clamp=(3.0, 5.0))


def test_a_float_bias_of_bytes_is_counted_in_units_of_the_product() -> None:
    bias = static(np.float32([1.0, -2.0, 0.5, 3.0, 0, 0, 7, -9]))
    step, arrays = make_step("Conv2d", [X, W, bias], CONV, [to()])
    [expected] = evaluate(step.op, step.inputs, arrays, step.params, step.outputs)
    check("Conv2d", [X, W, bias], CONV, [to()], reference=[expected])


@pytest.mark.parametrize(
    ("op", "inputs", "params", "result", "sentence"),
    [
        ("Transpose", [stored(2, 3)], {"perm": [1, 0]}, Result(None, S8, q()), None),
        ("Transpose", [stored(2, 3)], {"perm": [1, 0]}, Result(None, S8, q(0.2)), "quantized differently"),
        ("Concat", [stored(2, 3), stored(2, 3)], {"axis": 0}, Result(None, S8, q()), None),
        ("Concat", [stored(2, 3), stored(2, 3, q=q(0.2))], {"axis": 0}, Result(None, S8, q()), "quantized differently"),
        ("Cast", [np.zeros(3, np.float32)], {}, Result(None, DataType.INT_8), "elements of different sizes"),
    ],
)
def test_elements_move_as_they_are_only_where_they_mean_the_same(op, inputs, params, result, sentence) -> None:
    step, _ = make_step(op, inputs, params, [result])
    for refuses in (refuses_movement, refuses_selection):
        reason = refuses(step)
        if sentence is None or (refuses is refuses_selection and len(inputs) == 2):
            assert reason is None
        else:
            assert sentence in reason
    step.clamp = (0.0, 1.0)
    assert "no fused activation" in refuses_movement(step) or sentence is not None


def test_what_has_no_constants_brings_no_bytes_of_them() -> None:
    emitter = Emitter(by_name("avx2"), 1, {})
    assert emitter.constants().size == 0
    emitter.constant(np.uint8([7]))
    assert emitter.constants()[0] == 7


@pytest.mark.parametrize("target", ["avx2", "portable", "avx512", "avx512-vnni"])
@pytest.mark.parametrize("values", ["bytes", "reals"])
def test_weights_of_a_single_row_stay_bytes_in_memory(target: str, values: str) -> None:
    x = stored(1, 512) if values == "bytes" else Operand(RNG.standard_normal((1, 512)).astype(np.float32))
    result = to() if values == "bytes" else Result(None, F32)
    emitter = emitted(target, "FullyConnected", [x, weights(128, 512)], {}, result)
    assert isinstance(emitter, Emitter)
    assert 128 * 512 < emitter.constants().size < 1.05 * 128 * 512
