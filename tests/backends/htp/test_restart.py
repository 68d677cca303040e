"""Subsystem restart: the accelerator dies at any step, every call answers 1007, nothing is lost, and recovery works."""

import gc
import operator
import os
import signal
import threading
import time
import weakref

import numpy as np
import pytest
from support.processes import stop
from support.suites import only
from support.waiting import PATIENCE, eventually, main_in

from backends.htp.harness import DIMS, Doubler, alloc, counter, doubler, ion, kill
from isthmus import Code, QnnError, qnn
from isthmus.backends.accelerator.connection import Request
from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.seam.deadlines import Deadlines
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, htp

GONE = Code.COMMON_SYSTEM_COMMUNICATION


def wait_for_death(context):
    while context.driver.queue.accelerator.alive:
        time.sleep(0.001)


def test_every_call_that_needs_a_dead_accelerator_answers_1007(backend) -> None:
    context = backend.create_context()
    doubling = Doubler(context)
    state = counter(context)
    other = backend.create_context()
    late = other.create_graph("late")
    kill(backend)
    wait_for_death(context)
    spare = alloc()
    x = [ClientTensor("x", np.zeros(DIMS, np.float32))]
    y = [ClientTensor("y", np.zeros(DIMS, np.float32))]
    for call in (
        doubling.run,
        lambda: state.execute(x, y),
        lambda: state.execute_async(x, y).result(PATIENCE),
        state.reset,
        late.finalize,
        context.get_binary,
        lambda: context.create_graph("another"),
        lambda: doubler(context, "composed"),
        lambda: context.mem_register([ion(spare)]),
    ):
        begin = time.perf_counter()
        with pytest.raises(QnnError) as refusal:
            call()
        assert refusal.value.code is GONE, call
        assert time.perf_counter() - begin < PATIENCE, "not after the ten minutes that an execution may take"
    context.free()
    other.free()
    spare.close()


def test_buffers_keep_their_contents_and_recovery_is_free_create_register(backend) -> None:
    device = backend.create_device()
    context = backend.create_context(device=device)
    doubling = Doubler(context)
    doubling.x[:] = np.arange(16)
    doubling.run()
    result = doubling.y.copy()
    os.kill(context.driver.queue.accelerator.pid, signal.SIGKILL)
    wait_for_death(context)
    with pytest.raises(QnnError):
        doubling.run()
    assert np.array_equal(doubling.x[0], np.arange(16))
    assert np.array_equal(doubling.y, result)
    context.mem_deregister(doubling.handles)
    context.free()
    assert device.alive
    fresh = backend.create_context(device=device)
    doubling.context = fresh
    doubling.graph = doubler(fresh)
    doubling.register()
    doubling.y[:] = 0
    doubling.run()
    assert np.array_equal(doubling.y, result)
    fresh.free()
    device.free()


def test_freeing_a_context_of_a_dead_accelerator_releases_its_buffers(backend) -> None:
    context = backend.create_context()
    buffer = alloc()
    context.mem_register([ion(buffer)])
    kill(backend)
    wait_for_death(context)
    with pytest.raises(QnnError):
        rpcmem.free(buffer)
    context.free()
    rpcmem.free(buffer)


@pytest.mark.parametrize("freed", [True, False])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_error_that_reports_a_death_keeps_no_binding_alive(backend, freed) -> None:
    def meet_it():
        context = backend.create_context()
        graph = counter(context)
        given = [ClientTensor("x", np.ones(DIMS, np.float32))], [ClientTensor("y", np.zeros(DIMS, np.float32))]
        binding = graph.bind(*given)
        stop(backend.get_property(htp.ACCELERATOR_PID))
        # It dies while it is asked, not before.
        dying = threading.Thread(target=lambda: eventually(lambda: main_in(Request.wait)) and kill(backend))
        dying.start()
        with pytest.raises(QnnError) as refusal:
            graph.reset()
        dying.join()
        assert refusal.value.code is GONE
        if freed:
            context.free()
        return weakref.ref(binding)

    met = meet_it()
    for handle in list(backend._owned):
        handle.free()
    assert eventually(lambda: gc.collect() >= 0 and met() is None)


