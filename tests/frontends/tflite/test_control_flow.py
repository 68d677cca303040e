"""Loops, branches, variables and composites become plain graphs with functional state."""

import numpy as np
import pytest

from frontends.tflite.build import Op, Subgraph, T, model, options
from frontends.tflite.runners import GraphRunner, LiteRtRunner
from isthmus.errors import Code, QnnError
from isthmus.frontends.tflite import load


def counted_loop(times: int) -> bytes:
    """Doubles a vector `times` times."""
    count, vector, flag = T("i32", ()), T("f32", (3,)), T("bool", ())
    main = Subgraph(
        [T("i32", (), 0), vector, count, T("f32", (3,), name="doubled")],
        [Op("WHILE", [0, 1], [2, 3], options("While", condSubgraphIndex=1, bodySubgraphIndex=2))],
        [1],
        [3],
    )
    condition = Subgraph([count, vector, T("i32", (), times), flag], [Op("LESS", [0, 2], [3])], [0, 1], [3])
    body = Subgraph(
        [count, vector, T("i32", (), 1), count, vector],
        [Op("ADD", [0, 2], [3], options("Add")), Op("ADD", [1, 1], [4], options("Add"))],
        [0, 1],
        [3, 4],
    )
    return model(main, condition, body)


def data_dependent_loop() -> bytes:
    """Adds a vector to itself while its first element is below a limit."""
    vector, flag = T("f32", (1,)), T("bool", (1,))
    made = options("While", condSubgraphIndex=1, bodySubgraphIndex=2)
    main = Subgraph([vector, vector], [Op("WHILE", [0], [1], made)], [0], [1])
    condition = Subgraph([vector, T("f32", (1,), [9.0]), flag], [Op("LESS", [0, 1], [2])], [0], [2])
    body = Subgraph([vector, vector], [Op("ADD", [0, 0], [1], options("Add"))], [0], [1])
    return model(main, condition, body)


def branch(taken: bool) -> bytes:
    """Adds, or multiplies, a vector with itself."""
    vector = T("f32", (3,))
    main = Subgraph(
        [T("bool", (), taken), vector, vector],
        [Op("IF", [0, 1], [2], options("If", thenSubgraphIndex=1, elseSubgraphIndex=2))],
        [1],
        [2],
    )
    then = Subgraph([vector, vector], [Op("ADD", [0, 0], [1], options("Add"))], [0], [1])
    other = Subgraph([vector, vector], [Op("MUL", [0, 0], [1], options("Mul"))], [0], [1])
    return model(main, then, other)


def accumulator(assigned: bool = True) -> bytes:
    """A variable that starts at 10, 20 and, where it is assigned, gathers what it is given."""
    handle, vector = T("resource", (1,)), T("f32", (2,))
    var = options("VarHandle", container="", sharedName="total")
    operators = [
        Op("CALL_ONCE", [], [], options("CallOnce", initSubgraphIndex=1)),
        Op("VAR_HANDLE", [], [1], var),
        Op("READ_VARIABLE", [1], [2]),
        Op("ADD", [0, 2], [3], options("Add")),
    ]
    if assigned:
        operators.append(Op("ASSIGN_VARIABLE", [1, 3], []))
    main = Subgraph([vector, handle, vector, T("f32", (2,), name="sum")], operators, [0], [3])
    start = Subgraph(
        [handle, T("f32", (2,), [10, 20])],
        [Op("VAR_HANDLE", [], [0], var), Op("ASSIGN_VARIABLE", [0, 1], [])],
        [],
        [],
    )
    return model(main, start)


def test_loop_of_known_length_is_unrolled() -> None:
    data = counted_loop(5)
    graph = load(data, "loop")
    x = np.float32([1, 2, 3])
    assert [n.op for n in graph.nodes].count("ElementWiseAdd") == 5
    assert graph.outputs[0].name == "doubled"
    np.testing.assert_array_equal(GraphRunner(graph)(x)[0], LiteRtRunner(data)(x)[0])


def test_loop_that_never_runs_gives_its_input() -> None:
    x = np.float32([1, 2, 3])
    np.testing.assert_array_equal(GraphRunner(load(counted_loop(0), "loop"))(x)[0], x)


