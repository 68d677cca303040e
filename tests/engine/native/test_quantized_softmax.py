"""A softmax of bytes looks up a table, and stays within it whatever its input turns into meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
from harness import GuardedBuffer

from isthmus.engine.native.executor import Executor
from isthmus.engine.native.program import Operand, Program
from isthmus.engine.native.signatures import KERNELS
from isthmus.engine.native.target import host
from isthmus.engine.native.verification import verify
from isthmus.graph import DataType, TensorInfo
from isthmus.memory import window
from isthmus.prepare.schedule import Pool


@pytest.mark.parametrize("kernel", ["quantized_reduction:softmax.u8", "quantized_reduction:softmax_of_integers.u8"])
def test_a_softmax_whose_input_changes_under_it_stays_within_its_table(kernel):
    # Its result lies one byte behind its input: what is read is larger than the largest that was found.
    assert kernel in KERNELS
    length = 4096
    words = {
        "x": Operand.at(Pool.SCRATCH, 0), "y": Operand.at(Pool.SCRATCH, 1), "rows": 1, "length": length,
        "table": Operand.at(Pool.IO, 0), "zero": 0, "least": 255, "most": 255,
        **({"factor": 1} if "integers" in kernel else {"inverse": 1.0}),
    }  # fmt: skip
    table, rest = (TensorInfo(name, DataType.UINT_8, (size,), None, size) for name, size in (("t", 1024), ("o", 64)))
    program = Program(
        name="forged", target=host().name, threads=1, kernels=(kernel,), table=np.array([[0, 0, 1]]),
        words=np.array(KERNELS[kernel].encode(words)), labels=("softmax",), constants=np.zeros(0, np.uint8),
        inputs=(table,), outputs=(rest,), states=(), state_offsets=(), state_initial=np.zeros(0, np.uint8),
        scratch_bytes=length + 64, alignment=64,
    )  # fmt: skip
    verify(program)
    scratch, *io = (GuardedBuffer(size, "before") for size in (length + 64, 1024, 64))
    io[0].bytes[:] = 1
    executor = Executor(program, window(scratch.bytes), None, [window(buffer.bytes) for buffer in io])
    executor.run()
    executor.close()
    assert (scratch.bytes[1:length] == 255).all()
