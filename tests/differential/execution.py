"""The layer of execution: does what is valid also finalize, and what does it compute.

The inputs are positive numbers that every function takes, so that both libraries have a result. `TIES` are further
cases whose exact results lie halfway between two steps; they show how a library rounds.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from differential.client import Encoding, Node, Param, Refused, Session, TensorValue
from differential.operations import USES, kinds_of, node_of
from isthmus.graph.datatypes import DataType
from isthmus.graph.tensor import TensorType

D = DataType
_REALS = (0.1, 6.0)
"""The range of inputs."""
_DOMAINS = {"ElementWiseAsin": (0.1, 0.95), "ExtractGlimpse": (0.0, 0.4), "Logit": (0.1, 0.9)}
"""The ranges of operations that are not defined for all of those; a glimpse is taken inside the image."""


@dataclass(frozen=True)
class Tie:
    """A case of halves.

    Parameters
    ----------
    inputs
        The contents of the node's inputs.
    exact
        The exact results in steps of the output, before rounding.
    zero
        The step of the value 0.
    """

    node: Node
    inputs: list[np.ndarray]
    exact: np.ndarray
    zero: int


def _tensor(name: str, type: int, dtype: int, dims: tuple[int, ...], scale: float, zero: int) -> TensorValue:
    """Return a tensor in steps of a scale."""
    return TensorValue(name, type, dtype, dims, Encoding((scale,), (-zero,)))


def _converted(source: int, scale: float, target: int) -> Tie:
    """Return the conversion of all 8-bit steps, or of as many 16-bit ones, to steps of a target that are 1."""
    zero = {D.UFIXED_POINT_8: 128, D.SFIXED_POINT_8: 0, D.UFIXED_POINT_16: 32768, D.SFIXED_POINT_16: 0}
    stride = max(1, int(0.5 / scale))
    steps = zero[D(source)] + (np.arange(256) - 128) * stride
    stored = steps.astype(D(source).numpy).reshape(1, 1, 8, 32)
    step = 1.0 if scale < 1 else 2.0
    x = _tensor("x", TensorType.APP_WRITE, source, stored.shape, scale, zero[D(source)])
    y = _tensor("y", TensorType.APP_READ, target, stored.shape, step, zero[D(target)])
    exact = (stored.astype(np.float64) - zero[D(source)]) * scale / step + zero[D(target)]
    return Tie(Node("Convert", [x], [y]), [stored], exact, zero[D(target)])


def _paired(op: str, function: Callable[[Any, Any], Any], scale: float, out: float) -> Tie:
    """Return an operation on pairs of 8-bit steps."""
    values = np.arange(256)
    first, second = (each.reshape(1, 64, 32, 32).astype(np.uint8) for each in np.meshgrid(values, values))
    tensors = [_tensor(name, TensorType.APP_WRITE, D.UFIXED_POINT_8, first.shape, scale, 128) for name in "xz"]
    y = _tensor("y", TensorType.APP_READ, D.UFIXED_POINT_8, first.shape, out, 128)
    exact = function((first - 128.0) * scale, (second - 128.0) * scale) / out + 128
    return Tie(Node(op, tensors, [y]), [first, second], exact, 128)


def _averaged(op: str) -> Tie:
    """Return the mean of two by two 8-bit steps, or of 32."""
    stored = np.random.default_rng(3).integers(0, 256, (1, 32, 32, 32)).astype(np.uint8)
    x = _tensor("x", TensorType.APP_WRITE, D.UFIXED_POINT_8, stored.shape, 0.05, 128)
    if op == "PoolAvg2d":
        dims: tuple[int, ...] = (1, 16, 16, 32)
        exact = stored.astype(np.float64).reshape(1, 16, 2, 16, 2, 32).mean((2, 4))
        params = [Param(name, D.UINT_32, [2, 2]) for name in ("filter_size", "stride")]
        params.append(Param("pad_amount", D.UINT_32, [[0, 0], [0, 0]]))
    else:
        dims, exact = (1, 32, 32, 1), stored.astype(np.float64).mean(3, keepdims=True)
        params = [Param("axes", D.UINT_32, [3]), Param("keep_dims", D.BOOL_8, 1)]
    y = _tensor("y", TensorType.APP_READ, D.UFIXED_POINT_8, dims, 0.05, 128)
    return Tie(Node(op, [x], [y], params), [stored], exact, 128)


def _quantized(target: int, zero: int) -> Tie:
    """Return the quantization of halves."""
    reals = ((np.arange(256) - 128) / 2).astype(np.float32).reshape(1, 1, 8, 32)
    x = TensorValue("x", TensorType.APP_WRITE, D.FLOAT_32, reals.shape)
    y = _tensor("y", TensorType.APP_READ, target, reals.shape, 1.0, zero)
    return Tie(Node("Quantize", [x], [y]), [reals], reals.astype(np.float64) + zero, zero)


TIES: dict[str, Callable[[], Tie]] = {
    "ties: Convert ufixed8 to ufixed8": lambda: _converted(D.UFIXED_POINT_8, 1.0, D.UFIXED_POINT_8),
    "ties: Convert sfixed8 to ufixed8": lambda: _converted(D.SFIXED_POINT_8, 1.0, D.UFIXED_POINT_8),
    "ties: Convert ufixed16 to ufixed8": lambda: _converted(D.UFIXED_POINT_16, 2.0**-8, D.UFIXED_POINT_8),
    "ties: ElementWiseAdd ufixed8": lambda: _paired("ElementWiseAdd", np.add, 0.5, 1.0),
    "ties: ElementWiseSubtract ufixed8": lambda: _paired("ElementWiseSubtract", np.subtract, 0.5, 1.0),
    "ties: ElementWiseMultiply ufixed8": lambda: _paired("ElementWiseMultiply", np.multiply, 1.0, 128.0),
    "ties: PoolAvg2d ufixed8": lambda: _averaged("PoolAvg2d"),
    "ties: ReduceMean ufixed8": lambda: _averaged("ReduceMean"),
    "ties: Quantize to ufixed8": lambda: _quantized(D.UFIXED_POINT_8, 128),
    "ties: Quantize to ufixed16": lambda: _quantized(D.UFIXED_POINT_16, 32768),
}


def cases() -> list[str]:
    """Name the uses of all operations with all kinds of data, and the cases of halves."""
    return [*(f"{op} {kind}" for op in sorted(USES) for kind in kinds_of(op)), *TIES]


def _contents(op: str, value: TensorValue, random: np.random.Generator) -> np.ndarray:
    """Return the contents of an input: floats that fp16 represents, or integers that are indices of every use."""
    dtype = D(value.dtype)
    if not dtype.is_float and value.encoding is None:
        return random.integers(0, 2 if dtype is D.BOOL_8 else 4, value.dims).astype(dtype.numpy)
    reals = random.uniform(*_DOMAINS.get(op, _REALS), value.dims).astype(np.float16)
    if value.encoding is None:
        return reals.astype(dtype.numpy)
    return (np.rint(reals / value.encoding.scales[0]) - value.encoding.offsets[0]).astype(dtype.numpy)


def unpacked(text: str, value: TensorValue) -> np.ndarray:
    """Return an output that an answer has as a text."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), D(value.dtype).numpy).reshape(value.dims)


