"""Commands are enqueued by one call and waited for with an end; what goes wrong raises, and nothing hangs."""

import ctypes
import signal
import time

import numpy as np
import pytest
from support.interruption import Alarm, Interrupt, everywhere
from support.opencl_device import DEVICE, Gate, cl
from support.opencl_faults import failing, replace_function
from support.waiting import run_in_threads

from isthmus.backends.gpu.buffers import device_buffer
from isthmus.backends.gpu.runtime import commands, numbers, waiting
from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.gpu.runtime.event import ClEvent, event_handles
from isthmus.backends.gpu.runtime.execution import CHUNK, Commands, Outcome, RunLimits
from isthmus.backends.gpu.runtime.library import library
from isthmus.backends.gpu.runtime.program import Repository, build, kernel
from isthmus.errors import Code, QnnError
from isthmus.system.interrupts import run_pending

N = 256
SOURCE = """
kernel void add(global int *x, int by) { x[get_global_id(0)] += by; }
kernel void slow(global int *x, int by) {
    int v = x[get_global_id(0)];
    for (int k = 0; k < 4000000; k++) v = v * 1664525 + by;
    x[get_global_id(0)] = v;
}
"""


class Desk:
    """A context, a buffer and the kernels."""

    def __init__(self):
        self.context = ClContext.create(DEVICE)
        self.memory = device_buffer(self.context, 4 * N)
        self.program = build(self.context, SOURCE, (), Repository(), "test")
        self.array = np.zeros(N, np.int32)

    def launch(self, by=1, name="add"):
        made = kernel(self.program, name, "test")
        for index, value in enumerate((ctypes.c_void_p(self.memory.handle), ctypes.c_int32(by))):
            library().call("test", "clSetKernelArg", made.handle, index, ctypes.sizeof(value), ctypes.byref(value))
        return commands.launch(made, (N if name == "add" else 4,), (), f"{name} {by}")

    def write(self):
        return commands.write(self.memory.handle, 0, 4 * N, self.array.ctypes.data, "array")

    def read(self):
        return commands.read(self.memory.handle, 0, 4 * N, self.array.ctypes.data, "array")

    def of(self, *made, patience=60.0):
        return Commands(self.context, made, "the test", patience)


@pytest.fixture
def desk():
    made = Desk()
    yield made
    made.memory.close()
    made.context.close()


def test_commands_run_in_their_order_any_number_of_times(desk) -> None:
    made = desk.of(desk.write(), desk.launch(1), desk.launch(10), desk.read())
    for _ in range(3):
        made.run()
    assert (desk.array == 33).all()


def test_an_execution_that_is_enqueued_answers_the_event_of_its_end(desk) -> None:
    made = desk.of(desk.write(), desk.launch(5), desk.read())
    event = made.enqueue(())
    event.wait(60)
    assert event.done
    assert (desk.array == 5).all()


def test_one_execution_waits_for_the_event_of_another(desk) -> None:
    first = desk.of(desk.write(), desk.launch(2), desk.read())
    # Drivers may fetch what is written when that is enqueued, so the second goes on with what is there.
    second = desk.of(desk.launch(3), desk.read())
    done = first.enqueue(())
    second.enqueue([done.handle]).wait(60)
    assert (desk.array == 5).all()


def test_a_timed_execution_reports_each_launch(desk) -> None:
    made = desk.of(desk.write(), desk.launch(1), desk.launch(2), desk.read())
    outcome, times = made.timed()
    assert outcome == Outcome.COMPLETE
    assert [each.command.label for each in times.commands] == ["array", "add 1", "add 2", "array"]
    assert all(each.begin <= each.end for each in times.commands)
    assert (desk.array == 3).all()


def gate(desk, seconds=30.0):
    return Gate(cl.Context.from_int_ptr(desk.context.handle, retain=True), seconds)


