"""The accelerator computes in shared memory, refuses what it was not given, and ends with its client, never alone."""

import contextlib
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from support.processes import descriptors, least_growth, opened_since, stop
from support.waiting import PATIENCE, eventually, run_in_threads

from backends.accelerator.harness import (
    SIZE,
    LoadedGraph,
    children,
    exists,
    expected,
    gate_binary,
    start_run,
    under_way,
)
from isthmus import Code, QnnError
from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.seam import binary
from isthmus.engine.native import doorbell
from isthmus.engine.native.target import portable
from isthmus.memory import rpcmem


def test_the_accelerator_reads_and_writes_the_clients_memory(loaded) -> None:
    generator = np.random.default_rng(0)
    for _ in range(5):
        loaded.x[:], loaded.s[:] = generator.standard_normal((2, SIZE))
        loaded.run()
        np.testing.assert_allclose(loaded.y, expected(loaded.x, loaded.s), rtol=1e-5, atol=1e-6)


def test_the_accelerator_never_loads_the_compiler(accelerator, loaded) -> None:
    loaded.run()
    with open(f"/proc/{accelerator.pid}/maps") as maps:
        assert "numba" not in maps.read()


def test_a_request_after_a_long_rest_wakes_the_accelerator(loaded) -> None:
    loaded.run()
    assert eventually(lambda: loaded.queue._page.words[doorbell.REQUEST_SLEEPER // 8])
    loaded.x[:], loaded.s[:] = 1, 2
    loaded.run()
    np.testing.assert_allclose(loaded.y, expected(loaded.x, loaded.s), rtol=1e-5)


def test_windows_of_one_buffer_are_mapped_once(accelerator, content) -> None:
    before = accelerator.counts()
    with rpcmem.alloc(25, 1, 64 * 4096) as buffer:
        slots = accelerator.register([(buffer.fd, 4096 * n, 4096) for n in range(64)])
        during = accelerator.counts()
        assert during["memory"] - before["memory"] == 64
        assert during["mappings"] - before["mappings"] <= 1
        assert during["descriptors"] - before["descriptors"] == 1
        accelerator.deregister(slots)
    after = accelerator.counts()
    assert (after["memory"], after["descriptors"]) == (before["memory"], before["descriptors"])


def test_many_windows_are_registered_whole_or_not_at_all(accelerator) -> None:
    before = accelerator.counts()["memory"]
    with rpcmem.alloc(25, 1, 4096) as buffer:
        windows = [(buffer.fd, 0, 4096)] * 150
        slots = accelerator.register(windows)
        assert len(set(slots)) == 150
        accelerator.deregister(slots)
        with pytest.raises(QnnError) as refusal:
            accelerator.register([*windows, (buffer.fd, 4096, 1)])
        assert refusal.value.code is Code.MEM_INVALID_SHAPE
    assert accelerator.counts()["memory"] == before


def test_unknown_slots_too_small_memory_and_unknown_graphs_are_refused_and_the_queue_still_works(
    accelerator, loaded
) -> None:
    with rpcmem.alloc(25, 1, 16) as small:
        short = accelerator.register([(small.fd, 0, 16)])
        for slots, code in (
            ([loaded.slots[0], loaded.slots[1], 60_000], Code.MEM_INVALID_HANDLE),
            ([loaded.slots[0], loaded.slots[1], -1], Code.MEM_INVALID_HANDLE),
            ([loaded.slots[0], loaded.slots[1], 1 << 40], Code.MEM_INVALID_HANDLE),
            ([loaded.slots[0], loaded.slots[1], short[0]], Code.MEM_INVALID_SHAPE),
        ):
            loaded.queue.lock().acquire()
            with pytest.raises(QnnError) as refusal:
                loaded.queue.execute(loaded.graph, slots)
            loaded.queue.lock().release()
            assert refusal.value.code is code
        accelerator.deregister(short)
    for graph in (loaded.graph + 1, -2, 1 << 40):
        loaded.queue.lock().acquire()
        with pytest.raises(QnnError) as refusal:
            loaded.queue.execute(graph, loaded.slots)
        loaded.queue.lock().release()
        assert refusal.value.code is Code.GRAPH_INVALID_HANDLE
    loaded.run()


def test_malformed_messages_are_answered_with_an_error(accelerator, loaded) -> None:
    for call, arguments in (
        ("no such call", {}),
        ("load", {"queue": 10**9}),
        ("reset", {"graph": "x"}),
        ("register", {"spans": [[0, 10]]}),
        ("close", {}),
    ):
        with pytest.raises(QnnError):
            accelerator.call(call, **arguments)
    loaded.run()


def test_queues_run_side_by_side_from_many_threads(accelerator, content) -> None:
    graphs = [LoadedGraph(accelerator, content) for _ in range(4)]
    wrong = []

    def work(seed):
        mine = graphs[seed % 4]
        x, s = np.random.default_rng(seed).standard_normal((2, SIZE)).astype(np.float32)
        for _ in range(50):
            mine.queue.lock().acquire()
            mine.x[:], mine.s[:] = x, s
            mine.queue.execute(mine.graph, mine.slots)
            result = mine.y.copy()
            mine.queue.lock().release()
            if not np.allclose(result, expected(x, s), rtol=1e-5, atol=1e-6):
                wrong.append(seed)

    run_in_threads(work, range(8))
    for graph in graphs:
        graph.close()
    assert not wrong


def test_queues_and_graphs_leave_nothing_behind(accelerator, content) -> None:
    def cycle():
        graph = LoadedGraph(accelerator, content)
        graph.run()
        graph.close()

    for _ in range(3):
        cycle()
    mine = descriptors()
    grown = least_growth(accelerator.counts, cycle, 30)
    assert {name: grown[name] for name in ("descriptors", "queues", "graphs", "memory")} == dict.fromkeys(
        ("descriptors", "queues", "graphs", "memory"), 0
    )
    assert grown["mappings"] <= 3
    assert grown["resident_bytes"] <= 1 << 20
    assert not opened_since(mine)


def test_the_doorbell_page_has_room_for_every_line_it_names() -> None:
    words = (doorbell.REQUEST, doorbell.REQUEST_SLEEPER, doorbell.RESPONSE, doorbell.RESPONSE_SLEEPER,
             doorbell.CLIENT_CPU, doorbell.SERVER_CPU, doorbell.STATUS, doorbell.GRAPH, doorbell.ABORT,
             doorbell.SLOTS)  # fmt: skip
    assert all(word % 64 == 0 for word in words)
    assert len(set(words)) == len(words)


def test_closing_ends_the_process_and_is_safe_to_repeat() -> None:
    before = children()
    accelerator = Accelerator()
    pid = accelerator.pid
    assert pid in children()
    accelerator.close()
    accelerator.close()
    assert children() <= before
    assert not exists(pid)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_the_death_of_the_accelerator_ends_a_wait_at_once(content, sign) -> None:
    accelerator = Accelerator()
    loaded = LoadedGraph(accelerator, content)
    loaded.run()
    stop(accelerator.pid)
    waiting, codes = start_run(loaded)
    assert eventually(lambda: under_way(loaded))
    os.kill(accelerator.pid, sign)
    with contextlib.suppress(ProcessLookupError):
        os.kill(accelerator.pid, signal.SIGCONT)
    waiting.join(PATIENCE)
    assert not waiting.is_alive(), "the caller must not hang"
    # Before a signal that is no SIGKILL reaches a thread of the continued process, another one may have answered.
    assert codes == [Code.COMMON_SYSTEM_COMMUNICATION] or (not codes and sign != signal.SIGKILL)
    assert eventually(lambda: not exists(accelerator.pid))
    for later in (loaded.run, lambda: accelerator.call("counts"), lambda: Queue(accelerator)):
        with pytest.raises(QnnError) as refusal:
            later()
        assert refusal.value.code is Code.COMMON_SYSTEM_COMMUNICATION
    loaded.close()
    accelerator.close()


CLIENT = """
import os, sys, threading
from isthmus.backends.accelerator.process import Accelerator
def start():
    global accelerator
    accelerator = Accelerator()
thread = threading.Thread(target=start); thread.start(); thread.join()
other = os.fork() if sys.argv[1] == "fork" else None
if other == 0:
    import time; time.sleep(3600); os._exit(0)
print(accelerator.pid, other or "", accelerator.counts()["queues"], flush=True)
{"exit": lambda: None, "kill": lambda: os.kill(os.getpid(), 9), "fork": lambda: os.kill(os.getpid(), 9)}[sys.argv[1]]()
"""


@pytest.mark.parametrize("way", ["exit", "kill", "fork"])
def test_the_accelerator_never_outlives_its_client(way) -> None:
    client = subprocess.Popen([sys.executable, "-c", CLIENT, way], stdout=subprocess.PIPE, text=True,
                              env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)))  # fmt: skip
    assert client.stdout is not None
    pid, *other, _ = map(int, client.stdout.readline().split())
    try:
        client.wait(PATIENCE)
        assert eventually(lambda: not exists(pid))
    finally:
        client.stdout.close()
        for child in other:
            os.kill(child, signal.SIGKILL)


