"""Which operands of a node are taken by rows, and which nodes stay whole."""

import numpy as np
import pytest
from frontends.tflite.build import T, options, single

from isthmus.split.onnx_rules import PIXELS, ROW_AXIS, NodeFacts, NodeRule, node_rule
from isthmus.split.tflite import TfliteFile

IMAGE = (1, 3, 8, 5)


def sliced(op, *dims, static=(), **attributes):
    """The operands, "a" and so on, that are taken by rows; None where the node stays whole."""
    names = tuple("abcd"[: len(dims)])
    constant = tuple(name in static for name in names)
    rule = node_rule(NodeFacts(names, dims, constant, IMAGE, ROW_AXIS, op, attributes, True))
    return None if rule is None else "".join(rule.sliced)


@pytest.mark.parametrize(
    ("other", "static", "expected"),
    [
        ((), "", "a"),
        ((5,), "", "a"),
        ((1, 5), "", "a"),
        ((3, 1, 5), "b", "a"),
        ((1, 3, 1, 5), "b", "a"),
        (IMAGE, "", "ab"),
        ((1, 1, 8, 1), "", "ab"),
        ((8, 5), "", None),
        ((3, 8, 5), "", None),
        ((8, 1), "b", None),
        (IMAGE, "b", None),
    ],
)
def test_an_operand_is_taken_by_rows_if_it_has_any(other, static, expected) -> None:
    assert sliced("Add", IMAGE, other, static=static) == expected


@pytest.mark.parametrize(
    ("op", "expected"), [("Mish", "a"), ("Abs", "a"), ("Tan", "a"), ("Acos", None), ("Nobody", None)]
)
def test_functions_of_single_elements_are_those_of_the_table_of_operations(op, expected) -> None:
    assert sliced(op, IMAGE) == expected


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"axis": 3}, "a"),
        ({"axis": -1}, "a"),
        ({}, "a"),
        ({"axis": 2}, None),
        ({"axis": -2}, None),
        ({"axis": 1}, None),
    ],
)
def test_a_softmax_along_columns_is_taken_by_rows(attributes, expected) -> None:
    assert sliced("Softmax", IMAGE, **attributes) == expected


@pytest.mark.parametrize(("axis", "expected"), [(1, "ab"), (3, "ab"), (-1, "ab"), (2, None), (-2, None)])
def test_images_are_joined_by_rows_along_any_axis_but_that_of_the_rows(axis, expected) -> None:
    assert sliced("Concat", IMAGE, IMAGE, axis=axis) == expected
    assert sliced("Concat", IMAGE, IMAGE, static="b", axis=axis) is None


@pytest.mark.parametrize(
    ("scales", "axis", "expected"),
    [((8,), 2, None), ((8,), -2, None), ((1,), 2, "a"), ((3,), 1, "a"), ((3,), None, "a")],
)
def test_scales_of_rows_keep_a_quantization_whole(scales, axis, expected) -> None:
    attributes = {} if axis is None else {"axis": axis}
    for op in ("QuantizeLinear", "DequantizeLinear"):
        assert sliced(op, IMAGE, scales, static="b", **attributes) == expected
        assert sliced(op, IMAGE, scales, **attributes) is None


def rule_of(op, given, result, *others, is_float=True, **attributes) -> NodeRule | None:
    """The rule of a node with an image, constants of some dimensions, and a result."""
    names = ("x", *(f"c{i}" for i in range(len(others))))
    static = (False, *(True for _ in others))
    return node_rule(NodeFacts(names, (given, *others), static, result, ROW_AXIS, op, attributes, is_float))


def needs(made: NodeRule | None, *rows: tuple[int, int]) -> list[tuple[int, int]]:
    assert made is not None
    return [made.rows.need(*each) for each in rows]


def test_a_transposed_convolution_that_repeats_rows_takes_them_whole() -> None:
    made = rule_of("ConvTranspose", (1, 3, 8, 5), (1, 6, 24, 15), (3, 6, 3, 3), strides=[3, 3])
    assert needs(made, (0, 3), (3, 9), (6, 7), (5, 8)) == [(0, 1), (1, 3), (2, 3), (1, 3)]
    assert (made.sliced, made.rows.grain, made.fewest) == (("x",), 3, 3)
    assert made.attributes((0, 3), (0, 1)) == {}


