"""A program may end with everything still open: nothing is printed, and nothing waits."""

import pytest
from support.exits import end
from support.tiny import convolution

from isthmus.backends.vendor.library import is_installed

needs_package = pytest.mark.skipif(not is_installed(), reason="needs the package onnxruntime-qnn")
BACKENDS = ("cpu", "htp", "lpai", "gpu", pytest.param("qnn-htp", marks=needs_package))

OPEN = """
import sys
import isthmus
from isthmus import qnn
from isthmus.memory import rpcmem

path, name = sys.argv[1:]
backend = qnn.Backend(name)
device, context = backend.create_device(), backend.create_context()
graph = context.create_graph("left open")
x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, (1, 8))
y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, (1, 8))
graph.add_node("relu", "Relu", [x], [y])
profile, signal = qnn.Profile(backend, qnn.ProfileLevel.BASIC), qnn.Signal(backend, 1_000_000)
shared, alone = rpcmem.share(4096), qnn.Backend(name)
session = isthmus.Session(path, backend=name)
session.run()
memory = graph.allocate()
future = memory.binding.execute_async()
print("done", flush=True)
"""


LATE = """
import sys, threading
from collections import deque
import isthmus
from isthmus.backends.seam import deadlines

# A wait for an answer would not end.
for name in ("control", "closing", "grace"):
    setattr(deadlines.Deadlines, name, 1e6)
deadlines.Deadlines.__init__.__defaults__ = (60.0, 1e6, 1e6, 1e6, 1e6)

class Owner:
    def __init__(self, session):
        self.session = session
        self.memory = session.graph.allocate()
        execute, self.future = self.memory.binding.execute, self.memory.binding.execute_async()
        # It executes without end, and does not refer to this module.
        threading.Thread(target=deque, args=(iter(execute, "never"), 0), daemon=True).start()
    def __del__(self):
        self.session.close()
        print("closed", flush=True)

owner = Owner(isthmus.Session(sys.argv[1], backend=sys.argv[2]))
owner.future.result()
"""


@pytest.mark.parametrize("keeping", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("program", "printed"), [(OPEN, "done\n"), (LATE, "closed\n")], ids=["left open", "closed late"]
)
def test_the_exit_waits_for_no_thread_and_prints_no_error(program, printed, backend, keeping, tmp_path) -> None:
    if backend == "gpu":
        pytest.importorskip("support.opencl_device")
    ended = end(program, convolution(tmp_path / "m.onnx"), backend, keeping=keeping)
    assert (ended.stdout, ended.stderr, ended.returncode) == (printed, "", 0)
