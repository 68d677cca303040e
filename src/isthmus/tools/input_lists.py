"""Input lists of QNN's tools: a line for each inference, with files in the order of the inputs or as ``name:=file``.

A line that begins with ``#`` or ``%`` names the outputs to write; without one all are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import Code, QnnError, counted, did_you_mean
from isthmus.graph import TensorInfo
from isthmus.system import reading
from isthmus.tools.raw_files import check_size

MAX_LIST_BYTES = 1 << 28
"""The largest file that is accepted as an input list."""
SKIP = "__"
"""The name that stands for no list: the graph is not executed."""


@dataclass(frozen=True)
class Inference:
    """The input files of an inference, by input; `what` names the line of the list in messages."""

    what: str
    files: Mapping[str, Path]


@dataclass(frozen=True)
class InputList:
    """The content of an input list: the inferences, and the outputs to write (empty for all)."""

    inferences: tuple[Inference, ...]
    outputs: tuple[str, ...]

    def check(self, inputs: Sequence[TensorInfo], native: set[str]) -> None:
        """Check the size of every file before anything runs; inputs in `native` have files of stored elements."""
        checked = set()
        for inference in self.inferences:
            for info in inputs:
                file = inference.files[info.name]
                if (file, info.name) not in checked:
                    check_size(file, info, info.name in native, inference.what)
                    checked.add((file, info.name))


def read_list(path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> InputList:
    """Read an input list for a graph with these inputs and outputs; assign every file to an input."""
    what = f"input list '{path}'"
    try:
        lines = reading.contents(path, MAX_LIST_BYTES).decode("utf-8").splitlines()
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or problem
        hint = reading.nearest_file(path)
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"cannot be read: {why}", hint) from None
    chosen: tuple[str, ...] = ()
    inferences = []
    for number, line in enumerate(lines, 1):
        where = f"{what}, line {number}"
        if line[:1] in ("#", "%"):
            chosen = tuple(line[1:].split())
            for name in chosen:
                if name not in outputs:
                    known = ", ".join(f"'{known}'" for known in outputs)
                    rule = f"the graph has no such output; it has {known}"
                    raise QnnError(
                        Code.GRAPH_INVALID_TENSOR, f"{where}: output '{name}'", rule, did_you_mean(name, outputs)
                    )
        elif line.strip():
            inferences.append(Inference(where, _files(where, line.split(), inputs, path.parent)))
    if not inferences:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "it lists no inference")
    return InputList(tuple(inferences), chosen)


def _files(what: str, entries: Sequence[str], names: Sequence[str], folder: Path) -> dict[str, Path]:
    """Assign the entries of a line to the inputs in order, or by ``name:=file``; return the files by input."""

    def refuse(rule: str, hint: str = "") -> QnnError:
        hint = hint or f"The inputs are {', '.join(map(repr, names))}."
        return QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule, hint)

    if len(entries) != len(names):
        raise refuse(f"it has {counted(len(entries), 'file')} for {counted(len(names), 'input')}")
    files = {}
    for position, entry in enumerate(entries):
        name, assigned, text = entry.rpartition(":=")
        name = name if assigned else names[position]
        if name not in names:
            raise refuse(f"there is no input '{name}'", did_you_mean(name, names))
        if name in files:
            raise refuse(f"input '{name}' has two files")
        if not text:
            raise refuse(f"input '{name}' has no file", f"Write {name}:=FILE.")
        # QNN's tools look in the working folder; the list's own folder is a convenience.
        files[name] = Path(text) if Path(text).exists() else folder / text
    return files
