"""A session runs ONNX models whose shapes are known only at run time as ONNX Runtime does, in memory planned once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import parser
from support import oracles, tiny
from support.dynamic_models import box_detector, text_detector

import isthmus
from isthmus import Code, QnnError, memory, qnn
from isthmus.tools.cli import main

HEAD = '<ir_version: 9, opset_import: ["" : 18]>\n'
PICTURES = [
    np.array(rows, np.float32)
    for rows in ([[0, 5, 0], [0, 0, 7]], [[0, 0, 0], [0, 0, 0]], [[1, 2, 3], [4, 5, 6]], [[1, 0, 0], [0, 0, 0]])
]
"""Inputs with two, no, all and one element that is not zero."""
CONSTANTS = """
 zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>() two = Constant<value = int64 {2}>()
 rest = Constant<value = int64[1] {-1}>() first = Constant<value = int64[1] {0}>() yes = Constant<value = bool {1}>()
 from1 = Constant<value = int64[1] {1}>() far = Constant<value = int64[1] {100}>()
 half = Constant<value = float {0.5}>() pair = Constant<value = float[2,1] {-1, -2}>()
 start = Constant<value = float {1}>() four = Constant<value = float {4}>()
"""


def of_rows(body: str, output: str) -> str:
    """A model in which `body` computes from the result n of a NonZero, whose number of columns depends on the data."""
    return f"g (float[2,3] x) => ({output} y) {{ {CONSTANTS} n = NonZero(x) {body} }}"


def of_data(body: str, outputs: str) -> str:
    """A model of an input whose elements decide shapes."""
    return f"g (float[2,3] x) => ({outputs}) {{ {CONSTANTS} {body} }}"


LOOP = "body = b (int64 i, bool go, float v) => (bool on, float w"
CONSUMERS = {
    "output": of_data("y = NonZero(x)", "int64[2,k] y"),
    "GatherND and ReduceSum": of_rows("t = Transpose(n) v = GatherND(x, t) y = ReduceSum<keepdims=0>(v)", "float"),
    "Shape": of_rows("y = Shape(n)", "int64[2]"),
    "If of the count": of_rows(
        "s = Size(n) c = Greater(s, two) y = If(c) <then_branch = a () => (int64[p] t) { t = Reshape(n, rest) },"
        " else_branch = b () => (int64[q] e) { e = Constant<value = int64[3] {1,2,3}>() }>",
        "int64[k]",
    ),
    "rows of rows": of_rows(
        "t = Transpose(n) v = GatherND(x, t) q = Greater(v, four) m = NonZero(q) i = Squeeze(m, first) w = Gather(v, i)"
        " y = Mul(w, w)",
        "float[k]",
    ),
    "Loop while the data say so": of_data(
        "s = ReduceSum<keepdims=0>(x) most = Constant<value = int64 {6}>() l = Constant<value = float {100}>()"
        " c = Less(s, l) y, z = Loop(most, c, s, zero) <body = b (int64 i, bool go, float v, int64 k) =>"
        " (bool on, float w, int64 j) { p = Add(v, four) w = Mul(p, p) on = Less(w, l) j = Add(k, one) }>",
        "float y, int64 z",
    ),
    "Compress": of_data("c = Greater(x, half) f = Reshape(c, rest) y = Compress(x, f)", "float[k] y"),
    "a count of true elements": of_data(
        "c = Greater(x, half) i = Cast<to=7>(c) s = ReduceSum<keepdims=0>(i) d = Reshape(s, rest)"
        " y = ConstantOfShape(d)",
        "float[k] y",
    ),
}
"""Models by what reads a result of unknown length; each in a stage of its own."""
MORE_CONSUMERS = {
    "Identity": of_rows("y = Identity(n)", "int64[2,k]"),
    "Transpose": of_rows("y = Transpose(n)", "int64[k,2]"),
    "Size": of_rows("y = Size(n)", "int64"),
    "ReduceMean": of_rows("c = Cast<to=1>(n) z = Concat<axis=1>(c, pair) y = ReduceMean<keepdims=0>(z)", "float"),
    "ReduceMax": of_rows("c = Cast<to=1>(n) z = Concat<axis=1>(c, pair) y = ReduceMax(z)", "float[1,1]"),
    "ReduceSum of nothing": of_rows("y = ReduceSum(n, from1)", "int64[2,1]"),
    "Add": of_rows("y = Add(n, two)", "int64[2,k]"),
    "Mul by itself": of_rows("y = Mul(n, n)", "int64[2,k]"),
    "Concat with itself": of_rows("y = Concat<axis=1>(n, n)", "int64[2,k]"),
    "Concat of axis 0": of_rows("y = Concat<axis=0>(n, n)", "int64[4,k]"),
    "Reshape": of_rows("y = Reshape(n, rest)", "int64[k]"),
    "Unsqueeze": of_rows("y = Unsqueeze(n, first)", "int64[1,2,k]"),
    "Expand": of_rows("s = Shape(n) y = Expand(half, s)", "float[2,k]"),
    "ConstantOfShape": of_rows("s = Shape(n) y = ConstantOfShape(s)", "float[2,k]"),
    "Range": of_rows("s = Size(n) y = Range(zero, s, one)", "int64[k]"),
    "Slice": of_rows("y = Slice(n, from1, far, from1)", "int64[2,k]"),
    "Pad": of_rows("p = Constant<value = int64[4] {0,1,0,1}>() y = Pad(n, p)", "int64[2,k]"),
    "Tile": of_rows("p = Constant<value = int64[2] {1,2}>() y = Tile(n, p)", "int64[2,k]"),
    "MatMul": of_rows("c = Cast<to=1>(n) t = Transpose(c) y = MatMul(c, t)", "float[2,2]"),
    "Where": of_rows("q = Greater(n, zero) y = Where(q, n, two)", "int64[2,k]"),
    "ScatterND": of_rows("t = Transpose(n) v = GatherND(x, t) w = Neg(v) y = ScatterND(x, t, w)", "float[2,3]"),
    "Softmax": of_rows("c = Cast<to=1>(n) y = Softmax<axis=1>(c)", "float[2,k]"),
    "CumSum": of_rows("y = CumSum(n, one)", "int64[2,k]"),
    "Loop": of_rows(f"s = Size(n) y = Loop(s, yes, start) <{LOOP}) {{ on = Identity(go) w = Add(v, v) }}>", "float"),
    "Loop with scans": of_rows(
        f"s = Size(n) d, y = Loop(s, yes, start) <{LOOP}, float u) {{ on = Identity(go) w = Add(v, v) u = Neg(w) }}>",
        "float[k]",
    ),
    "Loop over a sequence": of_rows(
        "s = Size(n) e = SequenceEmpty() q = SequenceInsert(e, half) l = Loop(s, yes, q) <body = b (int64 i, bool go,"
        " seq(float) v) => (bool on, seq(float) w) { on = Identity(go) f = Cast<to=1>(i) w = SequenceInsert(v, f) }>"
        " y = ConcatFromSequence<axis=0, new_axis=1>(l)",
        "float[k]",
    ),
    "SplitToSequence and SequenceLength": of_rows("s = SplitToSequence<axis=1>(n) y = SequenceLength(s)", "int64"),
    "SplitToSequence and ConcatFromSequence": of_rows(
        "s = SplitToSequence<axis=0>(n) y = ConcatFromSequence<axis=1>(s)", "int64[1,k]"
    ),
    "SequenceAt": of_rows("s = SequenceConstruct(n, n, n) e = SequenceErase(s) y = SequenceAt(e, one)", "int64[2,k]"),
    "If of data": of_data(
        "s = ReduceSum<keepdims=0>(x) c = Greater(s, four) y = If(c) <then_branch = a () => (float[p] t)"
        " { t = Reshape(x, rest) }, else_branch = b () => (float[q] e) { e = Constant<value = float[2] {1,2}>() }>",
        "float[k] y",
    ),
    "If with rows in a branch": of_data(
        "s = ReduceSum<keepdims=0>(x) c = Greater(s, four) y = If(c) <then_branch = a () => (int64[p,r] t)"
        " { t = NonZero(x) }, else_branch = b () => (int64[q,s] e) { v = Neg(x) w = NonZero(v) e = Add(w, one) }>",
        "int64[k,l] y",
    ),
    "TopK": of_data(
        "a = ReduceMax<keepdims=0>(x) q = Cast<to=7>(a) t = Constant<value = int64 {3}>() b = Min(q, t) k = Max(b, one)"
        " d = Reshape(k, rest) y, z = TopK(x, d)",
        "float[2,k] y, int64[2,k] z",
    ),
    "Compress of an axis": of_data(
        "s = ReduceSum<keepdims=0>(x, first) c = Greater(s, half) y = Compress<axis=1>(x, c)", "float[2,k] y"
    ),
    "Unique": of_data("y, i, v, c = Unique(x)", "float[k] y, int64[k] i, int64[6] v, int64[k] c"),
    "Unique in the order of occurrence": of_data(
        "w = Mod<fmod=1>(x, four) y, i, v, c = Unique<sorted=0>(w) z = Shape(y)",
        "float[k] y, int64[k] i, int64[6] v, int64[k] c, int64[1] z",
    ),
    "Slice by data": of_data(
        "c = Greater(x, half) i = Cast<to=7>(c) m = ReduceMax<keepdims=0>(i) s = Reshape(m, rest) y = Slice(x, s, far)",
        "float[k,3] y",
    ),
}
"""The same, for the long tests."""
SIZES = [(64, 64), (32, 64), (48, 40), (8, 8), (64, 16), (16, 64), (56, 64), (24, 24), (40, 8), (48, 56)]
assert len(set(SIZES)) == 10
LARGEST = {"picture": (1, 3, 64, 64)}


def long(rows: Iterable[tuple[object, ...]]) -> list[object]:
    """The rows of a parametrization, for the long tests."""
    return [pytest.param(*row, marks=pytest.mark.long) for row in rows]


def without_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with outputs whose shapes are not declared."""
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return model


