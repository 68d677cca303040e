"""A dropped accelerator or queue is ended; a death at any moment is reported; what was loaded does not change."""

import ast
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.processes import stop
from support.waiting import PATIENCE, eventually

import isthmus
from backends.accelerator.harness import SIZE, LoadedGraph, children, exists, expected, start_run
from isthmus import Code, QnnError
from isthmus.backends.accelerator.connection import Connection
from isthmus.backends.accelerator.process import Accelerator, request
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.seam import binary
from isthmus.engine.native import doorbell
from isthmus.system.channel import Channel


def test_a_dropped_accelerator_takes_its_process_with_it() -> None:
    before, threads = children(), set(threading.enumerate())
    accelerator = Accelerator()
    pid = accelerator.pid
    keep = [accelerator]
    del accelerator
    with pytest.warns(ResourceWarning, match="accelerator was dropped"):
        keep.clear()
    assert eventually(lambda: not exists(pid) and children() <= before)
    # Accelerators of other tests may still be there, so only new threads count.
    assert eventually(lambda: not any("isthmus-accelerator" in t.name for t in set(threading.enumerate()) - threads))


def test_a_dropped_queue_is_closed_in_the_accelerator(content) -> None:
    with Accelerator() as accelerator:
        queues = [Queue(accelerator)]
        with binary.ContextBinary(content) as opened:
            queues[0].load(opened)
        assert accelerator.counts()["graphs"] == 1
        with pytest.warns(ResourceWarning, match="queue was dropped"):
            queues.clear()
        counts = accelerator.counts()
        assert (counts["queues"], counts["graphs"]) == (0, 0)


def test_a_queue_and_an_accelerator_that_were_closed_give_no_warning(content) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accelerator = Accelerator()
        LoadedGraph(accelerator, content).close()
        accelerator.close()
        del accelerator
        gc.collect()


@pytest.fixture
def sent(monkeypatch):
    """Return what is sent to accelerators, as it is written."""
    messages, send = [], Channel.send

    def noting(channel, message):
        messages.append(message.header)
        send(channel, message)

    monkeypatch.setattr(Channel, "send", noting)
    return messages


def test_queues_and_slots_are_released_once(content, sent) -> None:
    with Accelerator() as accelerator:
        loaded = LoadedGraph(accelerator, content)
        slots, queue = list(loaded.slots), loaded.queue._id
        loaded.close()
        del loaded
        gc.collect()
        # An answer to this means that all before it is done.
        accelerator.counts()
    given_back = [message for message in sent if message["call"] in ("deregister", "close")]
    assert given_back == [{"call": "close", "queue": queue}, {"call": "deregister", "slots": slots}]


def test_a_call_that_was_abandoned_before_it_was_sent_is_not_made(sent) -> None:
    with Accelerator() as accelerator:
        abandoned = request("open")
        accelerator.connection.abandon(abandoned)
        accelerator.connection.post(abandoned)
        assert accelerator.counts()["queues"] == 0
        assert str(abandoned.refusal).endswith("its caller no longer waits for it")
    assert "open" not in [message["call"] for message in sent]


LOST = [Code.COMMON_SYSTEM_COMMUNICATION]


def kill_before_the_ring(loaded: LoadedGraph, is_noticed) -> list[Code]:
    """Run while the accelerator dies just before the doorbell rings; return the codes of the run."""
    ring = loaded.queue._call

    def ring_too_late(*arguments):
        os.kill(loaded.accelerator.pid, signal.SIGKILL)
        assert eventually(is_noticed)
        ring(*arguments)

    loaded.queue._call = ring_too_late
    waiting, codes = start_run(loaded)
    waiting.join(PATIENCE)
    return codes


def test_a_death_just_before_the_doorbell_rings_is_reported(content) -> None:
    with Accelerator() as accelerator:
        loaded = LoadedGraph(accelerator, content)
        loaded.run()
        assert kill_before_the_ring(loaded, lambda: loaded.queue._response.value == doorbell.GONE) == LOST
        loaded.close()


def test_a_queue_notices_a_death_that_was_not_reported_to_it(content) -> None:
    with Accelerator() as accelerator:
        loaded = LoadedGraph(accelerator, content)
        accelerator.connection.forget(loaded.queue._id)
        assert kill_before_the_ring(loaded, lambda: True) == LOST
        loaded.close()


def test_creating_a_queue_of_a_dead_accelerator_is_refused() -> None:
    accelerator = Accelerator()
    os.kill(accelerator.pid, signal.SIGKILL)
    assert eventually(lambda: not accelerator.alive)
    with pytest.raises(QnnError) as refusal:
        Queue(accelerator)
    assert refusal.value.code is Code.COMMON_SYSTEM_COMMUNICATION
    accelerator.close()


def test_calls_that_are_under_way_or_queued_at_death_are_all_answered() -> None:
    accelerator = Accelerator()
    stop(accelerator.pid)
    requests = [request("counts") for _ in range(20)]
    for each in requests:
        accelerator.connection.post(each)
    os.kill(accelerator.pid, signal.SIGKILL)
    for each in requests:
        with pytest.raises(QnnError) as refusal:
            accelerator.answer(each, PATIENCE)
        assert refusal.value.code is Code.COMMON_SYSTEM_COMMUNICATION
    accelerator.close()


