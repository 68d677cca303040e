"""Version 3: everything is read; layers that tell all that must be known are run, the others are named."""

import numpy as np
import pytest
from support.dlc_write import archive, dlc3, flatbuffer, layer, record

from isthmus import Session, frontends
from isthmus.errors import Code, QnnError
from isthmus.frontends import dlc as reader

RNG = np.random.default_rng(3)
WEIGHTS = RNG.standard_normal((4, 6)).astype(np.float32)
BIAS = RNG.standard_normal(4).astype(np.float32)
X = RNG.standard_normal((1, 2, 3)).astype(np.float32)

NET = [
    layer("in", "Input", ["x"], ["x"], [(1, 2, 3)]),
    layer("flat", "Reshape", ["x"], ["f"], [(1, 6)]),
    layer("fc", "FullyConnected", ["f"], ["c"], [(1, 4)]),
    layer("relu", "Neuron", ["c"], ["r"], [(1, 4)], type=1),
    layer("gate", "Neuron", ["c"], ["s"], [(1, 4)], type=3),
    layer("both", "Concat", ["r", "s"], ["b"], [(1, 8)]),
    layer("soft", "SoftMax", ["b"], ["y"], [(1, 8)]),
]
MOVED = [
    layer("in", "Input", ["x"], ["x"], [(1, 2, 3, 5)]),
    layer("turn", "Permute", ["x"], ["t"], [(1, 5, 2, 3)]),
    layer("cut", "Slice", ["t"], ["a", "b", "c"], [(1, 2, 2, 3), (1, 1, 2, 3), (1, 2, 2, 3)]),
    layer("back", "Concat", ["c", "a"], ["y"], [(1, 4, 2, 3)]),
]


def written(tmp_path, *arguments):
    path = tmp_path / "older.dlc"
    path.write_bytes(dlc3(*arguments))
    return path


def test_a_net_of_version_3_computes_what_it_holds(tmp_path) -> None:
    path = written(tmp_path, NET, {"fc": {"weights": WEIGHTS, "bias": BIAS}})
    c = X.reshape(1, 6) @ WEIGHTS.T + BIAS
    b = np.concatenate([np.maximum(c, 0), 1 / (1 + np.exp(-c))], 1)
    e = np.exp(b - b.max())
    with Session(path) as session:
        assert session.graph.name == "older"
        np.testing.assert_allclose(session.run({"x": X})["y"], e / e.sum(), rtol=1e-5)


def test_dimensions_determine_how_a_layer_slices_and_permutes(tmp_path) -> None:
    path = written(tmp_path, MOVED)
    x = RNG.standard_normal((1, 2, 3, 5)).astype(np.float32)
    turned = x.transpose(0, 3, 1, 2)
    with Session(path) as session:
        answer = session.run({"x": x})
    np.testing.assert_array_equal(answer["y"], np.concatenate([turned[:, 3:], turned[:, :2]], 1))
    np.testing.assert_array_equal(answer["b"], turned[:, 2:3])


def test_records_without_a_head_are_of_version_3(tmp_path) -> None:
    path = tmp_path / "bare.dlc"
    layers = [layer("in", "Input", ["x"], ["x"], [(2,)]), layer("relu", "Neuron", ["x"], ["y"], [(2,)], type=1)]
    path.write_bytes(archive({"model": flatbuffer({1: ("tables", layers)}, b"NETD")}))
    assert reader.read(path).version == 3
    with Session(path) as session:
        assert session.run({"x": np.float32([-1, 2])})["y"].tolist() == [0, 2]


def test_all_unknown_layers_are_named_in_one_error(tmp_path) -> None:
    path = written(
        tmp_path,
        [
            layer("in", "Input", ["x"], ["x"], [(1, 4, 4, 2)]),
            layer("conv", "Convolutional", ["x"], ["c"], [(1, 4, 4, 2)]),
            layer("norm", "BatchNorm", ["c"], ["n"], [(1, 4, 4, 2)]),
            layer("pool", "Pooling", ["n"], ["p"], [(1, 2, 2, 2)]),
            layer("conv2", "Convolutional", ["p"], ["y"], [(1, 2, 2, 2)]),
        ],
    )
    with pytest.raises(QnnError) as caught:
        frontends.load(path)
    for named in ("Convolutional (of version 3) x2", "BatchNorm (of version 3) x1", "Pooling (of version 3) x1"):
        assert named in caught.value.rule


