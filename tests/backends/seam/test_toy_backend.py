"""A backend in one file runs models in Python, in C and in LiteRT, without a change elsewhere."""

import ctypes
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from support import tiny

import isthmus
from backends.seam import toy_backend
from backends.seam.toy_backend import ToyBuffer
from isthmus import Code, QnnError, capi, memory, qnn
from isthmus.backends.seam import registry
from isthmus.cabi import objects, system, types
from isthmus.capi import installation
from isthmus.graph import Tensor
from isthmus.qnn import ClientTensor
from isthmus.tools.cli import main

TESTS = Path(__file__).parents[2]


@pytest.fixture
def model(tmp_path):
    return tiny.gate(tmp_path / "gate.onnx", 100)


def expected(x, s):
    return x / (1 + np.exp(-x)) + s


def feeds():
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal((1, 100)).astype(np.float32) for name in ("x", "s")}


def test_the_toy_backend_is_one_short_file() -> None:
    assert len(Path(toy_backend.__file__).read_text().splitlines()) < 200


def test_the_api_runs_a_model_on_the_toy_backend(model) -> None:
    given = feeds()
    y = np.zeros((1, 100), np.float32)
    with qnn.Backend("toy") as backend:
        graph = backend.create_context().compose(model)
        graph.finalize()
        graph.execute([ClientTensor(name, array) for name, array in given.items()], [ClientTensor("y", y)])
        assert (graph.stats.copied_in_bytes, graph.stats.copied_out_bytes) == (800, 400)
    assert np.allclose(y, expected(**given), atol=1e-6)


def test_memory_that_the_host_does_not_see_is_used_in_place(model) -> None:
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
        room = ToyBuffer(800)
        part = ClientTensor("x", room.window(0, 400))
        with pytest.raises(QnnError, match="overlaps that of tensor 'x'"):
            graph.bind([part, tensors[1]], [ClientTensor("y", room.window(200, 400))])
        graph.execute(tensors[:2], [ClientTensor("y", buffers[0])])
        assert np.array_equal(buffers[0].there, buffers[2].there), "an input may be overwritten by its output"
    assert np.allclose(buffers[2].there.view(np.float32), expected(**feeds()).reshape(-1), atol=1e-6)
    with pytest.raises(QnnError, match="memory that the host cannot access"):
        _ = buffers[0].array


def test_a_foreign_object_becomes_its_memory_if_a_reader_is_registered(model) -> None:
    class Handle:
        buffer = ToyBuffer(400)

    memory.adopt(lambda owner: owner.buffer if isinstance(owner, Handle) else None)
    assert memory.window(Handle()).buffer is Handle.buffer


def test_a_session_runs_a_model_on_the_toy_backend(model) -> None:
    with isthmus.Session(model, backend="toy") as session:
        results = session.run(feeds())
        assert np.allclose(results["y"], expected(**feeds()), atol=1e-6)
        assert session.info.target == "numpy"
        assert session.plan is None


