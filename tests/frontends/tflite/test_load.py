"""A file's names, shapes, constants and faults, as `load` treats them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

import isthmus
from frontends.tflite.build import Op, Subgraph, T, model, options, single
from frontends.tflite.runners import GraphRunner, LiteRtRunner
from isthmus.errors import Code, QnnError
from isthmus.frontends.tflite import load
from isthmus.graph import DataType, TensorType

ADD = options("Add")


def repacked(data: bytes, change) -> bytes:
    """A file after a change of its objects."""
    import flatbuffers

    made = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data))
    change(made)
    builder = flatbuffers.Builder(1024)
    builder.Finish(made.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def test_inputs_and_outputs_keep_names_types_and_order() -> None:
    x, y = T("f32", (2,), name="b/x:0"), T("f32", (2,), name="a/y:0")
    tensors = [x, y, T("f32", (2,), name="z"), T("f32", (2,), name="first")]
    operators = [Op("ADD", [0, 1], [3], ADD), Op("MUL", [0, 3], [2], options("Mul"))]
    graph = load(model(Subgraph(tensors, operators, [1, 0], [2, 3])), "g")
    assert [t.name for t in graph.inputs] == ["a/y:0", "b/x:0"]
    assert [t.name for t in graph.outputs] == ["z", "first"]
    assert all(t.type is TensorType.APP_READ for t in graph.outputs)


def test_a_file_is_read_without_what_model_libraries_need(tmp_path: Path) -> None:
    path = tmp_path / "add.tflite"
    path.write_bytes(single("ADD", [T("f32", (2,)), T("f32", (2,))], [T("f32", (2,))], ADD))
    script = f"""import sys
