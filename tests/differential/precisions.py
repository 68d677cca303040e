"""Composed graphs in other precisions: activations of 16 bits, weights of 4 bits. For measurements only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from isthmus.backends.vendor.composition import Composition
from isthmus.cabi.types import QuantizationEncoding
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, GraphEntry
from isthmus.graph import DataType, TensorType

_BYTES = (DataType.SFIXED_POINT_8, DataType.UFIXED_POINT_8)
_WITH_WEIGHTS = ("Conv2d", "FullyConnected", "MatMul")


def wide(composition: Composition) -> Composition:
    """8-bit activations become 16-bit ones over the same range; weights and biases stay."""

    def tensor(known: ComposedTensor) -> ComposedTensor:
        encoding = known.encoding
        is_activation = known.type != TensorType.STATIC and known.dtype in _BYTES
        if not is_activation or encoding is None or encoding.axis is not None:
            return known
        # As Python computes it: from the scale in double precision.
        scale, least = float(encoding.scales[0]), -128 if known.dtype == DataType.SFIXED_POINT_8 else 0
        low, fine = (int(encoding.offsets[0]) + least) * scale, scale * 255 / 65535
        wider = EncodingEntry(np.float32([fine]), np.int32([round(low / fine)]), kind=encoding.kind)
        return replace(known, dtype=int(DataType.UFIXED_POINT_16), encoding=wider)

    return _with_tensors(composition, {each.name: tensor(each) for each in composition.entry.tensors})


def narrow(composition: Composition) -> Composition:
    """Constant 8-bit weights of convolutions and products become 4-bit ones, per tensor or per channel."""
    tensors = {each.name: each for each in composition.entry.tensors}
    for node in composition.entry.nodes:
        if node.type in _WITH_WEIGHTS:
            known = tensors[node.inputs[1]]
            is_narrow = known.encoding is not None and known.encoding.bits
            if known.type == TensorType.STATIC and known.dtype in _BYTES and not is_narrow:
                tensors[known.name] = _narrow(known)
    return _with_tensors(composition, tensors)


def _narrow(known: ComposedTensor) -> ComposedTensor:
    encoding = known.encoding
    assert encoding is not None
    assert known.data is not None
    stored = np.frombuffer(known.data, np.int8 if known.dtype == DataType.SFIXED_POINT_8 else np.uint8)
    shape = [-1 if d == encoding.axis else 1 for d in range(len(known.dims))] if encoding.axis is not None else [1]
    real = (stored.reshape(known.dims).astype(np.float64) + encoding.offsets.reshape(shape)) * (
        encoding.scales.astype(np.float64).reshape(shape)
    )
    axes = tuple(d for d in range(real.ndim) if d != encoding.axis)
    scales = np.maximum(np.abs(real).max(axis=axes) / 7, 1e-12).reshape(-1)
    values = np.clip(np.rint(real / scales.reshape(shape)), -8, 7).astype(np.int8)
    kind = QuantizationEncoding.BW_SCALE_OFFSET if encoding.axis is None else QuantizationEncoding.BW_AXIS_SCALE_OFFSET
    fine = EncodingEntry(scales.astype(np.float32), np.zeros(len(scales), np.int32), encoding.axis, 4, int(kind))
    data = values.reshape(-1).view(np.uint8).data
    return replace(known, dtype=int(DataType.SFIXED_POINT_8), encoding=fine, data=data)


def _with_tensors(composition: Composition, tensors: dict[str, ComposedTensor]) -> Composition:
    entry = composition.entry
    return replace(composition, entry=GraphEntry(entry.name, tuple(tensors.values()), entry.nodes))
