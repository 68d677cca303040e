"""What a DLC holds becomes a graph that computes it, in whichever form the file is written."""

import gc
import weakref
from dataclasses import replace

import flatbuffers
import numpy as np
import pytest
from support.dlc_graphs import (
    BIAS,
    NATIVE,
    READ,
    STATIC,
    WEIGHTS,
    WRITE,
    convolution,
    convolved,
    fully_connected,
    single,
)
from support.dlc_write import OLD, OLDER, RAW, archive, dlc, flatbuffer, node, record, static, tensor

from isthmus import Session, frontends, qnn
from isthmus.errors import Code, QnnError
from isthmus.frontends import ModelSource
from isthmus.frontends import dlc as reader
from isthmus.frontends.composed.entries import GraphEntry
from isthmus.graph import DataType, TensorType

X = np.random.default_rng(0).standard_normal((1, 6, 6, 2)).astype(np.float32)


def written(tmp_path, *graphs, name="model.dlc", **how):
    path = tmp_path / name
    path.write_bytes(dlc(graphs, **how))
    return path


def loaded(tmp_path, graph):
    return frontends.load(written(tmp_path, graph))


def refused(tmp_path, graph) -> QnnError:
    with pytest.raises(QnnError) as caught:
        loaded(tmp_path, graph)
    return caught.value


@pytest.mark.parametrize("layout", [RAW, OLD, OLDER])
def test_all_forms_of_version_4_compute_what_they_hold(tmp_path, layout) -> None:
    with Session(written(tmp_path, convolution(), layout=layout)) as session:
        assert list(session.inputs) == ["in/x:0"]
        np.testing.assert_allclose(session.run({"in/x:0": X})["y"], convolved(X), atol=1e-5)


def test_parameters_of_all_forms_are_the_same(tmp_path) -> None:
    clip = {"operation": 5, "min_value": -0.5, "max_value": 2.5}
    graphs = [
        frontends.load(written(tmp_path, single(node("clip", "Neuron", ["x"], ["y"], clip)), layout=layout))
        for layout in (RAW, OLD, OLDER)
    ]
    for graph in graphs:
        assert (graph.nodes[0].params["min_value"], graph.nodes[0].params["max_value"]) == (-0.5, 2.5)


def test_an_archive_without_wide_sizes_is_read_too(tmp_path) -> None:
    content = reader.archive.read(memoryview(dlc([convolution()])), "wide").entries
    path = tmp_path / "narrow.dlc"
    path.write_bytes(archive({name: bytes(data) for name, data in content.items()}, wide=False))
    assert [n.op for n in frontends.load(path).nodes] == ["Conv2d", "ElementWiseNeuron"]


def test_each_of_several_graphs_can_be_loaded_by_name(tmp_path) -> None:
    path = written(tmp_path, convolution("first"), convolution("second"))
    assert [graph.name for graph in frontends.load_all(ModelSource(path))] == ["first", "second"]
    with Session(path, graph="second") as session:
        assert session.graph.name == "second"
        np.testing.assert_allclose(session.run({"in/x:0": X})["y"], convolved(X), atol=1e-5)
    with qnn.Backend("cpu") as backend:
        graphs = backend.create_context().compose_all(path)
        assert [graph.name for graph in graphs] == ["first", "second"]


def test_of_several_graphs_one_must_be_named(tmp_path) -> None:
    path = written(tmp_path, convolution("first"), convolution("second"))
    with pytest.raises(QnnError, match=r"2 graphs: 'first', 'second'"):
        Session(path)
    with pytest.raises(QnnError, match=r"'third'.*has 'first', 'second'") as caught:
        Session(path, graph="third")
    assert caught.value.code is Code.GRAPH_DOES_NOT_EXIST


def test_a_context_takes_all_graphs_or_none(tmp_path) -> None:
    path = written(tmp_path, convolution("first"), convolution("second"))
    with qnn.Backend("cpu") as backend:
        context = backend.create_context()
        context.create_graph("second")
        with pytest.raises(QnnError, match="has one of that name"):
            context.compose_all(path)
        assert list(context.graphs) == ["second"]


