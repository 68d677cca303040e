"""Programs: OpenCL C is built into kernels for a device once. The driver's binaries are kept on disk and checked.

The name of a file is derived from everything that its contents depend on: device, driver, source, options. The folder
and its files are checked like those of compiled kernels (`isthmus.compiled.folder`). What the driver does not accept is
built again.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_char_p, c_int32, c_size_t, c_void_p
from dataclasses import dataclass, field
from typing import Any

from isthmus.backends.gpu.runtime import numbers
from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.gpu.runtime.library import library
from isthmus.backends.gpu.runtime.owned import Owned
from isthmus.backends.gpu.runtime.status import refusal
from isthmus.compiled.folder import Folder, Unavailable
from isthmus.errors import Code, QnnError
from isthmus.system.interrupts import start
from isthmus.system.lock import Lock
from isthmus.system.shield import PIECE, Cancelled, shielded
from isthmus.system.shield import check as check_interrupted

# Characters of a compiler's log that an error shows.
_MAX_LOG = 4000
# The number of programs that are built at a time.
_BUILDERS = 4


@dataclass
class Repository:
    """A folder of built programs, and counts of its use.

    - `folder`: The user's own folder of compiled code, or one that a configuration names.
    - `is_valid`: Whether the programs in the folder are used; otherwise they are built again and replaced.
    - `is_required`: Whether a folder that cannot be used is an error; otherwise programs are built for this process
      alone.
    - `hits`, `builds`: How many programs were found in the folder, and how many had to be built.
    """

    folder: Folder = field(default_factory=Folder.of_user)
    is_valid: bool = True
    is_required: bool = False
    hits: int = 0
    builds: int = 0
    _lock: Any = field(default_factory=Lock, repr=False)

    def count(self, *, is_found: bool) -> None:
        """Count a program that was found here or had to be built."""
        with self._lock:
            self.hits += is_found
            self.builds += not is_found

    def check(self) -> None:
        """Refuse a folder that nothing can be stored in."""
        self.folder.check()

    def read(self, name: str, key: str) -> bytes | None:
        """Return the content stored under a name and a key, if it may be used.

        The name is that of the file. The key is stored in the file and compared, since names may happen to be equal.
        """
        try:
            return self.folder.read(name, key) if self.is_valid else None
        except Unavailable:
            if self.is_required:
                raise
            return None

    def write(self, name: str, key: str, content: bytes) -> None:
        """Store content under a name and a key."""
        try:
            self.folder.write(name, key, content)
        except Unavailable:
            # The lack of a folder is no reason not to run.
            if self.is_required:
                raise


@shielded
def build_each(
    context: ClContext, sources: Sequence[tuple[str, Sequence[str]]], repository: Repository, what: str
) -> list[Owned]:
    """Build programs from sources, in parallel, since drivers compile each on one processor; return them in order.

    If one does not build, or the caller is interrupted, only the builds that are in progress are finished.

    - `sources`: For each program: its source, and the compiler's options.
    """
    waiting, programs, problems = deque(enumerate(sources)), dict[int, Owned](), list[BaseException]()

    def work() -> None:
        """Build programs until none is waiting or one does not build; every builder thread runs this."""
        # `popleft` reports by an IndexError that none is waiting.
        with suppress(IndexError):
            while not problems:
                number, (source, options) = waiting.popleft()
                try:
                    check_interrupted()
                    programs[number] = build(context, source, options, repository, what)
                except Exception as problem:
                    problems.append(problem)

    builders = [threading.Thread(target=work, name="isthmus-build") for _ in range(min(_BUILDERS, len(sources)))]
    try:
        for builder in builders:
            start(builder)
    except RuntimeError:
        # The system cannot start more threads, so this one builds what the others leave.
        work()
    for builder in builders:
        while builder.is_alive():
            builder.join(PIECE)
            try:
                check_interrupted()
            except Cancelled as cancelled:
                problems.append(cancelled)
    if problems:
        raise problems[0]
    return [programs[number] for number in range(len(sources))]


def build(context: ClContext, source: str, options: Sequence[str], repository: Repository, what: str) -> Owned:
    """Build a program from which kernels can be created, or take it from the repository.

    Raises GRAPH_FINALIZE_FAILED with the compiler's log if it does not build.
    """
    key = hashlib.sha256("\0".join((context.device.identity, source, *options)).encode()).hexdigest()
    name = f"opencl-{key[:40]}.bin"
    stored = repository.read(name, key)
    if stored is not None:
        program = _from_binary(context, stored, options)
        if program is not None:
            repository.count(is_found=True)
            return program
    program = _from_source(context, source, options, what)
    repository.count(is_found=False)
    # Some drivers have no binaries.
    binary = _binary(program, what)
    if binary:
        repository.write(name, key, binary)
    return program


def kernel(program: Owned, name: str, what: str) -> Owned:
    """Create a kernel object: one function of a program, with arguments of its own."""
    return Owned.make(what, "clCreateKernel", program.handle, name.encode())


def _options(options: Sequence[str]) -> bytes:
    """Return the options of OpenCL's compiler as it takes them, and one that turns warnings off."""
    # PoCL prints the number of warnings to the program's standard error.
    return " ".join(("-w", *options)).encode()


