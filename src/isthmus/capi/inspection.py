"""Inspection from Python of the libraries that this program or its modules use through C."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.capi.installation import folder_of
from isthmus.errors import Code, QnnError

if TYPE_CHECKING:
    from isthmus import qnn


def load(folder: str | os.PathLike[str], library: str = "libQnnHtp.so") -> Path:
    """Load a library and its shared-memory library into this process; return the path to pass to clients.

    ONNX Runtime's provider looks for ``libcdsprpc.so`` by its bare name and finds this one from then on.

    Parameters
    ----------
    folder
        The folder into which `install` has put the libraries.
    library
        The library's file name.

    Raises
    ------
    QnnError
        COMMON_INVALID_ARGUMENT if an argument is not a path, or a library is missing or cannot be loaded.
    """
    libraries = folder_of(folder).absolute()
    if not isinstance(library, str) or not library or "\0" in library:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"library {library!r}", "must be the name of a file")
    path = libraries / library
    for file in (path.with_name("libcdsprpc.so"), path):
        try:
            ctypes.CDLL(str(file))
        except OSError as problem:
            rule, hint = f"cannot be loaded: {problem}", "Run `isthmus capi install DIR`."
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"library '{file}'", rule, hint) from None
    return path


def graphs() -> list[qnn.Graph]:
    """Return the graphs that C clients have in this process now, with their counters (`qnn.Graph.stats`)."""
    from isthmus.capi.graph import ClientGraph
    from isthmus.capi.serve import servers

    return [graph.handle for server in servers() for _, graph in server.handles.of_kind(ClientGraph)]
