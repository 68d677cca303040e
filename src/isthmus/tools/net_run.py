"""``isthmus net-run``: run a model or a context binary on lists of raw input files; outputs go to Result_N folders.

An input list has a line for each inference: files in the order of the inputs, or ``name:=file``. A line that begins
with ``#`` or ``%`` names the outputs to write; without one all are written. The numbering of inferences continues from
list to list. Files hold floats for quantized tensors unless the options say that they are native.

Output y of inference 0 is Result_0/y.raw. Letters, digits, ``_``, ``-`` and dots of a name are kept; every other byte
is escaped as in a URL: ``a/b`` becomes a%2Fb.raw. A name that is too long for a file ends in ``~`` and its SHA-256.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from isthmus import qnn
from isthmus.backends.seam import registry
from isthmus.errors import Code, QnnError, counted
from isthmus.graph import TensorInfo
from isthmus.session import time_limit
from isthmus.system import reading
from isthmus.tools.context_binary_generator import write
from isthmus.tools.library import add_backend_arguments, add_mode_argument, add_timeout_argument, backend_config
from isthmus.tools.models import add_dlc_argument, compose, named

SHARED, RAW = "memhandle", "raw"
"""The kinds of memory for inputs and outputs."""
MAX_LIST_BYTES = 1 << 28
"""The largest file that is accepted as an input list."""
_MAX_NAME = 200
"""The longest tensor name in a file name: systems allow 255 bytes, some of which are needed while a file is written."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument("--model", metavar="M", help="a .onnx, .tflite or .dlc file, or a model library")
    add_dlc_argument(parser)
    parser.add_argument("--retrieve_context", type=Path, metavar="BIN", help="a context binary")
    parser.add_argument(
        "--input_list", required=True, metavar="F[,F...]", help="lists of input files, one a graph of the context"
    )
    add_backend_arguments(parser)
    add_mode_argument(parser)
    parser.add_argument("--shared_buffer", action="store_true", help="inputs and outputs in shared memory: no copies")
    parser.add_argument("--use_native_input_files", action="store_true", help="files hold tensors as they are stored")
    parser.add_argument("--use_native_output_files", action="store_true", help="write tensors as they are stored")
    add_timeout_argument(parser)


@dataclass(frozen=True)
class InputList:
    """The content of an input list: the files of each inference by input, and the outputs to write (empty for all)."""

    inferences: tuple[dict[str, Path], ...]
    outputs: tuple[str, ...]


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    entry = registry.entry(options.backend)
    config = backend_config(entry, options.config_file, options.direct_mode)
    lists = [Path(text) for text in options.input_list.split(",") if text]
    files, dlcs = named(options.model, options.dlc_path)
    if len(files) + len(dlcs) + (options.retrieve_context is not None) != 1:
        rule = "name one of --model, --dlc_path and --retrieve_context"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "what to run", rule)
    # As on a device, memory is shared only on request. With None a backend whose default is raw chooses the memory.
    io = SHARED if options.shared_buffer else None if next(iter(entry.io.kinds)) == RAW else RAW
    mem_type = entry.io_kind(io)
    memories: list[qnn.GraphMemory] = []
    try:
        with qnn.Backend(entry.name, config) as backend:
            signal = time_limit(backend, options.timeout)
            if options.retrieve_context is not None:
                context = backend.create_context_from_binary(options.retrieve_context)
            else:
                context = backend.create_context()
                compose(context, files, dlcs, mem_type)
            graphs = list(context.graphs.values())
            if len(lists) != len(graphs):
                raise QnnError(
                    Code.COMMON_INVALID_ARGUMENT,
                    f"--input_list {options.input_list}",
                    f"names {counted(len(lists), 'file')}, the context has {counted(len(graphs), 'graph')}",
                )
            # The number of the list's first inference.
            first = 0
            for graph, path in zip(graphs, lists, strict=True):
                input_list = read_list(path, graph.input_tensors)
                memories.append(graph.allocate(io))
                first += _run_list(graph, memories[-1], input_list, options, first, signal)
    finally:
        for memory in memories:
            memory.close()
    return 0


