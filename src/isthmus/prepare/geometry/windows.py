"""The geometry of convolutions and pooling: windows over one to three spatial axes, all brought to three."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.prepare.geometry.layout import operand, whole_dims
from isthmus.prepare.schedule import Step

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class ConvWindow:
    """A convolution or pooling. Triples are (depth, height, width); axes that are not there have size 1.

    Parameters
    ----------
    size, out
        Spatial sizes of the input and the output.
    pad
        Zeros before the first element; those after the last follow from the other numbers. May be negative.
    channels, filters
        Channels of the input and the output, of all groups together.
    whole
        Of a strip the output sizes of the whole step, by which all choices are made; else its own.
    after
        Of pooling the padding after the last element.
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
        """Output pixels of all batches."""
        return self.batches * math.prod(self.out)

    @property
    def whole_pixels(self) -> int:
        """Output pixels of the whole step."""
        return self.batches * math.prod(self.whole or self.out)

    @property
    def depth(self) -> int:
        """Products summed for each output element."""
        return math.prod(self.kernel) * self.channels // self.groups

    @property
    def covers_all(self) -> bool:
        """Whether there is one window, which is the whole input."""
        one = math.prod(self.whole or self.out) == 1
        return one and self.kernel == self.size and not any(self.pad) and not any(self.after)

    def crossing(self, axis: int = 2) -> int:
        """How many window positions along an axis lie partly, or wholly, outside the input."""
        first = np.arange(self.out[axis]) * self.stride[axis] - self.pad[axis]
        last = first + (self.kernel[axis] - 1) * self.dilation[axis]
        return int(np.count_nonzero((first < 0) | (last >= self.size[axis])))

    @property
    def is_product(self) -> bool:
        """Whether each window is a run of memory directly after the one before: a plain matrix product."""
        if self.groups != 1 or any(self.pad):
            return False
        # Padding after the image shows in the size of the output alone.
        point = self.kernel == self.stride == (1, 1, 1) and self.out == self.size
        return point or (self.out == (1, 1, 1) and self.kernel == self.size and self.dilation == (1, 1, 1))


def triple(value: Any, fill: int = 1) -> Triple:
    """A parameter with a number for each spatial axis, or a single number, as (depth, height, width)."""
    numbers = [int(v) for v in np.asarray(value).reshape(-1)]
    padded = [fill] * (3 - len(numbers)) + numbers
    return padded[0], padded[1], padded[2]


def window_of(step: Step) -> ConvWindow:
    """The window of a Conv or DepthWiseConv step."""
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
    """The window of a pooling step, which goes over each channel by itself."""
    dims, channels = operand(step).dims, operand(step).dims[-1]
    pads = np.asarray(step.params["pad_amount"]).reshape(-1, 2)
    return ConvWindow(
        dims[0], triple(dims[1:-1]), triple(step.outputs[0].dims[1:-1]), triple(step.params["filter_size"]),
        triple(step.params["stride"]), (1, 1, 1), triple(pads[:, 0], 0), channels, channels, channels,
        triple(whole_dims(step)[1:-1]), triple(pads[:, 1], 0),
    )  # fmt: skip
