"""The executor runs in the memory it is given, refuses memory that will not do, and ends its threads."""

import gc
import threading
from dataclasses import replace

import numpy as np
import pytest
from support import tiny

from isthmus import Code, QnnError, memory
from isthmus.backends.seam import native
from isthmus.engine.native import lower
from isthmus.engine.native.executor import Executor
from isthmus.frontends import load


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return native.prepare(load(tiny.convolution(tmp_path_factory.mktemp("m") / "conv.onnx"))).program


def io_of(program):
    return [memory.host(info.nbytes) for info in (*program.inputs, *program.outputs)]


def test_scratch_io_and_state_may_be_anywhere_and_be_replaced_between_runs(program) -> None:
    io = io_of(program)
    x = io[0].view(np.float32, program.inputs[0].dims)
    x[...] = np.random.default_rng(0).standard_normal(x.shape)
    scratch = memory.host(program.scratch_bytes)
    executor = Executor(program, scratch.window(), None, [b.window() for b in io])
    executor.run()
    expected = io[1].array.copy()
    other, out = memory.host(program.scratch_bytes), np.zeros(program.outputs[0].nbytes + 1, np.uint8)
    other.array[:] = 0xAA
    executor.bind_scratch(other.window())
    executor.bind_io(1, memory.window(out[1:]))
    executor.run()
    assert np.array_equal(out[1:], expected), "an output may lie at an odd address"
    executor.close()


def test_scratch_too_small_or_misaligned_is_refused_before_anything_is_written(program) -> None:
    io = [b.window() for b in io_of(program)]
    small = np.zeros(max(program.scratch_bytes - 1, 0), np.uint8)
    with pytest.raises(QnnError, match="scratch memory: has"):
        Executor(program, memory.window(small), None, io)
    shifted = memory.host(program.scratch_bytes + 64)
    with pytest.raises(QnnError, match=r"scratch memory: starts at .* not a multiple of 64"):
        Executor(program, memory.window(shifted.array[8:]), None, io)
    assert not shifted.array.any()


def test_io_that_is_too_small_or_missing_is_refused_by_name(program) -> None:
    scratch, state, io = memory.host(program.scratch_bytes).window(), None, io_of(program)
    with pytest.raises(QnnError, match="has 1 inputs and 1 outputs, 1 windows given"):
        Executor(program, scratch, state, [io[0].window()])
    with pytest.raises(QnnError, match="memory of tensor 'y': has 4 bytes"):
        Executor(program, scratch, state, [io[0].window(), memory.host(4).window()])


def test_threads_end_when_the_executor_is_closed_or_forgotten(tmp_path) -> None:
    program = native.prepare(load(tiny.gate(tmp_path / "gate.onnx")), threads=3).program
    scratch, io = memory.host(program.scratch_bytes), [b.window() for b in io_of(program)]
    # Kernels that are not compiled yet are compiled now, by threads that stay.
    Executor(program, scratch.window(), None, io).close()
    before = threading.enumerate()
    for forget in (False, True):
        executor = Executor(program, scratch.window(), None, io)
        executor.run()
        assert len(started_since(before)) == 2
        if forget:
            del executor
        else:
            executor.close()
            executor.close()
        assert not started_since(before)


def started_since(before):
    """Threads that were not there then; others may have ended since."""
    return [thread for thread in threading.enumerate() if thread not in before]


@pytest.fixture
def everything_is_shared(monkeypatch):
    """However small a step, its work is split between threads."""
    monkeypatch.setattr(lower, "is_shared", lambda step: True)


@pytest.mark.usefixtures("everything_is_shared")
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_many_runs_with_shared_work_agree_and_do_not_hang(tmp_path, threads) -> None:
    program = native.prepare(load(tiny.gate(tmp_path / "gate.onnx", size=7)), threads=threads).program
    assert (program.table[:, 2] == threads).all(), "every instruction must be shared for this test to mean anything"
    io, scratch = io_of(program), memory.host(program.scratch_bytes)
    executor = Executor(program, scratch.window(), None, [b.window() for b in io])
    x, y = io[0].view(np.float32, (7,)), io[2].view(np.float32, (7,))
    for i in range(2000):
        x[:] = i
        executor.run()
        assert np.allclose(y, i / (1 + np.exp(-float(i)))), f"run {i}"
    executor.close()


@pytest.mark.usefixtures("everything_is_shared")
def test_instructions_shared_by_different_numbers_of_threads_may_follow_each_other(tmp_path) -> None:
    program = native.prepare(load(tiny.gate(tmp_path / "gate.onnx", size=64)), threads=4).program
    table = program.table.copy()
    table[:, 2] = [1 + i % 4 for i in range(len(table))]
    table = np.concatenate([table] * 50)
    program = replace(program, table=table, labels=program.labels * 50)
    io, scratch = io_of(program), memory.host(program.scratch_bytes)
    executor = Executor(program, scratch.window(), None, [b.window() for b in io])
    io[0].view(np.float32, (64,))[:] = np.linspace(-3, 3, 64)
    executor.run()
    expected = io[2].array.copy()
    for _ in range(200):
        io[2].array[:] = 0
        executor.run()
        assert np.array_equal(io[2].array, expected)
    executor.close()


def test_a_kept_run_outlives_its_executor(program) -> None:
    io = io_of(program)
    x = io[0].view(np.float32, program.inputs[0].dims)
    x[...] = np.random.default_rng(0).standard_normal(x.shape)
    scratch = memory.host(program.scratch_bytes).window()
    executor = Executor(program, scratch, None, [b.window() for b in io])
    del scratch
    run = executor.run
    run()
    expected = io[1].array.copy()
    executor.close()
    del executor
    gc.collect()
    io[1].array[:] = 0
    run()
    assert np.array_equal(io[1].array, expected)


def test_threads_that_cannot_be_started_are_refused_and_none_stays(tmp_path, monkeypatch) -> None:
    program = native.prepare(load(tiny.gate(tmp_path / "gate.onnx")), threads=4).program
    start, count = threading.Thread.start, []

    def refuse_third(self):
        count.append(self)
        if len(count) == 3:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse_third)
    before = threading.enumerate()
    with pytest.raises(QnnError, match="starts no more") as refusal:
        Executor(
            program, memory.host(program.scratch_bytes).window(), None,
            [b.window() for b in io_of(program)],
        )  # fmt: skip
    assert refusal.value.code is Code.COMMON_RESOURCE_UNAVAILABLE
    assert not started_since(before)
