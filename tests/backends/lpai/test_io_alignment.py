"""Buffers for LPAI's inputs and outputs must start where the hardware wants, whatever it wants of sizes."""

import numpy as np
import pytest

from backends.lpai.harness import OUT_OF_SCRATCH, WIDTH, counter, ready
from isthmus import Code, QnnError, qnn
from isthmus.qnn import ClientTensor, lpai

START = {"v4": 64, "v5": 64, "v5.1": 64, "v6": 128, "v7": 128}


def tensor(name, alignment, shift, value=0.0):
    """A client's tensor in an array that starts `shift` bytes after a multiple of the alignment."""
    room = np.zeros(4 * WIDTH + 2 * alignment + shift, np.uint8)
    start = -room.ctypes.data % alignment + shift
    view = room[start : start + 4 * WIDTH].view(np.float32).reshape(1, WIDTH)
    assert view.ctypes.data % alignment == shift % alignment
    view[...] = value
    return ClientTensor(name, view), view


@pytest.fixture
def graph(request):
    config = {**OUT_OF_SCRATCH, "lpai_backend": {"enable_hw_ver": request.param}}
    with qnn.Backend("lpai", config) as backend:
        made = counter(backend.create_context())
        pools = ready(backend, made)
        assert backend.get_property(lpai.ALIGNMENT_REQ).start_addr_alignment == START[request.param]
        yield made, START[request.param]
        del pools


@pytest.mark.parametrize("graph", START, indirect=True)
@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("part", [2, 4, 8, 16])
def test_a_buffer_that_starts_at_a_part_of_the_alignment_is_refused(graph, name, part) -> None:
    made, alignment = graph
    shifts = {"x": 0, "y": 0} | {name: alignment // part}
    (x, _), (y, _) = (tensor(key, alignment, shift, 1.0) for key, shift in shifts.items())
    with pytest.raises(QnnError, match=f"'{name}'.*not a multiple of {alignment}") as refusal:
        made.execute([x], [y])
    assert refusal.value.code is Code.GRAPH_INVALID_TENSOR


@pytest.mark.parametrize("graph", START, indirect=True)
def test_a_buffer_that_starts_at_the_alignment_is_used(graph) -> None:
    made, alignment = graph
    (x, _), (y, result) = tensor("x", alignment, 0, 1.0), tensor("y", alignment, alignment)
    made.execute([x], [y])
    assert (result == 4).all()
