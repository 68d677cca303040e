"""Float ONNX operations with attributes at random. Each takes a value of the model and adds what computes on it.

`FAMILIES` maps the name of a kind of operation to (ranks of its operand, the function).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np

from random_operations.onnx_model import Dims, OnnxModel, Refused

Add = Callable[[OnnxModel, str], str]
_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Less", "GreaterOrEqual", "Equal", "PRelu", "Mod")
_INTEGER = ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Equal", "Less", "And", "Xor", "Neg", "Abs", "Sum")
_UNARY = (
    "Abs", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "LeakyRelu", "Neg", "Relu", "Round",
    "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Log", "Reciprocal", "Tanh", "Celu",
    "ThresholdedRelu", "Clip", "Identity", "Atan", "Shrink", "IsNaN", "Tan", "Sinh", "Asinh", "Mish",
)  # fmt: skip
_STEEP = frozenset((
    "Pow", "Reciprocal", "Tan", "ReduceProd", "Mod", "Cast", "Floor", "Ceil", "Round", "Sign", "Less", "Equal",
    "GreaterOrEqual", "Shrink", "ThresholdedRelu", "IsNaN",
))  # fmt: skip
"""Operators whose results may differ much where their operands hardly do."""
_REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp")


def _some(rng: Random, count: int, choices: Sequence[int]) -> list[int]:
    return [rng.choice(choices) for _ in range(count)]


def pads(rng: Random, spatial: int, most: Sequence[int]) -> list[int] | None:
    """ONNX's pads: all before, then all after; often uneven, often none."""
    kind = rng.choice(["none", "even", "before", "after", "any", "any"])
    amounts = [rng.randint(0, max(m, 0)) for m in most]
    others = [rng.randint(0, max(m, 0)) for m in most]
    zeros = [0] * spatial
    return {
        "none": rng.choice([None, zeros + zeros]), "even": amounts + amounts, "before": amounts + zeros,
        "after": zeros + amounts, "any": amounts + others,
    }[kind]  # fmt: skip


def _maybe(rng: Random, value: object) -> object | None:
    return value if rng.random() < 0.7 else None


def _windows(rng: Random, dims: Dims, kernel: Sequence[int], widest_pad: Sequence[int]) -> dict[str, object]:
    spatial = len(dims) - 2
    return {
        "strides": _maybe(rng, _some(rng, spatial, (1, 1, 2, 3))),
        "dilations": _maybe(rng, _some(rng, spatial, (1, 1, 1, 2))),
        **(
            {"auto_pad": rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])}
            if rng.random() < 0.15
            else {"pads": pads(rng, spatial, widest_pad)}
        ),
    }


def _kernel(rng: Random, dims: Dims) -> list[int]:
    sizes = dims[2:]
    kind = rng.random()
    if kind < 0.3:
        return [1] * len(sizes)
    if kind < 0.4:
        return list(sizes)
    return [rng.randint(1, 4) for _ in sizes]


