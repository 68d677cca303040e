"""Weights that a client brings by callbacks: its buffers are used in place, until it gets them back."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus import qnn
from isthmus.backends.seam import binary
from isthmus.backends.seam.provided import ProvidedBinary, scratch_of
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, TensorType
from isthmus.memory import rpcmem, statistics
from isthmus.qnn import ClientTensor, htp

WIDTH = 256
MATRIX = 4 * WIDTH * WIDTH
PAGE = mmap.PAGESIZE


def network(context: qnn.Context, name: str, seed: int) -> None:
    """A graph that multiplies by a matrix that all graphs have, then by one of its own."""
    graph = context.create_graph(name)
    value = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, WIDTH))
    for number, of_matrix in enumerate((7, seed)):
        matrix = np.random.default_rng(of_matrix).standard_normal((WIDTH, WIDTH)).astype(np.float32)
        w = graph.create_tensor(f"w{number}", TensorType.STATIC, DataType.FLOAT_32, matrix.shape, None, matrix)
        kind = TensorType.APP_READ if number else TensorType.NATIVE
        after = graph.create_tensor(f"y{number}", kind, DataType.FLOAT_32, (1, WIDTH))
        graph.add_node(f"n{number}", "MatMul", [value, w], [after])
        value = after


def file_of(folder: Path, shares: bool) -> Path:
    with qnn.Backend("htp") as backend, backend.create_context({htp.WEIGHT_SHARING_ENABLED: shares}) as context:
        network(context, "prefill", 1)
        network(context, "decode", 2)
        (folder / "model.bin").write_bytes(context.prepare_offline())
    return folder / "model.bin"


@pytest.fixture(scope="module", params=[False, True], ids=["unshared", "shared"])
def model(request, tmp_path_factory) -> Path:
    return file_of(tmp_path_factory.mktemp("provided"), request.param)


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    return file_of(tmp_path_factory.mktemp("provided"), True)


@pytest.fixture
def backend() -> Iterator[qnn.Backend]:
    with qnn.Backend("htp") as opened:
        yield opened


class Provider(qnn.BinaryProvider):
    """Reads a file into buffers with some room besides, and remembers what it is asked for."""

    def __init__(self, path: Path, room: int = 1 << 16, change: Callable[[int, Any], Any] = lambda _, it: it) -> None:
        self.path, self.room, self.change = path, room, change
        self.sections: list[qnn.BinarySection] = []
        self.buffers: list[rpcmem.RpcBuffer] = []
        self.released: list[int] = []

    def provide(self, section: qnn.BinarySection) -> qnn.ProvidedBuffer:
        self.sections.append(section)
        buffer = rpcmem.share(section.nbytes + self.room)
        buffer.array[: section.nbytes] = np.fromfile(self.path, np.uint8, section.nbytes, offset=section.offset)
        self.buffers.append(buffer)
        made = qnn.ProvidedBuffer(buffer.fd, buffer.nbytes, 0, len(self.buffers) - 1)
        return self.change(len(self.buffers) - 1, made)

    def release(self, buffer: qnn.ProvidedBuffer) -> None:
        self.released.append(buffer.memory)
        self.buffers[buffer.memory].close()

    @property
    def inodes(self) -> list[int]:
        return [os.fstat(each.fd).st_ino for each in self.buffers if not each.is_closed]


class Reader(qnn.BinaryReader):
    """A reader of a binary's contents that remembers which bytes it was asked for."""

    def __init__(self, content: bytes) -> None:
        self.content, self.nbytes = content, len(content)
        self.taken: list[tuple[int, int]] = []

    def read(self, offset: int, nbytes: int) -> bytes:
        self.taken.append((offset, offset + nbytes))
        return self.content[offset : offset + nbytes]


def run(context: qnn.Context, name: str = "prefill") -> np.ndarray:
    x, y = np.ones((1, WIDTH), np.float32), np.zeros((1, WIDTH), np.float32)
    context.retrieve(name).execute([ClientTensor("x", x)], [ClientTensor("y1", y)])
    return y


def mapped(backend: qnn.Backend, inodes: list[int]) -> list[bool]:
    """Return whether the accelerator maps each of these files, as the system says."""
    maps = Path(f"/proc/{backend.get_property(htp.ACCELERATOR_PID)}/maps").read_text().splitlines()
    return [any(line.split()[4] == str(inode) for line in maps) for inode in inodes]


