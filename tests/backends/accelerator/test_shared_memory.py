"""The accelerator touches the memory that a request names and no other, whatever became of it since."""

import mmap
import os
import socket
import threading

import numpy as np
import pytest
from support.waiting import PATIENCE, eventually

from backends.accelerator.harness import LONG_SIZE, SIZE, LoadedGraph, expected, start_run, under_way
from isthmus import Code, QnnError
from isthmus.backends.accelerator.memory import _shared_file
from isthmus.backends.accelerator.process import Accelerator
from isthmus.memory import rpcmem
from isthmus.memory.shareable import shared_file

NBYTES = 4 * SIZE


def execute(loaded, output):
    with loaded.queue.lock():
        loaded.queue.execute(loaded.graph, [*loaded.slots[:2], output])


def refused(loaded, output):
    with pytest.raises(QnnError) as refusal:
        execute(loaded, output)
    return refusal.value.code


def test_a_file_that_grew_is_mapped_whole(accelerator, loaded) -> None:
    fd = os.memfd_create("grows")
    os.ftruncate(fd, 4096)
    first = accelerator.register([(fd, 0, NBYTES)])
    # Memory that is mapped next lies beside the old mapping, where writes past it would go.
    with rpcmem.alloc(25, 1, 1 << 20) as bystander:
        beside = accelerator.register([(bystander.fd, 0, 1 << 20)])
        os.ftruncate(fd, 1 << 22)
        later = accelerator.register([(fd, 2 << 20, NBYTES)])
        pages = np.frombuffer(mmap.mmap(fd, 1 << 22), np.float32)
        loaded.x[:], loaded.s[:] = 1, 2
        execute(loaded, later[0])
        np.testing.assert_allclose(pages[(2 << 20) // 4 :][:SIZE], expected(loaded.x, loaded.s), rtol=1e-5)
        assert not pages[: (2 << 20) // 4].any()
        assert not bystander.array.any()
        execute(loaded, first[0])
        np.testing.assert_allclose(pages[:SIZE], expected(loaded.x, loaded.s), rtol=1e-5)
        before = accelerator.counts()["descriptors"]
        accelerator.deregister([*first, *later, *beside])
        assert accelerator.counts()["descriptors"] == before - 3
    os.close(fd)


def test_a_file_that_shrank_ends_the_accelerator_at_most(content) -> None:
    with Accelerator() as accelerator:
        loaded = LoadedGraph(accelerator, content)
        fd = os.memfd_create("shrinks")
        os.ftruncate(fd, 1 << 20)
        slots = accelerator.register([(fd, 1 << 19, NBYTES)])
        os.ftruncate(fd, 0)
        assert refused(loaded, slots[0]) is Code.COMMON_SYSTEM_COMMUNICATION
        loaded.close()
        os.close(fd)
    with Accelerator() as accelerator:
        loaded = LoadedGraph(accelerator, content)
        loaded.check()
        loaded.close()


def test_a_slot_is_never_reused_for_other_memory(accelerator, loaded) -> None:
    seen = set()
    with rpcmem.alloc(25, 1, 4096) as old, rpcmem.alloc(25, 1, 4096) as new:
        for _ in range(50):
            ended = accelerator.register([(old.fd, 0, NBYTES)])
            [before] = ended
            accelerator.deregister(ended)
            there = accelerator.register([(new.fd, 0, NBYTES)])
            [after] = there
            assert refused(loaded, before) is Code.MEM_INVALID_HANDLE
            assert not new.array.any()
            # A number that was good once takes nothing away from whoever has its place now.
            accelerator.deregister([before])
            execute(loaded, after)
            accelerator.deregister(there)
            new.array[:] = 0
            assert not {before, after} & seen
            seen |= {before, after}


def test_a_waiting_request_fails_if_its_memory_is_gone_and_uses_no_other(accelerator, loaded) -> None:
    with rpcmem.alloc(25, 1, 4096) as old, rpcmem.alloc(25, 1, 4096) as new:
        slots = accelerator.register([(old.fd, 0, NBYTES)])
        [slot], codes = slots, []
        loaded.queue.lock().acquire()
        waiting = threading.Thread(target=lambda: codes.append(refused(loaded, slot)))
        waiting.start()
        assert eventually(lambda: bool(accelerator.gate.waiting))
        accelerator.deregister(slots)
        replacement = accelerator.register([(new.fd, 0, NBYTES)])
        loaded.queue.lock().release()
        waiting.join(PATIENCE)
        assert codes == [Code.MEM_INVALID_HANDLE]
        assert not new.array.any()
        accelerator.deregister(replacement)


def test_memory_taken_away_during_an_execution_stays_until_it_ends(accelerator, long_content) -> None:
    loaded = LoadedGraph(accelerator, long_content, LONG_SIZE)
    loaded.s[:] = 1
    waiting, codes = start_run(loaded)
    assert eventually(lambda: under_way(loaded))
    assert eventually(lambda: bool(loaded.y.any())), "posted is not begun: it writes"
    before = accelerator.counts()
    accelerator.deregister(loaded.slots)
    during = accelerator.counts()
    assert during["memory"] == before["memory"] - 3
    assert during["descriptors"] == before["descriptors"]
    loaded.y[:] = 0
    assert eventually(lambda: bool(loaded.y.any())), "it goes on with the memory that it was given"
    loaded.queue.abort()
    waiting.join(PATIENCE)
    assert codes == [Code.GRAPH_ABORTED]
    assert refused(loaded, loaded.slots[2]) is Code.MEM_INVALID_HANDLE
    loaded.queue.close()
    assert accelerator.counts()["descriptors"] == before["descriptors"] - 5, "3 buffers, doorbell, binary"


def test_what_is_no_memory_is_refused_and_the_accelerator_lives_on(accelerator, loaded, tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(bytes(8192))
    shared = f"/dev/shm/isthmus-test-{os.getpid()}"
    os.mkfifo(shared + "-pipe")
    with open(shared, "wb") as file:
        file.write(bytes(8192))
    end, other = socket.socketpair()
    fds = {
        "fifo": os.open(tmp_path / "pipe", os.O_RDWR),
        "fifo beside shared memory": os.open(shared + "-pipe", os.O_RDWR),
        "path": os.open(shared, os.O_PATH),
        "path of a fifo": os.open(shared + "-pipe", os.O_PATH),
        "read-only": os.open(shared, os.O_RDONLY),
        "file": os.open(tmp_path / "file", os.O_RDWR),
        "folder": os.open(tmp_path, os.O_RDONLY),
        "socket": end.fileno(),
        "closed": 1 << 20,
        "negative": -1,
    }
    codes = {}
    try:
        for kind, fd in fds.items():
            with pytest.raises(QnnError) as refusal:
                accelerator.register([(loaded.buffers[0].fd, 0, 16), (fd, 0, 4096)])
            codes[kind] = refusal.value.code
    finally:
        os.unlink(shared)
        os.unlink(shared + "-pipe")
        for kind, fd in fds.items():
            if kind not in ("socket", "closed", "negative"):
                os.close(fd)
        end.close()
        other.close()
    assert codes == dict.fromkeys(fds, Code.MEM_INVALID_ARGUMENT) | {"read-only": Code.MEM_MAPPING}
    assert accelerator.counts()["memory"] == 3
    loaded.check()


def test_the_accelerator_refuses_descriptors_that_are_no_shared_memory(accelerator, loaded, tmp_path) -> None:
    read, write = os.pipe()
    end, other = socket.socketpair()
    path = os.open(tmp_path, os.O_PATH)
    for fd in (read, path, end.fileno()):
        for call, arguments in (("register", {"spans": [[0, 16]]}), ("open", {}), ("load", {"queue": 1}),
                                ("kernels", {"target": "portable", "sizes": [["a:b", 8]]})):  # fmt: skip
            with pytest.raises(QnnError):
                accelerator.call(call, [fd], **arguments)
    for each in (read, write, path):
        os.close(each)
    end.close()
    other.close()
    loaded.check()


def test_the_size_of_memory_that_fstat_does_not_report_is_found_by_seeking(monkeypatch) -> None:
    """On some systems fstat tells neither the kind of file nor the size of a DMA buffer."""
    with rpcmem.alloc(25, 1, NBYTES) as buffer:
        *others, _, atime, mtime, ctime = os.fstat(buffer.fd)
        status = os.stat_result((0o600, *others[1:], 0, atime, mtime, ctime))
        expected_size = shared_file(buffer.fd, "shared buffer").nbytes
        assert expected_size >= NBYTES
        monkeypatch.setattr(os, "fstat", lambda fd: status)
        assert shared_file(buffer.fd, "shared buffer").nbytes == _shared_file(buffer.fd).nbytes == expected_size
