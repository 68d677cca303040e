"""What goes to the backend and what stays: partitions, subgraphs, variables, dynamic tensors, resizing."""

from __future__ import annotations

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from frontends.tflite.build import Op, Subgraph, T, model, options
from frontends.tflite.cases import CASES
from frontends.tflite.runners import random_input
from frontends.tflite.test_control_flow import accumulator, counted_loop, data_dependent_loop, lstm
from support.suites import sampled

from delegate.harness import ADD, chain, doubled, plain, run, with_delegate
from isthmus.delegate import SkipOptions, modify_graph_with_delegate

VECTOR = np.float32([[-1.5, -0.5, 0.5, 2.0]])


def same(content: bytes, delegate, *inputs: np.ndarray, times: int = 1) -> None:
    ours, theirs = with_delegate(content, delegate), plain(content)
    theirs.allocate_tensors()
    for _ in range(times):
        for mine, other in zip(run(ours, *inputs), run(theirs, *inputs), strict=True):
            np.testing.assert_allclose(mine, other, rtol=2e-6, atol=2e-6)
    del ours


@pytest.mark.parametrize("case", sampled(CASES, 16), ids=lambda case: case.name)
def test_each_operator_matches_the_interpreter(case, make) -> None:
    delegate = make()
    theirs = Interpreter(model_content=case.model)
    theirs.allocate_tensors()
    ours = with_delegate(case.model, delegate)
    random = np.random.default_rng(3)
    inputs = [random_input(random, tuple(d["shape"]), np.dtype(d["dtype"])) for d in theirs.get_input_details()]
    if case.positive:
        inputs = [np.abs(x) + np.float32(0.1) for x in inputs]
    for result, reference in zip(run(ours, *inputs), run(theirs, *inputs), strict=True):
        assert (result.shape, result.dtype) == (reference.shape, reference.dtype)
        if reference.dtype.kind == "f":
            np.testing.assert_allclose(result, reference, rtol=2e-6, atol=2e-6 * max(1.0, np.abs(reference).max()))
        else:
            difference = np.abs(result.astype(np.int64) - reference.astype(np.int64))
            assert difference.max(initial=0) <= case.steps
    del ours


def test_what_the_backend_does_not_support_stays_and_cuts_the_graph(make) -> None:
    content = model(
        Subgraph(
            [T("f32", (1, 4), name=f"t{i}") for i in range(4)],
            [Op("NEG", [0], [1]), Op("ATAN2", [1, 0], [2]), Op("ABS", [2], [3])],
            [0],
            [3],
        )
    )
    delegate = make()
    same(content, delegate, VECTOR)
    assert delegate.taken == [(2, 3, 2)]
    assert "not supported" in delegate.delegations[0].staying[1]
    assert delegate.lines[:2] == [
        "INFO: TfLiteQnnDelegate delegate: 2 nodes delegated out of 3 nodes with 2 partitions.",
        "INFO: Replacing 2 node(s) with delegate (TfLiteQnnDelegate) node, yielding 3 partitions.",
    ]


def test_a_whole_model_is_one_partition(make) -> None:
    delegate = make()
    same(chain("NEG", "ABS", "EXP"), delegate, VECTOR)
    assert delegate.lines == [
        "INFO: TfLiteQnnDelegate delegate: 3 nodes delegated out of 3 nodes with 1 partitions.",
        "INFO: Replacing 3 node(s) with delegate (TfLiteQnnDelegate) node, yielding 1 partitions.",
    ]


@pytest.mark.parametrize("skipped", [["ABS"], [101]], ids=["by name", "by number"])
def test_operators_on_the_skip_list_stay(skipped, make) -> None:
    delegate = make(skip_options=SkipOptions(skip_delegate_ops=skipped))
    same(chain("NEG", "ABS", "EXP", "ABS"), delegate, VECTOR)
    assert delegate.delegations[0].staying == {1: "it is on a skip list", 3: "it is on a skip list"}
    assert delegate.taken == [(2, 4, 2)]


def test_nodes_on_the_skip_list_stay(make) -> None:
    delegate = make(skip_options=SkipOptions(skip_delegate_node_ids=[0, 2, 99]))
    same(chain("NEG", "ABS", "EXP"), delegate, VECTOR)
    assert sorted(delegate.delegations[0].staying) == [0, 2]


