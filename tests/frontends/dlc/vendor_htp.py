"""What QNN's own libraries, HTP's simulator among them, make of a DLC. In a process of its own.

``python vendor_htp.py FOLDER cache FILE.dlc CACHED.dlc`` prepares its graphs and keeps them in a copy, as a cache.
``python vendor_htp.py FOLDER execute FILE.dlc FEEDS.npz RESULTS.npz`` executes its one graph.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, byref, c_uint32, c_uint64, c_void_p
from typing import Any

import numpy as np

from frontends.dlc.vendor_compose import COMPOSE
from isthmus.cabi.system import GraphInfo
from isthmus.cabi.tables import Interface, function, providers, system_providers
from isthmus.cabi.types import Tensor
from isthmus.graph import DataType


def call(table: Any, name: str, *arguments: Any) -> None:
    error = function(table, name)(*arguments)
    assert not error, f"{name} answers {error}"


class Vendor:
    """A context of HTP with the graphs of a DLC, finalized."""

    def __init__(self, folder: str, file: str) -> None:
        (self.system,) = system_providers(ctypes.CDLL(f"{folder}/libQnnSystem.so"))
        self.htp: Interface = providers(ctypes.CDLL(f"{folder}/libQnnHtp.so"))[0]
        backend, self.context, self.dlc = c_void_p(), c_void_p(), c_void_p()
        call(self.htp.table, "backendCreate", None, None, byref(backend))
        call(self.htp.table, "contextCreate", backend, None, None, byref(self.context))
        call(self.system.table, "systemDlcCreateFromFile", None, file.encode(), byref(self.dlc))
        graphs, count = POINTER(GraphInfo)(), c_uint32()
        compose = ctypes.CFUNCTYPE(c_uint64, *COMPOSE)(self.system.table.systemDlcComposeGraphs)
        error = compose(self.dlc, None, 0, backend, self.context, self.htp, 1, byref(graphs), byref(count))
        assert not error, f"systemDlcComposeGraphs answers {error}"
        self.graphs = [graphs[index].graphInfoV3 for index in range(count.value)]
        self.handles = []
        for graph in self.graphs:
            handle = c_void_p()
            call(self.htp.table, "graphRetrieve", self.context, graph.graphName, byref(handle))
            call(self.htp.table, "graphFinalize", handle, None, None)
            self.handles.append(handle)


def cache(folder: str, file: str, cached: str) -> None:
    vendor = Vendor(folder, file)
    call(vendor.htp.table, "contextAddToDlc", vendor.context, vendor.dlc)
    call(vendor.system.table, "systemDlcSave", vendor.dlc, cached.encode())


def execute(folder: str, file: str, feeds: str, results: str) -> None:
    vendor = Vendor(folder, file)
    (graph,) = vendor.graphs
    given = np.load(feeds)

    def side(tensors: Any, count: int) -> tuple[Any, dict[str, np.ndarray]]:
        """Copies of tensors, with memory: the reader would free what is written into its own."""
        copies, arrays = (Tensor * count)(*tensors[:count]), {}
        for tensor in copies:
            reported = tensor.v1
            name = reported.name.decode()
            array = np.zeros(reported.dimensions[: reported.rank], DataType(reported.dataType).numpy)
            if name in given:
                array[...] = given[name]
            reported.memType, reported.clientBuf.data, reported.clientBuf.dataSize = 0, array.ctypes.data, array.nbytes
            arrays[name] = array
        return copies, arrays

    inputs, _ = side(graph.graphInputs, graph.numGraphInputs)
    outputs, arrays = side(graph.graphOutputs, graph.numGraphOutputs)
    call(vendor.htp.table, "graphExecute", vendor.handles[0], inputs, len(inputs), outputs, len(outputs), None, None)
    np.savez(results, **arrays)


if __name__ == "__main__":
    {"cache": cache, "execute": execute}[sys.argv[2]](sys.argv[1], *sys.argv[3:])
