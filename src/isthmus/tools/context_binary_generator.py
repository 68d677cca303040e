"""``isthmus context-binary-generator``: models prepared for a backend and kept in one context binary."""

from __future__ import annotations

import argparse
from pathlib import Path

from isthmus import qnn
from isthmus.backends import registry
from isthmus.errors import Code, QnnError
from isthmus.tools.files import written_whole
from isthmus.tools.library import add_backend_arguments, backend_config
from isthmus.tools.shapes import add_shape_argument, parse_shape

IO_KINDS = ("raw", "memhandle")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--model", required=True, metavar="M[,M...]", help=".onnx or .tflite files; each becomes a graph of the context"
    )
    add_backend_arguments(parser)
    parser.add_argument("--binary_file", metavar="NAME", help="the file's name without .bin; the model's by default")
    parser.add_argument(
        "--input_output_tensor_mem_type",
        choices=IO_KINDS,
        default="raw",
        help="what clients will bring at execution; memhandle reserves nothing for copies",
    )
    add_shape_argument(parser)


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    models = [Path(name) for name in options.model.split(",") if name]
    if not models:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--model {options.model}", "names no file")
    shapes = dict(parse_shape(text) for text in options.shape)
    entry = registry.entry(options.backend)
    kind = options.input_output_tensor_mem_type
    if kind not in entry.io.kinds:
        what = f"--input_output_tensor_mem_type {kind}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"backend '{entry.name}' has no such hint")
    path = options.output_dir / f"{options.binary_file or models[0].stem}.bin"
    for model in models:
        if path.exists() and model.exists() and path.samefile(model):
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"'{path}'", "it is a model; the binary would overwrite it")
    config = backend_config(entry, options.config_file)
    with qnn.Backend(entry.name, config) as backend:
        context = backend.create_context()
        for model in models:
            context.compose(model, None, shapes, mem_type=entry.io_kind(kind))
        content = context.prepare_offline()
    write(path, content)
    print(f"{path}: {len(content):,} bytes, {len(models)} graph(s) for {entry.name}, {kind}")
    return 0


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, with the folders it needs."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"'{path}'", f"cannot be written: {problem.strerror}") from None
    with written_whole(path, f"'{path}'") as stream:
        stream.write(content)
