"""A file in tiles has the same bits in the runtime of its format, and less is alive in its order."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from frontends.tflite.mutations import damaged_bytes, damaged_meaning
from onnx import helper
from support import oracles, tiny, zoo
from support.arenas import litert_arena

from isthmus.errors import Code, QnnError
from isthmus.split.onnx import OnnxFile
from isthmus.split.runtimes import compare_onnx, compare_tflite
from isthmus.split.search import split
from isthmus.split.tflite import TfliteFile
from split.networks import alive_in_onnx, alive_in_tflite, onnx_network, qdq_network, tflite_network


def least(file):
    """The file split so that the fewest bytes are alive, and how it is split."""
    found = split(file.network, None, "model")
    return file.write(found.network, found.instructions), found


def same_bits(found):
    """Return whether two files have the same bits in every way that they were run."""
    return all(one.same_bits for one in found.values())


def at(file, share):
    """The file split so that this share of the peak is alive, or the least that can be, and how it is split."""
    limit = int(share * file.network.peak)
    try:
        found = split(file.network, limit, "model")
    except QnnError:
        written, found = least(file)
        assert found.after > limit
        return written, found
    assert found.after <= limit
    return file.write(found.network, found.instructions), found


@pytest.mark.parametrize("seed", range(14))
def test_random_onnx_networks_in_tiles_have_the_same_bits(tmp_path, seed) -> None:
    data = onnx_network(tmp_path, seed)
    written, found = at(OnnxFile(data, "random"), random.Random(seed).choice([0.4, 0.6, 0.8]))
    onnx.checker.check_model(onnx.load_model_from_string(written), full_check=True)
    assert all(same_bits(compare_onnx(data, written, threads)) for threads in (1, 4))
    assert alive_in_onnx(written) == found.after <= found.before == alive_in_onnx(data)


def in_integers(data, folder=None):
    """Open a file in ONNX Runtime with quantized operators of int8 too, which it fuses by itself on some processors."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    if folder is not None:
        options.optimized_model_filepath = str(folder / "optimized.onnx")
    # Products need not be exact, only equal in both files. The option for exact products fails where nodes share
    # weights.
    return oracles.onnx_session(data, options, exact=False)


def operators(data, folder):
    """Count the operators that ONNX Runtime makes of a file, without those that only move numbers."""
    in_integers(data, folder)
    nodes = onnx.load(folder / "optimized.onnx").graph.node
    return Counter(node.op_type for node in nodes if node.op_type not in ("Transpose", "Slice", "Concat", "Split"))


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_quantized_operators_in_tiles_are_fused_and_have_the_same_bits(tmp_path, seed, unsigned) -> None:
    data = qdq_network(tmp_path, seed, unsigned)
    written, found = at(OnnxFile(data, "random"), random.Random(seed).choice([0.4, 0.6, 0.8]))
    fused = ("Conv", "Add", "AveragePool")
    whole, split_ = (operators(one, tmp_path) for one in (data, written))
    assert [op for op in fused if split_[op]] == [op for op in fused if whole[op]] == []
    compared = compare_onnx(data, written)
    assert compared["as written"].same_bits
    assert compared["optimized"].same_bits or not unsigned
    x = np.random.default_rng(seed).uniform(-1, 1, in_integers(data).get_inputs()[0].shape).astype(np.float32)
    (expected,), (computed,) = (in_integers(one).run(None, {"x": x}) for one in (data, written))
    assert computed.tobytes() == expected.tobytes()
    assert found.after <= found.before


