"""Convolutions, matrix products and pooling: filters over channel-last activations.

Filters are [spatial…, channel_in / group, channel_out], depth-wise [spatial…, 1, channel_out], transposed
[spatial…, channel_in, channel_out / group]; a fully connected layer's weights are [out, in].
`spatial` is the number of spatial axes: 1 for a signal, 2 for an image, 3 for a volume.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from isthmus.graph.datatypes import NUMBERS, REALS, DataType
from isthmus.graph.operation import (
    ISTHMUS,
    Call,
    Dims,
    Operation,
    Param,
    Rule,
    define,
    optional,
    options,
    own,
    required,
)
from isthmus.graph.traits import Movement, Picks, ProductKind, Traits

FLOOR, CEIL = 0, 1
"""Values of rounding_mode."""


def pad_pairs(call: Call, spatial: int) -> np.ndarray:
    """Return parameter pad_amount as [spatial, 2]; one-dimensional operations give it as [2]."""
    shape = (2,) if spatial == 1 else (spatial, 2)
    return call.numbers("pad_amount", *shape).reshape(spatial, 2)


def per_axis(call: Call, name: str, spatial: int, least: int = 1) -> np.ndarray:
    """Return a parameter with one number per spatial axis; one-dimensional operations give it as a scalar."""
    if spatial == 1:
        return np.asarray([call.number(name, least)])
    return call.numbers(name, spatial, least=least)


def windows(
    call: Call,
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: np.ndarray,
    dilation: np.ndarray,
    pads: np.ndarray,
    rounding: int = FLOOR,
) -> Dims:
    """Return the number of windows along each spatial axis.

    - `sizes`: the input's size along each spatial axis.
    - `kernel`, `stride`, `dilation`: the filter's size, the step between windows and the step between taps, along each
      spatial axis.
    - `pads`: the padding before and after each spatial axis, [spatial, 2].
    - `rounding`: what to do if the last step does not fit: FLOOR drops the window, CEIL extends the input.
    """
    out = []
    for axis, size in enumerate(sizes):
        before, after = (int(p) for p in pads[axis])
        reach = (int(kernel[axis]) - 1) * int(dilation[axis]) + 1
        if kernel[axis] < 1:
            call.refuse(f"the filter {list(kernel)} must be at least 1 along each axis")
        free = size + before + after - reach
        if free < 0:
            call.refuse(
                f"the filter reaches over {reach} elements along spatial axis {axis}, the padded input has only "
                f"{size + before + after}"
            )
        step = int(stride[axis])
        count = (-(-free // step) if rounding == CEIL else free // step) + 1
        # Drop a last window that rounding up would start beyond the input, since it would read none of it.
        if rounding == CEIL and (count - 1) * step >= size + before:
            count -= 1
        out.append(count)
    return tuple(out)


def _convolution(call: Call, spatial: int, depth_wise: bool) -> list[Dims]:
    """Check a convolution of channel-last data with its filters and bias."""
    call.check_rank(0, spatial + 2)
    call.check_rank(1, spatial + 2)
    dims, weights = call.dims(0), call.dims(1)
    channels, filters = dims[-1], weights[-1]
    kernel = weights[:spatial]
    if depth_wise:
        if weights[-2] != 1 or channels < 1 or filters % channels:
            call.refuse(
                f"depth-wise weights {list(weights)} must be [{'k,' * spatial}1,channel_out] with channel_out a "
                f"multiple of {channels} input channels"
            )
    else:
        group = call.number("group", least=1)
        if channels % group or filters % group:
            call.refuse(f"group {group} must divide {channels} input and {filters} output channels")
        if weights[-2] * group != channels:
            call.refuse(
                f"weights {list(weights)} in {group} groups take {weights[-2] * group} input channels, "
                f"in[0] has {channels}"
            )
    call.check_dims(2, filters)
    stride = per_axis(call, "stride", spatial)
    dilation = per_axis(call, "dilation", spatial)
    out = windows(call, dims[1:-1], kernel, stride, dilation, pad_pairs(call, spatial))
    return [(dims[0], *out, filters)]


def _transpose_convolution(call: Call, spatial: int) -> list[Dims]:
    """Check a transposed convolution; its output is as large as the scattered filters, cropped by the padding."""
    call.check_rank(0, spatial + 2)
    call.check_rank(1, spatial + 2)
    dims, weights = call.dims(0), call.dims(1)
    group = call.number("group", least=1)
    if weights[-2] != dims[-1]:
        call.refuse(f"weights {list(weights)} take {weights[-2]} input channels, in[0] has {dims[-1]}")
    if dims[-1] % group:
        call.refuse(f"group {group} must divide {dims[-1]} input channels")
    filters = weights[-1] * group
    call.check_dims(2, filters)
    stride = per_axis(call, "stride", spatial)
    dilation = per_axis(call, "dilation", spatial) if "dilation" in call.params else np.ones(spatial, np.int64)
    extra = per_axis(call, "output_padding", spatial, least=0)
    pads = pad_pairs(call, spatial)
    out = []
    for axis in range(spatial):
        if weights[axis] < 1 or dims[axis + 1] < 1:
            call.refuse(f"input {list(dims)} and filter {list(weights)} must be at least 1 along each spatial axis")
        if extra[axis] >= max(stride[axis], dilation[axis]):
            call.refuse(f"output_padding {int(extra[axis])} must be below the stride or the dilation")
        reach = (weights[axis] - 1) * int(dilation[axis]) + 1
        size = (dims[axis + 1] - 1) * int(stride[axis]) + reach - int(pads[axis].sum()) + int(extra[axis])
        if size < 1:
            call.refuse(f"pad_amount {pads[axis].tolist()} leaves nothing of the output along spatial axis {axis}")
        out.append(size)
    return [(dims[0], *out, filters)]


def _fully_connected(call: Call) -> list[Dims]:
    """Check a fully connected layer."""
    # With keep_dims the weights are applied to the last axis; otherwise all elements are taken as rows of features.
    call.check_rank(1, 2)
    dims, (filters, features) = call.dims(0), call.dims(1)
    call.check_dims(2, filters)
    if features < 1:
        call.refuse("in[1] must take at least one feature")
    if call.params["keep_dims"]:
        if not dims or dims[-1] != features:
            call.refuse(f"in[0] {list(dims)} must end in the {features} features of in[1]")
        return [(*dims[:-1], filters)]
    elements = call.tensor(0).elements
    if elements % features:
        call.refuse(f"in[0] {list(dims)} cannot be taken as rows of {features} features")
    return [(elements // features, filters)]


def _matmul(call: Call) -> list[Dims]:
    """Check a product of matrices in the last two axes; the axes before them broadcast."""
    left, right = call.dims(0), call.dims(1)
    if len(left) < 2 or len(right) < 2:
        call.refuse(f"matrices need rank 2 or more, have {list(left)} and {list(right)}")
    # A transposed matrix has its last two dimensions exchanged.
    rows, inner = left[-2:][:: -1 if call.params.get("transpose_in0") else 1]
    depth, columns = right[-2:][:: -1 if call.params.get("transpose_in1") else 1]
    if inner != depth:
        call.refuse(f"a matrix of {inner} columns cannot multiply one of {depth} rows ({list(left)} and {list(right)})")
    return [(*call.broadcast(left[:-2], right[:-2]), rows, columns)]


def _matmul_with_bias(call: Call) -> list[Dims]:
    dims = _matmul(call)
    call.check_dims(2, dims[0][-1])
    return dims


def _matmul_integer(call: Call) -> list[Dims]:
    """Check a product of integers; zero points are one number, or one per row of in[0] or column of in[1]."""
    dims = _matmul(call)
    for index, channels in ((2, dims[0][-2]), (3, dims[0][-1])):
        tensor = call.optional(index)
        if tensor is not None and tensor.dims not in ((), (1,), (channels,)):
            call.refuse(f"zero point in[{index}] {tensor.describe()} must be one number or {channels}")
    return dims


def _pool(call: Call, spatial: int) -> list[Dims]:
    call.check_rank(0, spatial + 2)
    dims = call.dims(0)
    kernel = call.numbers("filter_size", spatial, least=1)
    stride = call.numbers("stride", spatial, least=1)
    pads = pad_pairs(call, spatial)
    if (pads >= kernel[:, None]).any():
        call.refuse(f"pad_amount {pads.tolist()} must be below filter_size {kernel.tolist()}")
    if min(dims[1:-1]) < 1:
        call.refuse(f"in[0] {list(dims)} has nothing to pool")
    rounding = call.number("rounding_mode", below=2) if "rounding_mode" in call.params else FLOOR
    ones = np.ones(spatial, np.int64)
    return [(dims[0], *windows(call, dims[1:-1], kernel.tolist(), stride, ones, pads, rounding), dims[-1])]


def _define_product(name: str, rule: Rule, *params: Param, kind: ProductKind) -> Operation:
    """Define a product of data with weights and an optional bias."""
    return define(name, rule, *params, inputs=(2, 3), types=_WEIGHTED, traits=_product(kind))


def _convolutions(spatial: int) -> Iterator[Operation]:
    """Define the convolutions over 1, 2 or 3 spatial axes; parameters for one axis are scalars."""
    kind = "u32" if spatial == 1 else "u32[]"
    ones, zeros = (1, 0) if spatial == 1 else ([1] * spatial, [0] * spatial)
    windows = (Param("stride", kind), Param("pad_amount", "u32[]"))
    group, dilation = optional("group", "u32", 1), optional("dilation", kind, ones)
    rule = partial(_convolution, spatial=spatial, depth_wise=False)
    yield _define_product(f"Conv{spatial}d", rule, *windows, group, dilation, kind=ProductKind.CONVOLUTION)
    if spatial < 3:
        rule = partial(_convolution, spatial=spatial, depth_wise=True)
        yield _define_product(f"DepthWiseConv{spatial}d", rule, *windows, dilation, kind=ProductKind.DEPTH_WISE)
    transposed = (*windows, *([dilation] if spatial == 3 else []), group, optional("output_padding", kind, zeros))
    rule = partial(_transpose_convolution, spatial=spatial)
    yield _define_product(f"TransposeConv{spatial}d", rule, *transposed, kind=ProductKind.TRANSPOSED)


def _pooling(name: str, spatial: int, traits: Traits, *more: Param) -> Operation:
    """Define a pooling operation; `more` are its parameters besides the window's."""
    params = (*required("u32[]", "filter_size", "stride", "pad_amount"), *more)
    return define(name, partial(_pool, spatial=spatial), *params, types=(NUMBERS,), traits=traits)


