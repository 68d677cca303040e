"""Configs of the GPU backend do what they say: device, context, queue, precision, optimisations, kernel repository."""

import itertools
import json
import os
import sys

import numpy as np
import pytest
from support import tiny
from support.opencl_device import DEVICE, client_context

from backends.gpu.harness import (
    DIMS,
    NBYTES,
    bind_handles,
    cl,
    descriptor,
    doubled,
    expected,
    gpu,
    opencl_context,
    opencl_queue,
    small_engine,
    values,
)
from backends.gpu.harness import small as small
from isthmus import QnnError, Session, qnn
from isthmus.backends.gpu import prepare as gpu_prepare
from isthmus.backends.gpu.compile.traits import FloatStorage as Kept
from isthmus.backends.gpu.config import read_config
from isthmus.backends.gpu.runtime.device import devices
from isthmus.errors import Code
from isthmus.log import Log
from isthmus.tools.cli import main

pytestmark = pytest.mark.usefixtures("small")


def computes(backend):
    graph = doubled(backend.create_context())
    x, y = values(), np.zeros(DIMS, np.float32)
    graph.execute([qnn.ClientTensor("x", x)], [qnn.ClientTensor("y", y)])
    np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)
    return graph


def refusal(config):
    with pytest.raises(QnnError) as refused, gpu(config):
        pass
    return refused.value


# -- where it runs -----------------------------------------------------------------------------------------------------


def test_a_device_is_named_by_the_configuration() -> None:
    number = [device.handle for device in devices()].index(DEVICE.handle)
    for named in ({"device": DEVICE.name}, {"device": number}, {"platform": DEVICE.platform_name}):
        with gpu({"gpu": named}) as backend:
            assert backend.get_property(qnn.gpu.CL_DEVICE).int_ptr == DEVICE.handle


def test_a_device_that_is_not_there_is_refused() -> None:
    assert refusal({"gpu": {"device": "no such device"}}).code is Code.DEVICE_HARDWARE_UNAVAILABLE


def test_the_backend_works_in_the_clients_context() -> None:
    context = client_context()
    with gpu({"gpu": {"context": context}}) as backend:
        assert opencl_context(backend) == context
        computes(backend)
    with gpu({"gpu": {"context": context.int_ptr}}) as backend:
        computes(backend)
    # The client can still use its context.
    cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)


def test_executions_go_into_the_clients_queue() -> None:
    context = client_context()
    queue = cl.CommandQueue(context)
    for config in ({"queue": queue}, {"queue": queue, "context": context}):
        with gpu({"gpu": config}) as backend:
            assert opencl_queue(backend) == queue
            assert opencl_context(backend) == context
            computes(backend)
    queue.finish()


def test_a_queue_of_another_context_is_refused() -> None:
    one, other = (client_context() for _ in range(2))
    error = refusal({"gpu": {"context": one, "queue": cl.CommandQueue(other)}})
    assert error.code is Code.BACKEND_INCONSISTENT_CONFIG
    assert "another context" in error.rule
    for queue in map(cl.CommandQueue, (one, other)):
        with gpu({"gpu": {"context": queue.context, "queue": queue}}) as backend:
            computes(backend)


def test_without_pyopencl_its_objects_are_refused_with_the_remedy_and_all_else_works(monkeypatch) -> None:
    with gpu() as backend:
        context = backend.create_context()
        graph = doubled(context)
        with qnn.gpu.allocate(backend, NBYTES) as one, qnn.gpu.allocate(backend, NBYTES) as other:
            monkeypatch.setitem(sys.modules, "pyopencl", None)
            handles = context.mem_register([descriptor(one), descriptor(other)])
            event = bind_handles(graph, *handles).execute(wait_for=[])
            for asked in (lambda: opencl_context(backend), lambda: event.cl):
                with pytest.raises(QnnError, match=r"pyopencl.* is not installed") as refused:
                    asked()
                assert refused.value.code is Code.COMMON_PLATFORM_NOT_SUPPORTED
                assert "pip install 'isthmus[gpu]'" in refused.value.hint
            event.wait(60)
        computes(backend)


