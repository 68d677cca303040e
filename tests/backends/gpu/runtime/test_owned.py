"""References to objects of OpenCL: owned from the first moment, given back once, wherever an interrupt comes."""

import ctypes
import gc
import threading
import time

import pytest
from support.interruption import Alarm, Interrupt, account, everywhere, left, wait_until_restored
from support.opencl_device import DEVICE, cl
from support.opencl_faults import failing
from support.waiting import interrupted_when, run_in_threads

from isthmus.backends.gpu.runtime import event as events
from isthmus.backends.gpu.runtime import numbers
from isthmus.backends.gpu.runtime import program as programs
from isthmus.backends.gpu.runtime.cells import give_back
from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.gpu.runtime.handles import handle_of, references
from isthmus.backends.gpu.runtime.library import library
from isthmus.backends.gpu.runtime.owned import Owned, kinds_of
from isthmus.backends.gpu.runtime.program import Repository, build, build_each, kernel
from isthmus.errors import QnnError
from isthmus.system.interrupts import run_pending

REFERENCE_COUNT = 0x1080
SOURCE = "kernel void add(global int *x, int by) { x[get_global_id(0)] += by; }"
OUTSIDE = ("ctypes", "hashlib", "pathlib", "json", "enum.py", "dataclasses", "numpy", "folder.py", "posixpath")
"""What only computes, or is interrupted in tests of its own."""


@pytest.fixture(scope="module")
def context():
    made = ClContext.create(DEVICE)
    yield made
    made.close()


def held(context):
    """Return how many objects of a context there are, where its driver counts them; elsewhere always the same."""
    run_pending()
    return library().number("test", "clGetContextInfo", context.handle, REFERENCE_COUNT, kind=ctypes.c_uint32)


def check_every_interrupt(action, count, most=40):
    """See that an action leaves nothing of OpenCL behind, no thread and no descriptor, wherever it is interrupted."""
    action()
    gc.collect()
    before, tasks = count(), account()
    for by in (Interrupt, Alarm):
        for where in everywhere(action, by=by, outside=OUTSIDE, most=most):
            assert wait_until_restored(count, before), where
            assert not left(tasks), where


def made_buffer(context):
    return Owned.make("test", "clCreateBuffer", context.handle, numbers.MEM_READ_WRITE, 64, None)


def test_created_objects_are_never_leaked_and_never_released_twice(context) -> None:
    def action():
        kept = made_buffer(context)
        forgotten = made_buffer(context)
        assert kept.handle
        del forgotten
        kept.close()

    check_every_interrupt(action, lambda: held(context))


def test_an_interrupt_loses_what_plain_calls_of_opencl_make() -> None:
    """Shows that the test above can fail. What is lost stays in a context that nobody else has."""
    context = ClContext.create(DEVICE)
    create, release = (library().functions[name] for name in ("clCreateBuffer", "clReleaseMemObject"))

    def action():
        made = create(context.handle, numbers.MEM_READ_WRITE, 64, None, ctypes.byref(ctypes.c_int32()))
        release(made)

    before, one = held(context), made_buffer(context)
    if held(context) == before:
        pytest.skip("the driver does not count the objects of a context")
    one.close()
    assert [where for where in everywhere(action, outside=OUTSIDE) if held(context) > before]
    context.close()


def test_a_clients_object_is_retained_and_released_as_often(context) -> None:
    buffer = made_buffer(context)

    def action():
        kept = Owned.keep("test", "MemoryObject", buffer.handle)
        del kept
        Owned.keep("test", "MemoryObject", buffer.handle).close()

    check_every_interrupt(action, lambda: (held(context), references(buffer.handle)))


def test_contexts_with_their_queues_may_be_interrupted_anywhere(context) -> None:
    # Counted by a context of the client's, of which another has a reference.
    given = cl.Context.from_int_ptr(context.handle, retain=True)

    def action():
        made = ClContext.of_client(given, None)
        made.profiling_queue()
        made.close()
        ClContext.of_client(None, cl.CommandQueue.from_int_ptr(context.queue, retain=True))

    check_every_interrupt(action, lambda: held(context))


def test_building_programs_and_kernels_may_be_interrupted_anywhere(context) -> None:
    def action():
        programs = build_each(context, [(SOURCE, ()), (SOURCE, ("-DA=1",)), (SOURCE, ("-DA=2",))], Repository(), "test")
        made = kernel(programs[1], "add", "test")
        del programs
        made.close()

    check_every_interrupt(action, lambda: held(context), most=10)