def test_two_graphs_of_one_name_are_refused_by_a_context(tmp_path) -> None:
    path = written(tmp_path, convolution("same"), convolution("same"))
    with qnn.Backend("cpu") as backend:
        context = backend.create_context()
        with pytest.raises(QnnError, match="'same'"):
            context.compose_all(path)
        assert not context.graphs


def test_weights_are_read_only_views_of_one_mapping(tmp_path) -> None:
    graph = loaded(tmp_path, convolution())
    held = [t.data for t in graph.tensors.values() if t.is_static]
    assert len(held) == 2
    for array in held:
        assert not array.flags.owndata
        assert not array.flags.writeable
    places = [array.__array_interface__["data"][0] for array in held]
    assert abs(places[0] - places[1]) < 4096


def test_overwriting_a_loaded_file_changes_no_weights(tmp_path) -> None:
    path = written(tmp_path, convolution())
    graph = frontends.load(path)
    with path.open("r+b") as stream:
        stream.write(bytes(path.stat().st_size))
        stream.truncate(10)
    np.testing.assert_array_equal(graph.tensors["conv/w:0"].data, WEIGHTS)
    np.testing.assert_array_equal(graph.tensors["1"].data, BIAS)


def test_the_mapping_ends_with_the_graph(tmp_path) -> None:
    graph = loaded(tmp_path, convolution())
    array = graph.tensors["1"].data
    while isinstance(array.base, np.ndarray):
        array = array.base
    mapping = weakref.ref(array.base.obj if isinstance(array.base, memoryview) else array.base)
    del graph, array
    gc.collect()
    assert mapping() is None


def test_names_stay_those_of_the_source_or_become_qnns(tmp_path) -> None:
    path = written(tmp_path, convolution())
    assert [t.name for t in frontends.load(path).inputs] == ["in/x:0"]
    (clean,) = frontends.load_all(ModelSource(path, clean_names=True))
    assert [t.name for t in clean.inputs] == ["in_x_0"]
    assert {"conv_w_0", "_1"} <= set(clean.tensors)


def test_names_that_would_become_the_same_are_made_different(tmp_path) -> None:
    graph = GraphEntry(
        "net",
        (tensor("a/b", NATIVE, (2,)), tensor("a.b", NATIVE, (2,)), tensor("x", WRITE, (2,)), tensor("a_b", READ, (2,))),
        (
            node("1", "Neuron", ["x"], ["a/b"], {"operation": 4}),
            node("2", "Neuron", ["a/b"], ["a.b"], {"operation": 8}),
            node("3", "Neuron", ["a.b"], ["a_b"], {"operation": 6}),
        ),
    )
    (clean,) = frontends.load_all(ModelSource(written(tmp_path, graph), clean_names=True))
    assert [t.name for t in clean.outputs] == ["a_b"]
    assert [n.outputs[0].name for n in clean.nodes] == ["a_b_1", "a_b_2", "a_b"]


# --- families of operations -----------------------------------------------------------------------------------------