def test_a_queue_without_order_is_refused() -> None:
    context = client_context()
    properties = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    try:
        queue = cl.CommandQueue(context, properties=properties)
    except cl.Error as problem:
        pytest.skip(f"the device has no such queues: {problem}")
    error = refusal({"gpu": {"queue": queue}})
    assert error.code is Code.BACKEND_INVALID_CONFIG
    assert "out of order" in error.rule


def test_a_context_of_the_clients_is_on_a_device_already() -> None:
    context = client_context()
    error = refusal({"gpu": {"context": context, "device": 0}})
    assert error.code is Code.BACKEND_INCONSISTENT_CONFIG


@pytest.mark.parametrize("key", ["context", "queue"])
@pytest.mark.parametrize("bad", [1, 1 << 40, "text", 0, -8, None, True])
def test_what_is_no_object_of_opencl_is_refused(key, bad) -> None:
    assert refusal({"gpu": {key: bad}}).code is Code.BACKEND_INVALID_CONFIG


def test_the_environment_names_the_device(monkeypatch) -> None:
    monkeypatch.setenv("ISTHMUS_OPENCL_DEVICE", "no such device")
    assert refusal(None).code is Code.DEVICE_HARDWARE_UNAVAILABLE


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_file_has_the_keys_of_qnns_tools(tmp_path) -> None:
    own = tmp_path / "gpu.json"
    own.write_text(
        json.dumps(
            {
                "graph_names": ["a", "b"],
                "precision_mode": "hybrid",
                "disable_memory_optimizations": True,
                "disable_node_optimizations": True,
                "disable_queue_recording": True,
                "kernel_repo_path": str(tmp_path / "kernels"),
                "invalidate_kernel_repo": True,
            }
        )
    )
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps({"backend_extensions": {"config_file_path": "gpu.json"}}))
    config = read_config(tools, Log())
    assert config.options("a") == {
        qnn.gpu.PRECISION: qnn.gpu.Precision.HYBRID,
        qnn.gpu.DISABLE_MEMORY_OPTIMIZATIONS: True,
        qnn.gpu.DISABLE_NODE_OPTIMIZATIONS: True,
        qnn.gpu.DISABLE_QUEUE_RECORDING: True,
    }
    assert config.options("another") == {}
    assert config.invalidate_kernel_repo


@pytest.mark.parametrize(
    "config",
    [
        {"precision_mode": "fp8"},
        {"disable_memory_optimizations": 1},
        {"graph_names": "a"},
        {"kernel_repo_path": ""},
        {"gpu": {"timeout": 0}},
        {"gpu": {"device": -1}},
        {"gpu": {"device": 1.5}},
        {"no_such_key": 1},
    ],
)
def test_a_wrong_value_is_refused_with_its_key(config) -> None:
    with pytest.raises(QnnError) as refused:
        read_config(config, Log())
    assert refused.value.code is Code.BACKEND_INVALID_CONFIG
    assert next(iter(config)) in refused.value.what


# -- graphs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """The options with which the backend called the engine."""
    record = {}

    def noted(graph, traits, precision, fuse, optimize_memory):
        record.update(precision=precision, fuse=fuse, optimize_memory=optimize_memory)
        return small_engine(graph, traits, precision, fuse, optimize_memory)

    monkeypatch.setattr(gpu_prepare.lower, "prepare", noted)
    return record


@pytest.mark.parametrize(
    ("precision", "kept"),
    [("FP32", Kept.FP32), ("FP16", Kept.FP16), ("HYBRID", Kept.FP16), ("USER_PROVIDED", Kept.FP32)],
)
def test_the_precision_is_the_engines(asked, precision, kept) -> None:
    with gpu() as backend:
        graph = doubled(backend.create_context(), finalize=False)
        graph.set_config(qnn.gpu.PRECISION, qnn.gpu.Precision[precision])
        assert graph.get_property(qnn.gpu.PRECISION) is qnn.gpu.Precision[precision]
        graph.finalize()
    assert asked["precision"] is kept


