"""Adaptors count, limit, write down and fail what any kind of memory hands out; they stack, and nothing is lost."""

import gc
import mmap
from dataclasses import replace

import numpy as np
import pytest
from support.processes import held, holds_since
from support.suites import long, only
from support.waiting import run_in_threads

from isthmus import Code, QnnError, memory, qnn
from isthmus.graph import DataType, TensorType
from isthmus.memory import Fault, MemoryCap, Statistics, resource, rpcmem, tcm
from isthmus.memory.adaptors import FaultSchedule
from isthmus.memory.host import Host

MAKERS = {
    "host": memory.host,
    "rpcmem": rpcmem.share,
    "tcm": lambda nbytes: tcm.allocate(nbytes, 64, lambda level, text: None),
}


@pytest.fixture(params=MAKERS)
def kind(request, fresh_tcm):
    return request.param


def test_statistics_count_every_kind(kind) -> None:
    with memory.statistics() as counted:
        first, second = MAKERS[kind](1000), MAKERS[kind](500)
        assert counted.of(kind).live_bytes == counted.live_bytes == 1500
        first.close()
        first.close()
        third = MAKERS[kind](200)
        second.close()
        third.close()
    reported = counted.of(kind)
    assert (reported.allocations, reported.live_allocations, reported.live_bytes) == (3, 0, 0)
    assert (reported.peak_bytes, reported.total_bytes) == (1500, 1700)
    assert list(counted.by_kind) == [kind]
    assert (counted.allocations, counted.live_allocations, counted.total_bytes) == (3, 0, 1700)


def test_what_nothing_was_allocated_of_counts_nothing(kind) -> None:
    with memory.statistics() as counted:
        pass
    for each in (counted, counted.of(kind)):
        assert (each.allocations, each.live_allocations, each.live_bytes, each.peak_bytes, each.total_bytes) == (0,) * 5


def test_a_buffer_that_ends_after_the_block_still_counts(kind) -> None:
    with memory.statistics() as counted:
        buffer = MAKERS[kind](100)
    assert counted.live_bytes == 100
    buffer.close()
    assert counted.live_bytes == 0
    MAKERS[kind](100).close()
    assert counted.allocations == 1, "the block is over"


def test_forgotten_buffers_are_counted_out(kind) -> None:
    with memory.statistics() as counted:
        MAKERS[kind](100)
        gc.collect()
        assert (counted.live_bytes, counted.peak_bytes) == (0, 100)


def test_a_block_may_name_the_kinds_it_is_about(kind) -> None:
    others = [name for name in MAKERS if name != kind]
    with memory.statistics(kind) as counted, memory.statistics(*others) as apart:
        MAKERS[kind](100).close()
    assert (counted.allocations, apart.allocations) == (1, 0)
    with pytest.raises(QnnError, match="memory of kind 'disk'"), memory.statistics("disk"):
        pass


def test_a_limit_is_kept_and_what_is_given_back_is_free_again(kind) -> None:
    with memory.limit(1000, kind):
        first = MAKERS[kind](600)
        with pytest.raises(QnnError, match="600 of the 1000 bytes that are allowed are taken") as refusal:
            MAKERS[kind](401)
        assert refusal.value.code is Code.COMMON_MEM_ALLOC
        second = MAKERS[kind](400)
        first.close()
        MAKERS[kind](600).close()
        second.close()
        MAKERS[kind](1000).close()


def test_an_allocation_that_fails_below_a_limit_does_not_count_towards_it() -> None:
    limited = MemoryCap(Fault(Host(), FaultSchedule(1)), 100)
    with pytest.raises(QnnError, match="made to fail"):
        limited.allocate(100)
    limited.allocate(100).close()
    for senseless in (None, "1", 1.5):
        with pytest.raises(QnnError, match="is not an integer"):
            limited.allocate(senseless)


def test_an_audit_names_the_line_that_asked(kind) -> None:
    with memory.audit() as record:
        buffer = MAKERS[kind](100)
        [allocation] = record.live
    assert (allocation.kind, allocation.nbytes) == (kind, 100)
    assert "test_adaptors.py:" in allocation.where
    buffer.close()
    assert record.live == []
    assert record.allocations == [allocation]


