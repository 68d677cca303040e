"""Compilation by child processes: each missing piece of code once, whichever process needs it.

The process that uses the code never loads numba; only its compile server does (`isthmus.compiled.compile_server`). It
forks a worker for each processor. A process claims a piece in the folder of compiled code while it compiles it, so that
others wait for that piece alone and share the work on the rest. Code arrives over a socket and is then stored. If it
cannot be stored, it is used from memory, which is reported once.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from isthmus.compiled.folder import Claim, Folder, Unavailable
from isthmus.errors import Code, QnnError, code_of
from isthmus.system import isolated
from isthmus.system.channel import Channel, ChannelClosed, Message
from isthmus.system.child import Child, describe_status, last_line
from isthmus.system.interrupts import start
from isthmus.system.lock import Lock
from isthmus.system.progress import Progress, is_terminal, show_progress
from isthmus.system.shield import check, shielded

# Seconds between checks for an interrupt of the caller, and between looks at what other processes compile.
_LOOK_EVERY = 0.1
# Seconds of a wait for another process before it is reported, and until it is reported again.
_SILENT, _REPEAT = 1.0, 30.0
_SERVER = "isthmus.compiled.compile_server"
# The time limit for a piece: far more than the largest kernel takes on a slow machine, which is some seconds.
_MAX_SECONDS = 300.0


def _time_limit() -> float:
    """Return how long a piece may take to compile: ``ISTHMUS_COMPILE_SECONDS``, or five minutes."""
    return isolated.seconds_of("ISTHMUS_COMPILE_SECONDS", _MAX_SECONDS)


@dataclass(frozen=True)
class CodePiece:
    """A piece of code: a job for the compiler, and the file and key that its code is stored under."""

    job: str
    file: str
    key: str


@dataclass(frozen=True)
class Compiler:
    """What compiles pieces: ``compile_job(job, *arguments)`` of a module of ours, which returns a key and code.

    `describe` returns what is compiled, for messages, from the number of pieces.
    """

    module: str
    arguments: tuple[str, ...]
    describe: Callable[[int], str]


class _Server:
    """A compile server and the connection to it."""

    def __init__(self) -> None:
        self._error_text = b""
        self.channel, theirs = Channel.pair()
        with theirs:
            try:
                self._process = Child(_SERVER, descriptors=[theirs.fileno()], stderr=subprocess.PIPE)
            except Exception:
                self.channel.close()
                raise
        assert self._process.stderr is not None
        self.errors = self._process.stderr
        os.set_blocking(self.errors.fileno(), False)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def send(self, request: Message) -> None:
        """Send a request; if the server has ended, that is noticed when its answer is awaited."""
        with suppress(ChannelClosed, QnnError):
            self.channel.send(request)

    def wait(self) -> int:
        """Wait for its end and return its status."""
        return self._process.wait()

    def problem(self) -> str:
        """Wait for its end and return why it has failed."""
        status = self.wait()
        self.drain()
        return last_line(self._error_text) or f"it ended ({describe_status(status)})"

    def drain(self) -> None:
        """Read what it has printed to standard error, so that it never waits for a full pipe; keep the last 64 KiB."""
        with suppress(OSError):
            self._error_text = (self._error_text + (self.errors.read() or b""))[-(1 << 16) :]

    def end(self) -> None:
        """End it and its workers, whatever they do; safe to call again."""
        self._process.kill()
        self._process.wait()
        self.forget()

    def forget(self) -> None:
        """Close this process's end of the connection."""
        self.channel.close()
        self.errors.close()


# Guards the list below.
_lock = Lock()
# Servers that have nothing to do. Each ends by itself after a while.
_idle: list[_Server] = []
# Code that could not be stored, by file and key.
_in_memory: dict[tuple[str, str], bytes] = {}
# The problems with folders that were reported.
_reported: set[str] = set()


@shielded
def prepare() -> None:
    """Start a compile server in the background, unless there is one: it is ready when code must be compiled."""
    with suppress(QnnError), _lock:
        if not any(server.alive for server in _idle):
            _idle.append(_start_server())


def _take_server() -> _Server:
    """Return a server that has nothing to do; start one if there is none."""
    with _lock:
        while _idle:
            server = _idle.pop()
            if server.alive:
                return server
            server.end()
        return _start_server()


def _start_server() -> _Server:
    """Start a server. When this process exits, all idle servers are ended."""
    try:
        server = _Server()
    except OSError as problem:
        rule = f"it cannot be started: {problem.strerror}"
        raise QnnError(code_of(problem, Code.COMMON_SYSTEM), "compiler", rule) from None
    atexit.unregister(_end_all)
    atexit.register(_end_all)
    # If no thread can be started that notices the server's end, the next compilation notices it.
    with suppress(RuntimeError):
        start(threading.Thread(target=_reap, args=(server,), name="isthmus-compiler", daemon=True))
    return server


