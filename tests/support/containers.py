"""Containers as forged by someone who knows how to make their checksums right."""

import hashlib
import resource
import struct
from typing import Any

import numpy as np

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


def damage(header: Any, generator: np.random.Generator) -> None:
    """Change one number or text somewhere in a header."""
    while True:
        keys = list(header) if isinstance(header, dict) else list(range(len(header)))
        if not keys:
            return
        key = keys[int(generator.integers(len(keys)))]
        if not isinstance(header[key], (dict, list)):
            choices: list[Any] = [0, 1, -1, 3, 1 << 31, 1 << 62, None, "x", [], 0.5, True]
            header[key] = choices[int(generator.integers(len(choices)))]
            return
        header = header[key]


def limit_memory(more: int) -> None:
    """Let this process have so many bytes more than it has, and no others."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more, now + more))
