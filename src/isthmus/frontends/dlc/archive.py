"""The archive around a DLC: a zip file with uncompressed entries, located by its central directory alone.

Entries are views. Checksums are ignored, since DLCs contain zeros there. Sizes and offsets may be 64 bits wide. Every
offset is checked before it is followed, and the length of the directory is limited.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from isthmus.errors import Code, QnnError

MAGIC = b"PK\x03\x04"
"""The first bytes of an archive: the signature of its first entry's header."""
MAX_ENTRIES = 4096
MAX_NAME = 1024

# The records of the zip format (APPNOTE.TXT): end of the directory, its 64-bit form and the locator of that form, an
# entry of the directory, and the header before an entry's bytes.
_END = struct.Struct("<4sHHHHIIH")
_END_MAGIC = b"PK\x05\x06"
_MAX_COMMENT = 0xFFFF
_LOCATOR = struct.Struct("<4sIQI")
_LOCATOR_MAGIC = b"PK\x06\x07"
_END_64 = struct.Struct("<4sQHHIIQQQQ")
_END_64_MAGIC = b"PK\x06\x06"
_ENTRY = struct.Struct("<4s6H3I5H2I")
_ENTRY_MAGIC = b"PK\x01\x02"
_LOCAL = struct.Struct("<4s5H3I2H")
# The value of a 32-bit field whose real number is in the entry's 64-bit extra field.
_WIDE = 0xFFFFFFFF
# The kind of the extra field with 64-bit numbers.
_WIDE_FIELD = 1
# The kind of the extra field with zeros that align an entry's bytes.
_PADDING = 0xD935
# The version of the format that has 64-bit numbers.
_VERSION = 45
_ALIGNMENT = 8
# The compression method of uncompressed entries.
_STORED = 0
# The flag of encrypted entries.
_ENCRYPTED = 1


@dataclass(frozen=True)
class Archive:
    """The entries of an archive by name, in the order of its directory."""

    name: str
    data: memoryview
    entries: dict[str, memoryview]

    def refuse(self, rule: str) -> NoReturn:
        """Refuse this file."""
        refuse(self.name, rule)


def refuse(name: str, rule: str) -> NoReturn:
    """Refuse a file that is not a valid DLC."""
    raise QnnError(Code.COMMON_LOADING_BINARIES, f"file '{name}'", rule, "The file is damaged or not a DLC.")


def read(data: memoryview, name: str) -> Archive:
    """Read the entries of an archive as views of its bytes."""
    count, start, size = _directory(data, name)
    if count > MAX_ENTRIES:
        refuse(name, f"its directory has {count} entries, above the limit of {MAX_ENTRIES}")
    if start + size > len(data):
        refuse(name, f"its directory of {size} bytes at byte {start} is outside the file of {len(data)} bytes")
    entries: dict[str, memoryview] = {}
    at, end = start, start + size
    for _ in range(count):
        entry, content, at = _entry(data, name, at, end)
        if entry in entries:
            refuse(name, f"it has two entries '{entry}'")
        entries[entry] = content
    return Archive(name, data, entries)


def _directory(data: memoryview, name: str) -> tuple[int, int, int]:
    """Return the number of entries, the start and the size of the directory."""
    tail = bytes(data[-(_END.size + _MAX_COMMENT) :])
    at = len(tail)
    while (at := tail.rfind(_END_MAGIC, 0, at)) >= 0:
        # This is the end record only if its comment ends exactly at the end of the file.
        if at + _END.size <= len(tail) and at + _END.size + _END.unpack_from(tail, at)[-1] == len(tail):
            break
    else:
        refuse(name, "its end is missing, where an archive has its directory")
    _, disk, _, _, count, size, start, _ = _END.unpack_from(tail, at)
    if disk not in (0, 0xFFFF):
        refuse(name, "it is one part of several")
    # A 64-bit directory has a locator right before the end record.
    locator = len(data) - len(tail) + at - _LOCATOR.size
    if locator < 0 or data[locator : locator + 4] != _LOCATOR_MAGIC:
        return count, start, size
    end_64 = _LOCATOR.unpack_from(data, locator)[2]
    if end_64 + _END_64.size > len(data) or data[end_64 : end_64 + 4] != _END_64_MAGIC:
        refuse(name, f"the 64-bit record of its directory is not at byte {end_64}")
    *_, count, size, start = _END_64.unpack_from(data, end_64)
    return count, start, size