def weights_sent(backend: qnn.Backend) -> int:
    """The bytes of weights that the accelerator maps besides the client's buffers."""
    smaps = Path(f"/proc/{backend.get_property(htp.ACCELERATOR_PID)}/maps").read_text()
    spans = re.findall(r"^(\w+)-(\w+) .*memfd:isthmus-weights", smaps, re.MULTILINE)
    return sum(int(end, 16) - int(begin, 16) for begin, end in spans)


def test_the_client_brings_shared_and_other_weights_apart(backend, model) -> None:
    provider = Provider(model)
    plain = backend.create_context_from_binary(model)
    context = backend.create_context_from_provider(model, provider)
    contents = binary.read(model.read_bytes())
    sizes = [MATRIX, 2 * MATRIX] if contents.shares else [4 * MATRIX]
    assert [each.nbytes for each in provider.sections] == sizes
    assert [each.offset % PAGE for each in provider.sections] == [0] * len(sizes)
    for name in ("prefill", "decode"):
        assert np.array_equal(run(context, name), run(plain, name))


def test_the_accelerator_maps_the_buffers_and_has_no_other_copy(backend, model) -> None:
    provider = Provider(model)
    context = backend.create_context_from_provider(model, provider)
    run(context)
    assert mapped(backend, provider.inodes) == [True] * len(provider.sections)
    assert weights_sent(backend) == 0
    inodes = provider.inodes
    context.free()
    assert mapped(backend, inodes) == [False] * len(inodes)
    plain = backend.create_context_from_binary(model)
    assert (weights_sent(backend) > 0) == binary.read(model.read_bytes()).shares
    plain.free()


def test_this_process_keeps_no_copy_either(backend, tmp_path) -> None:
    """The weights are large enough to show among the private memory of a process."""
    with backend.create_context() as context:
        graph = context.create_graph("wide")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 2048))
        matrix = np.random.default_rng(1).standard_normal((2048, 8192)).astype(np.float32)
        w = graph.create_tensor("w", TensorType.STATIC, DataType.FLOAT_32, matrix.shape, None, matrix)
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 8192))
        graph.add_node("n", "MatMul", [x, w], [y])
        (tmp_path / "wide.bin").write_bytes(context.prepare_offline())

    def private() -> int:
        text = Path("/proc/self/smaps_rollup").read_text() + Path("/proc/self/maps").read_text()
        copies = re.findall(r"^(\w+)-(\w+) .*memfd:isthmus-(?:context|weights)", text, re.MULTILINE)
        anonymous = int(re.search(r"^Anonymous: +(\d+) kB", text, re.MULTILINE)[1]) << 10
        return anonymous + sum(int(end, 16) - int(begin, 16) for begin, end in copies)

    def grown(create: Callable[[], qnn.Context]) -> int:
        before = private()
        with create():
            return private() - before

    grown(lambda: backend.create_context_from_binary(tmp_path / "wide.bin"))
    usual = grown(lambda: backend.create_context_from_binary(tmp_path / "wide.bin"))
    # The least of some: what earlier tests of this process have left may grow or shrink meanwhile.
    provided = min(
        grown(lambda: backend.create_context_from_provider(tmp_path / "wide.bin", Provider(tmp_path / "wide.bin")))
        for _ in range(3)
    )
    assert provided < matrix.nbytes / 4 < matrix.nbytes <= usual


def test_what_changes_in_a_buffer_changes_results(backend, model) -> None:
    provider = Provider(model)
    context = backend.create_context_from_provider(model, provider)
    before = run(context)
    for each in provider.buffers:
        each.array[...] = 0
    assert before.any()
    assert not run(context).any()


def test_buffers_are_released_once_when_the_context_is_freed(model) -> None:
    provider = Provider(model)
    with qnn.Backend("htp") as backend:
        first = backend.create_context_from_provider(model, provider)
        count = len(provider.buffers)
        for each in provider.buffers:
            with pytest.raises(QnnError, match="it is the buffer"):
                each.close()
        run(first)
        assert provider.released == []
        first.free()
        first.free()
        assert provider.released == list(range(count))
        backend.create_context_from_provider(model, provider)
    # Freeing the backend frees its contexts.
    assert provider.released == list(range(2 * count))