def test_user_provided_precision_is_that_of_inputs_and_outputs(asked) -> None:
    with gpu() as backend:
        graph = backend.create_context().create_graph("half")
        x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_16, (8,))
        y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_16, (8,))
        graph.add_node("relu", "Relu", [x], [y])
        graph.finalize()
    assert asked["precision"] is Kept.FP16


def test_optimisations_can_be_disabled_by_configs_and_by_the_configuration(asked) -> None:
    with gpu() as backend:
        graph = doubled(backend.create_context(), finalize=False)
        graph.set_config({qnn.gpu.DISABLE_MEMORY_OPTIMIZATIONS: True, qnn.gpu.DISABLE_NODE_OPTIMIZATIONS: 1})
        graph.finalize()
    assert (asked["fuse"], asked["optimize_memory"]) == (False, False)
    config = {"graph_names": ["double"], "precision_mode": "fp16", "disable_node_optimizations": True}
    with gpu(config) as backend:
        doubled(backend.create_context())
        assert asked == {"precision": Kept.FP16, "fuse": False, "optimize_memory": True}
        doubled(backend.create_context(), "another")
        assert asked == {"precision": Kept.FP32, "fuse": True, "optimize_memory": True}


def chain(context, length):
    graph = context.create_graph("chain")
    value = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, DIMS)
    for index in range(length):
        kind = qnn.TensorType.APP_READ if index == length - 1 else qnn.TensorType.NATIVE
        made = graph.create_tensor(f"t{index}", kind, qnn.DataType.FLOAT_32, DIMS)
        graph.add_node(f"n{index}", "Sigmoid", [value], [made])
        value = made
    return graph


def test_without_memory_optimisations_every_tensor_has_memory_of_its_own() -> None:
    with gpu() as backend:
        sizes = {}
        for disabled in (False, True):
            graph = chain(backend.create_context(), 5)
            graph.set_config(qnn.gpu.DISABLE_MEMORY_OPTIMIZATIONS, disabled)
            sizes[disabled] = graph.info.memory.scratch_bytes
            rows = graph.plan.rows
        assert sizes[True] == 4 * NBYTES
        assert sizes[False] < sizes[True]
        spans = sorted((row.offset, row.offset + row.bytes) for row in rows)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_configs_of_a_graph_are_fixed_once_it_is_prepared() -> None:
    with gpu() as backend:
        graph = doubled(backend.create_context())
        with pytest.raises(QnnError) as refused:
            graph.set_config(qnn.gpu.PRECISION, qnn.gpu.Precision.FP16)
        assert refused.value.code is Code.GRAPH_FINALIZED


@pytest.mark.parametrize(
    ("option", "value"),
    [("PRECISION", 9), ("PRECISION", "fp16"), ("PRECISION", True), ("DISABLE_NODE_OPTIMIZATIONS", "yes"),
     ("DISABLE_QUEUE_RECORDING", 2)],
)  # fmt: skip
def test_a_wrong_value_of_a_config_changes_nothing(option, value) -> None:
    with gpu() as backend:
        graph = doubled(backend.create_context(), finalize=False)
        known = qnn.gpu.GraphConfig[option]
        before = graph.get_property(known)
        with pytest.raises(QnnError) as refused:
            graph.set_config({qnn.gpu.DISABLE_MEMORY_OPTIMIZATIONS: True, known: value})
        assert refused.value.code is Code.GRAPH_INVALID_ARGUMENT
        assert graph.get_property(known) == before
        assert graph.get_property(qnn.gpu.DISABLE_MEMORY_OPTIMIZATIONS) is False


# -- the kernel repository ---------------------------------------------------------------------------------------------


def binaries(folder):
    return sorted(name for name in os.listdir(folder) if name.endswith(".bin"))