def test_a_fault_fails_the_nth_allocation_of_all_kinds_together(kind) -> None:
    with memory.fault(2, times=2) as schedule:
        memory.host(10).close()
        for _ in range(2):
            with pytest.raises(QnnError, match="was made to fail") as refusal:
                MAKERS[kind](10)
            assert refusal.value.code is Code.COMMON_MEM_ALLOC
        MAKERS[kind](10).close()
    assert schedule.calls == 4


def test_adaptors_stack_in_any_order_of_leaving() -> None:
    outer = memory.statistics("host")
    inner = memory.limit(1000, "host")
    before = resource.current("host")
    counted = outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    with pytest.raises(QnnError, match="of the 1000 bytes"):
        memory.host(1001)
    memory.host(10).close()
    assert counted.allocations == 0, "the block is over, though another was opened inside it"
    inner.__exit__(None, None, None)
    assert resource.current("host") is before


def test_an_outer_adaptor_sees_only_what_the_inner_ones_pass_on() -> None:
    stack = Statistics(MemoryCap(Statistics(Host()), 100))
    stack.allocate(60).close()
    with pytest.raises(QnnError):
        stack.allocate(101)
    assert stack.tally.allocations == stack.upstream.upstream.tally.allocations == 1


def test_counts_are_right_with_many_threads() -> None:
    with memory.statistics("host") as counted:

        def work():
            for _ in range(200):
                memory.host(64).close()

        run_in_threads(lambda _: work(), range(4))
    assert (counted.allocations, counted.live_bytes, counted.total_bytes) == (800, 0, 800 * 64)


CONFIGS = {
    "cpu": ("cpu", None),
    "htp": ("htp", None),
    "lpai": ("lpai", None),
    "lpai, arm": ("lpai", {"lpai_backend": {"target_env": "arm"}}),
    "lpai, tcm": ("lpai", {"lpai_backend": {"target_env": "adsp"}, "lpai_graph": {"execute": {"mem_type": "tcm"}}}),
    "lpai, excluded": ("lpai", {"lpai_graph": {"prepare": {"exclude_io": True}}}),
}


def doubling_counter(context):
    """A graph that adds its input to a state, starting from 1, and gives twice the sum."""
    graph = context.create_graph("counter")

    def tensor(name, kind, shape=(1, 8), data=None):
        return graph.create_tensor(name, kind, DataType.FLOAT_32, shape, None, data)

    x, y = tensor("x", TensorType.APP_WRITE), tensor("y", TensorType.APP_READ)
    state = tensor("state", TensorType.APP_READWRITE, data=np.ones((1, 8), np.float32))
    total = tensor("total", TensorType.NATIVE)
    two = tensor("two", TensorType.STATIC, (1,), np.float32([2]))
    graph.add_node("add", "ElementWiseAdd", [x, state], [total])
    graph.add_node("double", "ElementWiseMultiply", [total, two], [y])
    graph.update_state(state, total)
    return graph


def attempt(backend, io):
    """A graph from nothing to its first result, and its end; whether memory was refused on the way."""
    with backend.create_context() as context:
        graph = doubling_counter(context)
        made = None
        try:
            made = graph.allocate(io)
            made.inputs["x"][...] = 1
            made.binding.execute()
            assert (made.outputs["y"] == 4).all()
        except QnnError as problem:
            if problem.code is not Code.COMMON_MEM_ALLOC:
                raise
            return True
        finally:
            context.free()
            if made is not None:
                made.close()
    return False


