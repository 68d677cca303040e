"""Raw files of tensors, as QNN's tools read and write them: floats, or elements as they are stored ("native").

The files of an output are named after its tensor, with the characters that QNN's converters allow in names: ``x:0`` is
written to ``x_0.raw``. Elements as stored go to ``x_0_native.raw``, unless the tensor holds floats of 32 bits anyway.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from isthmus.errors import Code, QnnError, counted
from isthmus.frontends.dlc.operations import cleaned
from isthmus.graph import DataType, TensorInfo
from isthmus.system import reading
from isthmus.tools.files import write_together

FLOAT, NATIVE, BOTH = "float_only", "native_only", "float_and_native"
"""What output files hold: the values of ``--output_data_type``."""
_MAX_NAME = 200
"""The longest tensor name in a file name: systems allow 255 bytes, some of which are needed while a file is written."""


def _element(info: TensorInfo, native: bool) -> np.dtype:
    """Return the type of the elements of a tensor's file."""
    return info.dtype.numpy if native else np.dtype(np.float32)


def check_size(path: Path, info: TensorInfo, native: bool, where: str) -> None:
    """Refuse an input file that cannot be read, or that has not the size of its tensor.

    - `native`: whether it holds elements as stored, rather than floats.
    - `where`: the line of the input list that names it.
    """
    try:
        with reading.opened(path) as stream:
            size = os.fstat(stream.fileno()).st_size
    except OSError as problem:
        rule = f"cannot be read: {problem.strerror}"
        what, hint = f"{where}: input file '{path}'", reading.nearest_file(path)
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule, hint) from None
    _check_bytes(size, path, info, native, where)


def _check_bytes(size: int, path: Path, info: TensorInfo, native: bool, where: str) -> None:
    """Refuse a number of bytes that is not that of the tensor."""
    needed = math.prod(info.dims) * _element(info, native).itemsize
    if size == needed:
        return
    rule = f"has {counted(size, 'byte')}, tensor '{info.name}' needs {needed:,} as {_element(info, native)}"
    stored = math.prod(info.dims) * info.dtype.numpy.itemsize
    hint = f"Files of elements as stored ({info.dtype.numpy}) need --use_native_input_files." if size == stored else ""
    raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"{where}: input file '{path}'", rule, hint)


def read_tensor(path: Path, info: TensorInfo, native: bool, where: str) -> np.ndarray:
    """Read a tensor from a raw file; floats are converted to the tensor's type. Parameters as for `check_size`."""
    needed = math.prod(info.dims) * _element(info, native).itemsize
    try:
        with reading.opened(path) as stream:
            content = stream.read(needed + 1)
    except OSError as problem:
        rule = f"cannot be read: {problem.strerror}"
        what, hint = f"{where}: input file '{path}'", reading.nearest_file(path)
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule, hint) from None
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
    wanted = {name: _shorten(cleaned(name), name) for name in names}
    # Names that need no change keep theirs.
    taken = {name for name in names if wanted[name] == name}
    for name in names:
        if wanted[name] == name:
            continue
        number, free = 0, wanted[name]
        while free in taken:
            number += 1
            free = f"{wanted[name]}_{number}"
        taken.add(free)
        wanted[name] = free
    return wanted


def _shorten(clean: str, tensor: str) -> str:
    """Cut a name that is too long for a file, and append a hash of the whole name."""
    if len(clean) <= _MAX_NAME:
        return clean
    digest = hashlib.sha256(tensor.encode()).hexdigest()
    return f"{clean[: _MAX_NAME - len(digest) - 1]}_{digest}"
