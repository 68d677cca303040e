"""Reference computations on signals."""

from __future__ import annotations

import numpy as np

from isthmus.graph.evaluation import Computation, Outputs, Params, Values, absent, wide
from isthmus.graph.ops.signal import NON_BLOCKING_RIGHT


def _buffer(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Return the buffer after the first execution: the frames of in[0], the rest is 0."""
    axis, frames = params["buffer_dim"], values[0].shape[params["buffer_dim"]]
    room = params["buffer_size"] - frames
    pads = [(0, 0)] * values[0].ndim
    pads[axis] = (room, 0) if params["mode"] == NON_BLOCKING_RIGHT else (0, room)
    return np.pad(values[0], pads)


def _stft(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Transform overlapping frames of a signal; the last axis of the result is (real, imaginary)."""
    x = wide(values[0])
    signal = x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0]
    _, count, bins, _ = outputs[0].dims
    starts = np.arange(count) * params["frame_step"]
    frames = signal[:, starts[:, None] + np.arange(params["frame_length"])]
    if not absent(values, 1):
        frames = frames * wide(values[1])
    spectrum = np.fft.fft(frames, axis=-1)[..., :bins]
    return np.stack([spectrum.real, spectrum.imag], -1)


def hadamard(size: int) -> np.ndarray:
    """Return Sylvester's matrix of a power of two, of +1 and -1."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def _hadamard_transform(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    size = values[0].shape[-1]
    return wide(values[0]) @ hadamard(size) * (np.float32(params["scale"]) / np.sqrt(size))


COMPUTATIONS: dict[str, Computation] = {"Buffer": _buffer, "Stft": _stft, "HadamardTransform": _hadamard_transform}
