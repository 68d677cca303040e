"""Element-wise steps as chains of functions: what each step contributes, and the source that applies a chain.

A chain behind a product, a convolution or another element-wise step is part of that step's kernel, so its intermediate
results exist only in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import TypeVar

import numpy as np

from isthmus.backends.gpu.compile.functions import REALS
from isthmus.backends.gpu.compile.kernel_source import KernelSource
from isthmus.backends.gpu.compile.lowering.emitter import Chain, KernelEmitter, Link
from isthmus.backends.gpu.compile.lowering.rearrangement import declare_spread, spread_lines
from isthmus.backends.gpu.compile.storage import OperandStorage
from isthmus.graph import DataType, Tensor
from isthmus.graph.ops.elementwise import FUNCTIONS, NUMBERED, numbered_function
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step

_Operand = TypeVar("_Operand", Tensor, None, Tensor | None)
# Functions that compute a power with a constant exponent faster than `pow`.
_POWERS = {2.0: "Square", 0.5: "ElementWiseSquareRoot", -0.5: "ElementWiseRsqrt", -1.0: "Reciprocal", 1.0: "Identity"}
# Operations that change only how reals are stored, which loads and stores do anyway.
_CONVERSIONS = ("Convert", "Quantize", "Dequantize")


def function_of(step: Step) -> str:
    """Return the function of an element-wise step: its operation, or the one that its number selects."""
    return numbered_function(step.op, step.params["operation"]).name if step.op in NUMBERED else step.op


def limit_links(clamp: tuple[float, float] | None) -> list[Link]:
    """Return the link of a fused activation, given its lower and upper limit; none if there is no activation."""
    return [] if clamp is None else [Link("Clamp", (None,), float(clamp[0]), float(clamp[1]))]


def links_of(step: Step) -> list[Link] | None:
    """Return the links of an element-wise step of reals, the first with all operands named; None for other steps."""
    name = function_of(step)
    if name in _CONVERSIONS:
        links = [Link("Identity", (operand(step),))]
    elif name == "Batchnorm":
        links = [Link("ElementWiseMultiply", (operand(step, 0), operand(step, 1)))]
        if len(step.inputs) > 2 and step.inputs[2] is not None:
            links.append(Link("ElementWiseAdd", (None, step.inputs[2])))
    elif name not in FUNCTIONS:
        return None
    else:
        link = _function(step, name)
        if link is None:
            return None
        links = [link]
    return [*links, *limit_links(step.clamp)]


def _function(step: Step, name: str) -> Link | None:
    """Return the link of one of `FUNCTIONS` with its parameters, or None if kernels have no such function of reals."""
    x, limits, params = operand(step), FUNCTIONS[name].traits.limits, step.params
    if limits is not None:
        return Link("Clamp", (x,), *limits)
    if name == "ReluMinMax":
        return Link("Clamp", (x,), float(params["min_value"]), float(params["max_value"]))
    if name not in REALS:
        return None
    if name == "ElementWisePower":
        exponent = operand(step, 1)
        if exponent.is_static and exponent.elements == 1 and x.dims == step.outputs[0].dims:
            value = float(reals_of(exponent).reshape(()))
            return Link(_POWERS.get(value, "PowerOf"), (x,), value)
    if name == "ElementWiseSoftplus":
        beta, threshold = float(params["beta"]), float(params["threshold"])
        # Above the threshold the result is x itself; a negative one means that there is none.
        return Link(name, (x,), beta, threshold if threshold >= 0 else inf)
    a, b = (float(params[key]) if params.get(key) is not None else 0.0 for key in ("alpha", "beta"))
    return Link(name, tuple(operand(step, i) for i in range(FUNCTIONS[name].inputs[0])), a, b)


def reals_of(tensor: Tensor) -> np.ndarray:
    """Return the real values of a constant, whatever its storage."""
    assert tensor.data is not None
    if tensor.dtype.is_fixed_point:
        assert tensor.quantization is not None
        return tensor.quantization.dequantize(tensor.data)
    return np.asarray(tensor.data, np.float32)


def plain(tensor: _Operand) -> _Operand | Tensor:
    """Return a constant as floats, whatever its storage; return other tensors, or None, unchanged."""
    if tensor is None or not tensor.is_static or not tensor.dtype.is_fixed_point:
        return tensor
    return Tensor(tensor.name, tensor.type, DataType.FLOAT_32, tensor.dims, None, reals_of(tensor))


def declare(kernel: KernelSource, links: Sequence[Link]) -> None:
    """Declare the parameters of a chain's functions: those of link k are ``c<k>_a`` and ``c<k>_b``."""
    for number, link in enumerate(links):
        text = REALS[link.function]
        kernel.floats(**{f"c{number}_{key}": getattr(link, key) for key in ("a", "b") if f"{{{key}}}" in text})


