"""Branches, loops and functions that can be decided at load time; and the one error for what is not supported."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from frontends.onnx.graphs import check, convert, floats, interpret, model, node, operations, subgraph
from isthmus.errors import Code, QnnError

BRANCHES = {
    "then_branch": subgraph([node("Relu", "x", "t")], outputs="t"),
    "else_branch": subgraph([node("Neg", "x", "e")], outputs="e"),
}


@pytest.mark.parametrize(("condition", "op"), [(True, "Relu"), (False, "ElementWiseNeg")])
def test_a_constant_condition_leaves_one_branch(condition: bool, op: str) -> None:
    made = model([node("If", "c", "y", **BRANCHES)], {"x": floats(3)}, "y", {"c": np.array(condition)})
    assert operations(check(made)) == {op: 1}


def test_a_condition_on_a_shape_is_constant() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Equal", "n one", "c"),
        node("If", "c", "y", **BRANCHES),
    ]
    made = model(nodes, {"x": floats("n", 2)}, "y", {"zero": np.int64(0), "one": np.int64(1)})
    assert operations(check(made)) == {"Relu": 1}


@pytest.mark.parametrize("condition", [True, False])
def test_a_condition_of_the_data_selects_between_branches_of_one_shape(condition: bool) -> None:
    made = model([node("If", "c", "y", **BRANCHES)], {"c": (TensorProto.BOOL, ()), "x": floats(3)}, "y")
    x = np.float32([-1, 2, -3])
    answer = interpret(convert(made), {"c": np.array(condition), "x": x})["y"]
    np.testing.assert_array_equal(answer, np.maximum(x, 0) if condition else -x)


def loop(trips: int) -> object:
    body = subgraph(
        [node("Add", "v x", "w"), node("Mul", "w half", "s"), node("Identity", "go", "again")],
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [2]),
        ],
        "again w s",
    )
    body.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    constants = {"n": np.int64(trips), "start": np.float32([0, 1]), "half": np.float32(0.5)}
    return model([node("Loop", "n - start", "y scan", body=body)], {"x": floats(2)}, "y scan", constants)


def test_a_loop_of_known_length_is_unrolled() -> None:
    graph = check(loop(3))  # type: ignore[arg-type]
    assert operations(graph)["ElementWiseAdd"] == 3


def test_a_loop_of_absurd_length_is_reported() -> None:
    with pytest.raises(QnnError, match="Loop x1"):
        convert(loop(1 << 40))  # type: ignore[arg-type]


def test_functions_of_the_model_are_put_in_place() -> None:
    leaky = helper.make_node("LeakyRelu", ["t"], ["out"])
    reference = leaky.attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "alpha", "slope", 1
    scaled = helper.make_function(
        "mine", "Scaled", ["v", "k", "unused"], ["out"], [helper.make_node("Mul", ["v", "k"], ["t"]), leaky],
        [helper.make_opsetid("", 17)], ["slope"],
    )  # fmt: skip
    call = node("Scaled", "x two", "y", slope=0.25)
    call.domain = "mine"
    made = model([call], {"x": floats(2, 3)}, "y", {"two": np.float32(2)}, functions=[scaled], domains=["mine"])
    assert operations(check(made)) == {"ElementWiseMultiply": 1, "Prelu": 1}


@pytest.mark.parametrize("given", [None, 0.25])
def test_an_attribute_that_a_call_leaves_out_has_the_default_of_its_function(given: float | None) -> None:
    leaky = helper.make_node("LeakyRelu", ["v"], ["out"])
    reference = leaky.attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "alpha", "slope", 1
    sloped = helper.make_function(
        "mine", "Sloped", ["v"], ["out"], [leaky], [helper.make_opsetid("", 17)], [],
        [helper.make_attribute("slope", 0.75)],
    )  # fmt: skip
    call = node("Sloped", "x", "y", **({} if given is None else {"slope": given}))
    call.domain = "mine"
    made = model([call], {"x": floats(2)}, "y", functions=[sloped], domains=["mine"])
    [y] = interpret(convert(made), {"x": np.float32([-4, 4])}).values()
    np.testing.assert_array_equal(y, [-3 if given is None else -1, 4])


def test_a_function_that_calls_itself_is_refused() -> None:
    endless = helper.make_function(
        "mine", "Endless", ["v"], ["out"], [helper.make_node("Endless", ["v"], ["out"], domain="mine")],
        [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)],
    )  # fmt: skip
    call = node("Endless", "x", "y")
    call.domain = "mine"
    with pytest.raises(QnnError, match="nests deeper"):
        convert(model([call], {"x": floats(2)}, "y", functions=[endless], domains=["mine"]))


def test_one_error_lists_every_unsupported_operation() -> None:
    odd = node("Frobnicate", "a", "b")
    odd.name, odd.domain = "odd", "somewhere"
    nodes = [
        node("Det", "x", "d1"),
        node("Det", "x", "d2"),
        node("Relu", "d1", "a"),
        odd,
        node("GRU", "g w r", "g2", hidden_size=1, clip=2.0),
        node("Add", "b d2", "y"),
    ]
    for index, name in enumerate(("first", "second")):
        nodes[index].name = name
    constants = {"g": np.zeros((1, 1, 1), np.float32), "w": np.zeros((1, 3, 1), np.float32)}
    constants["r"] = constants["w"]
    made = model(nodes, {"x": floats(3, 3)}, "y", constants, domains=["somewhere"])
    with pytest.raises(QnnError) as caught:
        convert(made)
    assert caught.value.code is Code.COMMON_NOT_SUPPORTED
    text = str(caught.value)
    assert "4 operations are not supported" in text
    assert "Det x2 ('first', 'second')" in text
    assert "somewhere:Frobnicate x1 ('odd')" in text
    assert "GRU x1 (clip:" in text


def test_unsupported_nodes_inside_a_branch_are_listed_once() -> None:
    branches = BRANCHES | {"then_branch": subgraph([node("Det", "x", "t")], outputs="t")}
    made = model([node("If", "c", "y", **branches)], {"x": floats(3, 3)}, "y", {"c": np.array(True)})
    with pytest.raises(QnnError, match=r"1 operation is not supported: Det x1"):
        convert(made)


@pytest.mark.parametrize("kind", [TensorProto.COMPLEX64, TensorProto.STRING])
def test_unsupported_data_types_of_inputs_are_reported(kind: int) -> None:
    made = model([node("Identity", "x", "y")], {"x": (kind, (2,))}, "y")
    with pytest.raises(QnnError, match="x") as caught:
        convert(made)
    assert caught.value.code is Code.COMMON_NOT_SUPPORTED


def test_half_precision_constants_may_be_cast_at_load_time() -> None:
    nodes = [node("Cast", "h", "f", to=TensorProto.FLOAT), node("Add", "x f", "y")]
    check(model(nodes, {"x": floats(2)}, "y", {"h": np.float16([0.5, 2])}))
