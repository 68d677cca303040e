"""The accelerator can open no file, reach no network, start no process, and takes nothing with it from its client."""

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.call_filters import filter_answer

from backends.accelerator.harness import LoadedGraph, exists
from isthmus import Code, QnnError
from isthmus.backends.accelerator.confinement import MACHINES, program
from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.seam import binary
from isthmus.system.seccomp import ALLOW, ERRNO, KILL


def judge(machine, number, arguments=(), architecture=None):
    """Return what the filter answers to a system call."""
    used = machine.architecture if architecture is None else architecture
    return filter_answer(program(machine), used, number, arguments)


@pytest.mark.parametrize("name", MACHINES)
def test_the_filter_allows_needed_calls_and_kills_a_process_that_starts_programs(name) -> None:
    machine = MACHINES[name]
    calls = machine.calls
    for call in ("read", "mmap", "mprotect", "futex", "recvmsg", "sendmsg", "exit_group", "madvise", "fcntl", "lseek"):
        assert judge(machine, calls[call]) == ALLOW
    for call in ("fork", "vfork", "execve", "execveat"):
        if call in calls:
            assert judge(machine, calls[call]) == KILL
    assert judge(machine, calls["clone3"]) == ERRNO | errno.ENOSYS
    thread, process = 0x3D0F00, 0x1200011  # flags by which glibc starts threads, and by which it forks
    assert judge(machine, calls["clone"], (thread, 0, 0, 0)) == ALLOW
    assert judge(machine, calls["clone"], (process, 0, 0, 0)) == KILL
    assert judge(machine, calls["newfstatat"], (3, 0, 0, 0x1000)) == ALLOW
    assert judge(machine, calls["newfstatat"], (3, 0, 0, 0)) == ERRNO | errno.EPERM


NUMBERS = {
    "x86_64": """
        0 read 1 write 3 close 5 fstat 8 lseek 9 mmap 10 mprotect 11 munmap 12 brk 13 rt_sigaction 14 rt_sigprocmask
        15 rt_sigreturn 17 pread64 24 sched_yield 25 mremap 28 madvise 32 dup 35 nanosleep 39 getpid 44 sendto
        45 recvfrom 46 sendmsg 47 recvmsg 56 clone 57 fork 58 vfork 59 execve 60 exit 63 uname 72 fcntl
        96 gettimeofday 110 getppid 131 sigaltstack 186 gettid 201 time 202 futex 204 sched_getaffinity
        219 restart_syscall 228 clock_gettime 229 clock_getres 230 clock_nanosleep 231 exit_group 262 newfstatat
        273 set_robust_list 295 preadv 309 getcpu 318 getrandom 322 execveat 324 membarrier 327 preadv2 334 rseq
        435 clone3
    """,
    "aarch64": """
        23 dup 25 fcntl 57 close 62 lseek 63 read 64 write 67 pread64 69 preadv 79 newfstatat 80 fstat 93 exit
        94 exit_group 98 futex 99 set_robust_list 101 nanosleep 113 clock_gettime 114 clock_getres
        115 clock_nanosleep 123 sched_getaffinity 124 sched_yield 128 restart_syscall 132 sigaltstack
        134 rt_sigaction 135 rt_sigprocmask 139 rt_sigreturn 160 uname 168 getcpu 169 gettimeofday 172 getpid
        173 getppid 178 gettid 206 sendto 207 recvfrom 211 sendmsg 212 recvmsg 214 brk 215 munmap 216 mremap
        220 clone 221 execve 222 mmap 226 mprotect 233 madvise 278 getrandom 281 execveat 283 membarrier
        286 preadv2 293 rseq 435 clone3
    """,
}
"""Linux's numbers of system calls, which never change."""


@pytest.mark.parametrize("name", MACHINES)
def test_system_calls_have_linux_s_numbers(name) -> None:
    words = NUMBERS[name].split()
    assert MACHINES[name].calls == {call: int(number) for number, call in zip(words[::2], words[1::2], strict=True)}
    machine = MACHINES[name]
    assert (machine.architecture, machine.foreign, machine.seccomp) == {
        "x86_64": (0xC000003E, 0x40000000, 317), "aarch64": (0xC00000B7, 0, 277),
    }[name]  # fmt: skip


FORBIDDEN = {
    "x86_64": {"open": 2, "socket": 41, "connect": 42, "kill": 62, "ptrace": 101, "prctl": 157, "tgkill": 234,
               "openat": 257, "process_vm_readv": 310, "memfd_create": 319, "bpf": 321, "openat2": 437},
    "aarch64": {"openat": 56, "ptrace": 117, "kill": 129, "tgkill": 131, "prctl": 167, "socket": 198, "connect": 203,
                "process_vm_readv": 270, "memfd_create": 279, "bpf": 280, "openat2": 437},
}  # fmt: skip