@pytest.mark.parametrize(
    ("channels", "width", "is_float", "fewest"),
    [(3, 1, True, 6), (3, 2, True, 3), (128, 5, True, 3), (129, 5, True, 3 * -(-PIXELS // 5)), (129, 1, False, 3)],
)
def test_sums_of_many_products_want_many_pixels_at_a_time(channels, width, is_float, fewest) -> None:
    given, result = (1, channels, 8, width), (1, 6, 24, 3 * width)
    made = rule_of("ConvTranspose", given, result, (channels, 6, 3, 3), strides=[3, 3], is_float=is_float)
    assert made.fewest == fewest
    plain = rule_of("Conv", given, (1, 6, 8, width), (6, channels, 1, 1), is_float=is_float)
    assert 3 * plain.fewest == fewest


@pytest.mark.parametrize(
    ("rows", "kernel", "attributes"),
    [
        (24, 4, {}), (24, 2, {}), (23, 3, {}), (24, 3, {"output_shape": [24, 15]}),
        (24, 3, {"auto_pad": b"SAME_UPPER"}), (24, 3, {"pads": [1, 0, 0, 0]}), (24, 3, {"pads": [0, 0, 1, 0]}),
        (24, 3, {"output_padding": [0, 1]}),
    ],
)  # fmt: skip
def test_a_transposed_convolution_with_overlapping_or_padded_rows_stays_whole(rows, kernel, attributes) -> None:
    weights = (3, 6, kernel, 3)
    assert rule_of("ConvTranspose", IMAGE, (1, 6, rows, 15), weights, strides=[3, 3], **attributes) is None
    assert sliced("ConvTranspose", IMAGE, weights, strides=[3, 3]) is None, "weights that are no constant"


def test_columns_of_a_transposed_convolution_may_be_cut_off() -> None:
    for more in ({"pads": [0, 1, 0, 1]}, {"auto_pad": b"VALID"}, {"output_padding": [0, 0]}):
        assert rule_of("ConvTranspose", IMAGE, (1, 6, 24, 13), (3, 6, 3, 3), strides=[3, 3], **more) is not None


@pytest.mark.parametrize(
    ("given", "attributes", "whole"),
    [
        (8, {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}, False),
        (12, {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}, False),
        (8, {}, True), (12, {}, False), (6, {}, False), (4, {"mode": b"linear"}, True), (7, {}, True),
        (12, {"nearest_mode": b"floor"}, True), (12, {"coordinate_transformation_mode": b"asymmetric"}, True),
        (12, {"coordinate_transformation_mode": b"align_corners"}, True),
        (12, {"coordinate_transformation_mode": b"half_pixel", "nearest_mode": b"round_prefer_floor"}, False),
    ],
)  # fmt: skip
def test_rows_are_repeated_where_a_runtime_repeats_them_evenly(given, attributes, whole) -> None:
    made = rule_of("Resize", (1, 3, given, 5), (1, 3, 24, 5), **attributes)
    assert (made is None) == whole
    if made is not None:
        times = 24 // given
        assert needs(made, (0, times), (times, 3 * times), (1, times + 1)) == [(0, 1), (1, 3), (0, 2)]
        assert made.rows.grain == times
        assert made.constants((0, times), (0, 1)) == {}


def test_an_enlargement_to_a_size_becomes_one_to_the_rows_that_are_computed() -> None:
    made = rule_of("Resize", (1, 3, 12, 5), (1, 3, 24, 10), (0,), (0,), (4,))
    assert made.constants((4, 10), (2, 5)) == {3: [1, 3, 6, 10]}


@pytest.mark.parametrize(("op", "given"), [("DepthToSpace", (1, 12, 4, 3)), ("SpaceToDepth", (1, 3, 16, 10))])
def test_blocks_of_a_constant_stay_whole(op, given) -> None:
    assert sliced(op, given, blocksize=2) == "a"
    assert sliced(op, given, static="a", blocksize=2) is None


def test_blocks_of_channels_are_rows() -> None:
    deep = rule_of("DepthToSpace", (1, 18, 8, 5), (1, 2, 24, 15), blocksize=3)
    assert needs(deep, (0, 3), (3, 9), (4, 8)) == [(0, 1), (1, 3), (1, 3)]
    assert deep.rows.grain == 3
    flat = rule_of("SpaceToDepth", (1, 2, 24, 15), (1, 18, 8, 5), blocksize=3)
    assert needs(flat, (0, 1), (2, 5)) == [(0, 3), (6, 15)]


@pytest.mark.parametrize(
    ("attributes", "rows", "top", "bottom"),
    [
        ({}, 20, 0, 0),
        ({"pads": [2, 0, 1, 0]}, 23, 2, 1),
        ({"auto_pad": b"VALID", "pads": [9, 9, 9, 9]}, 20, 0, 0),
        ({"auto_pad": b"SAME_UPPER"}, 24, 2, 2),
        ({"auto_pad": b"SAME_LOWER"}, 24, 2, 2),
        ({"auto_pad": b"SAME_UPPER", "strides": [2, 1]}, 12, 1, 2),
        ({"auto_pad": b"SAME_LOWER", "strides": [2, 1]}, 12, 2, 1),
    ],
)
def test_a_window_needs_the_rows_under_it_and_padding_stays_at_the_edges(attributes, rows, top, bottom) -> None:
    """Three rows two apart reach over five; every tile pads what its own windows lack."""
    stride = attributes.get("strides", [1, 1])[0]
    given = {"kernel_shape": [3, 1], "dilations": [2, 1], **attributes}
    made = rule_of("MaxPool", (1, 3, 24, 5), (1, 3, rows, 5), **given)
    for first, last in [(0, 1), (0, rows), (3, 6), (rows - 1, rows)]:
        low, high = first * stride - top, (last - 1) * stride - top + 5
        source = max(low, 0), min(high, 24)
        assert made.rows.need(first, last) == source
        expected = {"pads": [source[0] - low, 0, high - source[1], 0], "auto_pad": None}
        assert made.attributes((first, last), source) == expected
    assert (made.rows.grain, made.fewest) == (1, 1)
    assert rule_of("MaxPool", (1, 3, 24, 5), (1, 3, rows, 5), **given, ceil_mode=1) is None


def tflite_rule(code, given, result, made, *others):
    (step,) = TfliteFile(single(code, [T("f32", given), *others], [T("f32", result)], made), "one").network.steps
    return step.rule


@pytest.mark.parametrize(
    ("given", "corners", "times"),
    [(24, False, 1), (12, False, 2), (6, False, 4), (8, False, None), (12, True, None), (10, False, None)],
)
def test_tflite_repeats_rows_where_floats_have_every_place_exactly(given, corners, times) -> None:
    size = T("i32", [2], data=np.array([24, 5], np.int32))
    made = options("ResizeNearestNeighbor", alignCorners=corners, halfPixelCenters=False)
    rule = tflite_rule("RESIZE_NEAREST_NEIGHBOR", [1, given, 5, 3], [1, 24, 5, 3], made, size)
    assert (rule is None) == (times is None)
    if rule is not None:
        assert (rule.rows.grain, rule.fewest, rule.sliced) == (times, 1, (0,))
        assert [rule.rows.need(0, times), rule.rows.need(times, 3 * times), rule.rows.need(times - 1, times + 1)] == [
            (0, 1), (1, 3), ((times - 1) // times, 2),
        ]  # fmt: skip


def test_blocks_of_channels_are_rows_in_tflite() -> None:
    rule = tflite_rule("DEPTH_TO_SPACE", [1, 8, 5, 18], [1, 24, 15, 2], options("DepthToSpace", blockSize=3))
    assert [rule.rows.need(0, 3), rule.rows.need(3, 9), rule.rows.need(4, 8)] == [(0, 1), (1, 3), (1, 3)]
    assert (rule.rows.grain, rule.fewest) == (3, 1)