POOL = {"filter_size": np.uint32([2, 2]), "stride": np.uint32([2, 2]), "pad_amount": np.uint32([[0, 0], [0, 0]])}
V = np.random.default_rng(1).standard_normal((1, 4, 4, 2)).astype(np.float32)
FAMILIES = {
    "unary": (node("n", "Eltwise_Unary", ["x"], ["y"], eltwise_type="ElementWiseAbs"), np.abs(V)),
    "unary number": (node("n", "Eltwise_Unary", ["x"], ["y"], {"operation": 8}), -V),
    "binary": (node("n", "Eltwise_Binary", ["x", "x"], ["y"], eltwise_type="ElementWiseAdd"), V + V),
    "binary number": (node("n", "Eltwise_Binary", ["x", "x"], ["y"], {"operation": 13}), V * V),
    "neuron": (node("n", "Neuron", ["x"], ["y"], neuron_type="Tanh"), np.tanh(V)),
    "neuron number": (node("n", "ElementWiseNeuron", ["x"], ["y"], {"operation": 4}), np.maximum(V, 0)),
    "largest": (
        node("n", "Pool", ["x"], ["y"], POOL, pool_type="PoolMax2d"),
        V.reshape(1, 2, 2, 2, 2, 2).max((2, 4)),
    ),
    "mean": (
        node("n", "Pool", ["x"], ["y"], {**POOL, "count_pad_for_edges": False}, pool_type="PoolAvg2d"),
        V.reshape(1, 2, 2, 2, 2, 2).mean((2, 4)),
    ),
    "reduction": (
        node("n", "Reduce", ["x"], ["y"], {"axes": np.uint32([1, 2]), "keep_dims": False}, reduce_type="ReduceMean"),
        V.mean((1, 2)),
    ),
    "argument": (
        node("n", "Arg", ["x"], ["y"], {"axis": 3, "keep_dims": False}, arg_type="Argmax"),
        V.argmax(3).astype(np.int32),
    ),
    "nearest": (
        node("n", "Resize", ["x"], ["y"], {"transformation_mode": 3, "interpolation_mode": 0, "nearest_mode": 2}),
        V.repeat(2, 1).repeat(2, 2),
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_converters_names_become_qnns(tmp_path, family) -> None:
    operation, expected = FAMILIES[family]
    graph = single(operation, out=expected.shape, dtype=DataType.of(expected.dtype))
    with Session(written(tmp_path, graph)) as session:
        np.testing.assert_allclose(session.run({"x": V})["y"], expected, rtol=1e-5, atol=1e-6)


def test_a_ternary_family_becomes_a_selection(tmp_path) -> None:
    graph = GraphEntry(
        "net",
        (
            tensor("c", WRITE, (2, 3), DataType.BOOL_8),
            tensor("x", WRITE, (2, 3)),
            static("zero", np.zeros((1, 1), np.float32)),
            tensor("y", READ, (2, 3)),
        ),
        (node("pick", "Eltwise_Ternary", ["c", "x", "zero"], ["y"], eltwise_type="ElementWiseSelect"),),
    )
    chosen = np.array([[1, 0, 1], [0, 1, 0]], bool)
    x = np.ones((2, 3), np.float32)
    with Session(written(tmp_path, graph)) as session:
        np.testing.assert_array_equal(session.run({"c": chosen, "x": x})["y"], chosen)


@pytest.mark.parametrize("said", [{"time_major": False}, {}], ids=["said", "not said"])
@pytest.mark.parametrize(("batch", "time"), [(1, 5), (3, 4)])
def test_a_sequence_with_the_batch_first_is_turned(tmp_path, batch, time, said) -> None:
    """QNN's Lstm has [batch, time, features] unless it says that time is first."""
    rng = np.random.default_rng(2)
    features, units = 3, 2
    weights = {f"w{i}": rng.standard_normal((units, features)).astype(np.float32) for i in range(4)}
    recurrent = {f"r{i}": rng.standard_normal((units, units)).astype(np.float32) for i in range(4)}
    biases = {f"b{i}": rng.standard_normal(units).astype(np.float32) for i in range(4)}
    held = {**weights, **recurrent, **biases}
    start = np.zeros((batch, units), np.float32)
    order = ["x", "w0", "w1", "w2", "r0", "r1", "r2", "b0", "b1", "b2", "h", "c", *["none"] * 4, "w3", "r3",
             *["none"] * 3, "b3", "none", "none"]  # fmt: skip

    def graph(params) -> GraphEntry:
        steps = (time, batch) if params.get("time_major") else (batch, time)
        return GraphEntry(
            "net",
            (
                tensor("x", WRITE, (*steps, features)),
                *(static(name, array) for name, array in held.items()),
                static("h", start),
                static("c", start),
                tensor("none", TensorType.NULL, (0,)),
                tensor("y", READ, (*steps, units)),
                tensor("cell", READ, (batch, units)),
                tensor("last", READ, (batch, units)),
            ),
            (node("lstm", "Lstm", order, ["y", "cell", "last"], {**params, "hidden_size": units}),),
        )

    x = rng.standard_normal((batch, time, features)).astype(np.float32)
    with Session(written(tmp_path, graph(said))) as session:
        got = session.run({"x": x})
    with Session(written(tmp_path, graph({"time_major": True}))) as session:
        expected = session.run({"x": np.ascontiguousarray(x.swapaxes(0, 1))})
    np.testing.assert_allclose(got["y"], expected["y"].swapaxes(0, 1), atol=1e-6)
    np.testing.assert_allclose(got["last"], got["y"][:, -1], atol=1e-6)
    np.testing.assert_allclose(got["cell"], expected["cell"], atol=1e-6)


# --- encodings ------------------------------------------------------------------------------------------------------

Q = np.int8([[-3, 0, 4], [5, -8, 7]])
SCALES = [0.5, 0.25]
SIGNED, UNSIGNED = DataType.SFIXED_POINT_8, DataType.UFIXED_POINT_8
NIBBLES = Q.reshape(-1).view(np.uint8) & 15
ENCODED = {
    "per tensor": (static("w", Q, dtype=SIGNED, scale=0.5), Q, 0.5),
    "per channel": (static("w", Q, dtype=SIGNED, scale=SCALES, axis=0), Q, SCALES),
    "unsigned": (static("w", Q.view(np.uint8), dtype=UNSIGNED, scale=0.5, offset=-7), Q.view(np.uint8) - 7.0, 0.5),
    "four bits in a byte": (static("w", Q, dtype=SIGNED, scale=0.5, bits=4), Q, 0.5),
    "four bits without their sign": (
        static("w", NIBBLES.reshape(2, 3).view(np.int8), dtype=SIGNED, scale=SCALES, axis=0, bits=4),
        Q,
        SCALES,
    ),
    "four bits packed": (
        tensor("w", STATIC, (2, 3), 0x0304, NIBBLES[0::2] | NIBBLES[1::2] << 4, scale=SCALES, axis=0, bits=4),
        Q,
        SCALES,
    ),
    "four unsigned bits packed": (
        tensor("w", STATIC, (2, 3), 0x0404, NIBBLES[0::2] | NIBBLES[1::2] << 4, scale=0.5, offset=-8),
        NIBBLES.reshape(2, 3) - 8.0,
        0.5,
    ),
}


@pytest.mark.parametrize("kind", ENCODED)
def test_encoded_weights_mean_their_reals(tmp_path, kind) -> None:
    weights, stored, scales = ENCODED[kind]
    tensor = loaded(tmp_path, fully_connected(weights)).tensors["w"]
    real = stored * np.broadcast_to(np.float64(scales), 2)[:, None]
    np.testing.assert_allclose(tensor.quantization.dequantize(tensor.data), real, rtol=1e-6)


@pytest.mark.parametrize("kind", ENCODED)
def test_layers_with_encoded_weights_are_executed(tmp_path, kind) -> None:
    weights, stored, scales = ENCODED[kind]
    real = stored * np.broadcast_to(np.float64(scales), 2)[:, None]
    x = np.uint8([[40, 3, 13]])
    expected = np.clip(np.rint((x - 3.0) * 0.1 @ real.T / 0.2) + 3, 0, 255)
    with Session(written(tmp_path, fully_connected(weights))) as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], expected)


