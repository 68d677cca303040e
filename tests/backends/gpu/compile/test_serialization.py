"""A program comes back from its bytes; bytes that say anything else than a sound schedule are refused."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import processes
from support.containers import damage, limit_memory

from backends.gpu.compile.checking import graph_of, traits
from isthmus.backends.gpu.compile.lower import prepare
from isthmus.backends.gpu.compile.program import BufferRef, KernelPool, KernelProgram
from isthmus.backends.gpu.compile.serialization import FORMAT, from_bytes, schedule_from_bytes, to_bytes
from isthmus.backends.gpu.compile.traits import FloatStorage
from isthmus.backends.gpu.mixed_precision import Fp16Tensor
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, Tensor, TensorType
from isthmus.prepare.serialization import assemble

_generator = np.random.default_rng(1)


def program(precision: FloatStorage = FloatStorage.FP32) -> KernelProgram:
    arrays = [_generator.standard_normal(d).astype(np.float32) for d in ((1, 6, 6, 4), (3, 3, 4, 8), (8,))]
    params = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}
    graph = graph_of("Conv2d", arrays, params, statics=(1, 2), then=("Softmax", "Tanh"))
    return prepare(graph, traits("cpu"), precision)


@pytest.mark.parametrize("precision", FloatStorage)
def test_a_program_is_restored_unchanged(precision: FloatStorage) -> None:
    made = program(precision)
    back = from_bytes(to_bytes(made), traits("cpu"))
    assert (back.units, back.launches, back.inputs, back.outputs) == (
        made.units,
        made.launches,
        made.inputs,
        made.outputs,
    )
    assert np.array_equal(back.constants, made.constants)
    assert (back.scratch_bytes, back.precision) == (made.scratch_bytes, precision)
    # What steps read and write is for drawings, and is not in binaries.
    assert back.schedule.plan == replace(made.schedule.plan, operands=None)


def test_a_program_of_fp16_and_floats_is_restored_unchanged() -> None:
    graph = Graph("mixed")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (8, 64))
    weights = graph.constant("w", _generator.standard_normal((80, 64)).astype(np.float32) / 8)
    large = graph.emit("ElementWiseMultiply", [x, graph.constant("thousands", np.float32([20000]))])
    wide = graph.emit("FullyConnected", [*graph.emit("Tanh", large), weights])
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (8, 80))
    graph.add_node("last", "Softmax", graph.emit("ElementWiseSin", wide), [y])
    graph.finalize()
    made = prepare(graph, traits("cpu"), FloatStorage.FP16, fuse=False)
    back = from_bytes(to_bytes(made), traits("cpu"), fuse=False)
    kinds = [[type(t) for step in one.schedule.steps for t in (*step.inputs, *step.outputs)] for one in (made, back)]
    assert kinds[0] == kinds[1]
    assert {Fp16Tensor, Tensor} <= set(kinds[0])
    assert back.launches == made.launches
    assert np.array_equal(back.constants, made.constants)
    assert len(to_bytes(made)) < len(to_bytes(prepare(graph, traits("cpu"), FloatStorage.FP32, fuse=False))) * 0.7


def test_a_program_can_be_lowered_for_another_device() -> None:
    back = from_bytes(to_bytes(program()), traits("thin"))
    assert back.traits.kind == "gpu"
    assert back.launches != program().launches


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a program and the contents of its tensors."""
    header, sections = FORMAT.unpack(content)
    return header, bytes(sections["contents"])


def _set(*path: Any, to: Any) -> Callable[[dict], None]:
    def change(header: dict) -> None:
        for key in path[:-1]:
            header = header[key]
        header[path[-1]] = to

    return change