@pytest.mark.parametrize("failing", [0, 1])
def test_a_callback_that_fails_ends_the_call_with_its_error_and_leaves_nothing(backend, shared, failing) -> None:
    def fail(number: int, made: qnn.ProvidedBuffer) -> qnn.ProvidedBuffer:
        if number == failing:
            provider.buffers[number].close()
            raise ZeroDivisionError
        return made

    provider = Provider(shared, change=fail)
    with statistics("rpcmem") as counted, pytest.raises(ZeroDivisionError):
        backend.create_context_from_provider(shared, provider)
    assert (provider.released, counted.live_bytes) == (list(range(failing)), 0)
    assert backend.driver.device.accelerator().counts()["memory"] == 0
    assert backend.driver.device.accelerator().counts()["queues"] == 0


def sealed(_: int, made: qnn.ProvidedBuffer) -> qnn.ProvidedBuffer:
    """Another buffer, which nobody can write."""
    fd = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
    os.truncate(fd, made.nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE)
    return replace(made, fd=fd)


def shrinking(_: int, made: qnn.ProvidedBuffer) -> qnn.ProvidedBuffer:
    fd = os.memfd_create("shrinking")
    os.truncate(fd, made.nbytes)
    return replace(made, fd=fd)


def file_on_disk(_: int, made: qnn.ProvidedBuffer) -> qnn.ProvidedBuffer:
    return replace(made, fd=os.open(__file__, os.O_RDONLY))


REFUSED = {
    "too small": (lambda _, it: replace(it, nbytes=MATRIX - 1), Code.CONTEXT_INVALID_ARGUMENT, "were asked for"),
    "memory too small": (
        lambda _, it: replace(it, start=it.nbytes // 64 * 64), Code.CONTEXT_INVALID_ARGUMENT, "would end after them",
    ),
    "start not aligned": (lambda _, it: replace(it, start=8), Code.CONTEXT_INVALID_ARGUMENT, "best at 0"),
    "no descriptor": (lambda _, it: replace(it, fd=-1), Code.CONTEXT_INVALID_ARGUMENT, "are not a buffer's"),
    "nothing open": (lambda _, it: replace(it, fd=99999), Code.COMMON_NOT_SUPPORTED, "cannot use it in place"),
    "a file": (file_on_disk, Code.COMMON_NOT_SUPPORTED, "cannot use it in place"),
    "read-only memory": (sealed, Code.COMMON_NOT_SUPPORTED, "cannot use it in place"),
    "memory that shrinks": (shrinking, Code.COMMON_NOT_SUPPORTED, "cannot use it in place"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("number", [0, 1])
def test_a_buffer_that_cannot_be_used_is_refused_and_released(backend, shared, case, number) -> None:
    change, code, rule = REFUSED[case]
    provider = Provider(shared, change=lambda index, it: change(index, it) if index == number else it)
    with statistics("rpcmem") as counted, pytest.raises(QnnError, match=rule) as refused:
        backend.create_context_from_provider(shared, provider)
    assert (refused.value.code, refused.value.what) == (code, f"buffer {number} of data callbacks")
    assert (provider.released, counted.live_bytes) == ([0, 1], 0)
    assert backend.driver.device.accelerator().counts()["memory"] == 0


def test_a_buffer_serves_one_call_only(backend, shared) -> None:
    first = Provider(shared, room=1 << 20)
    same = Provider(shared, room=1 << 20, change=lambda _, it: replace(it, fd=same.buffers[0].fd))
    with pytest.raises(QnnError, match="overlaps the buffer 0 of data callbacks") as refused:
        backend.create_context_from_provider(shared, same)
    assert refused.value.code is Code.CONTEXT_INVALID_ARGUMENT
    context = backend.create_context_from_provider(shared, first)
    other = Provider(shared, change=lambda index, it: replace(it, fd=first.buffers[index].fd))
    with pytest.raises(QnnError, match="overlaps the buffer 0 of data callbacks"):
        backend.create_context_from_provider(shared, other)
    assert run(context).any()


def test_other_data_than_the_binarys_is_refused(backend, model) -> None:
    def damage(number: int, made: qnn.ProvidedBuffer) -> qnn.ProvidedBuffer:
        provider.buffers[number].array[100] ^= 1
        return made

    provider = Provider(model, change=damage)
    with pytest.raises(QnnError, match="the callbacks have brought other data") as refused:
        backend.create_context_from_provider(model, provider)
    assert refused.value.code is Code.CONTEXT_CREATE_FROM_BINARY
    assert provider.released == list(range(len(provider.buffers)))


def test_data_may_begin_within_a_buffer(backend, model) -> None:
    def moved(number: int, made: qnn.ProvidedBuffer) -> qnn.ProvidedBuffer:
        array = provider.buffers[number].array
        array[PAGE:] = array[:-PAGE].copy()
        array[:PAGE] = 123
        return replace(made, start=PAGE)

    provider = Provider(model, change=moved)
    context = backend.create_context_from_provider(model, provider)
    assert np.array_equal(run(context), run(backend.create_context_from_binary(model)))
    assert {int(each) for buffer in provider.buffers for each in buffer.array[:PAGE]} == {123}


def test_weights_without_room_in_the_buffers_are_in_memory_of_the_accelerator(backend, shared) -> None:
    """A packed matrix is somewhat larger than a stored one, and there are three."""
    context = backend.create_context_from_provider(shared, qnn.FileProvider(shared))
    assert MATRIX < weights_sent(backend) < 3 * MATRIX
    assert np.array_equal(run(context), run(backend.create_context_from_binary(shared)))


def test_only_enabled_graphs_are_loaded(backend, model) -> None:
    context = backend.create_context_from_provider(model, Provider(model), graphs=["decode"])
    assert context.graph_names == ("decode",)
    assert np.array_equal(run(context, "decode"), run(backend.create_context_from_binary(model), "decode"))


def test_a_binary_without_constants_needs_no_callback(backend, tmp_path) -> None:
    with backend.create_context() as context:
        graph = context.create_graph("relu")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 4))
        graph.add_node("r", "Relu", [x], [graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 4))])
        (tmp_path / "relu.bin").write_bytes(context.prepare_offline())
    provider = Provider(tmp_path / "relu.bin")
    context = backend.create_context_from_provider(tmp_path / "relu.bin", provider)
    assert (context.graph_names, provider.sections) == (("relu",), [])


