"""Composes a DLC with QNN's own reader and compares with ours, node by node and tensor by tensor.

``python vendor_compose.py libQnnSystem.so FILE.dlc …`` prints the differences, a JSON list. In a process of its own,
because QNN's reader ends it on some graphs.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from ctypes import POINTER, byref, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.cabi.system import GraphInfo
from isthmus.cabi.tables import Interface, function, system_providers
from isthmus.frontends import dlc
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, GraphEntry
from isthmus.frontends.dlc.operations import translate
from isthmus.qnn.recorder import Recorder

SECONDS = 120
COMPOSE = [
    c_void_p, c_void_p, c_uint32, c_void_p, c_void_p, Interface, c_uint32, POINTER(POINTER(GraphInfo)),
    POINTER(c_uint32),
]  # fmt: skip


def compared(system: Path, *files: Path) -> list[str] | None:
    """The differences between QNN's composition and ours; None if QNN's reader ended its process."""
    command = [sys.executable, __file__, str(system), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode < 0:
        return None
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def composed(system: str, file: str) -> list[GraphEntry]:
    """The graphs that QNN's reader composes."""
    recorder = Recorder()
    (provider,) = system_providers(ctypes.CDLL(system))
    handle, graphs, count = c_void_p(), POINTER(GraphInfo)(), c_uint32()
    error = function(provider.table, "systemDlcCreateFromFile")(None, file.encode(), byref(handle))
    assert not error, error
    compose = ctypes.CFUNCTYPE(c_uint64, *COMPOSE)(provider.table.systemDlcComposeGraphs)
    error = compose(handle, None, 0, 0x10, 0x20, recorder.interface, 1, byref(graphs), byref(count))
    assert not error, (error, recorder.problem)
    return recorder.graphs


def differences(mine: GraphEntry, theirs: GraphEntry) -> list[str]:
    found = []
    if len(mine.nodes) != len(theirs.nodes):
        found.append(f"{len(mine.nodes)} nodes, {len(theirs.nodes)} in theirs")
    for a, b in zip(mine.nodes, theirs.nodes, strict=False):
        what = f"node {a.name}"
        found += [f"{what}: {k}" for k in ("name", "package", "inputs", "outputs") if getattr(a, k) != getattr(b, k)]
        if a.type == "Resize":
            # Theirs becomes one of the two special forms, with flags that say the same.
            special = "ResizeBilinear" if a.params["interpolation_mode"] else "ResizeNearestNeighbor"
            found += [f"{what}: type"] if b.type != special else []
        elif a.type != b.type:
            found.append(f"{what}: {a.type} is {b.type} in theirs")
        added = {"align_corners", "half_pixel_centers", "antialias"} if a.type == "Resize" else set()
        if a.params.keys() != b.params.keys() - added:
            found.append(f"{what}: {sorted(a.params)} are {sorted(b.params)} in theirs")
        found += [f"{what}: {k}" for k in a.params if k in b.params and not _same(a.params[k], b.params[k])]
    named = {tensor.name: tensor for tensor in theirs.tensors}
    used = {name for node in mine.nodes for name in (*node.inputs, *node.outputs)}
    for tensor in mine.tensors:
        if tensor.name not in named:
            found += [f"tensor {tensor.name} is not in theirs"] if tensor.name in used else []
        elif not _same(tensor, named[tensor.name]):
            found.append(f"tensor {tensor.name}")
    return found


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, ComposedTensor):
        facts = ("type", "dtype", "dims", "data")
        return all((getattr(a, k) or None) == (getattr(b, k) or None) for k in facts) and _same(a.encoding, b.encoding)
    if isinstance(a, EncodingEntry) and isinstance(b, EncodingEntry):
        return (a.axis, a.bits, a.kind) == (b.axis, b.bits, b.kind) and bool(
            np.array_equal(a.scales, b.scales) and np.array_equal(a.offsets, b.offsets)
        )
    return bool(a == b)


def _main(system: str, *files: str) -> None:
    found = []
    for file in files:
        theirs = {graph.name: graph for graph in composed(system, file)}
        mine = [translate(graph, clean_names=True) for graph in dlc.read(file).graphs]
        if [graph.name for graph in mine] != list(theirs):
            found.append(f"{file}: graphs {list(theirs)} in theirs")
        for graph in mine:
            found += [f"{Path(file).name}: {text}" for text in differences(graph, theirs[graph.name])]
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
