"""What can be known of a context binary without a backend (QnnSystemContext_*)."""

from __future__ import annotations

from isthmus.backends.seam import registry
from isthmus.backends.seam.driver import Source
from isthmus.errors import Code, QnnError
from isthmus.graph import BinaryInfo

UNKNOWN_FORMAT = "no backend knows its format"
"""Why bytes that are no context binary at all are refused."""


class SystemContext:
    """Describes context binaries (QnnSystemContext_create).

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
        """What a binary holds: backend, graphs, their inputs and outputs (QnnSystemContext_getBinaryInfo).

        Parameters
        ----------
        binary
            A file, or the contents of one, of any registered backend.
        """
        # Backends may share a format: each is asked once.
        for inspect in dict.fromkeys(registry.entry(name).inspect for name in registry.names()):
            info = inspect(binary)
            if info is not None:
                return info
        raise QnnError(Code.CONTEXT_CREATE_FROM_BINARY, "context binary", UNKNOWN_FORMAT)