def test_kernels_are_kept_in_the_repository_and_found_there(tmp_path) -> None:
    folder = tmp_path / "kernels"
    for config, given in (
        ({"kernel_repo_path": str(folder)}, {}),
        (None, {qnn.gpu.KERNEL_REPO_DIR: str(folder)}),
    ):
        with gpu(config) as backend:
            context = backend.create_context(given)
            assert context.get_property(qnn.gpu.KERNEL_REPO_DIR) == str(folder)
            doubled(context)
            counts = context.driver.repository
            assert (counts.hits, counts.builds) == ((0, 1) if config else (1, 0))
    assert len(binaries(folder)) == 1


def test_an_invalidated_repository_is_built_again(tmp_path) -> None:
    folder = tmp_path / "kernels"
    with gpu({"kernel_repo_path": str(folder)}) as backend:
        doubled(backend.create_context())
        (name,) = binaries(folder)
        before = (folder / name).stat().st_mtime_ns
        context = backend.create_context({qnn.gpu.INVALIDATE_KERNEL_REPO: True})
        assert context.get_property(qnn.gpu.INVALIDATE_KERNEL_REPO) is True
        doubled(context)
        assert (context.driver.repository.hits, context.driver.repository.builds) == (0, 1)
        assert (folder / name).stat().st_mtime_ns > before


def test_a_repository_that_cannot_be_written_is_refused(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with gpu() as backend:
        context = backend.create_context()
        before = context.get_property(qnn.gpu.KERNEL_REPO_DIR)
        for bad in (str(tmp_path / "file" / "kernels"), "", 5, None):
            with pytest.raises(QnnError):
                context.set_config(qnn.gpu.KERNEL_REPO_DIR, bad)
        with pytest.raises(QnnError):
            context.set_config({qnn.gpu.KERNEL_REPO_DIR: str(tmp_path), qnn.gpu.INVALIDATE_KERNEL_REPO: "yes"})
        assert context.get_property(qnn.gpu.KERNEL_REPO_DIR) == before


def test_a_limit_on_scratch_is_refused_with_the_reason(tmp_path) -> None:
    model = tiny.convolution(tmp_path / "model.onnx")
    with pytest.raises(QnnError, match="computing in tiles, but kernels on a device compute whole tensors") as refused:
        Session(model, "gpu", scratch_limit="50%")
    assert refused.value.code is Code.GRAPH_INVALID_ARGUMENT
    assert main(["plan", str(model), "--backend", "gpu", "--scratch-limit", "50%"]) == 2


@pytest.mark.parametrize("value", [5, b"x", "", "a\0b", None])
def test_a_kernel_repository_is_the_path_of_a_folder(value) -> None:
    with gpu() as backend, pytest.raises(QnnError, match="must be the path of a folder"):
        backend.create_context().set_config({qnn.gpu.KERNEL_REPO_DIR: value})


def test_advice_for_a_kernel_repository_names_its_config(tmp_path) -> None:
    tmp_path.chmod(0o777)
    with gpu() as backend:
        context = backend.create_context()
        for path in (tmp_path, "/proc/nowhere"):
            with pytest.raises(QnnError) as refused:
                context.set_config({qnn.gpu.KERNEL_REPO_DIR: path})
            assert "KERNEL_REPO_DIR (kernel_repo_path)" in refused.value.hint
            assert "ISTHMUS_CACHE_DIR" not in refused.value.hint


@pytest.mark.parametrize("value", ["x", 2, 0.5, None, np.zeros(3)])
def test_what_is_neither_on_nor_off_is_refused(value) -> None:
    with gpu() as backend:
        context = backend.create_context()
        with pytest.raises(QnnError, match="must be true or false"):
            context.set_config({qnn.gpu.INVALIDATE_KERNEL_REPO: value})
        with pytest.raises(QnnError, match="must be true or false"):
            context.create_graph("g").set_config({qnn.gpu.DISABLE_NODE_OPTIMIZATIONS: value})
