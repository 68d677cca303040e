"""The geometry of convolutions and pooling: windows over one to three spatial axes, all extended to three."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.prepare.geometry.layout import operand, whole_dims
from isthmus.prepare.schedule import Step

Triple = tuple[int, int, int]
"""One number for each spatial axis: depth, height, width."""


@dataclass(frozen=True)
class ConvWindow:
    """A convolution or pooling. Triples are (depth, height, width); missing axes have size 1.

    - `batches`: the number of images.
    - `size`, `out`: spatial sizes of the input and the output.
    - `kernel`, `stride`, `dilation`: the size of a window, the distance between windows, and the distance between the
      elements of a window.
    - `pad`: zeros before the first element; the number after the last follows from the other values. May be negative.
    - `channels`, `filters`: channels of the input and the output, over all groups.
    - `whole`: the output sizes of the whole step, on which all choices are based, if this is a tile; None means `out`.
    - `after`: the padding after the last element; only for pooling.
    """

    batches: int
    size: Triple
    out: Triple
    kernel: Triple
    stride: Triple
    dilation: Triple
    pad: Triple
    channels: int
    filters: int
    groups: int
    whole: Triple | None = None
    after: Triple = (0, 0, 0)

    @property
    def pixels(self) -> int:
        """The number of output pixels in all batches."""
        return self.batches * math.prod(self.out)

    @property
    def whole_pixels(self) -> int:
        """The number of output pixels of the whole step."""
        return self.batches * math.prod(self.whole or self.out)

    @property
    def depth(self) -> int:
        """The number of products summed for each output element."""
        return math.prod(self.kernel) * self.channels // self.groups

    @property
    def covers_all(self) -> bool:
        """Whether there is only one window and it is the whole input."""
        one = math.prod(self.whole or self.out) == 1
        return one and self.kernel == self.size and not any(self.pad) and not any(self.after)

    def crossing(self, axis: int = 2) -> int:
        """Count the window positions along an axis that are partly or fully outside the input."""
        first = np.arange(self.out[axis]) * self.stride[axis] - self.pad[axis]
        last = first + (self.kernel[axis] - 1) * self.dilation[axis]
        return int(np.count_nonzero((first < 0) | (last >= self.size[axis])))

    @property
    def is_product(self) -> bool:
        """Whether windows are consecutive contiguous runs of memory, so that the step is a plain matrix product."""
        if self.groups != 1 or any(self.pad):
            return False
        # Padding after the image only affects the size of the output.
        point = self.kernel == self.stride == (1, 1, 1) and self.out == self.size
        return point or (self.out == (1, 1, 1) and self.kernel == self.size and self.dilation == (1, 1, 1))


def triple(value: Any, fill: int = 1) -> Triple:
    """Return a parameter (one number, or one for each spatial axis) as (depth, height, width).

    Missing numbers, which belong to the outer axes, are `fill`.
    """
    numbers = [int(v) for v in np.asarray(value).reshape(-1)]
    padded = [fill] * (3 - len(numbers)) + numbers
    return padded[0], padded[1], padded[2]


def window_of(step: Step) -> ConvWindow:
    """Return the window of a Conv or DepthWiseConv step."""
    source, weights = operand(step), operand(step, 1)
    pads = np.asarray(step.params["pad_amount"]).reshape(-1, 2)
    channels = source.dims[-1]
    return ConvWindow(
        batches=source.dims[0],
        size=triple(source.dims[1:-1]),
        out=triple(step.outputs[0].dims[1:-1]),
        kernel=triple(weights.dims[:-2]),
        stride=triple(step.params["stride"]),
        dilation=triple(step.params["dilation"]),
        pad=triple(pads[:, 0], 0),
        channels=channels,
        filters=weights.dims[-1],
        groups=channels if step.op.startswith("DepthWise") else int(step.params["group"]),
        whole=None if step.part is None else triple(whole_dims(step)[1:-1]),
    )


POOLS = {"PoolMax2d": "max", "PoolMax3d": "max", "PoolAvg2d": "avg", "PoolAvg3d": "avg", "L2Pool2d": "l2"}


def pool_window(step: Step) -> ConvWindow:
    """Return the window of a pooling step; each channel is pooled separately."""
    dims, channels = operand(step).dims, operand(step).dims[-1]
    pads = np.asarray(step.params["pad_amount"]).reshape(-1, 2)
    return ConvWindow(
        dims[0], triple(dims[1:-1]), triple(step.outputs[0].dims[1:-1]), triple(step.params["filter_size"]),
        triple(step.params["stride"]), (1, 1, 1), triple(pads[:, 0], 0), channels, channels, channels,
        triple(whole_dims(step)[1:-1]), triple(pads[:, 1], 0),
    )  # fmt: skip