def test_a_timed_execution_comes_after_all_that_is_in_the_queue(desk) -> None:
    desk.of(desk.write()).run()
    with gate(desk, 0.1) as gated:
        before = desk.of(desk.launch(3)).enqueue([gated.event.int_ptr])
        desk.of(desk.read()).timed()
        assert before.done
    assert (desk.array == 3).all()


def test_a_timed_execution_waits_for_the_end_of_a_mapping(desk) -> None:
    found, queue, handle = library(), desk.context.queue, desk.memory.handle
    at = waiting.map_buffer(desk.context, handle, 4 * N, "test")
    with gate(desk, 0.1) as gated:
        before = desk.of(desk.launch(3)).enqueue([gated.event.int_ptr])
        found.call("test", "clEnqueueUnmapMemObject", queue, handle, at, 0, None, None)
        desk.of(commands.refuse_mapped(handle, "tensor 'x'"), desk.launch(1)).timed()
        before.wait(60)


def ended(made, limits):
    """Return the outcome of a timed execution, and how many commands have times."""
    outcome, times = made.timed(limits)
    return outcome, len(times.commands)


def test_a_timed_execution_keeps_to_its_limits(desk) -> None:
    made = desk.of(desk.write(), *[desk.launch(1) for _ in range(100)], desk.read())
    outcome, times = made.timed(RunLimits(lambda: 60.0))
    assert (outcome, len(times.commands)) == (Outcome.COMPLETE, 102)
    assert (desk.array == 100).all()
    assert ended(made, RunLimits(lambda: 0.0)) == (Outcome.TIMED_OUT, 0)
    assert ended(made, RunLimits(lambda: None, lambda: True)) == (Outcome.STOPPED, 0)
    with gate(desk) as gated:
        before = desk.of(desk.launch(1)).enqueue([gated.event.int_ptr])
        deadline = time.monotonic() + 0.05
        assert ended(made, RunLimits(lambda: deadline - time.monotonic())) == (Outcome.TIMED_OUT, 0)
    before.wait(60)
    desk.array[:] = 0
    made.run()
    assert (desk.array == 100).all()


def test_an_execution_that_only_looks_at_memory_ends_too(desk) -> None:
    made = desk.of(*[commands.refuse_mapped(desk.memory.handle, "tensor 'x'") for _ in range(CHUNK)], desk.launch(1))
    assert made.run_within(RunLimits(lambda: 60.0)) == Outcome.COMPLETE
    assert [each.command.label for each in made.timed()[1].commands] == ["add 1"]


def test_a_command_that_the_queue_refuses_raises_and_the_next_execution_succeeds(desk) -> None:
    with failing("clEnqueueNDRangeKernel", numbers.OUT_OF_RESOURCES, after=1):
        made = desk.of(desk.write(), desk.launch(1), desk.launch(2), desk.read())
        with pytest.raises(QnnError, match=r"add 2 of the test: the queue answers OUT_OF_RESOURCES") as refused:
            made.run()
    assert refused.value.code is Code.COMMON_MEM_ALLOC
    assert desk.context.lost is None
    desk.of(desk.write(), desk.launch(7), desk.read()).run()
    assert (desk.array == 7).all()


def test_an_invalid_queue_is_reported_as_a_lost_device(desk) -> None:
    with failing("clEnqueueNDRangeKernel", numbers.INVALID_COMMAND_QUEUE):
        made = desk.of(desk.launch(1))
        with pytest.raises(QnnError, match="is lost") as refused:
            made.run()
    assert refused.value.code is Code.COMMON_SYSTEM_COMMUNICATION
    with pytest.raises(QnnError, match="is lost"):
        desk.context.check("anything")


def test_an_execution_that_fails_on_the_device_raises(desk) -> None:
    def failed(real, event, which, size, place, needed):
        answer = real(event, which, size, place, needed)
        if which == numbers.EVENT_COMMAND_EXECUTION_STATUS:
            ctypes.c_int32.from_address(place).value = numbers.OUT_OF_RESOURCES
        return answer

    with replace_function("clGetEventInfo", failed):
        made = desk.of(desk.launch(1))
        with pytest.raises(QnnError, match="an execution answers OUT_OF_RESOURCES") as refused:
            made.run()
    assert refused.value.code is Code.COMMON_SYSTEM_COMMUNICATION