from pathlib import Path
from isthmus.frontends import ModelSource
from isthmus.qnn.models import load
load(ModelSource(Path({str(path)!r})))
print([name for name in sys.modules if "composed" in name or "model_library" in name])"""
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout == "[]\n"


def test_repeated_and_missing_names_are_made_unique() -> None:
    same = T("f32", (2,), name="same")
    data = model(Subgraph([same] * 4, [Op("ADD", [0, 1], [2], ADD), Op("ADD", [2, 1], [3], ADD)], [0, 1], [3, 2]))
    graph = load(data, "g")
    names = [t.name for t in (*graph.inputs, *graph.outputs)]
    assert len(set(names)) == 4
    x = np.float32([1, 2])
    results = GraphRunner(graph)(x, 10 * x)
    np.testing.assert_array_equal(results, [[21, 42], [11, 22]])


def test_output_that_is_an_input_a_constant_or_listed_twice_is_copied() -> None:
    tensors = [T("f32", (2,), name="x"), T("f32", (2,), [5, 6], name="c"), T("f32", (2,), name="y")]
    data = model(Subgraph(tensors, [Op("ADD", [0, 1], [2], ADD)], [0], [2, 0, 1, 2]))
    graph = load(data, "g")
    assert len(graph.outputs) == 4
    assert graph.outputs[0].name == "y"
    results = GraphRunner(graph)(np.float32([1, 2]))
    np.testing.assert_array_equal(results, [[6, 8], [1, 2], [5, 6], [6, 8]])


def dynamic() -> bytes:
    """Flattens images of any number."""
    tensors = [T("f32", (1, 2, 3), signature=(-1, 2, 3), name="x"), T("i32", (2,), [-1, 6]), T("f32", (1, 6))]
    return model(Subgraph(tensors, [Op("RESHAPE", [0, 1], [2])], [0], [2]))


def test_dynamic_dimension_is_one_unless_a_shape_is_given() -> None:
    assert load(dynamic(), "g").inputs[0].dims == (1, 2, 3)
    graph = load(dynamic(), "g", {"x": (4, 2, 3)})
    assert graph.inputs[0].dims == (4, 2, 3)
    assert graph.outputs[0].dims == (4, 6)


@pytest.mark.parametrize("shapes", [{"y": (1, 2, 3)}, {"x": (2, 3)}, {"x": (0, 2, 3)}, {"x": (-1, 2, 3)}])
def test_shape_that_fits_no_input_is_refused(shapes) -> None:
    with pytest.raises(QnnError) as caught:
        load(dynamic(), "g", shapes)
    assert caught.value.code is Code.COMMON_INVALID_ARGUMENT


def test_half_precision_weights_become_float_constants() -> None:
    tensors = [T("f32", (2, 3)), T("f16", (4, 3), np.arange(12) / 8), T("f32", (4, 3)), T("f32", (2, 4))]
    operators = [Op("DEQUANTIZE", [1], [2]), Op("FULLY_CONNECTED", [0, 2], [3], options("FullyConnected"))]
    graph = load(model(Subgraph(tensors, operators, [0], [3])), "g")
    assert [n.op for n in graph.nodes] == ["FullyConnected"]
    assert graph.nodes[0].inputs[1].dtype is DataType.FLOAT_32
    assert graph.nodes[0].inputs[1].is_static


def test_quantized_weights_keep_their_scales_on_the_moved_axis() -> None:
    weights = T("i8", (5, 3, 3, 4), np.ones((5, 3, 3, 4)), np.arange(1, 6) / 100)
    bias = T("i32", (5,), np.arange(5), np.arange(1, 6) / 200)
    made = options("Conv2D", strideH=1, strideW=1, fusedActivationFunction=1)
    x, y = T("i8", (1, 6, 6, 4), None, 0.5), T("i8", (1, 6, 6, 5), None, 0.25, -128)
    graph = load(single("CONV_2D", [x, weights, bias], [y], made), "g")
    convolution, activation = graph.nodes
    filters, offsets = convolution.inputs[1:]
    assert filters.dims == (3, 3, 4, 5)
    assert filters.quantization.axis == 3
    assert offsets.dtype is DataType.SFIXED_POINT_32
    np.testing.assert_allclose(offsets.quantization.scales, np.arange(1, 6) / 200, rtol=1e-6)
    assert activation.op == "Relu"
    assert convolution.outputs[0].quantization == activation.outputs[0].quantization


def test_shared_weights_become_one_constant() -> None:
    tensors = [T("f32", (1, 4, 4, 2)), T("f32", (2, 3, 3, 2), np.ones((2, 3, 3, 2))), T("f32", (2,), [0, 0])]
    made = options("Conv2D", strideH=1, strideW=1)
    operators = [Op("CONV_2D", [0, 1, 2], [3], made), Op("CONV_2D", [3, 1, 2], [4], made)]
    graph = load(model(Subgraph([*tensors, tensors[0], tensors[0]], operators, [0], [4])), "g")
    assert graph.nodes[0].inputs[1] is graph.nodes[1].inputs[1]


@pytest.mark.parametrize("before", [None, []])
def test_constants_may_lie_behind_the_flatbuffer(before: list[int] | None) -> None:
    data = single("ADD", [T("f32", (4,)), T("f32", (4,), [1, 2, 3, 4])], [T("f32", (4,))], ADD)

    def moved(at: int):
        def change(made) -> None:
            made.buffers[1].data, made.buffers[1].offset, made.buffers[1].size = before, at, 16

        return change

    size = len(repacked(data, moved(1 << 20)))
    moved_file = repacked(data, moved(size)) + np.float32([1, 2, 3, 4]).tobytes()
    graph = load(moved_file, "g")
    np.testing.assert_array_equal(GraphRunner(graph)(np.zeros(4, np.float32))[0], [1, 2, 3, 4])
    with pytest.raises(QnnError, match="outside the file"):
        load(moved_file[:-1], "g")


def test_sparse_weights_are_written_out() -> None:
    # A 4x4 matrix of 2x2 blocks, of which the blocks (0, 1) and (1, 0) are stored.
    weights = np.zeros((4, 4), np.float32)
    weights[:2, 2:], weights[2:, :2] = [[1, 2], [3, 4]], [[5, 6], [7, 8]]
    data = single(
        "FULLY_CONNECTED",
        [T("f32", (1, 4)), T("f32", (2, 4), np.arange(1, 9))],
        [T("f32", (1, 4))],
        options("FullyConnected"),
    )

    def change(made) -> None:
        def dimension(dense: int = 0, segments=None, indices=None):
            d = schema.DimensionMetadataT()
            d.format, d.denseSize = (0, dense) if segments is None else (1, 0)
            if segments is not None:
                d.arraySegmentsType = d.arrayIndicesType = schema.SparseIndexVector.Int32Vector
                d.arraySegments, d.arrayIndices = schema.Int32VectorT(), schema.Int32VectorT()
                d.arraySegments.values, d.arrayIndices.values = segments, indices
            return d

        sparsity = schema.SparsityParametersT()
        sparsity.traversalOrder, sparsity.blockMap = [0, 1, 2, 3], [0, 1]
        sparsity.dimMetadata = [dimension(2), dimension(0, [0, 1, 2], [1, 0]), dimension(2), dimension(2)]
        tensor = made.subgraphs[0].tensors[1]
        tensor.shape, tensor.sparsity = [4, 4], sparsity

    graph = load(repacked(data, change), "g")
    np.testing.assert_array_equal(graph.nodes[0].inputs[1].data, weights)


def test_every_unsupported_operation_is_in_one_error() -> None:
    vector = T("f32", (2,))
    operators = [
        Op("ADD", [0, 0], [1], ADD),
        Op("ATAN2", [1, 1], [2]),
        Op("CUSTOM:Mystery", [2], [3]),
        Op("ADD", [3, 3], [4], ADD),
        Op("ATAN2", [4, 4], [5]),
    ]
    with pytest.raises(QnnError) as caught:
        load(model(Subgraph([vector] * 6, operators, [0], [5])), "g")
    assert caught.value.code is Code.COMMON_NOT_SUPPORTED
    assert "3 operations" in caught.value.rule
    assert "ATAN2 x2 ('t2', 't5')" in caught.value.rule
    assert "CUSTOM:Mystery x1 ('t3')" in caught.value.rule


def test_operator_that_reads_a_later_result_is_refused() -> None:
    vector = T("f32", (2,))
    cyclic = [Op("ADD", [0, 2], [1], ADD), Op("ADD", [1, 1], [2], ADD)]
    with pytest.raises(QnnError, match="before any operator writes it") as caught:
        load(model(Subgraph([vector] * 3, cyclic, [0], [2])), "g")
    assert caught.value.code is Code.GRAPH_UNCONNECTED_NODE


def test_tensor_written_twice_is_refused() -> None:
    vector = T("f32", (2,))
    twice = [Op("ADD", [0, 0], [1], ADD), Op("ADD", [0, 0], [1], ADD)]
    with pytest.raises(QnnError, match="has a value already"):
        load(model(Subgraph([vector] * 2, twice, [0], [1])), "g")


def test_tensor_index_outside_of_the_subgraph_is_refused() -> None:
    vector = T("f32", (2,))
    with pytest.raises(QnnError, match="name tensor 7") as caught:
        load(model(Subgraph([vector] * 2, [Op("ADD", [0, 7], [1], ADD)], [0], [1])), "g")
    assert caught.value.code is Code.COMMON_LOADING_BINARIES


def test_buffer_of_the_wrong_size_is_refused() -> None:
    data = single("ADD", [T("f32", (4,)), T("f32", (4,), [1, 2, 3, 4])], [T("f32", (4,))], ADD)
    with pytest.raises(QnnError, match="16 bytes, FLOAT32\\[5\\] takes 20"):
        load(repacked(data, lambda made: setattr(made.subgraphs[0].tensors[1], "shape", [5])), "g")


def test_huge_dimensions_are_refused() -> None:
    huge = T("f32", (2**31 - 1,) * 3)
    with pytest.raises(QnnError, match="above the limit"):
        load(single("ADD", [huge, huge], [huge], ADD), "g")
    many = T("i32", (3,), [2**20] * 3)
    with pytest.raises(QnnError, match="cannot be made"):
        load(single("FILL", [many, T("f32", (), 1.0)], [T("f32", (1, 1, 1))]), "g")


def test_more_operators_than_a_model_can_have_are_refused(monkeypatch) -> None:
    monkeypatch.setattr("isthmus.frontends.tflite.model.MAX_OPERATORS", 0)
    with pytest.raises(QnnError, match="1 operators, more than 0"):
        load(dynamic(), "g")


def test_constants_that_grow_without_measure_are_refused(monkeypatch) -> None:
    monkeypatch.setattr("isthmus.frontends.tflite.walk.MAX_FOLDED_BYTES", 1 << 10)
    tensors = [T("i32", (1,), [9000]), T("f32", (), 1.0), T("f32", (1,)), T("f32", (1,)), T("f32", (1,))]
    operators = [Op("FILL", [0, 1], [2]), Op("ADD", [2, 3], [4], ADD)]
    with pytest.raises(QnnError) as caught:
        load(model(Subgraph(tensors, operators, [3], [4])), "g")
    assert caught.value.code is Code.COMMON_MEM_ALLOC


def test_large_products_of_constants_are_left_to_the_graph(monkeypatch) -> None:
    monkeypatch.setattr("isthmus.frontends.tflite.operator_context.MAX_FOLDED_PRODUCTS", 10)
    square = T("f32", (8, 8), np.eye(8))
    tensors = [square, square, T("f32", (8, 8)), T("f32", (8, 8)), T("f32", (8, 8))]
    operators = [Op("BATCH_MATMUL", [0, 1], [2], options("BatchMatMul")), Op("ADD", [2, 3], [4], ADD)]
    graph = load(model(Subgraph(tensors, operators, [3], [4])), "g")
    assert [n.op for n in graph.nodes] == ["MatMul", "ElementWiseAdd"]


def test_shapes_in_the_file_are_not_trusted() -> None:
    data = single("ADD", [T("f32", (4, 1)), T("f32", (3,))], [T("f32", (9, 9))], ADD)
    assert load(data, "g").outputs[0].dims == (4, 3)


def test_shape_arithmetic_folds_away() -> None:
    tensors = [
        T("f32", (2, 3), name="x"),
        T("i32", (2,)),
        T("i32", (1,), [0]),
        T("i32", (1,), [1]),
        T("i32", ()),
        T("i32", (), -1),
        T("i32", (2,)),
        T("f32", (2, 3)),
    ]
    operators = [
        Op("SHAPE", [0], [1], options("Shape", outType=2)),
        Op("STRIDED_SLICE", [1, 2, 3, 3], [4], options("StridedSlice", shrinkAxisMask=1)),
        Op("PACK", [4, 5], [6], options("Pack", valuesCount=2)),
        Op("RESHAPE", [0, 6], [7]),
    ]
    data = model(Subgraph(tensors, operators, [0], [7]))
    graph = load(data, "g")
    assert [n.op for n in graph.nodes] == ["Reshape"]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(GraphRunner(graph)(x)[0], LiteRtRunner(data)(x)[0])


@pytest.mark.parametrize(("output", "constant"), [("y", "c"), ("c", "c/1")])
def test_a_constant_keeps_its_name_unless_an_input_or_output_has_it(output: str, constant: str) -> None:
    tensors = [T("f32", (4,), name="x"), T("f32", (4,), [1, 2, 3, 4], name="c"), T("f32", (4,), name=output)]
    graph = load(model(Subgraph(tensors, [Op("ADD", [0, 1], [2], ADD)], [0], [2])), "g")
    assert [t.name for t in graph.tensors.values() if t.type is TensorType.STATIC] == [constant]


def test_a_file_in_float16_runs_in_float16(tmp_path: Path) -> None:
    weights = np.arange(8, dtype=np.float16).reshape(2, 4) / 8
    content = single(
        "FULLY_CONNECTED", [T("f16", (3, 4)), T("f16", (2, 4), weights), T("f16", (2,), np.float16([1, -1]))],
        [T("f16", (3, 2))], options("FullyConnected"),
    )  # fmt: skip
    path = tmp_path / "half.tflite"
    path.write_bytes(content)
    x = np.linspace(-2, 2, 12).astype(np.float16).reshape(3, 4)
    with isthmus.Session(path) as session:
        [y] = session.run(dict.fromkeys(session.inputs, x)).values()
    assert y.dtype == np.float16
    expected = x.astype(np.float32) @ weights.T.astype(np.float32) + np.float32([1, -1])
    np.testing.assert_array_equal(y, expected.astype(np.float16))
