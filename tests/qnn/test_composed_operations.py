"""Operations that are composed of others compute what their definitions and other runtimes say."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from support import oracles
from support.suites import long

from isthmus import qnn
from isthmus.graph import Quantization, Tensor
from isthmus.graph.evaluate import evaluate
from isthmus.qnn import DataType, TensorType

RNG = np.random.default_rng(3)
F32, I32, U32, BOOL = DataType.FLOAT_32, DataType.INT_32, DataType.UINT_32, DataType.BOOL_8
Q8 = DataType.UFIXED_POINT_8
Spec = tuple[DataType, tuple[int, ...]] | tuple[DataType, tuple[int, ...], Quantization]


def rand(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims).astype(np.float32)


class Node:
    """A graph of one node on a backend; a call executes it with new inputs."""

    def __init__(self, backend: Any, op: str, inputs: list, outputs: list[Spec], params: dict | None = None) -> None:
        self.context = backend.create_context()
        graph = self.context.create_graph(op)
        given = []
        for index, spec in enumerate(inputs):
            data = spec if isinstance(spec, np.ndarray) else None
            kind = TensorType.APP_WRITE if data is None else TensorType.STATIC
            dtype, dims, *more = spec if data is None else (DataType.of(data.dtype), data.shape)
            constant = {} if data is None else {"data": data}
            given.append(graph.create_tensor(f"in{index}", kind, dtype, dims, *more, **constant))
        made = [graph.create_tensor(f"out{i}", TensorType.APP_READ, *spec) for i, spec in enumerate(outputs)]
        graph.add_node("node", op, given, made, params or {})
        self.memory = graph.allocate()
        self.graph = graph

    def __call__(self, *arrays: Any) -> list[np.ndarray]:
        for view, array in zip(self.memory.inputs.values(), arrays, strict=True):
            view[...] = array
        self.memory.binding.execute()
        return [view.copy() for view in self.memory.outputs.values()]


@pytest.fixture
def cpu():
    with qnn.Backend("cpu") as backend:
        yield backend


def onnx_runtime(op: str, arrays: list, outputs: int, domain: str = "", opset: int = 17, **attributes: Any) -> list:
    names = ["" if a is None else f"in{i}" for i, a in enumerate(arrays)]
    results = [f"out{i}" for i in range(outputs)]
    given = [(n, a) for n, a in zip(names, arrays, strict=True) if n]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, names, results, domain=domain, **attributes)], "g",
        [
            onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in given
        ],
        [onnx.ValueInfoProto(name=r) for r in results],
    )  # fmt: skip
    imports = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
    return oracles.onnx_session(model.SerializeToString()).run(None, dict(given))


class Stream:
    """What a Buffer holds, by its definition."""

    def __init__(self, size: int, stride: int) -> None:
        self.size, self.stride, self.frames = size, stride, []

    def add(self, frames: np.ndarray) -> np.ndarray:
        if len(self.frames) + len(frames) > self.size:
            drop = max(self.stride, len(self.frames) + len(frames) - self.size)
            self.frames = self.frames[drop:]
        self.frames += list(frames)
        return np.array(self.frames)


@pytest.mark.parametrize("name", ["cpu", long("htp"), "lpai"])
@pytest.mark.parametrize(("frames", "size", "stride"), [(2, 6, 2), (1, 4, 1), (2, 5, 4), (3, 3, 3), (2, 4, 1)])
def test_a_buffer_keeps_the_last_frames_in_state_memory(name: str, frames: int, size: int, stride: int) -> None:
    with qnn.Backend(name) as backend:
        params = {"buffer_size": size, "buffer_dim": 1, "stride": stride}
        nodes = [
            Node(backend, "Buffer", [(F32, (1, frames, 3))], [(F32, (1, size, 3))], params | {"mode": mode})
            for mode in (0, 1, 2)
        ]
        assert nodes[0].graph.info.memory.state_bytes >= 4 * 3 * size
        stream = Stream(size, stride)
        for _ in range(9):
            x = rand(1, frames, 3)
            kept = stream.add(x[0])
            blocking, left, right = (node(x)[0][0] for node in nodes)
            np.testing.assert_array_equal(left[: len(kept)], kept)
            np.testing.assert_array_equal(right[size - len(kept) :], kept)
            assert not left[len(kept) :].any()
            assert not right[: size - len(kept)].any()
            np.testing.assert_array_equal(blocking, left)


def test_a_buffer_is_emptied_by_its_reset_input_and_by_a_reset_of_the_graph(cpu: Any) -> None:
    coded = Quantization.per_tensor(0.5, 7)
    node = Node(
        cpu, "Buffer", [(Q8, (1, 1, 2), coded), (BOOL, ())], [(Q8, (1, 3, 2), coded)],
        {"buffer_size": 3, "buffer_dim": 1},
    )  # fmt: skip
    for value in (10, 20, 30, 40):
        (kept,) = node(value, False)
    assert kept[0, :, 0].tolist() == [20, 30, 40]
    (kept,) = node(50, True)
    assert kept[0, :, 0].tolist() == [50, 7, 7], "frames that are not there are 0, which 7 stands for"
    node.graph.reset()
    (kept,) = node(60, False)
    assert kept[0, :, 0].tolist() == [60, 7, 7]


def test_a_binary_has_the_states_of_a_buffer(cpu: Any) -> None:
    params = {"buffer_size": 3, "buffer_dim": 1}
    node = Node(cpu, "Buffer", [(F32, (1, 1, 1))], [(F32, (1, 3, 1))], params)
    binary = node.context.get_binary()
    with qnn.Backend("cpu") as backend:
        graph = backend.create_context_from_binary(binary).retrieve("Buffer")
        assert graph.info.memory.state_bytes == node.graph.info.memory.state_bytes
        memory = graph.allocate()
        for value in range(1, 6):
            memory.inputs["in0"][...] = value
            memory.binding.execute()
        assert memory.outputs["out0"].reshape(-1).tolist() == [3, 4, 5]


@pytest.mark.parametrize("op", ["RandomUniformLike", "RandomNormalLike"])
def test_executions_continue_a_random_sequence_and_a_new_graph_repeats_it(cpu: Any, op: str) -> None:
    def sequence(seed: list) -> list[bytes]:
        node = Node(cpu, op, [np.uint32([5, 4]), *seed], [(F32, (5, 4))])
        return [node()[0].tobytes() for _ in range(3)]

    first = sequence([np.float32([3])])
    assert len(set(first)) == 3
    assert sequence([np.float32([3])]) == first
    assert sequence([np.float32([4])]) != first
    assert sequence([]) == sequence([])


def test_random_numbers_may_be_fixed_point(cpu: Any) -> None:
    coded = Quantization.per_tensor(1 / 256)
    (stored,) = Node(cpu, "RandomUniformLike", [np.uint32([64, 64])], [(Q8, (64, 64), coded)])()
    assert set(range(256)) >= set(stored.reshape(-1).tolist()) > set(range(1, 255))


def test_attention_with_a_cache_matches_onnx_runtime(cpu: Any) -> None:
    heads, groups, size, room = 4, 2, 16, 10
    table = RNG.uniform(-1, 1, (16, size // 2)).astype(np.float32)
    cosines, sines = np.cos(table), np.sin(table)
    past = [np.zeros((2, groups, room, size), np.float32)] * 2
    nodes: dict[int, Node] = {}
    last = np.array([-1, -1])
    for length in (4, 1, 1, 1):
        query, key, value = (rand(2, length, n * size) for n in (heads, groups, groups))
        last = last + length
        caches = (2, groups, room, size)
        attributes = {"num_heads": heads, "kv_num_heads": groups, "do_rotary": 1}
        nodes.setdefault(length, Node(
            cpu, "GroupQueryAttention",
            [(F32, query.shape), (F32, key.shape), (F32, value.shape), (F32, caches), (F32, caches), (I32, (2,)),
             (I32, (1,)), cosines, sines],
            [(F32, query.shape), (F32, caches), (F32, caches)], attributes,
        ))  # fmt: skip
        total = np.array([last.max() + 1], np.int32)
        ours = nodes[length](query, key, value, *past, last.astype(np.int32), total)
        theirs = onnx_runtime(
            "GroupQueryAttention",
            [query, key, value, *past, last.astype(np.int32), total.reshape(()), cosines, sines], 3, "com.microsoft",
            **attributes,
        )  # fmt: skip
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-5)
        used = int(last.max()) + 1
        for one, other in zip(ours[1:], theirs[1:], strict=True):
            np.testing.assert_allclose(one[:, :, :used], other[:, :, :used], rtol=1e-5, atol=1e-6)
        past = ours[1:]


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("part", [0, 4])
def test_rotary_embedding_matches_onnx_runtime(cpu: Any, interleaved: int, part: int) -> None:
    x, pairs = rand(2, 3, 5, 8), (part or 8) // 2
    cosines, sines = rand(20, pairs), rand(20, pairs)
    positions = RNG.integers(0, 20, (2, 5))
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": part}
    more = {"num_heads": 3} if part else {}
    (theirs,) = onnx_runtime(
        "RotaryEmbedding", [x, positions, cosines, sines], 1, "com.microsoft", **attributes, **more
    )
    node = Node(cpu, "RotaryEmbedding", [(F32, x.shape), cosines, sines, (I32, (2, 5))], [(F32, x.shape)], attributes)
    np.testing.assert_allclose(node(x, positions)[0], theirs, rtol=1e-5, atol=1e-6)


def test_boxes_are_those_that_onnx_runtime_selects(cpu: Any) -> None:
    low = RNG.uniform(0, 3, (2, 30, 2))
    boxes = np.concatenate([low, low + RNG.uniform(0.5, 2, low.shape)], 2).astype(np.float32)
    scores = RNG.random((2, 3, 30)).astype(np.float32)
    (theirs,) = onnx_runtime(
        "NonMaxSuppression",
        [boxes, scores, np.array([4]), np.array([0.4], np.float32), np.array([0.2], np.float32)], 1,
    )  # fmt: skip
    params = {"iou_threshold": 0.4, "score_threshold": 0.2, "max_boxes_selected": 4}
    rows, found = Node(
        cpu, "NonMaxSuppression", [(F32, boxes.shape), (F32, scores.shape)], [(I32, (40, 3)), (U32, (1,))], params
    )(boxes, scores)
    assert found[0] == len(theirs)
    np.testing.assert_array_equal(rows[: len(theirs)], theirs)
    assert (rows[len(theirs) :] == -1).all()


def test_regions_are_those_of_onnx_runtime(cpu: Any) -> None:
    x, regions = rand(2, 9, 10, 3), RNG.uniform(0, 18, (6, 4)).astype(np.float32)
    regions[:, 2:] += regions[:, :2]
    index = np.array([0, 1, 1, 0, 0, 1])
    for aligned in (False, True):
        mode = "half_pixel" if aligned else "output_half_pixel"
        (theirs,) = onnx_runtime(
            "RoiAlign", [np.moveaxis(x, 3, 1).copy(), regions, index], 1, output_height=3, output_width=4,
            spatial_scale=0.5, coordinate_transformation_mode=mode,
        )  # fmt: skip
        node = Node(
            cpu, "RoiAlign", [(F32, x.shape), (F32, (6, 4)), (I32, (6,))], [(F32, (6, 3, 4, 3))],
            {"img_size_ratio": [2.0, 2.0], "aligned": aligned},
        )  # fmt: skip
        np.testing.assert_allclose(node(x, regions, index)[0], np.moveaxis(theirs, 1, 3), rtol=1e-4, atol=1e-5)


GRIDS = [(1, 0, 1), (0, 1, 0), (1, 2, 0), (0, 0, 0), (0, 2, 1)]
"""GridSample's align_corners, padding_mode and mode."""