@pytest.fixture
def saved(tmp_path):
    def save(model: str | onnx.ModelProto) -> str:
        path = tmp_path / "model.onnx"
        onnx.save(parser.parse_model(HEAD + model) if isinstance(model, str) else model, path)
        return str(path)

    return save


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], rtol: float = 1e-4) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype), name
        np.testing.assert_allclose(found[name], array, rtol, 1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("backend", "case"),
    [
        *(("cpu", case) for case in CONSUMERS),
        *long(("cpu", case) for case in MORE_CONSUMERS),
        *long((each, case) for each in ("htp", "gpu", "lpai") for case in CONSUMERS | MORE_CONSUMERS),
    ],
)
def test_what_reads_a_result_of_unknown_length_reads_what_is_real(saved, backend, case) -> None:
    path = saved((CONSUMERS | MORE_CONSUMERS)[case])
    with isthmus.Session(path, backend) as session:
        for picture in PICTURES:
            assert_equal(session.run({"x": picture}), oracles.onnx_answers(path, {"x": picture}))


def pictures(sizes: list[tuple[int, int]]) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(0)
    return (generator.standard_normal((1, 3, *size)).astype(np.float32) for size in sizes)


@pytest.mark.parametrize(
    ("backend", "make", "sizes"),
    [
        *(("cpu", make, SIZES[:4]) for make in (box_detector, text_detector)),
        *long((each, make, SIZES) for each in ("cpu", "htp", "gpu", "lpai") for make in (box_detector, text_detector)),
    ],
)
def test_detectors_take_pictures_of_any_size(saved, backend, make, sizes) -> None:
    path = saved(make())
    with isthmus.Session(path, backend, LARGEST) as session:
        for picture in pictures(sizes):
            assert_equal(session.run({"picture": picture}), oracles.onnx_answers(path, {"picture": picture}))