def node_named(name: str) -> Node:
    """Return the node of a case. Its constants are small, so that results are within the range of their encodings."""
    if name in TIES:
        return TIES[name]().node
    node, random = node_of(*name.split(" ")), np.random.default_rng(5)
    for value in node.inputs:
        if value.data is None:
            continue
        if value.encoding is None:
            value.data = value.data.astype(np.float16).astype(value.data.dtype)
        else:
            steps = random.integers(-3, 4, value.dims) - value.encoding.offsets[0]
            value.data = steps.astype(value.data.dtype)
    return node


def opened(library: Path, chip: int | None) -> Callable[[str], Any]:
    """Return the function that validates, finalizes and executes a case by name for a chip."""
    return answering(library, chip, node_named)


def answering(library: Path, chip: int | None, named: Callable[[str], Node]) -> Callable[[str], Any]:
    """Return the function that validates, finalizes and executes the node that `named` returns for a name."""
    session = Session(library, chip)
    assert session.context

    def answer(name: str) -> dict[str, Any]:
        node = named(name)
        found: dict[str, Any] = {
            "validate": session.code("backendValidateOpConfig", session.backend, session.operation(node))
        }
        if found["validate"]:
            return found
        random = np.random.default_rng(7)
        given = TIES[name]().inputs if name in TIES else None
        read = [value for value in node.inputs if value.type == TensorType.APP_WRITE]
        inputs = [(value, given[at] if given else _contents(node.op, value, random)) for at, value in enumerate(read)]
        try:
            graph = session.compose([node], name)
            found["finalize"] = session.code("graphFinalize", graph, None, None)
            if not found["finalize"]:
                results = session.execute(graph, inputs, node.outputs)
                found["outputs"] = [base64.b64encode(zlib.compress(each.tobytes())).decode() for each in results]
        except Refused as problem:
            found["refused"] = [problem.function, problem.code]
        session.must("contextFree", session.context, None)
        session.context = session.make("contextCreate", session.backend, session.device, None)
        session.kept.clear()
        return found

    return answer
