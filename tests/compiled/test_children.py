"""Compilers share out the work, within a process and between processes, and are neither waited for without end nor left
behind."""

import errno
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import types
from pathlib import Path

import pytest
from support.waiting import eventually

import isthmus
from isthmus.compiled import children
from isthmus.compiled.children import CodePiece, Compiler, compile_missing, provide
from isthmus.compiled.folder import Folder, Unavailable
from isthmus.errors import QnnError
from isthmus.system import isolated

SERVER = """
import os, sys, types
sys.path[:0] = [{source!r}, {modules!r}]
sys.modules["isthmus.compiled.objects"] = types.SimpleNamespace(warm_up=lambda: None)
from isthmus.compiled import compile_server
sys.exit(compile_server.main(sys.argv[1:]))
"""
COMPILER = """
import os, signal, sys, time
from pathlib import Path
here = Path({here!r})
def compile_job(job):
    with open(here / "jobs", "a") as jobs:
        jobs.write(job)
{body}
    return "key of " + job, b"code of " + job.encode()
"""
FAKE = Compiler("fake_compiler", (), lambda count: f"{count} things")
PIECES = [CodePiece(job, f"{job}.o", f"key of {job}") for job in "abc"]
CODES = {job: b"code of " + job.encode() for job in "abc"}


@pytest.fixture
def compile_with(tmp_path, monkeypatch):
    """Compiles a, b and c with lines of Python in the place of a compiler, which know `job` and the folder `here`."""
    monkeypatch.setattr(children, "_in_memory", {})
    monkeypatch.setattr(children, "_reported", set())
    monkeypatch.setattr(children, "_idle", [])
    source = str(Path(isthmus.__file__).parents[1])
    script = SERVER.format(source=source, modules=str(tmp_path))
    monkeypatch.setattr(isolated, "command", lambda module, *a: [sys.executable, "-I", "-B", "-c", script, *a])

    def run(body="pass", seen=lambda job: None, pieces=PIECES):
        monkeypatch.setattr(children.Progress, "step", lambda progress, job: seen(job))
        text = COMPILER.format(here=str(tmp_path), body=textwrap.indent(body, "    "))
        (tmp_path / "fake_compiler.py").write_text(text)
        return compile_missing(FAKE, Folder(tmp_path / "cache"), pieces)

    yield run
    children._end_all()


def jobs_in(folder):
    """The jobs that the compiler was asked for."""
    file = folder / "jobs"
    return sorted(file.read_text()) if file.exists() else []


def test_each_piece_is_compiled_once_and_found_again(compile_with, tmp_path) -> None:
    assert compile_with() == CODES
    assert compile_with("raise AssertionError") == CODES
    assert jobs_in(tmp_path) == ["a", "b", "c"]
    assert sorted(os.listdir(tmp_path / "cache")) == ["a.o", "b.o", "c.o"]