def test_a_model_with_no_supported_node_stays_in_the_interpreter(make) -> None:
    tensors = [T("f32", (1, 4), name=name) for name in ("x", "y")]
    content = model(Subgraph(tensors, [Op("ATAN2", [0, 0], [1])], [0], [1]))
    delegate = make()
    same(content, delegate, VECTOR)
    interpreter = plain(content)
    modify_graph_with_delegate(interpreter, delegate)
    interpreter.allocate_tensors()
    np.testing.assert_allclose(run(interpreter, VECTOR)[0], np.arctan2(VECTOR, VECTOR), rtol=1e-6)
    assert delegate.taken == [(0, 1, 0)] * 2
    reason = "the operator is not supported"
    assert delegate.lines[:2] == [
        "INFO: TfLiteQnnDelegate delegate: 0 nodes delegated out of 1 nodes with 0 partitions.",
        f"WARN: The model stays in the interpreter: backend 'cpu' takes none of its 1 nodes: {reason}",
    ]
    assert delegate.stats.executions == 0


def hybrid(*more: Op) -> bytes:
    """A fully connected layer of floats with weights of 8 bits, which LiteRT computes in integers."""
    random = np.random.default_rng(5)
    tensors = [
        T("f32", (2, 12), name="x"), T("i8", (7, 12), random.integers(-127, 128, (7, 12)), 0.02, name="weights"),
        T("f32", (2, 7), name="product"), T("f32", (2, 7), name="y"),
    ]  # fmt: skip
    layer = Op("FULLY_CONNECTED", [0, 1], [2], options("FullyConnected"))
    return model(Subgraph(tensors, [layer, *more], [0], [3 if more else 2]))


@pytest.mark.parametrize(
    ("more", "taken"), [((), (0, 1, 0)), ((Op("ABS", [2], [3]),), (1, 2, 1))], ids=["alone", "with others"]
)
def test_htp_leaves_hybrid_nodes_to_the_interpreter(more, taken, make) -> None:
    content, x = hybrid(*more), np.random.default_rng(6).standard_normal((2, 12)).astype(np.float32)
    delegate = make("HTP")
    ours, theirs = with_delegate(content, delegate), plain(content)
    theirs.allocate_tensors()
    for _ in range(2):
        np.testing.assert_array_equal(run(ours, x)[0], run(theirs, x)[0])
        x = -2 * x
    assert delegate.taken == [taken]
    assert "HTP does not take in[1] SFIXED_POINT_8 here" in delegate.delegations[0].staying[0]
    del ours


def test_nodes_of_another_delegate_are_distinguished_from_unsupported_ones(make) -> None:
    interpreter = Interpreter(model_content=chain("NEG", "ABS"))
    interpreter.allocate_tensors()
    with pytest.raises(RuntimeError, match=r"a delegate has it already.*BUILTIN_WITHOUT_DEFAULT_DELEGATES"):
        modify_graph_with_delegate(interpreter, make())


def test_a_delegate_is_applied_to_an_interpreter_that_exists(make) -> None:
    interpreter = plain(doubled(1, 4))
    interpreter.allocate_tensors()
    delegate = make()
    modify_graph_with_delegate(interpreter, delegate)
    np.testing.assert_array_equal(run(interpreter, VECTOR)[0], 2 * VECTOR)
    assert delegate.stats.executions == 1
    del interpreter


# -- subgraphs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [counted_loop(5), data_dependent_loop()], ids=["counted", "by data"])
def test_a_loop_stays_and_its_subgraphs_are_delegated(content, make) -> None:
    delegate = make()
    interpreter = with_delegate(content, delegate)
    x = np.float32([1, 2, 3])[: interpreter.get_input_details()[0]["shape"][0]]
    theirs = plain(content)
    theirs.allocate_tensors()
    for _ in range(3):
        np.testing.assert_array_equal(run(interpreter, x)[0], run(theirs, x)[0])
    assert delegate.taken[0][0] == 0
    assert all(taken == nodes > 0 for taken, nodes, _ in delegate.taken[1:])
    assert delegate.stats.executions > 3
    del interpreter


def signatures(content: bytes) -> bytes:
    """The model with a signature for each subgraph, "s0", "s1" and so on; tensors are called by their own names."""
    made = schema.ModelT.InitFromPackedBuf(content, 0)
    made.signatureDefs = []
    for index, subgraph in enumerate(made.subgraphs):
        signature = schema.SignatureDefT()
        signature.signatureKey, signature.subgraphIndex = f"s{index}", index
        for kind in ("inputs", "outputs"):
            mapped = []
            for number in getattr(subgraph, kind):
                entry = schema.TensorMapT()
                entry.name, entry.tensorIndex = subgraph.tensors[number].name, number
                mapped.append(entry)
            setattr(signature, kind, mapped)
        made.signatureDefs.append(signature)
    builder = flatbuffers.Builder(1024)
    builder.Finish(made.Pack(builder), b"TFL3")
    return bytes(builder.Output())


