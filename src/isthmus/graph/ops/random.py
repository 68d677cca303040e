"""Operations that give random numbers: Philox 4x32, whose numbers are the same on every processor.

Element i of execution n of a graph depends only on the seed, n and i. An execution continues the sequence; a new graph
begins it again. Without a seed, each node has a sequence of its own.
"""

from __future__ import annotations

from zlib import crc32

from isthmus.graph.datatypes import FLOATS, INDICES, REALS, DataType
from isthmus.graph.operation import Call, Dims, define, options, own
from isthmus.graph.traits import Traits


def _random_like(call: Call) -> list[Dims]:
    """Check the shape in[0] and the seed in[1]; in[2] is the number of the execution, which preparation adds."""
    shape, out = call.tensor(0), call.declared_dims()
    call.check_rank(0, 1)
    if shape.dims[0] != len(out) or (shape.data is not None and tuple(map(int, shape.data)) != out):
        call.refuse(f"out[0] {list(out)} must have the dimensions that in[0] {shape.describe()} lists")
    for index in (1, 2):
        number = call.optional(index)
        if number is not None and number.elements != 1:
            call.refuse(f"in[{index}] {number.describe()} must be one number")
    if call.params["random_stream"] is None:
        call.params["random_stream"] = crc32(call.node.encode()) if call.optional(1) is None else 0
    return [out]


# The sequence of numbers that belongs to a seed; nodes without a seed have different ones.
_STREAM = own("random_stream", "u32", None)

OPERATIONS = tuple(
    define(
        name,
        _random_like,
        *options("f32", **distribution),
        _STREAM,
        inputs=(1, 3),
        types=(INDICES, FLOATS, (DataType.INT_32,)),
        output_types={0: REALS},
        traits=Traits(varies=True),
    )
    for name, distribution in (
        ("RandomNormalLike", {"mean": 0.0, "scale": 1.0}),
        ("RandomUniformLike", {"low": 0.0, "high": 1.0}),
    )
)