FORGERIES = {
    "a tensor outside scratch": _set("tensors", 2, "place", to=[2, 1 << 30]),
    "a tensor at a negative place": _set("tensors", 2, "place", to=[2, -4]),
    "a tensor in no pool": _set("tensors", 2, "place", to=[77, 0]),
    "an input in scratch": _set("tensors", 0, "place", to=[2, 0]),
    "other dimensions than the operation gives": _set("tensors", 0, "dims", to=[1, 60, 60, 4]),
    "dimensions without end": _set("tensors", 0, "dims", to=[1 << 40, 1 << 40]),
    "an unknown operation": _set("steps", 0, "op", to="Fork"),
    "an operand that is not there": _set("steps", 0, "inputs", to=[0, 99]),
    "an operation that writes to a constant": _set("steps", 0, "outputs", to=[3]),
    "a parameter of text": _set("steps", 0, "params", to={"stride": "1; }"}),
    "a stride of nothing": _set("steps", 0, "params", "stride", to=[0, 0]),
    "a range without numbers": _set("steps", 0, "clamp", to=["a", "b"]),
    "less scratch than tensors": _set("scratch_bytes", to=1),
    "scratch of text": _set("scratch_bytes", to="64"),
    "work space behind scratch": _set("steps", 0, "work", to=[1 << 20, 64]),
    "work space that is not aligned": _set("steps", 0, "work", to=[1, 63]),
    "tiles": _set("tiled", to=[[0, 0]]),
    "a part of a step": _set("steps", 0, "part", to=[1, 0, 6, 1, 0, 6, 0]),
    "inputs in scratch": _set("io_offsets", to=[0, 0]),
    "no alignment": _set("alignment", to=0),
    "state memory without states": _set("state_bytes", to=1 << 39),
    "a parameter of a type that takes gigabytes": _set(
        "steps", 0, "params", "stride", to={"array": [1, 1], "dtype": "U1000000000"}
    ),
    "a parameter of a structure": _set("steps", 0, "params", "stride", to={"array": [1, 1], "dtype": "f8,(100000)f8"}),
    "an unknown precision": _set("engine", "precision", to="fp8"),
    "an unknown rounding": _set("numerics", to="random"),
    "tables of different lengths": _set("state_offsets", to=[0]),
    "a storage as fp16 that is no truth value": _set("tensors", 2, "fp16", to=1),
    "an input that is stored as fp16": _set("tensors", 0, "fp16", to=True),
    "contents that are not there": _set("tensors", 2, "data", to=1 << 40),
    "contents that go beyond the end": _set("tensors", 2, "data", to=64),
    "contents that are not aligned": _set("tensors", 3, "data", to=2),
    "contents without a place": _set("tensors", 2, "data", to=["0"]),
    "a name that is no name": _set("tensors", 0, "type", to="APP_SHELL"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_header_is_refused(forgery: str) -> None:
    header, contents = split(to_bytes(program()))
    FORGERIES[forgery](header)
    with pytest.raises(QnnError) as caught:
        from_bytes(assemble(header, contents), traits("cpu"))
    assert caught.value.code in (Code.COMMON_LOADING_BINARIES, Code.COMMON_INCOMPATIBLE_BINARIES)


def test_damaged_bytes_are_refused() -> None:
    content = to_bytes(program())
    for damaged in (b"", content[:40], content[:-1], b"x" + content[1:], content[:-1] + bytes([content[-1] ^ 1])):
        with pytest.raises(QnnError):
            schedule_from_bytes(damaged)


ROUNDS = int(os.environ.get("ISTHMUS_FORGERIES", "400"))


def test_random_headers_are_refused_or_stay_within_their_pools() -> None:
    originals = [split(to_bytes(made)) for made in (program(), program(FloatStorage.FP16), stateful(), resized())]

    def action() -> None:
        limit_memory(1 << 30)
        for number in range(ROUNDS):
            original, contents = originals[number % len(originals)]
            header = json.loads(json.dumps(original))
            for _ in range(1 + number % 3):
                damage(header, _generator)
            try:
                made = from_bytes(assemble(header, contents), traits("cpu"))
            except QnnError:
                continue
            assert_within_pools(made)

    assert in_child(action) == 0


def in_child(action: Callable[[], None]) -> int:
    """Run an action in a forked child; first release what other tests dropped, which a child's driver cannot."""
    gc.collect()
    return processes.in_child(action)


def stateful() -> KernelProgram:
    graph = Graph("state")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 8))
    s = graph.create_tensor("s", TensorType.APP_READWRITE, DataType.FLOAT_32, (1, 8), data=np.ones((1, 8), np.float32))
    t = graph.create_tensor("t", TensorType.NATIVE, DataType.FLOAT_32, (1, 8))
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 8))
    graph.add_node("add", "ElementWiseAdd", [x, s], [t])
    graph.add_node("out", "Tanh", [t], [y])
    graph.update_state(s, t)
    graph.finalize()
    return prepare(graph, traits("cpu"))


def resized(height: int = 8) -> KernelProgram:
    graph = Graph("larger")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 4, 4, 1))
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, height, 8, 1))
    graph.add_node("resize", "ResizeBilinear", [x], [y])
    graph.finalize()
    return prepare(graph, traits("cpu"))


def test_state_begins_as_it_was_declared() -> None:
    made = from_bytes(to_bytes(stateful()), traits("cpu"))
    [offset] = made.state_offsets
    assert (made.state_initial()[offset : offset + 32].view(np.float32) == 1).all()


def test_scratch_that_nothing_needs_is_not_reserved() -> None:
    header, contents = split(to_bytes(program()))
    whole = header["scratch_bytes"]
    header["scratch_bytes"] = 1 << 39
    assert from_bytes(assemble(header, contents), traits("cpu")).scratch_bytes <= whole


def test_a_graph_that_no_device_has_memory_for_is_refused_before_any_is_taken() -> None:
    header, _ = split(to_bytes(stateful()))
    for tensor in header["tensors"]:
        tensor["dims"], tensor["data"] = [1, 1 << 30], None
    header["state_bytes"], header["scratch_bytes"] = 4 << 30, 4 << 30
    forged = assemble(header, b"")

    def action() -> None:
        limit_memory(1 << 28)
        small = replace(traits("cpu"), largest_allocation=1 << 20)
        with pytest.raises(QnnError, match=r"needs 4,294,967,296 bytes, the device allocates at most 1,048,576") as no:
            from_bytes(forged, small)
        assert no.value.code is Code.COMMON_MEM_ALLOC
        # A device that has it all: nothing of it is taken on the host meanwhile.
        assert from_bytes(forged, replace(small, largest_allocation=1 << 40)).state_bytes == 4 << 30

    assert in_child(action) == 0


def test_more_elements_or_table_entries_than_kernels_can_count_are_refused() -> None:
    with pytest.raises(QnnError, match="has more than 2,147,483,647 elements or a longer axis"):
        resized(1 << 30)
    with pytest.raises(QnnError, match="would need a table of 134,217,728 places"):
        resized(1 << 24)


def assert_within_pools(made: KernelProgram) -> None:
    sizes = {
        KernelPool.CONSTANTS: made.constant_bytes,
        KernelPool.SCRATCH: made.scratch_bytes,
        KernelPool.STATE: made.state_bytes,
    }
    for launch in made.launches:
        for argument in launch.arguments:
            if isinstance(argument, BufferRef):
                ends = {KernelPool.INPUT: made.inputs, KernelPool.OUTPUT: made.outputs}.get(argument.pool)
                size = sizes[argument.pool] if ends is None else ends[argument.index].nbytes
                assert 0 <= argument.offset <= argument.offset + argument.nbytes <= size
