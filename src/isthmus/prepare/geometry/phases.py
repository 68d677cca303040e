"""Transposed convolutions as plain ones: one for each phase of the stride, each writing every stride-th pixel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from isthmus.prepare.geometry.layout import operand, whole_dims
from isthmus.prepare.geometry.windows import ConvWindow, Triple, triple
from isthmus.prepare.schedule import Step


@dataclass(frozen=True)
class Phase:
    """One of the plain convolutions of a transposed one.

    - `window`: the plain convolution.
    - `kernel_index`: for each axis, the indices of the transposed convolution's kernel elements that it uses.
    - `first`: for each axis, the index of its first output; the others follow at distances of the stride.
    """

    window: ConvWindow
    kernel_index: tuple[tuple[int, ...], ...]
    first: tuple[int, ...]


def phases(step: Step) -> Iterator[Phase]:
    """Yield the plain convolutions that a transposed one consists of."""
    source, weights, params = operand(step, 0), operand(step, 1), step.params
    size, out, kernel = triple(source.dims[1:-1]), triple(step.outputs[0].dims[1:-1]), triple(weights.dims[:-2])
    stride, dilation = triple(params["stride"]), triple(params.get("dilation", 1))
    pad = triple(np.asarray(params["pad_amount"]).reshape(-1, 2)[:, 0], 0)
    for first in itertools.product(*(range(min(s, o)) for s, o in zip(stride, out, strict=True))):
        index, before, spread = [], [], []
        for axis in range(3):
            # The index of the first output if there were no padding.
            unpadded = first[axis] + pad[axis]
            # These kernel elements meet an input element here; the nearest input comes first.
            hits = [k for k in range(kernel[axis]) if (unpadded - k * dilation[axis]) % stride[axis] == 0][::-1]
            index.append(tuple(hits))
            # If there are none, use one tap far outside the input.
            before.append(-((unpadded - hits[0] * dilation[axis]) // stride[axis]) if hits else out[axis] + 1)
            spread.append(dilation[axis] // math.gcd(stride[axis], dilation[axis]))
        window = ConvWindow(
            batches=source.dims[0],
            size=size,
            out=_of_phase(out, first, stride),
            kernel=triple([max(1, len(hits)) for hits in index]),
            stride=(1, 1, 1),
            dilation=triple(spread),
            pad=triple(before),
            channels=source.dims[-1],
            filters=step.outputs[0].dims[-1],
            groups=int(params["group"]),
            whole=None if step.part is None else _of_phase(triple(whole_dims(step)[1:-1]), first, stride),
        )
        yield Phase(window, tuple(index), first)


def _of_phase(out: Sequence[int], first: Sequence[int], stride: Sequence[int]) -> Triple:
    """Return how many outputs a phase has along each axis: every `stride`-th, starting at `first`."""
    return triple([-(-(o - f) // s) for o, f, s in zip(out, first, stride, strict=True)])
