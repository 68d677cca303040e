"""Which operands of a node are taken by rows, and which nodes stay whole."""

import pytest

from isthmus.split.onnx_rules import NodeFacts, node_rule

IMAGE = (1, 3, 8, 5)


def sliced(op, *dims, static=(), **attributes):
    """The operands, "a" and so on, that are taken by rows; None where the node stays whole."""
    names = tuple("abcd"[: len(dims)])
    facts = {**dict(zip(names, dims, strict=True)), "y": IMAGE}
    made = node_rule(NodeFacts(op, names, "y", attributes, facts, frozenset(static), True))
    return None if made is None else "".join(made.rule.sliced)


@pytest.mark.parametrize(
    ("other", "static", "wanted"),
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
def test_an_operand_is_taken_by_rows_if_it_has_any(other, static, wanted):
    assert sliced("Add", IMAGE, other, static=static) == wanted


@pytest.mark.parametrize(
    ("op", "axis", "wanted"),
    [("Softmax", 3, "a"), ("Softmax", -1, "a"), ("Softmax", 2, None), ("Softmax", -2, None), ("Softmax", 1, None)],
)
def test_a_softmax_along_columns_is_taken_by_rows(op, axis, wanted):
    assert sliced(op, IMAGE, axis=axis) == wanted


@pytest.mark.parametrize(("axis", "wanted"), [(1, "ab"), (3, "ab"), (-1, "ab"), (2, None), (-2, None)])
def test_images_are_joined_by_rows_along_any_axis_but_that_of_the_rows(axis, wanted):
    assert sliced("Concat", IMAGE, IMAGE, axis=axis) == wanted
    assert sliced("Concat", IMAGE, IMAGE, static="b", axis=axis) is None


@pytest.mark.parametrize(
    ("scales", "axis", "wanted"), [((8,), 2, None), ((8,), -2, None), ((1,), 2, "a"), ((3,), 1, "a"), ((3,), None, "a")]
)
def test_scales_of_rows_keep_a_quantization_whole(scales, axis, wanted):
    attributes = {} if axis is None else {"axis": axis}
    for op in ("QuantizeLinear", "DequantizeLinear"):
        assert sliced(op, IMAGE, scales, static="b", **attributes) == wanted
        assert sliced(op, IMAGE, scales, **attributes) is None
