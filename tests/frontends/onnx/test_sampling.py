"""Reading between elements and writing to positions: ONNX Runtime's or the reference implementation's answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from frontends.onnx.graphs import check, convert, expected, floats, interpret, model, node
from frontends.onnx.test_definitions import agrees_with_the_reference, random
from isthmus.errors import QnnError

RNG = np.random.default_rng(6)
ROUNDINGS = ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(("mode", "rank"), [("cubic", 4), ("linear", 5), ("nearest", 5)])
@pytest.mark.parametrize("aligned", [0, 1])
def test_grids_of_any_mode_and_rank(padding: str, mode: str, rank: int, aligned: int) -> None:
    sizes, outs = (4, 5, 3)[: rank - 2], (3, 2, 4)[: rank - 2]
    grid = RNG.uniform(-1.6, 1.6, (2, *outs, rank - 2)).astype(np.float32)
    made = model(
        [node("GridSample", "x g", "y", mode=mode, padding_mode=padding, align_corners=aligned)],
        {"x": floats(2, 3, *sizes), "g": floats(*grid.shape)}, "y", opset=20,
    )  # fmt: skip
    feeds = {"x": random(2, 3, *sizes), "g": grid}
    np.testing.assert_allclose(interpret(convert(made), feeds)["y"], expected(made, feeds)["y"], atol=1e-5)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("dims", [(1, 3, 4, 5), (2, 3, 4, 5), (1, 1, 1, 6), (1, 2, 3, 4, 5), (2, 1, 4, 2, 3)])
def test_grids_of_affine_maps(dims: tuple[int, ...], aligned: int) -> None:
    axes = len(dims) - 2
    made = model([node("AffineGrid", "x s", "y", align_corners=aligned)], {"x": floats(dims[0], axes, axes + 1)}, "y",
                 {"s": np.int64(dims)}, 20)  # fmt: skip
    feeds = {"x": random(dims[0], axes, axes + 1)}
    if 1 in dims[2:] and aligned:
        # ONNX's definition divides by 0 here, PyTorch takes the middle: the coordinate 0.
        lines = [np.linspace(-1, 1, size) if size > 1 else np.zeros(1) for size in dims[2:]]
        positions = np.stack([*np.meshgrid(*lines, indexing="ij")[::-1], np.ones(dims[2:])], -1)
        wanted = np.einsum("...j,nij->n...i", positions, feeds["x"])
    else:
        wanted = expected(made, feeds)["y"]
    np.testing.assert_allclose(interpret(convert(made), feeds)["y"], wanted, atol=1e-5)


def test_an_affine_map_that_does_not_fit_is_refused() -> None:
    made = model([node("AffineGrid", "x s", "y")], {"x": floats(1, 2, 3)}, "y", {"s": np.int64([2, 1, 4, 4])}, 20)
    with pytest.raises(QnnError, match="do not fit a picture"):
        convert(made)


@pytest.mark.parametrize("scale", [0.3, 0.45, 0.6, 1.3, 1.7, 2.5])
@pytest.mark.parametrize("transformation", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize(
    "attributes", [{"mode": "linear"}, {"mode": "cubic"}, *({"nearest_mode": name} for name in ROUNDINGS)], ids=str
)
def test_scales_that_give_no_whole_length(scale: float, transformation: str, attributes: dict[str, Any]) -> None:
    for sizes in ((6, 7), (13, 5), (10, 2)):
        made = model(
            [node("Resize", "x - s", "y", coordinate_transformation_mode=transformation, **attributes)],
            {"x": floats(1, 2, *sizes)}, "y", {"s": np.float32([1, 1, scale, scale])}, 17,
        )  # fmt: skip
        check(made, tolerance=2e-5)


@pytest.mark.parametrize("transformation", ["half_pixel", "asymmetric"])
@pytest.mark.parametrize("attributes", [{"mode": "linear"}, {"nearest_mode": "floor"}], ids=str)
def test_a_scale_that_keeps_the_length_of_an_axis_still_moves_its_elements(
    transformation: str, attributes: dict[str, Any]
) -> None:
    """As the operator is defined; ONNX Runtime copies a tensor that keeps its shape, whatever the scales."""
    made = model(
        [node("Resize", "x - s", "y", coordinate_transformation_mode=transformation, **attributes)],
        {"x": floats(1, 2, 6, 7)}, "y", {"s": np.float32([1, 1, 1.04, 1.1])}, 17,
    )  # fmt: skip
    agrees_with_the_reference(made, {"x": random(1, 2, 6, 7)})


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("transformation", ["half_pixel", "asymmetric", "align_corners"])
def test_nearest_elements_for_given_sizes(rounding: str, transformation: str) -> None:
    attributes = {"nearest_mode": rounding, "coordinate_transformation_mode": transformation}
    for sizes, outs in (((13, 13), (3, 1)), ((6, 7), (10, 21)), ((11, 3), (5, 7))):
        made = model(
            [node("Resize", "x - - z", "y", mode="nearest", **attributes)],
            {"x": floats(1, 2, *sizes)}, "y", {"z": np.int64([1, 2, *outs])}, 17,
        )  # fmt: skip
        check(made, tolerance=0)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transformation", ["half_pixel", "output_half_pixel"])
def test_regions_of_several_images(mode: str, transformation: str) -> None:
    attributes = {"output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.5}
    made = model(
        [node("RoiAlign", "x r b", "y", mode=mode, coordinate_transformation_mode=transformation, **attributes)],
        {"x": floats(2, 3, 7, 6)}, "y",
        {"r": np.float32([[0, 0, 9, 9], [3, 2, 20, 7], [-3, -4, 4, 30]]), "b": np.int64([1, 0, 1])}, 16,
    )  # fmt: skip
    check(made, tolerance=1e-5)


def test_a_number_of_samples_that_depends_on_the_region_is_reported() -> None:
    shapes = {"x": floats(1, 1, 4, 4), "r": floats(2, 4), "b": (TensorProto.INT64, (2,))}
    with pytest.raises(QnnError, match="sampling_ratio 0"):
        convert(model([node("RoiAlign", "x r b", "y")], shapes, "y", opset=16))


@pytest.mark.parametrize(
    "more", [{}, {"group": 2}, {"offset_group": 2}, {"strides": [2, 1], "dilations": [1, 2]}], ids=str
)
def test_deformed_convolutions(more: dict[str, Any]) -> None:
    strides, dilations = more.get("strides", [1, 1]), more.get("dilations", [1, 1])
    outs = [(n + 2 - d - 1) // s + 1 for n, s, d in zip((5, 6), strides, dilations, strict=True)]
    offsets = more.get("offset_group", 1)
    arrays = {"x": random(2, 4, 5, 6), "o": random(2, 8 * offsets, *outs), "m": random(2, 4 * offsets, *outs)}
    made = model(
        [node("DeformConv", "x w o b m", "y", pads=[1, 1, 1, 1], kernel_shape=[2, 2], **more)],
        {name: floats(*array.shape) for name, array in arrays.items()}, "y",
        {"w": random(4, 4 // more.get("group", 1), 2, 2), "b": random(4)}, 19,
    )  # fmt: skip
    agrees_with_the_reference(made, **arrays)


@pytest.mark.parametrize("more", [{}, {"pads": [1, 0, 1, 2]}, {"strides": [2, 3], "dilations": [1, 2]}], ids=str)
def test_columns_become_an_image(more: dict[str, Any]) -> None:
    pads, strides, dilations = more.get("pads", [0] * 4), more.get("strides", [1, 1]), more.get("dilations", [1, 1])
    counts = [(6 + pads[a] + pads[a + 2] - dilations[a] - 1) // strides[a] + 1 for a in range(2)]
    shape = (2, 3 * 4, counts[0] * counts[1])
    made = model([node("Col2Im", "x i b", "y", **more)], {"x": floats(*shape)}, "y",
                 {"i": np.int64([6, 6]), "b": np.int64([2, 2])}, 18)  # fmt: skip
    check(made)


def test_maxima_return_to_their_places() -> None:
    nodes = [node("MaxPool", "x", "m i", kernel_shape=[2, 2], strides=[2, 2]),
             node("MaxUnpool", "m i", "y", kernel_shape=[2, 2], strides=[2, 2])]  # fmt: skip
    check(model(nodes, {"x": floats(2, 3, 6, 4)}, "y", opset=11))


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_an_update_is_written_into_a_cache(mode: str) -> None:
    shapes = {"c": floats(3, 2, 7, 4), "u": floats(3, 2, 2, 4), "i": (TensorProto.INT64, (3,))}
    made = model([node("TensorScatter", "c u i", "y", mode=mode)], shapes, "y", opset=24)
    begins = np.int64([6, 0, 5] if mode == "circular" else [1, 0, 5])
    agrees_with_the_reference(made, c=random(3, 2, 7, 4), u=random(3, 2, 2, 4), i=begins)


@pytest.mark.parametrize("length", [7, 8])
def test_real_samples_from_half_a_spectrum(length: int) -> None:
    made = model([node("DFT", "x n a", "y", inverse=1, onesided=1)], {"x": floats(2, length // 2 + 1, 3, 2)}, "y",
                 {"n": np.int64(length), "a": np.int64(1)}, 20)  # fmt: skip
    samples = random(2, length, 3)
    spectrum = np.fft.rfft(samples, axis=1)
    answer = interpret(convert(made), {"x": np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32)})["y"]
    np.testing.assert_allclose(answer[..., 0], samples, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_running_products(exclusive: int, reverse: int) -> None:
    made = model([node("CumProd", "x a", "y", exclusive=exclusive, reverse=reverse)], {"x": floats(2, 5, 3)}, "y",
                 {"a": np.int64(1)}, 26)  # fmt: skip
    agrees_with_the_reference(made, x=random(2, 5, 3))


@pytest.mark.parametrize("centred", [0, 1])
def test_boxes_that_overlap_a_better_one_are_left_out(centred: int) -> None:
    boxes = np.abs(random(2, 9, 4)) + np.float32([0, 0, 1, 1])
    scores = RNG.random((2, 3, 9)).astype(np.float32)
    made = model(
        [node("NonMaxSuppression", "b s m i t", "y", center_point_box=centred)],
        {"b": floats(*boxes.shape), "s": floats(*scores.shape)}, "y",
        {"m": np.int64([4]), "i": np.float32([0.3]), "t": np.float32([0.2])},
    )  # fmt: skip
    reference = expected(made, {"b": boxes, "s": scores})["y"]
    answer = interpret(convert(made), {"b": boxes, "s": scores})["y"]
    assert answer.shape == (2 * 3 * 4, 3)
    np.testing.assert_array_equal(answer[: len(reference)], reference)
    assert (answer[len(reference) :] == -1).all()


def test_places_of_what_is_not_zero_have_room_for_all_elements() -> None:
    made = model([node("NonZero", "x", "y")], {"x": floats(3, 4)}, "y")
    x = random(3, 4) * (RNG.random((3, 4)) > 0.5)
    answer = interpret(convert(made), {"x": x})["y"]
    reference = np.array(np.nonzero(x))
    np.testing.assert_array_equal(answer[:, : reference.shape[1]], reference)
    assert (answer[:, reference.shape[1] :] == -1).all()
