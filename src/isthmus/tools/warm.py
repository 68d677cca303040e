"""``isthmus warm``: compile ahead what models need.

An installation from source compiles a model's code when the model is first opened. This command opens models without
running them, so that a later process finds everything compiled: in the image of a container, for example, or in the
cached folder of a CI job. The code is kept in ISTHMUS_CACHE_DIR, or in the user's cache folder. With a wheel that
contains compiled code there is little to do.
"""

from __future__ import annotations

import argparse
import json
import time

from isthmus.backends.seam import registry
from isthmus.errors import one_line
from isthmus.session import Session
from isthmus.system.progress import above, progress
from isthmus.tools.files import file_name
from isthmus.tools.model_options import shapes_of
from isthmus.tools.options import add_shared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument("models", nargs="+", type=file_name, metavar="MODEL", help="a .tflite, .onnx or .dlc file")
    backends = ", ".join(registry.names())
    parser.add_argument(
        "--backend", action="append", metavar="NAME", help=f"{backends}; may be repeated (default {registry.DEFAULT})"
    )
    add_shared(parser, "shape", "log-level", "json")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    shapes = shapes_of(options)
    backends = options.backend or [registry.DEFAULT]
    for backend in backends:
        registry.entry(backend)  # a wrong name is refused before anything is compiled
    opened = []
    with progress("models", len(options.models) * len(backends)) as state:
        for model in options.models:
            for backend in backends:
                began = time.perf_counter()
                with Session(model, backend=backend, shapes=shapes):
                    seconds = time.perf_counter() - began
                opened.append({"model": str(model), "backend": backend, "seconds": seconds})
                if not options.json:
                    with above():
                        print(f"{one_line(str(model))} on {backend}: ready after {seconds:.1f} s", flush=True)
                state.step()
    if options.json:
        print(json.dumps({"models": opened}))
    return 0
