"""Memory that somebody holds is not closed, and not given to a second one; the refusal names the holder."""

import numpy as np
import pytest

from isthmus import Code, QnnError, memory
from isthmus.memory import Region, holds


def test_a_held_buffer_cannot_be_closed_until_it_is_released():
    buffer = memory.host(64)
    hold = holds.claim(buffer.region, "test", "memory of a test")
    with pytest.raises(QnnError, match="it is the memory of a test and cannot be closed before") as refusal:
        buffer.close()
    assert refusal.value.code is Code.COMMON_OPERATION_NOT_PERMITTED
    buffer.array[0] = 1
    hold.release()
    hold.release()
    buffer.close()


def test_a_view_of_a_held_buffer_holds_it_too():
    buffer = memory.host(256)
    hold = holds.claim(Region.of(buffer.array[64:128]), "test", "part of it")
    with pytest.raises(QnnError, match="part of it"):
        buffer.close()
    hold.release()
    buffer.close()


@pytest.mark.parametrize(("start", "end"), [(0, 65), (127, 128), (0, 256), (80, 90)])
def test_bytes_that_are_held_are_not_given_twice(start, end):
    with memory.host(256) as buffer:
        first = holds.claim(Region.of(buffer.array[64:128]), "first", "first holder")
        with pytest.raises(QnnError, match=r"second: overlaps the first holder \(64 bytes"):
            holds.claim(Region.of(buffer.array[start:end]), "second", "second holder")
        assert holds.holders(buffer.region) == [first]
        first.release()


@pytest.mark.parametrize(("start", "end"), [(0, 64), (128, 256)])
def test_bytes_beside_are_free(start, end):
    with memory.host(256) as buffer:
        first = holds.claim(Region.of(buffer.array[64:128]), "first", "first holder")
        second = holds.claim(Region.of(buffer.array[start:end]), "second", "second holder")
        assert len(holds.holders(buffer.region)) == 2
        first.release()
        second.release()


def test_a_group_may_share_and_a_replacement_takes_over():
    with memory.host(64) as buffer:
        group = object()
        first = holds.claim(buffer.region, "a", "a", group=group)
        second = holds.claim(buffer.region, "b", "b", group=group)
        with pytest.raises(QnnError, match="overlaps the"):
            holds.claim(buffer.region, "c", "c")
        second.release()
        third = holds.claim(buffer.region, "c", "c", replacing=first)
        assert holds.holders(buffer.region) == [third]
        third.release()


def test_an_occasional_use_counts_only_while_it_lasts():
    with memory.host(64) as buffer:
        busy = [True]
        use = holds.use(buffer.region, "running", lambda: busy[0])
        assert holds.holders(buffer.region) == [use]
        busy[0] = False
        assert holds.holders(buffer.region) == []
        use.release()


def test_empty_memory_overlaps_nothing():
    region = Region.of(np.zeros(8, np.uint8))
    assert not holds.overlap(Region(region.address, 0, None), region)
