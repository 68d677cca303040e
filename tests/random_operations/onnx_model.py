"""An ONNX model under construction by random choices, and what ONNX Runtime says of it so far."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from frontends.onnx.graphs import expected, model, node
from onnx import ModelProto, NodeProto, TensorProto

Dims = tuple[int, ...]
_ELEMENT = {
    "float32": TensorProto.FLOAT, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int32": TensorProto.INT32,
    "int64": TensorProto.INT64, "bool": TensorProto.BOOL,
}  # fmt: skip


class Refused(Exception):
    """The reference runtime does not take this model, so there is nothing to compare with."""


class OnnxModel:
    """Nodes, constants and inputs. Every value can be asked for, since ONNX Runtime computes the model as it grows."""

    def __init__(self, rng: random.Random, opset: int = 17, exact: bool = True) -> None:
        self.rng = rng
        self.exact = exact
        """Whether values between nodes are floats; a step of a quantized one is large where it is multiplied."""
        self.numbers = np.random.default_rng(rng.randrange(1 << 30))
        self.opset = opset
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.feeds: dict[str, np.ndarray] = {}
        self.outputs: list[str] = []
        self.domains: set[str] = set()
        self._known: dict[str, np.ndarray] = {}

    def input(self, array: np.ndarray) -> str:
        """An input, fed with these numbers."""
        name = f"x{len(self.feeds)}"
        self.feeds[name] = self._known[name] = np.asarray(array)
        return name

    def floats(self, dims: Sequence[int], scale: float = 1.0) -> np.ndarray:
        """Normally distributed numbers."""
        return np.asarray(self.numbers.standard_normal(tuple(dims)) * scale, np.float32).reshape(dims)

    def constant(self, array: Any) -> str:
        """A constant."""
        name = f"k{len(self.constants)}"
        self.constants[name] = self._known[name] = np.asarray(array)
        return name

    def ints(self, *values: int) -> str:
        """A constant vector of int64."""
        return self.constant(np.array(values, np.int64))

    def operand(self, array: np.ndarray) -> str:
        """An input or a constant, as chance has it."""
        return self.constant(array) if self.rng.random() < 0.5 else self.input(array)

    def add(self, op: str, inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> str:
        """Add a node; its first output's name. All its outputs become outputs of the model until others read them."""
        names = [f"v{len(self.nodes)}" + (f"_{i}" if i else "") for i in range(outputs)]
        given = {key: value for key, value in attributes.items() if value is not None}
        made = node(op, inputs, " ".join(names), **given)
        made.domain = domain
        if domain:
            self.domains.add(domain)
        self.nodes.append(made)
        self.outputs = [n for n in self.outputs if n not in inputs.split()] + names
        return names[0]

    def build(self, outputs: Sequence[str] | None = None) -> ModelProto:
        """The model."""
        wanted = self.outputs if outputs is None else outputs
        inputs = {n: (_ELEMENT[a.dtype.name], a.shape) for n, a in self.feeds.items()}
        return model(self.nodes, inputs, " ".join(wanted), self.constants, self.opset, (), sorted(self.domains))

    def value(self, name: str) -> np.ndarray:
        """Return what a value is for the present inputs."""
        if name not in self._known:
            try:
                self._known[name] = expected(self.build([name]), self.feeds)[name]
            except Exception as problem:
                raise Refused(str(problem)) from None
        return self._known[name]

    def dims(self, name: str) -> Dims:
        """The shape of a value."""
        return tuple(self.value(name).shape)

    def describe(self) -> str:
        """The model in few lines."""
        from onnx import helper

        lines = [helper.printable_node(n).strip() for n in self.nodes]
        lines += [f"{n}: input {a.dtype.name}{list(a.shape)}" for n, a in self.feeds.items()]
        for name, array in self.constants.items():
            shown = f" = {array.tolist()}" if array.size <= 8 else ""
            lines.append(f"{name}: constant {array.dtype.name}{list(array.shape)}{shown}")
        return "\n".join(lines)