@pytest.mark.parametrize(("align", "padding", "mode"), GRIDS)
def test_volumes_sampled_by_a_grid_are_those_of_onnx_runtime(cpu: Any, align: int, padding: int, mode: int) -> None:
    x, grid = rand(2, 3, 5, 4, 6), rand(2, 2, 3, 4, 3)
    grid[0, 0, 0, 0] = 40, -40, 0
    (theirs,) = onnx_runtime(
        "GridSample", [np.moveaxis(x, 4, 1).copy(), grid], 1, opset=20, align_corners=align,
        padding_mode=("zeros", "border", "reflection")[padding], mode=("linear", "nearest")[mode],
    )  # fmt: skip
    theirs = np.moveaxis(theirs, 1, 4)
    params = {"align_corners": bool(align), "padding_mode": padding, "mode": mode}
    node = Node(cpu, "GridSample", [(F32, x.shape), (F32, grid.shape)], [(F32, theirs.shape)], params)
    np.testing.assert_allclose(node(x, grid)[0], theirs, rtol=1e-4, atol=1e-4)
    grid[0] = np.inf, -np.inf, np.nan
    assert np.isfinite(node(x, grid)[0]).all(), "such places read from the volume, or zeros"


@pytest.mark.parametrize("backend", ["cpu", "htp"])
@pytest.mark.parametrize("dtype", [Q8, DataType.UFIXED_POINT_16])
def test_volumes_of_fixed_point_are_sampled_within_a_quantization_step(backend: str, dtype: DataType) -> None:
    most = np.iinfo(dtype.numpy).max
    x = RNG.integers(0, most, (1, 3, 4, 5, 2), dtype.numpy)
    grid = RNG.integers(0, most, (1, 3, 4, 5, 3), dtype.numpy)
    values, places = (Quantization.per_tensor(span / most, most // 2) for span in (2, 3))
    with qnn.Backend(backend) as opened:
        node = Node(
            opened, "GridSample", [(dtype, x.shape, values), (dtype, grid.shape, places)], [(dtype, x.shape, values)]
        )
        (ours,) = node(x, grid)
    reals = [((a.astype(np.float32) - most // 2) * s / most) for a, s in ((x, 2), (grid, 3))]
    (theirs,) = onnx_runtime("GridSample", [np.moveaxis(reals[0], 4, 1).copy(), reals[1]], 1, opset=20, mode="linear")
    steps = np.moveaxis(theirs, 1, 4) * most / 2 + most // 2
    assert np.abs(ours - steps).max() <= 0.55


@pytest.mark.parametrize("onesided", [0, 1])
def test_the_short_time_fourier_transform_is_that_of_onnx_runtime(cpu: Any, onesided: int) -> None:
    x, window = rand(2, 100, 1), np.hanning(32).astype(np.float32)
    (theirs,) = onnx_runtime("STFT", [x, np.array(10), window, np.array(32)], 1, onesided=onesided)
    node = Node(cpu, "Stft", [(F32, x.shape), window], [(F32, theirs.shape)], {"frame_step": 10, "onesided": onesided})
    np.testing.assert_allclose(node(x)[0], theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 64, 128, 8192])
def test_a_hadamard_transform_of_any_size_is_its_own_inverse(cpu: Any, size: int) -> None:
    x = rand(2, size)
    node = Node(cpu, "HadamardTransform", [(F32, x.shape)], [(F32, x.shape)])
    once = node(x)[0]
    np.testing.assert_allclose(once[:, 0], x.sum(1) / np.sqrt(size), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(node(once)[0], x, rtol=1e-4, atol=1e-4)


def test_a_selector_names_the_operand_of_each_element(cpu: Any) -> None:
    node = Node(cpu, "ElementWiseMux", [(I32, (6,)), (F32, (6,)), (F32, ()), (F32, (6,))], [(F32, (6,))])
    (mixed,) = node([0, 1, 2, 2, -5, 9], np.arange(6), 100, np.arange(6) + 200)
    assert mixed.tolist() == [0, 100, 202, 203, 4, 205]


def test_what_is_made_sparse_is_found_again(cpu: Any) -> None:
    indices, values = np.int32([[0, 1], [2, 3], [-1, -1], [1, 0]]), rand(4, 2)
    (dense,) = Node(cpu, "CreateSparse", [(I32, (4, 2)), (F32, (4, 2))], [(F32, (3, 4, 2))])(indices, values)
    expected = np.zeros((3, 4, 2), np.float32)
    for index in (0, 1, 3):
        expected[tuple(indices[index])] = values[index]
    np.testing.assert_array_equal(dense, expected)
    (found,) = Node(cpu, "GetSparseIndices", [(F32, (3, 4, 2))], [(I32, (5, 2))])(dense)
    assert found.tolist() == [[0, 1], [1, 0], [2, 3], [-1, -1], [-1, -1]]
    (kept,) = Node(cpu, "GetSparseValues", [(F32, (3, 4, 2))], [(F32, (5, 2))])(dense)
    np.testing.assert_array_equal(kept, [values[0], values[3], values[1], [0, 0], [0, 0]])
    assert (Node(cpu, "SparseToDense", [(F32, (3, 4, 2))], [(F32, (3, 4, 2))])(dense)[0] == dense).all()


DETECTIONS = {"delta_scaling_factors": [10.0, 10.0, 5.0, 5.0], "confidence_threshold": 0.3, "iou_threshold": 0.5}


@pytest.mark.parametrize("regular", [0, 1])
def test_detections_are_those_of_detection_post_process(cpu: Any, regular: int) -> None:
    scores, encodings = RNG.random((1, 40, 3)).astype(np.float32), rand(1, 40, 4)
    anchors = RNG.uniform(0.2, 0.8, (40, 4)).astype(np.float32)
    boxes, classes, best, found = Node(
        cpu, "DetectionPostProcess", [(F32, (1, 40, 4)), (F32, (1, 40, 3)), anchors],
        [(F32, (1, 10, 4)), (F32, (1, 10)), (F32, (1, 10)), (F32, (1,))],
        {"max_detections": 10, "max_classes_per_detection": 1, "num_classes": 3, "score_threshold": 0.3,
         "iou_threshold": 0.5, "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0,
         "use_regular_nms": bool(regular)},
    )(encodings, scores)  # fmt: skip
    ours = Node(
        cpu, "DetectionOutput", [(F32, (1, 40, 3)), (F32, (1, 40, 4)), anchors],
        [(F32, (1, 10)), (F32, (1, 10, 4)), (I32, (1, 10)), (U32, (1,))], DETECTIONS | {"nms_type": regular},
    )(scores, encodings)  # fmt: skip
    np.testing.assert_array_equal(ours[0], best)
    np.testing.assert_allclose(ours[1], boxes, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(ours[2], classes)
    assert ours[3][0] == found[0]


@pytest.mark.parametrize("regular", [0, 1])
def test_the_background_is_no_detection_unless_it_is_wanted(cpu: Any, regular: int) -> None:
    scores = np.float32([[[0.9, 0.5, 0.1], [0.1, 0.6, 0.4]]])
    anchors = np.float32([[0.2, 0.2, 0.1, 0.1], [0.8, 0.8, 0.1, 0.1]])
    results: list[Spec] = [(F32, (1, 4)), (F32, (1, 4, 4)), (I32, (1, 4)), (U32, (1,))]
    found = {}
    for kept in (False, True):
        params = DETECTIONS | {"nms_type": regular, "background_class_idx": 0, "output_background": kept}
        node = Node(cpu, "DetectionOutput", [(F32, (1, 2, 3)), (F32, (1, 2, 4)), anchors], results, params)
        _, _, classes, count = node(scores, np.zeros((1, 2, 4)))
        found[kept] = classes[0, : count[0]].tolist()
    assert found[True][0] == 0
    assert found[False]
    assert 0 not in found[False]


def test_features_follow_the_boxes_that_are_selected(cpu: Any) -> None:
    low = RNG.uniform(0, 3, (2, 9, 2))
    boxes = np.concatenate([low, low + 1], 2).astype(np.float32)
    scores, features = RNG.random((2, 9, 2)).astype(np.float32), RNG.integers(1, 99, (2, 9, 3)).astype(np.int32)
    kept, best, classes, found, taken = Node(
        cpu, "MultiClassNms", [(F32, boxes.shape), (F32, scores.shape), (I32, features.shape)],
        [(F32, (2, 6, 4)), (F32, (2, 6)), (I32, (2, 6)), (U32, (2,)), (I32, (2, 6, 3))],
        {"iou_threshold": 0.3, "score_threshold": 0.2},
    )(boxes, scores, features)  # fmt: skip
    for batch in range(2):
        for row in range(found[batch]):
            (index,) = np.flatnonzero(scores[batch, :, classes[batch, row]] == best[batch, row])
            np.testing.assert_array_equal(kept[batch, row], boxes[batch, index])
            np.testing.assert_array_equal(taken[batch, row], features[batch, index])
        assert not kept[batch, found[batch] :].any()
        assert not taken[batch, found[batch] :].any()


def test_a_glimpse_outside_its_image_is_noise_of_the_images_range(cpu: Any) -> None:
    x = RNG.uniform(3, 5, (1, 6, 6, 2)).astype(np.float32)
    node = Node(cpu, "ExtractGlimpse", [(F32, x.shape), (F32, (1, 2))], [(F32, (1, 4, 4, 2))], {"size": [4, 4]})
    (inside,), (outside,) = node(x, [[0, 0]]), node(x, [[9, 9]])
    np.testing.assert_array_equal(inside, x[:, 1:5, 1:5])
    assert x.min() <= outside.min() < outside.max() <= x.max()
    assert node(x, [[9, 9]])[0].tobytes() != outside.tobytes()


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_cast_between_signed_and_unsigned_keeps_the_place_in_the_range(bits: int, sign: int) -> None:
    types = [DataType[f"{letter}FIXED_POINT_{bits}"] for letter in "US"[::sign]]
    source, result = (np.iinfo(each.numpy) for each in types)
    x = np.linspace(source.min, source.max, 1000).astype(types[0].numpy)
    # The quantizations do not matter, as in the vendor's library.
    encodings = Quantization.per_tensor(0.1, 3), Quantization.per_tensor(0.7, -5)
    expected = (x.astype(np.int64) - source.min + result.min).astype(types[1].numpy)
    specs = [(dtype, x.shape, encoding) for dtype, encoding in zip(types, encodings, strict=True)]
    for name in ("cpu", "htp"):
        with qnn.Backend(name) as backend:
            (found,) = Node(backend, "Cast", specs[:1], specs[1:])(x)
            assert np.array_equal(found, expected)
    tensors = [Tensor(str(i), TensorType.NATIVE, *spec) for i, spec in enumerate(specs)]
    assert np.array_equal(evaluate("Cast", tensors[:1], [x], {}, tensors[1:])[0], expected)