def _run_list(
    graph: qnn.Graph,
    memory: qnn.GraphMemory,
    input_list: InputList,
    options: argparse.Namespace,
    first: int,
    signal: qnn.Signal | None,
) -> int:
    """Run every inference of a list, numbered from `first`, and return how many there are."""
    infos = {info.name: info for info in graph.output_tensors}
    for name in input_list.outputs:
        if name not in infos:
            known = ", ".join(f"'{known}'" for known in infos)
            raise QnnError(Code.GRAPH_INVALID_TENSOR, f"output '{name}'", f"graph '{graph.name}' has {known}")
    seconds = 0.0
    for number, files in enumerate(input_list.inferences, first):
        for info in graph.input_tensors:
            memory.inputs[info.name][...] = read_tensor(files[info.name], info, options.use_native_input_files)
        begin = time.perf_counter()
        memory.binding.execute(signal=signal)
        seconds += time.perf_counter() - begin
        for name in input_list.outputs or infos:
            content = stored_or_real(memory.outputs[name], infos[name], options.use_native_output_files)
            write(options.output_dir / f"Result_{number}" / f"{file_name(name)}.raw", content.tobytes())
    count, stats = len(input_list.inferences), graph.stats
    print(
        f"graph '{graph.name}': {counted(count, 'inference')}, {seconds / count * 1e3:.3f} ms each, "
        f"{stats.copied_bytes:,} bytes copied; results in {options.output_dir}/Result_{first}"
        + (f" to Result_{first + count - 1}" if count > 1 else "")
    )
    return count


def read_list(path: Path, inputs: Sequence[TensorInfo]) -> InputList:
    """Read an input list; find every file and assign it to an input."""
    what = f"input list '{path}'"
    try:
        lines = reading.contents(path, MAX_LIST_BYTES).decode("utf-8").splitlines()
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"cannot be read: {why}") from None
    outputs: tuple[str, ...] = ()
    inferences = []
    names = [info.name for info in inputs]
    for number, line in enumerate(lines, 1):
        if line[:1] in ("#", "%"):
            outputs = tuple(line[1:].split())
        elif line.strip():
            inferences.append(_files(f"{what}, line {number}", line.split(), names, path.parent))
    if not inferences:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "it lists no inference")
    return InputList(tuple(inferences), outputs)


def _files(what: str, entries: Sequence[str], names: Sequence[str], folder: Path) -> dict[str, Path]:
    """Assign the entries of a line to the inputs in order, or by ``name:=file``; return the files by input.

    Parameters
    ----------
    what
        The line, for messages.
    names
        The names of the inputs.
    folder
        The folder of the list.
    """

    def refuse(rule: str) -> QnnError:
        return QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule, f"The inputs are {', '.join(map(repr, names))}.")

    if len(entries) != len(names):
        raise refuse(f"it has {counted(len(entries), 'file')} for {counted(len(names), 'input')}")
    files = {}
    for position, entry in enumerate(entries):
        name, assigned, text = entry.rpartition(":=")
        name = name if assigned else names[position]
        if name not in names:
            raise refuse(f"there is no input '{name}'")
        if name in files:
            raise refuse(f"input '{name}' has two files")
        # QNN's tools look in the working folder; the list's own folder is a convenience.
        files[name] = Path(text) if Path(text).exists() else folder / text
    return files


def read_tensor(path: Path, info: TensorInfo, native: bool) -> np.ndarray:
    """Read a tensor from a raw file.

    A file holds floats for a quantized tensor, which are quantized, unless `native` says that it holds stored integers.
    """
    real = info.quantization is not None and info.dtype.is_fixed_point and not native
    dtype = np.dtype(np.float32) if real else info.dtype.numpy
    needed = info.nbytes // info.dtype.itemsize * dtype.itemsize
    try:
        with reading.opened(path) as stream:
            content = stream.read(needed + 1)
            size = max(len(content), os.fstat(stream.fileno()).st_size)
    except OSError as problem:
        rule = f"cannot be read: {problem.strerror}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"input file '{path}'", rule) from None
    if size != needed or len(content) != needed:
        raise QnnError(
            Code.COMMON_INVALID_ARGUMENT,
            f"input file '{path}'",
            f"has {size} bytes, tensor '{info.name}' needs {needed} as {dtype}",
            "Pass --use_native_input_files for files of stored integers." if real else "",
        )
    array = np.frombuffer(content, dtype).reshape(info.dims)
    return info.quantization.quantize(array, info.dtype.numpy) if real and info.quantization else array


def stored_or_real(view: np.ndarray, info: TensorInfo, native: bool) -> np.ndarray:
    """Return a tensor as it is stored if `native`, or else dequantized if it is quantized."""
    if native or info.quantization is None or not info.dtype.is_fixed_point:
        return view
    return info.quantization.dequantize(view)


def file_name(tensor: str) -> str:
    """Return a valid file name for a tensor, unique to its name.

    Examples
    --------
    >>> [file_name(name) for name in ("a_b", "a/b", "a:b", "100%")]
    ['a_b', 'a%2Fb', 'a%3Ab', '100%25']
    """
    quoted = quote(tensor, safe="").replace("~", "%7E")
    if len(quoted) <= _MAX_NAME:
        return quoted
    digest = hashlib.sha256(tensor.encode()).hexdigest()
    return f"{quoted[: _MAX_NAME - len(digest) - 1]}~{digest}"