@pytest.fixture
def silent_device():
    """Events that never happen, and of which nobody is told."""

    def running(real, event, which, size, place, needed):
        answer = real(event, which, size, place, needed)
        if which == numbers.EVENT_COMMAND_EXECUTION_STATUS:
            ctypes.c_int32.from_address(place).value = 1
        return answer

    with (
        replace_function("clGetEventInfo", running),
        replace_function("clSetEventCallback", lambda real, *arguments: 0),
    ):
        yield


def test_a_device_that_never_answers_is_lost_after_a_time(desk, silent_device) -> None:
    made = desk.of(desk.launch(1), patience=0.2)
    with pytest.raises(QnnError, match=r"an execution did not end within 0.2 s"):
        made.run()


def test_an_interrupt_gets_through_while_the_device_is_busy_and_finds_it_idle(desk) -> None:
    made = desk.of(*[desk.launch(1, "slow") for _ in range(8)])

    class Interrupted(Exception):
        pass

    def interrupt(number, frame):
        raise Interrupted

    def without_end():
        while True:
            made.run()

    made.run()
    before = signal.signal(signal.SIGALRM, interrupt)
    # Repeated, because Python drops what is raised in a destructor.
    suite_limit = signal.setitimer(signal.ITIMER_REAL, 0.01, 1.0)
    try:
        with pytest.raises(Interrupted):
            without_end()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *suite_limit)
    assert desk.context.lost is None
    desk.of(desk.write(), desk.launch(4), desk.read()).run()
    assert (desk.array == 4).all()


def test_an_execution_within_a_limit_ends_between_commands(desk) -> None:
    made = desk.of(desk.write(), *[desk.launch(1) for _ in range(100)], desk.read())
    assert made.run_within(RunLimits(lambda: 60.0)) == Outcome.COMPLETE
    assert (desk.array == 100).all()
    assert made.run_within(RunLimits(lambda: 0.0)) == Outcome.TIMED_OUT
    assert made.run_within(RunLimits(lambda: None, lambda: True)) == Outcome.STOPPED
    assert desk.context.lost is None
    desk.array[:] = 0
    made.run()
    assert (desk.array == 100).all()


def test_an_execution_that_takes_long_is_timed_out_and_the_device_still_works(desk) -> None:
    made = desk.of(desk.launch(1, "slow"), *[desk.launch(1) for _ in range(2 * CHUNK)])
    made.run()
    deadline = time.monotonic() + 0.001
    assert made.run_within(RunLimits(lambda: deadline - time.monotonic())) == Outcome.TIMED_OUT
    desk.of(desk.write(), desk.launch(4), desk.read()).run()
    assert (desk.array == 4).all()


def test_a_buffer_that_is_mapped_refuses_before_anything_is_enqueued(desk) -> None:
    found = library()
    at = waiting.map_buffer(desk.context, desk.memory.handle, 4 * N, "test")
    with failing("clEnqueueWriteBuffer", numbers.OUT_OF_RESOURCES) as calls:
        made = desk.of(commands.refuse_mapped(desk.memory.handle, "tensor 'x'"), desk.write())
        with pytest.raises(QnnError, match="tensor 'x' of the test: its OpenCL buffer is mapped") as refused:
            made.run()
        assert calls == [0]
    assert refused.value.code is Code.COMMON_OPERATION_NOT_PERMITTED
    found.call("test", "clEnqueueUnmapMemObject", desk.context.queue, desk.memory.handle, at, 0, None, None)
    desk.of(commands.refuse_mapped(desk.memory.handle, "tensor 'x'"), desk.launch(1)).run()


