"""Raw files of tensors, as QNN's tools read and write them: floats, or elements as they are stored ("native").

The files of an output are named after its tensor, with the characters that QNN's converters allow in names: ``x:0`` is
written to ``x_0.raw``. Elements as stored go to ``x_0_native.raw``, unless the tensor holds floats of 32 bits anyway.

Input lists have a line for each inference, with files in the order of the inputs or as ``name:=file``. A line that
begins with ``#`` or ``%`` names the outputs to write; without one all are written.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isthmus.errors import Code, QnnError, counted, did_you_mean, invalid_argument
from isthmus.frontends.dlc.operations import clean_name
from isthmus.graph import DataType, TensorInfo
from isthmus.log import Log, LogLevel
from isthmus.system import reading
from isthmus.tools.files import refuse_unreadable, write_together

FLOAT, NATIVE, BOTH = "float_only", "native_only", "float_and_native"
"""What output files hold: the values of ``--output_data_type``."""
# The longest tensor name in a file name: systems allow 255 bytes, some of which are needed while a file is written.
_MAX_NAME = 200
MAX_LIST_BYTES = 1 << 28
"""The largest file that is accepted as an input list."""
SKIP = "__"
"""The name that stands for no list: the graph is not executed."""


def _element(info: TensorInfo, native: bool) -> np.dtype:
    """Return the type of the elements of a tensor's file."""
    return info.dtype.numpy if native else np.dtype(np.float32)


def check_size(path: Path, info: TensorInfo, native: bool, where: str) -> None:
    """Refuse an input file that cannot be read, or that has not the size of its tensor.

    - `native`: whether it holds elements as stored, rather than floats.
    - `where`: the line of the input list that names it.
    """
    with refuse_unreadable(f"{where}: input file '{path}'", path), reading.open_file(path) as stream:
        size = os.fstat(stream.fileno()).st_size
    _check_bytes(size, path, info, native, where)


def _check_bytes(size: int, path: Path, info: TensorInfo, native: bool, where: str) -> None:
    """Refuse a number of bytes that is not that of the tensor."""
    needed = math.prod(info.dims) * _element(info, native).itemsize
    if size == needed:
        return
    rule = f"has {counted(size, 'byte')}, tensor '{info.name}' needs {needed:,} as {_element(info, native)}"
    stored = math.prod(info.dims) * info.dtype.numpy.itemsize
    hint = f"Files of elements as stored ({info.dtype.numpy}) need --use_native_input_files." if size == stored else ""
    raise invalid_argument(f"{where}: input file '{path}'", rule, hint)


def read_tensor(path: Path, info: TensorInfo, native: bool, where: str) -> np.ndarray:
    """Read a tensor from a raw file; floats are converted to the tensor's type. Parameters as for `check_size`."""
    needed = math.prod(info.dims) * _element(info, native).itemsize
    with refuse_unreadable(f"{where}: input file '{path}'", path), reading.open_file(path) as stream:
        content = stream.read(needed + 1)
    _check_bytes(len(content), path, info, native, where)
    array = np.frombuffer(content, _element(info, native)).reshape(info.dims)
    if native:
        return array
    if info.quantization is not None and info.dtype.is_fixed_point:
        return info.quantization.quantize(array, info.dtype.numpy)
    return info.dtype.encode(array)


def write_results(folder: Path, arrays: Iterable[tuple[str, np.ndarray, TensorInfo]], content: str) -> None:
    """Write the outputs of an inference to a folder: all of them, or none if one cannot be written.

    - `arrays`: the name of each file without its ending, the array and the tensor.
    - `content`: FLOAT, NATIVE or BOTH.
    """

    def files() -> Iterator[tuple[str, bytes]]:
        for name, array, info in arrays:
            as_stored = content in (NATIVE, BOTH) and info.dtype is not DataType.FLOAT_32
            if as_stored:
                yield f"{name}_native.raw", array.tobytes()
            if content in (FLOAT, BOTH) or not as_stored:
                yield f"{name}.raw", _as_floats(array, info).tobytes()

    write_together(folder, files())


def _as_floats(array: np.ndarray, info: TensorInfo) -> np.ndarray:
    """Convert a tensor's elements to floats."""
    if info.quantization is not None and info.dtype.is_fixed_point:
        return info.quantization.dequantize(array)
    return np.asarray(info.dtype.decode(array), np.float32)


