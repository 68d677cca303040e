"""Operations that resample images: resize, crop, sample by a grid, colour conversion, correlation."""

from __future__ import annotations

from isthmus.graph.datatypes import INDICES, NUMBERS, REALS, DataType
from isthmus.graph.operation import Call, Dims, Param, define, optional, options, own, required
from isthmus.graph.traits import Movement, Picks, Traits

HALF_PIXEL, PYTORCH_HALF_PIXEL, ALIGN_CORNERS, ASYMMETRIC = range(4)
"""Values of Resize's transformation_mode."""
NEAREST, LINEAR, CUBIC = range(3)
"""Values of Resize's interpolation_mode."""
ROUND_PREFER_FLOOR, ROUND_PREFER_CEIL, FLOOR, CEIL = range(4)
"""Values of Resize's nearest_mode."""
VALID, SAME = range(2)
"""Values of ExtractPatches' padding."""
UNIFORM, GAUSSIAN, ZEROES = range(3)
"""Values of ExtractGlimpse's noise."""
YUV_TO_RGB = ((4768, 0, 6537), (4768, -1602, -3330), (4768, 8266, 0))
"""BT.601 for limited range: red, green and blue in 4096ths of luma - 16, U - 128 and V - 128."""


def _resize(call: Call) -> list[Dims]:
    dims, out = call.dims(0), call.declared_dims()
    call.number("transformation_mode", below=4)
    call.number("interpolation_mode", below=3)
    call.number("nearest_mode", below=4)
    if len(out) != len(dims) or any(not d and o for d, o in zip(dims, out, strict=True)):
        call.refuse(f"in[0] {list(dims)} cannot be resized to {list(out)}")
    return [out]


def _resize_image(call: Call) -> list[Dims]:
    call.check_rank(0, 4)
    if call.params["align_corners"] and call.params["half_pixel_centers"]:
        call.refuse("align_corners and half_pixel_centers exclude each other")
    (n, h, w, c), out = call.dims(0), call.declared_dims()
    if len(out) != 4 or out[0] != n or out[3] != c or h < 1 or w < 1:
        call.refuse(f"in[0] {[n, h, w, c]} cannot be resized to {list(out)}: only height and width may change")
    return [out]


def _crop_and_resize(call: Call) -> list[Dims]:
    """Check an image, boxes [boxes, 4] and the image that each box is cut from."""
    call.check_rank(0, 4)
    call.check_rank(1, 2)
    boxes = call.dims(1)[0]
    call.check_dims(1, boxes, 4)
    call.check_dims(2, boxes)
    call.number("interpolation_mode", below=2)
    height, width = call.numbers("resize_dims", 2, least=1).tolist()
    _check_image(call, 0)
    return [(boxes, height, width, call.dims(0)[3])]


def _check_image(call: Call, index: int) -> None:
    """Refuse images whose height or width is 0, and volumes without depth."""
    if min(call.dims(index)[1:-1]) < 1:
        call.refuse(f"in[{index}] {list(call.dims(index))} has no pixels")


def _grid_sample(call: Call) -> list[Dims]:
    """Check an image and a grid of coordinates (x, y), or (x, y, z) in a volume, one for each pixel of the output."""
    call.check_rank(0, 4, 5)
    call.check_rank(1, len(call.dims(0)))
    (n, *sizes, c), (batch, *places, axes) = call.dims(0), call.dims(1)
    call.number("mode", below=2)
    call.number("padding_mode", below=3)
    _check_image(call, 0)
    if batch != n or axes != len(sizes):
        names = "height,width,2" if len(sizes) == 2 else "depth,height,width,3"
        call.refuse(f"grid {list(call.dims(1))} must be [{n},{names}]")
    return [(n, *places, c)]


def _yuv_to_rgb(call: Call) -> list[Dims]:
    """Check a flat NV12 or NV21 image: a plane of luma, then interleaved chroma at half the height and width."""
    call.check_rank(0, 2)
    batch, size = call.dims(0)
    out = call.declared_dims()
    call.number("output_order", below=2)
    if len(out) != 4 or out[0] != batch or out[3] != 3 or out[1] % 2 or out[2] % 2 or out[1] * out[2] * 3 // 2 != size:
        rule = f"must be [{batch},height,width,3] with even height and width, 3 bytes of in[0] for 2 pixels"
        call.refuse(f"out[0] {list(out)} {rule}, which has {size}")
    return [out]


def _correlation(call: Call) -> list[Dims]:
    """Check two equal images; the output has one channel per displacement, from -displacement to +displacement."""
    call.check_rank(0, 4)
    call.check_dims(1, *call.dims(0))
    if call.dims(0)[3] < 1:
        call.refuse("in[0] has no channels to correlate")
    return [(*call.dims(0)[:3], 2 * call.number("displacement") + 1)]