def test_loop_that_runs_too_often_is_not_supported() -> None:
    with pytest.raises(QnnError, match="more than 1000 times") as caught:
        load(counted_loop(1 << 30), "loop")
    assert caught.value.code is Code.COMMON_NOT_SUPPORTED


def test_loop_whose_end_depends_on_data_is_not_supported() -> None:
    with pytest.raises(QnnError, match=r"WHILE x1 .*depends on data") as caught:
        load(data_dependent_loop(), "loop")
    assert caught.value.code is Code.COMMON_NOT_SUPPORTED


def test_unsupported_operators_of_a_loop_are_listed_once_even_behind_another() -> None:
    count, vector = T("i32", ()), T("f32", (3,))
    made = options("While", condSubgraphIndex=1, bodySubgraphIndex=2)
    main = Subgraph(
        [T("i32", (), 0), vector, vector, count, vector],
        [Op("ATAN2", [1, 1], [2]), Op("WHILE", [0, 2], [3, 4], made)],
        [1],
        [4],
    )
    condition = Subgraph([count, vector, T("i32", (), 5), T("bool", ())], [Op("LESS", [0, 2], [3])], [0, 1], [3])
    body = Subgraph(
        [count, vector, T("i32", (), 1), count, T("f32", (3,), name="in the loop")],
        [Op("ADD", [0, 2], [3], options("Add")), Op("ATAN2", [1, 1], [4])],
        [0, 1],
        [3, 4],
    )
    with pytest.raises(QnnError, match=r"2 operations .*ATAN2 x2 \('t2', 'in the loop'\)"):
        load(model(main, condition, body), "loop")


@pytest.mark.parametrize("taken", [True, False])
def test_branch_on_a_constant_takes_one_side(taken: bool) -> None:
    data = branch(taken)
    graph = load(data, "branch")
    x = np.float32([1, 2, 3])
    assert graph.nodes[0].op == ("ElementWiseAdd" if taken else "ElementWiseMultiply")
    np.testing.assert_array_equal(GraphRunner(graph)(x)[0], LiteRtRunner(data)(x)[0])


def test_composite_is_its_decomposition() -> None:
    vector = T("f32", (3,))
    made = options("StableHLOComposite", name="my.double", decompositionSubgraphIndex=1)
    main = Subgraph([vector, vector], [Op("STABLEHLO_COMPOSITE", [0], [1], made)], [0], [1])
    double = Subgraph([vector, vector], [Op("ADD", [0, 0], [1], options("Add"))], [0], [1])
    graph = load(model(main, double), "composite")
    assert [n.op for n in graph.nodes if n.op != "Reshape"] == ["ElementWiseAdd"]
    np.testing.assert_array_equal(GraphRunner(graph)(np.float32([1, 2, 3]))[0], [2, 4, 6])


def test_subgraph_that_calls_itself_is_refused() -> None:
    vector = T("f32", (3,))
    again = Op("IF", [0, 1], [2], options("If", thenSubgraphIndex=1, elseSubgraphIndex=1))
    tensors = [T("bool", (), True), vector, vector]
    with pytest.raises(QnnError, match="deep"):
        load(model(Subgraph(tensors, [again], [1], [2]), Subgraph(tensors, [again], [1], [2])), "endless")


def test_variable_starts_as_initialized_and_is_carried_between_executions() -> None:
    data = accumulator()
    graph = load(data, "accumulator")
    assert [s.name for s in graph.states] == ["total"]
    np.testing.assert_array_equal(graph.states[0].data, [10, 20])
    ours, theirs = GraphRunner(graph), LiteRtRunner(data)
    for step in range(4):
        x = np.float32([step, 1])
        np.testing.assert_array_equal(ours(x)[0], theirs(x)[0])


def test_variable_that_nothing_initializes_starts_at_zero() -> None:
    handle, vector = T("resource", (1,)), T("i8", (2,), None, 0.5, 7)
    operators = [
        Op("VAR_HANDLE", [], [1], options("VarHandle", container="", sharedName="v")),
        Op("READ_VARIABLE", [1], [2]),
        Op("ADD", [0, 2], [3], options("Add")),
        Op("ASSIGN_VARIABLE", [1, 3], []),
    ]
    graph = load(model(Subgraph([vector, handle, vector, vector], operators, [0], [3])), "v")
    assert graph.states[0].data.tolist() == [7, 7]