def test_events_of_another_context_are_refused(desk) -> None:
    other = Desk()
    event = other.of(other.launch(1)).enqueue(())
    with pytest.raises(QnnError, match="belongs to another OpenCL context") as refused:
        event_handles([event], desk.context, "graph 'g'")
    assert refused.value.code is Code.GRAPH_INVALID_ARGUMENT
    event.wait(60)
    for bad in (5, ["no event"], [0], [None]):
        with pytest.raises(QnnError):
            event_handles(bad, desk.context, "graph 'g'")


def test_an_event_is_waited_for_no_longer_than_its_limit(desk) -> None:
    with gate(desk) as gated:
        event = desk.of(desk.launch(1)).enqueue([gated.event.int_ptr])
        assert not event.done
        for seconds in (0, 0.01, 0.12):
            with pytest.raises(QnnError, match="did not end within") as refused:
                event.wait(seconds)
            assert refused.value.code is Code.GRAPH_TIMED_OUT
    event.wait(60)
    assert event.done


@pytest.mark.parametrize("seconds", [float("nan"), -1, -float("inf"), "x", "1", None, [], 1j, 10**400])
def test_what_is_no_time_to_wait_is_refused(desk, seconds) -> None:
    event = desk.of(desk.launch(1)).enqueue(())
    with pytest.raises(QnnError, match="is not a valid time to wait") as refused:
        event.wait(seconds)
    assert refused.value.code is Code.GRAPH_INVALID_ARGUMENT
    event.wait(float("inf"))
    event.wait(np.float32(60))


def test_an_event_that_is_closed_says_so(desk) -> None:
    event = desk.of(desk.launch(1)).enqueue(())
    event.wait()
    event.close()
    for use in (
        event.wait,
        lambda: event.done,
        lambda: event.cl,
        lambda: event_handles([event], desk.context, "graph 'g'"),
    ):
        with pytest.raises(QnnError, match="it is closed"):
            use()


def test_many_threads_have_executions_of_their_own_in_one_queue(desk) -> None:
    problems = []

    def work():
        try:
            made = desk.of(desk.launch(1))
            for _ in range(50):
                made.run()
        except BaseException as problem:
            problems.append(problem)

    desk.of(desk.write()).run()
    run_in_threads(lambda _: work(), range(4))
    assert not problems
    desk.of(desk.read()).run()
    assert (desk.array == 200).all()


@pytest.fixture
def bells(monkeypatch):
    """An empty store of bells, the words by which drivers wake a block that waits."""
    made = waiting.Bells()
    monkeypatch.setattr(waiting, "_bells", made)
    return made


def armed(block):
    """The bell of a block as if a driver had been asked to ring it."""
    block.words[waiting.CommandWord.ARMED] = 1
    return block.words[waiting.CommandWord.BELL]


def test_a_bell_is_used_again_only_after_the_driver_has_written_it(desk, bells) -> None:
    block = waiting.CommandBlock(desk.context.queue, on_host=True)
    first = armed(block)
    block.fresh_bell()
    second = armed(block)
    del block
    others = [waiting.CommandBlock(desk.context.queue, on_host=True) for _ in range(2 * waiting._SLAB)]
    assert not {first, second} & {each.words[waiting.CommandWord.BELL] for each in others}
    for late in (second, first):
        ctypes.c_int64.from_address(late).value = 1
    after = [waiting.CommandBlock(desk.context.queue, on_host=True) for _ in range(waiting._SLAB)]
    assert {first, second} <= {each.words[waiting.CommandWord.BELL] for each in after}
    assert ctypes.c_int64.from_address(first).value == 0


@pytest.mark.parametrize("by", [Interrupt, Alarm])
def test_no_bell_that_a_driver_may_still_write_is_lost_by_an_interrupt(desk, bells, by) -> None:
    asked = set()

    def action():
        block = waiting.CommandBlock(desk.context.queue, on_host=True)
        asked.add(armed(block))
        block.fresh_bell()
        asked.add(armed(block))

    for where in everywhere(action, by=by, outside=("ctypes", "enum.py")):
        run_pending()
        free, awaited = list(bells._free), list(bells._awaited)
        assert len(free) + len(awaited) == len({*free, *awaited}) == waiting._SLAB, where
        assert not set(free) & asked, where
        for address in awaited:
            ctypes.c_int64.from_address(address).value = 1
        asked.clear()


