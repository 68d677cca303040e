"""What becomes of memory that is a file, when somebody cuts the file."""

import faulthandler
import os
import signal

import numpy as np
from support.processes import in_child

from isthmus import qnn
from isthmus.qnn import ClientTensor, DataType, TensorType

DIMS = (1, 4096)


def test_a_mapped_file_that_is_cut_ends_the_process_that_runs_on_it(tmp_path) -> None:
    path = tmp_path / "input"
    np.ones(DIMS, np.float32).tofile(path)

    def action():
        # The child is meant to die of SIGBUS; no traceback is wanted.
        faulthandler.disable()
        mapped, y = np.memmap(path, np.float32, "r+", shape=DIMS), np.zeros(DIMS, np.float32)
        with qnn.Backend("cpu") as backend:
            graph = backend.create_context().create_graph("double")
            x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, DIMS)
            result = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, DIMS)
            graph.add_node("add", "ElementWiseAdd", [x, x], [result])
            graph.finalize()
            with graph.bind([ClientTensor("x", mapped)], [ClientTensor("y", y)]) as binding:
                binding.execute()
                assert (y == 2).all()
                os.truncate(path, 0)
                binding.execute()

    assert in_child(action) == -signal.SIGBUS
