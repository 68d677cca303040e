"""A call that is interrupted, at any place, leaves nothing behind, and everything else as usable as before."""

import gc
import threading

import numpy as np
import pytest
from support.interruption import Alarm, Interrupt, account, check_every_interrupt, everywhere, left
from support.suites import only
from support.waiting import PATIENCE

from isthmus import Code, QnnError, memory, qnn
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, DataType, DescriptorType, MemDescriptor, TensorType, htp, lpai
from isthmus.system.interrupts import run_pending

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
ARM = {"lpai_backend": {"target_env": "arm"}}
KINDS = {"cpu": ("cpu", None), "htp": ("htp", None), "lpai": ("lpai", None), "lpai arm": ("lpai", ARM)}
PURE = (
    "json", "serialization", "words", "dataclasses", "<string>", "enum.py", "functools", "numpy", "inspect.py",
    "/graph/", "/prepare/", "/planning/", "lower", "emitter", "verification", "processor", "target.py", "ctypes",
)  # fmt: skip
"""What only computes: it has nothing to lose, and many places."""
DIMS = (1, 16)


def doubler(context, name):
    graph = context.create_graph(name)
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, DIMS)
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, DIMS)
    graph.add_node("add", "ElementWiseAdd", [x, x], [y])
    return graph


@pytest.fixture(scope="module", params=only(("cpu",), KINDS))
def backend(request):
    with qnn.Backend(*KINDS[request.param]) as opened:
        yield opened


@pytest.fixture(scope="module")
def given(backend):
    """A graph that is there all the time."""
    return doubler(backend.create_context(), "keeper").allocate()


def accelerator(backend):
    device = getattr(backend.driver, "device", None)
    return None if device is None else device._accelerator


