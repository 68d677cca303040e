"""Context binaries of the GPU backend: made, inspected, retrieved; and what is damaged or forged is refused."""

import random
from contextlib import suppress

import numpy as np
import pytest
from support import tiny
from support.containers import FIELDS, START, with_right_checksum

from backends.gpu.harness import buffer, cl, descriptor, gpu, opencl_context, put, read_back
from isthmus import QnnError, qnn
from isthmus.backends.gpu import binary as gpu_binary
from isthmus.backends.gpu.compile import serialization
from isthmus.errors import Code
from isthmus.tools.cli import context_binary_generator, main, net_run


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.convolution(tmp_path_factory.mktemp("gpu") / "model.onnx")


@pytest.fixture(scope="module")
def binary(model):
    with gpu() as backend:
        context = backend.create_context()
        for name in ("first", "second"):
            context.compose(model, name, mem_type=qnn.TensorMemType.MEMHANDLE).finalize()
        return context.get_binary()


def answer(graph, seed=0):
    """Return what a graph makes of random input, with raw memory."""
    [x], [y] = graph.input_tensors, graph.output_tensors
    given = np.random.default_rng(seed).random(x.dims, np.float32)
    result = np.zeros(y.dims, np.float32)
    graph.execute([qnn.ClientTensor(x.name, given)], [qnn.ClientTensor(y.name, result)])
    return result


def test_a_restored_context_computes_in_registered_buffers(model, binary) -> None:
    with qnn.Backend("cpu") as cpu:
        plain = cpu.create_context().compose(model)
        plain.finalize()
        expected = answer(plain)
    with gpu() as backend:
        context = backend.create_context_from_binary(binary)
        assert list(context.graphs) == ["first", "second"]
        graph = context.retrieve("second")
        assert graph.finalized
        [x], [y] = graph.input_tensors, graph.output_tensors
        assert (x.mem_type, graph.stats.staging_prepare_bytes) == (qnn.TensorMemType.MEMHANDLE, 0)
        given = np.random.default_rng(0).random(x.dims, np.float32)
        buffers = [buffer(backend, info.nbytes) for info in (x, y)]
        put(backend, buffers[0], given)
        handles = context.mem_register([descriptor(b, info.dims) for b, info in zip(buffers, (x, y), strict=True)])
        tensors = [qnn.ClientTensor(info.name, mem_handle=handle) for info, handle in zip((x, y), handles, strict=True)]
        graph.execute(tensors[:1], tensors[1:])
        np.testing.assert_allclose(read_back(backend, buffers[1], y.dims), expected, rtol=1e-4, atol=1e-5)


def test_a_binary_runs_on_a_context_of_the_clients_too(binary) -> None:
    with gpu() as backend:
        own = opencl_context(backend)
        with gpu({"gpu": {"queue": cl.CommandQueue(own)}}) as second:
            one = answer(backend.create_context_from_binary(binary).retrieve("first"))
            other = answer(second.create_context_from_binary(binary).retrieve("first"))
    np.testing.assert_array_equal(one, other)


def test_a_binary_is_described_without_a_backend(binary, tmp_path) -> None:
    file = tmp_path / "context.bin"
    file.write_bytes(binary)
    for source in (binary, file):
        info = qnn.SystemContext().get_binary_info(source)
        assert (info.backend, info.nbytes) == ("gpu", len(binary))
        assert [graph.name for graph in info.graphs] == ["first", "second"]
        assert info.graphs[0].memory.constant_bytes > 0


def test_a_binary_holds_no_source_and_no_launch(binary) -> None:
    assert b"kernel" not in binary
    assert b"get_global_id" not in binary


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_binary_is_refused(binary, seed) -> None:
    luck = random.Random(seed)
    damaged = bytearray(binary)
    if seed % 3:
        at = luck.randrange(len(damaged))
        damaged[at] ^= 1 << luck.randrange(8)
    else:
        del damaged[luck.randrange(len(damaged)) :]
    with gpu() as backend, pytest.raises(QnnError) as refused:
        backend.create_context_from_binary(bytes(damaged))
    assert refused.value.code in (
        Code.CONTEXT_CREATE_FROM_BINARY, Code.CONTEXT_BINARY_VERSION, Code.CONTEXT_INVALID_ARGUMENT,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_a_forged_binary_with_right_checksums_is_refused_or_read(binary, seed) -> None:
    """Whatever it says, it ends in a refusal or in programs, never in another error."""
    luck = random.Random(seed)
    header, sections = gpu_binary.FORMAT.unpack(binary)
    name = luck.choice([name for name in sections if name])
    program = bytearray(sections[name])
    _, _, length, _ = FIELDS.unpack_from(program)
    for _ in range(luck.randrange(1, 4)):
        program[START + luck.randrange(length)] = luck.choice(b'0123456789"[]{},:nul- \xff')
    sections[name] = with_right_checksum(serialization.FORMAT, bytes(program))
    forged = b"".join(gpu_binary.FORMAT.pack(header, sections))
    with suppress(QnnError):
        assert gpu_binary.inspect(forged) is not None


def test_binaries_of_other_backends_and_other_things_are_refused(model, binary, tmp_path) -> None:
    with qnn.Backend("cpu") as cpu:
        context = cpu.create_context()
        context.compose(model).finalize()
        foreign = context.get_binary()
    with gpu() as backend:
        for bad in (foreign, b"", b"text", tmp_path / "absent", 5, None):
            with pytest.raises(QnnError):
                backend.create_context_from_binary(bad)
        assert backend.create_context_from_binary(bytearray(binary)).retrieve("first")
    assert gpu_binary.inspect(foreign) is None


def test_the_tools_make_inspect_and_run_a_binary(model, tmp_path, capsys) -> None:
    (tmp_path / "x.raw").write_bytes(np.ones((1, 3, 8, 8), np.float32).tobytes())
    (tmp_path / "list.txt").write_text("x:=x.raw\n")
    output = str(tmp_path / "output")
    made = ["--model", str(model), "--backend", "libQnnGpu.so", "--binary_file", "model", "--output_dir", output]
    assert context_binary_generator([*made, "--input_output_tensor_mem_type", "memhandle"]) == 0
    assert main(["inspect", f"{output}/model.bin"]) == 0
    assert "1 graph for gpu" in capsys.readouterr().out
    run = ["--retrieve_context", f"{output}/model.bin", "--backend", "libQnnGpu.so"]
    assert net_run([*run, "--input_list", str(tmp_path / "list.txt"), "--output_dir", output]) == 0
    assert list((tmp_path / "output").rglob("*.raw"))
