"""Models of every kind: files to read, libraries that compose, and context binaries."""

from __future__ import annotations

import os
from pathlib import Path

from isthmus import frontends
from isthmus.errors import Code, QnnError
from isthmus.frontends import ModelSource
from isthmus.graph import BinaryInfo, Graph, GraphInfo
from isthmus.prepare.tiling import ScratchLimit
from isthmus.qnn.system import UNKNOWN_FORMAT, SystemContext
from isthmus.system import reading


def load_all(source: ModelSource) -> list[Graph]:
    """Create all graphs of a model file or library, or only the requested one."""
    if frontends.is_library(source.path):
        from isthmus.qnn import model_library

        return model_library.load_all(source)
    refuse_binary(source.path)
    return frontends.load_all(source)


def load(source: ModelSource) -> Graph:
    """Create one graph of a model file or library; if there are several, the caller must name one."""
    return source.only(load_all(source))


def binary_info(path: str | os.PathLike[str]) -> BinaryInfo | None:
    """Describe a context binary; return None for models, and for files that no backend knows."""
    head = reading.beginning(path, 8)
    # Model files are recognized first, so that backends are not loaded for them.
    if not head or frontends.is_model(head):
        return None
    try:
        return SystemContext().get_binary_info(os.fspath(path))
    except QnnError as problem:
        if problem.rule != UNKNOWN_FORMAT:
            raise
        return None


def refuse_binary(path: Path) -> None:
    """Refuse a context binary where a model is needed."""
    if binary_info(path) is not None:
        rule, hint = "it is a context binary, and a model is needed", "Use the model that it was made from."
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"'{path}'", rule, hint)


def prepared_graph(
    binary: BinaryInfo,
    path: Path,
    graph: str | None = None,
    reshaped: bool = False,
    threads: int = 1,
    limit: ScratchLimit | None = None,
) -> GraphInfo:
    """Return the description of one graph of a context binary; refuse what would need another preparation.

    - `binary`, `path`: The binary's description, and its file.
    - `graph`: The name of the graph; may be omitted if there is only one.
    - `reshaped`: Whether shapes or values of inputs are given.
    - `threads`: The number of threads; 1 means as many as the graph was prepared for.
    - `limit`: A limit on scratch, which the graph must keep already.
    """

    def refuse(what: str, rule: str, hint: str = "Prepare the model again.") -> QnnError:
        return QnnError(Code.GRAPH_FINALIZED, f"{what} for context binary '{path.name}'", rule, hint)

    if reshaped:
        raise refuse("shapes and constants", "its graphs are prepared: their inputs are fixed")
    if threads != 1:
        raise refuse(f"{threads} threads", "its graphs are prepared: the number of threads is fixed")
    source = ModelSource(path, graph=graph)
    info = source.only(source.select(binary.graphs))
    scratch = info.memory.scratch_bytes
    if limit is not None and (limit.bytes is None or limit.bytes < scratch):
        rule = f"graph '{info.name}' is prepared: its plan is fixed and has {scratch:,} bytes of scratch"
        raise refuse("scratch limit", rule, "Use --scratch-limit of qnn-context-binary-generator.")
    return info
