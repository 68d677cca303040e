"""Packed weights on disk, mapped by every process that needs them, so that they are packed once and in memory once.

A file has the key of what was packed, and how; the name of the packed contents; and a checksum. What is damaged, cut
off or of another key counts as absent. Where nothing can be kept, a process has weights of its own: that is no error.
Unlike code, weights are data: they are read, never executed.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass, field

import numpy as np

from isthmus.compiled.folder import Folder
from isthmus.errors import QnnError
from isthmus.system.mapping import MappedFile, is_remote

_MAGIC = b"ISTHPACK\x01"
# The size of what precedes the contents in a file; they begin at a multiple of a cache line.
_HEADER = 128
_DIGEST = hashlib.sha256().digest_size
_PAGE = 4096
# The seconds without use after which a file may be removed for another. Models in turn do not remove each other's.
_UNUSED = 3600.0


@dataclass(frozen=True)
class Weights:
    """Packed weights, and the hash of their contents."""

    array: np.ndarray
    digest: bytes

    @classmethod
    def of(cls, array: np.ndarray) -> Weights:
        """Return an array as packed weights."""
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return cls(content, hashlib.sha256(content.data).digest())


@dataclass
class WeightFolder:
    """The folder of packed weights, which need not exist yet.

    - `limit`: The bytes that all files together may have. As much as that also stays free on the disk.
    """

    folder: Folder
    limit: int
    # The size of all files, once it is known.
    _nbytes: int | None = field(default=None, init=False)
    _is_writable: bool = field(default=True, init=False)
    # The keys of files that are there, but not in memory.
    _on_disk: set[bytes] = field(default_factory=set, init=False)

    def find(self, key: bytes) -> Weights | None:
        """Return the weights that are kept under a key, mapped; None if there are none, or the disk would be slower."""
        try:
            with self.folder.opened(_name(key)) as file:
                status = os.fstat(file)
                if is_remote(file):
                    self._is_writable = False
                    return None
                if status.st_size <= _HEADER:
                    return None
                mapped = MappedFile(file, status.st_size)
                if not mapped.is_in_memory():
                    # For a later process. This one packs them sooner than a disk reads them.
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
                    self._on_disk.add(key)
                    return None
                if status.st_mtime < time.time() - _UNUSED / 4:
                    _mark_used(file)
        except (OSError, QnnError):
            return None
        content = np.frombuffer(mapped.pages, np.uint8, offset=_HEADER)
        start = len(_MAGIC) + _DIGEST
        digest = bytes(mapped.pages[start : start + _DIGEST])
        return Weights(content, digest) if mapped.pages[:_HEADER] == _header(key, digest, content) else None

    def keep(self, key: bytes, weights: Weights) -> Weights:
        """Keep weights under a key, and return them mapped; those that were given if that is not possible."""
        if not self._is_writable or weights.array.nbytes > self.limit:
            return weights
        try:
            # Another process may have packed them meanwhile; else the folder is made.
            found = self.find(key)
            if found is not None or key in self._on_disk or self._is_on_another_machine():
                return found or weights
            if not self._has_room(_HEADER + weights.array.nbytes):
                return weights
            self.folder.write_pieces(_name(key), [_header(key, weights.digest, weights.array), weights.array.data])
        except (OSError, QnnError):
            self._is_writable = False
            return weights
        return self.find(key) or weights

    def _is_on_another_machine(self) -> bool:
        """Return whether the folder is, whose files could vanish while they are mapped; then nothing is kept."""
        with self.folder.writable() as folder:
            self._is_writable = not is_remote(folder)
        return not self._is_writable

    def _has_room(self, nbytes: int) -> bool:
        """Return whether a file of this size may be written, after removing what has not been used for long."""
        if self._nbytes is None or self._nbytes + nbytes > self.limit:
            self._nbytes = self.folder.make_room(nbytes, self.limit, _UNUSED)
        disk = os.statvfs(self.folder.path)
        fits = self._nbytes + nbytes <= self.limit and disk.f_bavail * disk.f_frsize - nbytes >= self.limit
        self._nbytes += nbytes * fits
        self._is_writable = fits
        return fits


def _name(key: bytes) -> str:
    return f"{key.hex()[:48]}.packed"


def _mark_used(file: int) -> None:
    """Set the time of a file, by which it is known what has been unused for longest; another user's stays as it is."""
    try:
        os.utime(file)
    except OSError:
        return


def _header(key: bytes, digest: bytes, content: np.ndarray) -> bytes:
    """Return what precedes the contents in a file: a magic number, the key, the hash, and a checksum of all."""
    # The checksum only tells damage, and is computed for each process that starts: sums of words, page by page, take a
    # tenth of the time of a hash.
    whole = content.size // _PAGE * _PAGE
    sums = content[:whole].view(np.uint64).reshape(-1, _PAGE // 8).sum(1, dtype=np.uint64)
    stated = _MAGIC + key + digest
    check = hashlib.sha256(stated + content.size.to_bytes(8, "little") + sums.tobytes() + content[whole:].tobytes())
    return (stated + check.digest()).ljust(_HEADER, b"\0")