def apply_links(links: Sequence[Link], width: int, load: Callable[[int, int], str]) -> list[str]:
    """Return the statements that run ``v``, a vector of `width` floats, through a chain.

    `load` returns an expression for an operand, given the index of its link and its index among the link's operands.
    """
    real = "float" if width == 1 else f"float{width}"
    lines = []
    for number, link in enumerate(links):
        names = []
        for j, tensor in enumerate(link.operands):
            if tensor is None:
                names.append("v")
                continue
            lines.append(f"{real} c{number}_{j} = {load(number, j)};")
            names.append(f"c{number}_{j}")
        text = REALS[link.function].format(*names, a=f"c{number}_a", b=f"c{number}_b", F=real)
        lines.append(f"v = {text};")
    return lines


class Epilogue:
    """What a kernel does with a computed value before it stores it, declared in the kernel.

    It consists of links of the step itself and of the chain behind the step. Operands of links are indexed by the
    result's element or its channel.

    - `output`: The step's output. If there is a chain, the result is stored in the chain's output instead.
    - `before`: Links of the step itself, which come first.
    - `in_steps`: Whether these links give a quantized result in units of its scale, so that only rounding is left to
      do.
    """

    def __init__(
        self,
        e: KernelEmitter,
        kernel: KernelSource,
        output: Tensor,
        before: Sequence[Link] = (),
        in_steps: bool = False,
    ) -> None:
        chain = e.chain or Chain((), output)
        self.output = chain.output
        self.links = (*before, *chain.links)
        self._moves = chain.moves
        self._operands: dict[tuple[int, int], tuple[str | None, OperandStorage]] = {}
        """The `operand_class` and storage of each operand, by the index of its link and its index in the link."""
        result = e.operand("y", self.output, writes=True)
        if in_steps and result.storage.quantized:
            result = replace(result, storage=replace(result.storage, steps="given"))
        self.storage = result.storage
        if self._moves is None:
            kernel.declare(result)
        else:
            declare_spread(e, kernel, self._moves)
        declare(kernel, self.links)
        for number, link in enumerate(self.links):
            for j, tensor in enumerate(link.operands):
                if tensor is not None:
                    storage = kernel.tensor(f"t{number}_{j}", tensor)
                    self._operands[number, j] = operand_class(tensor, self.output.dims), storage

    def lines(self, width: int, index: str, channel: str, aligned: bool = False) -> list[str]:
        """Return statements that run ``v``, a vector of `width` floats, through all links and store it.

        - `index`, `channel`: Expressions for the index of the first element of ``v`` in the result, and its channel.
        """
        wide = "" if width == 1 else str(width)

        def load(number: int, j: int) -> str:
            """Return an expression for operand j of a link, by its class."""
            name, (kind, storage) = f"t{number}_{j}", self._operands[number, j]
            if kind == "one":
                return f"(float{wide})({storage.load(name, '0')})"
            # Operands at their own offsets are rarely as aligned as the result.
            return storage.load(name, channel if kind == "channel" else index, width)

        lines = apply_links(self.links, width, load)
        if self._moves is not None:
            return [*lines, *spread_lines(self._moves, self.storage, width, index, channel)]
        return [*lines, self.storage.store("y", index, "v", width, aligned)]


def operand_class(tensor: Tensor, dims: Sequence[int]) -> str | None:
    """Return how an operand is indexed for a result of shape `dims`: "full", "channel" or "one"; None for other
    shapes.
    """
    if tensor.elements == 1:
        return "one"
    padded = (1,) * (len(dims) - tensor.rank) + tensor.dims
    if padded == tuple(dims):
        return "full"
    if dims and padded == (*([1] * (len(dims) - 1)), dims[-1]):
        return "channel"
    return None