def test_the_command_line_runs_a_model_on_the_toy_backend(model, tmp_path, capsys) -> None:
    np.savez(tmp_path / "in.npz", **feeds())
    arguments = ["run", str(model), "--backend", "toy", "--inputs", str(tmp_path / "in.npz"), "--json"]
    assert main([*arguments, "--outputs", str(tmp_path / "out.npz")]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "numpy"
    with np.load(tmp_path / "out.npz") as results:
        assert np.allclose(results["y"], expected(**feeds()), atol=1e-6)


def test_the_tools_of_qnn_run_a_model_on_the_toy_backend(model, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, array in feeds().items():
        array.tofile(f"{name}.raw")
    Path("list.txt").write_text("x:=x.raw s:=s.raw\n")
    assert main(["net-run", "--model", str(model), "--input_list", "list.txt", "--backend", "libQnnToy.so"]) == 0
    result = np.fromfile("output/Result_0/y.raw", np.float32)
    assert np.allclose(result, expected(**feeds()).reshape(-1), atol=1e-6)


def test_a_backends_own_format_of_binaries_is_restored_and_described(model) -> None:
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


def test_a_backend_decides_which_nodes_it_supports() -> None:
    with qnn.Backend("toy") as backend:
        x = qnn_tensor("x", qnn.TensorType.APP_WRITE)
        y = qnn_tensor("y", qnn.TensorType.APP_READ)
        backend.validate_op_config("n", "Relu", [x], [y])
        with pytest.raises(QnnError, match="a toy has no Softmax") as refusal:
            backend.validate_op_config("n", "Softmax", [x], [y])
        assert refusal.value.code is Code.OP_PACKAGE_VALIDATION_FAILURE


def qnn_tensor(name, kind):
    return Tensor(name, kind, qnn.DataType.FLOAT_32, (1, 4))


def test_what_a_backend_does_not_define_has_a_default(model) -> None:
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


# -- C -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """The libraries that a user gets; three are made here: that of the toy backend, and two that serve all backends."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("needs a C compiler")
    ours = {library.file: library for library in installation.LIBRARIES}
    of_others = {f"libQnn{name.capitalize()}.so" for name in registry.names() if name.isalnum()} - ours.keys()
    wanted = {"libQnnSystem.so", "libQnnTFLiteDelegate.so"}
    folder = tmp_path_factory.mktemp("libraries")
    with pytest.MonkeyPatch.context() as patch:
        carried = tmp_path_factory.mktemp("carried")
        for file in ours.keys() - wanted:
            (carried / file).write_bytes(b"")
        patch.setattr(installation, "BUILT", carried)
        made = {file.name for file in capi.install(folder)}
    assert made == ours.keys() | of_others
    assert "libQnnToy.so" in made
    return folder


@pytest.fixture
def client(libraries):
    """A client of its library, which calls as C does."""
    from capi.qnn_calls import Client

    return Client(libraries / "libQnnToy.so")


def in_c(client):
    """A backend, a context, and a graph y = x + x with its tensors, created through C."""
    from capi.qnn_calls import doubling, opened

    backend, context = opened(client)
    return backend, context, *doubling(client, context)


def test_a_library_in_c_presents_the_toy_backend(client) -> None:
    versions = (types.Version * 2)()
    client.do("backendGetApiVersion", ctypes.byref(versions))
    said = versions[1]
    assert (said.major, said.minor, said.patch) == toy_backend.IN_C.version
    assert (client.provider.backendId, client.provider.providerName) == (1000, b"TOY_ISTHMUS")
    answers = [client.propertyHasCapability(key) for key in (502, 1101, 1103, 106)]
    assert answers == [objects.PropertyAnswer.SUPPORTED] * 2 + [objects.PropertyAnswer.NOT_SUPPORTED, answers[0]]


def test_a_client_in_c_runs_a_graph_on_the_toy_backend(client) -> None:
    from capi.qnn_calls import at

    backend, _, graph, x, y = in_c(client)
    given, made = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    assert client.execute(graph, [at(x, given)], [at(y, made)]) == 0
    assert np.array_equal(made, given * 2)
    client.do("backendFree", backend)


def test_a_client_in_c_has_memory_of_the_device_used_in_place(client) -> None:
    from capi.qnn_calls import in_handle

    backend, context, graph, x, y = in_c(client)
    buffers = [ToyBuffer(32), ToyBuffer(32)]
    buffers[0].there.view(np.float32)[:] = range(8)
    handles = [registered(client, context, buffer.number) for buffer in buffers]
    assert client.execute(graph, [in_handle(x, handles[0])], [in_handle(y, handles[1])]) == 0
    assert list(buffers[1].there.view(np.float32)) == [2 * n for n in range(8)]
    with pytest.raises(AssertionError, match="a toy has no such buffer"):
        registered(client, context, 1 << 40)
    client.do("backendFree", backend)


def registered(client, context, number):
    """Register a buffer of the device by its number, as C does."""
    custom = client.keep(ctypes.c_uint64(number))
    dims = client.keep((ctypes.c_uint32 * 2)(1, 8))
    descriptor = objects.MemDescriptor()
    descriptor.memShape.numDim, descriptor.memShape.dimSize = 2, dims
    descriptor.dataType, descriptor.memType = qnn.DataType.FLOAT_32, qnn.DescriptorType.CUSTOM
    descriptor.customInfo = ctypes.addressof(custom)
    return client.make("memRegister", context, ctypes.byref(descriptor), 1)


def test_binaries_of_the_toy_backend_are_described_in_c(libraries, client, model) -> None:
    with qnn.Backend("toy") as backend:
        context = backend.create_context()
        context.compose(model).finalize()
        binary = context.get_binary()
    described = type(client)(libraries / "libQnnSystem.so")
    handle, info = described.make("systemContextCreate"), ctypes.POINTER(system.BinaryInfo)()
    described.do("systemContextGetBinaryInfo", handle, binary, len(binary), ctypes.byref(info), None)
    found = info.contents.contextBinaryInfoV1
    assert (found.backendId, found.backendApiVersion.minor, found.numGraphs) == (1000, 2, 1)
    described.do("systemContextFree", handle)


# -- LiteRT ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def harness():
    pytest.importorskip("ai_edge_litert", reason="needs LiteRT")
    pytest.importorskip("flatbuffers", reason="needs flatbuffers")
    from delegate import harness as delegate_harness

    return delegate_harness


def test_a_delegate_runs_nodes_on_the_toy_backend(harness) -> None:
    from isthmus.delegate import Options, QnnDelegate

    delegate = QnnDelegate(Options(1000))
    interpreter = harness.with_delegate(harness.doubled(1, 8), delegate)
    given = np.arange(8, dtype=np.float32).reshape(1, 8)
    assert np.array_equal(harness.run(interpreter, given)[0], given * 2)
    # The device's own copies, and none of the delegate's.
    assert (delegate.backend_name, delegate.stats.copied_in_bytes, delegate.stats.copied_out_bytes) == ("toy", 32, 32)
    del interpreter
    delegate.close()


def test_a_delegate_shares_memory_with_the_toy_backend(harness) -> None:
    from isthmus.delegate import Options, QnnDelegate, set_custom_allocation

    delegate = QnnDelegate(Options(1000))
    interpreter = harness.with_delegate(harness.doubled(1, 8), delegate)
    for detail in (*interpreter.get_input_details(), *interpreter.get_output_details()):
        set_custom_allocation(interpreter, detail["index"], delegate.alloc_custom_mem(32))
    interpreter.allocate_tensors()
    given = np.arange(8, dtype=np.float32).reshape(1, 8)
    assert np.array_equal(harness.run(interpreter, given)[0], given * 2)
    assert (delegate.stats.copied_bytes, delegate.stats.in_place_bytes) == (0, {"toy": 64})
    del interpreter
    delegate.close()


@pytest.mark.parametrize("backend", ["toy", "1000"])
def test_a_program_with_litert_names_the_toy_backend_in_the_delegates_options(libraries, harness, backend) -> None:
    from ai_edge_litert.interpreter import Interpreter, load_delegate

    from isthmus.delegate import callbacks

    delegate = load_delegate(str(libraries / "libQnnTFLiteDelegate.so"), {"backend_type": backend})
    interpreter = Interpreter(model_content=harness.doubled(1, 8), experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    given = np.arange(8, dtype=np.float32).reshape(1, 8)
    assert np.array_equal(harness.run(interpreter, given)[0], given * 2)
    [used] = [made for made in callbacks.delegates.values() if made.backend_name == "toy"]
    assert used.stats.executions == 1
    del interpreter, delegate, used