def test_what_data_callbacks_exclude_is_refused_before_any(shared) -> None:
    provider = Provider(shared)
    with qnn.Backend("htp") as backend:
        for create, rule in (
            (lambda: backend.create_context_from_provider(shared.read_bytes(), provider), "that of a file"),
            (
                lambda: backend.create_context_from_provider(shared, provider, {htp.USE_EXTENDED_UDMA: True}),
                "with extended UDMA",
            ),
            (
                lambda: backend.create_contexts_from_binaries([shared], {htp.SHARE_RESOURCES: True}, None, [provider]),
                "with type 0",
            ),
            (
                lambda: qnn.Context(backend, None, None, shared, True, None, True, provider=provider),
                "if its graphs are deferred",
            ),
        ):
            with pytest.raises(QnnError, match=rule) as refused:
                create()
            assert refused.value.code is Code.COMMON_NOT_SUPPORTED
    with qnn.Backend("cpu") as backend:
        with pytest.raises(QnnError, match="takes no data of binaries by callbacks") as refused:
            backend.create_context_from_provider(shared, provider)
        assert refused.value.code is Code.COMMON_NOT_SUPPORTED
    assert provider.sections == []


def test_the_scratch_of_a_binary_is_known_without_its_constants(model, tmp_path) -> None:
    content = model.read_bytes()
    info = binary.inspect(content)
    assert info is not None
    needs = {each.name: each.figures.spill_fill for each in info.graphs}
    assert all(needs.values())
    reader = Reader(content)
    for source in (content, bytearray(content), memoryview(content), model, str(model), reader):
        assert scratch_of(source, "htp") == needs
    constants = ProvidedBinary(Reader(content), "htp").sections
    assert not [
        (begin, end)
        for begin, end in reader.taken
        for each in constants
        if begin < each.offset + each.nbytes and each.offset < end
    ]
    for source in (content[:-1], b"", b"none", 5, None, tmp_path / "none"):
        with pytest.raises(QnnError):
            scratch_of(source, "htp")