def asks_for_shapes(path):
    """Save a model with Shape and Size nodes, which read tensors that a split file computes only in tiles."""
    rng = np.random.default_rng(0)
    constants = {
        "scale": np.float32(0.02), "zero": np.int8(0), "rows": np.array([2]), "rest": np.array([-1]),
        "a": rng.standard_normal((32, 4, 3, 3)).astype(np.float32),
        "b": rng.standard_normal((2, 32, 3, 3)).astype(np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["bytes"]),
        helper.make_node("DequantizeLinear", ["bytes", "scale", "zero"], ["floats"]),
        helper.make_node("Conv", ["floats", "a"], ["wide"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["wide"], ["limited"]),
        helper.make_node("Conv", ["limited", "b"], ["narrow"], pads=[1, 1, 1, 1]),
        helper.make_node("Size", ["limited"], ["size"]),
        helper.make_node("Cast", ["size"], ["divisor"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Div", ["narrow", "divisor"], ["scaled"]),
        helper.make_node("Shape", ["limited"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["dims"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Shape", ["floats"], ["batch"], start=0, end=1),
        helper.make_node("Concat", ["batch", "rest"], ["flat"], axis=0),
        helper.make_node("Reshape", ["scaled", "flat"], ["y"]),
    ]
    return tiny.save(path, nodes, {"x": [1, 4, 48, 48]}, {"y": [1, 4608], "dims": [4]}, constants)


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_a_split_file_with_questions_about_shapes_can_be_loaded(tmp_path, share) -> None:
    data = asks_for_shapes(tmp_path / "shapes.onnx").read_bytes()
    file = OnnxFile(data, "shapes")
    found = split(file.network, int(share * file.network.peak), "shapes")
    written = file.write(found.network, found.instructions)
    onnx.checker.check_model(onnx.load_model_from_string(written), full_check=True)
    assert bool(found.regions) == (share < 1)
    assert same_bits(compare_onnx(data, written))


def test_a_comparison_states_how_far_results_are_apart(tmp_path) -> None:
    data = wide(tmp_path / "wide.onnx").read_bytes()
    model = onnx.load_model_from_string(data)
    model.graph.node.pop()
    model.graph.node.append(helper.make_node("MaxPool", ["narrow"], ["z"], kernel_shape=[2, 2], strides=[2, 2]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.25), "more"))
    model.graph.node.append(helper.make_node("Add", ["z", "more"], ["y"]))
    for one in compare_onnx(data, model.SerializeToString()).values():
        assert not one.same_bits
        assert one.largest == pytest.approx(0.25, rel=1e-3)
        assert "up to 0.25 apart" in str(one)
    assert [str(one) for one in compare_onnx(data, data).values()] == ["the same bits"] * 2


def test_results_that_are_nan_in_only_one_file_cannot_be_compared(tmp_path) -> None:
    nodes = [[helper.make_node(op, ["x"], ["y"])] for op in ("Log", "Abs")]
    files = [tiny.save(tmp_path / "f.onnx", one, {"x": [1, 8]}, {"y": [1, 8]}).read_bytes() for one in nodes]
    assert all(one.largest is None for one in compare_onnx(*files).values())
    assert all(one.same_bits for one in compare_onnx(files[0], files[0]).values())


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_random_tflite_networks_in_tiles_have_the_same_bits(seed, quantized) -> None:
    data = tflite_network(seed, quantized)
    written, found = at(TfliteFile(data, "random"), random.Random(seed).choice([0.4, 0.6, 0.8]))
    assert same_bits(compare_tflite(data, written))
    assert alive_in_tflite(written) == found.after <= found.before == alive_in_tflite(data)


def test_a_tflite_network_is_split_alike_whatever_numbers_its_tensors_have() -> None:
    plain = TfliteFile(tflite_network(3, True, also_middle=True), "plain")
    expected = least(plain)[1]
    assert expected.regions
    for first in range(1, plain.main.tensor_count):
        data = tflite_network(3, True, first, also_middle=True)
        written, found = least(TfliteFile(data, "turned"))
        assert (found.before, found.after) == (expected.before, expected.after)
        assert len(found.instructions) == len(expected.instructions)
        assert same_bits(compare_tflite(data, written))


def test_most_random_networks_are_split(tmp_path) -> None:
    onnx_ones = [least(OnnxFile(onnx_network(tmp_path, seed), "random"))[1] for seed in range(8)]
    tflite_ones = [least(TfliteFile(tflite_network(seed, True), "random"))[1] for seed in range(8)]
    for found in (onnx_ones, tflite_ones):
        assert sum(bool(one.regions) for one in found) >= 4
        assert min(one.after / one.before for one in found) < 0.6


def model(key):
    if not zoo.MODELS[key].file.exists():
        pytest.skip(f"{key} has not been fetched")
    return zoo.MODELS[key].file.read_bytes()


def test_a_quantized_onnx_model_needs_two_fifths_and_runs_the_same() -> None:
    data = model("kws_qdq")
    file = OnnxFile(data, "kws_qdq", shapes=zoo.MODELS["kws_qdq"].shapes)
    found = split(file.network, found_limit := file.network.peak * 2 // 5, "kws_qdq")
    written = file.write(found.network, found.instructions)
    assert alive_in_onnx(written) == found.after <= found_limit
    assert same_bits(compare_onnx(data, written))


def test_a_tflite_model_needs_half_of_litert_s_arena_and_runs_the_same() -> None:
    data = model("face_detection_short_range")
    written, found = at(TfliteFile(data, "face"), 0.5)
    assert alive_in_tflite(written) == found.after
    assert same_bits(compare_tflite(data, written))
    assert litert_arena(written) < 0.5 * litert_arena(data)


def wide(path, **more):
    """Save two convolutions with a large tensor between them, and a pool."""
    rng = np.random.default_rng(0)
    constants = {"a": rng.standard_normal((32, 3, 3, 3)), "b": rng.standard_normal((4, 32, 3, 3))}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["wide"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["wide"], ["limited"], name="limits"),
        helper.make_node("Conv", ["limited", "b"], ["narrow"], name="second", pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["narrow"], ["y"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    floats = {name: array.astype(np.float32) for name, array in constants.items()}
    shapes = {"x": more.pop("dims", [1, 3, 64, 64])}
    return tiny.save(path, nodes, shapes, {"y": ["n", 4, "h", "w"]}, floats, **more)


def test_all_tiles_share_the_weights_of_the_file(tmp_path) -> None:
    data = wide(tmp_path / "wide.onnx").read_bytes()
    written, found = at(OnnxFile(data, "wide"), 0.25)
    before, after = onnx.load_model_from_string(data), onnx.load_model_from_string(written)
    weights = [t.name for t in after.graph.initializer if t.name in ("a", "b")]
    assert weights == [t.name for t in before.graph.initializer]
    assert [o.name for o in after.graph.output] == ["y"]
    assert found.regions


def test_open_dimensions_are_fixed_at_the_shape_that_was_split(tmp_path) -> None:
    data = wide(tmp_path / "open.onnx", dims=["n", 3, "h", 48]).read_bytes()
    file = OnnxFile(data, "open", shapes={"x": (1, 3, 40, 48)})
    written, _ = at(file, 0.4)
    (entry,) = onnx.load_model_from_string(written).graph.input
    assert [d.dim_value for d in entry.type.tensor_type.shape.dim] == [1, 3, 40, 48]
    assert same_bits(compare_onnx(data, written))


@pytest.mark.parametrize("opset", [9, 11, 13])
def test_slices_are_written_as_the_operator_set_has_them(tmp_path, opset) -> None:
    data = wide(tmp_path / "old.onnx", opset=opset).read_bytes()
    written, found = at(OnnxFile(data, "old"), 0.3)
    assert found.regions
    assert same_bits(compare_onnx(data, written))


@pytest.mark.parametrize(("opset", "by_rows"), [(12, False), (13, True)])
def test_a_softmax_without_an_axis_goes_by_the_default_of_its_operator_set(tmp_path, opset, by_rows) -> None:
    nodes = [
        helper.make_node("Concat", ["x", "x", "x"], ["wide"], axis=1),
        helper.make_node("Softmax", ["wide"], ["shares"]),
        helper.make_node("MaxPool", ["shares"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    data = tiny.save(tmp_path / "m.onnx", nodes, {"x": [1, 2, 32, 8]}, {"y": [1, 6, 16, 4]}, opset=opset).read_bytes()
    written, _ = least(OnnxFile(data, "softmax"))
    softmaxes = [node for node in onnx.load_model_from_string(written).graph.node if node.op_type == "Softmax"]
    assert (len(softmaxes) > 1) is by_rows
    assert same_bits(compare_onnx(data, written))


def test_an_impossible_limit_is_refused_with_the_step_that_prevents_it(tmp_path) -> None:
    file = OnnxFile(wide(tmp_path / "wide.onnx").read_bytes(), "wide")
    with pytest.raises(QnnError) as caught:
        split(file.network, 1000, "'wide.onnx'")
    _, found = least(file)
    assert caught.value.code is Code.COMMON_MEM_ALLOC
    assert f"the least found is {found.after:,}, {found.after - 1000:,} more" in caught.value.rule
    assert f"'{found.holding}' holds it up" in caught.value.rule


def test_a_model_that_fits_stays_as_it_is(tmp_path) -> None:
    file = OnnxFile(wide(tmp_path / "wide.onnx").read_bytes(), "wide")
    found = split(file.network, file.network.peak, "wide")
    written = onnx.load_model_from_string(file.write(found.network, found.instructions))
    assert [node.name for node in written.graph.node] == ["first", "limits", "second", "pool"]
    assert not found.regions


def test_an_average_with_padding_stays_whole_in_tflite() -> None:
    from frontends.tflite.build import T, options, single

    made = options("Pool2D", padding=0, strideW=1, strideH=1, filterWidth=3, filterHeight=3)
    data = single("AVERAGE_POOL_2D", [T("f32", [1, 32, 32, 4])], [T("f32", [1, 32, 32, 4])], made)
    assert [step.rule for step in TfliteFile(data, "mean").network.steps] == [None]


@pytest.mark.parametrize(
    ("changed", "by_rows"), [({}, True), ({"signature": [1, -1, 32, 4]}, False), ({"variable": True}, False)]
)
def test_an_operator_of_an_open_size_or_a_variable_stays_whole_in_tflite(changed, by_rows) -> None:
    from frontends.tflite.build import T, single

    data = single("RELU", [T("f32", [1, 32, 32, 4], **changed)], [T("f32", [1, 32, 32, 4])])
    assert [step.rule is not None for step in TfliteFile(data, "open").network.steps] == [by_rows]


def test_signatures_and_numbers_of_tensors_stay() -> None:
    data = tflite_network(3, True)
    file = TfliteFile(data, "random")
    written, found = least(file)
    after = TfliteFile(written, "split")
    assert found.regions
    assert (after.main.inputs, after.main.outputs) == (file.main.inputs, file.main.outputs)
    for index in range(file.main.tensor_count):
        assert after.main.tensor(index).name == file.main.tensor(index).name


def test_a_split_file_can_be_split_again(tmp_path) -> None:
    data = tflite_network(3, False)
    once, found = at(TfliteFile(data, "once"), 0.7)
    again, further = least(TfliteFile(once, "again"))
    assert further.after <= found.after
    assert same_bits(compare_tflite(data, again))


@pytest.mark.parametrize("damage", [damaged_bytes, damaged_meaning])
def test_damaged_tflite_files_are_refused_or_split_and_nothing_else(damage) -> None:
    rng = random.Random(5)
    data = tflite_network(3, True)
    for _ in range(40):
        try:
            least(TfliteFile(damage(data, rng), "damaged"))
        except QnnError:
            continue


def test_damaged_onnx_files_are_refused_or_split_and_nothing_else(tmp_path) -> None:
    rng = random.Random(5)
    data = onnx_network(Path(tmp_path), 3)
    for _ in range(60):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(min(len(data), 3000))] = rng.randrange(256)
        try:
            least(OnnxFile(bytes(damaged), "damaged"))
        except QnnError:
            continue


def test_names_that_are_taken_get_a_number(tmp_path) -> None:
    file = OnnxFile(wide(tmp_path / "wide.onnx").read_bytes(), "wide")
    for name in ("new", "new__1", "new__2"):
        assert file._fresh("new") == name
