"""Memory that somebody holds is not closed, and not given to a second one; the refusal names the holder."""

import contextlib
import threading

import numpy as np
import pytest

from isthmus import Code, QnnError, memory
from isthmus.memory import holds


def test_a_held_buffer_cannot_be_closed_until_it_is_released() -> None:
    buffer = memory.host(64)
    hold = holds.claim(buffer.window(), "test", "memory of a test")
    with pytest.raises(QnnError, match=r"it is the memory of a test\. Free its holder first") as refusal:
        buffer.close()
    assert refusal.value.code is Code.COMMON_OPERATION_NOT_PERMITTED
    buffer.array[0] = 1
    hold.release()
    hold.release()
    buffer.close()


def test_a_view_of_a_held_buffer_holds_it_too() -> None:
    buffer = memory.host(256)
    hold = holds.claim(memory.window(buffer.array[64:128]), "test", "part of it")
    with pytest.raises(QnnError, match="part of it"):
        buffer.close()
    hold.release()
    buffer.close()


@pytest.mark.parametrize(("start", "end"), [(0, 65), (127, 128), (0, 256), (80, 90)])
def test_bytes_that_are_held_are_not_given_twice(start, end) -> None:
    with memory.host(256) as buffer:
        first = holds.claim(memory.window(buffer.array[64:128]), "first", "first holder")
        with pytest.raises(QnnError, match=r"second: overlaps the first holder \(64 bytes"):
            holds.claim(memory.window(buffer.array[start:end]), "second", "second holder")
        assert holds.holders(buffer.window()) == [first]
        first.release()


@pytest.mark.parametrize(("start", "end"), [(0, 64), (128, 256)])
def test_bytes_beside_are_free(start, end) -> None:
    with memory.host(256) as buffer:
        first = holds.claim(memory.window(buffer.array[64:128]), "first", "first holder")
        second = holds.claim(memory.window(buffer.array[start:end]), "second", "second holder")
        assert len(holds.holders(buffer.window())) == 2
        first.release()
        second.release()


def test_a_group_may_share_and_a_replacement_takes_over() -> None:
    with memory.host(64) as buffer:
        group = object()
        first = holds.claim(buffer.window(), "a", "a", group=group)
        second = holds.claim(buffer.window(), "b", "b", group=group)
        with pytest.raises(QnnError, match="overlaps the"):
            holds.claim(buffer.window(), "c", "c")
        second.release()
        third = holds.claim(buffer.window(), "c", "c", besides=first)
        assert holds.holders(buffer.window()) == [first, third]
        first.release()
        assert holds.holders(buffer.window()) == [third]
        third.release()


def test_an_occasional_use_counts_only_while_it_lasts() -> None:
    with memory.host(64) as buffer:
        busy = [True]
        use = holds.use(buffer.window(), "running", lambda: busy[0])
        assert holds.holders(buffer.window()) == [use]
        busy[0] = False
        assert holds.holders(buffer.window()) == []
        use.release()


def test_empty_memory_overlaps_nothing() -> None:
    window = memory.window(np.zeros(8, np.uint8))
    assert not holds.overlap(window.part(4, 0), window)


def test_every_change_of_hands_moves_the_epoch() -> None:
    def moves(change):
        before = holds.epoch
        change()
        return holds.epoch > before

    buffer = memory.host(64)
    held = []
    assert moves(lambda: held.append(holds.claim(buffer.window(), "a", "a")))
    assert moves(held.pop().release)
    assert not moves(lambda: holds.use(buffer.window(), "a", lambda: False).release())
    assert moves(buffer.close)


def test_a_refused_claim_changes_nothing() -> None:
    with memory.host(64) as buffer:
        first = holds.claim(buffer.window(), "a", "a")
        with pytest.raises(QnnError, match="overlaps the a"):
            holds.claim(buffer.window(8, 8), "b", "b")
        assert holds.holders(buffer.window()) == [first]
        first.release()


def test_what_must_not_end_may_be_used_by_others() -> None:
    with memory.host(64) as buffer:
        kept = holds.keep(buffer.window(), "memory of a handle")
        holds.refuse_claimed(buffer.window(), "tensor 'x'")
        with pytest.raises(QnnError, match="memory of a handle"):
            buffer.close()
        kept.release()


def test_a_closed_buffer_cannot_be_claimed() -> None:
    buffer = memory.host(64)
    window = buffer.window()
    buffer.close()
    with pytest.raises(QnnError, match="it is closed"):
        holds.claim(window, "pool", "pool of a test")
    assert not holds.holders(memory.host(64).window())


def test_closing_and_claiming_at_once_never_both_succeed() -> None:
    for _ in range(200):
        buffer = memory.host(64)
        window = buffer.window()
        done, begin = [], threading.Barrier(2)

        def attempt(act, name, begin=begin, done=done):
            begin.wait()
            with contextlib.suppress(QnnError):
                done.append((name, act()))

        threads = [
            threading.Thread(target=attempt, args=(buffer.close, "closed")),
            threading.Thread(target=attempt, args=(lambda w=window: holds.claim(w, "pool", "pool"), "claimed")),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 1, done
        if done[0][0] == "claimed":
            done[0][1].release()