def test_a_closed_queue_refuses_calls_and_sends_nothing_to_the_accelerator(accelerator, content, monkeypatch) -> None:
    loaded, other = LoadedGraph(accelerator, content), LoadedGraph(accelerator, content)
    loaded.close()
    asked: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(accelerator, "answer", asked.append)
        for call in (lambda: loaded.queue.reset(other.graph), lambda: loaded.queue.rebind(other.graph, 0), loaded.run):
            with pytest.raises(QnnError, match="its context has been freed") as refusal:
                call()
            assert refusal.value.code is Code.CONTEXT_INVALID_HANDLE
    assert asked == []
    other.check()
    other.close()


def test_waiting_for_a_queue_that_is_closed_raises(accelerator, content) -> None:
    loaded = LoadedGraph(accelerator, content)
    loaded.run()
    loaded.queue.lock().acquire()
    codes = []

    def wait():
        try:
            loaded.run()
        except QnnError as problem:
            codes.append(problem.code)

    closing = threading.Thread(target=loaded.queue.close)
    closing.start()
    assert eventually(lambda: accelerator.gate.waiting)
    waiting = threading.Thread(target=wait)
    waiting.start()
    assert eventually(lambda: len(accelerator.gate.waiting) == 2)
    loaded.queue.lock().release()
    closing.join(PATIENCE)
    waiting.join(PATIENCE)
    assert codes == [Code.CONTEXT_INVALID_HANDLE]
    loaded.close()


