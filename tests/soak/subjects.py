"""Graphs whose answers are known: what programs of the soak run, and what must come out.

Answers are computed in plain numpy, apart from everything that is tested, or by the numpy reference for fixed point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import numpy_helper
from support import tiny

from isthmus import qnn
from isthmus.graph import DataType, Quantization, Tensor, TensorMemType, TensorType
from isthmus.graph.evaluate import evaluate

Arrays = Mapping[str, np.ndarray]
FLOAT, BYTE = DataType.FLOAT_32, DataType.SFIXED_POINT_8
_WIDTH = 48
_WIDE = 1 << 16
_UNIT = Quantization.per_tensor(0.05, 3)
_SEED = 7


@dataclass(frozen=True)
class Spec:
    """An input or output: name, type, dimensions."""

    name: str
    dtype: DataType
    dims: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return int(np.prod(self.dims)) * self.dtype.itemsize


@dataclass(frozen=True)
class Subject:
    """A graph, and what it must answer.

    Parameters
    ----------
    compose
        Makes the graph in a context, by its name, for a memory type of all inputs and outputs.
    answer
        The outputs, and the state afterwards, for inputs and the state before.
    state
        The initial state; None for a graph without one.
    tolerance
        How far a result may be off, relative to the largest value.
    """

    name: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    compose: Callable[[qnn.Context, str, TensorMemType], qnn.Graph]
    answer: Callable[[Arrays, np.ndarray | None], tuple[dict[str, np.ndarray], np.ndarray | None]]
    state: np.ndarray | None = None
    tolerance: float = 0.0
    path: Path | None = None
    """The model file that it is composed from, where there is one."""

    @property
    def tensors(self) -> tuple[Spec, ...]:
        """Inputs, then outputs."""
        return (*self.inputs, *self.outputs)

    def wrong(self, name: str, expected: np.ndarray, found: np.ndarray) -> str | None:
        """Return what is wrong with an output, in words."""
        limit = self.tolerance * max(1.0, float(np.abs(expected).max()))
        off = np.abs(expected.astype(np.float64) - found.astype(np.float64))
        if not (off <= limit).all():
            at = np.unravel_index(int(np.nanargmax(np.where(np.isnan(off), np.inf, off))), off.shape)
            return f"output '{name}' of {self.name} is {found[at]!r} at {at}, must be {expected[at]!r}"
        return None


def subjects(folder: Path) -> tuple[Subject, ...]:
    """All subjects; model files are written to a folder."""
    return (_doubling(_WIDTH), _doubling(_WIDE), _sum(), _convolution(folder), _gate(folder), _bytes())


def _io(
    graph: qnn.Graph, kind: TensorMemType, dtype: DataType, dims: tuple[int, ...], **more: object
) -> tuple[Tensor, Tensor]:
    return (
        graph.create_tensor("x", TensorType.APP_WRITE, dtype, dims, mem_type=kind, **more),
        graph.create_tensor("y", TensorType.APP_READ, dtype, dims, mem_type=kind, **more),
    )


def _doubling(width: int) -> Subject:
    """y = 2x; a wide one runs long enough to be met in the middle."""
    dims = (1, width)

    def compose(context: qnn.Context, name: str, kind: TensorMemType) -> qnn.Graph:
        graph = context.create_graph(name)
        x, y = _io(graph, kind, FLOAT, dims)
        two = graph.create_tensor("two", TensorType.STATIC, FLOAT, (1,), None, np.float32([2]))
        graph.add_node("multiply", "ElementWiseMultiply", [x, two], [y])
        return graph

    return Subject(
        f"doubling_{width}",
        (Spec("x", FLOAT, dims),),
        (Spec("y", FLOAT, dims),),
        compose,
        lambda given, state: ({"y": given["x"] * np.float32(2)}, None),
    )


def _sum() -> Subject:
    """y = x + s, and s becomes y."""
    dims, start = (1, _WIDTH), np.ones((1, _WIDTH), np.float32)

    def compose(context: qnn.Context, name: str, kind: TensorMemType) -> qnn.Graph:
        graph = context.create_graph(name)
        x, y = _io(graph, kind, FLOAT, dims)
        state = graph.create_tensor("s", TensorType.APP_READWRITE, FLOAT, dims, None, start)
        graph.add_node("add", "ElementWiseAdd", [x, state], [y])
        graph.update_state(state, y)
        return graph

    def answer(given: Arrays, state: np.ndarray | None) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        assert state is not None
        return {"y": given["x"] + state}, given["x"] + state

    return Subject("sum", (Spec("x", FLOAT, dims),), (Spec("y", FLOAT, dims),), compose, answer, start)


def _from_file(path: Path) -> Callable[[qnn.Context, str, TensorMemType], qnn.Graph]:
    return lambda context, name, kind: context.compose(path, name, mem_type=kind)


def _convolution(folder: Path) -> Subject:
    import onnx

    path = tiny.convolution(folder / "convolution.onnx")
    constants = {each.name: numpy_helper.to_array(each) for each in onnx.load(str(path)).graph.initializer}

    def answer(given: Arrays, state: np.ndarray | None) -> tuple[dict[str, np.ndarray], None]:
        padded = np.pad(given["x"], ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        result = np.einsum("nchwij,ocij->nohw", windows, constants["w"]) + constants["b"][None, :, None, None]
        return {"y": np.maximum(result, 0)}, None

    inputs, outputs = (Spec("x", FLOAT, (1, 3, 8, 8)),), (Spec("y", FLOAT, (1, 4, 8, 8)),)
    return Subject("convolution", inputs, outputs, _from_file(path), answer, tolerance=1e-5, path=path)


def _gate(folder: Path) -> Subject:
    """y = sigmoid(x) x + s, with two inputs."""
    path = tiny.gate(folder / "gate.onnx", _WIDTH)
    dims = (1, _WIDTH)

    def answer(given: Arrays, state: np.ndarray | None) -> tuple[dict[str, np.ndarray], None]:
        x = given["x"].astype(np.float64)
        return {"y": (x / (1 + np.exp(-x)) + given["s"]).astype(np.float32)}, None

    inputs = Spec("x", FLOAT, dims), Spec("s", FLOAT, dims)
    return Subject("gate", inputs, (Spec("y", FLOAT, dims),), _from_file(path), answer, tolerance=1e-5, path=path)


def _bytes() -> Subject:
    """A convolution on fixed point of 8 bits."""
    generator = np.random.default_rng(_SEED)
    dims, weights = (1, 6, 6, 8), generator.integers(-9, 9, (3, 3, 8, 8), np.int8)
    by_weight = Quantization.per_tensor(0.02)
    params = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}

    def compose(context: qnn.Context, name: str, kind: TensorMemType) -> qnn.Graph:
        graph = context.create_graph(name)
        x, y = _io(graph, kind, BYTE, dims, quantization=_UNIT)
        w = graph.create_tensor("w", TensorType.STATIC, BYTE, weights.shape, by_weight, weights)
        graph.add_node("convolve", "Conv2d", [x, w], [y], params)
        return graph

    x, y = (Tensor(name, TensorType.NATIVE, BYTE, dims, _UNIT) for name in "xy")
    w = Tensor("w", TensorType.STATIC, BYTE, weights.shape, by_weight, weights)

    def answer(given: Arrays, state: np.ndarray | None) -> tuple[dict[str, np.ndarray], None]:
        [result] = evaluate("Conv2d", [x, w], [given["x"], weights], params, [y])
        return {"y": result}, None

    return Subject("bytes", (Spec("x", BYTE, dims),), (Spec("y", BYTE, dims),), compose, answer)