def test_the_scratch_of_a_mapped_file_that_was_cut_is_an_error(shared, tmp_path) -> None:
    (tmp_path / "cut.bin").write_bytes(shared.read_bytes())
    with open(tmp_path / "cut.bin", "r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        os.truncate(file.fileno(), PAGE)
        with pytest.raises(QnnError):
            scratch_of(pages, "htp")


def test_a_context_with_callbacks_takes_a_reader_of_its_binary(backend, model) -> None:
    context = backend.create_context_from_provider(Reader(model.read_bytes()), Provider(model))
    assert np.array_equal(run(context), run(backend.create_context_from_binary(model)))


class _Nothing(Provider):
    def provide(self, section: qnn.BinarySection) -> Any:
        return None


def test_what_brings_no_constants_is_refused(backend, shared) -> None:
    right = Provider(shared)
    for create, rule in (
        (lambda: backend.create_context_from_provider(shared, None), "None is not a BinaryProvider"),
        (lambda: backend.create_context_from_provider(shared, object()), "is not a BinaryProvider"),
        (lambda: qnn.Context(backend, None, None, shared, True, provider=5), "5 is not a BinaryProvider"),
        (
            lambda: backend.create_contexts_from_binaries([shared] * 2, None, None, [right, object()]),
            "is not a BinaryProvider",
        ),
        (lambda: backend.create_context_from_provider(shared, _Nothing(shared)), "which is not a ProvidedBuffer"),
    ):
        with pytest.raises(QnnError, match=rule) as refused:
            create()
        assert refused.value.code is Code.CONTEXT_INVALID_ARGUMENT
    assert right.sections == []


def test_a_list_takes_turns_with_weights_from_callbacks(backend, model) -> None:
    configs = {htp.SHARE_RESOURCES: True, htp.SHARE_RESOURCES_OPTIMIZATION_TYPE: 1}
    provider = Provider(model)
    contexts = backend.create_contexts_from_binaries([model, model], configs, None, [None, provider])
    assert np.array_equal(*map(run, contexts))
    assert mapped(backend, provider.inodes) == [True] * len(provider.buffers)


def test_a_context_with_provided_weights_makes_no_binary_and_takes_no_graph(backend, model) -> None:
    context = backend.create_context_from_provider(model, Provider(model))
    for refused_call in (context.get_binary, lambda: context.create_graph("more")):
        with pytest.raises(QnnError, match="are in the client's buffers") as refused:
            refused_call()
        assert refused.value.code is Code.COMMON_NOT_SUPPORTED
    assert run(context).any()


@pytest.mark.parametrize("damage", ["empty", "cut", "magic", "header", "graph", "shared", "missing"])
def test_a_damaged_file_is_refused_before_any_callback(backend, shared, tmp_path, damage) -> None:
    content, path = bytearray(shared.read_bytes()), tmp_path / "damaged.bin"
    if damage == "cut":
        content = content[:-1]
    elif damage == "magic":
        content[0] ^= 1
    elif damage == "header":
        content[60] ^= 1
    elif damage == "graph":
        content[-1] ^= 1
    elif damage == "shared":
        content = content.replace(b'"shared":', b'"sharee":')
    if damage != "missing":
        path.write_bytes(b"" if damage == "empty" else content)
    provider = Provider(shared)
    with pytest.raises(QnnError) as refused:
        backend.create_context_from_provider(path, provider)
    usual = Code.CONTEXT_INVALID_ARGUMENT if damage == "missing" else Code.CONTEXT_CREATE_FROM_BINARY
    assert refused.value.code is usual
    # Graphs are read when their constants are there.
    assert provider.sections == [] or damage == "graph"
    assert provider.released == list(range(len(provider.buffers)))


def test_a_file_provider_refuses_a_file_that_ends_too_early(tmp_path) -> None:
    (tmp_path / "short").write_bytes(bytes(100))
    with statistics("rpcmem") as counted:
        for name, code in (("short", Code.CONTEXT_CREATE_FROM_BINARY), ("none", Code.CONTEXT_INVALID_ARGUMENT)):
            with pytest.raises(QnnError) as refused:
                qnn.FileProvider(tmp_path / name).provide(qnn.BinarySection(0, 101))
            assert refused.value.code is code
    assert counted.live_bytes == 0


def test_a_section_that_the_system_reads_in_parts_is_whole(tmp_path, monkeypatch) -> None:
    """A call of the system reads 2 GiB at most; here it reads a hundred bytes."""
    content = bytes(number % 251 for number in range(5000))
    (tmp_path / "binary").write_bytes(content)
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, parts, offset: read(fd, [parts[0][:100]], offset))
    provider = qnn.FileProvider(tmp_path / "binary")
    buffer = provider.provide(qnn.BinarySection(1000, 3210))
    assert bytes(buffer.memory.array[:3210]) == content[1000:4210]
    provider.release(buffer)
