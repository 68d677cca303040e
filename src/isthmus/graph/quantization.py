"""The mapping from stored integers to reals: ``real = (stored + offset) * scale``, per tensor or per channel.

QNN's offset is the negative of the zero point of TFLite and ONNX.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from isthmus.errors import Code, QnnError


class Encoding(IntEnum):
    """QNN's names for the forms of quantization parameters."""

    SCALE_OFFSET = 0
    AXIS_SCALE_OFFSET = 1


@dataclass(frozen=True)
class Quantization:
    """Scale and offset of a tensor, or of each index along one axis.

    Parameters
    ----------
    scales
        One scale, or one per index along `axis`; each positive and finite.
    offsets
        One offset for each scale (the negative of its zero point).
    axis
        The axis of a per-channel quantization; None for a per-tensor one.

    Examples
    --------
    >>> q = Quantization.per_tensor(scale=0.5, zero_point=-3)
    >>> q.scale, q.offset, q.zero_point
    (0.5, 3, -3)
    """

    scales: tuple[float, ...]
    offsets: tuple[int, ...]
    axis: int | None = None

    def __post_init__(self) -> None:
        what = f"quantization with scales {self.scales[:3]}"
        if not self.scales or len(self.scales) != len(self.offsets):
            raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, what, "as many offsets as scales, at least one")
        if self.axis is None and len(self.scales) != 1:
            raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, what, "several scales need an axis")
        if not all(math.isfinite(s) and s > 0 for s in self.scales):
            raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, what, "scales must be positive and finite")

    @staticmethod
    def per_tensor(scale: float, zero_point: int = 0) -> Quantization:
        """Create a quantization with one scale for the whole tensor, from the zero point of TFLite and ONNX."""
        return Quantization((float(scale),), (-int(zero_point),))

    @staticmethod
    def per_channel(scales: np.ndarray, zero_points: np.ndarray, axis: int) -> Quantization:
        """Create a quantization with one scale per index along `axis`."""
        return Quantization(
            tuple(float(s) for s in np.asarray(scales).reshape(-1)),
            tuple(-int(z) for z in np.asarray(zero_points).reshape(-1)),
            int(axis),
        )

    @property
    def encoding(self) -> Encoding:
        """QNN's encoding."""
        return Encoding.SCALE_OFFSET if self.axis is None else Encoding.AXIS_SCALE_OFFSET

    @property
    def is_single(self) -> bool:
        """Whether all scales are also positive and finite in single precision."""
        with np.errstate(over="ignore"):
            singles = np.array(self.scales, np.float32)
        return bool(((singles > 0) & np.isfinite(singles)).all())

    @property
    def scale(self) -> float:
        """The scale of a per-tensor quantization."""
        return self._only(self.scales)

    @property
    def offset(self) -> int:
        """The offset of a per-tensor quantization."""
        return int(self._only(self.offsets))

    @property
    def zero_point(self) -> int:
        """The stored value that represents 0.0, for a per-tensor quantization."""
        return -self.offset

    def _only(self, values: tuple) -> float:
        """Return the only scale or offset; refuse a per-channel quantization."""
        if self.axis is not None:
            raise QnnError(
                Code.TENSOR_INVALID_TENSOR_PARAM, "per-channel quantization", "it has no single scale or offset"
            )
        return values[0]

    def _shaped(self, values: tuple, rank: int) -> np.ndarray:
        """Return scales or offsets as a number, or shaped to broadcast along the axis of `rank` axes."""
        array = np.asarray(values)
        return array.reshape([-1 if d == self.axis else 1 for d in range(rank)]) if self.axis is not None else array[0]

    def dequantize(self, stored: np.ndarray) -> np.ndarray:
        """Return the float32 values that stored integers represent."""
        scale = self._shaped(self.scales, stored.ndim)
        offset = self._shaped(self.offsets, stored.ndim)
        return ((stored.astype(np.int64) + offset) * np.asarray(scale, np.float32)).astype(np.float32)

    def quantize(self, real: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Return the stored integers nearest to reals, rounded half to even and clamped to the type."""
        scale = np.asarray(self._shaped(self.scales, real.ndim), np.float32)
        offset = self._shaped(self.offsets, real.ndim)
        info = np.iinfo(dtype)
        stored = np.rint(np.nan_to_num(real / scale, nan=0.0)).astype(np.float64) - offset
        return np.clip(stored, info.min, info.max).astype(dtype)
