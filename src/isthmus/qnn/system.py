"""Inspection of a context binary without a backend (QnnSystemContext_*)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeVar

from isthmus import frontends
from isthmus.backends.seam import registry
from isthmus.backends.seam.driver import Source
from isthmus.errors import Code, QnnError
from isthmus.graph import BinaryInfo
from isthmus.prepare.sharing import UnsharedConstants
from isthmus.system import reading

# The name of every context binary in errors of backends.
_WHAT = "context binary"
# The thousands of QNN's error codes that are about graphs and tensors.
_OF_CONTENTS = (6, 7)
UNKNOWN_FORMAT = "no backend knows its format"
"""The reason given when bytes are not a context binary of any backend."""


def with_file_name(problem: QnnError, binary: object) -> QnnError:
    """Return an error about a context binary with the name of its file; bytes have no name."""
    if problem.what != _WHAT or not isinstance(binary, (str, os.PathLike)):
        return problem
    is_model = frontends.is_model(reading.beginning(binary, 8))
    hint = problem.hint or ("It is a model, which is composed, not retrieved." if is_model else "")
    return QnnError(problem.code, f"{_WHAT} '{os.fspath(binary)}'", problem.rule, hint, mistake=problem.mistake)


def of_binary(problem: QnnError) -> QnnError:
    """Return an error about a tensor or graph that a binary describes as an error of the binary."""
    if problem.code // 1000 not in _OF_CONTENTS:
        return problem
    return QnnError(Code.CONTEXT_CREATE_FROM_BINARY, _WHAT, f"{problem.what}: {problem.rule}", problem.hint)


class SystemContext:
    """A reader of context binaries (QnnSystemContext_create).

    Examples
    --------
    >>> from isthmus import qnn
    >>> with qnn.Backend("cpu") as backend:
    ...     binary = backend.create_context().get_binary()
    >>> info = SystemContext().get_binary_info(binary)
    >>> info.backend, info.graphs
    ('cpu', ())
    """

    def get_binary_info(self, binary: Source) -> BinaryInfo:
        """Describe a binary: backend, graphs, their inputs and outputs (QnnSystemContext_getBinaryInfo).

        Parameters
        ----------
        binary
            A file, or its contents, of any registered backend.
        """
        return _read(binary, [entry.inspect for entry in registry.usable()])

    def get_unshared_constants(self, binary: Source) -> tuple[UnsharedConstants, ...]:
        """Return which large constants the graphs of a binary do not share, and why.

        Parameters
        ----------
        binary
            A file, or its contents, of any registered backend.
        """
        return tuple(_read(binary, [entry.unshared for entry in registry.usable()]))


_Content = TypeVar("_Content")


def _read(binary: Source, readers: Iterable[Callable[[Source], _Content | None]]) -> _Content:
    """Return what the first reader that knows a binary's format makes of it; refuse one that none knows."""
    try:
        # Backends may share a format: try each format once.
        for reader in dict.fromkeys(readers):
            content = reader(binary)
            if content is not None:
                return content
        raise QnnError(Code.CONTEXT_CREATE_FROM_BINARY, _WHAT, UNKNOWN_FORMAT)
    except QnnError as problem:
        raise with_file_name(problem, binary) from None