@pytest.mark.parametrize("name", MACHINES)
def test_the_filter_refuses_everything_else(name) -> None:
    machine = MACHINES[name]
    refusal = ERRNO | errno.EPERM
    assert {call: judge(machine, number) for call, number in FORBIDDEN[name].items()} == dict.fromkeys(
        FORBIDDEN[name], refusal
    )
    assert judge(machine, 100_000) == refusal
    assert judge(machine, machine.calls["read"], architecture=0x40000003) == KILL
    if machine.foreign:
        assert judge(machine, machine.foreign | machine.calls["read"]) == KILL


PROBE = """
import os, socket, sys, threading
from isthmus.backends.accelerator.confinement import confine
kept = confine(2)
told = []
for action in (lambda: open("/etc/passwd"), lambda: socket.socket(), lambda: os.kill(os.getppid(), 0),
             lambda: os.readlink("/proc/self/exe"), lambda: os.memfd_create("x")):
    try: action(); told.append("done")
    except PermissionError: told.append("refused")
thread = threading.Thread(target=told.append, args=("thread",)); thread.start(); thread.join()
print(kept, *told, flush=True)
{"exit": lambda: None, "fork": os.fork, "exec": lambda: os.execv("/bin/true", ["true"])}[sys.argv[1]]()
print("still here", flush=True)
"""


@pytest.mark.parametrize("action", ["exit", "fork", "exec"])
def test_a_confined_process_is_held_by_the_kernel(action) -> None:
    done = subprocess.run([sys.executable, "-c", PROBE, action], capture_output=True, text=True,
                          env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)))  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[0] == "[] refused refused refused refused refused thread", done.stderr
    if action == "exit":
        assert lines[1:] == ["still here"]
    else:
        assert (lines[1:], done.returncode) == ([], -signal.SIGSYS)


def test_rights_that_cannot_be_dropped_are_returned() -> None:
    probe = "from isthmus.backends.accelerator import confinement as c; c.MACHINES.clear(); print(c.confine(2))"
    reported = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True,
                          env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)))  # fmt: skip
    assert reported.stdout.strip() == f"['system calls: {os.strerror(errno.ENOSYS)}']"


def test_rights_that_an_accelerator_keeps_are_logged(monkeypatch, caplog) -> None:
    ask = Accelerator.call

    def call(self, name, *arguments, **named):
        answer = ask(self, name, *arguments, **named)
        return answer | {"unconfined": ["system calls: not here"]} if name == "hello" else answer

    monkeypatch.setattr(Accelerator, "call", call)
    with caplog.at_level("WARNING", "isthmus"), Accelerator() as accelerator:
        assert accelerator.unconfined == ("system calls: not here",)
    assert "keeps rights that it does not need: system calls: not here" in caplog.text


def test_an_accelerator_is_confined_before_it_is_sent_anything(content) -> None:
    with Accelerator() as accelerator:
        assert accelerator.unconfined == ()
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{accelerator.pid}/status").read_text().splitlines())
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
        loaded = LoadedGraph(accelerator, content)
        loaded.check()
        tasks = Path(f"/proc/{accelerator.pid}/task")
        assert all("Seccomp:\t2" in (task / "status").read_text() for task in tasks.iterdir())
        loaded.close()


def test_an_accelerator_inherits_neither_descriptors_nor_secrets(monkeypatch) -> None:
    monkeypatch.setenv("API_TOKEN", "secret")
    end, other = socket.socketpair()
    end.set_inheritable(True)
    try:
        with Accelerator() as accelerator:
            assert b"secret" not in Path(f"/proc/{accelerator.pid}/environ").read_bytes()
            kinds = sorted(os.readlink(f"/proc/{accelerator.pid}/fd/{fd}").split(":")[0]
                           for fd in os.listdir(f"/proc/{accelerator.pid}/fd") if int(fd) > 2)  # fmt: skip
            assert kinds == ["socket"]
    finally:
        end.close()
        other.close()


CLIENT = """
from isthmus.backends.accelerator.process import Accelerator
with Accelerator() as accelerator:
    print(accelerator.counts()["queues"])
"""


def test_code_beside_a_model_is_not_run(tmp_path) -> None:
    for name in ("numpy", "json", "socket", "llvmlite", "isthmus"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w').close(); raise SystemExit(9)")
    # The client itself is started so that it does not look there.
    paths = [path for path in sys.path if path]
    done = subprocess.run([sys.executable, "-P" if sys.version_info >= (3, 11) else "-E", "-c",
                           f"import sys; sys.path[:] = {paths!r}\n{CLIENT}"],
                          cwd=tmp_path, capture_output=True, text=True)  # fmt: skip
    assert done.stdout == "0\n", done.stderr
    assert not (tmp_path / "ran").exists()


def test_kernels_that_were_not_sent_are_refused_not_compiled(content, monkeypatch) -> None:
    with Accelerator() as accelerator, Queue(accelerator) as queue, binary.ContextBinary(content) as opened:
        with monkeypatch.context() as patch:
            patch.setattr(accelerator, "provide", lambda *_: None)
            with pytest.raises(QnnError, match="was not sent") as refusal:
                queue.load(opened)
        assert refusal.value.code is Code.COMMON_LOADING_BINARIES
        assert queue.load(opened)
        assert exists(accelerator.pid)
        assert accelerator.counts()["graphs"] == 1