@pytest.mark.parametrize("backend", ["CPU", "HTP", "LPAI"])
def test_subgraphs_that_are_called_by_signatures_are_delegated_each_by_itself(backend, make) -> None:
    def one(code: str) -> Subgraph:
        return Subgraph([T("f32", (1, 4), name="x"), T("f32", (1, 4), name="y")], [Op(code, [0], [1])], [0], [1])

    delegate = make(backend)
    interpreter = plain(signatures(model(one("NEG"), one("ABS"), one("EXP"))), experimental_delegates=[delegate])
    assert delegate.taken == [(1, 1, 1)] * 3
    runners = [interpreter.get_signature_runner(f"s{index}") for index in range(3)]
    for _ in range(2):
        answers = [runner(x=VECTOR)["y"] for runner in runners]
        for answer, expected in zip(answers, (-VECTOR, np.abs(VECTOR), np.exp(VECTOR)), strict=True):
            np.testing.assert_allclose(answer, expected, rtol=1e-6)
    assert delegate.stats.executions == 6
    del interpreter, runners


# -- variables ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["CPU", "HTP", "LPAI"])
def test_resource_variables_are_taken_with_what_initialises_them(backend, make) -> None:
    delegate = make(backend)
    same(accumulator(), delegate, np.float32([1, 2]), times=4)
    assert delegate.taken == [(5, 5, 1)], "the subgraph that only initialises is nobody's any more"


def test_variables_that_a_node_which_stays_uses_stay_whole(make) -> None:
    delegate = make(skip_options=SkipOptions(skip_delegate_ops=["READ_VARIABLE"]))
    same(accumulator(), delegate, np.float32([1, 2]), times=4)
    staying = delegate.delegations[0].staying
    assert sorted(staying) == [0, 1, 2, 4]
    assert "several partitions" in staying[4] or "a handle" in staying[4]


def test_an_initialisation_that_stays_keeps_its_variables(make) -> None:
    delegate = make(skip_options=SkipOptions(skip_delegate_ops=["CALL_ONCE"]))
    same(accumulator(), delegate, np.float32([1, 2]), times=4)
    assert delegate.taken[0][:2] == (1, 5)
    assert delegate.taken[1][0] == 0, "the initialisation is run by the interpreter"


HANDLE, PAIR = T("resource", (1,)), T("f32", (2,))
TOTAL = options("VarHandle", container="", sharedName="total")
START = Subgraph(
    [HANDLE, T("f32", (2,), [1, 2])], [Op("VAR_HANDLE", [], [0], TOTAL), Op("ASSIGN_VARIABLE", [0, 1], [])], [], []
)


def test_variables_that_several_partitions_would_share_stay(make) -> None:
    operators = [
        Op("CALL_ONCE", [], [], options("CallOnce", initSubgraphIndex=1)),
        Op("VAR_HANDLE", [], [1], TOTAL),
        Op("READ_VARIABLE", [1], [2]),
        Op("ADD", [0, 2], [3], ADD),
        Op("ATAN2", [3, 0], [4]),
        Op("NEG", [4], [5]),
        Op("ASSIGN_VARIABLE", [1, 5], []),
    ]
    content = model(Subgraph([PAIR, HANDLE, PAIR, PAIR, PAIR, T("f32", (2,), name="y")], operators, [0], [5]), START)
    delegate = make()
    same(content, delegate, np.float32([1, 2]), times=4)
    assert sorted(delegate.delegations[0].staying) == [0, 1, 2, 4, 6]


