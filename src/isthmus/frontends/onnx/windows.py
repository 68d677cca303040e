"""Windows over spatial axes: pads, strides and dilations of convolutions and pools, in all forms that files use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from isthmus.frontends.onnx.node import OnnxNode

MAX_EXTENT = 1 << 24
"""The limit of window attributes; no real model reaches it."""


@dataclass(frozen=True)
class Windows:
    """The geometry of windows over the spatial axes.

    - `kernel`, `strides`, `dilations`: the window's size, the step between windows and the step between taps, along
      each axis.
    - `ceil`: whether the number of windows is rounded up, so that the last one may extend beyond the padding.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    ceil: bool = False

    @property
    def spatial(self) -> int:
        """The number of spatial axes."""
        return len(self.kernel)

    @property
    def reach(self) -> tuple[int, ...]:
        """The extent of a window along each axis, in elements."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))


def per_axis(node: OnnxNode, name: str, spatial: int, default: int = 1, least: int = 1) -> tuple[int, ...]:
    """Return an attribute with one number per spatial axis, each at least `least`."""
    numbers = node.attr(name) or (default,) * spatial
    if len(numbers) != spatial or any(not least <= n < MAX_EXTENT for n in numbers):
        node.refuse(f"{name} {list(numbers)[:8]} must be {spatial} numbers from {least} on")
    return tuple(numbers)


def read_windows(node: OnnxNode, sizes: Sequence[int], kernel: Sequence[int]) -> Windows:
    """Read the windows of a convolution or pool over axes of these sizes."""
    spatial = len(sizes)
    if len(kernel) != spatial or any(not 1 <= k < MAX_EXTENT for k in kernel):
        node.refuse(f"kernel {list(kernel)[:8]} does not fit {spatial} spatial axes")
    strides = per_axis(node, "strides", spatial)
    dilations = per_axis(node, "dilations", spatial)
    windows = Windows(tuple(kernel), strides, dilations, (), bool(node.attr("ceil_mode", 0)))
    # The padding with which there are ceil(size / stride) windows.
    same = [
        max((-(-size // stride) - 1) * stride + reach - size, 0)
        for size, stride, reach in zip(sizes, strides, windows.reach, strict=True)
    ]
    return replace(windows, pads=padding(node, spatial, same))


def padding(node: OnnxNode, spatial: int, same: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the pads before and after each axis; `same` is the total that auto_pad SAME requires."""
    auto = node.attr("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        pads = node.attr("pads") or (0,) * (2 * spatial)
        if len(pads) != 2 * spatial or any(not abs(p) < MAX_EXTENT for p in pads):
            node.refuse(f"pads {list(pads)[:8]} must be {2 * spatial} numbers")
        if any(p < 0 for p in pads):
            node.unsupported("negative pads")
        return tuple((pads[i], pads[i + spatial]) for i in range(spatial))
    if auto == "VALID":
        return ((0, 0),) * spatial
    if auto == "SAME_UPPER":
        return tuple((total // 2, total - total // 2) for total in same)
    if auto == "SAME_LOWER":
        return tuple((total - total // 2, total // 2) for total in same)
    node.refuse(f"auto_pad '{auto}' is unknown")


def window_params(windows: Windows) -> dict[str, Any]:
    """Return stride, pads and dilation as convolutions take them: scalars if there is one spatial axis."""
    if windows.spatial == 1:
        return {"stride": windows.strides[0], "pad_amount": windows.pads[0], "dilation": windows.dilations[0]}
    return {"stride": windows.strides, "pad_amount": windows.pads, "dilation": windows.dilations}