@pytest.fixture
def as_before(backend, given):
    """A check that the accelerator holds what it held before, and that another thread can execute."""
    running = accelerator(backend)

    def held():
        run_pending()
        # A graph ends bindings that nobody has any more when it is next used.
        _ = given.binding.graph.stats
        return None if running is None else running.call("counts")

    owned, before = list(backend._owned), held()

    def check(where):
        # What was made in full, and got lost on the way to whoever asked for it, ends with its backend.
        for handle in set(backend._owned) - set(owned):
            handle.free()
        if held() != before:
            # A graph and its bindings know each other.
            gc.collect()
        assert held() == before, where
        results = []
        given.inputs["x"][...], given.outputs["y"][...] = 3, 0

        def execute():
            given.binding.execute()
            results.append(given.outputs["y"].copy())

        thread = threading.Thread(target=execute, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert results, f"another thread cannot execute: {where}"
        assert (results[0] == 6).all()

    return check


def surely(end):
    """End something, and once more if an interrupt came in between, which is then raised."""
    try:
        end()
    except (Interrupt, Alarm):
        end()
        raise


def test_the_life_of_a_graph_may_be_interrupted_anywhere(backend, as_before) -> None:
    def action():
        context = backend.create_context()
        try:
            made = doubler(context, "graph").allocate()
            made.binding.execute()
        finally:
            surely(context.free)
            surely(lambda: made.close() if "made" in locals() else None)

    unharmed_but_owned(action, as_before, most=60)


def unharmed_but_owned(action, check, most):
    """As `unharmed`, but `check` first frees what the backend still owns of the action."""
    action()
    before = account()
    for where in everywhere(action, outside=PURE, most=most):
        check(where)
        more = left(before)
        assert not more, f"{more}: interrupted at {where}"


def test_an_interrupted_creation_leaves_no_graph_in_the_context(backend, as_before) -> None:
    context = backend.create_context()
    doubler(context, "whole").allocate()
    names = iter(range(10**6))

    def action():
        name = f"graph {next(names)}"
        before = list(context.graphs)
        try:
            context.create_graph(name)
        except (Interrupt, Alarm):
            assert list(context.graphs) in (before, [*before, name])
            assert len(context.driver._graphs) == len(context.graphs), "the driver has as many"
            for graph in list(context.graphs.values()):
                if not graph.finalized:
                    context.driver.drop_graph(graph.driver.graph)
                    context._disown(graph)
            assert context.get_binary()
            raise
        graph = context.graphs[name]
        context.driver.drop_graph(graph.driver.graph)
        context._disown(graph)

    check_every_interrupt(action, outside=(*PURE, __file__))
    context.free()


def test_an_execution_on_new_memory_may_be_interrupted_anywhere(backend, given, request) -> None:
    graph = given.binding.graph
    x, y = (memory.host(128, 128) for _ in range(2))
    tensors = [ClientTensor("x", x)], [ClientTensor("y", y)]
    x.view(np.float32, DIMS)[...] = 2

    def action():
        graph.execute(*tensors)
        with graph.bind(*tensors) as binding:
            binding.execute()
            assert binding.stats.executions <= 1

    # The graph remembers the memory of its executions.
    action()
    check_every_interrupt(action, request.getfixturevalue("as_before"), outside=PURE, most=80)
    graph.execute(*tensors)
    assert (y.view(np.float32, DIMS) == 4).all()
    x.close()
    y.close()


def test_an_execution_that_is_interrupted_leaves_others_their_memory(backend, given) -> None:
    graph = given.binding.graph
    x, y = (memory.host(128, 128) for _ in range(2))
    with graph.bind([ClientTensor("x", x)], [ClientTensor("y", y)]) as binding:
        x.view(np.float32, DIMS)[...] = 2
        count = 0

        def action():
            given.binding.execute()
            binding.execute()

        for where in everywhere(action, outside=PURE, most=150):
            given.inputs["x"][...], given.outputs["y"][...] = 3, 0
            y.view(np.float32, DIMS)[...] = -1
            given.binding.execute()
            assert (given.outputs["y"] == 6).all(), where
            assert (y.view(np.float32, DIMS) == -1).all(), f"written by another binding: interrupted at {where}"
            count += 1
        assert count > 5
    x.close()
    y.close()


def test_a_replacement_of_scratch_that_is_interrupted_leaves_one_of_both_in_use(backend) -> None:
    if backend.name != "lpai":
        pytest.skip("only LPAI has scratch that is the client's")
    graph = _with_scratch(backend.create_context())
    made, kept = graph.allocate(), graph.get_property(lpai.SCRATCH_MEM)
    size = graph.get_property(lpai.SCRATCH_MEM_SIZE)
    other = rpcmem.alloc(rpcmem.HEAP_ID_SYSTEM, 0, size)
    x, y = (memory.host(128, 128) for _ in range(2))
    binding = graph.bind([ClientTensor("x", x)], [ClientTensor("y", y)])
    x.view(np.float32, DIMS)[...] = 3

    def action():
        graph.set_config(lpai.SCRATCH_MEM, lpai.Mem(lpai.MemType.DDR, size, other))
        graph.set_config(lpai.SCRATCH_MEM, kept)

    count = 0
    for where in everywhere(action, outside=PURE, most=150):
        contents = {"kept": kept.addr, "other": other}
        used = "other" if graph.get_property(lpai.SCRATCH_MEM).addr is other else "kept"
        views = {name: np.frombuffer(buffer, np.uint8)[:size] for name, buffer in contents.items()}
        for view in views.values():
            view[...] = 0xA5
        y.view(np.float32, DIMS)[...] = 0
        binding.execute()
        assert (y.view(np.float32, DIMS) == 72).all(), where
        for name, view in views.items():
            assert (view == 0xA5).all() == (name != used), f"{name} beside {used}: interrupted at {where}"
        graph.set_config(lpai.SCRATCH_MEM, kept)
        count += 1
    assert count > 5
    graph.context.free()
    for buffer in (x, y, made):
        buffer.close()
    rpcmem.free(other)


def _with_scratch(context):
    """A graph that has something in scratch."""
    graph = context.create_graph("scratch")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, DIMS)
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, DIMS)
    two, four = (graph.create_tensor(name, TensorType.NATIVE, DataType.FLOAT_32, DIMS) for name in ("2x", "4x"))
    graph.add_node("first", "ElementWiseAdd", [x, x], [two])
    graph.add_node("second", "ElementWiseAdd", [two, two], [four])
    graph.add_node("third", "ElementWiseMultiply", [two, four], [y])
    return graph


