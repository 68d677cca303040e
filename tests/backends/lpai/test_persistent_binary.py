"""A context binary that its client keeps is used where it is; any other is copied once."""

import numpy as np
import pytest
from support.processes import context_copies

from backends.lpai.harness import ready
from isthmus import Code, QnnError, memory, qnn
from isthmus.graph import DataType, TensorType
from isthmus.qnn import LogLevel, lpai

KEPT = {"context_configs": {"is_persistent_binary": True}}
FIRST = 100_001
WEIGHTS = np.arange(FIRST, FIRST + 64, dtype=np.float32).reshape(1, 64)
"""Numbers that need 32 bits: a binary has others in 16."""


@pytest.fixture(scope="module")
def content() -> bytes:
    """A binary with a graph that adds weights to its input."""
    with qnn.Backend("lpai") as backend:
        context = backend.create_context()
        graph = context.create_graph("plus")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, WEIGHTS.shape)
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, WEIGHTS.shape)
        weights = graph.create_tensor("w", TensorType.STATIC, DataType.FLOAT_32, WEIGHTS.shape, data=WEIGHTS)
        graph.add_node("add", "ElementWiseAdd", [x, weights], [y])
        return context.prepare_offline()


@pytest.fixture
def binary(content: bytes) -> np.ndarray:
    """The context binary in memory of a client."""
    held = memory.host(len(content), 64).array
    held[:] = np.frombuffer(content, np.uint8)
    return held


def weights_in(binary: np.ndarray) -> np.ndarray:
    """The weights in the bytes of a binary; they are found even if the first of them was changed."""
    start = binary.tobytes().index(WEIGHTS[:, 1:].tobytes()) - 4
    return binary[start : start + WEIGHTS.nbytes].view(np.float32)


def result(backend: qnn.Backend, context: qnn.Context) -> float:
    """The first number that the graph adds to zeros."""
    graph = context.retrieve("plus")
    ready(backend, graph)
    graph.inputs["x"][...] = 0
    graph.execute()
    return float(graph.outputs["y"][0, 0])


@pytest.mark.parametrize("config", [KEPT, None])
def test_a_binary_that_its_client_keeps_is_not_copied(binary, config) -> None:
    before = context_copies()
    with qnn.Backend("lpai", config) as backend:
        assert backend.get_property(lpai.REQUIRE_PERSISTENT_BINARY) is (config is KEPT)
        context = backend.create_context_from_binary(binary.data)
        assert len(context_copies() - before) == (0 if config is KEPT else 1)
        assert result(backend, context) == FIRST
        weights_in(binary)[0] = 7
        read_again = weights_in(np.frombuffer(context.get_binary(), np.uint8))
        assert read_again[0] == (7 if config is KEPT else FIRST)


def test_a_kept_binary_is_checked_as_any_other(binary) -> None:
    with qnn.Backend("lpai", KEPT) as backend:
        weights_in(binary)[0] = 7
        with pytest.raises(QnnError, match="checksum of its arrays is wrong") as refusal:
            backend.create_context_from_binary(binary.data)
        assert refusal.value.code is Code.CONTEXT_CREATE_FROM_BINARY


def test_a_file_or_misaligned_memory_is_copied_and_that_is_logged(content, tmp_path) -> None:
    messages = []
    file = tmp_path / "plus.serialized.bin"
    file.write_bytes(content)
    askew = memory.host(len(content) + 64, 64).array[8 : 8 + len(content)]
    askew[:] = np.frombuffer(content, np.uint8)
    with qnn.Backend("lpai", KEPT, lambda *line: messages.append(line)) as backend:
        for source in (file, askew.data):
            context = backend.create_context_from_binary(source)
            file.write_bytes(bytes(len(content)))
            askew[:] = 0
            assert result(backend, context) == FIRST
            file.write_bytes(content)
            askew[:] = np.frombuffer(content, np.uint8)
    reason = "it is a file, or memory that does not start at a multiple of 64"
    assert messages == 2 * [(LogLevel.INFO, f"the context binary is copied: {reason}")]