def test_pieces_are_compiled_at_the_same_time(compile_with, monkeypatch) -> None:
    """Each job waits for the others: one after the other they would never end."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert compile_with("while len((here / 'jobs').read_text()) < 3: time.sleep(0.001)") == CODES


def test_a_later_compilation_finds_the_server_and_sees_edited_sources(compile_with) -> None:
    compile_with("assert (here / 'pid').write_text(str(os.getppid()))", pieces=PIECES[:1])
    [server] = children._idle
    compile_with("assert (here / 'pid').read_text() == str(os.getppid())", pieces=PIECES[1:])
    assert children._idle == [server]


@pytest.mark.parametrize("notices", [True, False], ids=["before", "while asking"])
def test_a_server_that_has_ended_for_lack_of_work_is_replaced(compile_with, monkeypatch, notices) -> None:
    if not notices:
        monkeypatch.setattr(children, "_reap", lambda server: None)
    compile_with(pieces=PIECES[:1])
    [server] = children._idle
    server.channel._socket.shutdown(socket.SHUT_WR)
    assert server.wait() == 0
    if not notices:
        monkeypatch.setattr(children._Server, "alive", True)
    assert compile_with(pieces=PIECES[1:]) == {job: CODES[job] for job in "bc"}


def test_a_server_ends_when_it_has_nothing_to_do(compile_with, monkeypatch) -> None:
    script = isolated.command("")[4].replace("sys.exit", "compile_server.IDLE_SECONDS = 0.1; sys.exit")
    monkeypatch.setattr(isolated, "command", lambda module, *a: [sys.executable, "-I", "-B", "-c", script, *a])
    compile_with()
    assert eventually(lambda: not children._idle)


def test_a_server_can_be_started_ahead(compile_with) -> None:
    children.prepare()
    children.prepare()
    [server] = children._idle
    assert compile_with() == CODES
    assert children._idle == [server]


def test_the_compilers_do_not_work_in_the_folder_of_the_caller(compile_with) -> None:
    compile_with("assert os.getcwd() == '/'")


@pytest.fixture
def clock(monkeypatch):
    """The clock by which time limits of compilers are measured; tests move it."""
    clock = types.SimpleNamespace(now=0.0, sleep=time.sleep)
    clock.monotonic = lambda: clock.now() if callable(clock.now) else clock.now
    monkeypatch.setattr(children, "time", clock)
    monkeypatch.setenv("ISTHMUS_COMPILE_SECONDS", "10")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    return clock


def test_a_compiler_that_never_ends_is_given_up_with_the_name_of_its_job(compile_with, tmp_path, clock) -> None:
    clock.now = lambda: 10.0 if (tmp_path / "pid").exists() else 0.0
    with pytest.raises(QnnError, match=r"things: b took more than 10 seconds\. Set ISTHMUS_COMPILE_SECONDS"):
        compile_with("if job == 'b':\n    (here / 'pid').write_text(str(os.getpid())); time.sleep(3600)")
    worker = int((tmp_path / "pid").read_text())
    assert eventually(lambda: not _runs(worker))
    assert sorted(os.listdir(tmp_path / "cache")) == ["a.o"], "no claim is left"


def _runs(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_the_time_limit_is_for_each_job_and_not_for_all(compile_with, clock) -> None:
    def seen(job):
        clock.now += 9

    assert compile_with(seen=seen) == CODES


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('first\\nsecond')", "failed: second$"),
        ("os._exit(3)", r"ended \(status 3\) while at a"),
        ("os.kill(os.getpid(), signal.SIGKILL)", r"ended \(SIGKILL\) while at a"),
        ("os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)", r"the compiler failed: it ended \(SIGKILL\)"),
    ],
)
def test_a_compiler_that_fails_is_reported_with_its_message_or_its_exit_status(
    compile_with, monkeypatch, body, words
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with pytest.raises(QnnError, match=words):
        compile_with(body)
    assert compile_with() == CODES, "the next attempt begins anew"


def test_a_server_that_does_not_start_is_reported_with_its_words(compile_with, monkeypatch) -> None:
    monkeypatch.setattr(isolated, "command", lambda *a: [sys.executable, "-c", "raise SystemExit('no\\nreason')"])
    with pytest.raises(QnnError, match="the compiler failed: reason"):
        compile_with()


def test_a_process_without_free_descriptors_gets_an_error_that_says_so(compile_with, monkeypatch) -> None:
    def refuse(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socketpair", refuse)
    with pytest.raises(QnnError, match="compiler: it cannot be started: Too many open files"):
        compile_with()


def test_a_child_with_much_output_does_not_block(compile_with) -> None:
    assert compile_with("sys.stderr.write('x' * (1 << 20)); print('y' * (1 << 20))") == CODES


def test_jobs_are_announced_once_and_counted(compile_with, capsys) -> None:
    counted = []
    compile_with(seen=counted.append)
    assert sorted(counted) == ["a", "b", "c"]
    assert capsys.readouterr().err == "isthmus: compiling 3 things, once\n"


def test_an_interrupt_ends_the_compilers_at_once(tmp_path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from isthmus.system import isolated\n"
        "from isthmus.compiled.children import *; from isthmus.compiled.folder import Folder\n"
        "child = 'import signal, sys, time; signal.signal(2, signal.SIG_IGN); sys.stderr.close(); time.sleep(600)'\n"
        "isolated.command = lambda module, *a: [sys.executable, '-c', child]\n"
        "pieces = [CodePiece('a', 'a.o', 'k')]\n"
        "compile_missing(Compiler('x', (), lambda n: 'things'), Folder(Path(sys.argv[1])), pieces)"
    )
    client = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stderr=subprocess.PIPE, text=True)
    assert client.stderr is not None
    assert "compiling things" in client.stderr.readline()
    client.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in client.stderr.read()
    assert client.wait() != 0
    client.stderr.close()
    assert os.listdir(tmp_path) == []


def test_only_the_piece_that_another_process_compiles_is_waited_for(compile_with, tmp_path, monkeypatch, capfd) -> None:
    """The claim on b is held until the others are there."""
    monkeypatch.setattr(children, "_SILENT", 0.0)
    folder = Folder(tmp_path / "cache")
    claim = folder.claim("b.o")

    def other():
        assert eventually(lambda: {"a.o", "c.o"} <= set(os.listdir(folder.path)))
        folder.write("b.o", "key of b", b"theirs")
        claim.release()

    thread = threading.Thread(target=other)
    thread.start()
    assert compile_with() == {**CODES, "b": b"theirs"}
    thread.join()
    assert jobs_in(tmp_path) == ["a", "c"]
    waiting = f"isthmus: waiting for process {os.getpid()}, which compiles b, for 0 s, at most 300 s more\n"
    assert waiting in capfd.readouterr().err
    assert sorted(os.listdir(folder.path)) == ["a.o", "b.o", "c.o"]


def test_a_short_wait_is_not_reported(compile_with, tmp_path, capfd) -> None:
    claim = Folder(tmp_path / "cache").claim("b.o")
    threading.Timer(0.1, claim.release).start()
    assert compile_with() == CODES
    assert "waiting" not in capfd.readouterr().err


def test_what_a_killed_process_had_claimed_is_compiled(compile_with, tmp_path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from isthmus.compiled.folder import Folder\n"
        "Folder(Path(sys.argv[1])).claim('b.o'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "cache")], check=False)
    assert (tmp_path / "cache" / "b.o.lock").exists()
    assert compile_with() == CODES


def test_a_claim_that_is_never_released_is_not_waited_for_without_end(
    compile_with, tmp_path, monkeypatch, capfd
) -> None:
    claim = Folder(tmp_path / "cache").claim("b.o")
    monkeypatch.setattr(children._Wait, "__init__", _began_long_ago)
    assert compile_with() == CODES
    assert "which compiles b, takes too long; compiling it here too" in capfd.readouterr().err
    claim.release()


def _began_long_ago(wait, job):
    wait._job, wait._began, wait._next = job, -1e9, 0.0


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_an_invalid_limit_is_refused(compile_with, monkeypatch, text) -> None:
    monkeypatch.setenv("ISTHMUS_COMPILE_SECONDS", text)
    with pytest.raises(QnnError, match="number of seconds above 0"):
        compile_with()


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_code_that_cannot_be_stored_is_used_from_memory_and_that_is_logged_once(
    compile_with, monkeypatch, capfd, fault
) -> None:
    def refuse(self, *_):
        raise self._unavailable("written", OSError(fault, os.strerror(fault)))

    monkeypatch.setattr(Folder, "write", refuse)
    if fault in (errno.EACCES, errno.EROFS):
        monkeypatch.setattr(Folder, "claim", refuse)
    assert compile_with() == CODES
    said = capfd.readouterr().err
    assert said.count(os.strerror(fault)) == 1
    assert "Code is compiled only for this process." in said
    assert compile_with("raise AssertionError") == CODES
    assert capfd.readouterr().err == ""


def test_a_shortage_of_this_process_is_an_error(compile_with, monkeypatch) -> None:
    def refuse(self, *_):
        raise self._unavailable("written", OSError(errno.EMFILE, os.strerror(errno.EMFILE)))

    monkeypatch.setattr(Folder, "write", refuse)
    with pytest.raises(Unavailable, match="Raise the limit"):
        compile_with()


def test_sources_that_are_edited_meanwhile_are_read_again(compile_with, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path / "cache"))
    compile_with(pieces=[])
    keys = iter(["an old key", "key of a"])
    forgotten = []
    codes = provide(FAKE, lambda: [CodePiece("a", "a.o", next(keys))], lambda: forgotten.append(True))
    assert codes == {"a": b"code of a"}
    assert len(forgotten) == 1
    with pytest.raises(QnnError, match="1 things: its sources were edited while it was compiled"):
        provide(FAKE, lambda: [CodePiece("a", "x.o", "never this key")])


def test_a_forked_child_leaves_the_server_to_its_parent(compile_with) -> None:
    compile_with()
    [server] = children._idle
    child = os.fork()
    if child == 0:
        os._exit(len(children._idle))
    assert os.waitpid(child, 0)[1] == 0
    assert server.alive
