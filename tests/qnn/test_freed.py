"""What is freed is given back at once, by reference counts alone: memory, descriptors, threads, objects, records.

Measured in a process of its own in which the cyclic garbage collector never runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from support import tiny, zoo
from support.alone import alone
from support.growth import growth
from support.suites import LONG, long, only

import isthmus
from isthmus import QnnError, qnn
from isthmus.memory import rpcmem

ARM = {"lpai_backend": {"target_env": "arm"}}
BACKENDS = ["cpu", "htp", long("lpai"), long("arm")]
WIDTH = 1024
WEIGHTS = 4 * WIDTH * WIDTH
COMPOSITIONS = 100
FEW = 10
"""Objects that caches may keep of a round; the smallest context that keeps itself alive is four times as many."""


def opened(name: str) -> qnn.Backend:
    return qnn.Backend("lpai", ARM) if name == "arm" else qnn.Backend(name)


def summing(context: qnn.Context, width: int = WIDTH) -> qnn.Graph:
    """A graph with many weights that is composed."""
    graph = context.create_graph("sums")
    x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, (1, width))
    y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, (1, width))
    weights = np.ones((width, width), np.float32)
    w = graph.create_tensor("w", qnn.TensorType.STATIC, qnn.DataType.FLOAT_32, weights.shape, data=weights)
    graph.add_node("all", "FullyConnected", [x, w], [y])
    return graph


def run_once(backend: qnn.Backend, width: int = WIDTH) -> tuple[qnn.Context, qnn.Graph, qnn.GraphMemory]:
    """Create a context, execute it, and free it: what a client may still have of it."""
    context = backend.create_context()
    graph = summing(context, width)
    memory = graph.allocate()
    memory.inputs["x"][:] = 1
    memory.binding.execute()
    assert memory.outputs["y"][0, 0] == width
    context.free()
    memory.close()
    return context, graph, memory


def model(key: str) -> str:
    try:
        return str(zoo.path(key))
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))


@contextmanager
def contexts(name: str, width: str = str(WIDTH)) -> Iterator[Callable[[], object]]:
    """One context after the other."""
    with opened(name) as backend:
        yield lambda: run_once(backend, int(width))


@contextmanager
def kept_contexts(name: str) -> Iterator[Callable[[], object]]:
    """One context after the other, by a client that keeps the objects of all that it has freed."""
    kept = []
    with opened(name) as backend:
        yield lambda: kept.append(run_once(backend)[:2])


@contextmanager
def sessions(name: str, path: str, limit: str = "") -> Iterator[Callable[[], object]]:
    """A session and all that lies below it."""

    def action() -> None:
        config = ARM if name == "arm" else None
        with isthmus.Session(
            path, "lpai" if name == "arm" else name, config=config, scratch_limit=limit or None
        ) as session:
            session.run()

    yield action


@contextmanager
def everything(name: str, binary: str) -> Iterator[Callable[[], object]]:
    """Calls of all kinds, those that are refused among them."""

    def action() -> None:
        with opened(name) as backend, rpcmem.alloc(25, 1, 4 * 64) as x:
            context = backend.create_context()
            with suppress(QnnError):
                context.compose(binary)
            with suppress(QnnError):
                backend.create_context_from_binary(b"no binary")
            context.create_graph("never finalized")
            graph = summing(context, 64)
            memory = graph.allocate("memhandle" if name == "htp" else None)
            memory.binding.execute_async().result()
            never_closed = graph.bind() if name != "htp" else None
            with qnn.Signal(backend, timeout_us=60_000_000) as signal, qnn.Profile(backend, 2) as profile:
                memory.binding.execute(signal=signal)
                memory.binding.execute(profile=profile)
            with suppress(QnnError):
                graph.execute([qnn.ClientTensor("z", np.zeros(3, np.float32))])
            with suppress(QnnError):
                context.mem_register(
                    [qnn.MemDescriptor((1, 64), qnn.DataType.FLOAT_32, qnn.DescriptorType.ION, fd=x.fd)]
                )
            context.free()
            memory.close()
            del never_closed
            backend.create_context_from_binary(Path(binary).read_bytes()).free()

    yield action


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_context_that_is_freed_gives_back_its_weights_and_descriptors(backend: str) -> None:
    left = growth(__file__, "contexts", backend, rounds=5, collected=False)
    assert left.resident < 2 * WEIGHTS
    assert (left.descriptors, left.threads, left.records) == (0, 0, {})


@LONG
@pytest.mark.parametrize("backend", BACKENDS)
def test_25_contexts_with_64_megabytes_of_weights_take_the_memory_of_one(backend: str) -> None:
    left = growth(__file__, "contexts", backend, "4096", rounds=20, collected=False)
    assert left.resident < 0.3 * (64 << 20)
    assert (left.descriptors, left.threads, left.records) == (0, 0, {})


@pytest.mark.parametrize("backend", only(["htp"], ["cpu", "htp", "lpai", "arm"]))
def test_objects_of_what_was_freed_keep_neither_its_weights_nor_its_descriptors(backend: str) -> None:
    left = growth(__file__, "kept_contexts", backend, rounds=5, collected=False)
    assert left.resident < 2 * WEIGHTS
    assert (left.descriptors, left.threads) == (0, 0)


@pytest.mark.parametrize("backend", only(["cpu"], ["cpu", "htp", "lpai", "arm"]))
def test_a_session_that_is_closed_leaves_no_object_behind(backend: str, tmp_path: Path) -> None:
    path = str(tiny.gate(tmp_path / "gate.onnx", 64))
    left = growth(__file__, "sessions", backend, path, rounds=6, collected=False)
    assert (left.descriptors, left.threads, left.records) == (0, 0, {})
    assert left.objects < 6 * FEW


@pytest.mark.parametrize("key", ["okay_nabu", "kws_qdq"])
def test_a_model_that_was_loaded_leaves_no_object_behind(key: str) -> None:
    left = growth(__file__, "sessions", "cpu", model(key), rounds=4, collected=False)
    assert left.objects < 4 * FEW


def left_by_composing(path: str, before: str, count: str) -> list[float]:
    """Return the blocks of Python's objects and the bytes of the C heap that a composition leaves behind on average.

    Of `count` compositions, after `before` others. Called in a process of its own.
    """
    from soak import account

    def compose() -> None:
        context = backend.create_context()
        context.compose(path)
        context.free()

    seen = []
    with qnn.Backend("cpu") as backend:
        for number in (int(before), int(count)):
            for _ in range(number):
                compose()
            seen.append((account.blocks(), account.heap_bytes() or 0))
    return [(end - begin) / int(count) for begin, end in zip(*seen, strict=True)]


def test_composing_does_not_grow_the_heap() -> None:
    blocks, nbytes = alone(__file__, "left_by_composing", model("okay_nabu"), str(COMPOSITIONS), str(COMPOSITIONS))
    # A loss of one object in each composition would be 1 block. The heap grows by some bytes, ever fewer.
    assert blocks < 0.5
    assert nbytes < 200


@LONG
def test_a_thousand_compositions_lose_no_block_of_the_heap() -> None:
    blocks, nbytes = alone(__file__, "left_by_composing", model("okay_nabu"), "800", "600", seconds=800)
    assert blocks < 0.1
    # The smallest block of the C library has 32 bytes: to lose one a call would be more than this.
    assert nbytes < 16


def test_a_search_for_tiles_leaves_no_object_behind() -> None:
    left = growth(__file__, "sessions", "cpu", model("kws_fp32"), "least", rounds=3, collected=False)
    assert left.objects < 3 * FEW


@pytest.mark.parametrize("backend", only(["cpu"], ["cpu", "htp", "lpai"]))
def test_calls_that_are_refused_leave_no_object_behind(backend: str, tmp_path: Path) -> None:
    binary = tmp_path / "sums.bin"
    with opened(backend) as maker:
        context = maker.create_context()
        summing(context, 64)
        binary.write_bytes(context.prepare_offline())
    left = growth(__file__, "everything", backend, str(binary), rounds=6, collected=False)
    assert (left.descriptors, left.threads, left.records) == (0, 0, {})
    assert left.objects < 6 * FEW


def test_a_freed_graph_answers_that_it_was_freed() -> None:
    with qnn.Backend("cpu") as backend:
        context, graph, memory = run_once(backend, 64)
        for call in (graph.finalize, memory.binding.execute, lambda: graph.info, lambda: graph.driver.info):
            with pytest.raises(QnnError, match="freed"):
                call()
        with pytest.raises(QnnError, match="freed"):
            context.create_graph("another")
