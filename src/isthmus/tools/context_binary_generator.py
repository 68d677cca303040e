"""``isthmus context-binary-generator``: prepare models for a backend and write them to one context binary."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from isthmus import qnn
from isthmus.backends.seam import registry
from isthmus.errors import counted, did_you_mean, invalid_argument
from isthmus.prepare.tiling import ScratchLimit
from isthmus.qnn.profile import ProfilingEvent
from isthmus.system.progress import stages
from isthmus.tools import qnn_options
from isthmus.tools.files import refuse_overwrite, refuse_shared, write_together
from isthmus.tools.messages import print_line
from isthmus.tools.model_options import backend_config, open_shapes, refuses_shapes, shapes_of
from isthmus.tools.models import compose, intermediate, make_outputs, model_files
from isthmus.tools.options import add_shared
from isthmus.tools.profile_viewer import ProfileRecorder

# The stages of the command, for its progress.
_COMPOSING, _PREPARING = "compose the models", "prepare the graphs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser: those of QNN's tool, and ours."""
    qnn_options.add_options(parser, qnn_options.GENERATOR)
    add_shared(parser, "shape", "strict", "scratch-limit", "slower")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each file")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    qnn_options.check_given(options, qnn_options.GENERATOR)
    qnn_options.exclusive(options, "enable_intermediate_outputs", "set_output_tensors")
    files, dlcs = model_files(options.model, options.dlc_path)
    models = [*files, *dlcs]
    if not models:
        raise invalid_argument("what to prepare", "name models by --model or --dlc_path")
    shapes = shapes_of(options)
    limit = ScratchLimit.if_any(options.scratch_limit, options.slower)
    entry = registry.entry(options.backend)
    kind = options.input_output_tensor_mem_type or "raw"
    if kind not in entry.io.kinds:
        raise invalid_argument(f"--input_output_tensor_mem_type {kind}", f"backend '{entry.name}' has no such hint")
    paths = [_path(options.output_dir, models[0].stem if options.binary_file is None else options.binary_file, models)]
    if options.backend_binary is not None:
        paths.append(_path(options.output_dir, options.backend_binary, models, "backend_binary"))
        refuse_shared({"--binary_file": paths[0], "--backend_binary": paths[1]})
    config = backend_config(entry, options.config_file)
    if refuses_shapes(options, *models):
        return 1
    with qnn.Backend(entry.name, config) as backend, stages((_COMPOSING, _PREPARING)) as begin:
        begin(_COMPOSING)
        qnn_options.register_op_packages(backend, options.op_packages)
        context = backend.create_context()
        # Without the option, the memory types that a model library embeds apply.
        embedded = options.input_output_tensor_mem_type is None
        mem_type = entry.io_kind(kind)
        compose(context, files, dlcs, mem_type, shapes, embedded, prefix=options.model_prefix)
        _choose(context, options.enable_graphs)
        tensors = {graph.name: intermediate(graph) for graph in context.graphs.values()}
        chosen = qnn_options.by_graph(options.set_output_tensors, "set_output_tensors", tensors)
        for name, graph in context.graphs.items():
            every = options.enable_intermediate_outputs
            outputs = tensors[name] if every else {each: tensors[name][each] for each in chosen[name]}
            make_outputs(graph, outputs, mem_type)
            if limit is not None:
                graph.set_config(qnn.GraphConfig.SCRATCH_LIMIT, limit)
        begin(_PREPARING)
        recorder = ProfileRecorder(backend, options.profiling_level)
        began = time.perf_counter()
        content = context.prepare_offline()
        recorder.end("prepare", "", ProfilingEvent("prepare", (time.perf_counter() - began) * 1e6, "us"))
        graphs = list(context.graphs.values())
        kinds = dict.fromkeys(info.mem_type.name.lower() for graph in graphs for info in graph.info.tensors)
        recorder.write(options.output_dir, qnn_options.GENERATOR, entry.name)
    open_inputs = open_shapes(options, *models)
    write_together(Path(), [(str(path), content) for path in paths])
    for path in paths:
        if options.json:
            names = [graph.name for graph in graphs]
            written = {"file": str(path), "bytes": len(content), "backend": entry.name, "graphs": names}
            print(json.dumps({**written, "open_shapes": open_inputs}))
            continue
        print_line(
            f"{path}: {len(content):,} bytes, {counted(len(graphs), 'graph')} for {entry.name}, {' and '.join(kinds)}"
        )
    return 0


def _path(folder: Path, name: str, models: list[Path], option: str = "binary_file") -> Path:
    """Return the path of a binary; refuse a name that is none, and one that would overwrite a model."""
    if not name or name.endswith("/"):
        raise invalid_argument(f"--{option} '{name}'", "it names no file")
    path = folder / f"{name}.bin"
    refuse_overwrite(f"'{path}'", path, *models)
    return path


def _choose(context: qnn.Context, names: str | None) -> None:
    """Remove the graphs that ``--enable_graphs`` does not name, if it is given."""
    if names is None:
        return
    chosen = [name for name in names.split(",") if name]
    for name in chosen:
        if name not in context.graphs:
            hint = did_you_mean(name, context.graphs) or f"Graphs are {', '.join(context.graphs)}."
            raise invalid_argument(f"--enable_graphs {name}", "there is no such graph", hint)
    if not chosen:
        raise invalid_argument(f"--enable_graphs {names}", "it names no graph")
    for name, graph in list(context.graphs.items()):
        if name not in chosen:
            context.drop_graph(graph.driver.graph)
