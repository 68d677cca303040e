"""Compositions of operations on signals."""

from __future__ import annotations

import numpy as np

from isthmus.graph import Tensor
from isthmus.graph.evaluation.signal import hadamard
from isthmus.graph.ops.signal import NON_BLOCKING_RIGHT
from isthmus.prepare.compositions.composer import INTEGER, Composition, StepComposer

# The largest matrix of a Hadamard transform; a longer one is the product of two.
_MAX_HADAMARD = 64


def _buffer(c: StepComposer) -> list[Tensor]:
    """Shift the frames that a state keeps, append the new ones, and move those that count to their end of the buffer.

    The newest frame is always the last of the state. A second state counts the frames. A frame of zeros behind the
    buffer is read where there is no frame yet.
    """
    x, axis, size = c.movable(0), c.params["buffer_dim"], c.params["buffer_size"]
    frames = x.dims[axis]
    ring = c.work.add_state(f"{c.step.name}.frames", c.outputs[0].dims, x)
    count = _count(c, frames, size)
    newest = x if frames == size else c("Concat", c.slice(ring, axis, frames, size), x, axis=axis)
    c.work.updates[ring] = newest
    position = c.constant(np.arange(size), INTEGER)
    missing = c("ElementWiseSubtract", c.constant([size], INTEGER), count)
    if c.params["mode"] == NON_BLOCKING_RIGHT:
        source, there = position, c("ElementWiseGreaterEqual", position, missing)
    else:
        source, there = c("ElementWiseAdd", position, missing), c("ElementWiseLess", position, count)
    source = c("ElementWiseSelect", there, source, c.constant([size], INTEGER))
    empty = c.zeros([1 if a == axis else d for a, d in enumerate(x.dims)], x)
    return [c("Gather", c("Concat", newest, empty, axis=axis), source, axis=axis)]


def _count(c: StepComposer, frames: int, size: int) -> Tensor:
    """Return the number of frames in the buffer after `frames` new ones, and keep it in a state."""
    # A full buffer drops `stride` frames before it takes new ones, or more if they would not fit otherwise.
    state = c.work.add_state(f"{c.step.name}.count", [1], c.constant([0], INTEGER))
    before: Tensor = state
    if c.given(1) is not None:
        before = c("ElementWiseSelect", c.reshape(c.input(1), 1), c.constant([0], INTEGER), before)
    room = c.constant([size - frames], INTEGER)
    fewer = c("ElementWiseSubtract", before, c.constant([c.params["stride"]], INTEGER))
    fewer = c("ElementWiseMaximum", fewer, c.constant([0], INTEGER))
    before = c("ElementWiseSelect", c("ElementWiseGreater", before, room), fewer, before)
    after = c("ElementWiseAdd", c("ElementWiseMinimum", before, room), c.constant([frames], INTEGER))
    c.work.updates[state] = after
    return after


def _stft(c: StepComposer) -> list[Tensor]:
    """Multiply frames of the signal by a matrix of cosines and sines."""
    x, length = c.real(0), c.params["frame_length"]
    batch, _, parts = x.dims
    _, count, bins, _ = c.outputs[0].dims
    starts = np.arange(count) * c.params["frame_step"]
    frames = c("Gather", x, c.constant(starts[:, None] + np.arange(length), INTEGER), axis=1)
    if c.given(1) is not None:
        frames = c("ElementWiseMultiply", frames, c.reshape(c.real(1), length, 1))
    # The product of sample and frequency, reduced to one turn before it becomes an angle, keeps all digits.
    angles = np.outer(np.arange(length), np.arange(bins)) % length * (2 * np.pi / length)
    real, imaginary = np.cos(angles), -np.sin(angles)
    matrix = np.stack([real, imaginary], -1)
    if parts == 2:
        matrix = np.stack([matrix, np.stack([-imaginary, real], -1)], 1)
    rows = c.reshape(frames, batch * count, length * parts)
    return [c.reshape(c("MatMul", rows, c.constant(matrix.reshape(length * parts, bins * 2))), *c.outputs[0].dims)]


def _hadamard_transform(c: StepComposer) -> list[Tensor]:
    """Multiply by Sylvester's matrix. For m * n elements, the rows and then the columns of [m, n] are transformed."""
    x = c.real(0)
    size, count = x.dims[-1], x.elements // x.dims[-1]
    columns = min(size, _MAX_HADAMARD)
    scale = float(np.float32(c.params["scale"])) / np.sqrt(size)
    result = c("MatMul", c.reshape(x, count, size // columns, columns), c.constant(hadamard(columns) * scale))
    rows = size // columns
    while rows > 1:
        # Transform one more axis, of at most the largest matrix, before the axes that are transformed already.
        part = min(rows, _MAX_HADAMARD)
        rows //= part
        result = c.reshape(result, count * rows, part, size // (rows * part))
        result = c("MatMul", c.constant(hadamard(part)), result)
    return [c.reshape(result, *x.dims)]


COMPOSITIONS: dict[str, Composition] = {"Buffer": _buffer, "Stft": _stft, "HadamardTransform": _hadamard_transform}
