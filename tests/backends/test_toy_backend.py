"""A backend in one file runs models through the API, a session and the command line, without a change elsewhere."""

import json
from pathlib import Path

import numpy as np
import pytest
import toy_backend
from support import tiny
from toy_backend import ToyBuffer

import isthmus
from isthmus import Code, QnnError, memory, qnn
from isthmus.graph import Tensor
from isthmus.qnn import ClientTensor
from isthmus.tools.cli import main


@pytest.fixture
def model(tmp_path):
    return tiny.gate(tmp_path / "gate.onnx", 100)


def expected(x, s):
    return x / (1 + np.exp(-x)) + s


def feeds():
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal((1, 100)).astype(np.float32) for name in ("x", "s")}


def test_it_is_one_short_file():
    assert len(Path(toy_backend.__file__).read_text().splitlines()) < 150


def test_the_api_runs_a_model_on_it(model):
    given = feeds()
    y = np.zeros((1, 100), np.float32)
    with qnn.Backend("toy") as backend:
        graph = backend.create_context().compose(model)
        graph.finalize()
        graph.execute([ClientTensor(name, array) for name, array in given.items()], [ClientTensor("y", y)])
        assert (graph.stats.copied_in_bytes, graph.stats.copied_out_bytes) == (800, 400)
    assert np.allclose(y, expected(**given), atol=1e-6)


def test_memory_that_the_host_does_not_see_is_used_in_place(model):
    buffers = [ToyBuffer(400) for _ in range(3)]
    for buffer, array in zip(buffers, feeds().values(), strict=False):
        buffer.there[:] = array.reshape(-1).view(np.uint8)
    with qnn.Backend("toy") as backend:
        graph = backend.create_context().compose(model)
        graph.finalize()
        names = ("x", "s", "y")
        tensors = [ClientTensor(name, buffer) for name, buffer in zip(names, buffers, strict=True)]
        binding = graph.bind(tensors[:2], tensors[2:])
        binding.execute()
        assert binding.stats.copied_bytes == 0
        assert binding.stats.in_place_bytes == {"toy": 1200}
        with pytest.raises(QnnError, match="overlaps that of tensor 'x'"):
            graph.bind(tensors[:2], [ClientTensor("y", buffers[0])])
    assert np.allclose(buffers[2].there.view(np.float32), expected(**feeds()).reshape(-1), atol=1e-6)
    with pytest.raises(QnnError, match="memory that the host does not see"):
        _ = buffers[0].array


def test_a_foreign_object_becomes_its_memory_where_somebody_knows_how(model):
    class Handle:
        buffer = ToyBuffer(400)

    memory.adopt(lambda owner: owner.buffer if isinstance(owner, Handle) else None)
    assert memory.window(Handle()).buffer is Handle.buffer


def test_a_session_runs_a_model_on_it(model):
    with isthmus.Session(model, backend="toy") as session:
        results = session.run(feeds())
        assert np.allclose(results["y"], expected(**feeds()), atol=1e-6)
        assert session.info.target == "numpy"
        assert session.plan is None


def test_the_command_line_runs_a_model_on_it(model, tmp_path, capsys):
    np.savez(tmp_path / "in.npz", **feeds())
    arguments = ["run", str(model), "--backend", "toy", "--inputs", str(tmp_path / "in.npz"), "--json"]
    assert main([*arguments, "--outputs", str(tmp_path / "out.npz")]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "numpy"
    with np.load(tmp_path / "out.npz") as results:
        assert np.allclose(results["y"], expected(**feeds()), atol=1e-6)


def test_the_tools_of_qnn_run_a_model_on_it(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, array in feeds().items():
        array.tofile(f"{name}.raw")
    Path("list.txt").write_text("x:=x.raw s:=s.raw\n")
    assert main(["net-run", "--model", str(model), "--input_list", "list.txt", "--backend", "libQnnToy.so"]) == 0
    result = np.fromfile("output/Result_0/y.raw", np.float32)
    assert np.allclose(result, expected(**feeds()).reshape(-1), atol=1e-6)


def test_its_binaries_are_its_own_business(model):
    with qnn.Backend("toy") as backend:
        context = backend.create_context()
        context.compose(model).finalize()
        binary = context.get_binary()
        again = backend.create_context_from_binary(binary).retrieve("gate")
        assert [info.name for info in again.input_tensors] == ["x", "s"]
    info = qnn.SystemContext().get_binary_info(binary)
    assert (info.backend, info.graphs[0].inputs[0].dims) == ("toy", (1, 100))
    with qnn.Backend("cpu") as other, pytest.raises(QnnError) as refusal:
        other.create_context_from_binary(binary)
    assert refusal.value.code is Code.CONTEXT_CREATE_FROM_BINARY


def test_it_is_asked_what_it_supports():
    with qnn.Backend("toy") as backend:
        x = qnn_tensor("x", qnn.TensorType.APP_WRITE)
        y = qnn_tensor("y", qnn.TensorType.APP_READ)
        backend.validate_op_config("n", "Relu", [x], [y])
        with pytest.raises(QnnError, match="a toy has no Softmax") as refusal:
            backend.validate_op_config("n", "Softmax", [x], [y])
        assert refusal.value.code is Code.OP_PACKAGE_VALIDATION_FAILURE


def qnn_tensor(name, kind):
    return Tensor(name, kind, qnn.DataType.FLOAT_32, (1, 4))


def test_what_it_does_not_say_is_said_for_it(model):
    with qnn.Backend("toy") as backend:
        context = backend.create_context()
        graph = context.compose(model)
        driver = graph.driver
        assert not driver.finalized
        graph.finalize()
        assert (driver.priority, driver.inputs_survive, driver.threads) == (qnn.Priority.NORMAL, True, 1)
        assert driver.place(0) is driver.native_call() is driver.plan is driver.scratch_limit is None
        assert context.driver.seconds_to_finish is None
        assert type(driver.set_threads(1)) is type(driver.set_scratch_limit(None))
        for refused in (lambda: driver.set_threads(2), lambda: driver.set_scratch_limit("least")):
            with pytest.raises(QnnError) as caught:
                refused()
            assert caught.value.code is Code.GRAPH_INVALID_ARGUMENT