def conv(m: OnnxModel, x: str) -> str:
    """Conv with groups, depthwise multipliers, uneven pads, strides, dilations."""
    rng, dims = m.rng, m.dims(x)
    channels, kernel = dims[1], _kernel(m.rng, dims)
    groups = rng.choice([1, 1, 1, channels, *[g for g in range(1, channels + 1) if channels % g == 0]])
    filters = groups * rng.choice([1, 1, 2, 3, 5])
    weights = m.constant(m.floats((filters, channels // groups, *kernel), 0.5))
    bias = m.constant(m.floats((filters,))) if rng.random() < 0.6 else ""
    more = _windows(rng, dims, kernel, kernel)
    return m.add("Conv", f"{x} {weights} {bias}", group=groups, **more)


def conv_transpose(m: OnnxModel, x: str) -> str:
    """ConvTranspose with groups, uneven pads, output padding."""
    rng, dims = m.rng, m.dims(x)
    spatial, channels = len(dims) - 2, dims[1]
    groups = rng.choice([1, 1, channels, *[g for g in range(1, channels + 1) if channels % g == 0]])
    kernel = [rng.randint(1, 4) for _ in range(spatial)]
    strides = _some(rng, spatial, (1, 2, 3))
    weights = m.constant(m.floats((channels, rng.randint(1, 4), *kernel), 0.5))
    filters = m.constants[weights].shape[1] * groups
    bias = m.constant(m.floats((filters,))) if rng.random() < 0.5 else ""
    dilations = _maybe(rng, _some(rng, spatial, (1, 1, 2)))
    extra = [rng.randint(0, s - 1) for s in strides] if rng.random() < 0.4 else None
    edges = pads(rng, spatial, [k - 1 for k in kernel])
    return m.add(
        "ConvTranspose", f"{x} {weights} {bias}", group=groups, strides=strides, dilations=dilations, pads=edges,
        output_padding=extra,
    )  # fmt: skip


def pool(m: OnnxModel, x: str) -> str:
    """Pools with uneven pads, ceil mode, edges counted or not, dilation; and those over the whole image."""
    rng, dims = m.rng, m.dims(x)
    op = rng.choice(["MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool", "Global"])
    if op == "Global":
        return m.add(rng.choice(["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"]), x)
    kernel = list(dims[2:]) if rng.random() < 0.15 else [rng.randint(1, 4) for _ in dims[2:]]
    more = _windows(rng, dims, kernel, [k - 1 for k in kernel])
    more["kernel_shape"] = kernel
    if op == "MaxPool":
        more["ceil_mode"] = rng.choice([None, 0, 1])
    elif op == "AveragePool":
        more |= {"ceil_mode": rng.choice([None, 0, 1]), "count_include_pad": rng.choice([None, 0, 1])}
        if rng.random() < 0.7:
            more.pop("dilations")
    else:
        more.pop("dilations")
        more["p"] = rng.choice([1, 2])
    if "auto_pad" in more:
        more.pop("dilations", None)  # ONNX Runtime forgets them when it pads by itself; the standard does not
    if more.get("dilations") and op == "AveragePool":
        m.opset = 19
    return m.add(op, x, **more)


def matmul(m: OnnxModel, x: str) -> str:
    """MatMul of any ranks, with broadcast batches."""
    rng, dims = m.rng, m.dims(x)
    batch = [d if rng.random() < 0.6 else 1 for d in dims[rng.randint(0, max(len(dims) - 2, 0)) : -2]]
    kind = rng.random()
    if kind < 0.15:
        other = (dims[-1],)
    elif kind < 0.6:
        other = (dims[-1], rng.randint(1, 20))
    else:
        other = (*batch, dims[-1], rng.randint(1, 9))
    right = m.operand(m.floats(other, 0.5))
    if rng.random() < 0.2 and len(dims) > 1:
        left = m.operand(m.floats((*dims[:-2], rng.randint(1, 5), dims[-2]), 0.5))
        return m.add("MatMul", f"{left} {x}")
    return m.add("MatMul", f"{x} {right}")


def gemm(m: OnnxModel, x: str) -> str:
    """Gemm with both transpositions, factors, and every way to broadcast C."""
    rng, (rows, columns) = m.rng, m.dims(x)
    turn, flip = rng.randrange(2), rng.randrange(2)
    if turn:
        rows, columns = columns, rows
    width = rng.randint(1, 20)
    right = m.operand(m.floats((width, columns) if flip else (columns, width), 0.5))
    shape = rng.choice([None, (width,), (1, width), (rows, 1), (rows, width), (1,), ()])
    bias = "" if shape is None else m.operand(m.floats(shape))
    alpha, beta = rng.choice([None, 0.5, -2.0]), rng.choice([None, 1.5])
    return m.add("Gemm", f"{x} {right} {bias}", transA=turn, transB=flip, alpha=alpha, beta=beta)


def _partner(m: OnnxModel, dims: Dims) -> Dims:
    """A shape that broadcasts with this one, lower, equal or higher in rank."""
    rng = m.rng
    shape = [d if rng.random() < 0.6 else 1 for d in dims[rng.randint(0, len(dims)) :]]
    if len(dims) < 4 and rng.random() < 0.15:
        shape = [rng.randint(1, 3), *[1 if rng.random() < 0.5 else d for d in dims]]
    return tuple(shape) if rng.random() < 0.85 else dims


def binary(m: OnnxModel, x: str) -> str:
    """Arithmetic of two operands with broadcasting, either first, of floats."""
    rng, dims = m.rng, m.dims(x)
    op = rng.choice(_BINARY)
    array = m.floats(_partner(m, dims))
    if op in ("Div", "Mod"):
        array = np.sign(array + np.float32(1e-6)) * (np.abs(array) + np.float32(0.5))
    if op == "Pow":
        base = m.add("Abs", x)
        exponent = rng.choice([array, *(np.float32(p) for p in (0.5, 1, 2, 3, -1, -0.5))])
        return m.add("Pow", f"{base} {m.operand(exponent)}")
    if op == "PRelu":
        own = tuple(d if rng.random() < 0.6 else 1 for d in dims[rng.randint(0, len(dims)) :])
        return m.add("PRelu", f"{x} {m.operand(m.floats(own))}")
    other = x if rng.random() < 0.05 and op not in ("Div", "Mod") else m.operand(array)
    attributes = {"fmod": 1} if op == "Mod" else {}
    swapped = rng.random() < 0.3 and op not in ("Div", "Mod")
    return m.add(op, f"{other} {x}" if swapped else f"{x} {other}", **attributes)


def integers(m: OnnxModel, x: str) -> str:
    """Arithmetic, comparison and logic of integers and booleans with broadcasting."""
    rng, dims = m.rng, m.dims(x)
    dtype = rng.choice([np.int32, np.int64])
    left = m.input(m.numbers.integers(-40, 40, dims).astype(dtype))
    shape = _partner(m, dims)
    right = m.numbers.integers(-40, 40, shape).astype(dtype)
    op = rng.choice(_INTEGER)
    if op in ("And", "Xor"):
        left, other = m.input(m.numbers.random(dims) < 0.5), m.operand(m.numbers.random(shape) < 0.5)
        return m.add(op, f"{left} {other}")
    if op in ("Neg", "Abs"):
        return m.add(op, left)
    if op == "Sum":
        rank = max(len(dims), len(shape))
        axes = sorted(rng.sample(range(len(dims)), rng.randint(1, len(dims)))) if rank and dims else []
        return m.add("ReduceSum", f"{left} {m.ints(*axes)}", keepdims=rng.randrange(2))
    if op in ("Div", "Mod"):
        right = np.where(right == 0, 3, right).astype(dtype)
    return m.add(op, f"{left} {m.operand(right)}")


def unary(m: OnnxModel, x: str) -> str:
    """Functions of one element."""
    rng = m.rng
    op = rng.choice(_UNARY)
    alphas = {"Elu": 0.7, "LeakyRelu": rng.choice([0.01, 0.3, 1.5, -0.2]), "Celu": 0.6, "ThresholdedRelu": 0.4}
    if op == "Clip":
        low, high = (m.constant(np.float32(v)) if rng.random() < 0.7 else "-" for v in (-0.5, 0.8))
        return m.add("Clip", f"{x} {low} {high}")
    if op in ("Sqrt", "Log", "Reciprocal"):
        x = m.add("Add", f"{m.add('Abs', x)} {m.constant(np.float32(0.1))}")
    if op == "Mish":
        m.opset = 18
    if op == "HardSigmoid":
        return m.add(op, x, alpha=rng.choice([None, 0.3]), beta=rng.choice([None, 0.4]))
    return m.add(op, x, alpha=alphas.get(op))


def reduce(m: OnnxModel, x: str) -> str:
    """Reductions over any axes, kept or not."""
    rng, rank = m.rng, len(m.dims(x))
    op = rng.choice(_REDUCTIONS)
    axes = rng.sample(range(rank), rng.randint(1, rank)) if rank else []
    axes = [a - rank if rng.random() < 0.3 else a for a in axes]
    keep = rng.randrange(2)
    if op == "Sum":
        empty = rng.random() < 0.1
        noop = rng.choice([None, 1]) if empty else None
        return m.add("ReduceSum", x if empty else f"{x} {m.ints(*axes)}", keepdims=keep, noop_with_empty_axes=noop)
    return m.add(f"Reduce{op}", x, axes=axes if rng.random() < 0.9 else None, keepdims=keep)


def order(m: OnnxModel, x: str) -> str:
    """Operations that look for places: ArgMax, TopK, CumSum."""
    rng, dims = m.rng, m.dims(x)
    axis = rng.randrange(-len(dims), len(dims))
    op = rng.choice(["ArgMax", "ArgMin", "TopK", "CumSum", "Hardmax"])
    if op == "TopK":
        count = rng.randint(1, dims[axis])
        return m.add("TopK", f"{x} {m.ints(count)}", 2, axis=axis, largest=rng.randrange(2))
    if op == "CumSum":
        place = m.constant(np.int64(axis))
        return m.add("CumSum", f"{x} {place}", exclusive=rng.randrange(2), reverse=rng.randrange(2))
    if op == "Hardmax":
        return m.add("Hardmax", x, axis=axis)
    return m.add(op, x, axis=axis, keepdims=rng.randrange(2))


def _check_spread(m: OnnxModel, x: str) -> None:
    """Refuse numbers so alike, or so small, that a norm would show little but their rounding."""
    value = m.value(x)
    trailing = tuple(range(min(2, value.ndim - 1), value.ndim))
    if value.size and min(value.std(axis=trailing).min(), np.abs(value).max()) < 1e-2:
        raise Refused("hardly any spread")


def norm(m: OnnxModel, x: str) -> str:
    """Softmax and normalisations along any axis, with logits of any size."""
    rng, dims = m.rng, m.dims(x)
    rank = len(dims)
    axis = rng.randrange(-rank, rank)
    choices = ["Softmax", "Softmax", "LogSoftmax", "LayerNormalization", "LpNormalization"]
    if rank >= 3:
        choices += ["InstanceNormalization", "BatchNormalization", "LRN", "GroupNormalization"]
    op = rng.choice(choices)
    if op in ("Softmax", "LogSoftmax"):
        if m.exact:
            x = m.add("Mul", f"{x} {m.constant(np.float32(rng.choice([1, 30, 300])))}")
        return m.add(op, x, axis=axis)
    _check_spread(m, x)
    if op == "LayerNormalization":
        shape = dims[axis:]
        shift = m.constant(m.floats(shape)) if rng.random() < 0.5 else ""
        epsilon = rng.choice([None, 1e-3])
        return m.add(op, f"{x} {m.constant(m.floats(shape))} {shift}", axis=axis, epsilon=epsilon)
    if op == "LpNormalization":
        return m.add(op, x, axis=axis, p=rng.choice([1, 2]))
    scale, shift, mean, variance = (m.constant(m.floats((dims[1],))) for _ in range(4))
    if op == "InstanceNormalization":
        if np.prod(dims[2:]) == 1:
            raise Refused("ONNX Runtime takes the difference of large numbers where the deviation is 0")
        return m.add(op, f"{x} {scale} {shift}")
    if op == "LRN":
        return m.add(op, x, size=rng.choice([1, 3, 5]), alpha=0.3, beta=0.6, bias=1.5)
    if op == "GroupNormalization":
        m.opset = 21
        groups = rng.choice([g for g in range(1, dims[1] + 1) if dims[1] % g == 0])
        return m.add(op, f"{x} {scale} {shift}", num_groups=groups)
    m.constants[variance] = np.abs(m.constants[variance]) + np.float32(0.1)
    return m.add(op, f"{x} {scale} {shift} {mean} {variance}")


def _unchanged(sizes: Sequence[int], scales: Sequence[float]) -> bool:
    return all(int(size * scale) == size for size, scale in zip(sizes, scales, strict=True))


def resize(m: OnnxModel, x: str) -> str:
    """Resize in every mode that images take, by scales and by sizes."""
    rng, dims = m.rng, m.dims(x)
    mode = rng.choice(["nearest", "linear", "linear", "cubic"])
    places = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    more = {
        "mode": mode,
        "coordinate_transformation_mode": rng.choice([None, *places]),
        "nearest_mode": rng.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
        if mode == "nearest" else None,
        "cubic_coeff_a": rng.choice([None, -0.5]) if mode == "cubic" else None,
        "exclude_outside": rng.choice([None, 1]) if mode == "cubic" else None,
    }  # fmt: skip
    spatial = dims[2:]
    if rng.random() < 0.5:
        scales = [rng.choice([1.0, 2.0, 0.5, 1.5, 0.7, 1.3, 3.0]) for _ in spatial]
        whole = all((size * scale).is_integer() for size, scale in zip(spatial, scales, strict=True))
        if mode == "nearest":
            scales = [rng.choice([2.0, 0.5, 1.5, 0.75, 3.0]) for _ in spatial]  # no ties that rounding of 1.3 decides
            whole = all((size * scale).is_integer() for size, scale in zip(spatial, scales, strict=True))
        if not whole and _unchanged(spatial, scales):
            # ONNX Runtime copies what keeps its size, whatever the scale.
            scales = [2.0 for _ in spatial]
        operands = f"{x} - {m.constant(np.array([1.0, 1.0, *scales], np.float32))}"
    else:
        sizes = [rng.randint(1, 9) for _ in spatial]
        if mode == "nearest":
            sizes = [rng.choice([d, 2 * d, 4 * d, d // 2 if d % 2 == 0 else d]) for d in spatial]
        operands = f"{x} - - {m.ints(*dims[:2], *sizes)}"
    return m.add("Resize", operands, **more)


def pad(m: OnnxModel, x: str) -> str:
    """Pad in every mode, with crops among the amounts."""
    rng, dims = m.rng, m.dims(x)
    mode = rng.choice([None, "constant", "reflect", "edge"])
    low = -1 if rng.random() < 0.3 else 0
    amounts = []
    for _ in range(2):
        for size in dims:
            most = size - 1 if mode == "reflect" else 3
            amounts.append(rng.randint(low if size > 2 else 0, max(0, min(most, 3))) if rng.random() < 0.6 else 0)
    fill = m.constant(np.float32(1.5)) if mode in (None, "constant") and rng.random() < 0.5 else ""
    return m.add("Pad", f"{x} {m.ints(*amounts)} {fill}", mode=mode)


def cut(m: OnnxModel, x: str) -> str:
    """Slice with steps of either sign and ends beyond the edges."""
    rng, dims = m.rng, m.dims(x)
    axes = rng.sample(range(len(dims)), rng.randint(1, len(dims)))
    starts, ends, steps = [], [], []
    for axis in axes:
        size, step = dims[axis], rng.choice([1, 1, 2, 3, -1, -2])
        count = rng.randint(1, -(-size // abs(step)))
        first = rng.randint(0, size - 1 - (count - 1) * abs(step))
        last = first + (count - 1) * abs(step)
        start, end = (first, last + 1) if step > 0 else (last, first - 1)
        if step > 0 and end == size and rng.random() < 0.3:
            end = 1 << 40
        if end < 0:
            end = -(1 << 40)
        starts.append(start - size if rng.random() < 0.3 else start)
        ends.append(end)
        steps.append(step)
    operands = [m.ints(*starts), m.ints(*ends), m.ints(*axes), m.ints(*steps)]
    return m.add("Slice", f"{x} {' '.join(operands)}")


def join(m: OnnxModel, x: str) -> str:
    """Concat of inputs, constants and the value itself."""
    rng, dims = m.rng, m.dims(x)
    axis = rng.randrange(len(dims))
    parts = [x]
    for _ in range(rng.randint(0, 3)):
        other = (*dims[:axis], rng.randint(1, 3), *dims[axis + 1 :])
        parts.append(x if rng.random() < 0.3 else m.operand(m.floats(other)))
    rng.shuffle(parts)
    return m.add("Concat", " ".join(parts), axis=axis - len(dims) if rng.random() < 0.3 else axis)


def split(m: OnnxModel, x: str) -> str:
    """Split into uneven parts; all are outputs."""
    rng, dims = m.rng, m.dims(x)
    axis = rng.randrange(len(dims))
    size, lengths = dims[axis], []
    while size and len(lengths) < 3:
        lengths.append(rng.randint(1, size))
        size -= lengths[-1]
    if size:
        lengths.append(size)
    return m.add("Split", f"{x} {m.ints(*lengths)}", len(lengths), axis=axis)


def transpose(m: OnnxModel, x: str) -> str:
    """Any order of axes."""
    rank = len(m.dims(x))
    return m.add("Transpose", x, perm=m.rng.sample(range(rank), rank))


def gather(m: OnnxModel, x: str) -> str:
    """Gather, GatherElements and GatherND with constant and computed indices, some from the end."""
    rng, dims = m.rng, m.dims(x)
    axis = rng.randrange(len(dims))
    op = rng.choice(["Gather", "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"])
    if op == "Gather":
        shape = rng.choice([(), (1,), (3,), (2, 2)])
        if rng.random() < 0.25:
            first = rng.randrange(dims[axis])
            indices = np.arange(first, dims[axis])
        else:
            indices = m.numbers.integers(-dims[axis], dims[axis], shape)
        return m.add(op, f"{x} {m.operand(np.asarray(indices, np.int64))}", axis=axis)
    if op in ("GatherElements", "ScatterElements"):
        shape = tuple(rng.randint(1, d) for d in dims)
        # A place must not be written twice.
        picks = np.argsort(m.numbers.random((*shape[:axis], dims[axis], *shape[axis + 1 :])), axis=axis)
        picks = np.take(picks, range(shape[axis]), axis=axis).astype(np.int64)
        if op == "GatherElements":
            return m.add(op, f"{x} {m.operand(picks)}", axis=axis)
        return m.add(op, f"{x} {m.operand(picks)} {m.operand(m.floats(shape))}", axis=axis)
    depth = rng.randint(1, len(dims))
    flat = m.numbers.permutation(int(np.prod(dims[:depth])))[: rng.randint(1, 4)]
    places = np.stack(np.unravel_index(flat, dims[:depth]), axis=1).astype(np.int64)
    if op == "GatherND":
        return m.add(op, f"{x} {m.operand(places)}")
    updates = m.floats((len(flat), *dims[depth:]))
    return m.add(op, f"{x} {m.operand(places)} {m.operand(updates)}")


def reshape(m: OnnxModel, x: str) -> str:
    """Operations that see the same elements in other dimensions, and those that repeat or interleave them."""
    rng, dims = m.rng, m.dims(x)
    rank = len(dims)
    choices = ["Reshape", "Flatten", "Unsqueeze", "Expand", "Tile"] + (["Squeeze"] if 1 in dims else [])
    if rank == 4:
        choices += ["DepthToSpace", "SpaceToDepth"]
    op = rng.choice(choices)
    if op == "Reshape":
        order = list(dims)
        rng.shuffle(order)
        at = rng.randrange(rank)
        order[at] = -1
        return m.add(op, f"{x} {m.ints(*order)}")
    if op == "Flatten":
        return m.add(op, x, axis=rng.randint(-rank, rank))
    if op == "Unsqueeze":
        count = rng.randint(1, 2)
        return m.add(op, f"{x} {m.ints(*sorted(rng.sample(range(rank + count), count)))}")
    if op == "Squeeze":
        return m.add(op, f"{x} {m.ints(dims.index(1))}")
    if op == "Expand":
        shape = [rng.randint(2, 3) if d == 1 else rng.choice([1, d]) for d in dims]
        return m.add(op, f"{x} {m.ints(*[2] * rng.randint(0, 1), *shape)}")
    if op == "Tile":
        return m.add(op, f"{x} {m.ints(*(rng.choice([1, 1, 2, 3]) for _ in dims))}")
    if op == "DepthToSpace":
        block = rng.choice([b for b in (1, 2, 3) if dims[1] % (b * b) == 0])
        return m.add(op, x, blocksize=block, mode=rng.choice([None, "DCR", "CRD"]))
    return m.add(op, x, blocksize=rng.choice([b for b in (1, 2, 3) if dims[2] % b == 0 and dims[3] % b == 0]))


def choose(m: OnnxModel, x: str) -> str:
    """Add a Where or a Cast."""
    rng, dims = m.rng, m.dims(x)
    if rng.random() < 0.3:
        goal = rng.choice([6, 7, 9])
        inner = m.add("Cast", m.add("Mul", f"{x} {m.constant(np.float32(9))}"), to=goal)
        return m.add("Cast", inner, to=1) if rng.random() < 0.5 else inner
    mask = m.operand(m.numbers.random(_partner(m, dims)) < 0.5)
    other = m.operand(m.floats(_partner(m, dims)))
    return m.add("Where", f"{mask} {x} {other}" if rng.random() < 0.5 else f"{mask} {other} {x}")


def recurrent(m: OnnxModel, x: str) -> str:
    """LSTM, GRU and RNN in either direction or both, with and without bias, initial state, peepholes."""
    rng, (_, batch, width) = m.rng, m.dims(x)
    op, gates = rng.choice([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    direction = rng.choice(["forward", "reverse", "bidirectional"])
    ways, hidden = 2 if direction == "bidirectional" else 1, rng.choice([1, 3, 5, 8])
    operands = [x, m.constant(m.floats((ways, gates * hidden, width), 0.5))]
    operands.append(m.constant(m.floats((ways, gates * hidden, hidden), 0.5)))
    operands.append(m.constant(m.floats((ways, 2 * gates * hidden), 0.5)) if rng.random() < 0.7 else "-")
    operands.append("-")
    if rng.random() < 0.5:
        operands.append(m.operand(m.floats((ways, batch, hidden))))
        if op == "LSTM":
            operands.append(m.operand(m.floats((ways, batch, hidden))))
    more = {"linear_before_reset": rng.randrange(2)} if op == "GRU" else {}
    outputs = 3 if op == "LSTM" else 2
    return m.add(op, " ".join(operands), outputs, hidden_size=hidden, direction=direction, **more)


def einsum(m: OnnxModel, x: str) -> str:
    """Einsum of two operands over the last axes."""
    rng, dims = m.rng, m.dims(x)
    if len(dims) < 3:
        raise Refused("too few axes")
    letters = "abcdefg"[: len(dims)]
    kept = [c for c in letters if rng.random() < 0.7]
    other = "".join(rng.sample(kept, min(len(kept), rng.randint(1, 2)))) + "z" if kept else "z"
    shape = [3 if c == "z" else dims[letters.index(c)] for c in other]
    result = list(dict.fromkeys([c for c in (*letters, *other) if rng.random() < 0.6]))
    rng.shuffle(result)
    return m.add("Einsum", f"{x} {m.operand(m.floats(shape))}", equation=f"{letters},{other}->{''.join(result)}")


FAMILIES: dict[str, tuple[tuple[int, ...], Add]] = {
    "conv": ((3, 4, 4, 4, 5), conv),
    "conv_transpose": ((3, 4, 4, 5), conv_transpose),
    "pool": ((3, 4, 4, 5), pool),
    "matmul": ((1, 2, 3, 4), matmul),
    "gemm": ((2,), gemm),
    "binary": ((0, 1, 2, 3, 4), binary),
    "integers": ((1, 2, 3), integers),
    "unary": ((1, 3), unary),
    "reduce": ((1, 2, 3, 4), reduce),
    "order": ((1, 2, 3), order),
    "norm": ((1, 2, 3, 4), norm),
    "resize": ((4,), resize),
    "pad": ((1, 2, 3, 4), pad),
    "slice": ((1, 2, 3, 4), cut),
    "concat": ((1, 2, 3, 4), join),
    "split": ((1, 2, 3), split),
    "transpose": ((2, 3, 4, 5), transpose),
    "gather": ((1, 2, 3), gather),
    "reshape": ((1, 2, 3, 4), reshape),
    "choose": ((1, 2, 3), choose),
    "recurrent": ((3,), recurrent),
    "einsum": ((3, 4), einsum),
}
"""Ranks that an operation's operand may have, and the operation, by the name of its kind."""

CHAINED = [name for name in FAMILIES if name not in ("integers", "order", "einsum")]


def first_dims(rng: Random, rank: int) -> Dims:
    """Small dimensions, with ones among them."""
    return tuple(rng.choice([1, 2, 3, 4, 5, 6, 8, 9]) for _ in range(rank))


def single(rng: Random, family: str) -> OnnxModel:
    """A model of one operation."""
    m = OnnxModel(rng)
    ranks, add = FAMILIES[family]
    x = m.input(m.floats(first_dims(rng, rng.choice(ranks))))
    add(m, x)
    return m


def _check_numbers(m: OnnxModel, x: str) -> None:
    value = m.value(x)
    if value.dtype == np.float32 and value.size and not np.abs(value).max() < 1e4:
        raise Refused("numbers that grow out of all proportion")
    if any(step.op_type in _STEEP for step in m.nodes[1:]):
        raise Refused("a function that makes much of small errors")


def chain(rng: Random, length: int) -> OnnxModel:
    """A model of several operations, each on the first result of the one before; results in between may be outputs."""
    m = OnnxModel(rng)
    x = m.input(m.floats(first_dims(rng, rng.choice([3, 4, 4, 4]))))
    for _ in range(length):
        dims = m.dims(x)
        if m.value(x).dtype != np.float32 or not m.value(x).size or m.value(x).size > 20000:
            break
        fitting = [name for name in CHAINED if len(dims) in FAMILIES[name][0]]
        if not fitting:
            break
        x = FAMILIES[rng.choice(fitting)][1](m, x)
        if rng.random() < 0.15:
            x = m.add("Relu", x) if m.value(x).dtype == np.float32 else x
        _check_numbers(m, x)
    return m