def _reap(server: _Server) -> None:
    """Wait for the end of a server, and forget it if it was idle."""
    server.wait()
    with _lock:
        if server in _idle:
            _idle.remove(server)
            server.forget()


def _end_all() -> None:
    """End the servers that have nothing to do."""
    while _idle:
        _idle.pop().end()


def _after_fork() -> None:
    """Leave the servers to the parent, in a forked child."""
    while _idle:
        _idle.pop().forget()


os.register_at_fork(after_in_child=_after_fork)


def _read(folder: Folder | None, piece: CodePiece) -> bytes | None:
    """Return the code of a piece from memory or a folder, or None if it is absent or damaged."""
    code = _in_memory.get((piece.file, piece.key))
    if code is not None or folder is None:
        return code
    try:
        return folder.read(piece.file, piece.key)
    except Unavailable as problem:
        if problem.is_shortage:
            raise
        return None


def provide(
    compiler: Compiler, pieces: Callable[[], Sequence[CodePiece]], forget: Callable[[], None] = lambda: None
) -> dict[str, bytes]:
    """Return the code of pieces, by job: from the user's folder, or compiled now and stored there.

    `pieces` returns the pieces with keys of their current sources; after `forget` it reads the sources again.
    """
    folder = _users_folder()
    # The second attempt covers sources that were edited while the compiler read them.
    for _ in range(2):
        requested = pieces()
        codes = {piece.job: code for piece in requested if (code := _read(folder, piece)) is not None}
        absent = [piece for piece in requested if piece.job not in codes]
        if absent:
            codes |= compile_missing(compiler, folder, absent)
        if len(codes) == len(requested):
            return codes
        forget()
    what = compiler.describe(len(requested) - len(codes))
    raise QnnError(Code.COMMON_GENERAL, what, "its sources were edited while it was compiled", "Try again.")


def _users_folder() -> Folder | None:
    """Return the user's folder of compiled code; None if there is no place for one, which is reported once."""
    try:
        return Folder.of_user()
    except Unavailable as problem:
        _report(problem)
        return None


@shielded
def compile_missing(compiler: Compiler, folder: Folder | None, pieces: Sequence[CodePiece]) -> dict[str, bytes]:
    """Return the code of each piece, by job: from a folder, or compiled now and stored there.

    A piece that another process compiles is waited for. A piece is missing in the result if the compiler has seen
    other sources than the caller, so that it came with another key.
    """
    compilation = _Compilation(compiler, folder, compiler.describe(len(pieces)))
    try:
        codes = compilation.run(pieces)
        idle, compilation.server = compilation.server, None
    finally:
        for claim in compilation.claims.values():
            claim.release()
        # Interrupted, or a job has failed: the rest is no longer needed.
        if compilation.server is not None:
            compilation.server.end()
    if idle is not None:
        idle.send(Message())
        with _lock:
            _idle.append(idle)
    return codes


