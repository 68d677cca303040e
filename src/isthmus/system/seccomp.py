"""Filters of system calls (seccomp): small programs that the kernel runs at every call of a process.

A filter is a list of instructions: (code, instructions to skip if true, if false, value).
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KILL, TRAP, ERRNO, ALLOW = 0x80000000, 0x00030000, 0x00050000, 0x7FFF0000
"""Return values of a filter: end the process, send SIGSYS, fail with the error whose number is added, go on."""
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Codes of instructions (BPF): load an input; compare it with a value and jump; return a value."""
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Offsets of a filter's inputs: the call's number, the instruction set, the low half of the first argument."""
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_TSYNC = 1, 1

Instruction = tuple[int, int, int, int]


@dataclass(frozen=True)
class Machine:
    """The system calls of an instruction set, by name.

    - `architecture`: The kernel's audit constant for it.
    - `foreign`: The first number of another calling convention; 0 if there is none.
    - `seccomp`: The number of the call that installs a filter.
    - `calls`: The numbers of the calls in the filter.
    """

    architecture: int
    foreign: int
    seccomp: int
    calls: Mapping[str, int]


def beginning(machine: Machine) -> list[Instruction]:
    """Return the instructions that begin every filter: they kill on calls by other instruction sets and conventions.

    The call's number is loaded afterwards.
    """
    instructions = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, machine.architecture), (RETURN, 0, 0, KILL)]
    instructions += [(LOAD, 0, 0, NUMBER)]
    if machine.foreign:
        instructions += [(AT_LEAST, 0, 1, machine.foreign), (RETURN, 0, 0, KILL)]
    return instructions


def respond(
    number: int, answer: int, argument: int = 0, tests: Sequence[tuple[int, int, int]] = ()
) -> list[Instruction]:
    """Return the instructions that answer a call, by its number, unless a test of an argument decides before.

    Each test is the code of its instruction, the value to compare with, and the answer if it succeeds. Only the low
    half of the argument is tested: the kernel uses no more of the arguments that are tested here.
    """
    body = respond_to_rest(answer)
    if tests:
        steps = [step for code, value, then in tests for step in ((code, 0, 1, value), *respond_to_rest(then))]
        body = [(LOAD, 0, 0, ARGUMENTS + 8 * argument), *steps, *body]
    return [(EQUAL, 0, len(body), number), *body]


def respond_to_rest(answer: int) -> list[Instruction]:
    """Return the instruction that answers every call that reaches it."""
    return [(RETURN, 0, 0, answer)]


def machines(table: str) -> dict[str, Machine]:
    """Return the machines by name, from rows of a call's name and its numbers on x86-64 and arm64, or a dash."""
    rows = [row.split() for row in table.split(",")]
    x86, arm = ({row[0]: int(row[column]) for row in rows if row[column] != "-"} for column in (1, 2))
    return {"x86_64": Machine(0xC000003E, 0x40000000, 317, x86), "aarch64": Machine(0xC00000B7, 0, 277, arm)}


def here(machines: Mapping[str, Machine]) -> Machine | None:
    """Return the machine that this process runs on; None if `machines` lacks it."""
    return machines.get(platform.machine().replace("arm64", "aarch64"))


def give_up_privileges(libc: ctypes.CDLL) -> int:
    """Let this process gain no privileges any more, without which no filter is accepted; return 0 or -1."""
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    return int(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def install(libc: ctypes.CDLL, machine: Machine | None, instructions: Sequence[Instruction]) -> int:
    """Install a filter in all threads; return 0, or -1 with `errno` set, as a system call does.

    `libc` is the C library, loaded with ``use_errno``. The machine is None where there is no table for it.
    """
    if machine is None:
        ctypes.set_errno(errno.ENOSYS)
        return -1
    # The arrays are a `struct sock_filter` for each instruction, and the `struct sock_fprog` that refers to them.
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in instructions))
    header = struct.pack("@HP", len(instructions), ctypes.addressof(code))
    flags = ctypes.c_long(_SECCOMP_FILTER_FLAG_TSYNC)
    mode = ctypes.c_long(_SECCOMP_SET_MODE_FILTER)
    libc.syscall.restype = ctypes.c_long
    if libc.syscall(ctypes.c_long(machine.seccomp), mode, flags, header) == 0:
        return 0
    # Kernels before 3.17, and sandboxes that know only the older call. There the filter holds for this thread and the
    # threads that it starts.
    place = ctypes.create_string_buffer(header)
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    return int(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(place), 0, 0))
