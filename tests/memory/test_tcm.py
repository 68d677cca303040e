"""The TCM pool: one size, 32 buffers, first fit, nothing lost."""

import gc
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus import Code, QnnError, memory
from isthmus.log import Log, LogLevel
from isthmus.memory import holds, tcm

POOL = 2_035_712
PATIENCE = 60


def test_the_pool_has_the_documented_size_and_is_one_a_process() -> None:
    assert tcm.POOL_BYTES == POOL
    assert tcm.pool() is tcm.pool()


def test_the_whole_pool_can_be_one_buffer_and_not_a_byte_more(fresh_tcm) -> None:
    pool, messages = fresh_tcm, []
    with pytest.raises(QnnError, match=f"{POOL + 1} bytes of TCM are needed") as refusal:
        tcm.allocate(POOL + 1, 64, lambda *message: messages.append(message))
    assert refusal.value.code is Code.COMMON_MEM_ALLOC
    with pool.allocate(POOL, 64) as buffer:
        assert buffer.nbytes == POOL
        assert pool.free_bytes == 0
        with pytest.raises(QnnError, match="1 bytes of TCM are needed"):
            pool.allocate(1, 1)
    assert pool.free_bytes == POOL
    assert messages == [
        (LogLevel.INFO, f"TCM pool current size: 0 max_size: {POOL}"),
        (LogLevel.ERROR, f"TCM memory allocation failure: required size: {POOL + 1}"),
    ]


def test_a_device_with_less_tcm_uses_only_the_beginning_of_the_pool(fresh_tcm) -> None:
    messages = []

    def allocate(nbytes):
        return tcm.allocate(nbytes, 64, lambda *message: messages.append(message), size=1000)

    with fresh_tcm.allocate(100, 64), fresh_tcm.allocate(2000, 64) as large:
        with pytest.raises(QnnError, match="900 bytes of TCM are needed in one piece, 0 of 1000 are left"):
            allocate(900)
        large.close()
        with pytest.raises(QnnError, match="873 bytes of TCM are needed in one piece, 900 of 1000 are left"):
            allocate(873)
        with allocate(872) as rest:
            assert fresh_tcm.encloses(rest.window(), 1000)
            assert not fresh_tcm.encloses(rest.window(), 999)
    assert messages[-1] == (LogLevel.INFO, "Allocate size 872 from tcm pool 0")


def test_the_33rd_buffer_is_a_fatal_error_and_the_pool_survives_it(fresh_tcm) -> None:
    pool, messages = fresh_tcm, []
    buffers = [pool.allocate(100, 64) for _ in range(32)]
    with pytest.raises(QnnError, match="32 individual buffers") as refusal:
        tcm.allocate(100, 64, lambda *message: messages.append(message))
    assert refusal.value.code is Code.COMMON_SYSTEM_COMMUNICATION_FATAL
    assert messages == [(LogLevel.ERROR, "TCM system fatal error: more than 32 buffers")]
    buffers.pop().close()
    buffers.append(pool.allocate(100, 64))
    for buffer in buffers:
        buffer.close()
        buffer.close()
    assert pool.free_bytes == POOL


def test_a_log_callback_may_wait_for_another_thread_that_allocates(fresh_tcm) -> None:
    made = []

    def wait(level, text):
        thread = threading.Thread(target=lambda: made.append(fresh_tcm.allocate(64, 64)), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive()

    tcm.allocate(64, 64, Log(wait, LogLevel.INFO))
    assert len(made) == 2, "one for the line about the pool, one for the line about the buffer"


def test_a_gap_is_used_again() -> None:
    pool = tcm.TcmPool()
    first, middle, last = (pool.allocate(1024, 64) for _ in range(3))
    middle.close()
    assert pool.allocate(2048, 64).offset > last.offset
    assert pool.allocate(1000, 64).offset == middle.offset
    assert first.offset == 0


def test_a_held_buffer_is_not_freed() -> None:
    pool = tcm.TcmPool()
    buffer = pool.allocate(64, 64)
    hold = holds.claim(buffer.window(), "test", "memory of a test")
    with pytest.raises(QnnError, match="memory of a test"):
        buffer.close()
    hold.release()
    buffer.close()
    with pytest.raises(QnnError, match="closed"):
        _ = buffer.array


@pytest.mark.parametrize("alignment", [1, 64, 4096, 8192, 1 << 16])
def test_every_alignment_is_met_above_the_page_size_too(alignment) -> None:
    pool = tcm.TcmPool()
    buffers = [pool.allocate(100, alignment) for _ in range(3)]
    assert all(buffer.address % alignment == 0 for buffer in buffers)


@pytest.mark.parametrize(
    ("nbytes", "alignment"),
    [
        *((nbytes, 64) for nbytes in (-5, 1.5, None, "1", True)),
        *((100, alignment) for alignment in (0, 3, -64, 1 << 17, 1.5)),
    ],
)
def test_invalid_requests_are_refused_and_allocate_nothing(nbytes, alignment) -> None:
    pool = tcm.TcmPool()
    with pytest.raises(QnnError) as refusal:
        pool.allocate(nbytes, alignment)
    assert refusal.value.code is Code.COMMON_INVALID_ARGUMENT
    assert (pool.allocations, pool.free_bytes) == (0, POOL)


def test_a_buffer_that_is_forgotten_is_reclaimed_with_its_last_view() -> None:
    pool = tcm.TcmPool()
    view = pool.allocate(100, 64).array
    assert pool.allocations == 1
    view[:] = 7
    del view
    gc.collect()
    assert pool.allocations == 0


def test_a_window_is_in_the_pool_wholly_partly_or_not() -> None:
    pool = tcm.TcmPool()
    assert not pool.touches(memory.host(64).window())
    last = pool.allocate(POOL, 64)
    end = last.address + POOL
    for start, touches, encloses in ((end - 128, True, True), (end - 64, True, False), (end, False, False)):
        there = memory.window(start, nbytes=128)
        assert (pool.touches(there), pool.encloses(there)) == (touches, encloses)


def test_an_adaptor_around_the_pool_sees_what_is_allocated(fresh_tcm) -> None:
    with memory.statistics("tcm") as counted:
        buffer = tcm.allocate(100, 64, lambda level, text: None)
        assert tcm.pool() is fresh_tcm
        assert counted.live_bytes == 100
        buffer.close()
    assert counted.live_bytes == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 300_000), st.sampled_from([1, 64, 128, 4096, 1 << 16]), st.booleans()),
        min_size=1,
        max_size=60,
    )
)
def test_buffers_are_aligned_inside_the_pool_and_apart(requests) -> None:
    pool = tcm.TcmPool()
    buffers = []
    for nbytes, alignment, free_one in requests:
        if free_one and buffers:
            buffers.pop(len(buffers) // 2).close()
        if len(buffers) == tcm.MAX_ALLOCATIONS:
            continue
        try:
            buffer = pool.allocate(nbytes, alignment)
        except QnnError:
            continue
        assert buffer.address % alignment == 0
        assert pool.encloses(buffer.window())
        assert not any(holds.overlap(buffer.window(), other.window()) for other in buffers)
        buffer.array[:] = 0xFF
        buffers.append(buffer)
    assert pool.free_bytes == POOL - sum(buffer.nbytes for buffer in buffers)
    assert all(np.all(buffer.array == 0xFF) for buffer in buffers)