class Driver:
    """The functions of a driver that a block waits by: an event that is complete after so many questions."""

    def __init__(self, done, refuses=0):
        self.questions = self.asked = self.released = 0
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 10)

        def tell(event, name, size, place, *unused):
            self.questions += 1
            ctypes.c_int32.from_address(place).value = numbers.COMPLETE if done(self) else 2
            return 0

        def call_back(*operands):
            self.asked += 1
            return refuses

        def release(*operands):
            self.released += 1
            return 0

        word = waiting.CommandWord
        self.functions = {word.EVENT_INFO: kind(tell), word.CALL_BACK: kind(call_back), word.RELEASE: kind(release)}

    def block(self, desk, on_host, is_single=False):
        """A block with an event of this driver."""
        block = waiting.CommandBlock(desk.context.queue, on_host, is_single)
        for word, function in self.functions.items():
            block.words[word] = ctypes.cast(function, ctypes.c_void_p).value
        block.words[waiting.CommandWord.EVENT] = 1
        return block


def test_a_driver_that_calls_back_late_is_polled_meanwhile(desk, monkeypatch) -> None:
    monkeypatch.setattr(waiting, "PIECE", 60.0)
    since: list[int] = []
    driver = Driver(lambda driver: bool(driver.asked) and (since.append(0) or len(since) > 3))
    block = driver.block(desk, on_host=False)
    assert block.wait(60.0), "it has looked more often than at both ends of the time it was given"
    assert not block.words[waiting.CommandWord.EVENT]
    assert (driver.asked, driver.released) == (1, 1)
    assert block.words[waiting.CommandWord.ARMED] == 1, "the driver will write that word some time"
    block.words[waiting.CommandWord.ARMED] = 0


@pytest.mark.parametrize(("on_host", "is_single"), [(False, False), (False, True), (True, True)])
def test_what_ends_soon_is_waited_for_without_sleep(desk, monkeypatch, on_host, is_single) -> None:
    monkeypatch.setattr(waiting, "SPIN", 60.0)
    monkeypatch.setattr(waiting, "SPIN_ON_HOST", 60.0)
    driver = Driver(lambda driver: driver.questions > 30)
    block = driver.block(desk, on_host, is_single)
    assert block.wait(60.0)
    assert (driver.questions, driver.asked, driver.released) == (31, 0, 1)
    assert block.words[waiting.CommandWord.ARMED] == 0


def test_a_driver_that_computes_on_the_host_is_queried_once_and_not_polled(desk) -> None:
    driver = Driver(lambda driver: driver.questions > 1)
    block = driver.block(desk, on_host=True)
    assert not block.wait(0.0)
    assert (driver.questions, driver.asked) == (1, 1)
    assert block.wait(0.0)
    assert (driver.questions, driver.asked) == (2, 1)
    block.words[waiting.CommandWord.ARMED] = 0


def test_a_driver_that_refuses_callbacks_ends_the_wait_with_its_status(desk) -> None:
    driver = Driver(lambda driver: False, refuses=-5)
    block = driver.block(desk, on_host=True)
    assert block.wait(60.0)
    assert (block.words[waiting.CommandWord.STATUS], driver.asked, driver.released) == (-5, 1, 0)
    block.words[waiting.CommandWord.EVENT] = block.words[waiting.CommandWord.ARMED] = 0


def test_an_event_may_be_forgotten_before_it_happens(desk) -> None:
    event = desk.of(desk.launch(1, "slow")).enqueue(())
    assert isinstance(event, ClEvent)
    event.close()
    event.close()
    desk.of(desk.launch(1)).run()
