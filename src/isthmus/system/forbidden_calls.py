"""System calls that a library of a stranger may not make in its process: a filter that refuses them and names them.

A model library composes graphs, an op package computes: both need memory, threads and files to read, and neither needs
the network, other programs and processes, or files to write. A call of those fails with EPERM ("Operation not
permitted"), and the client is told its name.

It is a list of what is forbidden, not of what is allowed: nobody knows what a library needs to compute. Reading files
is not restricted. What the process already has open, it keeps.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

from isthmus.system import seccomp

FORBIDDEN = {
    "the network": """
        socket 41 198, socketpair 53 199, bind 49 200, connect 42 203, listen 50 201, accept 43 202,
        accept4 288 242, io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427
    """,
    "other programs and processes": """
        execve 59 221, execveat 322 281, fork 57 -, vfork 58 -, clone 56 220, clone3 435 435
    """,
    "signals to other processes": """
        kill 62 129, tkill 200 130, tgkill 234 131, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240,
        pidfd_send_signal 424 424, fcntl 72 25
    """,
    "other processes": """
        ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, process_madvise 440 440,
        process_mrelease 448 448, kcmp 312 272, pidfd_open 434 434, pidfd_getfd 438 438, prlimit64 302 261,
        move_pages 279 239, migrate_pages 256 238, ioctl 16 29
    """,
    "files": """
        open 2 -, openat 257 56, openat2 437 437, open_by_handle_at 304 265, creat 85 -, truncate 76 45,
        rename 82 -, renameat 264 38, renameat2 316 276, link 86 -, linkat 265 37, symlink 88 -, symlinkat 266 36,
        unlink 87 -, unlinkat 263 35, rmdir 84 -, mkdir 83 -, mkdirat 258 34, mknod 133 -, mknodat 259 33,
        chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -, fchown 93 55, lchown 94 -,
        fchownat 260 54, utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88, setxattr 188 5,
        lsetxattr 189 6, fsetxattr 190 7, setxattrat 463 463, removexattr 197 14, lremovexattr 198 15,
        fremovexattr 199 16, removexattrat 466 466
    """,
    "file systems and namespaces": """
        mount 165 40, umount2 166 39, mount_setattr 442 442, move_mount 429 429, open_tree 428 428, fsopen 430 430,
        fsconfig 431 431, fsmount 432 432, fspick 433 433, pivot_root 155 41, chroot 161 51, unshare 272 97,
        setns 308 268, swapon 167 224, swapoff 168 225, quotactl 179 60, quotactl_fd 443 443, fanotify_init 300 262
    """,
    "the kernel": """
        bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, add_key 248 217, request_key 249 218,
        keyctl 250 219, init_module 175 105, finit_module 313 273, delete_module 176 106, kexec_load 246 104,
        kexec_file_load 320 294, reboot 169 142, acct 163 89, iopl 172 -, ioperm 173 -, syslog 103 116,
        settimeofday 164 170, clock_settime 227 112, adjtimex 159 171, clock_adjtime 305 266, sethostname 170 161,
        setdomainname 171 162, vhangup 153 58
    """,
}
"""What a library may not reach, and the calls that reach it, with their numbers on x86-64 and arm64.

io_uring does whatever other calls do, and no filter sees it. Pairs of sockets are among them because such a socket can
send to any other of this machine.
"""


@dataclass(frozen=True)
class Exempt:
    """The arguments with which a forbidden call is allowed.

    - `argument`: The number of the argument that decides. Only its low half is compared; the kernel uses no more of
      such arguments.
    - `values`: It is allowed if the argument has one of these values; None stands for the id of this process.
    - `with_bit`: It is allowed if the argument has this bit.
    - `without_bits`, `without_values`: It is allowed if the argument has none of these.
    """

    argument: int
    values: tuple[int | None, ...] = ()
    with_bit: int = 0
    without_bits: int = 0
    without_values: tuple[int, ...] = ()


_CLONE_THREAD = 0x00010000
# Flags of open that write, create or truncate a file; the last is that of a file without a name (O_TMPFILE).
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | 0o20000000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
EXEMPT = {
    "clone": Exempt(0, with_bit=_CLONE_THREAD),
    "open": Exempt(1, without_bits=_WRITING),
    "openat": Exempt(2, without_bits=_WRITING),
    **dict.fromkeys(("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"), Exempt(0, (None,))),
    # Our own code reads a library's memory in this way, since its pointers may be wrong.
    **dict.fromkeys(("process_vm_readv", "process_vm_writev"), Exempt(0, (None,))),
    "prlimit64": Exempt(0, (0, None)),
    # F_SETOWN, F_SETSIG and F_SETOWN_EX choose who gets a signal. The others type into a terminal.
    "fcntl": Exempt(1, without_values=(8, 10, 15)),
    "ioctl": Exempt(1, without_values=(_TIOCSTI, _TIOCLINUX)),
}
"""Forbidden calls that are allowed with some arguments: threads, files to read, this process itself."""
# Refused as if the kernel lacked them: the C library then uses older calls, whose arguments a filter can inspect.
_UNKNOWN = ("clone3", "openat2")
# Refused without a signal: the C library blocks all signals around them, and one that is blocked ends the process.
_UNNAMED = ("clone", "fork", "vfork")


MACHINES = seccomp.machines(",".join(FORBIDDEN.values()))
REFUSED = "which is forbidden to it and was refused"
"""What becomes of a forbidden call, for messages."""
# Offset of a call's result in the context of a signal handler: the registers RAX and X0.
_RESULT = {"x86_64": 144, "aarch64": 184}
# Offset of a call's number in the information of a signal handler.
_CALL = 24
_SA_SIGINFO, _SA_NODEFER = 4, 0x40000000


class _SignalAction(ctypes.Structure):
    """C's `struct sigaction` on these machines."""

    _fields_ = (
        ("handler", ctypes.c_void_p), ("mask", ctypes.c_byte * 128), ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )  # fmt: skip


