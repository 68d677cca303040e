"""Random chains of operators that move, cut, join and compute: whatever order data is stored in, answers are right."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from onnx import NodeProto

from frontends.onnx.graphs import check, floats, model, node

Dims = tuple[int, ...]


@dataclass
class Chain:
    """A model under construction: the nodes so far and the dimensions of every value."""

    rng: random.Random
    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    values: dict[str, Dims] = field(default_factory=dict)

    def constant(self, array: np.ndarray) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = array
        return name

    def weights(self, *dims: int) -> str:
        seed = self.rng.randrange(1 << 30)
        return self.constant(np.random.default_rng(seed).standard_normal(dims).astype(np.float32) * 0.5)

    def ints(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def add(self, op: str, inputs: str, dims: Dims, **attributes: object) -> None:
        name = f"v{len(self.values)}"
        self.nodes.append(node(op, inputs, name, **attributes))
        self.values[name] = dims


def _transpose(chain: Chain, x: str, dims: Dims) -> None:
    perm = chain.rng.sample(range(len(dims)), len(dims))
    chain.add("Transpose", x, tuple(dims[p] for p in perm), perm=perm)


def _merge(chain: Chain, x: str, dims: Dims) -> None:
    if len(dims) > 1:
        axis = chain.rng.randrange(len(dims) - 1)
        out = (*dims[:axis], dims[axis] * dims[axis + 1], *dims[axis + 2 :])
        chain.add("Reshape", f"{x} {chain.ints(*out)}", out)


def _divide(chain: Chain, x: str, dims: Dims) -> None:
    axes = [axis for axis, size in enumerate(dims) if size % 2 == 0 and len(dims) < 5]
    if axes:
        axis = chain.rng.choice(axes)
        out = (*dims[:axis], 2, dims[axis] // 2, *dims[axis + 1 :])
        chain.add("Reshape", f"{x} {chain.ints(*out)}", out)


def _unsqueeze(chain: Chain, x: str, dims: Dims) -> None:
    if len(dims) < 5:
        axis = chain.rng.randrange(len(dims) + 1)
        chain.add("Unsqueeze", f"{x} {chain.ints(axis)}", (*dims[:axis], 1, *dims[axis:]))


def _squeeze(chain: Chain, x: str, dims: Dims) -> None:
    if 1 in dims and len(dims) > 1:
        axis = dims.index(1)
        chain.add("Squeeze", f"{x} {chain.ints(axis)}", (*dims[:axis], *dims[axis + 1 :]))


def _broadcast(chain: Chain, x: str, dims: Dims) -> None:
    kept = dims[chain.rng.randrange(len(dims)) :]
    shape = tuple(d if chain.rng.random() < 0.6 else 1 for d in kept)
    chain.add(chain.rng.choice(["Add", "Mul", "Sub"]), f"{x} {chain.weights(*shape)}", dims)


def _combine(chain: Chain, x: str, dims: Dims) -> None:
    others = [name for name, other in chain.values.items() if other == dims]
    chain.add(chain.rng.choice(["Add", "Max"]), f"{chain.rng.choice(others)} {x}", dims)


def _combine_transposed(chain: Chain, x: str, dims: Dims) -> None:
    for other, shape in chain.values.items():
        if sorted(shape) == sorted(dims) and shape != dims:
            left = list(range(len(shape)))
            perm = []
            for size in dims:
                axis = next(a for a in left if shape[a] == size)
                left.remove(axis)
                perm.append(axis)
            chain.add("Transpose", other, dims, perm=perm)
            chain.add("Add", f"{x} v{len(chain.values) - 1}", dims)
            return


def _convolve(chain: Chain, x: str, dims: Dims) -> None:
    if len(dims) in (3, 4):
        kernel = (1,) * (len(dims) - 2)
        chain.add("Conv", f"{x} {chain.weights(4, dims[1], *kernel)}", (dims[0], 4, *dims[2:]))


def _reduce(chain: Chain, x: str, dims: Dims) -> None:
    if len(dims) > 2:
        axis, keep = chain.rng.randrange(len(dims)), chain.rng.randrange(2)
        out = tuple(1 if a == axis else d for a, d in enumerate(dims) if keep or a != axis)
        chain.add(chain.rng.choice(["ReduceMean", "ReduceMax"]), x, out, axes=[axis], keepdims=keep)


def _join(chain: Chain, x: str, dims: Dims) -> None:
    if np.prod(dims) < 400:
        axis = chain.rng.randrange(len(dims))
        chain.add("Concat", f"{x} {x}", tuple(d * (1 + (a == axis)) for a, d in enumerate(dims)), axis=axis)


def _cut(chain: Chain, x: str, dims: Dims) -> None:
    axis = chain.rng.randrange(len(dims))
    end = chain.rng.randrange(1, dims[axis] + 1)
    operands = " ".join((x, chain.ints(0), chain.ints(end), chain.ints(axis)))
    chain.add("Slice", operands, (*dims[:axis], end, *dims[axis + 1 :]))


def _gather(chain: Chain, x: str, dims: Dims) -> None:
    axis = chain.rng.randrange(len(dims))
    picks = [chain.rng.randrange(dims[axis]) for _ in range(3)]
    chain.add("Gather", f"{x} {chain.ints(*picks)}", (*dims[:axis], 3, *dims[axis + 1 :]), axis=axis)


def _softmax(chain: Chain, x: str, dims: Dims) -> None:
    chain.add("Softmax", x, dims, axis=chain.rng.randrange(len(dims)))


def _multiply(chain: Chain, x: str, dims: Dims) -> None:
    if len(dims) > 1:
        chain.add("MatMul", f"{x} {chain.weights(dims[-1], 3)}", (*dims[:-1], 3))


def _normalize(chain: Chain, x: str, dims: Dims) -> None:
    if len(dims) > 1:
        scale = chain.weights(*dims[-2:])
        chain.add("LayerNormalization", f"{x} {scale} {chain.weights(*dims[-2:])}", dims, axis=len(dims) - 2)


STEPS: tuple[Callable[[Chain, str, Dims], None], ...] = (
    _transpose, _transpose, _merge, _divide, _unsqueeze, _squeeze, _broadcast, _combine, _combine_transposed, _convolve,
    _reduce, _join, _cut, _gather, _softmax, _multiply, _normalize,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_random_chain(seed: int) -> None:
    chain = Chain(random.Random(seed), values={"x": (2, 3, 4, 6)})
    while len(chain.nodes) < 14:
        name = list(chain.values)[-1] if chain.rng.random() < 0.8 else chain.rng.choice(list(chain.values))
        chain.rng.choice(STEPS)(chain, name, chain.values[name])
    expected = " ".join(name for name in chain.values if name != "x")
    check(model(chain.nodes, {"x": floats(2, 3, 4, 6)}, expected, chain.constants), 1e-3)