def test_variables_that_a_loop_uses_too_stay(make) -> None:
    count, flag = T("i32", ()), T("bool", ())
    main = Subgraph(
        [PAIR, T("i32", (), 0), count, HANDLE, PAIR, T("f32", (2,), name="y")],
        [
            Op("CALL_ONCE", [], [], options("CallOnce", initSubgraphIndex=1)),
            Op("WHILE", [1], [2], options("While", condSubgraphIndex=2, bodySubgraphIndex=3)),
            Op("VAR_HANDLE", [], [3], TOTAL),
            Op("READ_VARIABLE", [3], [4]),
            Op("ADD", [0, 4], [5], ADD),
        ],
        [0],
        [5, 2],
    )
    condition = Subgraph([count, T("i32", (), 3), flag], [Op("LESS", [0, 1], [2])], [0], [2])
    body = Subgraph(
        [count, T("i32", (), 1), count, HANDLE, PAIR, PAIR],
        [
            Op("ADD", [0, 1], [2], ADD),
            Op("VAR_HANDLE", [], [3], TOTAL),
            Op("READ_VARIABLE", [3], [4]),
            Op("ADD", [4, 4], [5], ADD),
            Op("ASSIGN_VARIABLE", [3, 5], []),
        ],
        [0],
        [2],
    )
    content = model(main, START, condition, body)
    delegate = make()
    same(content, delegate, np.float32([1, 2]), times=3)
    assert delegate.delegations[0].staying[2] == "other subgraphs use its variable"


def test_two_interpreters_have_variables_of_their_own(make) -> None:
    delegate = make()
    one, two = (with_delegate(accumulator(), delegate) for _ in range(2))
    for _ in range(3):
        run(one, np.float32([1, 1]))
    assert run(one, np.float32([0, 0]))[0].tolist() == [13, 23]
    assert run(two, np.float32([0, 0]))[0].tolist() == [10, 20]
    del one, two


def test_one_delegate_serves_interpreter_after_interpreter(make) -> None:
    # LiteRT's contexts get addresses of freed ones, also of those of subgraphs that initialise variables.
    delegate = make()
    for _ in range(20):
        for content, taken in ((accumulator(), (5, 5, 1)), (doubled(1, 2), (1, 1, 1))):
            interpreter = with_delegate(content, delegate)
            assert delegate.taken[-1] == taken
            del interpreter
            assert not delegate._state.backend._owned, "contexts end with the interpreter that has their nodes"


@pytest.mark.parametrize("names", [("a", "a", "a"), ("t0/14", "t0", "y"), ("a", "b", "a/next"), ("a/next", "a", "y")])
def test_names_that_tensors_share_or_that_look_made_up_do_not_mix_variables_up(names, make) -> None:
    content, delegate = lstm(True, names), make()
    shape = plain(content).get_input_details()[0]["shape"]
    same(content, delegate, np.random.default_rng(4).standard_normal(shape).astype(np.float32), times=3)
    assert delegate.taken == [(1, 1, 1)]


@pytest.mark.parametrize("backend", ["CPU", "HTP", "LPAI"])
@pytest.mark.parametrize("time_major", [True, False])
def test_variable_tensors_stay_the_interpreters_and_are_reset_by_it(backend, time_major, make) -> None:
    delegate = make(backend)
    content = lstm(time_major)
    ours, theirs = with_delegate(content, delegate), plain(content)
    theirs.allocate_tensors()
    assert delegate.taken == [(1, 1, 1)]
    random = np.random.default_rng(1)
    for step in range(6):
        if step == 3:
            for each in (ours, theirs):
                each.reset_all_variables()
        x = random.standard_normal(ours.get_input_details()[0]["shape"]).astype(np.float32)
        np.testing.assert_allclose(run(ours, x)[0], run(theirs, x)[0], rtol=1e-5, atol=1e-6)
    del ours


# -- what partitions cannot pass on ------------------------------------------------------------------------------------


def fourier(last: str) -> bytes:
    tensors = [
        T("f32", (1, 16), name="x"), T("i32", (2,), [1, 16]), T("c64", (1, 9)), T("f32", (1, 9)), T("f32", (1, 9)),
    ]  # fmt: skip
    operators = [Op("RFFT2D", [0, 1], [2], options("Rfft2d")), Op("COMPLEX_ABS", [2], [3]), Op(last, [3], [4])]
    return model(Subgraph(tensors, operators, [0], [4]))


def test_complex_numbers_stay_inside_a_partition(make) -> None:
    x = np.random.default_rng(0).standard_normal((1, 16)).astype(np.float32)
    whole = make()
    same(fourier("NEG"), whole, x)
    assert whole.taken == [(3, 3, 1)]
    cut = make(skip_options=SkipOptions(skip_delegate_ops=["COMPLEX_ABS"]))
    same(fourier("NEG"), cut, x)
    assert cut.taken == [(1, 3, 1)]
    assert "is complex" in cut.delegations[0].staying[0]