def file_names(tensors: Iterable[str]) -> dict[str, str]:
    """Return a file name without its ending for each tensor, as QNN's tools name files; a clash gets a number.

    Examples
    --------
    >>> file_names(["a/b", "a_b", "x:0", "34"])
    {'a/b': 'a_b_1', 'a_b': 'a_b', 'x:0': 'x_0', '34': '_34'}
    """
    names = list(tensors)
    file_of = {name: _shorten(clean_name(name), name) for name in names}
    # Names that need no change keep theirs.
    taken = {name for name in names if file_of[name] == name}
    for name in names:
        if file_of[name] == name:
            continue
        number, free = 0, file_of[name]
        while free in taken:
            number += 1
            free = f"{file_of[name]}_{number}"
        taken.add(free)
        file_of[name] = free
    return file_of


def _shorten(clean: str, tensor: str) -> str:
    """Cut a name that is too long for a file, and append a hash of the whole name."""
    if len(clean) <= _MAX_NAME:
        return clean
    digest = hashlib.sha256(tensor.encode()).hexdigest()
    return f"{clean[: _MAX_NAME - len(digest) - 1]}_{digest}"


@dataclass(frozen=True)
class Inference:
    """The input files of an inference, by input; `what` names the line of the list in messages."""

    what: str
    files: Mapping[str, Path]

    def read(self, inputs: Sequence[TensorInfo], native: Collection[str], views: Mapping[str, np.ndarray]) -> None:
        """Read all files into the views of the inputs; those in `native` have files of stored elements."""
        for info in inputs:
            views[info.name][...] = read_tensor(self.files[info.name], info, info.name in native, self.what)


@dataclass(frozen=True)
class InputList:
    """The content of an input list: the inferences, and the outputs to write (empty for all)."""

    inferences: tuple[Inference, ...]
    outputs: tuple[str, ...]

    def check(self, inputs: Sequence[TensorInfo], native: Collection[str], how: str) -> None:
        """Check the size of every file before anything runs, and warn of integers that are read as floats.

        - `native`: the inputs whose files hold elements as stored.
        - `how`: what makes the caller read elements as stored, for that warning.
        """
        checked = set()
        for inference in self.inferences:
            for info in inputs:
                file = inference.files[info.name]
                if (file, info.name) not in checked:
                    check_size(file, info, info.name in native, inference.what)
                    checked.add((file, info.name))
        for info in inputs:
            # As floats, the bits of small integers are nearly 0: every token would be token 0, without an error.
            if info.dtype.is_integer and info.name not in native:
                stored = f"{info.dtype.numpy} elements as stored"
                text = f"input '{info.name}' is {info.dtype.name}, and its files are read as floats, as in QNN"
                Log()(LogLevel.WARN, f"{text}; files of {stored} need {how}")

    def write(self, folder: Path, outputs: Sequence[TensorInfo], views: Mapping[str, np.ndarray], content: str) -> None:
        """Write the views of those outputs that are to be written; `content` is as for `write_results`."""
        infos = {info.name: info for info in outputs}
        names = file_names(infos)
        write_results(folder, [(names[name], views[name], infos[name]) for name in self.outputs or infos], content)


def read_list(path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> InputList:
    """Read an input list for a graph with these inputs and outputs; assign every file to an input."""
    what = f"input list '{path}'"
    try:
        lines = reading.contents(path, MAX_LIST_BYTES).decode("utf-8").splitlines()
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise invalid_argument(what, f"cannot be read: {why}", reading.nearest_file(path)) from None
    chosen: tuple[str, ...] = ()
    inferences = []
    for number, line in enumerate(lines, 1):
        where = f"{what}, line {number}"
        if line[:1] in ("#", "%"):
            chosen = tuple(line[1:].split())
            for name in chosen:
                if name not in outputs:
                    names = ", ".join(f"'{names}'" for names in outputs)
                    rule = f"the graph has no such output; it has {names}"
                    raise QnnError(
                        Code.GRAPH_INVALID_TENSOR, f"{where}: output '{name}'", rule, did_you_mean(name, outputs)
                    )
        elif line.strip():
            inferences.append(Inference(where, _files(where, line.split(), inputs, path.parent)))
    if not inferences:
        raise invalid_argument(what, "it lists no inference")
    return InputList(tuple(inferences), chosen)


def _files(what: str, entries: Sequence[str], names: Sequence[str], folder: Path) -> dict[str, Path]:
    """Assign the entries of a line to the inputs in order, or by ``name:=file``; return the files by input."""

    def refuse(rule: str, hint: str = "") -> QnnError:
        return invalid_argument(what, rule, hint or f"The inputs are {', '.join(map(repr, names))}.")

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
