"""``isthmus context-binary-generator``: models prepared for a backend and kept in one context binary."""

from __future__ import annotations

import argparse
from pathlib import Path

from isthmus import qnn
from isthmus.bound import BoundGraph
from isthmus.errors import Code, QnnError
from isthmus.graph import MemType
from isthmus.tools.library import add_backend_arguments, backend_config, backend_name, log_for
from isthmus.tools.run import parse_shape

MEM_TYPES = {"raw": MemType.RAW, "memhandle": MemType.MEMHANDLE}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--model", required=True, metavar="M[,M...]", help=".onnx or .tflite files; each becomes a graph of the context"
    )
    add_backend_arguments(parser)
    parser.add_argument("--binary_file", metavar="NAME", help="the file's name without .bin; the model's by default")
    parser.add_argument(
        "--input_output_tensor_mem_type",
        choices=tuple(MEM_TYPES),
        default="raw",
        help="what clients will bring at execution; memhandle reserves nothing for copies",
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1,3,48,320",
        help="dimensions of an input that the file leaves open; may be repeated",
    )


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    models = [Path(name) for name in options.model.split(",") if name]
    if not models:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--model {options.model}", "names no file")
    shapes = dict(parse_shape(text) for text in options.shape)
    name = backend_name(options.backend)
    mem_type = MEM_TYPES[options.input_output_tensor_mem_type]
    if mem_type is MemType.MEMHANDLE and name != "htp":
        what = "--input_output_tensor_mem_type memhandle"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"backend '{name}' has no such hint")
    bound: list[BoundGraph] = []
    try:
        with qnn.Backend(name, backend_config(name, options.config_file), log_for(options.log_level)) as backend:
            context = backend.create_context()
            for model in models:
                graph = context.compose(model, None, shapes, mem_type=mem_type)
                bound.append(BoundGraph(context, graph))
                bound[-1].bind(shared=True)
            content = context.get_binary()
    finally:
        for graph_memory in bound:
            graph_memory.close()
    path = options.output_dir / f"{options.binary_file or models[0].stem}.bin"
    write(path, content)
    print(f"{path}: {len(content):,} bytes, {len(models)} graph(s) for {name}, {options.input_output_tensor_mem_type}")
    return 0


def write(path: Path, content: bytes) -> None:
    """Write a file and the folders it needs."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as problem:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"'{path}'", f"cannot be written: {problem.strerror}") from None
