"""Which memory an LPAI graph can work in, rule by rule, at the first number outside of each."""

import pytest

from isthmus import memory
from isthmus.backends.lpai.memory import io_window, pool_window
from isthmus.backends.lpai.options import BufferAlignmentReq, LpaiMemType, Mem
from isthmus.errors import QnnError
from isthmus.memory.tcm import POOL_BYTES

ALIGNMENT = BufferAlignmentReq(64, 8)


@pytest.fixture
def buffer():
    with memory.current("host").allocate(256, 64) as made:
        yield made


@pytest.mark.parametrize("address", [None, 0])
def test_a_null_address_is_a_pool_of_no_bytes_only(address) -> None:
    assert pool_window("scratch", Mem(LpaiMemType.DDR, 0, address), 0, ALIGNMENT) is None
    for size, required in ((8, 0), (0, 8), (8, 8)):
        with pytest.raises(QnnError, match="its address is null"):
            pool_window("scratch", Mem(LpaiMemType.DDR, size, address), required, ALIGNMENT)


@pytest.mark.parametrize(
    ("kind", "size", "offset", "required", "sentence"),
    [
        (LpaiMemType.TCM, 64, 0, 8, "must be in DDR, is given as TCM"),
        ("DDR", 64, 0, 8, "must be in DDR, is given as 'DDR'"),
        (LpaiMemType.DDR, -1, 0, 8, "at most 32 bits"),
        (LpaiMemType.DDR, 1 << 32, 0, 8, "at most 32 bits"),
        (LpaiMemType.DDR, 8.5, 0, 8, "at most 32 bits"),
        (LpaiMemType.DDR, 64, 8, 8, "not a multiple of 64"),
        (LpaiMemType.DDR, 12, 0, 8, "size 12 is not a multiple of 8"),
        (LpaiMemType.DDR, 64, 0, 65, "has 64 bytes, 65 are needed"),
    ],
)
def test_memory_for_a_pool_that_breaks_a_rule_is_refused_with_that_rule(
    buffer, kind, size, offset, required, sentence
) -> None:
    with pytest.raises(QnnError, match=sentence):
        pool_window("scratch", Mem(kind, size, buffer.address + offset), required, ALIGNMENT)


def test_memory_that_just_suffices_is_taken_whole(buffer) -> None:
    found = pool_window("scratch", Mem(LpaiMemType.DDR, 64, buffer.address + 64), 64, ALIGNMENT)
    assert (found.address, found.nbytes) == (buffer.address + 64, 64)


def test_tcm_is_no_place_for_a_pool(fresh_tcm) -> None:
    with fresh_tcm.allocate(256, 64) as made, pytest.raises(QnnError, match="must be in DDR, is in TCM"):
        pool_window("scratch", Mem(LpaiMemType.DDR, 64, made.address), 8, ALIGNMENT)


def test_a_tensor_takes_the_first_bytes_of_its_buffer(buffer) -> None:
    whole = buffer.window()
    assert io_window("x", whole, 256, ALIGNMENT, None).nbytes == 256
    assert io_window("x", whole, 100, ALIGNMENT, None).nbytes == 100
    assert io_window("x", whole.part(0, 100), 100, ALIGNMENT, None).nbytes == 100
    assert io_window("x", whole.part(64, 104), 100, ALIGNMENT, None).address == buffer.address + 64


@pytest.mark.parametrize(
    ("offset", "size", "nbytes", "sentence"),
    [
        (0, 99, 100, "has 99 bytes, 100 are needed"),
        (8, 100, 100, "not a multiple of 64"),
        (0, 101, 100, "neither the tensor's 100 nor a multiple of 8"),
    ],
)
def test_a_buffer_for_a_tensor_that_breaks_a_rule_is_refused_with_that_rule(
    buffer, offset, size, nbytes, sentence
) -> None:
    with pytest.raises(QnnError, match=sentence):
        io_window("x", buffer.window().part(offset, size), nbytes, ALIGNMENT, None)


def test_memory_types_are_not_mixed(buffer, fresh_tcm) -> None:
    with fresh_tcm.allocate(256, 64) as on_chip:
        assert io_window("x", on_chip.window(), 256, ALIGNMENT, POOL_BYTES).nbytes == 256
        for window, tcm_bytes in ((buffer.window(), POOL_BYTES), (on_chip.window(), None)):
            with pytest.raises(QnnError, match="cannot be mixed"):
                io_window("x", window, 256, ALIGNMENT, tcm_bytes)


def test_a_buffer_beyond_the_stated_size_of_tcm_is_refused(fresh_tcm) -> None:
    with fresh_tcm.allocate(256, 64), fresh_tcm.allocate(256, 64) as second:
        assert io_window("x", second.window(), 256, ALIGNMENT, 512).nbytes == 256
        with pytest.raises(QnnError, match="not within the 511 bytes of TCM that the configuration states"):
            io_window("x", second.window(), 256, ALIGNMENT, 511)
