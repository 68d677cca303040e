"""Confinement: the accelerator gives up descriptors, privileges and most system calls before it is sent anything.

It computes in memory that it is sent and needs nothing else. Afterwards it can open no file or socket, start no program
and signal no process; an attempt to start a process kills it. What the system does not let it give up is reported, not
hidden, and the accelerator works all the same.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct

from isthmus.system.seccomp import (
    ALLOW,
    ANY_BIT,
    ARGUMENTS,
    EQUAL,
    ERRNO,
    KILL,
    LOAD,
    RETURN,
    Instruction,
    Machine,
    beginning,
    give_up_privileges,
    here,
    install,
)

_CAPABILITY_VERSION_3 = 0x20080522
_CLONE_THREAD = 0x00010000
_AT_EMPTY_PATH = 0x1000

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


def program(machine: Machine) -> list[Instruction]:
    """Return the filter. Calls that it does not name fail with EPERM."""
    instructions = beginning(machine)
    answers = dict.fromkeys(machine.calls, ALLOW)
    answers |= dict.fromkeys(_DEADLY, KILL) | dict.fromkeys(_UNKNOWN, ERRNO | errno.ENOSYS)
    for name, answer in answers.items():
        if name not in machine.calls:
            # An older call that this instruction set never had.
            continue
        if name in _NEEDS_BIT:
            argument, bit, otherwise = _NEEDS_BIT[name]
            instructions += [(EQUAL, 0, 4, machine.calls[name]), (LOAD, 0, 0, ARGUMENTS + 8 * argument)]
            instructions += [(ANY_BIT, 0, 1, bit), (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, otherwise)]
        else:
            instructions += [(EQUAL, 0, 1, machine.calls[name]), (RETURN, 0, 0, answer)]
    return [*instructions, (RETURN, 0, 0, ERRNO | errno.EPERM)]


def confine(keep: int) -> list[str]:
    """Drop privileges, and all descriptors but `keep` and the first three; return what could not be dropped."""
    libc = ctypes.CDLL(None, use_errno=True)
    _close_all_but(keep)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    machine = here(MACHINES)
    steps = {
        "new privileges": lambda: give_up_privileges(libc),
        "capabilities": lambda: _drop_capabilities(libc),
        "system calls": lambda: install(libc, machine, program(machine) if machine else ()),
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
