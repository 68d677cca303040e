"""Six parts of a model on a board with gigabytes free: the third does not load, and one spill-fill buffer helps.

    python six_binaries.py FOLDER            # writes six context binaries and a board, and loads them one by one
    isthmus fit --contexts FOLDER/part-*.bin --soc FOLDER/board.json
    python six_binaries.py FOLDER --group    # loads them as that command advises, and runs all six

Everything is 4096 times smaller than on the board that it stands for: a part has 0.7 GB of weights and 1.6 GB of
spill-fill there, and a process domain 3.75 GiB. The exit status is 1 if a part does not load.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

from isthmus import QnnError, qnn
from isthmus.graph import DataType, TensorType
from isthmus.qnn import htp

PARTS = 6
ROWS, NARROW, WIDE = 340, 4, 144
"""The rows of all tensors, the columns of a part's input and output, and those of the tensors between them."""
SCALE = 4096
BOARD = {
    "name": "board, 4096 times smaller",
    "domains": [0, 1],
    "capacity": (15 << 28) // SCALE,
    "sources": {"capacity": "3.75 GiB, which Qualcomm documents, divided by 4096", "domains": "assumed"},
}


def matrices(part: int) -> list[np.ndarray]:
    """Return the weights of a part: what a column becomes in each of its layers."""
    random, widths = np.random.default_rng(part), (NARROW, WIDE, WIDE, WIDE, NARROW)
    return [
        (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)
        for rows, columns in pairwise(widths)
    ]


def context_binary(part: int) -> bytes:
    """Return the context binary of a part."""
    with qnn.Backend("htp") as backend, backend.create_context() as context:
        graph = context.create_graph(f"part-{part}")
        value = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (ROWS, NARROW))
        layers = matrices(part)
        for number, matrix in enumerate(layers, 1):
            w = graph.create_tensor(f"w{number}", TensorType.STATIC, DataType.FLOAT_32, matrix.shape, None, matrix)
            kind, name = (TensorType.NATIVE, f"t{number}") if number < len(layers) else (TensorType.APP_READ, "y")
            after = graph.create_tensor(name, kind, DataType.FLOAT_32, (ROWS, matrix.shape[1]))
            graph.add_node(f"layer{number}", "MatMul", [value, w], [after])
            value = after
        return context.prepare_offline()


def make(folder: Path) -> list[Path]:
    """Write the binaries and the board; return the files of the binaries."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "board.json").write_text(json.dumps(BOARD, indent=2) + "\n")
    files = [folder / f"part-{part}.bin" for part in range(1, PARTS + 1)]
    for part, file in enumerate(files, 1):
        file.write_bytes(context_binary(part))
    return files


def load(backend: qnn.Backend, files: list[Path], size: int) -> list[qnn.GraphMemory]:
    """Load the parts one by one, and register each one's I/O right after it; return the memory of their graphs.

    With a size, all are in a group with one spill-fill buffer of that size.
    """
    contexts: list[qnn.Context] = []
    memories = []
    for file in files:
        options = {}
        if size:
            # The first context founds the group and states the size; the others name the first.
            registration = htp.GroupRegistration(contexts[0]) if contexts else htp.GroupRegistration(None, size)
            options = {htp.REGISTER_MULTI_CONTEXTS: registration}
        contexts.append(backend.create_context_from_binary(file, options))
        [graph] = contexts[-1].graphs.values()
        memories.append(graph.allocate())
        domains = backend.get_property(htp.PROCESS_DOMAINS)
        used = ", ".join(f"{mapped:,} of {capacity:,}" for _, mapped, capacity in domains)
        print(f"{file.name} is loaded; bytes in the domains: {used}")
    return memories


def run(memories: list[qnn.GraphMemory]) -> float:
    """Run the parts one after the other; return the largest difference from numpy, as a share of the largest result."""
    value = expected = np.random.default_rng(0).standard_normal((ROWS, NARROW)).astype(np.float32)
    for part, memory in enumerate(memories, 1):
        memory.inputs["x"][...] = value
        memory.binding.execute()
        value = memory.outputs["y"]
        for matrix in matrices(part):
            expected = expected @ matrix
    return float(np.abs(value - expected).max() / np.abs(expected).max())


def main() -> int:
    """Write the parts, load them, and run them if all are loaded."""
    parser = argparse.ArgumentParser(description="Load six parts of a model on a small board.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--group", action="store_true", help="one spill-fill buffer for all parts")
    given = parser.parse_args()
    files = make(given.folder)
    size = 0
    if given.group:
        # Clients read the largest need from the binaries before they load the first.
        system = qnn.SystemContext()
        figures = [graph.figures for file in files for graph in system.get_binary_info(file).graphs]
        size = max(each.spill_fill for each in figures if each is not None)
        print(f"the spill-fill buffer of the group has {size:,} bytes")
    with qnn.Backend("htp", {"htp": {"chip": str(given.folder / "board.json")}}) as backend:
        try:
            memories = load(backend, files, size)
        except QnnError as problem:
            print(problem)
            return 1
        difference = run(memories)
        print(f"all {len(memories)} parts have run; the largest difference from numpy is {difference:.1g}")
        return 0 if difference < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
