"""Operations that give random numbers: Philox 4x32, whose numbers are the same on every processor.

Element i of execution n of a graph depends only on the seed, n and i. An execution continues the sequence; a new graph
begins it again. Without a seed, each node has a sequence of its own.

Functions of a `Call` are the rules of operations: they check the call and return the dimensions of its outputs.
"""

from __future__ import annotations

from zlib import crc32

from isthmus.graph.datatypes import FLOATS, INDICES, REALS, DataType
from isthmus.graph.operation import Call, Dims, Operation, optional, own
from isthmus.graph.traits import Traits


def _random_like(call: Call) -> list[Dims]:
    """Check the shape in[0] and the seed in[1]; in[2] is the number of the execution, which preparation adds."""
    shape, out = call.tensor(0), call.declared_dims()
    call.rank(0, 1)
    if shape.dims[0] != len(out) or (shape.data is not None and tuple(map(int, shape.data)) != out):
        call.refuse(f"out[0] {list(out)} must have the dimensions that in[0] {shape.describe()} lists")
    for index in (1, 2):
        number = call.given(index)
        if number is not None and number.elements != 1:
            call.refuse(f"in[{index}] {number.describe()} must be one number")
    if call.params["random_stream"] is None:
        call.params["random_stream"] = crc32(call.node.encode()) if call.given(1) is None else 0
    return [out]


_INPUTS = {0: INDICES, 1: FLOATS, 2: (DataType.INT_32,)}
_STREAM = own("random_stream", "u32", None)
"""The sequence of numbers that belongs to a seed; nodes without a seed have different ones."""

OPERATIONS = (
    Operation(
        "RandomNormalLike",
        (1, 3),
        (1, 1),
        (optional("mean", "f32", 0.0), optional("scale", "f32", 1.0), _STREAM),
        _random_like,
        _INPUTS,
        {0: REALS},
        traits=Traits(varies=True),
    ),
    Operation(
        "RandomUniformLike",
        (1, 3),
        (1, 1),
        (optional("low", "f32", 0.0), optional("high", "f32", 1.0), _STREAM),
        _random_like,
        _INPUTS,
        {0: REALS},
        traits=Traits(varies=True),
    ),
)
