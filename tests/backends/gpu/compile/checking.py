"""One operation through preparation, lowering and a device, held against the numpy reference.

The device is whatever OpenCL finds, PoCL as a rule. Kernels for GPUs run there too, only slower: "tiles" stands for a
small GPU that products fill with tiles, "thin" for one so large that they share the depth of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from support.opencl_device import DEVICE

from backends.gpu.compile import runner
from isthmus.backends.gpu.compile.lower import prepare
from isthmus.backends.gpu.compile.program import KernelProgram
from isthmus.backends.gpu.compile.traits import DeviceTraits, FloatStorage
from isthmus.graph import DataType, Graph, Quantization, TensorType
from isthmus.graph.evaluate import evaluate

TOLERANCE = {FloatStorage.FP32: 1e-3, FloatStorage.FP16: 2e-2}


def traits(kind: str) -> DeviceTraits:
    """A device that lowering writes for."""
    if kind == "cpu":
        return DeviceTraits(kind="cpu", vector_width=8, alignment=128)
    # No larger groups and no more local memory than there is where it will run.
    units, group, local = 1 if kind == "tiles" else 1000, min(1024, DEVICE.max_group), min(48 << 10, DEVICE.local_bytes)
    return DeviceTraits(kind="gpu", compute_units=units, max_group=group, local_bytes=local, alignment=512)


def graph_of(
    op: str,
    inputs: Sequence[np.ndarray | None],
    params: dict[str, Any] | None = None,
    *,
    statics: Sequence[int] = (),
    declared: Sequence[tuple[DataType | None, tuple[int, ...]]] | None = None,
    quantizations: Sequence[Quantization | None] = (),
    results: Sequence[Quantization | None] = (),
    then: Sequence[str] = (),
) -> Graph:
    """A graph of one operation, and of functions after it."""
    graph, tensors = Graph("tested"), []
    for index, array in enumerate(inputs):
        if array is None:
            tensors.append(None)
            continue
        quantization = quantizations[index] if index < len(quantizations) else None
        dtype = DataType.of(array.dtype) if quantization is None else DataType.fixed_point(array.dtype)
        kind = TensorType.STATIC if index in statics else TensorType.APP_WRITE
        data = array if index in statics else None
        tensors.append(graph.create_tensor(f"in{index}", kind, dtype, array.shape, quantization, data))
    dtypes = None if declared is None else [dtype for dtype, _ in declared]
    if dtypes is not None and all(dtype is None for dtype in dtypes):
        dtypes = None
    values = graph.emit(
        op, tensors, params, dims=None if declared is None else [dims for _, dims in declared], dtypes=dtypes,
        quantizations=list(results) if results else None, outputs=1 if declared is None else len(declared),
    )  # fmt: skip
    for name in then:
        values = graph.emit(name, [values[0]])
    for value in values:
        value.type = TensorType.APP_READ
    graph.finalize()
    return graph


def expected(graph: Graph, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """Return what the numpy reference says, node by node."""
    known = {tensor.name: tensor.data for tensor in graph.tensors.values() if tensor.data is not None}
    known |= {f"in{index}": array for index, array in enumerate(inputs) if array is not None}
    for node in graph.nodes:
        arrays = [None if t is None else known[t.name] for t in node.inputs]
        for tensor, value in zip(
            node.outputs, evaluate(node.op, node.inputs, arrays, node.params, node.outputs), strict=True
        ):
            known[tensor.name] = value
    return [known[tensor.name] for tensor in graph.outputs]


def run(program: KernelProgram, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """The outputs of a program whose inputs are named after the operands."""
    got = runner.Runner(program)({f"in{i}": array for i, array in enumerate(inputs) if array is not None})
    return [got[info.name] for info in program.outputs]


def assert_close(
    got: Sequence[np.ndarray], wanted: Sequence[np.ndarray], tolerance: float, where: str, steps: int = 0
) -> None:
    """Floats within a part of the largest value, NaN and infinities where they were; integers within `steps`."""
    for index, (a, b) in enumerate(zip(got, wanted, strict=True)):
        title = f"out[{index}] {where}"
        assert (a.shape, a.dtype) == (b.shape, b.dtype), title
        if a.dtype.kind != "f":
            assert np.abs(a.astype(np.int64) - b.astype(np.int64)).max(initial=0) <= steps, title
            continue
        finite = np.isfinite(b)
        np.testing.assert_array_equal(np.where(finite, 0, a), np.where(finite, 0, b), title)
        largest = np.abs(b[finite]).max(initial=0)
        assert np.abs(a[finite].astype(np.float64) - b[finite]).max(initial=0) <= tolerance * max(largest, 1e-6), title


def check(
    op: str,
    inputs: Sequence[np.ndarray | None],
    params: dict[str, Any] | None = None,
    *,
    kinds: Sequence[str] = ("cpu",),
    precisions: Sequence[FloatStorage] = (FloatStorage.FP32,),
    steps: int = 0,
    **described: Any,
) -> None:
    """Compare an operation on each kind of device with the numpy reference."""
    graph = graph_of(op, inputs, params, **described)
    wanted = expected(graph, inputs)
    for kind in kinds:
        for precision in precisions:
            got = run(prepare(graph, traits(kind), precision), inputs)
            assert_close(got, wanted, TOLERANCE[precision], f"of {op} on {kind} in {precision.value}", steps)
