"""Reductions and normalizations: sums over axes, arg-max and arg-min, softmax, sorting, norms."""

from __future__ import annotations

import math

from isthmus.graph.datatypes import INDICES, NUMBERS, REALS
from isthmus.graph.operation import Call, Dims, Param, define, optional, options
from isthmus.graph.traits import PLAIN, Movement, Picks, Traits

MU_SIGMA, RMS = 0, 1
"""Values of InstanceNorm's mode."""
ACROSS_SPATIAL, ACROSS_CHANNEL, ACROSS_ALL = range(3)
"""Values of InstanceNorm's region."""
LRN_ACROSS_CHANNEL, LRN_WITHIN_CHANNEL = 0, 1
"""Values of Lrn's region."""


def _drop_axes(call: Call, axes: tuple[int, ...]) -> list[Dims]:
    """Return in[0]'s dimensions with these axes removed, or with size 1 if keep_dims is set."""
    dims = call.dims(0)
    if call.params["keep_dims"]:
        return [tuple(1 if i in axes else d for i, d in enumerate(dims))]
    return [tuple(d for i, d in enumerate(dims) if i not in axes)]


def _check_filled(call: Call, axes: tuple[int, ...]) -> None:
    """Refuse a mean, maximum or minimum of no elements, which has no value."""
    if any(call.dims(0)[a] == 0 for a in axes):
        call.refuse(f"in[0] {list(call.dims(0))} has no elements to choose from along axes {list(axes)}")


def _reduce(call: Call) -> list[Dims]:
    return _drop_axes(call, call.axes())


def _reduce_filled(call: Call) -> list[Dims]:
    axes = call.axes()
    _check_filled(call, axes)
    return _drop_axes(call, axes)


def _argument(call: Call) -> list[Dims]:
    axis = call.axis()
    _check_filled(call, (axis,))
    return _drop_axes(call, (axis,))


def _along_axis(call: Call) -> list[Dims]:
    """Check an operation along one axis that keeps the dimensions."""
    call.axis()
    return [call.dims(0)]


def _top_k(call: Call) -> list[Dims]:
    dims = call.dims(0)
    k = call.number("k")
    if not dims or k > dims[-1]:
        call.refuse(f"k {k} is more than the last axis of in[0] {list(dims)} has")
    return [(*dims[:-1], k)] * 2


def _check_channels(call: Call) -> int:
    """Check that in[1] and in[2], if present, have one element per channel; return the number of channels."""
    if not call.dims(0):
        call.refuse("in[0] needs a channel axis")
    channels = call.dims(0)[-1]
    for index in (1, 2):
        call.check_dims(index, channels)
    return channels


def _per_channel(call: Call) -> list[Dims]:
    _check_channels(call)
    return [call.dims(0)]


def _instance_norm(call: Call) -> list[Dims]:
    if len(call.dims(0)) < 3:
        call.refuse(f"in[0] {list(call.dims(0))} must be [batch,spatial…,channel]")
    call.number("mode", below=2)
    call.number("region", below=3)
    return _per_channel(call)


def _group_norm(call: Call) -> list[Dims]:
    if len(call.dims(0)) < 2:
        call.refuse(f"in[0] {list(call.dims(0))} must be [batch,…,channel]")
    channels, group = _check_channels(call), call.number("group", least=1)
    if channels % group:
        call.refuse(f"group {group} must divide {channels} channels")
    return [call.dims(0)]


def _layer_norm(call: Call) -> list[Dims]:
    """Check a normalization over axes, whose scale and bias have the dimensions of these axes."""
    dims = call.dims(0)
    axes = call.axes()
    if not axes:
        call.refuse("axes must name at least one axis")
    for index in (1, 2):
        call.check_dims(index, *(dims[a] for a in axes))
    return [dims]


def _l2_norm(call: Call) -> list[Dims]:
    """Check a normalization over parameter axes, or over the single axis of older definitions."""
    if call.params["axes"] is None:
        call.params["axes"] = [call.axis()]
    call.axes()
    return [call.dims(0)]


def _lrn(call: Call) -> list[Dims]:
    call.check_rank(0, 3, 4)
    call.number("radius")
    call.number("region", below=2)
    if not math.isfinite(call.params["beta"]):
        call.refuse("beta must be finite")
    return [call.dims(0)]


_AXES = Param("axes", "u32[]")
_AXIS = Param("axis", "u32")
_KEEP_DIMS = optional("keep_dims", "bool", False)
_BETA = optional("beta", "f32", 1.0)
# The types of data, scale and bias.
_AFFINE = (REALS, REALS, REALS)
_SUM = Traits(fixed_point=True)
_EXTREME = Traits(moves=Movement(Picks.ORDER))

OPERATIONS = (
    *(
        define(f"Reduce{name}", rule, _AXES, _KEEP_DIMS, types=(NUMBERS,), traits=traits)
        for name, rule, traits in (
            ("Sum", _reduce, _SUM),
            ("Prod", _reduce, PLAIN),
            ("Mean", _reduce_filled, _SUM),
            ("Max", _reduce_filled, _EXTREME),
            ("Min", _reduce_filled, _EXTREME),
        )
    ),
    *(
        define(
            name, _argument, _AXIS, _KEEP_DIMS, types=(NUMBERS,), output_types={0: INDICES}, traits=Traits(orders=True)
        )
        for name in ("Argmax", "Argmin")
    ),
    define("Softmax", _along_axis, optional("axis", "u32"), _BETA, types=(REALS,), traits=Traits(fixed_point=True)),
    define("LogSoftmax", _along_axis, _AXIS, _BETA, types=(REALS,), traits=Traits(fixed_point=True)),
    define(
        "TopK",
        _top_k,
        Param("k", "u32"),
        optional("largest", "bool", True),
        outputs=(2, 2),
        types=(NUMBERS,),
        output_types={1: INDICES},
    ),
    define("CumulativeSum", _along_axis, _AXIS, *options("bool", exclusive=False, reverse=False), types=(NUMBERS,)),
    define(
        "Batchnorm",
        _per_channel,
        inputs=(2, 3),
        types=_AFFINE,
        traits=Traits(element_wise=True, coefficients=True, takes_clamp=True),
    ),
    define("LayerNorm", _layer_norm, optional("epsilon", "f32", 0.001), _AXES, inputs=(1, 3), types=_AFFINE),
    define("RmsNorm", _layer_norm, optional("epsilon", "f32", 1e-6), _AXES, inputs=(1, 3), types=_AFFINE),
    define(
        "InstanceNorm",
        _instance_norm,
        optional("epsilon", "f32", 1e-12),
        optional("mode", "u32", MU_SIGMA),
        optional("normalize_variance", "bool", True),
        optional("region", "u32", ACROSS_SPATIAL),
        inputs=(2, 3),
        types=_AFFINE,
    ),
    define("GroupNorm", _group_norm, Param("epsilon", "f32"), Param("group", "u32"), inputs=(1, 3), types=_AFFINE),
    define(
        "L2Norm",
        _l2_norm,
        optional("axis", "u32", 0),
        optional("axes", "u32[]"),
        optional("epsilon", "f32", 1e-12),
        types=(REALS,),
    ),
    define(
        "Lrn",
        _lrn,
        *options("f32", alpha=1.0, beta=0.5, bias=1.0),
        Param("radius", "i32"),
        optional("region", "u32", LRN_ACROSS_CHANNEL),
        types=(REALS,),
        traits=Traits(window=True),
    ),
)