def test_constants_that_other_partitions_compute_are_known(make) -> None:
    # The shape that the last node needs comes from a partition before the one that stays.
    tensors = [
        T("f32", (2, 3), name="x", signature=(-1, 3)),
        T("i32", (2,), name="shape"),
        T("f32", (2, 3), name="turned", signature=(-1, 3)),
        T("f32", (2, 3), name="y", signature=(-1, 3)),
    ]
    operators = [
        Op("SHAPE", [0], [1], options("Shape", outType=2)),
        Op("NEG", [0], [2]),
        Op("RESHAPE", [2, 1], [3], options("Reshape")),
    ]
    content = model(Subgraph(tensors, operators, [0], [3]))
    delegate = make(skip_options=SkipOptions(skip_delegate_ops=["NEG"]))
    interpreter = plain(content, experimental_delegates=[delegate])
    for rows in (2, 5, 1):
        interpreter.resize_tensor_input(0, (rows, 3))
        interpreter.allocate_tensors()
        x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_array_equal(run(interpreter, x)[0], -x)
    del interpreter


# -- shapes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["CPU", "HTP", "LPAI"])
def test_a_resized_input_is_prepared_for_when_tensors_are_allocated(backend, make) -> None:
    delegate = make(backend)
    interpreter = plain(doubled(1, 4, signature=(-1, 4)), experimental_delegates=[delegate])
    for rows in (1, 3, 3, 2, 1):
        interpreter.resize_tensor_input(0, (rows, 4))
        interpreter.allocate_tensors()
        x = np.random.default_rng(rows).random((rows, 4), np.float32)
        np.testing.assert_array_equal(run(interpreter, x)[0], 2 * x)
    assert delegate.stats.executions == 5
    del interpreter


def test_a_fixed_input_may_be_resized_too(make) -> None:
    interpreter = with_delegate(doubled(1, 4), make())
    interpreter.resize_tensor_input(0, (2, 4))
    with pytest.raises(RuntimeError, match="not ready"):
        interpreter.invoke()
    interpreter.allocate_tensors()
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(run(interpreter, x)[0], 2 * x)
    del interpreter


@pytest.mark.parametrize(
    ("when", "signature"), [("before", (-1, -1)), ("after", (-1, -1)), ("after", None)],
    ids=["told by the file", "told by both", "told by the interpreter"],
)  # fmt: skip
def test_what_follows_a_dynamic_tensor_stays(when, signature, make) -> None:
    # How often is an input, so that the repeated tensor has a shape only when it runs.
    tensors = [
        T("f32", (2, 3), name="x"), T("i32", (2,), name="times"), T("f32", (2, 3), name="a"),
        T("f32", (2, 3), name="b", signature=signature), T("f32", (2, 3), name="y", signature=signature),
    ]  # fmt: skip
    operators = [Op("NEG", [0], [2]), Op("TILE", [2, 1], [3], options("Tile")), Op("ABS", [3], [4])]
    content = model(Subgraph(tensors, operators, [0, 1], [4]))
    delegate = make()
    interpreter = plain(content, experimental_delegates=[delegate] if when == "before" else None)
    interpreter.allocate_tensors()
    if when == "after":
        modify_graph_with_delegate(interpreter, delegate)
    assert sorted(delegate.delegations[0].staying) == [1, 2]
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    for times in ([1, 2], [3, 1], [1, 1]):
        np.testing.assert_array_equal(run(interpreter, x, np.int32(times))[0], np.tile(x, times))
    del interpreter


def test_what_the_interpreter_has_made_dynamic_stays_though_its_shape_could_be_known(make) -> None:
    # The interpreter negates when it runs; the delegate folds it, if it comes before tensors are allocated.
    tensors = [
        T("f32", (2, 3), name="x"), T("i32", (2,), [-1, -2]), T("i32", (2,), name="times"), T("f32", (2, 6), name="y"),
    ]  # fmt: skip
    content = model(Subgraph(tensors, [Op("NEG", [1], [2]), Op("TILE", [0, 2], [3], options("Tile"))], [0], [3]))
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    before, after = make(), make()
    early, late = with_delegate(content, before), plain(content)
    late.allocate_tensors()
    modify_graph_with_delegate(late, after)
    for interpreter in (early, late):
        np.testing.assert_array_equal(run(interpreter, x)[0], np.tile(x, (1, 2)))
    assert before.taken == [(2, 2, 1)]
    assert after.delegations[0].staying == {1: "tensor 3 is dynamic"}
    del early, late, interpreter


