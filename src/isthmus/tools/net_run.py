"""``isthmus net-run``: a model or a context binary on lists of raw input files; raw output files in Result_N folders.

An input list has a line for each inference: files in the order of the inputs, or ``name:=file``. A line that begins
with ``#`` or ``%`` names the outputs to write. Files hold floats for quantized tensors unless the options say that they
are native.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isthmus import qnn
from isthmus.backends import registry
from isthmus.errors import Code, QnnError
from isthmus.graph import TensorInfo
from isthmus.tools.context_binary_generator import write
from isthmus.tools.library import add_backend_arguments, add_mode_argument, backend_config, log_for

SHARED, RAW = "memhandle", "raw"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path, metavar="M", help="a .onnx or .tflite file")
    source.add_argument("--retrieve_context", type=Path, metavar="BIN", help="a context binary")
    parser.add_argument(
        "--input_list", required=True, metavar="F[,F...]", help="lists of input files, one a graph of the context"
    )
    add_backend_arguments(parser)
    add_mode_argument(parser)
    parser.add_argument("--shared_buffer", action="store_true", help="inputs and outputs in shared memory: no copies")
    parser.add_argument("--use_native_input_files", action="store_true", help="files hold tensors as they are stored")
    parser.add_argument("--use_native_output_files", action="store_true", help="write tensors as they are stored")


@dataclass(frozen=True)
class InputList:
    """What an input list asks for: the files of each inference by input, and the outputs to write (all: none named)."""

    inferences: tuple[dict[str, Path], ...]
    outputs: tuple[str, ...]


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    entry = registry.entry(options.backend)
    config = backend_config(entry, options.config_file, options.direct_mode)
    lists = [Path(text) for text in options.input_list.split(",") if text]
    # As on a device, memory is shared only if that is asked for.
    io = SHARED if options.shared_buffer else None if next(iter(entry.io.kinds)) == RAW else RAW
    mem_type = entry.io_kind(io)
    memories: list[qnn.GraphMemory] = []
    try:
        with qnn.Backend(entry.name, config, log_for(options.log_level)) as backend:
            if options.retrieve_context is not None:
                context = backend.create_context_from_binary(options.retrieve_context)
            else:
                context = backend.create_context()
                context.compose(options.model, mem_type=mem_type)
            graphs = list(context.graphs.values())
            if len(lists) != len(graphs):
                raise QnnError(
                    Code.COMMON_INVALID_ARGUMENT,
                    f"--input_list {options.input_list}",
                    f"names {len(lists)} file(s), the context has {len(graphs)} graph(s)",
                )
            first = 0
            for graph, path in zip(graphs, lists, strict=True):
                wanted = read_list(path, graph.input_tensors)
                memories.append(graph.allocate(io))
                first += _run_list(graph, memories[-1], wanted, options, first)
    finally:
        for memory in memories:
            memory.close()
    return 0


def _run_list(
    graph: qnn.Graph, memory: qnn.GraphMemory, wanted: InputList, options: argparse.Namespace, first: int
) -> int:
    """Run every inference of a list; how many there were."""
    infos = {info.name: info for info in graph.output_tensors}
    for name in wanted.outputs:
        if name not in infos:
            known = ", ".join(f"'{known}'" for known in infos)
            raise QnnError(Code.GRAPH_INVALID_TENSOR, f"output '{name}'", f"graph '{graph.name}' has {known}")
    seconds = 0.0
    for number, files in enumerate(wanted.inferences, first):
        for info in graph.input_tensors:
            memory.inputs[info.name][...] = read_tensor(files[info.name], info, options.use_native_input_files)
        begin = time.perf_counter()
        memory.binding.execute()
        seconds += time.perf_counter() - begin
        for name in wanted.outputs or infos:
            content = stored_or_real(memory.outputs[name], infos[name], options.use_native_output_files)
            write(options.output_dir / f"Result_{number}" / f"{file_name(name)}.raw", content.tobytes())
    count, stats = len(wanted.inferences), graph.stats
    print(
        f"graph '{graph.name}': {count} inference(s), {seconds / count * 1e3:.3f} ms each, "
        f"{stats.copied_bytes:,} bytes copied; results in {options.output_dir}/Result_{first}"
        + (f" to Result_{first + count - 1}" if count > 1 else "")
    )
    return count


def read_list(path: Path, inputs: Sequence[TensorInfo]) -> InputList:
    """An input list, with every file found and every input named."""
    what = f"input list '{path}'"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as problem:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"cannot be read: {problem}") from None
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
    def refuse(rule: str) -> QnnError:
        return QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule, f"The inputs are {', '.join(map(repr, names))}.")

    if len(entries) != len(names):
        raise refuse(f"it has {len(entries)} file(s) for {len(names)} input(s)")
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
    """A tensor out of a raw file, quantized where the tensor is and the file is not."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        rule = f"cannot be read: {problem.strerror}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"input file '{path}'", rule) from None
    real = info.quantization is not None and info.dtype.is_fixed_point and not native
    dtype = np.dtype(np.float32) if real else info.dtype.numpy
    elements = info.nbytes // info.dtype.itemsize
    if len(content) != elements * dtype.itemsize:
        raise QnnError(
            Code.COMMON_INVALID_ARGUMENT,
            f"input file '{path}'",
            f"has {len(content)} bytes, tensor '{info.name}' needs {elements * dtype.itemsize} as {dtype}",
            "Pass --use_native_input_files for files of stored integers." if real else "",
        )
    array = np.frombuffer(content, dtype).reshape(info.dims)
    return info.quantization.quantize(array, info.dtype.numpy) if real and info.quantization else array


def stored_or_real(view: np.ndarray, info: TensorInfo, native: bool) -> np.ndarray:
    """A tensor as it is stored, or the floats it means."""
    if native or info.quantization is None or not info.dtype.is_fixed_point:
        return view
    return info.quantization.dequantize(view)


def file_name(tensor: str) -> str:
    """A tensor's name as a file may have it."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", tensor)
