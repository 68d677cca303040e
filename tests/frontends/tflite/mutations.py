"""Ways to damage a TFLite file: in its bytes, and in what it says while its bytes stay well-formed."""

from __future__ import annotations

import random
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

NASTY_INTEGERS = (-(2**31), -2, -1, 0, 1, 2, 3, 5, 127, 255, 2**15, 2**24, 2**31 - 1)


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """A file cut short, or with a few bytes or words replaced."""
    damaged = bytearray(data)
    if rng.random() < 0.1:
        return bytes(damaged[: rng.randrange(len(damaged))])
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(damaged))
        if rng.random() < 0.5:
            damaged[at] ^= 1 << rng.randrange(8)
        else:
            word = rng.choice((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, rng.randrange(len(damaged)), len(damaged)))
            at = min(at & ~3, len(damaged) - 4)
            damaged[at : at + 4] = word.to_bytes(4, "little")
    return bytes(damaged)


def damaged_meaning(data: bytes, rng: random.Random) -> bytes:
    """A well-formed file in which a few numbers say something else."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data))
    for _ in range(rng.choice((1, 1, 2, 3))):
        _damage(model, rng)
    builder = flatbuffers.Builder(1024)
    try:
        builder.Finish(model.Pack(builder), b"TFL3")
    except Exception:  # some numbers do not fit their field; the file is then as it was
        return data
    return bytes(builder.Output())


def _damage(model: Any, rng: random.Random) -> None:
    subgraph = rng.choice(model.subgraphs)
    operator = rng.choice(subgraph.operators) if subgraph.operators else None
    tensor = rng.choice(subgraph.tensors)
    kind = rng.randrange(8)
    if kind == 0 and operator is not None and len(operator.inputs):
        _change(operator, "inputs", rng, len(subgraph.tensors))
    elif kind == 1 and operator is not None and len(operator.outputs):
        _change(operator, "outputs", rng, len(subgraph.tensors))
    elif kind == 2 and tensor.shape is not None and len(tensor.shape):
        _change(tensor, "shape", rng, 16)
    elif kind == 3:
        tensor.type = rng.randrange(23)
    elif kind == 4 and operator is not None and operator.builtinOptions is not None:
        fields = [name for name, value in vars(operator.builtinOptions).items() if isinstance(value, int)]
        if fields:
            setattr(operator.builtinOptions, rng.choice(fields), rng.choice((*NASTY_INTEGERS, True, False)))
    elif kind == 5:
        buffer = rng.choice(model.buffers)
        if buffer.data is not None and len(buffer.data) >= 4:
            contents = np.array(buffer.data, np.uint8)
            at = rng.randrange(len(contents) // 4) * 4
            number = rng.choice(NASTY_INTEGERS).to_bytes(4, "little", signed=True)
            contents[at : at + 4] = np.frombuffer(number, np.uint8)
            buffer.data = contents
    elif kind == 6 and tensor.quantization is not None and tensor.quantization.scale is not None:
        tensor.quantization.scale = rng.choice(([], [0.0], [float("nan")], [-1.0], [1.0, 2.0], [1e-38], [1e38]))
        tensor.quantization.quantizedDimension = rng.choice((-1, 0, 3, 9))
    else:
        code = rng.choice(model.operatorCodes)
        code.builtinCode = rng.randrange(210)


def _change(owner: Any, name: str, rng: random.Random, most: int) -> None:
    values = [int(v) for v in getattr(owner, name)]
    action = rng.randrange(3)
    if action == 0:
        values[rng.randrange(len(values))] = rng.choice((*NASTY_INTEGERS, rng.randrange(most)))
    elif action == 1:
        values.pop(rng.randrange(len(values)))
    else:
        values.append(rng.randrange(most))
    setattr(owner, name, values)
