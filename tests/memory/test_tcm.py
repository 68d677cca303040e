"""The TCM pool: one size, 32 buffers, first fit, nothing lost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus import Code, QnnError
from isthmus.log import LogLevel
from isthmus.memory import holds, tcm

POOL = 2_035_712


def silent(level, text):
    pass


def test_the_pool_has_the_documented_size_and_is_one_a_process():
    assert tcm.POOL_BYTES == POOL
    assert tcm.pool() is tcm.pool()


def test_the_whole_pool_can_be_one_buffer_and_not_a_byte_more():
    heard = []
    pool = tcm.TcmPool()
    assert pool.allocate(POOL + 1, 64, lambda *message: heard.append(message)) is None
    with pool.allocate(POOL, 64, silent) as buffer:
        assert buffer.nbytes == POOL
        assert pool.free_bytes == 0
        assert pool.allocate(1, 1, silent) is None
    assert pool.free_bytes == POOL
    assert heard == [
        (LogLevel.INFO, f"TCM pool current size: 0 max_size: {POOL}"),
        (LogLevel.ERROR, f"TCM memory allocation failure: required size: {POOL + 1}"),
    ]


def test_the_33rd_buffer_is_a_fatal_error_and_the_pool_survives_it():
    pool = tcm.TcmPool()
    buffers = [pool.allocate(100, 64, silent) for _ in range(32)]
    with pytest.raises(QnnError, match="32 individual buffers") as refusal:
        pool.allocate(100, 64, silent)
    assert refusal.value.code is Code.COMMON_SYSTEM_COMMUNICATION_FATAL
    buffers.pop().close()
    buffers.append(pool.allocate(100, 64, silent))
    for buffer in buffers:
        buffer.close()
        buffer.close()
    assert pool.free_bytes == POOL


def test_a_gap_is_used_again():
    pool = tcm.TcmPool()
    first, middle, last = (pool.allocate(1024, 64, silent) for _ in range(3))
    middle.close()
    assert pool.allocate(2048, 64, silent).offset > last.offset
    assert pool.allocate(1000, 64, silent).offset == middle.offset
    assert first.offset == 0


def test_a_held_buffer_is_not_given_back():
    pool = tcm.TcmPool()
    buffer = pool.allocate(64, 64, silent)
    hold = holds.claim(buffer.region, "test", "memory of a test")
    with pytest.raises(QnnError, match="memory of a test"):
        buffer.close()
    hold.release()
    buffer.close()
    with pytest.raises(QnnError, match="closed"):
        _ = buffer.array


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 300_000), st.sampled_from([1, 64, 128, 4096]), st.booleans()),
        min_size=1,
        max_size=60,
    )
)
def test_buffers_are_aligned_inside_the_pool_and_apart(requests):
    pool = tcm.TcmPool()
    buffers = []
    for nbytes, alignment, free_one in requests:
        if free_one and buffers:
            buffers.pop(len(buffers) // 2).close()
        if len(buffers) == tcm.MAX_ALLOCATIONS:
            continue
        buffer = pool.allocate(nbytes, alignment, silent)
        if buffer is not None:
            assert buffer.region.address % alignment == 0
            assert pool.holds(buffer.region)
            assert not any(holds.overlap(buffer.region, other.region) for other in buffers)
            buffer.array[:] = 0xFF
            buffers.append(buffer)
    assert pool.free_bytes == POOL - sum(buffer.nbytes for buffer in buffers)
    assert all(np.all(buffer.array == 0xFF) for buffer in buffers)
