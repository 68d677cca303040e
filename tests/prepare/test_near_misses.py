"""What a pass leaves alone because one condition of its rule does not hold, and what it takes because all do.

Each line is a small graph, a pass, and the operations that are left. Results are compared too (`rewritten`), so a pass
that takes what it must not also gives other numbers here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from isthmus.graph import DataType, Quantization, Tensor
from isthmus.prepare.passes import constants, redundant
from isthmus.prepare.passes.affine import fold_affine
from isthmus.prepare.passes.algebra import simplify_arithmetic
from isthmus.prepare.passes.canonical import canonicalize, flatten_products
from isthmus.prepare.passes.fusion import fuse_activations, fuse_padding, narrow
from isthmus.prepare.passes.idioms import recognize_gates, recognize_normalizations
from isthmus.prepare.passes.redundant import remove_dead, remove_identities
from prepare.interpreter import Builder, ops, rewritten

RNG = np.random.default_rng(4)
S8, I32, F32 = DataType.SFIXED_POINT_8, DataType.INT_32, DataType.FLOAT_32
CONV = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}
FINE, COARSE = Quantization.per_tensor(0.05, 3), Quantization.per_tensor(0.1, -4)
ADD, MUL, SUB, DIV, SIN = (f"ElementWise{name}" for name in ("Add", "Multiply", "Subtract", "Divide", "Sin"))

Build = Callable[[Builder], Tensor]
Case = tuple[str, Callable, Build, list[str]]


def floats(*dims: int) -> np.ndarray:
    return RNG.normal(size=dims).astype(np.float32)


def positive(*dims: int) -> np.ndarray:
    return np.abs(floats(*dims)) + np.float32(0.5)


def sine(b: Builder, *dims: int) -> Tensor:
    return b.op(SIN, b.input(*dims))


def conv(b: Builder, *more, **params) -> Tensor:
    return b.op("Conv2d", b.input(1, 6, 6, 4), floats(1, 1, 4, 8), *more, **(CONV | params))


def grouped(b: Builder, op: str = "TransposeConv2d") -> Tensor:
    return b.op(op, b.input(1, 6, 6, 4), floats(1, 1, 4, 4), group=2, **CONV)


AFFINE: list[Case] = [
    ("a factor per channel", fold_affine, lambda b: b.op(MUL, conv(b), floats(8)), ["Conv2d"]),
    ("a factor per row", fold_affine, lambda b: b.op(MUL, conv(b), floats(6, 1)), ["Conv2d", MUL]),
    ("a factor that stretches", fold_affine,
     lambda b: b.op(MUL, conv(b), floats(2, 1, 1, 8)), ["Conv2d", MUL]),
    ("a bias known at run time", fold_affine, lambda b: b.op(MUL, conv(b, b.input(8)), floats(8)), ["Conv2d", MUL]),
    ("weights known at run time", fold_affine,
     lambda b: b.op(MUL, b.op("Conv2d", b.input(1, 6, 6, 4), b.input(1, 1, 4, 8), **CONV), floats(8)), ["Conv2d", MUL]),
    ("a term of weights known at run time", fold_affine,
     lambda b: b.op(ADD, b.op("Conv2d", b.input(1, 6, 6, 4), b.input(1, 1, 4, 8), **CONV), floats(8)), ["Conv2d"]),
    ("groups of a transposed convolution", fold_affine,
     lambda b: b.op(MUL, grouped(b), floats(8)), ["TransposeConv2d", MUL]),
    ("a term after groups of a transposed convolution", fold_affine,
     lambda b: b.op(ADD, grouped(b), floats(8)), ["TransposeConv2d"]),
    ("a factor before groups", fold_affine,
     lambda b: b.op("Conv2d", b.op(MUL, sine(b, 1, 6, 6, 4), floats(4)), floats(1, 1, 2, 4), group=2, **CONV),
     [SIN, MUL, "Conv2d"]),
    ("a term before a transposed convolution", fold_affine,
     lambda b: b.op("TransposeConv2d", b.op(ADD, sine(b, 1, 6, 6, 4), floats(4)), floats(2, 2, 4, 4), **CONV),
     [SIN, ADD, "TransposeConv2d"]),
    ("a term before a bias known at run time", fold_affine,
     lambda b: b.op("Conv2d", b.op(ADD, sine(b, 1, 6, 6, 4), floats(4)), floats(1, 1, 4, 8), b.input(8), **CONV),
     [SIN, ADD, "Conv2d"]),
    ("a factor before a transposed matrix", fold_affine,
     lambda b: b.op("MatMul", b.op(MUL, sine(b, 3, 4), floats(4)), floats(3, 5), transpose_in0=True),
     [SIN, MUL, "MatMul"]),
    ("a factor before a batch of matrices", fold_affine,
     lambda b: b.op("MatMul", b.op(MUL, sine(b, 2, 3, 4), floats(4)), floats(2, 4, 5)), [SIN, MUL, "MatMul"]),
    ("a factor before a matrix by columns", fold_affine,
     lambda b: b.op("MatMul", b.op(MUL, sine(b, 3, 4), floats(4)), floats(5, 4), transpose_in1=True),
     [SIN, "MatMul"]),
    ("a factor of features that are joined", fold_affine,
     lambda b: b.op("FullyConnected", b.op(MUL, sine(b, 2, 3, 4), floats(4)), floats(5, 12)),
     [SIN, MUL, "FullyConnected"]),
    ("a factor that others read", fold_affine,
     lambda b: (lambda x: b.op(ADD, b.op("MatMul", x, floats(4, 4)), x))(b.op(MUL, sine(b, 4, 4), floats(4))),
     [SIN, MUL, "MatMul", ADD]),
    ("two factors", fold_affine, lambda b: b.op(MUL, b.op(MUL, sine(b, 3, 4), floats(4)), floats(3, 1)),
     [SIN, MUL, MUL]),
    ("a factor and a term", fold_affine,
     lambda b: b.op(ADD, b.op(MUL, sine(b, 3, 4), floats(4)), floats(4)), [SIN, "Batchnorm"]),
    ("a term and a factor", fold_affine,
     lambda b: b.op(MUL, b.op(ADD, sine(b, 3, 4), floats(4)), floats(4)), [SIN, ADD, MUL]),
    ("a factor and a term per row", fold_affine,
     lambda b: b.op(ADD, b.op(MUL, sine(b, 3, 4), floats(4)), floats(3, 1)), [SIN, MUL, ADD]),
    ("a factor per row and a term", fold_affine,
     lambda b: b.op(ADD, b.op(MUL, sine(b, 3, 4), floats(3, 1)), floats(4)), [SIN, MUL, ADD]),
    ("a number times a product of computed matrices", fold_affine,
     lambda b: b.op(MUL, b.op("MatMul", b.op("MatMul", b.input(3, 4), floats(4, 4)), b.input(4, 3)), 0.5),
     ["MatMul", "MatMul"]),
    ("a number times a product with a bias", fold_affine,
     lambda b: b.op(MUL, b.op("MatMul", b.op("MatMul", b.input(3, 4), floats(4, 4)), b.input(4, 3), b.input(3)), 0.5),
     ["MatMul", "MatMul", MUL]),
    ("a number times a product of inputs", fold_affine,
     lambda b: b.op(MUL, b.op("MatMul", b.input(3, 4), b.input(4, 3)), 0.5), ["MatMul", MUL]),
    ("a stretching number times a product", fold_affine,
     lambda b: b.op(MUL, b.op("MatMul", b.op("MatMul", b.input(3, 4), floats(4, 4)), b.input(4, 3)),
                    np.full((2, 1, 1), 0.5, np.float32)),
     ["MatMul", "MatMul", MUL]),
]  # fmt: skip


def integers(b: Builder, *dims: int) -> Tensor:
    return b.input(*dims, dtype=I32)


ALGEBRA: list[Case] = [
    ("a quotient by a tiny number", simplify_arithmetic,
     lambda b: b.op(DIV, b.input(4), np.float32([1, 1e-31, 1, 1])), [DIV]),
    ("a quotient by numbers", simplify_arithmetic, lambda b: b.op(DIV, b.input(4), np.float32([3, -4, 5, 6])), [MUL]),
    ("a quotient of a constant", simplify_arithmetic, lambda b: b.op(DIV, 2.0, b.op("ElementWiseExp", b.input(4))),
     ["ElementWiseExp", DIV]),
    ("one over", simplify_arithmetic, lambda b: b.op(DIV, 1.0, b.op("ElementWiseExp", b.input(4))),
     ["ElementWiseExp", "ElementWiseUnary"]),
    ("one over what stretches", simplify_arithmetic,
     lambda b: b.op(DIV, np.ones((2, 1), np.float32), b.op("ElementWiseExp", b.input(4))), ["ElementWiseExp", DIV]),
    ("one over integers", simplify_arithmetic, lambda b: b.op(DIV, np.int32([1]), integers(b, 4)), [DIV]),
    ("a difference of a constant", simplify_arithmetic, lambda b: b.op(SUB, 1.0, b.input(4)), [SUB]),
    ("a difference of integers", simplify_arithmetic, lambda b: b.op(SUB, integers(b, 4), np.int32([3])), [SUB]),
    *((f"the power {power}", simplify_arithmetic,
       lambda b, power=power: b.op("ElementWisePower", b.op("ElementWiseExp", b.input(4)), power),
       ["ElementWiseExp", *left])
      for power, left in ((1.0, []), (2.0, [MUL]), (0.5, ["ElementWiseSquareRoot"]), (-0.5, ["ElementWiseRsqrt"]),
                          (-1.0, ["ElementWiseUnary"]), (3.0, ["ElementWisePower"]))),
    ("a power that stretches", simplify_arithmetic,
     lambda b: b.op("ElementWisePower", b.input(4), np.full((2, 1), 2, np.float32)), ["ElementWisePower"]),
    ("powers of each", simplify_arithmetic,
     lambda b: b.op("ElementWisePower", b.op("ElementWiseExp", b.input(2)), np.float32([2, 3])),
     ["ElementWiseExp", "ElementWisePower"]),
    ("a power of integers", simplify_arithmetic,
     lambda b: b.op("ElementWisePower", integers(b, 4), np.int32([2])), ["ElementWisePower"]),
    ("nothing added", simplify_arithmetic, lambda b: b.op(SIN, b.op(ADD, b.input(4), 0.0)), [SIN]),
    ("nothing added that stretches", simplify_arithmetic,
     lambda b: b.op(SIN, b.op(ADD, b.input(4), np.zeros((2, 1), np.float32))), [ADD, SIN]),
    ("nothing added to integers", simplify_arithmetic,
     lambda b: b.op("ElementWiseAbs", b.op(ADD, integers(b, 4), np.int32([0]))), ["ElementWiseAbs"]),
    ("something added", simplify_arithmetic,
     lambda b: b.op(SIN, b.op(ADD, b.input(2), np.float32([0, 1]))), [ADD, SIN]),
    ("a factor of 1", simplify_arithmetic, lambda b: b.op(SIN, b.op(MUL, b.input(4), 1.0)), [SIN]),
    ("a factor of 0", simplify_arithmetic, lambda b: b.op(SIN, b.op(MUL, b.input(4), 0.0)), [MUL, SIN]),
    ("two terms", simplify_arithmetic, lambda b: b.op(ADD, b.op(ADD, b.input(3, 4), 2.0), floats(4)), [ADD]),
    ("two factors", simplify_arithmetic, lambda b: b.op(MUL, b.op(MUL, b.input(3, 4), 2.0), floats(4)), [MUL]),
    ("two terms that cross", simplify_arithmetic,
     lambda b: b.op(ADD, b.op(ADD, b.input(3, 4), floats(3, 1)), floats(4)), [ADD, ADD]),
    ("a term and a factor", simplify_arithmetic, lambda b: b.op(MUL, b.op(ADD, b.input(4), 2.0), 3.0), [ADD, MUL]),
    ("two terms with another reader", simplify_arithmetic,
     lambda b: (lambda x: b.op(MUL, b.op(ADD, x, 2.0), x))(b.op(ADD, b.input(4), 1.5)), [ADD, ADD, MUL]),
    ("a term known at run time and one that is not", simplify_arithmetic,
     lambda b: b.op(ADD, b.op(ADD, b.input(4), b.input(4)), 2.0), [ADD, ADD]),
]  # fmt: skip


def gated(gate: Callable[[Builder, Tensor], Tensor], last: float | None = None, *, dims=(3, 40)) -> Build:
    def build(b: Builder) -> Tensor:
        x = b.op(SIN, b.input(*dims))
        y = b.op(MUL, x, gate(b, x))
        return y if last is None else b.op(MUL, y, last)

    return build


def neuron(operation: int = 2, alpha: float = 1 / 6, beta: float = 0.5):
    return lambda b, x: b.op("ElementWiseNeuron", x, operation=operation, alpha=alpha, beta=beta)


def shifted(by: float = 3.0, op: str = "Relu6", **params):
    return lambda b, x: b.op(op, b.op(ADD, x, by), **params)


GATES: list[Case] = [
    ("x times its sigmoid", recognize_gates, gated(lambda b, x: b.op("Sigmoid", x)), [SIN, "Silu"]),
    ("half of it", recognize_gates, gated(lambda b, x: b.op("Sigmoid", x), 0.5), [SIN, "Silu", MUL]),
    ("x times its sigmoid of another", recognize_gates,
     gated(lambda b, x: b.op("Sigmoid", b.input(3, 40))), [SIN, "Sigmoid", MUL]),
    ("a hard sigmoid", recognize_gates, gated(neuron()), [SIN, "HardSwish"]),
    ("a hard sigmoid of another slope", recognize_gates, gated(neuron(alpha=0.2)), [SIN, "ElementWiseNeuron", MUL]),
    ("a hard sigmoid of another middle", recognize_gates, gated(neuron(beta=0.4)), [SIN, "ElementWiseNeuron", MUL]),
    ("another neuron", recognize_gates, gated(neuron(operation=0)), [SIN, "ElementWiseNeuron", MUL]),
    ("a limit to 6", recognize_gates, gated(shifted(), 1 / 6), [SIN, "HardSwish"]),
    ("a limit by numbers", recognize_gates,
     gated(shifted(op="ReluMinMax", min_value=0.0, max_value=6.0), 1 / 6), [SIN, "HardSwish"]),
    ("a limit by other numbers", recognize_gates,
     gated(shifted(op="ReluMinMax", min_value=0.0, max_value=5.0), 1 / 6), [SIN, ADD, "ReluMinMax", MUL, MUL]),
    ("another shift", recognize_gates, gated(shifted(2.0), 1 / 6), [SIN, ADD, "Relu6", MUL, MUL]),
    ("a sixth of a limit alone", recognize_gates,
     lambda b: b.op(MUL, b.op("Relu6", b.op(ADD, b.input(40), 3.0)), 1 / 6), ["ElementWiseNeuron"]),
    ("a fifth of a limit alone", recognize_gates,
     lambda b: b.op(MUL, b.op("Relu6", b.op(ADD, b.input(40), 3.0)), 1 / 5), [ADD, "Relu6", MUL]),
    ("a sixth of a limit of another shift", recognize_gates,
     lambda b: b.op(MUL, b.op("Relu6", b.op(ADD, b.input(40), 2.0)), 1 / 6), [ADD, "Relu6", MUL]),
    ("a sixth that stretches", recognize_gates,
     lambda b: b.op(MUL, b.op("Relu6", b.op(ADD, b.input(40), 3.0)), np.full((2, 1), 1 / 6, np.float32)),
     [ADD, "Relu6", MUL]),
    ("factors that stretch", recognize_gates,
     lambda b: (lambda x: b.op(MUL, b.op(MUL, x, np.full((3, 1), 2, np.float32)),
                               b.op(MUL, b.op("Sigmoid", x), np.full((3, 1), 2, np.float32))))(sine(b, 40)),
     [SIN, MUL, "Sigmoid", MUL, MUL]),
    ("gates that stretch", recognize_gates,
     lambda b: (lambda x: b.op(MUL, x, b.op("Reshape", b.op("Sigmoid", x), dims=[1, 40])))(sine(b, 40)),
     [SIN, "Sigmoid", "Reshape", MUL]),
]  # fmt: skip


def norm(
    axes=(2,), square_axes=None, keep: bool = True, epsilon: float = 1e-5, of_other: bool = False, tail=None, rank=3,
    mean_op: str = "ReduceMean",
) -> Build:  # fmt: skip
    def build(b: Builder) -> Tensor:
        x = b.op(SIN, b.input(*(2, 5, 8)[:rank]))
        mean = b.op(mean_op, x, axes=list(axes), keep_dims=keep)
        d = b.op(SUB, x, mean)
        squared = b.op(MUL, d, b.op("ElementWiseCos", x) if of_other else d)
        variance = b.op("ReduceMean", squared, axes=list(square_axes or axes), keep_dims=True)
        variance = b.op("ElementWiseAbs", variance) if of_other else variance
        root = b.op("ElementWiseSquareRoot", b.op(ADD, variance, epsilon))
        y = b.op(DIV, d, root)
        return y if tail is None else tail(b, y)

    return build


def norms(work_ops: list[str]) -> list[str]:
    return [op for op in work_ops if op in ("LayerNorm", DIV, MUL, ADD)]


SPELLED = [MUL, ADD, DIV]
NORMS: list[Case] = [
    ("the last axis", recognize_normalizations, norm(), ["LayerNorm"]),
    ("the last two axes", recognize_normalizations, norm((1, 2)), ["LayerNorm"]),
    ("an axis in the middle", recognize_normalizations, norm((1,)), SPELLED),
    ("the first and the last", recognize_normalizations, norm((0, 2)), SPELLED),
    ("two different means", recognize_normalizations, norm((2,), (1, 2)), SPELLED),
    ("a sum for a mean", recognize_normalizations, norm(mean_op="ReduceSum"), SPELLED),
    ("squares of another", recognize_normalizations, norm(of_other=True), SPELLED),
    ("a weight", recognize_normalizations, norm(tail=lambda b, y: b.op(MUL, y, floats(8))), ["LayerNorm"]),
    ("a weight of each row", recognize_normalizations,
     norm(tail=lambda b, y: b.op(MUL, y, floats(5, 1))), ["LayerNorm", MUL]),
    ("a weight that stretches", recognize_normalizations,
     norm(tail=lambda b, y: b.op(MUL, y, floats(3, 1, 1, 8))), ["LayerNorm", MUL]),
    ("a weight known at run time", recognize_normalizations,
     norm(tail=lambda b, y: b.op(MUL, y, b.input(8))), ["LayerNorm", MUL]),
    ("weights of two axes", recognize_normalizations,
     norm((1, 2), tail=lambda b, y: b.op(MUL, y, floats(5, 8))), ["LayerNorm"]),
    ("weights of two axes, with ones before", recognize_normalizations,
     norm((1, 2), tail=lambda b, y: b.op(MUL, y, floats(1, 5, 8))), ["LayerNorm"]),
    ("weights of one of two axes", recognize_normalizations,
     norm((1, 2), tail=lambda b, y: b.op(MUL, y, floats(8))), ["LayerNorm", MUL]),
    ("weights of each of the batch too", recognize_normalizations,
     norm((1, 2), tail=lambda b, y: b.op(MUL, y, floats(2, 5, 8))), ["LayerNorm", MUL]),
    ("a bias alone", recognize_normalizations, norm(tail=lambda b, y: b.op(ADD, y, floats(8))), ["LayerNorm"]),
    ("two biases", recognize_normalizations,
     norm(tail=lambda b, y: b.op(ADD, b.op(ADD, y, floats(8)), floats(8))), ["LayerNorm", ADD]),
    ("a weight after a bias", recognize_normalizations,
     norm(tail=lambda b, y: b.op(MUL, b.op(ADD, y, floats(8)), floats(8))), ["LayerNorm", MUL]),
    ("two weights", recognize_normalizations,
     norm(tail=lambda b, y: b.op(MUL, b.op(MUL, y, floats(8)), floats(8))), ["LayerNorm", MUL]),
]  # fmt: skip


def stored(b: Builder, *dims: int, q=FINE) -> Tensor:
    return b.input(*dims, dtype=S8, q=q)


def pooled(op: str, before: str = "Relu", pads=None, inner=None, **params) -> Build:
    def build(b: Builder) -> Tensor:
        x = b.op(before, b.input(1, 6, 6, 4))
        amounts = [[0, 0], [1, 1], [1, 1], [0, 0]] if pads is None else pads
        x = b.op("Pad", x, scheme=0, pad_amount=amounts)
        own = [[0, 0], [0, 0]] if inner is None else inner
        return b.op(op, x, **({"filter_size": [3, 3], "stride": [1, 1], "pad_amount": own} | params))

    return build


BATCH, CHANNEL = [[1, 0], [1, 1], [1, 1], [0, 0]], [[0, 0], [1, 1], [1, 1], [0, 1]]
PADS: list[Case] = [
    ("zeros around an image", fuse_padding, pooled("PoolMax2d"), ["Relu", "PoolMax2d"]),
    ("zeros around a batch", fuse_padding, pooled("PoolMax2d", pads=BATCH), ["Relu", "Pad", "PoolMax2d"]),
    ("zeros around channels", fuse_padding, pooled("PoolMax2d", pads=CHANNEL), ["Relu", "Pad", "PoolMax2d"]),
    ("zeros as wide as the window", fuse_padding,
     pooled("PoolMax2d", pads=[[0, 0], [3, 0], [0, 0], [0, 0]]), ["Relu", "Pad", "PoolMax2d"]),
    ("zeros that make the padding as wide as the window", fuse_padding,
     pooled("PoolMax2d", inner=[[2, 0], [0, 0]]), ["Relu", "Pad", "PoolMax2d"]),
    ("zeros that make the padding almost as wide", fuse_padding,
     pooled("PoolMax2d", inner=[[1, 0], [0, 0]]), ["Relu", "PoolMax2d"]),
    ("windows that are rounded up", fuse_padding,
     pooled("PoolMax2d", rounding_mode=1, stride=[2, 2]), ["Relu", "Pad", "PoolMax2d"]),
    ("zeros among what may be negative", fuse_padding, pooled("PoolMax2d", "Relu1"), ["Relu1", "Pad", "PoolMax2d"]),
    ("zeros of an average", fuse_padding, pooled("PoolAvg2d"), ["Relu", "PoolAvg2d"]),
    ("zeros of an average that does not count its own", fuse_padding,
     pooled("PoolAvg2d", inner=[[1, 0], [0, 0]]), ["Relu", "Pad", "PoolAvg2d"]),
    ("zeros of an average that counts its own", fuse_padding,
     pooled("PoolAvg2d", inner=[[1, 0], [0, 0]], count_pad_for_edges=True), ["Relu", "PoolAvg2d"]),
    ("edges around an image", fuse_padding,
     lambda b: b.op("Conv2d", b.op("Pad", b.input(1, 5, 5, 4), scheme=3, pad_amount=[[0, 0], [1, 1], [1, 1], [0, 0]]),
                    floats(3, 3, 4, 8), **CONV), ["Pad", "Conv2d"]),
    ("zeros that others read", fuse_padding,
     lambda b: (lambda x: b.op(ADD, b.op("Conv2d", x, floats(1, 1, 4, 4), **CONV), x))(
         b.op("Pad", b.input(1, 5, 5, 4), scheme=0, pad_amount=[[0, 0], [1, 1], [1, 1], [0, 0]])),
     ["Pad", "Conv2d", ADD]),
]  # fmt: skip

FORMS: list[Case] = [
    ("a squeeze", canonicalize, lambda b: b.op(SIN, b.op("Squeeze", b.input(2, 1, 3), dims=[2, 3])), ["Reshape", SIN]),
    ("a pack of one", canonicalize, lambda b: b.op(SIN, b.op("Pack", b.input(2, 3), axis=1)), ["Reshape", SIN]),
    ("an unpack into one", canonicalize,
     lambda b: b.op(SIN, b.op("UnPack", b.input(2, 1, 3), axis=1)), ["Reshape", SIN]),
    ("a join of other quantizations", canonicalize,
     lambda b: b.op("Concat", stored(b, 2, 3), stored(b, 2, 3, q=COARSE), axis=1, q=COARSE), ["Convert", "Concat"]),
    ("a join of one quantization", canonicalize,
     lambda b: b.op("Concat", stored(b, 2, 3), stored(b, 2, 3), axis=1, q=FINE), ["Concat"]),
    ("a movement within one quantization", canonicalize,
     lambda b: b.op("Transpose", stored(b, 2, 3), perm=[1, 0], q=FINE), ["Transpose"]),
    ("a mirror of another quantization, whatever its value", canonicalize,
     lambda b: b.op("Pad", stored(b, 3, 3), scheme=1, pad_amount=[[1, 1], [0, 0]], pad_constant_value=0.01, q=COARSE),
     ["Pad", "Convert"]),
    ("a fill that the operand cannot say", canonicalize,
     lambda b: b.op("Pad", stored(b, 3, 3), scheme=0, pad_amount=[[1, 1], [0, 0]], pad_constant_value=0.01, q=COARSE),
     ["Pad"]),
    ("a fill just within the operand's range", canonicalize,
     lambda b: b.op("Pad", stored(b, 3, 3, q=Quantization.per_tensor(0.5, 0)), scheme=0, pad_amount=[[1, 1], [0, 0]],
                    pad_constant_value=63.5, q=COARSE), ["Pad", "Convert"]),
    ("a fill just beyond the operand's range", canonicalize,
     lambda b: b.op("Pad", stored(b, 3, 3, q=Quantization.per_tensor(0.5, 0)), scheme=0, pad_amount=[[1, 1], [0, 0]],
                    pad_constant_value=64.0, q=COARSE), ["Pad"]),
    ("a fill just below the operand's range", canonicalize,
     lambda b: b.op("Pad", stored(b, 3, 3, q=Quantization.per_tensor(0.5, 0)), scheme=0, pad_amount=[[1, 1], [0, 0]],
                    pad_constant_value=-64.5, q=COARSE), ["Pad"]),
    ("neighbours from the end", canonicalize,
     lambda b: b.op("Gather", b.input(5, 2), np.int32([-2, -1]), axis=0), ["StridedSlice", "Reshape"]),
    ("neighbours around the end", canonicalize,
     lambda b: b.op("Gather", b.input(5, 2), np.int32([-1, 0]), axis=0), ["Gather"]),
    ("no indices", canonicalize, lambda b: b.op("Gather", b.input(5, 2), np.zeros(0, np.int32), axis=0), ["Gather"]),
    ("indices known at run time", canonicalize,
     lambda b: b.op("Gather", sine(b, 256, 2), b.op("Cast", b.op("ElementWiseAbs", sine(b, 3)),
                                                               dtype=I32), axis=0),
     [SIN, SIN, "ElementWiseAbs", "Cast", "Gather"]),
    ("a matrix with ones before it", canonicalize,
     lambda b: b.op("MatMul", b.input(2, 3, 4), floats(1, 4, 5)), ["MatMul"]),
    ("a matrix with ones before it, of a higher rank than its operand", canonicalize,
     lambda b: b.op("MatMul", b.input(3, 4), floats(1, 4, 5)), ["MatMul"]),
    ("a batch of matrices", canonicalize, lambda b: b.op("MatMul", b.input(2, 3, 4), floats(2, 4, 5)), ["MatMul"]),
    ("a slice of nothing that drops an axis", canonicalize,
     lambda b: b.op("StridedSlice", b.input(3, 4), ranges=[[1, 2, 1], [2, 2, 1]], shrink_axes=1),
     ["StridedSlice", "Reshape"]),
    ("a slice of nothing that keeps its axes", canonicalize,
     lambda b: b.op("StridedSlice", b.input(3, 4), ranges=[[1, 2, 1], [2, 2, 1]]), ["StridedSlice"]),
    ("a difference of constants first", canonicalize, lambda b: b.op(SUB, 1.0, b.input(4)), [SUB]),
]  # fmt: skip

ROWS: list[Case] = [
    ("rows already", flatten_products, lambda b: b.op("MatMul", b.input(3, 4), floats(4, 5)), ["MatMul"]),
    ("a matrix known at run time", flatten_products,
     lambda b: b.op("MatMul", b.input(2, 3, 4), b.input(4, 5)), ["MatMul"]),
    ("a batch of matrices", flatten_products, lambda b: b.op("MatMul", b.input(2, 3, 4), floats(2, 4, 5)), ["MatMul"]),
    ("a transposed operand", flatten_products,
     lambda b: b.op("MatMul", b.input(2, 4, 3), floats(4, 5), transpose_in0=True), ["MatMul"]),
    ("nothing", flatten_products, lambda b: b.op("MatMul", b.input(0, 3, 4), floats(4, 5)), ["MatMul"]),
    ("rows of batches", flatten_products,
     lambda b: b.op("MatMul", b.input(2, 3, 4), floats(4, 5)), ["Reshape", "MatMul", "Reshape"]),
    ("filters known at run time", flatten_products,
     lambda b: b.op("Conv1d", b.input(1, 9, 4), b.input(3, 4, 5), stride=1, pad_amount=[0, 0]),
     ["Reshape", "Reshape", "Conv2d", "Reshape"]),
]  # fmt: skip

LIMITS: list[Case] = [
    ("a limit of integers", fuse_activations,
     lambda b: b.op("Relu", b.op(ADD, integers(b, 4), np.int32([3]))), [ADD, "Relu"]),
    ("a limit that stretches", fuse_activations,
     lambda b: b.op("ElementWiseMinimum", b.op(ADD, b.input(4), 1.0), np.full((2, 1), 0.5, np.float32)),
     [ADD, "ElementWiseMinimum"]),
    ("limits of each", fuse_activations,
     lambda b: b.op("ElementWiseMinimum", b.op(ADD, b.input(2), 1.0), np.float32([0.5, 1])),
     [ADD, "ElementWiseMinimum"]),
    ("a limit by no number", fuse_activations,
     lambda b: b.op("ElementWiseMinimum", b.op(ADD, b.input(4), 1.0), np.float32([math.nan])),
     [ADD, "ElementWiseMinimum"]),
    ("a limit after what takes none", fuse_activations, lambda b: b.op("Relu", sine(b, 4)), [SIN, "Relu"]),
    ("a wider limit", fuse_activations,
     lambda b: b.op(SIN, b.op("Relu", b.op("Relu6", sine(b, 4)))), [SIN, "Relu6", SIN]),
    ("a limit as wide", fuse_activations,
     lambda b: b.op(SIN, b.op("Relu6", b.op("Relu6", sine(b, 4)))), [SIN, "Relu6", SIN]),
    ("a limit that is narrower above", fuse_activations,
     lambda b: b.op(SIN, b.op("Relu6", b.op("Relu", sine(b, 4)))), [SIN, "Relu", "Relu6", SIN]),
    ("a limit that is narrower below", fuse_activations,
     lambda b: b.op(SIN, b.op("Relu", b.op("Relu1", sine(b, 4)))), [SIN, "Relu1", "Relu", SIN]),
    ("a limit into another quantization", fuse_activations,
     lambda b: b.op("Relu", b.op("Relu6", stored(b, 4), q=FINE), q=COARSE), ["Relu6", "Relu"]),
]  # fmt: skip

NOTHING: list[Case] = [
    ("a cast to the same", remove_identities, lambda b: b.op(SIN, b.op("Cast", b.input(4), dtype=F32)), [SIN]),
    ("a cast to another", remove_identities, lambda b: b.op("Cast", b.input(4), dtype=I32), ["Cast"]),
    ("a change of quantization", remove_identities,
     lambda b: b.op("Relu", b.op("Convert", stored(b, 4), dtype=S8, q=COARSE), q=COARSE), ["Convert", "Relu"]),
    ("a join of one", remove_identities, lambda b: b.op(SIN, b.op("Concat", b.input(2, 3), axis=0)), [SIN]),
    ("a join of two", remove_identities, lambda b: b.op("Concat", b.input(2, 3), b.input(0, 3), axis=0), ["Concat"]),
    ("a sum of single elements", remove_identities,
     lambda b: b.op(SIN, b.op("ReduceSum", b.input(2, 1, 3), axes=[1])), ["Reshape", SIN]),
    ("a sum of more", remove_identities,
     lambda b: b.op(SIN, b.op("ReduceSum", b.input(2, 1, 3), axes=[1, 2])), ["ReduceSum", SIN]),
    ("a mean into another quantization", remove_identities,
     lambda b: b.op("ReduceMean", stored(b, 2, 1, 3), axes=[1], q=COARSE), ["ReduceMean"]),
    ("a transpose after another", remove_identities,
     lambda b: b.op("Transpose", b.op("Transpose", b.input(2, 3, 4), perm=[1, 2, 0]), perm=[1, 0, 2]), ["Transpose"]),
    ("a transpose of a transpose that others read", remove_identities,
     lambda b: (lambda x: b.op(ADD, b.op("Transpose", x, perm=[1, 0]), b.op("Reshape", b.op(SIN, x), dims=[3, 3])))(
         b.op("Transpose", sine(b, 3, 3), perm=[1, 0])),
     [SIN, "Transpose", SIN, ADD]),
    ("a slice of everything", remove_identities,
     lambda b: b.op(SIN, b.op("StridedSlice", b.input(3, 4), ranges=[[0, 3, 1], [0, 4, 1]])), [SIN]),
]  # fmt: skip

CASES = [*AFFINE, *ALGEBRA, *GATES, *NORMS, *PADS, *FORMS, *ROWS, *LIMITS, *NOTHING]


@pytest.mark.parametrize(
    ("apply", "build", "left"), [case[1:] for case in CASES], ids=[f"{c[1].__name__}: {c[0]}" for c in CASES]
)
def test_a_pass_takes_what_fits_and_leaves_what_nearly_does(apply: Callable, build: Build, left: list[str]) -> None:
    b = Builder()
    work = rewritten(b.finish(build(b)), apply, remove_dead)
    found = norms(ops(work)) if apply is recognize_normalizations else ops(work)
    assert found == left


@pytest.mark.parametrize(("dims", "rank"), [((1, 4, 5), 2), ((1, 1, 4, 5), 2), ((2, 4, 5), 3), ((4, 5), 2)], ids=str)
@pytest.mark.parametrize("of_rank", [3, 4])
def test_ones_before_a_constant_matrix_go_where_its_operand_has_as_many_axes(dims, rank, of_rank) -> None:
    b = Builder()
    y = b.op("MatMul", b.input(*(2, 2, 3, 4)[4 - of_rank :]), floats(*dims))
    work = rewritten(b.finish(y), canonicalize)
    assert work.ordered()[0].inputs[1].rank == (rank if of_rank >= len(dims) else len(dims))


@pytest.mark.parametrize(("axis", "moved"), [(3, 1), (2, 0), (None, None)])
def test_the_axis_of_scales_follows_a_matrix_that_loses_leading_dimensions_of_one(axis, moved) -> None:
    b = Builder()
    value = RNG.integers(-9, 9, (1, 1, 4, 5)).astype(np.int8)
    count = 1 if axis is None else value.shape[axis]
    scales = Quantization(tuple(np.linspace(0.1, 0.2, count)), (0,) * count, axis)
    y = b.op("MatMul", stored(b, 1, 2, 3, 4), b.constant(value, scales), q=COARSE)
    work = rewritten(b.finish(y), canonicalize)
    matrix = work.ordered()[0].inputs[1]
    assert (matrix.dims, matrix.quantization.axis) == ((4, 5), moved)


def test_leading_dimensions_of_one_stay_where_scales_are_along_them() -> None:
    b = Builder()
    value = RNG.integers(-9, 9, (1, 4, 5)).astype(np.int8)
    y = b.op("MatMul", stored(b, 1, 3, 4), b.constant(value, Quantization((0.1,), (0,), 0)), q=COARSE)
    assert rewritten(b.finish(y), canonicalize).ordered()[0].inputs[1].rank == 3


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_axis_of_scales_follows_filters_that_get_a_height(axis) -> None:
    b = Builder()
    value = RNG.integers(-9, 9, (3, 4, 5)).astype(np.int8)
    count = value.shape[axis]
    scales = Quantization(tuple(np.linspace(0.1, 0.2, count)), (0,) * count, axis)
    y = b.op("Conv1d", stored(b, 1, 9, 4), b.constant(value, scales), stride=1, pad_amount=[0, 0], q=COARSE)
    work = rewritten(b.finish(y), flatten_products)
    [step] = [s for s in work.ordered() if s.op == "Conv2d"]
    assert (step.inputs[1].dims, step.inputs[1].quantization.axis) == ((1, 3, 4, 5), axis + 1)


@pytest.mark.parametrize(
    ("first", "then", "both"),
    [
        (None, (0.0, 6.0), (0.0, 6.0)),
        ((-1.0, 1.0), (0.0, 6.0), (0.0, 1.0)),
        ((0.0, 6.0), (-1.0, 1.0), (0.0, 1.0)),
        ((-3.0, -2.0), (0.0, 6.0), (0.0, 0.0)),
        ((7.0, 9.0), (0.0, 6.0), (6.0, 6.0)),
    ],
)
def test_two_limits_are_one(first, then, both) -> None:
    assert narrow(first, then) == both


def test_large_results_are_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "MAX_BYTES", 16)
    for size, left in ((4, [ADD]), (5, [SIN, ADD])):
        b = Builder()
        y = b.op(ADD, b.input(size), b.op(SIN, floats(size)))
        assert ops(rewritten(b.finish(y), constants.fold_constants)) == left


def test_small_constants_are_the_same_by_what_they_hold_and_large_ones_by_what_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redundant, "_SMALL", 16)
    for size, left in ((4, [MUL, SUB]), (5, [MUL, MUL, SUB])):
        b = Builder()
        x, c = b.input(size), floats(size)
        y = b.op(SUB, b.op(MUL, x, c), b.op(MUL, x, c.copy()))
        assert ops(rewritten(b.finish(y), redundant.merge_duplicates)) == left