def patch_padding(size: int, window: int, stride: int, same: bool) -> tuple[int, int, int]:
    """Return the number of windows along an axis of ExtractPatches, and the padding before and after the axis."""
    if not same:
        return (max(size - window, -1) + stride) // stride, 0, 0
    count = -(-size // stride)
    missing = max((count - 1) * stride + window - size, 0)
    return count, missing // 2, missing - missing // 2


def _extract_patches(call: Call) -> list[Dims]:
    """Check images; the result has, for each window, all its pixels as one vector."""
    call.check_rank(0, 4)
    call.number("padding", below=2)
    n, *image, c = call.dims(0)
    sizes, strides, rates = (call.numbers(name, 2, least=1).tolist() for name in ("size", "stride", "rate"))
    counts = [
        patch_padding(extent, (size - 1) * rate + 1, stride, call.params["padding"] == SAME)[0]
        for extent, size, stride, rate in zip(image, sizes, strides, rates, strict=True)
    ]
    return [(n, *counts, sizes[0] * sizes[1] * c)]


def _extract_glimpse(call: Call) -> list[Dims]:
    """Check images and the offsets [batch, 2] of one window in each, vertical coordinates first."""
    call.check_rank(0, 4)
    n, *_, c = call.dims(0)
    call.check_dims(1, n, 2)
    call.number("noise", below=3)
    _check_image(call, 0)
    return [(n, *call.numbers("size", 2, least=1).tolist(), c)]


MAX_SAMPLES = 1 << 10
"""The most samples of a region along an axis of a pixel."""


def _roi_align(call: Call) -> list[Dims]:
    """Check images, regions [regions, 4] as (left, top, right, bottom), and the image that each belongs to."""
    call.check_rank(0, 4)
    call.check_rank(1, 2)
    regions, out = call.dims(1)[0], call.declared_dims()
    call.check_dims(1, regions, 4)
    call.check_dims(2, regions)
    _check_image(call, 0)
    ratios = call.numbers("img_size_ratio", 2)
    if not (ratios > 0).all():
        call.refuse(f"img_size_ratio {ratios.tolist()} must be positive")
    for name in ("num_samples_y", "num_samples_x"):
        call.params[name] = max(call.params[name], 0)
        if call.params[name] > MAX_SAMPLES:
            call.refuse(f"{name} {call.params[name]} must be at most {MAX_SAMPLES}")
    if regions and not call.dims(0)[0]:
        call.refuse("there is no image that regions could be part of")
    if len(out) != 4 or out[0] != regions or out[3] != call.dims(0)[3]:
        call.refuse(f"out[0] {list(out)} must be [{regions},height,width,{call.dims(0)[3]}]")
    return [out]


_CORNERS = options("bool", align_corners=False, half_pixel_centers=False)
_YUV_TYPES = (DataType.UINT_8, DataType.UFIXED_POINT_8)

OPERATIONS = (
    define(
        "Resize",
        _resize,
        *options("bool", exclude_outside=False),
        *options("u32", transformation_mode=HALF_PIXEL, interpolation_mode=NEAREST, nearest_mode=ROUND_PREFER_FLOOR),
        *options("f32", cubic_coeff=-0.75),
        types=(NUMBERS,),
        traits=Traits(fixed_point=True),
    ),
    define("ResizeBilinear", _resize_image, *_CORNERS, types=(NUMBERS,), traits=Traits(fixed_point=True)),
    define("ResizeNearestNeighbor", _resize_image, *_CORNERS, traits=Traits(moves=Movement(Picks.PLACE))),
    define(
        "CropAndResize",
        _crop_and_resize,
        Param("resize_dims", "u32[]"),
        optional("interpolation_mode", "u32", 0),
        optional("extrapolation_value", "f32", 0.0),
        inputs=3,
        types=(REALS, REALS, INDICES),
    ),
    define(
        "GridSample",
        _grid_sample,
        *options("bool", align_corners=False),
        *options("u32", mode=0, padding_mode=0),
        inputs=2,
        types=(REALS, REALS),
    ),
    define("Nv12ToRgb", _yuv_to_rgb, Param("output_order", "i32"), types=(_YUV_TYPES,)),
    define("Nv21ToRgb", _yuv_to_rgb, Param("output_order", "i32"), types=(_YUV_TYPES,)),
    define(
        "Correlation1D",
        _correlation,
        Param("displacement", "u32"),
        Param("shift", "i32"),
        inputs=2,
        types=(REALS, REALS),
    ),
    define(
        "ExtractPatches",
        _extract_patches,
        *required("u32[]", "size", "stride"),
        optional("rate", "u32[]", [1, 1]),
        Param("padding", "u32"),
    ),
    define(
        "ExtractGlimpse",
        _extract_glimpse,
        Param("size", "i32[]"),
        *options("bool", centered=True, normalized=True),
        optional("noise", "u32", UNIFORM),
        inputs=2,
        types=(REALS, REALS),
        traits=Traits(varies=True),
    ),
    define(
        "RoiAlign",
        _roi_align,
        Param("img_size_ratio", "f32[]"),
        *options("i32", num_samples_y=0, num_samples_x=0),
        *options("bool", aligned=False, allow_invalid_roi=False),
        own("largest_sample", "bool", False),
        inputs=3,
        types=(REALS, REALS, INDICES),
    ),
)
