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

from isthmus.system import seccomp

_CAPABILITY_VERSION_3 = 0x20080522
_CLONE_THREAD = 0x00010000
_AT_EMPTY_PATH = 0x1000

MACHINES = seccomp.machines("""
    read 0 63, write 1 64, close 3 57, fstat 5 80, lseek 8 62, mmap 9 222, mprotect 10 226, munmap 11 215,
    brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, pread64 17 67, sched_yield 24 124,
    mremap 25 216, madvise 28 233, dup 32 23, nanosleep 35 101, getpid 39 172, sendto 44 206, recvfrom 45 207,
    sendmsg 46 211, recvmsg 47 212, clone 56 220, fork 57 -, vfork 58 -, execve 59 221, exit 60 93, uname 63 160,
    fcntl 72 25, gettimeofday 96 169, getppid 110 173, sigaltstack 131 132, gettid 186 178, time 201 -,
    futex 202 98, sched_getaffinity 204 123, restart_syscall 219 128, clock_gettime 228 113, clock_getres 229 114,
    clock_nanosleep 230 115, exit_group 231 94, newfstatat 262 79, set_robust_list 273 99, preadv 295 69,
    getcpu 309 168, getrandom 318 278, execveat 322 281, membarrier 324 283, preadv2 327 286, rseq 334 293,
    clone3 435 435
""")
"""The calls that it may make, and those that kill it, with their numbers on x86-64 and arm64."""
# Calls that kill the process.
_DEADLY = ("fork", "vfork", "execve", "execveat")
# Refused as if the kernel lacked them: the C library then uses older calls, whose arguments a filter can inspect.
_UNKNOWN = ("clone3",)
# Calls that are allowed only if an argument has a bit set: (number of the argument, bit, return value otherwise).
#
# So threads can be started but no processes, and the status of an open descriptor can be read but not that of a name.
_NEEDS_BIT = {"clone": (0, _CLONE_THREAD, seccomp.KILL), "newfstatat": (3, _AT_EMPTY_PATH, seccomp.ERRNO | errno.EPERM)}


def program(machine: seccomp.Machine) -> list[seccomp.Instruction]:
    """Return the filter. Calls that it does not name fail with EPERM."""
    answers = dict.fromkeys(machine.calls, seccomp.ALLOW)
    answers |= dict.fromkeys(_DEADLY, seccomp.KILL) | dict.fromkeys(_UNKNOWN, seccomp.ERRNO | errno.ENOSYS)
    instructions = seccomp.beginning(machine)
    for name, number in machine.calls.items():
        if name in _NEEDS_BIT:
            argument, bit, otherwise = _NEEDS_BIT[name]
            instructions += seccomp.respond(number, otherwise, argument, [(seccomp.ANY_BIT, bit, seccomp.ALLOW)])
        else:
            instructions += seccomp.respond(number, answers[name])
    return [*instructions, *seccomp.respond_to_rest(seccomp.ERRNO | errno.EPERM)]


def confine(keep: int) -> list[str]:
    """Drop privileges, and all descriptors but `keep` and the first three; return what could not be dropped."""
    libc = ctypes.CDLL(None, use_errno=True)
    _close_all_but(keep)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    machine = seccomp.here(MACHINES)
    steps = {
        "new privileges": lambda: seccomp.give_up_privileges(libc),
        "capabilities": lambda: _drop_capabilities(libc),
        "system calls": lambda: seccomp.install(libc, machine, program(machine) if machine else ()),
    }
    remaining = []
    for name, step in steps.items():
        ctypes.set_errno(0)
        if step() != 0:
            remaining.append(f"{name}: {os.strerror(ctypes.get_errno())}")
    return remaining


def _close_all_but(keep: int) -> None:
    """Close all descriptors but `keep` and the first three, and allow as many new ones as the system permits."""
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.closerange(3, keep)
    # The process that started this one has closed most of them. A limit may be 2**30: too many to close one by one.
    os.closerange(keep + 1, min(soft_limit, 1 << 20) if soft_limit >= 0 else 1 << 20)
    # Every buffer that it sees takes a descriptor.
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def _drop_capabilities(libc: ctypes.CDLL) -> int:
    """Set all capabilities of this thread to none (24 bytes of zeros); return what the system call returns."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    return int(libc.capset(header, bytes(24)))