def test_a_process_that_cannot_be_started_is_a_refusal(monkeypatch) -> None:
    before = children()
    monkeypatch.setattr("isthmus.system.isolated.command", lambda *_: ["/no/such/interpreter"])
    with pytest.raises(QnnError, match="cannot be started") as refusal:
        Accelerator()
    assert refusal.value.code is Code.COMMON_SYSTEM
    monkeypatch.setattr("isthmus.system.isolated.command", no_interpreter)
    with pytest.raises(QnnError, match="embedded"):
        Accelerator()
    monkeypatch.setattr("isthmus.system.isolated.command", lambda *_: ["/bin/false"])
    with pytest.raises(QnnError) as refusal:
        Accelerator()
    assert refusal.value.code is Code.COMMON_SYSTEM_COMMUNICATION
    monkeypatch.setattr(threading.Thread, "start", no_more_threads)
    with pytest.raises(QnnError, match="starts no more") as refusal:
        Connection().start()
    assert refusal.value.code is Code.COMMON_RESOURCE_UNAVAILABLE
    assert eventually(lambda: children() <= before)


def test_a_client_without_descriptors_is_refused_an_accelerator() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = os.open("/dev/null", os.O_RDONLY)
    codes = set()
    Accelerator().close()
    for free in range(8):
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken + free, limits[1]))
        try:
            Accelerator().close()
        except QnnError as problem:
            codes.add(problem.code)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    os.close(taken)
    assert codes == {Code.COMMON_RESOURCE_UNAVAILABLE}


def no_interpreter(*_):
    raise QnnError(Code.COMMON_PLATFORM_NOT_SUPPORTED, "child process", "this interpreter is embedded")


def no_more_threads(thread):
    raise RuntimeError("can't start new thread")


def test_a_client_that_waits_for_all_children_does_not_confuse_the_accelerator(content) -> None:
    with Accelerator() as accelerator:
        loaded = LoadedGraph(accelerator, content)
        waiting = threading.Thread(target=wait_for_children, args=(lambda: not accelerator.alive,))
        waiting.start()
        os.kill(accelerator.pid, signal.SIGKILL)
        waiting.join(PATIENCE)
        assert not accelerator.alive
        with pytest.raises(QnnError):
            loaded.run()
        loaded.close()


def wait_for_children(enough):
    """Wait for whatever child ends, as a client's own loop does; one that ended long ago may be none of ours."""
    limit = time.monotonic() + PATIENCE
    while not enough() and time.monotonic() < limit:
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize("change", ["rewritten", "cut short", "removed"])
def test_a_file_may_change_under_what_was_loaded_from_it(content, tmp_path, change) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with Accelerator() as accelerator, Queue(accelerator) as queue:
        loaded = LoadedGraph(accelerator, content)
        with open(path, "rb") as file:
            [graph] = accelerator.call("load", [file.fileno()], queue=queue._id)["graphs"]
        if change == "rewritten":
            path.write_bytes(bytes(len(content)))
        elif change == "cut short":
            os.truncate(path, 0)
        else:
            path.unlink()
        loaded.x[:], loaded.s[:] = np.random.default_rng(0).standard_normal((2, SIZE))
        with queue.lock():
            queue.execute(graph, loaded.slots)
            queue.reset(graph)
        np.testing.assert_allclose(loaded.y, expected(loaded.x, loaded.s), rtol=1e-5, atol=1e-6)
        loaded.close()


def test_sealed_contents_are_mapped_not_copied(content) -> None:
    with Accelerator() as accelerator, Queue(accelerator) as queue:

        def mapped():
            with open(f"/proc/{accelerator.pid}/maps") as maps:
                return sum("memfd:isthmus-context" in line for line in maps)

        with binary.ContextBinary(content) as opened:
            queue.load(opened)
        assert mapped() == 1
        queue.close()
        accelerator.counts()
        assert mapped() == 0


def test_names_of_any_length_and_many_graphs_reach_the_accelerator(content) -> None:
    with binary.ContextBinary(content) as opened:
        [program] = opened.contents.programs.values()
    names = [f"{n} " + "\N{GREEK SMALL LETTER GAMMA}" * (2_000_000 if n == 0 else 100) for n in range(600)]
    programs = [replace(program, name=name) for name in names]
    many = binary.to_bytes(programs, "htp")
    with Accelerator() as accelerator, Queue(accelerator) as queue, binary.ContextBinary(many) as opened:
        numbers = queue.load(opened)
        assert set(numbers) == {program.name for program in programs}
        assert accelerator.counts()["graphs"] == 600