def test_an_odd_count_of_packed_elements_leaves_half_a_byte(tmp_path) -> None:
    weights = tensor("w", STATIC, (1, 3), 0x0304, np.uint8([0x21, 0xF3]), scale=1.0, bits=4)
    graph = fully_connected(weights)
    graph = replace(graph, tensors=(*graph.tensors[:2], replace(graph.tensors[2], dims=(1, 1))))
    assert loaded(tmp_path, graph).tensors["w"].data.tolist() == [[1, 2, 3]]


def test_bits_of_an_encoding_that_has_none_are_not_looked_at(tmp_path) -> None:
    """QNN's own reader passes such weights on as they are."""
    wide = static("w", Q * np.int8(9), dtype=SIGNED, scale=0.5)
    wide = replace(wide, encoding=replace(wide.encoding, bits=4))
    np.testing.assert_array_equal(loaded(tmp_path, fully_connected(wide)).tensors["w"].data, Q * np.int8(9))


# --- refusals -------------------------------------------------------------------------------------------------------


def test_all_unsupported_operations_are_named_in_one_error(tmp_path) -> None:
    graph = GraphEntry(
        "net",
        (
            tensor("x", WRITE, (1, 4)),
            tensor("s", WRITE, (1, 4), 0x0304, scale=1.0),
            *(tensor(name, NATIVE, (1, 4)) for name in "abcd"),
            tensor("y", READ, (1, 4)),
        ),
        (
            node("first", "RoiPooling", ["x"], ["a"]),
            node("follows", "Neuron", ["a"], ["b"], {"operation": 4}),
            replace(node("own", "Relu", ["x"], ["c"]), package="my.package"),
            node("strange", "Softmax", ["x"], ["d"], {"axis": 1, "temperature": 2.0}),
            node("second", "RoiPooling", ["d"], ["y"]),
        ),
    )
    error = refused(tmp_path, graph)
    assert error.code is Code.COMMON_NOT_SUPPORTED
    assert "RoiPooling x2 ('first', 'second')" in error.rule
    assert "my.package::Relu x1 ('own')" in error.rule
    assert "Softmax x1 (parameter 'temperature': 'strange')" in error.rule
    assert "data type 0x0304 x1 ('s')" in error.rule
    assert "follows" not in error.rule