@pytest.mark.parametrize("make", [box_detector, text_detector])
def test_smaller_pictures_get_no_memory_but_that_of_their_constants(saved, make) -> None:
    """A run in known shapes allocates nothing; new shapes allocate constants and control words, no tensors."""
    with isthmus.Session(saved(make()), "cpu", LARGEST) as session:
        feeds = [{"picture": picture} for picture in pictures(SIZES[:4])]
        constants = session.info.memory.constant_bytes
        with memory.statistics() as new:
            for feed in feeds:
                session.run(feed)
        # Each graph has copies of the constants. Scratch must be larger than the slack, or this would prove nothing.
        assert session.info.memory.scratch_bytes > 4096
        assert new.total_bytes < (constants + 4096) * len(feeds)
        with memory.statistics() as known:
            for feed in feeds:
                session.run(feed)
        assert known.allocations == 0


def test_a_limit_on_scratch_holds_for_all_stages_and_shapes(saved) -> None:
    """A percentage is that of the stage with most; graphs for smaller pictures are in tiles where they must be."""
    path = saved(box_detector())
    with (
        isthmus.Session(path, shapes=LARGEST) as unlimited,
        isthmus.Session(path, shapes=LARGEST, scratch_limit="60%") as limited,
    ):
        whole = unlimited.info.memory.scratch_bytes
        assert 0 < limited.info.memory.scratch_bytes <= 0.6 * whole
        for picture in pictures([(64, 64), (56, 64), (8, 8)]):
            assert_equal(limited.run({"picture": picture}), unlimited.run({"picture": picture}), 0)


@pytest.mark.parametrize("backend", ["cpu", *long([("htp",), ("gpu",)])])
def test_all_graphs_write_inside_the_planned_memory(saved, backend) -> None:
    """Inputs, outputs and values between stages have the same addresses whatever the shapes are."""
    with isthmus.Session(saved(box_detector()), backend, LARGEST) as session:
        places = set()
        for picture in pictures(SIZES[:4]):
            session.run({"picture": picture})
            views = {**session.inputs, **session.outputs}
            places.add(tuple(view.ctypes.data for name, view in sorted(views.items())))
        assert len(places) == 1


