"""A context binary holds graphs as they were, is mapped and not copied, and is refused when a single bit is wrong."""

import gc
import os
import resource
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny
from support.allocations import allocations
from support.processes import descriptors, opened_since

from isthmus import Code, QnnError, qnn
from isthmus.backends.seam import binary, native, planned, program_binary
from isthmus.engine.native import signatures
from isthmus.frontends import load
from isthmus.graph import DataType, TensorMemType, TensorType
from isthmus.prepare import serialization as schedules

QUANTIZED_AXIS = {"dtype": "SFIXED_POINT_8", "quantization": [0, "<f4", None, 1]}
"""Fields of a tensor's entry whose scales would begin at the start of the section and fill it many times."""


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    conv = native.prepare(load(tiny.convolution(folder / "conv.onnx"))).program
    gate = native.prepare(load(tiny.gate(folder / "gate.onnx"))).program
    shared = replace(gate, inputs=(replace(gate.inputs[0], mem_type=TensorMemType.MEMHANDLE), *gate.inputs[1:]))
    return [conv, shared]


@pytest.fixture(scope="module")
def content(graphs):
    return binary.to_bytes(graphs, "htp")


def test_graphs_survive_the_way_into_a_binary_and_back(graphs, content) -> None:
    found = binary.read(content)
    assert (found.version, found.backend, found.nbytes) == (binary.FORMAT.version, "htp", len(content))
    assert list(found.programs) == [program.name for program in graphs]
    for program in graphs:
        back = found.programs[program.name]
        assert back.info.tensors == program.info.tensors, "memory types included"
        assert np.array_equal(back.constants, program.constants)
        assert np.array_equal(back.words, program.words)


