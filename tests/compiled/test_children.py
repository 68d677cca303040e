"""Compilers share out the work, say what they did, and are neither waited for without end nor left behind."""

import os
import signal
import subprocess
import sys
import types

import pytest

from isthmus.compiled import children
from isthmus.compiled.children import compile_into
from isthmus.compiled.folder import Folder
from isthmus.errors import QnnError
from isthmus.system import isolated


@pytest.fixture
def compile_with(tmp_path, monkeypatch):
    """Runs jobs a, b and c with a program in the place of a compiler; it sees its jobs as `jobs`."""

    def run(program, seen=lambda job: None):
        script = f"import os, signal, sys, time; jobs = sys.argv[2:]\n{program}"
        monkeypatch.setattr(isolated, "command", lambda module, *a: [sys.executable, "-I", "-c", script, *a])
        monkeypatch.setattr(children.Progress, "step", lambda progress, job: seen(job))
        compile_into(Folder(tmp_path), "compiler", [], ["a", "b", "c"], "things")

    return run


def test_the_children_are_told_the_folder_and_share_the_jobs(compile_with, tmp_path):
    compile_with("[open(os.environ['ISTHMUS_CACHE_DIR'] + '/' + job, 'x') for job in jobs]")
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


def test_the_children_do_not_work_in_the_folder_of_the_caller(compile_with):
    compile_with("sys.exit(os.getcwd() != '/')")


@pytest.fixture
def clock(monkeypatch):
    """The time as those see it who follow compilers: it passes when a test says so."""
    clock = types.SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(children, "time", clock)
    monkeypatch.setenv("ISTHMUS_COMPILE_SECONDS", "10")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    return clock


def test_one_that_never_ends_is_given_up_with_the_name_of_what_it_was_at(compile_with, tmp_path, clock):
    with pytest.raises(QnnError, match=r"things: b took more than 10 seconds\. Set ISTHMUS_COMPILE_SECONDS"):
        compile_with(
            "open(os.environ['ISTHMUS_CACHE_DIR'] + '/pid', 'w').write(str(os.getpid()))\n"
            "print(jobs[0], flush=True); time.sleep(3600)",
            lambda job: setattr(clock, "now", 10.0),
        )
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_bound_is_for_each_job_and_not_for_all(compile_with, tmp_path, clock):
    jobs = []

    def seen(job):
        jobs.append(job)
        clock.now += 9
        (tmp_path / job).touch()

    compile_with(
        "for job in jobs:\n"
        "    print(job, flush=True)\n"
        "    while not os.path.exists(os.environ['ISTHMUS_CACHE_DIR'] + '/' + job): time.sleep(0.001)",
        seen,
    )
    assert jobs == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("sys.exit('first\\nsecond')", "failed: second$"),
        ("sys.exit(3)", "ended with status 3 while at a"),
        ("os.kill(os.getpid(), signal.SIGKILL)", r"ended by signal 9 \(Killed\) while at a"),
        ("print(jobs[0], flush=True); os.abort()", "ended by signal 6"),
    ],
)
def test_one_that_fails_is_reported_with_its_words_or_its_end(compile_with, program, words):
    with pytest.raises(QnnError, match=words):
        compile_with(program)


def test_much_to_say_stops_nobody(compile_with):
    compile_with("sys.stderr.write('x' * (1 << 20)); print('y' * (1 << 20))")


def test_jobs_are_announced_once_and_counted(compile_with, capsys):
    counted = []
    compile_with("[print(job, flush=True) for job in jobs]", counted.append)
    assert sorted(counted) == ["a", "b", "c"]
    assert capsys.readouterr().err == "isthmus: compiling things, once\n"


def test_an_interrupt_ends_the_children_at_once(tmp_path):
    script = (
        "import os, sys; from pathlib import Path; from isthmus.system import isolated\n"
        "from isthmus.compiled.children import compile_into; from isthmus.compiled.folder import Folder\n"
        "child = 'import signal, sys, time; signal.signal(2, signal.SIG_IGN); sys.stderr.close(); time.sleep(600)'\n"
        "isolated.command = lambda module, *a: [sys.executable, '-c', child]\n"
        "compile_into(Folder(Path(sys.argv[1])), 'compiler', [], ['a', 'b'], 'things')"
    )
    client = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stderr=subprocess.PIPE, text=True)
    assert client.stderr is not None
    assert "compiling things" in client.stderr.readline()
    client.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in client.stderr.read()
    assert client.wait() != 0
    client.stderr.close()