def test_a_session_is_resized_in_place(saved) -> None:
    path = saved(text_detector())
    with isthmus.Session(path, shapes=LARGEST) as session:
        for picture in pictures([(16, 24), (64, 64), (8, 40)]):
            session.resize({"picture": picture.shape})
            assert session.inputs["picture"].shape == picture.shape
            session.inputs["picture"][...] = picture
            assert session.run() == {}
            assert_equal(dict(session.outputs), oracles.onnx_answers(path, {"picture": picture}))
        assert session.stats.copied_bytes == 0


def test_memory_inside_scratch_is_replaced_when_a_session_is_resized(saved) -> None:
    """LPAI plans inputs and outputs into the scratch of a graph, which others cannot use."""
    path = saved("g (float[n,4] x) => (float[n,4] y) { y = Relu(x) }")
    with isthmus.Session(path, "lpai", {"x": (8, 4)}) as session:
        for rows in (8, 3, 8):
            x = np.linspace(-1, 1, rows * 4, dtype=np.float32).reshape(rows, 4)
            assert_equal(session.run({"x": x}), {"y": np.maximum(x, 0)})


def test_a_picture_that_is_larger_than_planned_is_refused(saved) -> None:
    with isthmus.Session(saved(text_detector()), shapes=LARGEST) as session:
        for shape in ((1, 3, 65, 64), (1, 2, 64, 64), (1, 3, 64)):
            with pytest.raises(QnnError, match="must have at most shape") as refusal:
                session.run({"picture": np.zeros(shape, np.float32)})
            assert refusal.value.code is Code.GRAPH_INVALID_TENSOR
            assert session.inputs["picture"].shape == (1, 3, 64, 64)
        with pytest.raises(QnnError, match="no such input"):
            session.resize({"image": (1, 3, 8, 8)})


@pytest.mark.parametrize("code", [Code.COMMON_SYSTEM, Code.COMMON_MEM_ALLOC, Code.GRAPH_INVALID_ARGUMENT])
def test_an_error_while_a_graph_for_new_shapes_is_prepared_is_reported_as_it_is(saved, code) -> None:
    with isthmus.Session(saved(text_detector()), shapes=LARGEST) as session:
        problem = QnnError(code, "compiling 3 kernels", "the compiler failed", "Try again.")
        fails = mock.patch("isthmus.backends.seam.native.prepare", side_effect=problem)
        with fails, pytest.raises(QnnError) as refusal:
            session.run({"picture": np.zeros((1, 3, 8, 8), np.float32)})
        assert refusal.value is problem
        session.run({"picture": np.zeros((1, 3, 8, 8), np.float32)})


@pytest.mark.parametrize("backend", ["cpu", *long([("gpu",)])])
def test_shapes_that_need_more_scratch_than_was_planned_are_refused_and_nothing_is_left(saved, backend) -> None:
    """The CPU backend cannot keep a limit of 0 bytes, and the GPU's takes no limit."""
    with isthmus.Session(saved(box_detector()), backend, LARGEST) as session:
        model = session._dynamic
        planned, model._scratch_bytes = model._scratch_bytes, dict.fromkeys(model._scratch_bytes, 0)
        graphs = list(model._context.graphs)
        with pytest.raises(QnnError, match="it needs more than the 0 bytes of scratch that were planned") as refusal:
            session.run({"picture": np.zeros((1, 3, 8, 8), np.float32)})
        assert (refusal.value.code, list(model._context.graphs)) == (Code.COMMON_MEM_ALLOC, graphs)
        model._scratch_bytes = planned
        session.run({"picture": np.zeros((1, 3, 8, 8), np.float32)})


def test_inputs_of_one_dimension_keep_the_same_size(saved) -> None:
    made = "g (float[n] a, float[n] b) => (float[n] y) { y = Add(a, b) }"
    with isthmus.Session(saved(made), shapes={"a": (8,)}) as session:
        assert session.run({"a": np.ones(3, np.float32), "b": np.ones(3, np.float32)})["y"].tolist() == [2, 2, 2]
        with pytest.raises(QnnError, match="dimension 'n' is"):
            session.run({"a": np.ones(3, np.float32), "b": np.ones(4, np.float32)})
        assert session.run({"a": np.ones(8, np.float32), "b": np.ones(8, np.float32)})["y"].shape == (8,)


UNBOUNDED = of_data("s = ReduceSum<keepdims=0>(x) q = Cast<to=7>(s) y = Range(zero, q, two)", "int64[k] y")