def test_an_interrupted_reading_of_statistics_loses_no_count(backend, given) -> None:
    graph = given.binding.graph
    begin = graph.stats.executions
    runs = []

    def action():
        runs.append(given.binding.execute())
        assert graph.stats.executions >= 0

    check_every_interrupt(action, by=Alarm, outside=(*PURE, "/queue.py", "/gate.py"), most=80)
    settled = graph.stats.executions - begin
    assert len(runs) <= settled <= len(runs) + 80


def test_a_registration_may_be_interrupted_anywhere(backend, as_before) -> None:
    if backend.name == "cpu":
        pytest.skip("the CPU registers no memory")
    with rpcmem.alloc(25, 1, 4096) as shared:

        def descriptor(offset):
            custom = lpai.MemInfo(shared.fd, offset)
            if backend.name == "htp":
                custom = htp.Descriptor(4096, shared.fd, offset)
            return MemDescriptor(DIMS, DataType.FLOAT_32, DescriptorType.CUSTOM, custom=custom)

        def action():
            context = backend.create_context()
            try:
                context.mem_register([descriptor(0), descriptor(1024)])
            finally:
                surely(context.free)

        unharmed_but_owned(action, as_before, most=80)


def test_a_deregistration_that_was_interrupted_can_be_made_again(backend, as_before) -> None:
    if backend.name == "cpu":
        pytest.skip("the CPU registers no memory")
    context = backend.create_context()
    with rpcmem.alloc(25, 1, 4096) as shared:
        custom = htp.Descriptor(4096, shared.fd, 0) if backend.name == "htp" else lpai.MemInfo(shared.fd, 0)
        descriptor = MemDescriptor(DIMS, DataType.FLOAT_32, DescriptorType.CUSTOM, custom=custom)
        handle, count = None, 0

        def register():
            nonlocal handle
            [handle] = context.mem_register([descriptor])

        def action():
            try:
                context.mem_deregister([handle])
            except Interrupt:
                # While it is there it can be taken away, and then its place is free.
                if handle.alive:
                    context.mem_deregister([handle])
                raise

        for where in everywhere(action, outside=(*PURE, __file__), prepare=register):
            with pytest.raises(QnnError) as refusal:
                context.mem_deregister([handle])
            assert refusal.value.code is Code.MEM_INVALID_HANDLE, where
            count += 1
        assert count > 10
    context.free()


def test_a_wait_for_an_asynchronous_execution_may_be_interrupted_anywhere(backend, given, as_before) -> None:
    def action():
        given.binding.execute_async().result()

    check_every_interrupt(action, as_before, by=Alarm, outside=PURE, most=60)


def test_an_execution_with_a_time_limit_may_be_interrupted_anywhere(backend, given, request) -> None:
    with qnn.Signal(backend, timeout_us=600_000_000) as signal:
        # After the signal exists, because the check frees whatever the backend has that it did not have here.
        as_before = request.getfixturevalue("as_before")
        check_every_interrupt(lambda: given.binding.execute(signal=signal), as_before, outside=PURE, most=80)


@pytest.mark.parametrize("name", only(("cpu",), ("cpu", "htp", "lpai")))
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_backend_whose_creation_is_interrupted_has_nothing_to_end(name) -> None:
    def action():
        made = qnn.Backend(name)
        surely(made.free)

    assert check_every_interrupt(action, outside=PURE) > 20
