"""A buffer of any kind is at once an array and bytes, ends once and explicitly, and stays safe however it is used."""

import gc
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

from isthmus import Code, QnnError, memory
from isthmus.memory import rpcmem, tcm

KINDS = {
    "host": lambda: memory.host(64),
    "host, aligned beyond a page": lambda: memory.host(64, 1 << 16),
    "rpcmem": lambda: rpcmem.alloc(25, 1, 64),
    "tcm": lambda: tcm.TcmPool().allocate(64),
}


@pytest.fixture(params=KINDS)
def buffer(request):
    made = KINDS[request.param]()
    yield made
    made.close()


def test_all_views_of_a_buffer_are_the_same_memory(buffer) -> None:
    memoryview(buffer).cast("B")[0] = 1
    np.asarray(buffer)[1] = 2
    np.from_dlpack(buffer)[2] = 3
    buffer.array[3] = 4
    buffer.view(np.uint8, (2,), offset=4)[:] = 5, 6
    np.frombuffer(buffer, np.uint8)[6] = 7
    interface = np.asarray(type("Seen", (), {"__array_interface__": buffer.__array_interface__})())
    interface[7] = 8
    assert bytes(buffer.array[:8]) == bytes(range(1, 9))
    assert buffer.array.ctypes.data == buffer.address == buffer.window().address
    assert buffer.__dlpack_device__() == (1, 0)


def test_closing_a_buffer_twice_is_harmless(buffer) -> None:
    buffer.close()
    buffer.close()
    assert buffer.is_closed
    for use in (lambda: buffer.array, lambda: buffer.address, lambda: buffer.view(np.uint8, (1,)), buffer.check_open):
        with pytest.raises(QnnError, match="it is closed") as refusal:
            use()
        assert refusal.value.code is Code.COMMON_INVALID_ARGUMENT
    assert "closed" in repr(buffer)


def test_a_context_manager_ends_it_and_lets_the_users_own_error_pass(buffer) -> None:
    hold = memory.holds.claim(buffer.window(), "pool", "pool of a test")
    with pytest.raises(ValueError, match="mine"), buffer:
        raise ValueError("mine")
    with pytest.raises(QnnError, match="pool of a test"), buffer:
        pass
    hold.release()
    with buffer:
        pass
    assert buffer.is_closed


def test_a_view_outlives_its_buffer(buffer) -> None:
    view = buffer.array
    view[:] = 7
    buffer.close()
    assert (view == 7).all()


def test_a_view_keeps_a_forgotten_buffer() -> None:
    for make in KINDS.values():
        ended = []
        buffer = make()
        buffer.when_gone(ended.append, 1)
        view = buffer.array
        del buffer
        gc.collect()
        assert ended == []
        view[:] = 1
        del view
        gc.collect()
        assert ended == [1]


def test_callbacks_are_called_once_when_it_is_closed(buffer) -> None:
    ended = []
    buffer.when_gone(ended.append, 1)
    buffer.close()
    buffer.close()
    del buffer
    gc.collect()
    assert ended == [1]


@pytest.mark.parametrize("kind", ["host", "rpcmem"])
def test_nothing_can_change_the_size_under_a_holder(kind) -> None:
    with KINDS[kind]() as buffer:
        address = buffer.address
        with pytest.raises(QnnError, match="keeps its size and its place"):
            buffer.resize(8192)
        buffer.array[:] = 1
        assert (buffer.address, buffer.nbytes) == (address, 64)


@pytest.mark.parametrize(
    ("dtype", "shape", "offset"),
    [
        (np.float32, (17,), 0),
        (np.float32, (1,), 61),
        (np.float32, (1,), -4),
        (np.float32, (-1,), 0),
        (np.float32, (-1, -4), 0),
        (np.uint8, (1 << 62, 4), 0),
        (np.uint8, (1.5,), 0),
        (np.uint8, (1,), 1.5),
        (object, (1,), 0),
        ("float31", (1,), 0),
        (np.uint8, None, 0),
        (np.uint8, 4, 0),
        (np.uint8, "4", 0),
    ],
)
def test_views_stay_inside(buffer, dtype, shape, offset) -> None:
    with pytest.raises(QnnError) as refusal:
        buffer.view(dtype, shape, offset)
    assert refusal.value.code is Code.COMMON_INVALID_ARGUMENT


def test_buffers_are_equal_only_to_themselves() -> None:
    one, other = memory.host(8), memory.host(8)
    assert one == one
    assert one != other
    assert len({one, other}) == 2


def test_nothing_warns_when_buffers_are_used_closed_or_forgotten() -> None:
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        for make in KINDS.values():
            with make() as buffer:
                buffer.array[:] = 1
            make()
            gc.collect()
    assert [str(warning.message) for warning in messages] == []


def test_private_memory_is_private_to_a_forked_process() -> None:
    script = (
        "import os\n"
        "from isthmus import memory\n"
        "buffer = memory.host(64)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    buffer.array[:] = 1\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "print(int(buffer.array.sum()))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == "0\n"