def test_a_partition_with_an_unforeseen_dynamic_tensor_is_rebuilt_when_it_runs(make) -> None:
    tensors = [
        T("f32", (2, 3), name="x"), T("i32", (2,), name="times"), T("f32", (2, 3), name="b"),
        T("f32", (2, 3), name="y"),
    ]  # fmt: skip
    content = model(Subgraph(tensors, [Op("TILE", [0, 1], [2], options("Tile")), Op("NEG", [2], [3])], [0, 1], [3]))
    delegate = make()
    interpreter = with_delegate(content, delegate)
    assert delegate.taken == [(1, 2, 1)]
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    for times in ([1, 2], [3, 1], [3, 1], [1, 1]):
        np.testing.assert_array_equal(run(interpreter, x, np.int32(times))[0], -np.tile(x, times))
    del interpreter


@pytest.mark.parametrize("backend", ["CPU", "HTP", "LPAI"])
def test_variables_of_either_kind_survive_an_allocation_and_several_partitions(backend, make) -> None:
    for content, skipped in ((accumulator(), ["ADD"]), (accumulator(), []), (lstm(True), [])):
        delegate = make(backend, skip_options=SkipOptions(skip_delegate_ops=skipped))
        theirs, ours = plain(content), plain(content, experimental_delegates=[delegate])
        for each in (theirs, ours):
            each.allocate_tensors()
        x = np.ones(theirs.get_input_details()[0]["shape"], np.float32)
        for step in range(6):
            if step == 3:
                # Tensors have their memory: nothing is to be done.
                for each in (theirs, ours):
                    each.allocate_tensors()
            np.testing.assert_allclose(run(ours, x)[0], run(theirs, x)[0], rtol=1e-5, atol=1e-6, err_msg=str(step))
        del ours, each


def test_an_operator_that_a_resize_makes_invalid_fails_when_tensors_are_allocated(make) -> None:
    tensors = [T("f32", (1, 4), name="x"), T("i32", (2,), [2, 2]), T("f32", (2, 2), name="y")]
    content = model(Subgraph(tensors, [Op("RESHAPE", [0, 1], [2], options("Reshape"))], [0], [2]))
    interpreter = with_delegate(content, make())
    interpreter.resize_tensor_input(0, (1, 5))
    with pytest.raises(RuntimeError, match=r"\[1, 5\] cannot take the shape \[2, 2\]\n.*TfLiteQnnDelegate"):
        interpreter.allocate_tensors()
    interpreter.resize_tensor_input(0, (1, 4))
    interpreter.allocate_tensors()
    np.testing.assert_array_equal(run(interpreter, VECTOR)[0], VECTOR.reshape(2, 2))
    del interpreter


def test_nodes_without_readers_are_delegated_with_the_rest_or_stay(make) -> None:
    tensors = [T("f32", (1, 4), name=name) for name in ("x", "unread", "y")]
    content = model(Subgraph(tensors, [Op("NEG", [0], [1]), Op("ABS", [0], [2])], [0], [2]))
    together, alone = make(), make(skip_options=SkipOptions(skip_delegate_ops=["ABS"]))
    same(content, together, VECTOR)
    assert together.taken == [(2, 2, 1)]
    same(content, alone, VECTOR)
    assert alone.taken == [(0, 2, 0)]
    assert alone.delegations[0].staying[0] == "its results are not used"


def test_types_that_no_backend_has_stay(make) -> None:
    tensors = [T("f32", (4,), name="x"), T("i64", (4,), name="i"), T("f32", (4,), name="y")]
    operators = [Op("CAST", [0], [1]), Op("NEG", [0], [2])]
    delegate = make()
    content = model(Subgraph(tensors, operators, [0], [1, 2]))
    same(content, delegate, np.float32([1, -2, 3, -4]))
    assert delegate.taken[0][0] >= 1


def test_an_input_that_is_an_output_too_and_an_unused_input_are_all_right(make) -> None:
    tensors = [T("f32", (1, 4), name="x"), T("f32", (1, 4), name="unused"), T("f32", (1, 4), name="y")]
    content = model(Subgraph(tensors, [Op("ADD", [0, 0], [2], ADD)], [0, 1], [2, 0]))
    interpreter = with_delegate(content, make())
    y, x = run(interpreter, VECTOR, VECTOR)
    np.testing.assert_array_equal(y, 2 * VECTOR)
    np.testing.assert_array_equal(x, VECTOR)
    del interpreter