def test_threads_that_release_the_same_reference_release_it_once() -> None:
    released, cell = [], (ctypes.c_void_p * 1)()
    begin = threading.Barrier(4)

    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
    def release(handle):
        time.sleep(0.001)  # as a driver does that lets other threads run
        released.append(handle)
        return 0

    def work():
        for _ in range(20):
            begin.wait(60)
            cell[0] = 7
            begin.wait(60)
            give_back(cell, 0, release)
            begin.wait(60)

    run_in_threads(lambda _: work(), range(4))
    assert released == [7] * 20


def test_a_handle_that_cannot_be_created_or_retained_raises(context) -> None:
    with failing("clCreateBuffer", numbers.MEM_OBJECT_ALLOCATION_FAILURE), pytest.raises(QnnError, match="FAILURE"):
        made_buffer(context)
    buffer = made_buffer(context)
    with failing("clRetainMemObject", numbers.OUT_OF_RESOURCES), pytest.raises(QnnError, match="does not take it"):
        Owned.keep("test", "MemoryObject", buffer.handle)
    assert references(buffer.handle) == 1


def test_a_failure_of_one_of_several_parallel_builds_raises(context) -> None:
    sources = [(SOURCE, ()), ("no program", ()), (SOURCE, ("-DA=3",))]
    with pytest.raises(QnnError, match="do not build"):
        build_each(context, sources, Repository(), "test")
    assert not builders()
    assert len(build_each(context, sources[::2] * 5, Repository(), "test")) == 10
    assert build_each(context, [], Repository(), "test") == []


class Builds:
    """Builds that take a while, and threads that are started only to begin with."""

    def __init__(self, monkeypatch, started, problem):
        self.done, self._started, self._problem = [], started, problem
        monkeypatch.setattr(programs, "build", self._build)
        monkeypatch.setattr(programs, "start", self._start)

    def _build(self, context, source, options, repository, what):
        time.sleep(0.1)
        self.done.append(source)
        return source

    def _start(self, thread):
        if not self._started:
            raise self._problem
        self._started -= 1
        thread.start()


def builders():
    return [thread for thread in threading.enumerate() if thread.name == "isthmus-build"]


def test_an_interrupt_while_programs_are_built_waits_for_what_is_under_way_alone(monkeypatch) -> None:
    builds = Builds(monkeypatch, 1, RuntimeError("can't start new thread"))
    with interrupted_when(lambda: builds.done), pytest.raises(KeyboardInterrupt):
        build_each(None, [(str(number), ()) for number in range(200)], None, "test")
    assert not builders()
    assert len(builds.done) < 200


@pytest.mark.parametrize("started", [0, 1])
def test_programs_are_built_although_no_thread_can_be_started(monkeypatch, started) -> None:
    builds = Builds(monkeypatch, started, RuntimeError("can't start new thread"))
    expected = [str(number) for number in range(5)]
    assert build_each(None, [(source, ()) for source in expected], None, "test") == expected
    assert sorted(builds.done) == expected
    assert not builders()


# -- kinds -------------------------------------------------------------------------------------------------------------


def numbers_of(context):
    program = build(context, SOURCE, (), Repository(), "test")
    return {
        "Context": context._context, "CommandQueue": context._queue, "Program": program,
        "Kernel": kernel(program, "add", "test"), "MemoryObject": made_buffer(context),
    }  # fmt: skip


@pytest.mark.parametrize("expected", ["MemoryObject", "Context", "CommandQueue", "Event"])
def test_a_number_that_is_known_to_be_of_another_kind_is_refused(context, expected) -> None:
    owned = numbers_of(context)
    for kind, one in owned.items():
        if kind == expected:
            assert handle_of(one.handle, expected, "test", None) == one.handle
        else:
            with pytest.raises(QnnError, match=f"is an object of OpenCL, but no {expected}"):
                handle_of(one.handle, expected, "test", 8000)
    for number in (context.device.handle, context.device.platform):
        with pytest.raises(QnnError, match=f"but no {expected}"):
            handle_of(number, expected, "test", 8000)


def test_an_event_is_on_record_while_it_exists(context) -> None:
    made = events.ClEvent(context, "test")
    library().call("test", "clEnqueueMarkerWithWaitList", context.queue, 0, None, made.address)
    made.note()
    number = made.handle
    assert kinds_of(number) == {"Event"}
    made.wait(60)
    made.close()
    assert kinds_of(number) == set()


class Hostile:
    """Something with a handle that cannot be asked for."""

    @property
    def int_ptr(self):
        raise ZeroDivisionError


@pytest.mark.parametrize("given", [None, "x", 1.5, [], True, -1, b"x", Hostile()])
def test_what_is_no_handle_is_refused(given) -> None:
    with pytest.raises(QnnError, match="neither an object of OpenCL nor its handle"):
        handle_of(given, "MemoryObject", "test", 8000)
