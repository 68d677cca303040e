"""The models on a command line of QNN's tools: ``--model`` and ``--dlc_path``.

QNN's tools take a DLC by ``--dlc_path``, either alone or, in older versions, beside ``--model libQnnModelDlc.so``, a
library that only reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from isthmus import qnn
from isthmus.errors import Code, QnnError
from isthmus.graph import TensorMemType, TensorType
from isthmus.qnn.model_library import is_library

DLC_READER = "libQnnModelDlc.so"
"""QNN's library that reads a DLC: it is no model itself."""
PREFIX = "QnnModel"
"""The prefix of the functions of a model library."""


def named(models: str | None, dlcs: str | None) -> tuple[list[Path], list[Path]]:
    """Return the model files and the DLCs that the values of ``--model`` and ``--dlc_path`` name.

    Examples
    --------
    >>> named("libQnnModelDlc.so", "a.dlc,b.dlc")
    ([], [PosixPath('a.dlc'), PosixPath('b.dlc')])
    """
    files = [Path(name) for name in (models or "").split(",") if name]
    dlc_files = [Path(name) for name in (dlcs or "").split(",") if name]
    if dlcs is not None and not dlc_files:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--dlc_path {dlcs}", "names no file")
    if dlc_files:
        files = [file for file in files if file.name != DLC_READER]
    if models is not None and not files and not dlc_files:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--model {models}", "names no file")
    return files, dlc_files


def compose(
    context: qnn.Context,
    files: Sequence[Path],
    dlcs: Sequence[Path],
    mem_type: TensorMemType,
    shapes: Mapping[str, Sequence[int]] | None = None,
    embedded: bool = True,
) -> None:
    """Compose all the models in a context; tensors of DLCs get the names that QNN's tools use.

    Parameters
    ----------
    mem_type
        The memory type that inputs and outputs are prepared for.
    embedded
        Whether memory types that a model library embeds take precedence over `mem_type`.
    """
    for file in files:
        if is_library(file):
            context.compose_all(file, None if embedded else mem_type, shapes)
        else:
            context.compose(file, None, shapes, mem_type=mem_type)
    for file in dlcs:
        context.compose_all(file, mem_type, shapes, clean_names=True)


def check_prefix(prefix: str | None) -> None:
    """Refuse a prefix of a model library's functions other than that of QNN's own generator."""
    if prefix not in (None, PREFIX):
        rule = f"model libraries must export {PREFIX}_composeGraphs"
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"--model_prefix {prefix}", rule)


def intermediate(graph: qnn.Graph) -> list[str]:
    """List the tensors of a composed graph that are neither inputs, outputs, states nor constants."""
    return [tensor.name for tensor in graph.driver.graph.tensors.values() if tensor.type is TensorType.NATIVE]


def make_outputs(graph: qnn.Graph, names: Iterable[str], mem_type: TensorMemType) -> None:
    """Turn intermediate tensors of a composed graph into outputs, prepared for a memory type."""
    for name in names:
        tensor = graph.driver.graph.tensors[name]
        tensor.type, tensor.mem_type = TensorType.APP_READ, mem_type
