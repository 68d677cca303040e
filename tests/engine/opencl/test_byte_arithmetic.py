"""Sums, differences and products of 8-bit tensors are rounded as on the native engine, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from checking import graph_of, run, traits

from isthmus.backends import native
from isthmus.engine.native.executor import Executor
from isthmus.engine.opencl.lower import prepare
from isthmus.engine.opencl.traits import Precision
from isthmus.graph import Graph, Quantization
from isthmus.memory import window

RNG = np.random.default_rng(5)
SCALES = ((0.5, 0.5, 1.0), (0.25, 1.0, 2.0), (0.031, 0.017, 0.043), (0.5, 0.5, 0.25))
"""Sums and products that are halves of a step, which are rounded in one way or the other, and some that are not."""


def on_the_native_engine(graph: Graph, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The output of a graph of one step, which needs no scratch."""
    program = native.prepare(graph).program
    [info] = program.outputs
    result = np.empty(info.dims, info.dtype.numpy)
    executor = Executor(program, None, None, [window(array) for array in (*arrays, result)])
    executor.run()
    executor.close()
    return result


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("op", ["ElementWiseAdd", "ElementWiseSubtract", "ElementWiseMultiply"])
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
            wanted = on_the_native_engine(graph, arrays)
            for kind in ("cpu", "tiles"):
                [got] = run(prepare(graph, traits(kind), Precision.FP32), arrays)
                assert np.array_equal(got, wanted), (op, scales, dims, kind)
