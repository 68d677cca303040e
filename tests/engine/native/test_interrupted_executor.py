"""Threads of a program end, and end before its memory does, wherever their start or their end is interrupted."""

import pytest
from support.interruption import Alarm, Interrupt, check_every_interrupt
from support.suites import long
from support.tiny import gate

from isthmus import memory
from isthmus.backends.seam import native
from isthmus.engine.native.executor import Executor
from isthmus.frontends import load


@pytest.mark.parametrize("by", [Interrupt, long(Alarm)])
@pytest.mark.parametrize("closes", [True, long(False)])
def test_an_interrupted_executor_leaves_no_thread(tmp_path, by, closes) -> None:
    program = native.prepare(load(gate(tmp_path / "gate.onnx", 1000)), threads=3).program

    def action():
        pools = [memory.host(max(nbytes, 64), 64) for nbytes in (program.scratch_bytes, program.state_bytes)]
        executor = Executor(program, *(pool.window() for pool in pools), [None] * 3)
        if closes:
            executor.close()

    assert check_every_interrupt(action, by=by, outside=("numpy", "ctypes"), most=150) > 50