def test_an_encoding_that_is_not_understood_is_named(tmp_path) -> None:
    weights = static("w", Q, dtype=SIGNED, scale=0.5)
    error = refused(tmp_path, fully_connected(replace(weights, encoding=replace(weights.encoding, kind=5))))
    assert error.code is Code.COMMON_NOT_SUPPORTED
    assert "quantization encoding 5 x1 ('w')" in error.rule


def test_a_node_of_a_tensor_that_is_not_there_is_refused(tmp_path) -> None:
    error = refused(tmp_path, single(node("n", "Neuron", ["nowhere"], ["y"], {"operation": 4})))
    assert error.code is Code.GRAPH_INVALID_TENSOR
    assert "'nowhere'" in error.rule


def test_weights_of_another_size_are_refused(tmp_path) -> None:
    weights = replace(static("w", Q, dtype=SIGNED, scale=0.5), data=memoryview(b"12345"))
    error = refused(tmp_path, fully_connected(weights))
    assert error.code is Code.COMMON_LOADING_BINARIES
    assert "5 bytes are stored for [2, 3]" in error.rule


def test_shapes_are_fixed(tmp_path) -> None:
    path = written(tmp_path, convolution())
    assert frontends.load(path, {"in/x:0": (1, 6, 6, 2)}).inputs[0].dims == (1, 6, 6, 2)
    with pytest.raises(QnnError, match="shapes of a DLC are fixed"):
        frontends.load(path, {"in/x:0": (1, 8, 8, 2)})
    with pytest.raises(QnnError, match="cannot be constants"):
        frontends.load(path, constants={"in/x:0": X})


def test_graphs_prepared_for_another_machine_are_shown_and_not_executed(tmp_path) -> None:
    cached = {"htp.cache.0": b"\0\0\0\2" * 100}
    path = written(tmp_path, convolution(), more=cached)
    assert reader.read(path).caches == ("htp.cache.0",)
    assert len(frontends.load_all(ModelSource(path))) == 1
    alone = tmp_path / "cached.dlc"
    alone.write_bytes(archive(cached))
    with pytest.raises(QnnError, match=r"no graph, only what was prepared for another .* \(htp.cache.0\)") as caught:
        Session(alone)
    assert caught.value.code is Code.COMMON_NOT_SUPPORTED


