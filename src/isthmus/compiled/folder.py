"""The folder of compiled code. Its files are executed, so no other user may be able to write them.

A folder that belongs to another user or that others may write is refused, and so is anything but a regular file of
ours. They are not silently compiled again, since the next process would find the same. Checks are made on open
descriptors, never on names, so nothing can be exchanged between check and use. A file has a checksum; a damaged one
counts as absent.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from isthmus.errors import Code, QnnError, code_of
from isthmus.system.interrupts import FileDescriptor, own_fd
from isthmus.system.shield import shielded

_MAGIC = b"ISTHMUS\x01"
# Size of what precedes the code in a file.
_HEADER = len(_MAGIC) + hashlib.sha256().digest_size
# The ending of files that are locked while a process compiles what belongs under the rest of the name.
_LOCK = ".lock"
# The prefix of files that are being written.
_UNFINISHED = ".writing-"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_DAY = 24 * 60 * 60


class Unavailable(QnnError):
    """The error when there is no folder for code, or none that can be written."""

    is_shortage = False
    """Whether the process lacks descriptors or memory, so that another folder would not help."""


@dataclass(frozen=True)
class Folder:
    """A folder for compiled code, which need not exist yet; the variable `setting` selects another one.

    The path may contain symbolic links (a home on another disk); their target is checked. Files in the folder are never
    links.
    """

    path: Path
    setting: str = "ISTHMUS_CACHE_DIR"

    @classmethod
    def of_user(cls) -> Folder:
        """Return the folder named by ``ISTHMUS_CACHE_DIR``, or the one in the user's cache folder."""
        explicit = os.environ.get("ISTHMUS_CACHE_DIR")
        if explicit:
            return cls(Path(explicit).absolute())
        base = os.environ.get("XDG_CACHE_HOME")
        if base:
            return cls(Path(base).absolute() / "isthmus")
        try:
            return cls(Path.home().absolute() / ".cache" / "isthmus")
        except RuntimeError:
            raise Unavailable(
                Code.COMMON_SYSTEM,
                "cache of compiled code",
                "the user has no home folder to keep it in",
                "Set ISTHMUS_CACHE_DIR to a folder that can be written.",
            ) from None

    def read(self, name: str, key: str) -> bytes | None:
        """Return the code kept under a name and a key, or None if it is absent or damaged."""
        try:
            with self._open() as folder:
                content = self._content(folder, name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as problem:
            raise self._unavailable("read", problem) from None
        return unpack(key, content)

    @contextmanager
    def opened(self, name: str) -> Iterator[int]:
        """Yield a descriptor of a file, to be read; an `OSError` if there is none.

        As for code, a file that another user owns or may write is refused, and so is anything but a file.
        """
        with self._open() as folder, self._file(folder, name) as file:
            yield file

    def write(self, name: str, key: str, code: bytes) -> None:
        """Keep code under a name; other processes see the whole file or none."""
        self.write_pieces(name, [pack(key, code)])

    @shielded
    def write_pieces(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Keep bytes, given in pieces, under a name; other processes see the whole file or none."""
        with self.writable() as folder:
            temporary = _UNFINISHED + os.urandom(8).hex()
            try:
                with (
                    own_fd(partial(os.open, dir_fd=folder), temporary, _CREATE, 0o600) as own,
                    os.fdopen(own.fileno(), "wb", closefd=False) as stream,
                ):
                    for piece in pieces:
                        stream.write(piece)
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except Exception:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    @shielded
    def make_room(self, nbytes: int, limit: int, unused_seconds: float) -> int:
        """Remove the files that have been unused for longest until `nbytes` more are within a limit.

        Files that were used within these seconds are not removed. Returns the bytes of the files that remain.
        """
        with self.writable() as folder:
            _remove_abandoned(folder)
            files = []
            for name in os.listdir(folder):
                with suppress(OSError):
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    files.append((status.st_mtime, status.st_size, name))
            total = sum(size for _, size, _ in files)
            for used, size, name in sorted(files):
                if total + nbytes <= limit or used > time.time() - unused_seconds:
                    break
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)
                    total -= size
            return total

    def check(self) -> None:
        """Create the folder if need be, refuse one that cannot be written, and remove what killed processes left."""
        with self.writable() as folder:
            temporary = _UNFINISHED + os.urandom(8).hex()
            own_fd(partial(os.open, dir_fd=folder), temporary, _CREATE, 0o600).close()
            os.unlink(temporary, dir_fd=folder)
            _remove_abandoned(folder)

    @shielded
    def claim(self, name: str) -> Claim | None:
        """Keep other processes from compiling what belongs under a name; return None if another one has claimed it.

        The claim ends with this process, however that ends. A file system without locks gives a claim to every process:
        work may be done twice, but the folder stays consistent.
        """
        with self.writable() as folder:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            while True:
                lock = own_fd(partial(os.open, dir_fd=folder), name + _LOCK, flags, 0o600)
                try:
                    fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    lock.close()
                    return None
                except OSError:
                    lock.close()
                    with suppress(OSError):
                        os.unlink(name + _LOCK, dir_fd=folder)
                    return Claim()
                # The last owner may have removed the file after it was opened here.
                if _is_at(lock.fileno(), folder, name + _LOCK):
                    break
                lock.close()
            # Only for messages; a full disk is no reason to fail.
            with suppress(OSError):
                os.pwrite(lock.fileno(), b"%-20d" % os.getpid(), 0)
            return Claim(self, name, lock)

    def holder(self, name: str) -> int | None:
        """Return the process that has claimed a name, if that is known."""
        with suppress(OSError, ValueError), self._open() as folder:
            lock = own_fd(partial(os.open, dir_fd=folder), name + _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with lock:
                return int(os.pread(lock.fileno(), 20, 0))
        return None

    def _end_claim(self, name: str) -> None:
        """Remove the file of a claim, which is still locked."""
        with suppress(OSError), self._open() as folder:
            os.unlink(name + _LOCK, dir_fd=folder)

    @contextmanager
    def _open(self) -> Iterator[int]:
        """Yield a descriptor of the folder; refuse a folder that another user owns or may write."""
        with own_fd(os.open, self.path, os.O_RDONLY | os.O_DIRECTORY) as own:
            folder = own.fileno()
            status = os.fstat(folder)
            if status.st_uid not in _trusted_owners():
                raise self._refusal(
                    self.path,
                    f"belongs to another user (number {status.st_uid}), who could make you run their code",
                    f"Set {self.setting} to a folder of your own.",
                )
            # A folder like /tmp is no exception: others cannot replace our files there, but can create theirs first.
            if status.st_mode & 0o022:
                # A folder with the sticky bit, such as /tmp, is meant to be written by others.
                is_ours = status.st_uid == os.geteuid() and not status.st_mode & stat.S_ISVTX
                remedy = f"Take that away (chmod go-w '{self.path}') or set" if is_ours else "Set"
                raise self._refusal(
                    self.path,
                    "can be written by others, who could make you run their code",
                    f"{remedy} {self.setting} to a folder of your own.",
                )
            yield folder

    @contextmanager
    def writable(self) -> Iterator[int]:
        """Yield a descriptor of the folder, which is created first; every `OSError` becomes `Unavailable`."""
        try:
            # Parents that `mkdir` makes by itself have the permissions of the process, which may let a group write.
            for parent in reversed(self.path.parents):
                if not parent.exists():
                    parent.mkdir(exist_ok=True, mode=0o700)
            self.path.mkdir(exist_ok=True, mode=0o700)
            with self._open() as folder:
                yield folder
        except OSError as problem:
            raise self._unavailable("written", problem) from None

    def _content(self, folder: int, name: str) -> bytes:
        """Return the bytes of a file."""
        with self._file(folder, name) as file, os.fdopen(file, "rb", closefd=False) as stream:
            return stream.read()

    @contextmanager
    def _file(self, folder: int, name: str) -> Iterator[int]:
        """Yield a descriptor of a file; refuse one that another user owns or may write, and anything but a file."""
        try:
            # Opening a pipe must not wait for a writer.
            own = own_fd(partial(os.open, dir_fd=folder), name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as problem:
            if problem.errno == errno.ELOOP:
                raise self._refusal(self.path / name, "is a symbolic link", "Remove it.") from None
            raise
        with own:
            status = os.fstat(own.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise self._refusal(self.path / name, "is not a plain file", "Remove it.")
            if status.st_uid not in _trusted_owners():
                raise self._refusal(self.path / name, f"belongs to another user (number {status.st_uid})", "Remove it.")
            if status.st_mode & 0o022:
                raise self._refusal(self.path / name, "can be written by others", "Remove it.")
            yield own.fileno()

    def _unavailable(self, attempted: str, problem: OSError) -> Unavailable:
        """Return the error for a folder that could not be "read" or "written", whichever was attempted."""
        full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = f"{'Make room there, or set' if full else 'Set'} {self.setting} to a folder that can be written."
        is_shortage = problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
        unavailable = Unavailable(
            code_of(problem, Code.COMMON_SYSTEM),
            f"cache of compiled code {self.path}",
            f"cannot be {attempted}: {problem.strerror}",
            "Raise the limit of the process (ulimit), or free what it no longer uses." if is_shortage else hint,
        )
        unavailable.is_shortage = is_shortage
        return unavailable

    def _refusal(self, path: Path, rule: str, hint: str) -> QnnError:
        """Return the error for a folder or a file that is not safe to use."""
        return QnnError(Code.COMMON_OPERATION_NOT_PERMITTED, f"cache of compiled code {path}", rule, hint)


def _trusted_owners() -> tuple[int, int]:
    """Return the trusted owners: the user, and root, who can do anything anyway and may provide a filled cache."""
    return os.geteuid(), 0


def pack(key: str, code: bytes) -> bytes:
    """Return the content of a file: a magic number, a checksum of the key and the code, and the code."""
    return _MAGIC + hashlib.sha256(key.encode() + code).digest() + code


def unpack(key: str, content: bytes) -> bytes | None:
    """Return the code in the content of a file, or None if the content is damaged or has another key."""
    code = content[_HEADER:]
    return code if content == pack(key, code) else None


@dataclass
class Claim:
    """The right to compile what belongs under a name of a folder, until it is released.

    Without a folder and a locked file, nothing keeps others from doing the same work.
    """

    folder: Folder | None = None
    name: str = ""
    lock: FileDescriptor | None = None

    def release(self) -> None:
        """End the claim; safe to call again."""
        lock, self.lock = self.lock, None
        if lock is not None and self.folder is not None:
            self.folder._end_claim(self.name)
            lock.close()


def _is_at(file: int, folder: int, name: str) -> bool:
    """Return whether an open file is still the one with this name."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _remove_abandoned(folder: int) -> None:
    """Remove old files of processes that were killed while they compiled or wrote."""
    for name in os.listdir(folder):
        if name.startswith(_UNFINISHED) or name.endswith(_LOCK):
            with suppress(OSError):
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime < time.time() - _DAY:
                    os.unlink(name, dir_fd=folder)
