"""Containers as forged by someone who knows how to make their checksums right."""

import hashlib
import struct

from isthmus.system.container import ContainerFormat

FIELDS = struct.Struct("<8sIIQ")
START = FIELDS.size + 32
"""Where the header begins."""


def with_right_checksum(form: ContainerFormat, content: bytes) -> bytes:
    """The same bytes but for the checksum, which becomes what they should have."""
    fields, rest = content[: FIELDS.size], content[START:]
    _, _, length, _ = FIELDS.unpack(fields)
    return fields + hashlib.sha256(fields + (rest if form.is_hashed else rest[:length])).digest() + rest


def with_header(form: ContainerFormat, text: bytes, body: bytes = b"") -> bytes:
    """A container with any header, and the lengths and the checksum that it should have."""
    fields = FIELDS.pack(form.magic, form.version, len(text), START + len(text) + len(body))
    return with_right_checksum(form, fields + bytes(32) + text + body)
