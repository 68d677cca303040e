"""Host buffers are aligned, sized as asked, and arrays at once; regions refuse what an engine cannot use."""

import numpy as np
import pytest

from isthmus import Code, QnnError, memory


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096, 1 << 16])
@pytest.mark.parametrize("nbytes", [0, 1, 63, 100_000])
def test_a_buffer_has_the_size_and_alignment_asked_for(nbytes, alignment):
    with memory.host(nbytes, alignment) as buffer:
        assert buffer.nbytes == nbytes
        assert buffer.region.address % alignment == 0


def test_a_buffer_is_a_view_and_not_a_copy():
    with memory.host(64) as buffer:
        floats = buffer.view(np.float32, (4, 2), offset=32)
        floats[...] = 1.5
        assert (np.asarray(buffer)[32:].view(np.float32) == 1.5).all()


def test_a_closed_buffer_refuses_use_and_closes_again_in_peace():
    buffer = memory.host(16)
    buffer.close()
    buffer.close()
    with pytest.raises(QnnError, match="closed"):
        _ = buffer.array


@pytest.mark.parametrize(("nbytes", "alignment"), [(-1, 64), (16, 0), (16, 3)])
def test_senseless_sizes_are_refused(nbytes, alignment):
    with pytest.raises(QnnError) as refusal:
        memory.host(nbytes, alignment)
    assert refusal.value.code is Code.COMMON_INVALID_ARGUMENT


def test_more_memory_than_there_is_is_refused():
    with pytest.raises(QnnError) as refusal:
        memory.host(1 << 62)
    assert refusal.value.code is Code.COMMON_MEM_ALLOC


@pytest.mark.parametrize(
    ("owner", "rule"),
    [
        (b"read-only", "read-only"),
        (np.zeros((4, 4))[:, ::2], "not contiguous"),
        (object(), "exposes no memory"),
    ],
)
def test_a_region_refuses_memory_that_cannot_be_used(owner, rule):
    with pytest.raises(QnnError, match=rule):
        memory.Region.of(owner)


def test_a_region_names_what_is_too_small_or_misaligned():
    region = memory.Region.of(np.zeros(100, np.uint8))
    with pytest.raises(QnnError, match="scratch memory: has 100 bytes, 101 are needed"):
        region.check("scratch memory", 101)
    shifted = memory.Region(region.address | 1, 10, None)
    with pytest.raises(QnnError, match="not a multiple of 2"):
        shifted.check("scratch memory", 10, alignment=2)