def test_pending_asynchronous_executions_all_answer(backend) -> None:
    context = qnn.Context(backend, queue_depth=20)
    graph = doubler(context)
    x = [ClientTensor("x", np.ones(DIMS, np.float32))]
    y = [ClientTensor("y", np.zeros(DIMS, np.float32))]
    pid = backend.get_property(htp.ACCELERATOR_PID)
    stop(pid)
    pending = [graph.execute_async(x, y) for _ in range(20)]
    os.kill(pid, signal.SIGKILL)
    for execution in pending:
        problem = execution.exception(PATIENCE)
        assert problem is None or problem.code is GONE
    assert pending[-1].exception().code is GONE
    context.free()


def test_each_thread_recovers_by_itself(backend) -> None:
    """Eight threads run while the accelerator is killed again and again; each one frees, creates and goes on."""
    wrong, recoveries, runs, stop = [], [], [0] * 8, threading.Event()

    def life(seed):
        value = np.float32(seed + 1)
        x, y = np.full(DIMS, value), np.zeros(DIMS, np.float32)
        while not stop.is_set():
            context = None
            try:
                context = backend.create_context()
                graph = doubler(context)
                while not stop.is_set():
                    y[:] = 0
                    graph.execute([ClientTensor("x", x)], [ClientTensor("y", y)])
                    runs[seed] += 1
                    if not (y == 2 * value).all():
                        wrong.append(seed)
            except QnnError as problem:
                if problem.code is not GONE:
                    wrong.append(problem)
                recoveries.append(seed)
            finally:
                if context is not None:
                    context.free()

    threads = [threading.Thread(target=life, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()

    def all_run_again():
        # A run that ended before the kill may be counted after it, so each thread must run twice.
        enough = [count + 2 for count in runs]
        return eventually(lambda: wrong or all(map(operator.ge, runs, enough)))

    try:
        for _ in range(3):
            assert all_run_again()
            os.kill(backend.get_property(htp.ACCELERATOR_PID), signal.SIGKILL)
        assert all_run_again()
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "nothing may hang"
    assert not wrong
    assert set(recoveries) == set(range(8))


# -- a program of many steps, the accelerator killed before each of them -----------------------------------------------


class Program:
    """Every kind of call, one step after the other; `kill_before` says where the accelerator dies."""

    def __init__(self, backend, kill_before):
        self.backend, self.kill_before, self.step = backend, kill_before, 0
        self.buffers = [alloc() for _ in range(4)]
        self.arrays = [buffer.view(np.float32, DIMS) for buffer in self.buffers]
        self.codes = []

    def do(self, call):
        if self.step == self.kill_before and (pid := self.backend.get_property(htp.ACCELERATOR_PID)) is not None:
            os.kill(pid, signal.SIGKILL)
        self.step += 1
        return call()

    def run(self):
        """The results, or the first error."""
        context = self.do(self.backend.create_context)
        try:
            self.use(context)
        finally:
            self.do(context.free)

    def use(self, context):
        x, y, out, extra = self.arrays
        x[:] = 3
        double = self.do(lambda: doubler(context, "double"))
        count = self.do(lambda: counter(context, "count"))
        handles = self.do(lambda: context.mem_register([ion(self.buffers[0]), ion(self.buffers[1])]))
        shared = [ClientTensor("x", mem_handle=handles[0])], [ClientTensor("y", mem_handle=handles[1])]
        raw = [ClientTensor("x", x)], [ClientTensor("y", out)]
        for round_ in range(3):
            y[:], out[:] = 0, 0
            self.do(lambda: double.execute(*shared))
            assert (y == 6).all()
            self.do(lambda: double.execute(*raw))
            assert (out == 6).all()
            self.do(lambda: count.execute(*raw))
            assert (out == 4 + 3 * round_).all()
            self.do(lambda: double.execute_async(*shared).result(PATIENCE))
            self.do(lambda: double.execute([shared[0][0]], raw[1]))
        self.do(count.reset)
        self.do(lambda: count.execute(*raw))
        assert (out == 4).all()
        content = self.do(context.get_binary)
        other = self.do(lambda: self.backend.create_context_from_binary(content))
        try:
            again = self.do(lambda: other.retrieve("double"))
            for _ in range(3):
                [handle] = self.do(lambda: other.mem_register([ion(self.buffers[3])]))
                self.do(lambda: again.execute(raw[0], [ClientTensor("y", mem_handle=handle)]))  # noqa: B023
                assert (extra == 6).all()
                self.do(lambda: other.mem_deregister([handle]))  # noqa: B023
        finally:
            self.do(other.free)
        self.do(lambda: context.mem_deregister(handles))
        handles = self.do(lambda: context.mem_register([ion(self.buffers[1]), ion(self.buffers[0])]))
        for _ in range(15):
            self.do(lambda: double.execute([ClientTensor("x", mem_handle=handles[1])],
                                           [ClientTensor("y", mem_handle=handles[0])]))  # fmt: skip
            assert (y == 6).all()

    def close(self):
        for buffer in self.buffers:
            buffer.close()


def steps_of_the_program(backend):
    whole = Program(backend, kill_before=-1)
    whole.run()
    whole.close()
    return whole.step


def check_killed_at(backend, step):
    """The accelerator dies before a step: 1007 or no harm done, and then the whole program works."""
    broken = Program(backend, kill_before=step)
    code = GONE
    try:
        broken.run()
    except QnnError as problem:
        code = problem.code
    assert code is GONE, f"step {step}"
    broken.close()
    after = Program(backend, kill_before=-1)
    after.run()
    after.close()


def test_the_program_has_at_least_fifty_steps(backend) -> None:
    assert steps_of_the_program(backend) >= 50


PARTS = 12
"""Into how many tests the steps are divided."""


@pytest.mark.parametrize("part", only((0,), range(PARTS)))
def test_a_program_recovers_from_an_accelerator_killed_at_any_step(backend, part) -> None:
    for step in range(part, steps_of_the_program(backend), PARTS):
        check_killed_at(backend, step)


@pytest.mark.parametrize("frees", ["context", "backend"])
def test_a_free_ends_soon_though_an_asynchronous_execution_does_not(frees) -> None:
    with qnn.Backend("htp") as backend:
        context = backend.create_context()
        graph = doubler(context)
        accelerator = context.driver.queue.accelerator
        accelerator.deadlines = Deadlines(closing=0.2, grace=0.1)
        x = [ClientTensor("x", np.ones(DIMS, np.float32))]
        y = [ClientTensor("y", np.zeros(DIMS, np.float32))]
        stop(accelerator.pid)
        running, *waiting = [graph.execute_async(x, y) for _ in range(3)]
        assert eventually(running.running)
        begin = time.monotonic()
        (context if frees == "context" else backend).free()
        assert time.monotonic() - begin < PATIENCE, "an execution itself may take ten minutes"
        assert running.exception(PATIENCE).code is GONE
        assert all(execution.cancelled() for execution in waiting)
        assert not accelerator.alive


@pytest.mark.parametrize("name", ["htp", "lpai"])
def test_an_accelerator_that_has_died_unnoticed_is_replaced(name, monkeypatch) -> None:
    config = {"lpai_backend": {"target_env": "arm"}} if name == "lpai" else None
    with qnn.Backend(name, config) as backend, Accelerator() as dead:
        dead.kill("test")
        # As in the moment after its death, before anybody has noticed it.
        dead.connection.alive = True
        source = backend.driver.device
        fresh, answers = source.accelerator, [dead]
        monkeypatch.setattr(source, "accelerator", lambda: answers.pop() if answers else fresh())
        given = doubler(backend.create_context()) if name == "htp" else None
        if given is None:
            graph = backend.create_context().create_graph("double")
            x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, (1, 4))
            y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, (1, 4))
            graph.add_node("add", "ElementWiseAdd", [x, x], [y])
            graph.allocate().binding.execute()
        assert not answers
        dead.connection.alive = False