def _from_source(context: ClContext, source: str, options: Sequence[str], what: str) -> Owned:
    """Create a program from its source and compile it; errors are those of `build`."""
    opencl, text = library(), source.encode()
    texts, sizes = (c_char_p * 1)(text), (c_size_t * 1)(len(text))
    program = Owned.make(what, "clCreateProgramWithSource", context.handle, 1, texts, sizes)
    handle, device = program.handle, (c_void_p * 1)(context.device.handle)
    status = opencl.functions["clBuildProgram"](handle, 1, device, _options(options), None, None)
    if status == numbers.BUILD_PROGRAM_FAILURE:
        log = opencl.text(what, "clGetProgramBuildInfo", handle, context.device.handle, numbers.PROGRAM_BUILD_LOG)
        shown = log if len(log) <= _MAX_LOG else f"{log[:_MAX_LOG]} ..."
        rule = f"its kernels do not build for {context.device}: {' | '.join(shown.splitlines())}"
        raise QnnError(Code.GRAPH_FINALIZE_FAILED, what, rule, "Another version of the driver may build them.")
    if status != numbers.SUCCESS:
        raise refusal(status, what, "clBuildProgram")
    return program


def _from_binary(context: ClContext, binary: bytes, options: Sequence[str]) -> Owned | None:
    """Create a program from a stored binary; return None if the driver does not accept it."""
    opencl = library()
    device = (c_void_p * 1)(context.device.handle)
    content = ctypes.create_string_buffer(binary, len(binary))
    contents, sizes = (c_void_p * 1)(ctypes.addressof(content)), (c_size_t * 1)(len(binary))
    # The driver's status for each binary; 0 if it accepts it.
    statuses = (c_int32 * 1)()
    try:
        program = Owned.make(
            "kept program", "clCreateProgramWithBinary", context.handle, 1, device, sizes, contents, statuses
        )
    except QnnError:
        return None
    # A binary must be "built" too, which takes little time; a status other than 0 is a failure.
    if statuses[0] or opencl.functions["clBuildProgram"](program.handle, 1, device, _options(options), None, None):
        program.close()
        return None
    return program


def _binary(program: Owned, what: str) -> bytes:
    """Return the driver's binary of a program for its only device; empty if the driver has none."""
    opencl = library()
    sizes = opencl.content(what, "clGetProgramInfo", program.handle, numbers.PROGRAM_BINARY_SIZES)
    size = int.from_bytes(sizes[: ctypes.sizeof(c_size_t)], "little")
    content = ctypes.create_string_buffer(max(size, 1))
    places = (c_void_p * 1)(ctypes.addressof(content))
    opencl.call(what, "clGetProgramInfo", program.handle, numbers.PROGRAM_BINARIES, ctypes.sizeof(places), places, None)
    return content.raw[:size]
