"""Sums, differences and products of 8-bit tensors are rounded as on the native engine, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from support.suites import long

from backends.gpu.compile.checking import graph_of, run, traits
from isthmus.backends.gpu.compile.lower import prepare
from isthmus.backends.gpu.compile.traits import FloatStorage
from isthmus.backends.seam import native
from isthmus.engine.native.executor import Executor
from isthmus.graph import Graph, Quantization
from isthmus.memory import host, window

RNG = np.random.default_rng(5)
SCALES = ((0.5, 0.5, 1.0), (0.25, 1.0, 2.0), (0.031, 0.017, 0.043), (0.5, 0.5, 0.25))
"""Sums and products that are halves of a step, which are rounded in one way or the other, and some that are not."""


def on_the_native_engine(graph: Graph, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Compute the output of a graph of one step."""
    program = native.prepare(graph).program
    scratch = host(max(program.scratch_bytes, 1), program.alignment)
    [info] = program.outputs
    result = np.empty(info.dims, info.dtype.numpy)
    executor = Executor(program, window(scratch), None, [window(array) for array in (*arrays, result)])
    executor.run()
    executor.close()
    return result


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("ElementWiseAdd", np.int8), ("ElementWiseSubtract", np.uint8), ("ElementWiseMultiply", np.int8),
        long("ElementWiseAdd", np.uint8), long("ElementWiseSubtract", np.int8), long("ElementWiseMultiply", np.uint8),
    ],
)  # fmt: skip
def test_bytes_are_rounded_as_on_the_native_engine(op: str, dtype: type) -> None:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    for scales in SCALES:
        for dims, then in (
            (((256, 1), (1, 256)), ()), (((3, 7, 5), (3, 7, 5)), ("Relu",)), (((3, 7, 5), (5,)), ()),
            (((1,), (3, 7, 5)), ()),
        ):  # fmt: skip
            arrays = [RNG.integers(least, most + 1, size).astype(dtype) for size in dims]
            if dims[0] == (256, 1):
                arrays = [np.arange(least, most + 1).astype(dtype).reshape(size) for size in dims]
            points = RNG.integers(least, most + 1, 3).tolist()
            quantizations = [Quantization.per_tensor(s, z) for s, z in zip(scales, points, strict=True)]
            graph = graph_of(op, arrays, quantizations=quantizations[:2], results=quantizations[2:], then=then)
            expected = on_the_native_engine(graph, arrays)
            for kind in ("cpu", "tiles"):
                [got] = run(prepare(graph, traits(kind), FloatStorage.FP32), arrays)
                assert np.array_equal(got, expected), (op, scales, dims, kind)


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("Conv2d", "tiles"), ("DepthWiseConv2d", "cpu"), ("FullyConnected", "cpu"),
        long("Conv2d", "cpu"), long("DepthWiseConv2d", "tiles"), long("FullyConnected", "tiles"),
    ],
)  # fmt: skip
def test_a_bias_with_a_scale_of_its_own_is_converted_by_that_scale(op: str, kind: str) -> None:
    image, filters = "Conv" in op, 4 if op == "DepthWiseConv2d" else 8
    dims = {"Conv2d": (2, 2, 4, 8), "DepthWiseConv2d": (2, 2, 1, 4), "FullyConnected": (8, 4)}[op]
    x, weights = (RNG.integers(-9, 10, size).astype(np.int8) for size in ((1, 5, 5, 4) if image else (5, 4), dims))
    bias = RNG.integers(-9, 10, filters).astype(np.int32)
    params = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]} if image else {}
    # A step of it is four of the sums.
    quantizations = [Quantization.per_tensor(s, z) for s, z in ((1.0, 0), (0.5, 0), (2.0, 3))]
    graph = graph_of(
        op, [x, weights, bias], params, statics=(1, 2), quantizations=quantizations,
        results=[Quantization.per_tensor(1.5, 0)],
    )  # fmt: skip
    [got] = run(prepare(graph, traits(kind), FloatStorage.FP32), [x])
    assert np.array_equal(got, on_the_native_engine(graph, [x]))


@pytest.mark.parametrize(
    ("transposed", "is_static"), [(False, True), (True, False), long(True, True), long(False, False)]
)
def test_a_bias_of_a_product_keeps_its_value_whatever_its_operands_are(transposed: bool, is_static: bool) -> None:
    x, y = (RNG.integers(-9, 10, (4, 4)).astype(np.int8) for _ in range(2))
    bias = np.arange(7, 35, 7, dtype=np.int32)
    quantizations = [Quantization.per_tensor(scale, 0) for scale in (0.05, 0.02, 0.001)]
    graph = graph_of(
        "MatMul", [x, y, bias], {"transpose_in0": transposed}, statics=(1, 2) if is_static else (2,),
        quantizations=quantizations, results=[Quantization.per_tensor(0.001, 0)],
    )  # fmt: skip
    given = [x] if is_static else [x, y]
    exact = (x.T if transposed else x).astype(float) @ y * 0.001 + bias * 0.001
    for kind in ("cpu", "tiles"):
        [got] = run(prepare(graph, traits(kind), FloatStorage.FP32), given)
        assert np.abs(got - np.clip(np.rint(exact / 0.001), -128, 127)).max() <= 1
