"""Mutated models are converted or refused with a QnnError; nothing else happens, and nothing large is allocated."""

from __future__ import annotations

import random
import resource
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from frontends.onnx.graphs import floats, model, node, subgraph
from isthmus.errors import QnnError
from isthmus.frontends.onnx import load

INTEGERS = (0, 1, -1, 2, 3, -2, 7, 100, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, 1.0, -1.0, 0.5, 1e30, float("nan"), float("inf"), float("-inf"))
RNG = np.random.default_rng(4)


def weights(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims).astype(np.float32)


IMAGE = model(
    [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1], strides=[2, 2], dilations=[1, 1], group=1),
        node("BatchNormalization", "c s t m v", "n", epsilon=1e-5),
        node("MaxPool", "n", "p", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        node("AveragePool", "p", "a", kernel_shape=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1),
        node("ConvTranspose", "a u", "d", strides=[2, 2], output_padding=[1, 1]),
        node("Resize", "d - - sizes", "r", mode="linear"),
        node("Pad", "r pads", "e", mode="reflect"),
        node("Slice", "e starts ends axes", "l"),
        node("Split", "l", "g h", axis=1),
        node("Concat", "h g", "j", axis=1),
        node("Transpose", "j", "k", perm=[0, 2, 3, 1]),
        node("Reshape", "k shape", "f"),
        node("Gemm", "f q", "y", transB=1, alpha=0.5),
    ],
    {"x": floats("n", 3, 16, 16)}, "y",
    {
        "w": weights(4, 3, 3, 3), "b": weights(4), "s": np.abs(weights(4)), "t": weights(4), "m": weights(4),
        "v": np.abs(weights(4)), "u": weights(4, 4, 3, 3), "sizes": np.int64([1, 4, 8, 8]),
        "pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1]), "starts": np.int64([1, 1]), "ends": np.int64([9, 9]),
        "axes": np.int64([2, 3]), "shape": np.int64([1, -1]), "q": weights(5, 256),
    },
)  # fmt: skip
SEQUENCE = model(
    [
        node("Gather", "table ids", "e"),
        node("LSTM", "e w r b", "o h c", hidden_size=4, direction="bidirectional"),
        node("GRU", "e2 w3 r3", "p", hidden_size=4, linear_before_reset=1),
        node("Transpose", "o", "o2", perm=[1, 0, 2, 3]),
        node("ReduceMean", "o2", "m", axes=[3], keepdims=0),
        node("Einsum", "o2 o2", "n", equation="abcd,abcd->ad"),
        node("Softmax", "m", "s", axis=1),
        node("TopK", "s k", "v i", axis=1),
        node("Identity", "p", "y2"),
        node("ScatterElements", "s i v", "y", axis=1),
    ],
    {"ids": (7, (5, 2)), "e2": floats(5, 2, 3)}, "y n y2",
    {
        "table": weights(10, 3), "w": weights(2, 16, 3), "r": weights(2, 16, 4), "b": weights(2, 32),
        "w3": weights(1, 12, 3), "r3": weights(1, 12, 4), "k": np.int64([2]),
    },
)  # fmt: skip
QUANTIZED = model(
    [
        node("QuantizeLinear", "x sx zx", "q"),
        node("QLinearConv", "q sx zx w sw zw sx zx b", "c"),
        node("DequantizeLinear", "c sx zx", "d"),
        node("Shape", "d", "s"),
        node("Gather", "s one", "n", axis=0),
        node("Range", "zero n step", "t"),
        node("ConstantOfShape", "s", "z"),
        node("Expand", "f s", "f2"),
        node("Add", "d z", "a"),
        node("Equal", "n four", "go"),
        node(
            "If", "go", "i",
            then_branch=subgraph([node("Relu", "a", "p")], outputs="p"),
            else_branch=subgraph([node("Neg", "a", "o")], outputs="o"),
        ),
        node("Mul", "i f2", "y"),
        node("Cast", "t", "y2", to=1),
    ],
    {"x": floats(1, 3, 5, 5)}, "y y2",
    {
        "sx": np.float32(0.1), "zx": np.uint8(3), "w": RNG.integers(-9, 9, (4, 3, 3, 3)).astype(np.int8),
        "sw": np.float32([0.1, 0.2, 0.1, 0.3]), "zw": np.zeros(4, np.int8), "b": np.int32([1, 2, 3, 4]),
        "one": np.int64(1), "zero": np.int64(0), "step": np.int64(1), "four": np.int64(4), "f": np.float32([2]),
    },
)  # fmt: skip
SEEDS = (IMAGE, SEQUENCE, QUANTIZED)
OPERATORS = sorted({step.op_type for seed in SEEDS for step in seed.graph.node})


