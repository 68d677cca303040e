"""Inspection of a context binary without a backend (QnnSystemContext_*)."""

from __future__ import annotations

from isthmus.backends.seam import registry
from isthmus.backends.seam.driver import Source
from isthmus.errors import Code, QnnError
from isthmus.graph import BinaryInfo

UNKNOWN_FORMAT = "no backend knows its format"
"""The reason given when bytes are not a context binary of any backend."""


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
        # Backends may share a format: try each format once.
        for inspect in dict.fromkeys(entry.inspect for entry in registry.usable()):
            info = inspect(binary)
            if info is not None:
                return info
        raise QnnError(Code.CONTEXT_CREATE_FROM_BINARY, "context binary", UNKNOWN_FORMAT)