def test_variable_that_is_only_initialized_is_a_constant() -> None:
    graph = load(accumulator(assigned=False), "constant")
    assert graph.states == []
    np.testing.assert_array_equal(GraphRunner(graph)(np.float32([1, 2]))[0], [11, 22])


def lstm(time_major: bool, names: tuple[str, str, str] = ("hidden", "cell", "result")) -> bytes:
    """A fused LSTM layer of 4 units over 5 steps of 3 features, in 2 rows; `names` are of the last three tensors."""
    rng = np.random.default_rng(5)
    x = (5, 2, 3) if time_major else (2, 5, 3)

    def weights(*shape: int) -> T:
        return T("f32", shape, rng.standard_normal(shape) * 0.5)

    tensors = [
        T("f32", x),
        *(weights(4, 3) for _ in range(4)),
        *(weights(4, 4) for _ in range(4)),
        *(weights(4) for _ in range(4)),
        T("f32", (2, 4), variable=True, name=names[0]),
        T("f32", (2, 4), variable=True, name=names[1]),
        T("f32", (*x[:2], 4), name=names[2]),
    ]
    inputs = [*range(9), -1, -1, -1, *range(9, 13), -1, -1, 13, 14, -1, -1, -1, -1]
    made = options("UnidirectionalSequenceLSTM", fusedActivationFunction=4, timeMajor=time_major)
    return model(Subgraph(tensors, [Op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [15], made)], [0], [15]))


@pytest.mark.parametrize("time_major", [True, False])
def test_fused_lstm_keeps_its_state(time_major: bool) -> None:
    data = lstm(time_major)
    graph = load(data, "lstm")
    assert [s.name for s in graph.states] == ["hidden", "cell"]
    ours, theirs = GraphRunner(graph), LiteRtRunner(data)
    rng = np.random.default_rng(6)
    for _ in range(3):
        x = rng.standard_normal(graph.inputs[0].dims).astype(np.float32)
        np.testing.assert_allclose(ours(x)[0], theirs(x)[0], rtol=1e-5, atol=1e-6)


def whole_lstm(absent: set[int], **changed: float) -> bytes:
    """A fused LSTM of 4 units that gives 6 numbers, with peepholes and projection, but for the operands in `absent`."""
    rng = np.random.default_rng(8)
    hidden = 4 if 16 in absent else 6
    shapes = [*[(4, 3)] * 4, *[(4, hidden)] * 4, *[(4,)] * 7, (hidden, 4), (hidden,)]
    tensors = [T("f32", (5, 2, 3)), *(T("f32", s, rng.standard_normal(s) * 0.5) for s in shapes)]
    tensors += [T("f32", (2, n), variable=True, name=name) for name, n in (("hidden", hidden), ("cell", 4))]
    inputs = [-1 if i in absent else i for i in range(20)] + [-1] * 4
    made = options("UnidirectionalSequenceLSTM", fusedActivationFunction=4, timeMajor=True, **changed)
    tensors.append(T("f32", (5, 2, hidden)))
    return model(Subgraph(tensors, [Op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [20], made)], [0], [20]))


@pytest.mark.parametrize(
    ("absent", "changed"),
    [
        (set(), {}),
        ({17}, {}),
        ({16, 17}, {}),
        ({9, 10, 11}, {}),
        ({1, 5, 9, 12}, {}),
        (set(), {"cellClip": 0.3}),
        (set(), {"projClip": 0.2}),
    ],
    ids=["all", "no projection bias", "no projection", "no peepholes", "no input gate", "cell clip", "output clip"],
)
def test_fused_lstm_with_every_operand_is_litert_s(absent: set[int], changed: dict[str, float]) -> None:
    data = whole_lstm(absent, **changed)
    graph = load(data, "lstm")
    ours, theirs = GraphRunner(graph), LiteRtRunner(data)
    rng = np.random.default_rng(6)
    for _ in range(2):
        x = rng.standard_normal(graph.inputs[0].dims).astype(np.float32)
        np.testing.assert_allclose(ours(x)[0], theirs(x)[0], rtol=1e-5, atol=1e-6)