def test_a_length_without_a_bound_is_refused_by_name_until_it_has_one(saved) -> None:
    path = saved(UNBOUNDED)
    with pytest.raises(QnnError, match=r"the value of 'q' decides a shape.*bounds=\{'q': 100\}") as refusal:
        isthmus.Session(path)
    assert refusal.value.code is Code.COMMON_NOT_SUPPORTED
    with isthmus.Session(path, bounds={"q": 12}) as session:
        for picture in (PICTURES[0], PICTURES[1]):
            assert_equal(session.run({"x": picture}), oracles.onnx_answers(path, {"x": picture}))
        with pytest.raises(QnnError, match="memory was planned for 48") as refusal:
            session.run({"x": PICTURES[2]})
        assert refusal.value.code is Code.COMMON_MEM_ALLOC
        assert session.run({"x": PICTURES[0]})["y"].tolist() == [0, 2, 4, 6, 8, 10], "it is usable afterwards"


def test_a_branch_for_other_shapes_than_the_greatest_is_planned_when_it_is_taken(saved) -> None:
    """A model may have a branch for each of two sizes, as one for two sample rates has; neither fits the other."""
    six, four = (
        f"{{ s = Constant<value = int64[2] {{2, {size}}}>() {name} = Reshape(x, s) }}"
        for name, size in (("t", 3), ("e", 2))
    )
    path = saved(
        f"g (float[n] x, bool c) => (float[2,k] y) {{ y = If(c) <then_branch = a () => (float[2,p] t) {six},"
        f" else_branch = b () => (float[2,q] e) {four}> }}"
    )
    with isthmus.Session(path, shapes={"x": (6,)}) as session:
        for feeds in ({"x": np.arange(n, dtype=np.float32), "c": np.array(n == 6)} for n in (6, 4, 6)):
            assert_equal(session.run(feeds), oracles.onnx_answers(path, feeds))
        with pytest.raises(QnnError, match="cannot be reshaped"):
            session.run({"x": np.ones(6, np.float32), "c": np.array(False)})


FREE_LOOP = of_data(
    "s = ReduceSum<keepdims=0>(x) y, z = Loop(, yes, s, x) <body = b (int64 i, bool go, float v, float[2,3] t) =>"
    " (bool on, float w, float[2,3] u) { w = Add(v, four) u = Mul(t, w) l = Constant<value = float {20}>()"
    " on = Less(w, l) }>",
    "float y, float[2,3] z",
)


def test_a_loop_without_a_bound_is_refused_by_name_until_it_has_one(saved) -> None:
    path = saved(FREE_LOOP)
    [loop] = [node for node in onnx.load(path).graph.node if node.op_type == "Loop"]
    name = loop.name or f"Loop_{list(onnx.load(path).graph.node).index(loop)}"
    with pytest.raises(QnnError, match=rf"how many turns it has.*--bound {name}=10"):
        isthmus.Session(path)
    with isthmus.Session(path, bounds={name: 3}) as session:
        for scale in (1, 3):
            feeds = {"x": PICTURES[0] * scale - 8 + 8 * scale}
            assert_equal(session.run(feeds), oracles.onnx_answers(path, feeds))
        with pytest.raises(QnnError, match="memory was planned for 0"):
            session.run({"x": PICTURES[0] - 10})


def test_a_session_in_stages_describes_its_stages_and_is_no_single_graph(saved) -> None:
    with isthmus.Session(saved(box_detector()), shapes=LARGEST) as session:
        assert [stage.info.inputs[0].name for stage in session.stages] == ["picture", "v35_0:rows"]
        assert session.info.memory.scratch_bytes == max(s.info.memory.scratch_bytes for s in session.stages)
        assert {info.name: info.dims for info in session.info.outputs}["boxes"] == (10, 4), "shapes are the greatest"
        assert session.plan is session.stages[0].plan
        session.reset()
        with pytest.raises(QnnError, match="runs in 2 stages and is not one graph"):
            _ = session.graph
    with pytest.raises(QnnError, match="it is closed"):
        session.run({"picture": np.zeros((1, 3, 8, 8), np.float32)})


def test_one_graph_of_a_model_in_stages_is_refused(saved) -> None:
    """A graph has rows of -1 behind the real ones, as QNN's operations do; nothing may take them for real ones."""
    with qnn.Backend("cpu") as backend:
        context = backend.create_context()
        with pytest.raises(QnnError, match=r"known only at run time.* compute such a model in stages"):
            context.compose(saved(CONSUMERS["Shape"]))
        graph = context.compose(saved(CONSUMERS["output"]))
        graph.finalize()
        graph.inputs["x"][...] = PICTURES[0]
        graph.execute()
        assert graph.outputs["y"].tolist() == [[0, 1, -1, -1, -1, -1], [1, 2, -1, -1, -1, -1]]


