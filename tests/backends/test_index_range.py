"""An index that data names outside its axis fails the execution on every backend that can see it."""

import asyncio

import numpy as np
import pytest
from onnx import TensorProto, helper, save_model
from support import oracles

import isthmus
from isthmus import Code, QnnError, qnn

BACKENDS = {
    "cpu": ("cpu", None, {}),
    "cpu, two threads": ("cpu", None, {"threads": 2}),
    "cpu, within a time": ("cpu", None, {"timeout": 60}),
    "lpai": ("lpai", None, {}),
    "lpai, within a time": ("lpai", None, {"timeout": 60}),
    "lpai, arm": ("lpai", {"lpai_backend": {"target_env": "arm"}}, {}),
    "htp": ("htp", None, {}),
    "htp, within a time": ("htp", None, {"timeout": 60}),
}
DATA = np.arange(12, dtype=np.float32).reshape(4, 3)
GOOD = np.array([3, -4, 1], np.int64)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("Gather", ["x", "k"], ["g"], name="rows"), helper.make_node("Neg", ["g"], ["y"])]
    inputs = [info("x", TensorProto.FLOAT, [4, 3]), info("k", TensorProto.INT64, [3])]
    graph = helper.make_graph(nodes, "rows", inputs, [info("y", TensorProto.FLOAT, [3, 3])])
    path = tmp_path_factory.mktemp("models") / "rows.onnx"
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.mark.parametrize("name", BACKENDS)
def test_an_execution_fails_and_the_next_one_is_as_good_as_ever(model, name) -> None:
    backend, config, more = BACKENDS[name]
    with isthmus.Session(model, backend=backend, config=config, **more) as session:
        for _ in range(2):
            assert np.array_equal(session.run({"x": DATA, "k": GOOD})["y"], -DATA[GOOD])
            for wrong in (4, -5, 2**62):
                with pytest.raises(QnnError, match="out of range") as refused:
                    session.run({"x": DATA, "k": np.array([0, 1, wrong])})
                assert refused.value.code is Code.GRAPH_INVALID_TENSOR
    if backend == "cpu":
        assert "'Gather rows'" in refused.value.rule


def test_an_index_out_of_range_fails_an_asynchronous_execution(model) -> None:
    y = np.empty((3, 3), np.float32)

    def tensors(indices):
        inputs = [qnn.ClientTensor("x", DATA), qnn.ClientTensor("k", np.array(indices))]
        return inputs, [qnn.ClientTensor("y", y)]

    async def both(graph):
        await graph.execute_async(*tensors(GOOD))
        with pytest.raises(QnnError, match="out of range"):
            await graph.execute_async(*tensors([0, 0, 4]))

    with qnn.Backend("cpu") as backend:
        graph = backend.create_context().compose(model)
        graph.finalize()
        asyncio.run(both(graph))
        assert np.array_equal(y[0], -DATA[0])


CASES = {
    "Gather": ({"axis": 1}, [(5, 4)], (3,)),
    "GatherElements": ({"axis": 1}, [(5, 4)], (5, 3)),
    "GatherND": ({}, [(4, 4)], (3, 2)),
    "ScatterElements": ({"axis": 1}, [(5, 4), (5, 3)], (5, 3)),
    "ScatterND": ({}, [(4, 4), (3,)], (3, 2)),
}


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("wrong", [4, -5, 3, -4])
def test_what_onnx_runtime_refuses_is_refused(tmp_path, op, wrong) -> None:
    attributes, dims, places = CASES[op]
    path, indices = tmp_path / "model.onnx", np.zeros(places, np.int64)
    indices.reshape(-1)[-1] = wrong
    feeds = {f"x{i}": np.random.default_rng(i).random(size).astype(np.float32) for i, size in enumerate(dims)}
    info = helper.make_tensor_value_info
    inputs = [info(name, TensorProto.FLOAT, array.shape) for name, array in feeds.items()]
    node = helper.make_node(op, ["x0", "k", *list(feeds)[1:]], ["y"], **attributes)
    graph = helper.make_graph(
        [node], "g", [*inputs, info("k", TensorProto.INT64, places)], [info("y", TensorProto.FLOAT, None)]
    )
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    feeds["k"] = indices
    session = oracles.onnx_session(path)
    with isthmus.Session(path) as ours:
        if wrong in (3, -4):
            assert np.array_equal(ours.run(feeds)["y"], session.run(["y"], feeds)[0])
            return
        with pytest.raises(Exception, match="Non-zero status code"):
            session.run(["y"], feeds)
        with pytest.raises(QnnError, match="out of range"):
            ours.run(feeds)
    # The same indices as constants are refused before anything runs.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    del model.graph.input[-1]
    model.graph.initializer.append(helper.make_tensor("k", TensorProto.INT64, places, indices.reshape(-1)))
    save_model(model, str(path))
    with pytest.raises(QnnError, match=r"are not within|are outside"):
        isthmus.Session(path)