@pytest.mark.parametrize(
    ("entries", "rule"),
    [
        ({"model": record(2, flatbuffer({}, b"NETD"))}, "version 2; versions 3 and 4 are read"),
        ({"model": b"\xd5\x0a"}, "too short for a record"),
        ({"model": bytes(64)}, "does not begin as a record"),
        ({"model": record(4, flatbuffer({}, b"ABCD"))}, "identifier is b'ABCD'"),
        (
            {"model": record(4, flatbuffer({}, b"NETD")), "model.params": record(3, flatbuffer({}, b"NETP"))},
            "'model.params' has version 3, its model version 4",
        ),
    ],
)
def test_records_of_another_kind_are_refused(tmp_path, entries, rule) -> None:
    path = tmp_path / "other.dlc"
    path.write_bytes(archive(entries))
    with pytest.raises(QnnError, match=rule) as caught:
        frontends.load(path)
    assert caught.value.code is Code.COMMON_LOADING_BINARIES


def test_a_file_that_is_not_there_or_empty_is_refused(tmp_path) -> None:
    with pytest.raises(QnnError, match="there is no such file"):
        reader.read(tmp_path / "none.dlc")
    (tmp_path / "empty.dlc").touch()
    with pytest.raises(QnnError, match="cannot be read: empty"):
        reader.read(tmp_path / "empty.dlc")
    with pytest.raises(QnnError, match="a directory"):
        reader.read(tmp_path)


def test_a_small_file_cannot_ask_for_endless_work(tmp_path) -> None:
    """All 4,000 nodes of this file are stored once, and so are their 4,000 attributes."""
    many = 4_000
    builder = flatbuffers.Builder(1 << 20)

    def table(field, value):
        builder.StartObject(5)
        builder.PrependUOffsetTRelativeSlot(field, value, 0)
        return builder.EndObject()

    def repeated(offset):
        builder.StartVector(4, many, 4)
        for _ in range(many):
            builder.PrependUOffsetTRelative(offset)
        return builder.EndVector()

    value = table(3, builder.CreateString("text"))
    node = table(4, repeated(table(3, value)))
    graph = table(1, repeated(node))
    builder.StartVector(4, 1, 4)
    builder.PrependUOffsetTRelative(graph)
    builder.Finish(table(0, builder.EndVector()), file_identifier=b"NETD")
    path = tmp_path / "repeated.dlc"
    path.write_bytes(archive({"model": record(4, bytes(builder.Output()))}))
    with pytest.raises(QnnError, match="more of them than bytes"):
        frontends.load(path)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"dlc.metadata": b"converter-command=tool --x a=b\nno fact\nconverter-version=2.31"}, "tool 2.31"),
        ({"dlc.metadata": b"converter-version=2.31"}, "2.31"),
        ({"dlc.metadata": b' {"dlcGenerationInfo": [{}, {"converterCommand": {"tool": "t", "converterVersion": 3}}]}'},
         "t 3"),
        ({"dlc.metadata": b"{", "dlc.metadata2": b"converter-command=second"}, "second"),
        ({"dlc.metadata": b'{"dlcGenerationInfo": []}'}, ""),
        ({"dlc.metadata": b'{"dlcGenerationInfo": 3}'}, ""),
        ({"dlc.metadata": b"[" * 100_000}, ""),
        ({"dlc.metadata": b'{"a":' * 100_000}, ""),
        ({"other": b"converter-command=tool"}, ""),
        ({"dlc.metadata": b"converter-command=" + b"x" * 500}, "x" * 200),
        ({"dlc.metadata": b"converter-command=tool\n".ljust(1 << 20)}, "tool"),
        ({"dlc.metadata": b"converter-command=tool\n".ljust((1 << 20) + 1)}, ""),
    ],
    ids=range(12),
)  # fmt: skip
def test_the_converter_of_a_file_is_read_from_its_metadata_if_these_are_sound(tmp_path, metadata, said) -> None:
    assert reader.read(written(tmp_path, convolution(), more=metadata)).producer == said