@pytest.fixture(autouse=True)
def _memory_is_limited() -> Iterator[None]:
    """An allocation of more than a few gigabytes fails here instead of going unnoticed."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    # Of what other tests have mapped, much is address space only.
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (8 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def try_loading(data: bytes) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            load(data, "mutant")
        except QnnError:
            return False
    return True


@pytest.mark.parametrize("seed", SEEDS, ids=["image", "sequence", "quantized"])
def test_the_seeds_themselves_are_sound(seed: ModelProto) -> None:
    assert try_loading(seed.SerializeToString())


@pytest.mark.parametrize("number", range(4))
def test_flipped_cut_and_doubled_bytes(number: int) -> None:
    rng = random.Random(number)
    for _ in range(250):
        data = bytearray(rng.choice(SEEDS).SerializeToString())
        kind = rng.randrange(4)
        if kind == 0:
            del data[rng.randrange(len(data)) :]
        elif kind == 1:
            for _ in range(rng.randrange(1, 6)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif kind == 2:
            data[rng.randrange(len(data))] = rng.choice((0, 1, 127, 128, 255))
        else:
            start = rng.randrange(len(data))
            data[start:start] = data[start : start + rng.randrange(1, 60)]
        try_loading(bytes(data))


def mutate_attribute(rng: random.Random, made: ModelProto) -> None:
    step = rng.choice(made.graph.node)
    if not step.attribute:
        return
    attribute = rng.choice(step.attribute)
    if attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(INTEGERS)
    elif attribute.type == 2:
        attribute.i = rng.choice(INTEGERS)
    elif attribute.type == 1:
        attribute.f = rng.choice(FLOATS)
    else:
        attribute.type = rng.randrange(15)


def mutate_constant(rng: random.Random, made: ModelProto) -> None:
    tensor = rng.choice(made.graph.initializer)
    array: Any = numpy_helper.to_array(tensor).copy()
    number = rng.choice(FLOATS if array.dtype.kind == "f" else INTEGERS)
    array.reshape(-1)[rng.randrange(array.size)] = np.array(number).astype(array.dtype)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    if rng.random() < 0.3 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(INTEGERS)
    if rng.random() < 0.2:
        tensor.data_type = rng.randrange(24)


def mutate_names(rng: random.Random, made: ModelProto) -> None:
    step = rng.choice(made.graph.node)
    names = [name for other in made.graph.node for name in (*other.input, *other.output)]
    target = step.input if rng.random() < 0.7 else step.output
    if target:
        target[rng.randrange(len(target))] = rng.choice((*names, "", "nowhere"))


def mutate_operator(rng: random.Random, made: ModelProto) -> None:
    rng.choice(made.graph.node).op_type = rng.choice(OPERATORS)


def mutate_operands(rng: random.Random, made: ModelProto) -> None:
    step = rng.choice(made.graph.node)
    if rng.random() < 0.5:
        del step.input[rng.randrange(len(step.input))]
    elif step.attribute:
        del step.attribute[rng.randrange(len(step.attribute))]


def mutate_input(rng: random.Random, made: ModelProto) -> None:
    kind = rng.choice(made.graph.input).type.tensor_type
    if rng.random() < 0.2:
        kind.elem_type = rng.randrange(24)
    elif rng.random() < 0.2:
        kind.shape.dim.add().dim_value = rng.choice(INTEGERS)
    else:
        rng.choice(kind.shape.dim).dim_value = rng.choice(INTEGERS)


MUTATIONS = (mutate_attribute, mutate_constant, mutate_names, mutate_operator, mutate_operands, mutate_input)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_mutated_fields(mutation: Any) -> None:
    rng = random.Random(mutation.__name__)
    for _ in range(150):
        made = ModelProto()
        made.CopyFrom(rng.choice(SEEDS))
        mutation(rng, made)
        if rng.random() < 0.3:
            rng.choice(MUTATIONS)(rng, made)
        try_loading(made.SerializeToString())
