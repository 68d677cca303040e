"""Confinement: the accelerator gives up descriptors, privileges and most system calls before it is sent anything.

It computes in memory that it is sent and needs nothing else. Afterwards it can open no file or socket, start no program
and signal no process; an attempt to start a process kills it. What the system does not let it give up is reported, not
hidden, and the accelerator works all the same.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from collections.abc import Mapping
from dataclasses import dataclass

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_TSYNC = 1, 1
_CAPABILITY_VERSION_3 = 0x20080522

KILL, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
"""Return values of a filter; an error's number is added to ERRNO."""
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Instructions of a filter (BPF): load an input; compare it with a value and jump; return a value."""
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets of a filter's inputs: the call's number, the instruction set, the low half of the first argument."""

_CLONE_THREAD = 0x00010000
_AT_EMPTY_PATH = 0x1000


@dataclass(frozen=True)
class Machine:
    """The system calls of an instruction set, by name.

    Parameters
    ----------
    architecture
        The kernel's audit constant for it.
    foreign
        The first number of another calling convention; 0 if there is none.
    seccomp
        The number of the call that installs a filter.
    calls
        The numbers of the calls in the filter.
    """

    architecture: int
    foreign: int
    seccomp: int
    calls: Mapping[str, int]


MACHINES = {
    "x86_64": Machine(
        0xC000003E, 0x40000000, 317,
        {
            "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11,
            "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17, "sched_yield": 24,
            "mremap": 25, "madvise": 28, "dup": 32, "nanosleep": 35, "getpid": 39, "sendto": 44, "recvfrom": 45,
            "sendmsg": 46, "recvmsg": 47, "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "exit": 60, "uname": 63,
            "fcntl": 72, "gettimeofday": 96, "getppid": 110, "sigaltstack": 131, "gettid": 186, "time": 201,
            "futex": 202, "sched_getaffinity": 204, "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229,
            "clock_nanosleep": 230, "exit_group": 231, "newfstatat": 262, "set_robust_list": 273, "preadv": 295,
            "getcpu": 309, "getrandom": 318, "execveat": 322, "membarrier": 324, "preadv2": 327, "rseq": 334,
            "clone3": 435,
        },
    ),
    "aarch64": Machine(
        0xC00000B7, 0, 277,
        {
            "dup": 23, "fcntl": 25, "close": 57, "lseek": 62, "read": 63, "write": 64, "pread64": 67, "preadv": 69,
            "newfstatat": 79, "fstat": 80, "exit": 93, "exit_group": 94, "futex": 98, "set_robust_list": 99,
            "nanosleep": 101, "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115,
            "sched_getaffinity": 123, "sched_yield": 124, "restart_syscall": 128, "sigaltstack": 132,
            "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "uname": 160, "getcpu": 168,
            "gettimeofday": 169, "getpid": 172, "getppid": 173, "gettid": 178, "sendto": 206, "recvfrom": 207,
            "sendmsg": 211, "recvmsg": 212, "brk": 214, "munmap": 215, "mremap": 216, "clone": 220, "execve": 221,
            "mmap": 222, "mprotect": 226, "madvise": 233, "getrandom": 278, "execveat": 281, "membarrier": 283,
            "preadv2": 286, "rseq": 293, "clone3": 435,
        },
    ),
}  # fmt: skip

_DEADLY = ("fork", "vfork", "execve", "execveat")
"""Calls that kill the process."""
_UNKNOWN = ("clone3",)
"""Refused as if the kernel lacked them: the C library then uses older calls, whose arguments a filter can inspect."""
_NEEDS_BIT = {"clone": (0, _CLONE_THREAD, KILL), "newfstatat": (3, _AT_EMPTY_PATH, ERRNO | errno.EPERM)}
"""Calls that are allowed only if an argument has a bit set: (number of the argument, bit, return value otherwise).

So threads can be started but no processes, and the status of an open descriptor can be read but not that of a name.
"""


def program(machine: Machine) -> list[tuple[int, int, int, int]]:
    """Return the filter, which the kernel runs at every system call: its instructions as (code, jump if true, jump if
    false, value).

    A jump is the number of instructions to skip. Calls that the filter does not name fail with EPERM.
    """
    instructions = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, machine.architecture), (_RETURN, 0, 0, KILL)]
    instructions += [(_LOAD, 0, 0, _NUMBER)]
    if machine.foreign:
        instructions += [(_AT_LEAST, 0, 1, machine.foreign), (_RETURN, 0, 0, KILL)]
    answers = dict.fromkeys(machine.calls, ALLOW)
    answers |= dict.fromkeys(_DEADLY, KILL) | dict.fromkeys(_UNKNOWN, ERRNO | errno.ENOSYS)
    for name, answer in answers.items():
        if name not in machine.calls:
            # An older call that this instruction set never had.
            continue
        if name in _NEEDS_BIT:
            argument, bit, otherwise = _NEEDS_BIT[name]
            instructions += [(_EQUAL, 0, 4, machine.calls[name]), (_LOAD, 0, 0, _ARGUMENTS + 8 * argument)]
            instructions += [(_ANY_BIT, 0, 1, bit), (_RETURN, 0, 0, ALLOW), (_RETURN, 0, 0, otherwise)]
        else:
            instructions += [(_EQUAL, 0, 1, machine.calls[name]), (_RETURN, 0, 0, answer)]
    return [*instructions, (_RETURN, 0, 0, ERRNO | errno.EPERM)]


def confine(keep: int) -> list[str]:
    """Drop privileges, and all descriptors but `keep` and the first three; return what could not be dropped."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    libc.syscall.restype = ctypes.c_long
    _close_all_but(keep)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    steps = {
        "new privileges": lambda: libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        "capabilities": lambda: _drop_capabilities(libc),
        "system calls": lambda: _install_filter(libc),
    }
    kept = []
    for name, step in steps.items():
        ctypes.set_errno(0)
        if step() != 0:
            kept.append(f"{name}: {os.strerror(ctypes.get_errno())}")
    return kept


def _close_all_but(keep: int) -> None:
    """Close all descriptors but `keep` and the first three, and allow as many new ones as the system permits."""
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.closerange(3, keep)
    os.closerange(keep + 1, min(soft_limit, 1 << 20))
    # Every buffer that it sees takes a descriptor.
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def _drop_capabilities(libc: ctypes.CDLL) -> int:
    """Set all capabilities of this thread to none (24 bytes of zeros); return what the system call returns."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    return libc.capset(header, bytes(24))


def _install_filter(libc: ctypes.CDLL) -> int:
    """Install the filter of system calls; return 0, or -1 with `errno` set, as a system call does."""
    machine = MACHINES.get(platform.machine().replace("arm64", "aarch64"))
    if machine is None:
        ctypes.set_errno(errno.ENOSYS)
        return -1
    instructions = program(machine)
    # The arrays are a `struct sock_filter` for each instruction, and the `struct sock_fprog` that refers to them.
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in instructions))
    header = struct.pack("@HP", len(instructions), ctypes.addressof(code))
    flags = ctypes.c_long(_SECCOMP_FILTER_FLAG_TSYNC)
    mode = ctypes.c_long(_SECCOMP_SET_MODE_FILTER)
    if libc.syscall(ctypes.c_long(machine.seccomp), mode, flags, header) == 0:
        return 0
    # Kernels before 3.17, and sandboxes that know only the older call. There the filter holds for this thread and the
    # threads that it starts.
    place = ctypes.create_string_buffer(header)
    return libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(place), 0, 0)
