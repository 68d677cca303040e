"""The geometry of pooling: windows over two or three spatial axes, all brought to three."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from isthmus.prepare.geometry.layout import operand, whole_dims
from isthmus.prepare.geometry.windows import Triple, triple
from isthmus.prepare.schedule import Step

POOLS = {"PoolMax2d": "max", "PoolMax3d": "max", "PoolAvg2d": "avg", "PoolAvg3d": "avg", "L2Pool2d": "l2"}


@dataclass(frozen=True)
class PoolWindow:
    """What pooling computes. Triples are (depth, height, width); axes that are not there have size 1.

    Parameters
    ----------
    before, after
        Padding.
    padding_counts
        Whether means at edges count the padding.
    covers_all
        Whether the only window is the whole image.
    """

    batch: int
    channels: int
    size: Triple
    out: Triple
    kernel: Triple
    stride: Triple
    before: Triple
    after: Triple
    padding_counts: bool
    covers_all: bool


def pool_window(step: Step) -> PoolWindow:
    """Give the window of a pooling step."""
    x = operand(step)
    pads = np.asarray(step.params["pad_amount"]).reshape(-1, 2)
    size, kernel = triple(x.dims[1:-1]), triple(step.params["filter_size"])
    return PoolWindow(
        batch=x.dims[0],
        channels=x.dims[-1],
        size=size,
        out=triple(step.outputs[0].dims[1:-1]),
        kernel=kernel,
        stride=triple(step.params["stride"]),
        before=triple(pads[:, 0], 0),
        after=triple(pads[:, 1], 0),
        padding_counts=bool(step.params.get("count_pad_for_edges")),
        covers_all=kernel == size and not pads.any() and prod(whole_dims(step)[1:-1]) == 1,
    )
