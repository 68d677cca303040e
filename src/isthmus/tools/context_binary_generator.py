"""``isthmus context-binary-generator``: prepare models for a backend and write them to one context binary."""

from __future__ import annotations

import argparse
from pathlib import Path

from isthmus import qnn
from isthmus.backends.seam import registry
from isthmus.errors import Code, QnnError, counted
from isthmus.tools.files import written_whole
from isthmus.tools.library import add_backend_arguments, backend_config
from isthmus.tools.models import add_dlc_argument, compose, named
from isthmus.tools.shapes import add_shape_argument, parse_shape

IO_KINDS = ("raw", "memhandle")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument(
        "--model", metavar="M[,M...]", help=".onnx, .tflite or .dlc files or model libraries; graphs of the context"
    )
    add_dlc_argument(parser, several=True)
    add_backend_arguments(parser)
    parser.add_argument("--binary_file", metavar="NAME", help="the file's name without .bin; the model's by default")
    parser.add_argument(
        "--input_output_tensor_mem_type",
        choices=IO_KINDS,
        help="what clients will bring at execution; memhandle reserves nothing for copies (default: what a model "
        "library embeds, raw for other models)",
    )
    add_shape_argument(parser)


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    files, dlcs = named(options.model, options.dlc_path)
    models = [*files, *dlcs]
    if not models:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "what to prepare", "name models by --model or --dlc_path")
    shapes = dict(parse_shape(text) for text in options.shape)
    entry = registry.entry(options.backend)
    kind = options.input_output_tensor_mem_type or "raw"
    if kind not in entry.io.kinds:
        what = f"--input_output_tensor_mem_type {kind}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"backend '{entry.name}' has no such hint")
    name = models[0].stem if options.binary_file is None else options.binary_file
    if not name or name.endswith("/"):
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--binary_file '{name}'", "it names no file")
    path = options.output_dir / f"{name}.bin"
    for model in models:
        if path.exists() and model.exists() and path.samefile(model):
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"'{path}'", "it is a model; the binary would overwrite it")
    config = backend_config(entry, options.config_file)
    with qnn.Backend(entry.name, config) as backend:
        context = backend.create_context()
        # Without the option, the memory types that a model library embeds apply.
        embedded = options.input_output_tensor_mem_type is None
        compose(context, files, dlcs, entry.io_kind(kind), shapes, embedded)
        content = context.prepare_offline()
        graphs = list(context.graphs.values())
        kinds = dict.fromkeys(info.mem_type.name.lower() for graph in graphs for info in graph.info.tensors)
    write(path, content)
    print(f"{path}: {len(content):,} bytes, {counted(len(graphs), 'graph')} for {entry.name}, {' and '.join(kinds)}")
    return 0


def write(path: Path, content: bytes) -> None:
    """Write a file atomically, and create the folders it needs."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"'{path}'", f"cannot be written: {problem.strerror}") from None
    with written_whole(path, f"'{path}'") as stream:
        stream.write(content)