@dataclass
class _Compilation:
    """The compilation of pieces: the codes that it has, and the claims on what is being compiled here, by job."""

    compiler: Compiler
    folder: Folder | None
    what: str
    server: _Server | None = None
    codes: dict[str, bytes] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    # When each piece that is being compiled here was begun, by the monotonic clock.
    _since: dict[str, float] = field(default_factory=dict)
    # The pieces that other processes compile.
    _waits: dict[str, _Wait] = field(default_factory=dict)

    def run(self, pieces: Sequence[CodePiece]) -> dict[str, bytes]:
        """Find or compile all pieces, and return their code."""
        by_job = {piece.job: piece for piece in pieces}
        left = deque(pieces)
        limit = len(os.sched_getaffinity(0))
        with show_progress(Progress("parts", len(pieces), f"isthmus: compiling {self.what}, once")) as work:
            while left or self._since:
                for _ in range(len(left)):
                    if len(self._since) >= limit:
                        break
                    piece = left.popleft()
                    if not self._begin(piece):
                        left.append(piece)
                    elif piece.job in self.codes:
                        work.step(piece.job)
                check()
                job = self._take_answer(by_job)
                if job is not None:
                    work.step(job)
        return self.codes

    def _begin(self, piece: CodePiece) -> bool:
        """Claim a piece and have it compiled, unless it is there by now; return False if another process is at it."""
        claim = self._claim(piece)
        if claim is None:
            wait = self._waits.setdefault(piece.job, _Wait(piece.job))
            assert self.folder is not None
            if not wait.is_over(self.folder, piece):
                return False
            claim = Claim()
        code = _read(self.folder, piece)
        if code is not None:
            claim.release()
            self.codes[piece.job] = code
            return True
        self.claims[piece.job] = claim
        if not self._since and not self.server and sys.stderr is not None and not is_terminal():
            print(f"isthmus: compiling {self.what}, once", file=sys.stderr, flush=True)
        if self.server is None:
            self.server = _take_server()
            if self.folder is not None:
                with suppress(QnnError):
                    self.folder.check()
        self._request(piece.job)
        return True

    def _claim(self, piece: CodePiece) -> Claim | None:
        """Return the claim on a piece, which is empty if the folder cannot be used; None if another process has it."""
        if self.folder is not None:
            try:
                return self.folder.claim(piece.file)
            except Unavailable as problem:
                _report(problem)
        return Claim()

    def _request(self, job: str) -> None:
        """Ask the server for a piece."""
        assert self.server is not None
        self._since[job] = time.monotonic()
        arguments = {"module": self.compiler.module, "arguments": self.compiler.arguments, "job": job}
        self.server.send(Message(arguments))

    def _take_answer(self, by_job: dict[str, CodePiece]) -> str | None:
        """Wait a moment for a piece that the server has compiled, and store it; return its job."""
        if not self._since:
            time.sleep(_LOOK_EVERY if self._waits else 0)
            return None
        assert self.server is not None
        is_ready = self.server.channel.is_ready(self._seconds_to_wait())
        self.server.drain()
        if not is_ready:
            return None

        def go_on() -> None:
            check()
            self._seconds_to_wait()

        try:
            answer = self.server.channel.receive(go_on)
        except ChannelClosed:
            self._replace_server()
            return None
        if "error" in answer.header:
            raise self._failure(answer.header["error"])
        job = str(answer.header["job"])
        if answer.header["key"] == by_job[job].key:
            self._store(by_job[job], bytes(answer.sections["code"]))
        del self._since[job]
        self.claims.pop(job).release()
        return job

    def _seconds_to_wait(self) -> float:
        """Return how long to wait until the next look; refuse to wait longer than the time limit of a piece."""
        limit = _time_limit()
        slowest, since = min(self._since.items(), key=lambda item: item[1])
        seconds_left = since + limit - time.monotonic()
        if seconds_left <= 0:
            raise QnnError(
                Code.COMMON_SYSTEM,
                f"compiling {self.what}",
                f"{slowest} took more than {limit:g} seconds",
                "Set ISTHMUS_COMPILE_SECONDS to more if the machine is that slow.",
            )
        return min(seconds_left, _LOOK_EVERY)

    def _failure(self, problem: str) -> QnnError:
        """Return the error for a compiler that has failed."""
        return QnnError(Code.COMMON_SYSTEM, f"compiling {self.what}", f"the compiler failed: {problem}")

    def _replace_server(self) -> None:
        """Continue with another server if this one ended for lack of work (status 0), just when it was asked again."""
        assert self.server is not None
        ended, self.server = self.server, None
        if ended.wait() != 0:
            problem = ended.problem()
            ended.end()
            raise self._failure(problem)
        ended.end()
        self.server = _start_server()
        for job in self._since:
            self._request(job)

    def _store(self, piece: CodePiece, code: bytes) -> None:
        """Store the code of a piece in the folder, or in memory if that is not possible."""
        self.codes[piece.job] = code
        if self.folder is not None:
            try:
                self.folder.write(piece.file, piece.key, code)
                return
            except Unavailable as problem:
                _report(problem)
        _in_memory[piece.file, piece.key] = code


class _Wait:
    """A wait for a piece that another process compiles."""

    def __init__(self, job: str) -> None:
        self._job, self._began = job, time.monotonic()
        self._next = self._began + _SILENT

    def is_over(self, folder: Folder, piece: CodePiece) -> bool:
        """Return whether it has taken too long; report it now and then."""
        now, limit = time.monotonic(), _time_limit()
        waited = now - self._began
        if waited < limit and now < self._next:
            return False
        holder = folder.holder(piece.file)
        other = f"process {holder}" if holder else "another process"
        self._next = now + _REPEAT
        is_over = waited >= limit
        state = f"for {waited:.0f} s, at most {limit - waited:.0f} s more"
        if is_over:
            state = "takes too long; compiling it here too"
        print(f"isthmus: waiting for {other}, which compiles {self._job}, {state}", file=sys.stderr, flush=True)
        return is_over


def _report(problem: Unavailable) -> None:
    """Report once why code is not stored; raise the problem if it is one of this process and not of the folder."""
    if problem.is_shortage:
        raise problem
    if str(problem) not in _reported:
        _reported.add(str(problem))
        print(f"isthmus: {problem} Code is compiled only for this process.", file=sys.stderr, flush=True)
