"""Host buffers are aligned, sized as asked, and private to the process."""

import numpy as np
import pytest

from isthmus import Code, QnnError, memory


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096, 1 << 16])
@pytest.mark.parametrize("nbytes", [0, 1, 63, 100_000])
def test_a_buffer_has_the_size_and_alignment_asked_for(nbytes, alignment) -> None:
    with memory.host(nbytes, alignment) as buffer:
        assert buffer.nbytes == nbytes
        assert buffer.address % alignment == 0


def test_a_buffer_is_a_view_and_not_a_copy() -> None:
    with memory.host(64) as buffer:
        floats = buffer.view(np.float32, (4, 2), offset=32)
        floats[...] = 1.5
        assert (np.asarray(buffer)[32:].view(np.float32) == 1.5).all()


def test_a_closed_buffer_refuses_use_and_may_be_closed_again() -> None:
    buffer = memory.host(16)
    buffer.close()
    buffer.close()
    with pytest.raises(QnnError, match="closed"):
        _ = buffer.array


@pytest.mark.parametrize(
    ("nbytes", "alignment"),
    [
        *((nbytes, 64) for nbytes in (-1, 1.5, None, True, "16")),
        *((16, alignment) for alignment in (0, 3, -64, 1.5)),
    ],
)
def test_invalid_sizes_are_refused(nbytes, alignment) -> None:
    with pytest.raises(QnnError) as refusal:
        memory.host(nbytes, alignment)
    assert refusal.value.code is Code.COMMON_INVALID_ARGUMENT


@pytest.mark.parametrize(("nbytes", "alignment"), [(1 << 62, 64), (1 << 64, 64), (16, 1 << 62)])
def test_more_memory_than_there_is_is_refused(nbytes, alignment) -> None:
    with pytest.raises(QnnError) as refusal:
        memory.host(nbytes, alignment)
    assert refusal.value.code is Code.COMMON_MEM_ALLOC
