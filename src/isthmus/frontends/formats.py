"""Messages about files whose format is not known, or that do not have the format which they seem to have."""

from __future__ import annotations

from pathlib import Path

from isthmus.errors import Code, QnnError

KNOWN_FORMATS = "Known are ONNX, TFLite and DLC files, model libraries (.so) and context binaries (.bin)."
_SHOWN = 16
"""The number of bytes that a message shows."""


def beginning(data: bytes) -> str:
    """Describe the first bytes of a file.

    Examples
    --------
    >>> print(beginning(b"\\x7fhello"))
    it begins with b'\\x7fhello'
    """
    return f"it begins with {data[:_SHOWN]!r}"


def unknown_format(path: Path, data: bytes) -> QnnError:
    """Return the error for a file of a format that nothing here reads; `data` is its contents or its beginning."""
    rule = f"its format is not known: {beginning(data)}" if data else "it is empty"
    return QnnError(Code.COMMON_INVALID_ARGUMENT, f"model file '{path}'", rule, KNOWN_FORMATS if data else "")