def test_commands_plan_and_run_a_model_in_stages(saved, tmp_path, capsys) -> None:
    path, shape = saved(box_detector()), "picture=1,3,64,64"
    assert main(["plan", path, "--shape", shape]) == 0
    text = capsys.readouterr().out
    assert "2 stages; shapes are the greatest" in text
    assert "output  boxes: float32[10, 4]" in text
    assert main(["plan", path, "--shape", shape, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["scratch_bytes"] == max(stage["scratch_bytes"] for stage in report["stages"])
    picture = next(pictures([(16, 24)]))
    np.savez(tmp_path / "in.npz", picture=picture)
    assert main(["run", path, "--shape", shape, "--inputs", str(tmp_path / "in.npz"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    expected = oracles.onnx_answers(path, {"picture": picture})
    assert report["inputs"]["picture"]["shape"] == [1, 3, 16, 24]
    assert report["outputs"]["boxes"]["shape"] == list(expected["boxes"].shape)
    assert report["stages"] == 2


def test_all_stages_must_fit_tcm_together_in_a_run(tmp_path, capsys) -> None:
    path = str(tiny.in_stages(tmp_path / "stages.onnx"))
    assert main(["plan", path, "--backend", "lpai", "--json"]) == 0
    needs = [stage["lpai"]["tcm"] for stage in json.loads(capsys.readouterr().out)["stages"]]
    alone = max(need["bytes"] for need in needs)
    in_tcm = ["--backend", "lpai", "--direct-mode", "adsp", "--set", "lpai_graph.execute.mem_type=tcm"]
    # No stage fits; each fits, but not with the memory of the other.
    for size in (min(need["binary_bytes"] for need in needs) // 2, alone):
        assert main(["run", path, *in_tcm, "--tcm", str(size)]) == 1
        assert "bytes of TCM are needed in one piece" in capsys.readouterr().err
    assert main(["run", path, *in_tcm, "--tcm", str(4 * alone)]) == 0


def test_a_bound_is_an_option_of_commands(saved, capsys) -> None:
    path = saved(UNBOUNDED)
    assert main(["run", path]) == 2
    assert "--bound q=100" in capsys.readouterr().err
    assert main(["run", path, "--bound", "q=30"]) == 0
    capsys.readouterr()
    assert main(["run", path, "--bound", "q"]) == 2
    assert "must look like name=100" in capsys.readouterr().err


VIEWS = {
    "Slice that may take all": "c = Greater(x, half) i = Cast<to=7>(c) k = ReduceSum<keepdims=0>(i)"
    " e = Reshape(k, rest) f = Reshape(x, rest) y = Slice(f, first, e)",
    "Slice that takes all of few": "n = NonZero(x) l = Constant<value = int64[1] {3}>() s = Slice(n, first, l, from1)"
    " q = Greater(s, zero) m = NonZero(q) y = Concat<axis=1>(s, m)",
    "Slice that takes all, read behind a stage": "n = NonZero(x) s = Slice(n, first, far, from1) q = Greater(s, zero)"
    " m = NonZero(q) y = Concat<axis=1>(s, m)",
    "Loop of any number of turns, read behind a stage": "n = NonZero(x) s = Size(n) l = Loop(s, yes, x) <body = b"
    " (int64 i, bool go, float[2,3] v) => (bool on, float[2,3] w) { on = Identity(go) w = Add(v, half) }>"
    " q = Greater(l, four) m = NonZero(q) t = Transpose(m) y = GatherND(l, t)",
    "Concat with nothing": "n = NonZero(x) z = Neg(x) p = Greater(z, half) o = NonZero(p) s = Concat<axis=1>(n, o)"
    " q = Greater(s, zero) m = NonZero(q) y = Concat<axis=1>(s, m)",
    "two Slices that may be one": "n = NonZero(x) a = Slice(n, first, far, from1) b = Slice(n, first, from1, from1)"
    " q = Greater(b, zero) m = NonZero(q) y = Concat<axis=1>(a, b, m)",
    "If that may return what is known": "n = NonZero(x) s = Size(n) c = Greater(s, two) r = If(c) <then_branch = a ()"
    " => (int64[p,r] t) { t = Identity(n) }, else_branch = b () => (int64[q,u] e) { e = Add(n, one) }>"
    " q = Greater(r, zero) m = NonZero(q) y = Concat<axis=1>(r, m)",
}  # fmt: skip


@pytest.mark.parametrize("case", VIEWS)
def test_a_result_that_is_its_operand_at_some_shapes_has_memory_at_all(saved, case) -> None:
    output = "float[k] y" if "float" in VIEWS[case] or "may take all" in case else "int64[2,k] y"
    path = saved(of_data(VIEWS[case], output))
    with isthmus.Session(path) as session:
        for picture in PICTURES:
            assert_equal(session.run({"x": picture}), oracles.onnx_answers(path, {"x": picture}))


NAMES = {
    "a result": "X = Neg(x) m = NonZero(X) t = Transpose(m) n = GatherND(X, t) y = Shape(n) z = Add(n, half)",
    "a result of rows": "X = Neg(x) n = NonZero(x) t = Transpose(n) z = GatherND(X, t) y = Shape(n)",
    "a result of Compress": "X = Neg(x) c = Greater(x, half) f = Reshape(c, rest) n = Compress(X, f) p = NonZero(n)"
    " q = Transpose(p) y = Shape(n) z = GatherND(n, q)",
}


@pytest.mark.parametrize("backend", ["cpu", *long([("gpu",)])])
@pytest.mark.parametrize("name", ["n:rows", "n:positions", "n:0", "n:rows:0", "n::rows", "3::n", "0:n:rows", ":"])
@pytest.mark.parametrize("case", NAMES)
def test_names_of_the_file_are_not_taken_for_internal_ones(saved, case, name, backend) -> None:
    """A value may have any name, also one like that of the rows of another."""
    model = parser.parse_model(HEAD + of_data(NAMES[case], "int64[a] y, float[b] z"))
    for node in model.graph.node:
        for names in (node.input, node.output):
            for index, each in enumerate(names):
                names[index] = name if each == "X" else each
    path = saved(without_shapes(model))
    with isthmus.Session(path, backend) as session:
        for picture in PICTURES:
            assert_equal(session.run({"x": picture}), oracles.onnx_answers(path, {"x": picture}))


def test_names_inside_a_loop_are_not_those_of_the_file(saved) -> None:
    """The value of each iteration has a path; the file has values of the same names."""
    made = parser.parse_model(HEAD + FREE_LOOP)
    [index] = [i for i, node in enumerate(made.graph.node) if node.op_type == "Loop"]
    names = [f"{index}.body.{turn}{mark}{value}" for turn in (0, 1) for mark in ("/", "::") for value in ("w", "u")]
    made.graph.node.extend(onnx.helper.make_node("Neg", ["x"], [name]) for name in names)
    made.graph.node.append(onnx.helper.make_node("Sum", [*names, "z"], ["all"]))
    made.graph.output.append(onnx.helper.make_tensor_value_info("all", 1, [2, 3]))
    path = saved(made)
    with isthmus.Session(path, bounds={made.graph.node[index].name or f"Loop_{index}": 6}) as session:
        assert_equal(session.run({"x": PICTURES[0]}), oracles.onnx_answers(path, {"x": PICTURES[0]}))


OLD = "g (float[n,3] x) => (float[n,3] y) { y = Relu(x) }"
NEW = "g (float[n,3] x) => (float[n,3] y) { y = Neg(x) }"


def test_a_session_keeps_the_model_that_it_opened(saved) -> None:
    path = saved(OLD)
    x = np.float32([[1, -2, 3]])
    with isthmus.Session(path, shapes={"x": (4, 3)}) as session:
        saved(NEW)
        assert session.run({"x": x})["y"].tolist() == [[1, 0, 3]]
        saved("g (float[1,3] x) => (float[1,3] y) { y = Neg(x) }")
        assert session.run({"x": np.repeat(x, 2, 0)})["y"].tolist() == [[1, 0, 3]] * 2


WEIGHTED = {
    "another shape": "g (float[n,3] x) => (float[n,3] y) <float[1,3] w = {1,2,3}> { y = Mul(x, w) }",
    "stages": "g (float[1,3] x) => (float[k] y) <float[1,3] w = {1,2,3}, int64[1] r = {-1}>"
    " { m = Mul(x, w) b = Cast<to=9>(x) c = Reshape(b, r) y = Compress(m, c) }",
}


@pytest.mark.parametrize("case", WEIGHTED)
def test_a_session_keeps_the_weights_of_the_files_that_it_opened(tmp_path, case) -> None:
    model = parser.parse_model(HEAD + WEIGHTED[case])
    weight = model.graph.initializer[0]
    weight.raw_data = np.float32([[1, 2, 3]]).tobytes()
    del weight.float_data[:]
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    with isthmus.Session(path, shapes={"x": (4, 3)} if case == "another shape" else None) as session:
        (tmp_path / "weights").write_bytes(np.float32([7, 7, 7]).tobytes())
        assert session.run({"x": np.ones((1, 3), np.float32)})["y"].reshape(-1).tolist() == [1, 2, 3]
        (tmp_path / "weights").unlink()
        assert session.run({"x": np.ones((1, 3), np.float32)})["y"].reshape(-1).tolist() == [1, 2, 3]


COUNT = "c = Greater(x, half) i = Cast<to=7>(c) k = ReduceSum<keepdims=0>(i) d = Reshape(k, rest) f = Reshape(x, rest)"
"""Counts elements, 0 to 6."""
GREATEST = {
    "Slice backwards from a value": (f"{COUNT} m = Constant<value = int64[1] {{-1}}>() e = Constant<value = int64[1]"
                                     " {-100}>() y = Slice(f, d, e, first, m)", "float[k] y"),
    "Slice backwards to a value": (f"{COUNT} m = Constant<value = int64[1] {{-2}}>() y = Slice(f, far, d, first, m)",
                                   "float[k] y"),
    "Slice by a step": (f"{COUNT} t = Constant<value = int64[1] {{3}}>() r = Sub(d, t) a = Abs(r) b = Max(a, from1)"
                        " n = Neg(b) g = Less(r, first) s = Where(g, n, b) u = Constant<value = int64[1] {4}>()"
                        " y = Slice(f, u, first, first, s)", "float[k] y"),
    "Slice of an axis": (f"{COUNT} l = Min(d, from1) y = Slice(x, from1, far, l)", "float[k,l] y"),
    "Range from a value": (f"{COUNT} t = Constant<value = int64 {{6}}>() y = Range(k, t, one)", "int64[k] y"),
    "Range down to a value": (f"{COUNT} t = Constant<value = int64 {{6}}>() m = Constant<value = int64 {{-1}}>()"
                              " y = Range(t, k, m)", "int64[k] y"),
    "Range by a step": (f"{COUNT} t = Constant<value = int64 {{7}}>() m = Sub(k, t) y = Range(t, zero, m)",
                        "int64[k] y"),
    "Split": (f"{COUNT} t = Constant<value = int64[1] {{6}}>() e = Sub(t, d) s = Concat<axis=0>(d, e)"
              " y, z = Split(f, s)", "float[k] y, float[l] z"),
    "SequenceAt": (f"{COUNT} v = SequenceConstruct(half, f) w = Min(k, one) y = SequenceAt(v, w)", "float y"),
    "SequenceErase": (f"{COUNT} v = SequenceConstruct(f, half, f) w = Min(k, one) e = SequenceErase(v, w)"
                      " y = SequenceAt(e, zero)", "float y"),
    "SequenceInsert": (f"{COUNT} v = SequenceConstruct(half, half) w = Min(k, one) e = SequenceInsert(v, f, w)"
                       " y = SequenceAt(e, one)", "float y"),
    "SplitToSequence": (f"{COUNT} b = Max(k, one) p = SplitToSequence(f, b) y = SequenceAt(p, zero)"
                        " z = SequenceLength(p)", "float[k] y, int64 z"),
}  # fmt: skip


@pytest.mark.parametrize("case", GREATEST)
def test_memory_is_planned_for_the_longest_result_of_any_value(saved, case) -> None:
    body, outputs = GREATEST[case]
    path = saved(without_shapes(parser.parse_model(HEAD + of_data(body, outputs))))
    with isthmus.Session(path) as session:
        for picture in PICTURES:
            assert_equal(session.run({"x": picture}), oracles.onnx_answers(path, {"x": picture}))


def test_totals_of_graphs_stay_when_these_are_released(saved, monkeypatch) -> None:
    monkeypatch.setattr("isthmus.qnn.specialization.MAX_GRAPHS", 2)
    with isthmus.Session(saved(text_detector()), shapes=LARGEST) as session:
        bytes_of_pictures = 0
        for runs, picture in enumerate(pictures(SIZES[:6]), 1):
            session.run({"picture": picture})
            stats = session.graph_stats
            bytes_of_pictures += picture.nbytes + picture.nbytes // 3
            assert stats.executions == runs
            assert sum(stats.in_place_bytes.values()) + stats.copied_bytes == bytes_of_pictures


@pytest.mark.parametrize("body", ["y = Add(x, w)", "m = Add(x, w) y = NonZero(m) z = Shape(y)"])
def test_all_copies_of_constants_are_within_the_limit(saved, monkeypatch, body) -> None:
    """Also that of the graph that owns the scratch, which has one though it may never run."""
    monkeypatch.setattr("isthmus.qnn.specialization.KEPT_BYTES", 0)
    model = parser.parse_model(HEAD + f"g (float[n,4096] x) => (y) {{ {body} }}")
    model.graph.output[0].type.tensor_type.elem_type = 7 if "NonZero" in body else 1
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 4096), np.float32), "w"))
    with memory.statistics() as held, isthmus.Session(saved(model), shapes={"x": (8, 4096)}) as session:
        before, constants = held.live_bytes, session.info.memory.constant_bytes
        for rows in range(1, 8):
            session.run({"x": np.ones((rows, 4096), np.float32)})
        # There are four copies of the constants; one was there before.
        assert constants >= 16384
        assert held.live_bytes - before < 3.5 * constants
