"""The models on a command line of QNN's tools: ``--model`` and ``--dlc_path``.

QNN's tools take a DLC by ``--dlc_path``, either alone or, in older versions, beside ``--model libQnnModelDlc.so``, a
library that only reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from isthmus import qnn
from isthmus.errors import invalid_argument
from isthmus.frontends import ModelSource, is_library
from isthmus.graph import Tensor, TensorMemType, TensorType

DLC_READER = "libQnnModelDlc.so"
"""QNN's library that reads a DLC: it is no model itself."""


def model_files(models: str | None, dlcs: str | None) -> tuple[list[Path], list[Path]]:
    """Return the model files and the DLCs that the values of ``--model`` and ``--dlc_path`` name.

    Examples
    --------
    >>> model_files("libQnnModelDlc.so", "a.dlc,b.dlc")
    ([], [PosixPath('a.dlc'), PosixPath('b.dlc')])
    """
    files = [Path(name) for name in (models or "").split(",") if name]
    dlc_files = [Path(name) for name in (dlcs or "").split(",") if name]
    if dlcs is not None and not dlc_files:
        raise invalid_argument(f"--dlc_path {dlcs}", "names no file")
    if dlc_files:
        files = [file for file in files if file.name != DLC_READER]
    if models is not None and not files and not dlc_files:
        raise invalid_argument(f"--model {models}", "names no file")
    return files, dlc_files


def compose(
    context: qnn.Context,
    files: Sequence[Path],
    dlcs: Sequence[Path],
    mem_type: TensorMemType,
    shapes: Mapping[str, Sequence[int]] | None = None,
    embedded: bool = True,
    prefix: str | None = None,
) -> None:
    """Compose all the models in a context; tensors of DLCs get the names that QNN's tools use.

    - `mem_type`: the memory type that inputs and outputs are prepared for.
    - `embedded`: whether memory types that a model library embeds take precedence over `mem_type`.
    - `prefix`: what the functions of model libraries begin with, if not with ``QnnModel``.
    """
    if prefix is not None and (not prefix.isidentifier() or not prefix.isascii()):
        rule = "must be the beginning of a function's name: letters, digits and _"
        raise invalid_argument(f"--model_prefix {prefix}", rule)
    for file in files:
        if is_library(file):
            kind = None if embedded else mem_type
            context.compose_all(file, kind, shapes, prefix=prefix or ModelSource.prefix)
        else:
            context.compose(file, None, shapes, mem_type=mem_type)
    for file in dlcs:
        context.compose_all(file, mem_type, shapes, clean_names=True)


def intermediate(graph: qnn.Graph) -> dict[str, Tensor]:
    """Return the tensors of a composed graph that are neither inputs, outputs, states nor constants.

    They are listed by the names that they have in the model file, as far as it names them.
    """
    composed = graph.driver.graph
    found: dict[str, Tensor] = {}
    for tensor in composed.tensors.values():
        if tensor.type is TensorType.NATIVE:
            name = composed.source_names.get(tensor.name, tensor.name)
            # A name of the file may be that of another tensor here.
            found[tensor.name if name in composed.tensors or name in found else name] = tensor
    return found


def make_outputs(graph: qnn.Graph, tensors: Mapping[str, Tensor], mem_type: TensorMemType) -> None:
    """Turn intermediate tensors of a composed graph into outputs with these names, prepared for a memory type."""
    for tensor in tensors.values():
        tensor.type, tensor.mem_type = TensorType.APP_READ, mem_type
    graph.driver.graph.rename({tensor.name: name for name, tensor in tensors.items()})