def test_a_call_that_is_too_long_is_refused_and_the_next_is_answered() -> None:
    with Accelerator() as accelerator:
        with pytest.raises(QnnError, match="more than") as refusal:
            accelerator.call("deregister", slots=["x" * (65 << 20)])
        assert refusal.value.code is Code.COMMON_INVALID_ARGUMENT
        assert accelerator.counts()["memory"] == 0


def test_a_queue_that_the_collector_has_closed_is_not_closed_twice() -> None:
    with Accelerator() as accelerator:
        queue = Queue(accelerator)
        with pytest.warns(ResourceWarning, match="dropped without being closed"):
            queue._ending.run()
        queue.close()
        assert accelerator.counts()["queues"] == 0


def test_an_accelerator_that_sends_malformed_answers_is_ended(content) -> None:
    with Accelerator() as accelerator:
        loaded = LoadedGraph(accelerator, content)
        ring = loaded.queue._call

        def answer(address, number, spins, span):
            ring(address, number, spins, span)
            loaded.queue._status.value = 1234567

        loaded.queue._call = answer
        with pytest.raises(QnnError, match="status 1234567") as refusal:
            loaded.run()
        assert refusal.value.code is Code.COMMON_SYSTEM_COMMUNICATION
        assert not accelerator.alive
        assert not exists(accelerator.pid)
        loaded.close()


ECHO = """
import json, socket, sys
sys.path.insert(0, sys.argv[3])
from isthmus.system.channel import Channel, Message
channel = Channel(socket.socket(fileno=int(sys.argv[1])))
channel.send(Message(json.loads(sys.argv[2]), number=channel.receive().number))
channel.receive()
"""


@pytest.mark.parametrize("answer", ["{}", '{"pid": "x", "unconfined": []}', '{"error": [99999, "", "", ""]}',
                                    '{"error": 7}', '{"error": [1000, 1, 2, 3]}'])  # fmt: skip
def test_an_answer_that_means_nothing_is_error_1007(monkeypatch, answer) -> None:
    before = children()
    source = str(Path(isthmus.__file__).parents[1])
    command = lambda _, fd, parent: [sys.executable, "-c", ECHO, fd, answer, source]  # noqa: E731
    monkeypatch.setattr("isthmus.system.isolated.command", command)
    with pytest.raises(QnnError) as refusal:
        Accelerator()
    assert refusal.value.code is Code.COMMON_SYSTEM_COMMUNICATION
    assert eventually(lambda: children() <= before)


def test_an_error_says_why_a_process_ended_without_its_traceback(monkeypatch, capfd) -> None:
    broken = [sys.executable, "-c", "print('on the client''s output'); raise ImportError('no module of that name')"]
    monkeypatch.setattr("isthmus.system.isolated.command", lambda *_: broken)
    with pytest.raises(QnnError, match="ImportError: no module of that name") as refusal:
        Accelerator()
    assert "\n" not in str(refusal.value)
    assert capfd.readouterr() == ("", "")


def test_the_accelerator_has_no_descriptor_of_the_client(tmp_path) -> None:
    secret = tmp_path / "secret"
    code = (
        "import os; from isthmus.backends.accelerator.process import Accelerator\n"
        "with Accelerator() as a:\n"
        "    print({fd: os.readlink(f'/proc/{a.pid}/fd/{fd}') for fd in os.listdir(f'/proc/{a.pid}/fd')})"
    )
    with secret.open("w") as own:
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.stdout = sys.stderr\n{code}"], stdout=own, stdin=subprocess.PIPE,
            stderr=subprocess.PIPE, pass_fds=(own.fileno(),), text=True, timeout=PATIENCE,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    held = ast.literal_eval(done.stderr.splitlines()[-1])
    assert held.pop("0") == held.pop("1") == "/dev/null"
    assert held.pop("2").startswith("pipe:")
    assert [name.partition(":")[0] for name in held.values()] == ["socket"], "its own end of the channel"


@pytest.mark.parametrize("moment", ["before it runs", "while it runs"])
def test_an_interrupt_of_the_terminal_does_not_reach_the_accelerator(content, moment) -> None:
    """The terminal's Ctrl-C goes to every process of the client's group."""
    code = (
        "import os, signal, sys, threading\n"
        "seen = []\n"
        "signal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
        "from isthmus.backends.accelerator.process import Accelerator\n"
        "from isthmus.system import isolated\n"
        "start = isolated.environment\n"
        "def interrupt():\n"
        "    os.killpg(0, signal.SIGINT)\n"
        "def environment():\n"
        "    threading.Timer(0.05, interrupt).start()\n"
        "    return start()\n"
        "if sys.argv[1] == 'before it runs':\n"
        "    isolated.environment = environment\n"
        "with Accelerator() as a:\n"
        "    interrupt()\n"
        "    assert a.counts()['queues'] == 0\n"
        "assert seen\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, moment], capture_output=True, text=True, timeout=PATIENCE, start_new_session=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_client_without_standard_streams_has_an_accelerator() -> None:
    code = (
        "import os; os.closerange(0, 2)\n"
        "from isthmus.backends.accelerator.process import Accelerator\n"
        "with Accelerator() as a: assert a.counts()['queues'] == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
