"""A call of a process that runs a foreign library ends in time, whatever the process sends or does not read."""

from __future__ import annotations

import os
import resource
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from support.waiting import PATIENCE, eventually, interrupted_when, main_in

from isthmus import qnn
from isthmus.backends.foreign.process import LibraryProcess
from isthmus.errors import Code, QnnError
from isthmus.system import isolated
from isthmus.system.channel import Channel

HEAD = "import socket, struct, sys, time; end = socket.socket(fileno=int(sys.argv[1])); "
DEAF = f"{HEAD} time.sleep({PATIENCE})"
"""A program that reads nothing."""
DRIPPING = f"""{HEAD}
end.recv(1 << 16)
end.sendall(struct.pack("<QQI", 0, 1 << 20, 0))
for _ in range({int(PATIENCE * 200)}):
    end.send(b"x")
    time.sleep(0.005)
"""
"""A program whose answer comes byte by byte."""
ANNOUNCING = f"{HEAD} end.recv(1 << 16); end.sendall(struct.pack('<QQI', 0, {{}}, 0) + bytes(100))"
"""A program that announces more bytes than it sends."""
ECHOING = f"{HEAD} end.recv(20); end.sendall(struct.pack('<QQI', 5, 0, 0)); end.recv(1)"
"""A program that answers a number by another."""
LARGE = {"content": bytes(1 << 23)}
"""More than a socket holds."""

Replace = Callable[[str], None]


@pytest.fixture
def replace(monkeypatch: pytest.MonkeyPatch) -> Replace:
    """Make processes run another program."""

    def command(program: str) -> None:
        line = [sys.executable, "-I", "-S", "-c", program]
        monkeypatch.setattr(isolated, "command", lambda module, *arguments: [*line, *arguments])

    return command


@contextmanager
def many_descriptors(count: int) -> Iterator[None]:
    """Keep all descriptors below a number in use within the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard <= count + 100:
        pytest.skip(f"needs {count + 100} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 100), hard))
    held = []
    try:
        while not held or held[-1] < count:
            held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("program", [DEAF, DRIPPING], ids=["deaf", "dripping"])
def test_a_call_ends_in_time_though_its_message_is_not_read_or_its_answer_never_complete(
    replace: Replace, program: str
) -> None:
    replace(program)
    with LibraryProcess("library", "module", 0.5) as process:
        with pytest.raises(QnnError, match="library: it did not return from its start in time") as late:
            process.call("open", LARGE if program == DEAF else {})
        assert late.value.code is Code.GRAPH_TIMED_OUT
        assert not os.path.exists(f"/proc/{process.pid}")


@pytest.mark.parametrize("program", [DEAF, DRIPPING], ids=["deaf", "dripping"])
def test_an_interrupt_ends_a_call_that_still_sends_or_receives(replace: Replace, program: str) -> None:
    replace(program)
    with LibraryProcess("library", "module", 2 * PATIENCE) as process:
        with pytest.raises(KeyboardInterrupt), interrupted_when(lambda: main_in(Channel._wait)):
            process.call("open", LARGE if program == DEAF else {})
        assert not os.path.exists(f"/proc/{process.pid}")


def test_an_abort_ends_a_call_whose_answer_comes_byte_by_byte(replace: Replace) -> None:
    replace(DRIPPING)
    with LibraryProcess("library", "module", 2 * PATIENCE) as process:
        with pytest.raises(QnnError, match="its process was killed") as aborted:
            process.call_by_number(1, lambda: True)
        assert aborted.value.code is Code.GRAPH_ABORTED


def test_memory_is_allocated_for_the_bytes_that_come_and_not_for_those_announced(replace: Replace) -> None:
    replace(ANNOUNCING.format(1 << 28))
    with LibraryProcess("library", "module", PATIENCE) as process:
        tracemalloc.start()
        try:
            with pytest.raises(QnnError, match="ended the process") as ended:
                process.call("open")
            assert ended.value.code is Code.COMMON_SYSTEM_COMMUNICATION
            assert tracemalloc.get_traced_memory()[1] < 1 << 25
        finally:
            tracemalloc.stop()


def test_an_op_package_whose_answer_is_too_long_is_refused(replace: Replace) -> None:
    replace(ANNOUNCING.format(1 << 27))
    with qnn.Backend("cpu") as backend, pytest.raises(QnnError, match="134,217,728 bytes, more than") as refusal:
        backend.register_op_package("package.so", "provider")
    assert refusal.value.code is Code.BACKEND_OP_PACKAGE_REGISTRATION_FAILED


def test_a_call_works_in_a_program_with_many_open_descriptors(replace: Replace) -> None:
    replace(ECHOING)
    with many_descriptors(1100), LibraryProcess("library", "module", PATIENCE) as process:
        assert process.call_by_number(1).number == 5
        pid = process.pid
    assert eventually(lambda: not os.path.exists(f"/proc/{pid}"))
