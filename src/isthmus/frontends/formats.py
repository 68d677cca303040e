"""Messages about files whose format is not known, or that do not have the format which they seem to have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isthmus.errors import Code, QnnError, code_of
from isthmus.system import reading

KNOWN_FORMATS = "Known are ONNX, TFLite and DLC files, model libraries (.so) and context binaries (.bin)."
# The number of bytes that a message shows.
_SHOWN = 16


def beginning(data: bytes) -> str:
    """Describe the first bytes of a file.

    >>> print(beginning(b"\\x7fhello"))
    it begins with b'\\x7fhello'
    """
    return f"it begins with {data[:_SHOWN]!r}"


def malformed(what: str, rule: str, hint: str = "") -> QnnError:
    """Return the error for a model that breaks a rule of its format, or exceeds a limit on its size."""
    return QnnError(Code.GRAPH_CREATE_FAILED, what, rule, hint)


@contextmanager
def reading_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise an error that names the model file if it cannot be read."""
    what = f"model file '{os.fspath(path)}'"
    try:
        yield
    except FileNotFoundError:
        hint = reading.nearest_file(path)
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "there is no such file", hint) from None
    except OSError as problem:
        code = code_of(problem, Code.COMMON_INVALID_ARGUMENT)
        raise QnnError(code, what, f"it cannot be read: {problem.strerror}") from None
    except MemoryError:
        raise QnnError(Code.COMMON_MEM_ALLOC, what, "there is not enough memory to read it") from None


def unknown_format(path: Path, data: bytes) -> QnnError:
    """Return the error for a file of a format that nothing here reads; `data` is its contents or its beginning."""
    rule = f"its format is not known: {beginning(data)}" if data else "it is empty"
    return QnnError(Code.COMMON_INVALID_ARGUMENT, f"model file '{path}'", rule, KNOWN_FORMATS if data else "")