def test_the_programs_of_a_file_are_views_of_one_immutable_mapping(content, tmp_path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with binary.ContextBinary(path) as opened:
        programs = opened.contents.programs.values()
        for program in programs:
            assert not program.constants.flags.owndata
            assert not program.constants.flags.writeable
            assert program.constants.ctypes.data % 64 == 0
        assert program_binary.is_sealed(opened.fd)
        constants = [program.constants.copy() for program in programs]
        path.write_bytes(b"")
        for program, before in zip(programs, constants, strict=True):
            assert np.array_equal(program.constants, before), "the file is no longer needed"


def test_a_description_has_the_tensors_of_every_graph_and_the_memory_they_need(graphs, content) -> None:
    info = binary.inspect(content)
    assert [graph.name for graph in info.graphs] == ["conv", "gate"]
    assert [(t.name, t.dims, t.mem_type.name) for t in info.graphs[1].inputs] == [
        ("x", (1, 1000), "MEMHANDLE"),
        ("s", (1, 1000), "RAW"),
    ]
    assert info.graphs[0].memory.scratch_bytes == graphs[0].scratch_bytes
    assert binary.inspect(b"something else") is None


def test_bytes_become_immutable_memory(content) -> None:
    with binary.ContextBinary(content) as opened:
        assert program_binary.is_sealed(opened.fd)
        with pytest.raises(OSError, match="not permitted"):
            os.pwrite(opened.fd, b"x", 0)


def test_opening_and_closing_leaves_nothing_behind(content, tmp_path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    before = descriptors()
    for source in (content, path, bytearray(content), memoryview(content)):
        opened = binary.ContextBinary(source)
        opened.close()
        opened.close()
        del opened
    for damaged in (content[:-1], b"", b"short", tmp_path, "/dev/zero"):
        with pytest.raises(QnnError):
            binary.ContextBinary(damaged)
    assert not opened_since(before)


def test_another_version_is_refused_as_such(content) -> None:
    other = bytearray(content)
    other[8:12] = struct.pack("<I", binary.FORMAT.version + 1)
    with pytest.raises(QnnError, match="Generate it again") as refusal:
        binary.inspect(other)
    assert refusal.value.code is Code.CONTEXT_BINARY_VERSION


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_or_a_missing_end_is_always_found(content, data) -> None:
    damaged = bytearray(content)
    where = st.one_of(st.integers(0, 400), st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        damaged[data.draw(where)] ^= 1 << data.draw(st.integers(0, 7))
    else:
        damaged = damaged[: data.draw(where)]
    with pytest.raises(QnnError) as refusal:
        binary.read(bytes(damaged))
    assert refusal.value.code in (Code.CONTEXT_CREATE_FROM_BINARY, Code.CONTEXT_BINARY_VERSION)


def forged(content, change):
    """A binary whose header was changed by someone who knows how to make its checksum right."""
    header, sections = binary.FORMAT.unpack(content)
    change(header, sections)
    return b"".join(binary.FORMAT.pack(header, sections))


@pytest.mark.parametrize(
    "change",
    [
        lambda h, s: s.update(conv=s["conv"][:10]),
        lambda h, s: s.update(conv=s["gate"]),
        lambda h, s: s.update(other=s["conv"]),
        lambda h, s: h.pop("backend"),
        lambda h, s: h.update(backend=1),
        lambda h, s: h.update(backend=None),
        lambda h, s: h.update(producer=[]),
    ],
)
def test_a_forged_header_is_refused(content, change) -> None:
    with pytest.raises(QnnError) as refusal:
        binary.read(forged(content, change))
    assert refusal.value.code is Code.CONTEXT_CREATE_FROM_BINARY


@pytest.mark.parametrize(
    "fields",
    [
        {"kernels": ("os:system",)},
        {"kernels": ("elementwise:\nimport os",)},
        {"kernels": ("executor:stop",)},
        {"kernels": ("../x:y",)},
        {"alignment": 3},
        {"threads": 10**6},
        {"scratch_bytes": 1 << 60},
    ],
)
def test_a_program_with_invalid_fields_is_refused(graphs, fields, monkeypatch) -> None:
    kernels = len(graphs[0].kernels)
    hostile = replace(graphs[0], **{k: v * kernels if k == "kernels" else v for k, v in fields.items()})
    with monkeypatch.context() as elsewhere:
        for kernel in set(hostile.kernels) - set(signatures.KERNELS):
            elsewhere.setitem(signatures.KERNELS, kernel, signatures.SIGNATURES[0])
        content = binary.to_bytes([hostile], "htp")
    with pytest.raises(QnnError) as refusal:
        binary.inspect(content)
    assert refusal.value.code is Code.CONTEXT_CREATE_FROM_BINARY


def test_a_program_of_kernels_that_took_other_words_must_be_generated_again(graphs, monkeypatch) -> None:
    kernel = graphs[1].kernels[0]
    first, second, *rest = signatures.KERNELS[kernel].words
    older = replace(signatures.KERNELS[kernel], words=(second, first, *rest))
    with monkeypatch.context() as then:
        then.setitem(signatures.KERNELS, kernel, older)
        made_before = binary.to_bytes([graphs[1]], "cpu")
    with (
        qnn.Backend("cpu") as backend,
        pytest.raises(QnnError, match="Generate it again") as refusal,
    ):
        backend.create_context_from_binary(made_before)
    assert refusal.value.code is Code.CONTEXT_BINARY_VERSION


def test_a_schedule_is_no_binary_of_the_cpu(tmp_path) -> None:
    graph = planned.plan(load(tiny.gate(tmp_path / "gate.onnx")))
    with (
        qnn.Backend("cpu") as backend,
        pytest.raises(QnnError, match="graph 'gate' is not a program") as refusal,
    ):
        backend.create_context_from_binary(binary.to_bytes([graph], "cpu"))
    assert refusal.value.code is Code.CONTEXT_CREATE_FROM_BINARY


@pytest.mark.parametrize("backend", ["htp", "lpai"])
@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.update(name="x"),
        lambda tensor: tensor.update(name=""),
        lambda tensor: tensor.update(dims=[-1, 8]),
        lambda tensor: tensor.update(dims=[1 << 62, 8]),
        lambda tensor: tensor.update(dims=[1, 1 << 27], **QUANTIZED_AXIS),
        lambda tensor: tensor.update(dims=[1, 1 << 27], block=1, **QUANTIZED_AXIS),
        lambda tensor: tensor.update(dims=[1, 1 << 27], source={"axis": 1, "block": 1, "factors": [0, "|i1"]}),
    ],
    ids=[
        "a name twice", "no name", "a negative dimension", "too many elements", "a huge quantized axis", "huge blocks",
        "huge blocks of a source",
    ],
)  # fmt: skip
def test_tensors_that_no_graph_can_have_are_an_error_of_the_binary(backend, change) -> None:
    with qnn.Backend(backend) as made:
        graph = made.create_context().create_graph("g")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 8))
        graph.add_node("n", "Relu", [x], [graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 8))])
        header, sections = binary.FORMAT.unpack(bytes(graph.context.prepare_offline()))
        inner, parts = schedules.FORMAT.unpack(sections["g"])
        for tensor in inner["tensors"]:
            change(tensor)
        section = b"".join(schedules.FORMAT.pack(inner, {name: bytes(part) for name, part in parts.items()}))
        hostile = b"".join(binary.FORMAT.pack(header, {**sections, "g": section}))
        with allocations() as most, pytest.raises(QnnError) as caught:
            made.create_context_from_binary(hostile)
        assert most[0] < 1 << 24, "what a file only claims takes no memory"
    assert caught.value.code is Code.CONTEXT_CREATE_FROM_BINARY


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda header: header["steps"][0].update(work=[0, 64]), Code.CONTEXT_BINARY_VERSION),
        (lambda header: header.update(alignment=1 << 16), Code.COMMON_INCOMPATIBLE_BINARIES),
        (lambda header: header["engine"].update(threads=2), Code.COMMON_INCOMPATIBLE_BINARIES),
        (lambda header: header["steps"][0].update(op="Relu"), Code.CONTEXT_CREATE_FROM_BINARY),
    ],
    ids=["work space", "alignment", "threads", "operation"],
)
def test_a_forged_binary_is_refused_as_what_it_looks_like(change, code) -> None:
    with qnn.Backend("lpai") as backend:
        graph = backend.create_context().create_graph("g")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 16, 16, 8))
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 16, 16, 16))
        weights = np.ones((3, 3, 8, 16), np.float32)
        w = graph.create_tensor("w", TensorType.STATIC, DataType.FLOAT_32, weights.shape, None, weights)
        graph.add_node("c", "Conv2d", [x, w], [y], {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]})
        header, sections = binary.FORMAT.unpack(bytes(graph.context.prepare_offline()))
        inner, parts = schedules.FORMAT.unpack(sections["g"])
        change(inner)
        section = b"".join(schedules.FORMAT.pack(inner, {name: bytes(part) for name, part in parts.items()}))
        with pytest.raises(QnnError) as caught:
            backend.create_context_from_binary(b"".join(binary.FORMAT.pack(header, {**sections, "g": section})))
    assert caught.value.code is code


@pytest.mark.parametrize("source", [None, 3.5, "/nowhere/model.bin", "/tmp", "a\0b"])
def test_what_is_no_binary_is_refused(source) -> None:
    with pytest.raises(QnnError) as refusal:
        binary.ContextBinary(source)
    assert refusal.value.code is Code.CONTEXT_INVALID_ARGUMENT


@pytest.mark.parametrize("left", [0, 1])
def test_a_process_without_descriptors_is_refused_with_a_code(left) -> None:
    with qnn.Backend("cpu") as backend:
        contents = backend.create_context().get_binary()
    qnn.SystemContext().get_binary_info(contents)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + left, before[1]))
    try:
        with pytest.raises(QnnError) as refusal:
            qnn.SystemContext().get_binary_info(contents)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert refusal.value.code is Code.COMMON_MEM_ALLOC


def test_an_open_binary_that_is_dropped_closes_its_descriptor() -> None:
    with qnn.Backend("cpu") as backend:
        contents = backend.create_context().get_binary()
    dropped = binary.ContextBinary(contents)
    fd = dropped.fd
    del dropped
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
