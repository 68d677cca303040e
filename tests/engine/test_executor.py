"""The executor runs in the memory it is given, refuses memory that will not do, and ends its threads."""

import threading

import numpy as np
import pytest
import tiny

from isthmus import QnnError, memory
from isthmus.backends import cpu
from isthmus.engine.executor import Executor
from isthmus.frontends import load
from isthmus.memory import Region


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return cpu.prepare(load(tiny.convolution(tmp_path_factory.mktemp("m") / "conv.onnx")))[0]


def io_of(program):
    return [memory.host(info.nbytes) for info in (*program.inputs, *program.outputs)]


def test_scratch_io_and_state_may_be_anywhere_and_be_replaced_between_runs(program):
    io = io_of(program)
    x = io[0].view(np.float32, program.inputs[0].dims)
    x[...] = np.random.default_rng(0).standard_normal(x.shape)
    scratch = memory.host(program.scratch_bytes)
    executor = Executor(program, scratch.region, memory.host(0).region, [b.region for b in io])
    executor.run()
    expected = io[1].array.copy()
    other, out = memory.host(program.scratch_bytes), np.zeros(program.outputs[0].nbytes + 1, np.uint8)
    other.array[:] = 0xAA
    executor.bind_scratch(other.region)
    executor.bind_io(1, Region.of(out[1:]))
    executor.run()
    assert np.array_equal(out[1:], expected), "an output may lie at an odd address"
    executor.close()


def test_scratch_too_small_or_misaligned_is_refused_before_anything_is_written(program):
    io = [b.region for b in io_of(program)]
    small = np.zeros(max(program.scratch_bytes - 1, 0), np.uint8)
    with pytest.raises(QnnError, match="scratch memory: has"):
        Executor(program, Region.of(small), memory.host(0).region, io)
    shifted = memory.host(program.scratch_bytes + 64)
    with pytest.raises(QnnError, match=r"scratch memory: starts at .* not a multiple of 64"):
        Executor(program, Region.of(shifted.array[8:]), memory.host(0).region, io)
    assert not shifted.array.any()


def test_io_that_is_too_small_or_missing_is_refused_by_name(program):
    scratch, state, io = memory.host(program.scratch_bytes).region, memory.host(0).region, io_of(program)
    with pytest.raises(QnnError, match="has 1 inputs and 1 outputs, 1 regions given"):
        Executor(program, scratch, state, [io[0].region])
    with pytest.raises(QnnError, match="memory of tensor 'y': has 4 bytes"):
        Executor(program, scratch, state, [io[0].region, memory.host(4).region])


def test_threads_end_when_the_executor_is_closed_or_forgotten(tmp_path):
    program = cpu.prepare(load(tiny.gate(tmp_path / "gate.onnx")), threads=3)[0]
    before = threading.active_count()
    for forget in (False, True):
        scratch, io = memory.host(program.scratch_bytes), [b.region for b in io_of(program)]
        executor = Executor(program, scratch.region, memory.host(0).region, io)
        executor.run()
        assert threading.active_count() == before + 2
        if forget:
            del executor
        else:
            executor.close()
            executor.close()
        assert threading.active_count() == before


def test_many_runs_with_threads_agree_and_do_not_hang(tmp_path):
    path = tiny.gate(tmp_path / "gate.onnx", size=7)
    program = cpu.prepare(load(path), threads=2)[0]
    io = io_of(program)
    scratch = memory.host(program.scratch_bytes)
    executor = Executor(program, scratch.region, memory.host(0).region, [b.region for b in io])
    x = io[0].view(np.float32, (7,))
    for i in range(2000):
        x[:] = i
        executor.run()
        assert np.isclose(io[2].view(np.float32, (7,))[6], i / (1 + np.exp(-float(i))))
    executor.close()
