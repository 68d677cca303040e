"""Operations on signals: the buffer of a stream, the short-time Fourier transform, the Hadamard transform."""

from __future__ import annotations

from isthmus.graph.datatypes import FLOATS, REALS, DataType
from isthmus.graph.operation import Call, Dims, define, optional, options, required
from isthmus.graph.traits import Traits

BLOCKING, NON_BLOCKING_LEFT, NON_BLOCKING_RIGHT = range(3)
"""Values of Buffer's mode."""


def _buffer(call: Call) -> list[Dims]:
    """Check frames along axis buffer_dim; the result has the last buffer_size of all frames so far."""
    dims, axis = call.dims(0), call.axis("buffer_dim")
    size = call.number("buffer_size", least=1)
    call.number("stride", least=1, below=size + 1)
    call.number("mode", below=3)
    if not 1 <= dims[axis] <= size:
        call.refuse(f"in[0] has {dims[axis]} frames, the buffer has room for {size}")
    reset = call.optional(1)
    if reset is not None and reset.elements != 1:
        call.refuse(f"in[1] {reset.describe()} must be one boolean")
    return [(*dims[:axis], size, *dims[axis + 1 :])]


def _stft(call: Call) -> list[Dims]:
    """Check a signal [batch, samples, 1 or 2] (real or complex) and a window [frame_length]."""
    # The result is [batch, frames, frequencies, 2].
    call.check_rank(0, 3)
    batch, samples, parts = call.dims(0)
    window = call.optional(1)
    if call.params["frame_length"] is None and window is not None:
        call.params["frame_length"] = window.elements
    if call.params["frame_length"] is None:
        call.refuse("frame_length or a window must be given")
    length, step = call.number("frame_length", least=1), call.number("frame_step", least=1)
    call.check_dims(1, length)
    if parts not in (1, 2) or samples < length:
        call.refuse(f"in[0] {list(call.dims(0))} must be [batch, {length} samples or more, 1 or 2]")
    if parts == 2 and call.params["onesided"]:
        call.refuse("a complex signal has no one-sided transform")
    return [(batch, 1 + (samples - length) // step, length // 2 + 1 if call.params["onesided"] else length, 2)]


def _hadamard_transform(call: Call) -> list[Dims]:
    dims = call.dims(0)
    if not dims or dims[-1] < 1 or dims[-1] & (dims[-1] - 1):
        call.refuse(f"the last dimension of in[0] {list(dims)} must be a power of two")
    return [dims]


OPERATIONS = (
    define(
        "Buffer",
        _buffer,
        *required("u32", "buffer_size", "buffer_dim"),
        *options("u32", stride=1, mode=BLOCKING),
        inputs=(1, 2),
        types=(None, (DataType.BOOL_8,)),
        traits=Traits(varies=True),
    ),
    define(
        "Stft",
        _stft,
        *required("u32", "frame_step"),
        optional("frame_length", "u32"),
        optional("onesided", "bool", True),
        inputs=(1, 2),
        types=(FLOATS, FLOATS),
    ),
    define("HadamardTransform", _hadamard_transform, optional("scale", "f32", 1.0), types=(REALS,)),
)