@pytest.mark.parametrize("name", only(("cpu", "htp", "lpai, tcm"), CONFIGS))
@pytest.mark.parametrize("io", [None, long("raw")])
def test_nothing_leaks_whichever_allocation_of_a_backend_fails(name, io, fresh_tcm) -> None:
    with qnn.Backend(*CONFIGS[name]) as backend:
        attempt(backend, io)
        before = held()
        failures = 0
        with memory.statistics() as counted:
            for nth in range(1, 40):
                with memory.fault(nth) as schedule:
                    failed = attempt(backend, io)
                gc.collect()
                assert counted.live_bytes == 0, nth
                assert not holds_since(before), nth
                assert failed == (schedule.calls >= nth), nth
                if not failed:
                    break
                failures += 1
        assert failures > 0
        assert not attempt(backend, io), "and all works as before"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: MemoryCap(Host(), -1), "must not be negative, is -1"),
        (lambda: FaultSchedule(0), "both count from 1"),
        (lambda: FaultSchedule(1, 0), "both count from 1"),
        (lambda: resource.provide(object()), "it is none"),
        (lambda: memory.adopt(3), "cannot be called"),
    ],
)
def test_what_makes_no_sense_as_an_adaptor_is_refused(make, sentence) -> None:
    with pytest.raises(QnnError, match=sentence):
        make()


def test_a_limit_of_nothing_and_one_that_is_filled_to_the_last_byte_are_limits() -> None:
    with pytest.raises(QnnError):
        MemoryCap(Host(), 0).allocate(1)
    filled = MemoryCap(Host(), 100)
    first, second = filled.allocate(60), filled.allocate(40)
    with pytest.raises(QnnError):
        filled.allocate(1)
    first.close()
    filled.allocate(60).close()
    second.close()


def test_a_schedule_fails_exactly_the_calls_it_names() -> None:
    schedule = FaultSchedule(2, 3)
    assert [schedule.fails() for _ in range(6)] == [False, True, True, True, False, False]
    assert schedule.calls == 6


def test_a_tally_counts_up_and_down_by_kind() -> None:
    with memory.statistics() as tally:
        first, shared, second = memory.host(4096), memory.rpcmem.share(8192), memory.host(64)
        first.close()
        counted = tally.of("host"), tally.of("rpcmem")
        assert counted[0].live_bytes == second.nbytes
        assert tally.live_bytes == second.nbytes + counted[1].live_bytes
        assert tally.peak_bytes == tally.total_bytes == counted[0].total_bytes + counted[1].total_bytes
        assert counted[0].peak_bytes == counted[0].total_bytes
        peak = tally.peak_bytes
        memory.host(1).close()
        assert tally.peak_bytes == peak
        shared.close()
        second.close()
        assert tally.live_bytes == 0


def test_shared_memory_is_aligned_to_pages_and_not_more() -> None:
    with memory.current("rpcmem").allocate(8, mmap.PAGESIZE) as buffer:
        assert buffer.address % mmap.PAGESIZE == 0
    with pytest.raises(QnnError, match="is aligned to"):
        memory.current("rpcmem").allocate(8, 2 * mmap.PAGESIZE)


class Padded(memory.Adaptor):
    def fulfil(self, request):
        return self.upstream.fulfil(replace(request, nbytes=-(-request.nbytes // 4096) * 4096))


def test_an_adaptor_that_changes_the_size_of_a_request_keeps_its_other_fields(monkeypatch, fresh_tcm) -> None:
    heaps, lines = [], []
    monkeypatch.setattr(rpcmem.Memfd, "allocate", lambda self, *asked: heaps.append(asked) or memory.host(asked[-1]))
    with resource.around(Padded, "tcm", "rpcmem"):
        tcm.allocate(100, 64, lambda level, text: lines.append(text)).close()
        with pytest.raises(QnnError, match="no file descriptor"):
            rpcmem.alloc2(7, 3, 100)
        with memory.current("tcm").allocate(100) as unlogged:
            assert unlogged.nbytes == 4096
    assert heaps == [(7, 3, 4096)]
    assert lines[-1] == "Allocate size 4096 from tcm pool 0"


def test_a_resource_provided_inside_a_block_is_counted_by_it() -> None:
    class Late(memory.MemoryResource):
        kind = "late"

        def fulfil(self, request):
            return memory.current("host").fulfil(request)

    late = Late()
    with memory.statistics() as everything:
        memory.provide(late)
        with memory.statistics("late") as named, memory.current("late").allocate(64):
            assert (everything.of("late").live_bytes, named.of("late").live_bytes) == (64, 64)
    assert memory.current("late") is late, "the block's adaptor went with the block"
    del resource._current["late"]