_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
# Handlers, which must exist until the process ends.
_handlers: list[object] = []


def _refusal(name: str) -> int:
    """Return the filter's answer to a forbidden call."""
    if name in _UNKNOWN:
        return seccomp.ERRNO | errno.ENOSYS
    return seccomp.ERRNO | errno.EPERM if name in _UNNAMED else seccomp.TRAP


def program(machine: seccomp.Machine, process: int) -> list[seccomp.Instruction]:
    """Return the filter for a process of this id."""
    instructions = seccomp.beginning(machine)
    for name, number in machine.calls.items():
        rule, refusal = EXEMPT.get(name), _refusal(name)
        if rule is None:
            instructions += seccomp.respond(number, refusal)
            continue
        tests = [(seccomp.EQUAL, process if value is None else value, seccomp.ALLOW) for value in rule.values]
        tests += [(seccomp.EQUAL, value, refusal) for value in rule.without_values]
        if rule.with_bit:
            tests.append((seccomp.ANY_BIT, rule.with_bit, seccomp.ALLOW))
        if rule.without_bits:
            tests.append((seccomp.ANY_BIT, rule.without_bits, refusal))
        otherwise = refusal if rule.values or rule.with_bit else seccomp.ALLOW
        instructions += seccomp.respond(number, otherwise, rule.argument, tests)
    return [*instructions, *seccomp.respond_to_rest(seccomp.ALLOW)]


def forbid(report: Callable[[str], object]) -> str:
    """Forbid this process, for good, the calls of the table; return why that is not possible, or an empty string.

    `report` takes the name of a call when it is refused for the first time. It runs in the middle of that call.
    """
    # Python would try to cache modules that it imports from now on, and that would count as an attempt of the library.
    sys.dont_write_bytecode = True
    libc = ctypes.CDLL(None, use_errno=True)
    machine = seccomp.here(MACHINES)
    if machine is not None:
        _handle_refusals(libc, machine, report)
    ctypes.set_errno(0)
    instructions = program(machine, os.getpid()) if machine else ()
    if seccomp.give_up_privileges(libc) or seccomp.install(libc, machine, instructions):
        return os.strerror(ctypes.get_errno())
    return ""


def _handle_refusals(libc: ctypes.CDLL, machine: seccomp.Machine, report: Callable[[str], object]) -> None:
    """Answer the signal of a refused call with EPERM, after reporting the call."""
    # The signal comes in the calling thread, in the middle of the call, where Python can run a function.
    names = {number: name for name, number in machine.calls.items()}
    result = next(offset for name, offset in _RESULT.items() if MACHINES[name] is machine)
    reported: set[int] = set()

    def refuse(number: int, information: int, context: int) -> None:
        call = ctypes.c_int.from_address(information + _CALL).value
        ctypes.c_int64.from_address(context + result).value = -errno.EPERM
        if call not in reported:
            reported.add(call)
            report(names.get(call, f"system call {call}"))

    handler = _HANDLER(refuse)
    _handlers.append(handler)
    action = _SignalAction(ctypes.cast(handler, ctypes.c_void_p), flags=_SA_SIGINFO | _SA_NODEFER)
    libc.sigaction(int(signal.SIGSYS), ctypes.byref(action), None)