def _entry(data: memoryview, name: str, at: int, end: int) -> tuple[str, memoryview, int]:
    """Read one entry of the directory; return its name, its bytes, and the offset of the next entry."""
    if at + _ENTRY.size > end or data[at : at + 4] != _ENTRY_MAGIC:
        refuse(name, f"its directory is broken at byte {at}")
    fields = _ENTRY.unpack_from(data, at)
    flags, method = fields[3:5]
    stored_size, size, name_bytes, extra_bytes, comment_bytes = fields[8:13]
    # The offset of the header before the entry's bytes.
    local = fields[16]
    following = at + _ENTRY.size + name_bytes + extra_bytes + comment_bytes
    if following > end:
        refuse(name, f"its directory is broken at byte {at}")
    if not 0 < name_bytes <= MAX_NAME:
        refuse(name, f"an entry has a name of {name_bytes} bytes, 1 to {MAX_NAME} are allowed")
    start = at + _ENTRY.size
    entry = str(data[start : start + name_bytes], "utf-8", "replace")
    extra = data[start + name_bytes : start + name_bytes + extra_bytes]
    size, stored_size, local = _widen(extra, [size, stored_size, local], f"entry '{entry}'", name)
    if method != _STORED or flags & _ENCRYPTED or stored_size != size:
        rule = f"entry '{entry}' is compressed or encrypted; a DLC's entries are stored as they are"
        raise QnnError(Code.COMMON_LOADING_BINARIES, f"file '{name}'", rule, "It is another kind of archive.")
    if local + _LOCAL.size > len(data) or data[local : local + 4] != MAGIC:
        refuse(name, f"entry '{entry}' is not at byte {local}")
    # That header is followed by the name and extra fields, whose lengths are its last two numbers.
    begin = local + _LOCAL.size + sum(_LOCAL.unpack_from(data, local)[-2:])
    if begin + size > len(data):
        refuse(name, f"entry '{entry}' of {size} bytes at byte {begin} is outside the file of {len(data)} bytes")
    return entry, data[begin : begin + size], following


def _widen(extra: memoryview, numbers: list[int], what: str, name: str) -> list[int]:
    """Return the numbers of an entry, taking those that exceed 32 bits from its extra fields."""
    # `numbers` must be in the order in which the 64-bit field lists them: size, stored size, offset.
    if _WIDE not in numbers:
        return numbers
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        field = extra[at + 4 : at + 4 + length]
        if kind == _WIDE_FIELD and len(field) >= 8 * numbers.count(_WIDE):
            wide = iter(struct.unpack_from(f"<{len(field) // 8}Q", field))
            return [next(wide) if number == _WIDE else number for number in numbers]
        at += 4 + length
    refuse(name, f"{what} lacks its 64-bit sizes")


def write(entries: Mapping[str, bytes]) -> bytes:
    """Return an archive with these entries, each aligned to 8 bytes. As in DLCs, checksums are zero and sizes wide."""
    content, directory = bytearray(), bytearray()
    for name, data in entries.items():
        raw, at = name.encode(), len(content)
        padding = -(at + _LOCAL.size + len(raw) + 4 + 20) % _ALIGNMENT
        # The sizes in 64 bits, and a field of zeros that aligns the bytes.
        extra = struct.pack("<HHQQ", _WIDE_FIELD, 16, len(data), len(data)) + struct.pack("<HH", _PADDING, padding)
        extra += bytes(padding)
        content += _LOCAL.pack(MAGIC, _VERSION, 0, _STORED, 0, 0, 0, _WIDE, _WIDE, len(raw), len(extra))
        content += raw + extra + data
        extra = struct.pack("<HHQQQ", _WIDE_FIELD, 24, len(data), len(data), at)
        directory += _ENTRY.pack(
            _ENTRY_MAGIC, _VERSION, _VERSION, 0, _STORED, 0, 0, 0, _WIDE, _WIDE, len(raw), len(extra), 0, 0, 0, 0, _WIDE
        )
        directory += raw + extra
    start, count = len(content), len(entries)
    end = _END_64.pack(_END_64_MAGIC, _END_64.size - 12, _VERSION, _VERSION, 0, 0, count, count, len(directory), start)
    end += _LOCATOR.pack(_LOCATOR_MAGIC, 0, start + len(directory), 1)
    return bytes(content + directory + end + _END.pack(_END_MAGIC, 0, 0, 0xFFFF, 0xFFFF, _WIDE, _WIDE, 0))