def test_a_damaged_program_is_refused_by_both_sides(accelerator, content, tmp_path) -> None:
    damaged = bytearray(content)
    damaged[-100] ^= 1
    path = tmp_path / "model.bin"
    path.write_bytes(damaged)
    with pytest.raises(QnnError, match="checksum"):
        binary.ContextBinary(path)
    # A file that is not sealed may change after the client's check, so the accelerator checks again.
    with Queue(accelerator) as queue, open(path, "rb") as file:
        with pytest.raises(QnnError, match="checksum") as refusal:
            accelerator.call("load", [file.fileno()], queue=queue._id)
        assert refusal.value.code is Code.CONTEXT_CREATE_FROM_BINARY
    assert accelerator.alive


def test_a_program_for_an_older_instruction_set_is_executed(accelerator, tmp_path) -> None:
    loaded = LoadedGraph(accelerator, gate_binary(tmp_path, target=portable()))
    loaded.check()
    loaded.close()


def test_a_program_for_another_instruction_set_is_refused(accelerator, content) -> None:
    with binary.ContextBinary(content) as opened, Queue(accelerator) as queue:
        program = next(iter(opened.contents.programs.values()))
        object.__setattr__(program, "target", "neon" if program.target.startswith(("avx", "portable")) else "avx2")
        with pytest.raises(QnnError, match="prepared for") as refusal:
            queue.load(opened)
        assert refusal.value.code is Code.COMMON_INCOMPATIBLE_BINARIES
