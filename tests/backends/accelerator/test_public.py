"""What the accelerator survives, as a user of the HTP backend meets it."""

import os
import signal
import threading

import numpy as np
import pytest
from support.processes import stop
from support.waiting import PATIENCE, eventually, interrupted_when, main_in

from backends.accelerator.harness import exists
from isthmus import Code, QnnError, qnn
from isthmus.backends.accelerator.connection import Request
from isthmus.backends.seam.deadlines import Deadlines
from isthmus.graph import DataType, TensorMemType, TensorType
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor, htp

WIDTH = 64
NBYTES = 4 * WIDTH


@pytest.fixture
def backend():
    with qnn.Backend("htp") as made:
        yield made


def relu(context):
    graph = context.create_graph("relu")
    x, y = (
        graph.create_tensor(name, kind, DataType.FLOAT_32, (1, WIDTH), mem_type=TensorMemType.MEMHANDLE)
        for name, kind in (("x", TensorType.APP_WRITE), ("y", TensorType.APP_READ))
    )
    graph.add_node("relu", "Relu", [x], [y])
    graph.finalize()
    return graph


def registered(context, *buffers):
    descriptors = [MemDescriptor((1, WIDTH), DataType.FLOAT_32, DescriptorType.ION, fd=buffer.fd) for buffer in buffers]
    return context.mem_register(descriptors)


def tensors(x, y):
    return (ClientTensor("x", mem_handle=x),), (ClientTensor("y", mem_handle=y),)


def test_an_interrupted_registration_leaves_the_next_ones_right(backend) -> None:
    context = backend.create_context()
    graph = relu(context)
    unwanted, a, b = (rpcmem.alloc(25, 1, NBYTES) for _ in range(3))
    a.view(np.float32, (WIDTH,))[:] = 5
    pid = backend.get_property(htp.ACCELERATOR_PID)
    stop(pid)
    with interrupted_when(lambda: main_in(Request.wait)), pytest.raises(KeyboardInterrupt):
        registered(context, unwanted)
    os.kill(pid, signal.SIGCONT)
    [x], [y] = registered(context, a), registered(context, b)
    graph.execute(*tensors(x, y))
    assert b.view(np.float32, (WIDTH,)).tolist() == [5] * WIDTH
    assert not unwanted.array.any()
    context.free()


def test_an_execution_that_waits_is_refused_when_its_memory_is_deregistered(backend) -> None:
    context = backend.create_context()
    graph = relu(context)
    graph.set_config(qnn.GraphConfig.PRIORITY, qnn.Priority.LOW)
    queue = context.driver.queue
    source, old, new = (rpcmem.alloc(25, 1, NBYTES) for _ in range(3))
    source.view(np.float32, (WIDTH,))[:] = 9
    x, y = registered(context, source, old)
    codes = []

    def wait():
        try:
            graph.execute(*tensors(x, y))
        except QnnError as problem:
            codes.append(problem.code)

    queue.lock(200).acquire()
    waiting, leaving = threading.Thread(target=wait), threading.Thread(target=context.mem_deregister, args=([y],))
    waiting.start()
    assert eventually(lambda: len(queue.accelerator.gate.waiting) == 1)
    leaving.start()
    assert eventually(lambda: len(queue.accelerator.gate.waiting) == 2)
    queue.lock().release()
    leaving.join(PATIENCE)
    registered(context, new)
    waiting.join(PATIENCE)
    # The execution ran before the memory was deregistered, or is refused; it never writes the new memory.
    assert codes in ([], [Code.MEM_INVALID_HANDLE])
    assert not new.array.any()
    context.free()


def test_a_context_and_a_backend_whose_accelerator_is_silent_can_be_freed(backend) -> None:
    context = backend.create_context()
    relu(context)
    pid = backend.get_property(htp.ACCELERATOR_PID)
    context.driver.queue.accelerator.deadlines = Deadlines(closing=0.3, control=0.3, grace=0.1)
    stop(pid)
    context.free()
    backend.free()
    assert not exists(pid)


def test_a_forked_child_is_refused_and_frees_nothing_of_its_parents(backend) -> None:
    context = backend.create_context()
    graph = relu(context)
    buffers = [rpcmem.alloc(25, 1, NBYTES) for _ in range(2)]
    given = tensors(*registered(context, *buffers))
    graph.execute(*given)
    with context.driver.queue.lock():
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(int(PATIENCE))
                with pytest.raises(QnnError) as refusal:
                    graph.execute(*given)
                assert refusal.value.code is Code.COMMON_SYSTEM_COMMUNICATION
                context.free()
                backend.free()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    buffers[0].view(np.float32, (WIDTH,))[:] = 3
    graph.execute(*given)
    assert buffers[1].view(np.float32, (WIDTH,)).tolist() == [3] * WIDTH
    context.free()