def test_a_file_of_version_3_lists_its_contents(tmp_path) -> None:
    contents = reader.read(written(tmp_path, NET, {"fc": {"weights": WEIGHTS, "bias": BIAS}}))
    assert contents.version == 3
    assert contents.producer == "snpe-onnx-to-dlc 1.68.0"
    assert [node.name for node in contents.graphs[0].nodes] == ["flat", "fc", "relu", "gate", "both", "soft"]


@pytest.mark.parametrize(
    ("last", "weights", "named"),
    [
        (layer("c", "Convolutional", ["x"], ["y"], [(1, 2, 3)], stride=1), {}, "Convolutional (of version 3) x1 ('c')"),
        (layer("n", "Neuron", ["x"], ["y"], [(1, 2, 3)], type=9), {}, "Neuron (of version 3) x1 ('n')"),
        (layer("g", "Gather", ["x"], ["y"], [(1, 2, 3)]), {}, "Gather (of version 3) x1 ('g')"),
        (layer("p", "Permute", ["x"], ["y"], [(1, 2, 4)]), {}, "Permute (of version 3) x1 ('p')"),
        (layer("s", "Slice", ["x"], ["a", "b"], [(1, 2, 1), (1, 2, 1)]), {}, "Slice (of version 3) x1 ('s')"),
        (
            layer("fc", "FullyConnected", ["x"], ["y"], [(1, 2, 3)]),
            {"fc": {"w": np.eye(3, dtype=np.float32)}},
            "FullyConnected (of version 3) x1 ('fc')",
        ),
        (
            layer("fc", "FullyConnected", ["x"], ["y"], [(1, 5)]),
            {"fc": {"w": np.zeros((5, 3), np.uint8)}},
            "quantization encoding 2147483647 x1 ('fc/w')",
        ),
    ],
    ids=[
        "attributes",
        "function",
        "a name that QNN has too",
        "an order that cannot be",
        "parts that do not fill",
        "square weights",
        "quantized weights",
    ],
)
def test_what_would_have_to_be_guessed_is_refused_by_name(tmp_path, last, weights, named) -> None:
    path = written(tmp_path, [layer("in", "Input", ["x"], ["x"], [(1, 2, 3)]), last], weights)
    with pytest.raises(QnnError) as caught:
        frontends.load(path)
    assert caught.value.code is Code.COMMON_NOT_SUPPORTED
    assert named in caught.value.rule


def test_a_permutation_that_equal_dimensions_leave_open_is_refused(tmp_path) -> None:
    layers = [layer("in", "Input", ["x"], ["x"], [(1, 3, 3)]), layer("p", "Permute", ["x"], ["y"], [(1, 3, 3)])]
    with pytest.raises(QnnError, match=r"Permute \(of version 3\)"):
        frontends.load(written(tmp_path, layers))


def test_attributes_cannot_nest_without_end(tmp_path) -> None:
    nested = {}
    for _ in range(20):
        nested = {"a": nested}
    path = written(tmp_path, [layer("in", "Input", ["x"], ["x"], [(1,)], deep=nested)])
    with pytest.raises(QnnError, match="more than 8 deep"):
        frontends.load(path)


def test_a_model_without_weights_is_read(tmp_path) -> None:
    path = tmp_path / "bare.dlc"
    layers = [layer("in", "Input", ["x"], ["x"], [(2,)]), layer("relu", "Neuron", ["x"], ["y"], [(2,)], type=1)]
    path.write_bytes(archive({"model": record(3, flatbuffer({1: ("tables", layers)}, b"NETD"), minor=0)}))
    with Session(path) as session:
        assert session.run({"x": np.float32([-1, 2])})["y"].tolist() == [0, 2]
