"""What the filter for libraries of strangers answers to system calls, on both instruction sets, and in the kernel."""

import ctypes
import errno
import os
import subprocess
import sys

import pytest
from support.call_filters import filter_answer

from isthmus.system.forbidden_calls import MACHINES, program
from isthmus.system.seccomp import ALLOW, ERRNO, KILL, TRAP

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
OURS, OTHER = 4321, 1234
REFUSED = ERRNO | errno.EPERM
NUMBERS = {
    "x86_64": {"read": 0, "mmap": 9, "openat": 257, "socket": 41, "clone": 56, "kill": 62, "ptrace": 101, "bpf": 321},
    "aarch64": {"read": 63, "mmap": 222, "openat": 56, "socket": 198, "clone": 220, "kill": 129, "ptrace": 117,
                "bpf": 280},
}  # fmt: skip
"""Linux's numbers of system calls, which never change."""


def judge(machine, number, arguments=(), architecture=None):
    """Return what the filter for process `OURS` answers to a system call."""
    used = machine.architecture if architecture is None else architecture
    return filter_answer(program(machine, OURS), used, number, arguments)


@pytest.mark.parametrize("name", MACHINES)
def test_the_filter_refuses_what_reaches_out_and_allows_the_rest(name) -> None:
    machine, numbers = MACHINES[name], NUMBERS[name]
    here = os.O_CLOEXEC
    for call, arguments, answer in (
        ("read", (), ALLOW), ("mmap", (), ALLOW), ("socket", (), TRAP), ("ptrace", (), TRAP), ("bpf", (), TRAP),
        ("clone", (0x3D0F00,), ALLOW), ("clone", (0x1200011,), REFUSED),
        ("kill", (OURS,), ALLOW), ("kill", (OTHER,), TRAP), ("kill", (-1,), TRAP), ("kill", (0,), TRAP),
        ("openat", (0, 0, os.O_RDONLY | here), ALLOW), ("openat", (0, 0, os.O_WRONLY | here), TRAP),
        ("openat", (0, 0, os.O_RDWR), TRAP), ("openat", (0, 0, os.O_CREAT), TRAP), ("openat", (0, 0, os.O_TRUNC), TRAP),
    ):  # fmt: skip
        assert judge(machine, numbers[call], arguments) == answer, (call, arguments)
    calls = machine.calls
    for call in ("clone3", "openat2"):
        assert judge(machine, calls[call]) == ERRNO | errno.ENOSYS
    assert judge(machine, calls["process_vm_readv"], (OURS,)) == ALLOW
    assert judge(machine, calls["process_vm_readv"], (OTHER,)) == TRAP
    assert judge(machine, numbers["read"], architecture=0x40000003) == KILL
    if machine.foreign:
        assert judge(machine, machine.foreign | numbers["read"]) == KILL
    assert all(calls[call] == number for call, number in numbers.items() if call in calls)
    assert len(program(machine, OURS)) < 4096


PROBE = """
import os, socket, threading
from isthmus.system import forbidden_calls
if {unknown}: forbidden_calls.MACHINES.clear()
reported, told = [], []
unable = forbidden_calls.forbid(reported.append)
for action in (lambda: socket.socket(), lambda: open("written", "w"), lambda: os.unlink("written"), os.fork,
             lambda: os.kill(os.getppid(), 0), lambda: open("/proc/self/comm"), lambda: os.kill(os.getpid(), 0),
             lambda: os.memfd_create("x"), threading.Thread(target=lambda: None).start):
    if unable: break
    try: action(); told.append("done")
    except PermissionError: told.append("refused")
print(unable, *told, *reported)
"""


def answer_to_a_filter():
    """The error of a filter at address 0: EFAULT if the kernel takes filters, which emulators of kernels may not do."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0, 0, 0) == -1
    return ctypes.get_errno()


@pytest.mark.parametrize("unknown", [False, True])
def test_the_kernel_refuses_forbidden_calls_and_a_missing_filter_is_reported(unknown, tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(unknown=unknown)], capture_output=True, text=True, cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
    )  # fmt: skip
    refused = "refused " * 5 + "done " * 4 + "socket openat unlink kill"
    answer = errno.ENOSYS if unknown else answer_to_a_filter()
    assert done.stdout.strip() == (refused if answer == errno.EFAULT else os.strerror(answer)), done.stderr
    assert not (tmp_path / "written").exists()