def _product(kind: ProductKind) -> Traits:
    """Return the traits of a product with weights in[1] and bias in[2]."""
    return Traits(product=kind, coefficients=True, takes_clamp=True)


_AVERAGE = Traits(window=True, takes_clamp=True, fixed_point=True)
_MAXIMUM = Traits(window=True, takes_clamp=True, moves=Movement(Picks.ORDER))
_WEIGHTED = (REALS, REALS, (*REALS, DataType.INT_32))
_BYTES = (DataType.UINT_8, DataType.INT_8)
_EDGES = optional("count_pad_for_edges", "bool", False)
_ROUNDING = optional("rounding_mode", "u32", FLOOR)
# Whether a fixed-point mean halfway between two stored values is rounded away from 0 instead of to even.
_TIES = own("ties_away_from_zero", "bool", False)

OPERATIONS = (
    *(operation for spatial in (1, 2, 3) for operation in _convolutions(spatial)),
    _define_product("FullyConnected", _fully_connected, optional("keep_dims", "bool", False), kind=ProductKind.ROWS),
    define(
        "MatMul",
        _matmul_with_bias,
        *options("bool", transpose_in0=False, transpose_in1=False),
        inputs=(2, 3),
        types=(NUMBERS, NUMBERS, NUMBERS),
        traits=_product(ProductKind.MATRIX),
    ),
    define(
        "MatMulInteger",
        _matmul_integer,
        inputs=(2, 4),
        types=[_BYTES] * 4,
        output_types={0: DataType.INT_32},
        package=ISTHMUS,
        traits=Traits(product=ProductKind.INTEGERS),
    ),
    _pooling("PoolAvg2d", 2, _AVERAGE, _EDGES, _ROUNDING, _TIES),
    _pooling("PoolAvg3d", 3, _AVERAGE, _EDGES, _ROUNDING),
    _pooling("PoolMax2d", 2, _MAXIMUM, _ROUNDING),
    _pooling("PoolMax3d", 3, _MAXIMUM, _ROUNDING),
    _pooling("L2Pool2d", 2, Traits(window=True)),
)
