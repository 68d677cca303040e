"""The backend "qnn-htp": graphs compiled and executed by the vendor's own HTP library, behind the same API.

Every context has a process of its own with the library in it, since the chip is state of the whole process. If the
library ends it, that context is dead and returns COMMON_SYSTEM_COMMUNICATION; a new context starts a new process.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from isthmus.backends.seam import driver as seam
from isthmus.backends.seam.entry import BackendEntry
from isthmus.backends.vendor import NAME
from isthmus.backends.vendor.composition import is_lacking, node_alone
from isthmus.backends.vendor.config import KEYS, VendorConfig, read_config
from isthmus.backends.vendor.figures import figures_from_json
from isthmus.backends.vendor.graph import VendorGraphDriver
from isthmus.backends.vendor.library import VendorLibrary, VendorProcess, find
from isthmus.backends.vendor.memory import VendorMemory
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, Quantization, TensorType
from isthmus.graph.operation import Call
from isthmus.graph.ops import OPERATIONS
from isthmus.log import Log, LogLevel
from isthmus.system import reading
from isthmus.system.channel import MAX_BYTES


class VendorBackend(seam.BackendDriver):
    """The backend, created with a configuration."""

    def __init__(self, config: VendorConfig, log: Log) -> None:
        self.config, self._log = config, log
        self.contexts = config.contexts
        self.library = find(config.library)
        # The process that validates nodes; contexts have their own.
        self._validator: VendorProcess | None = None

    def create_context(self, device: seam.DeviceDriver | None = None) -> VendorContext:
        return VendorContext(self.library, self.config, self._log)

    def operations(self) -> Collection[str]:
        return [name for name in OPERATIONS if not is_lacking(name)]

    def supports(self, call: Call) -> str | None:
        if is_lacking(call.op):
            return f"QNN's package of operations has no {call.op}"
        if self._validator is None or not self._validator.alive:
            self._validator = VendorProcess(self.library)
        sections = {"graph": node_alone(call).to_bytes()}
        try:
            answer, _ = self._validator.call("validate", sections, target=self.config.target.to_json())
        except QnnError as problem:
            if problem.code is Code.COMMON_SYSTEM_COMMUNICATION:
                return problem.rule
            raise
        (result,) = answer["answers"]
        if not result["code"]:
            return None
        return f"the library answers {result['code']}" + (f": {result['log'][-1]}" if result["log"] else "")

    def close(self) -> None:
        if self._validator is not None:
            self._validator.close()


class VendorContext(seam.GraphsContext[VendorGraphDriver]):
    """A context in a process of its own."""

    def __init__(self, library: VendorLibrary, config: VendorConfig, log: Log) -> None:
        super().__init__()
        self.library, self.config, self._log = library, config, log
        self.memory = VendorMemory(self.process)
        # Whether a graph failed to compose or compile: the library keeps it, so its name cannot be used again.
        self._failed = False
        self._process = self._start()
        try:
            self._process.call("context", target=config.target.to_json())
        except Exception:
            self._process.close()
            raise

    def _start(self) -> VendorProcess:
        process = VendorProcess(self.library)
        versions = ", ".join(f"{name} {version}" for name, version in process.versions.items())
        self._log(LogLevel.INFO, f"{self.library.what}: build {process.build}, {versions}, process {process.pid}")
        return process

    def process(self) -> VendorProcess:
        """Return the context's process; it is a new one after a failure, unless graphs or memory need the old one."""
        if self._failed and self.memory.is_empty and not any(graph.finalized for graph in self._graphs):
            self._process.close()
            self._process = self._start()
            self._process.call("context", target=self.config.target.to_json())
            self._failed = False
        return self._process

    def graph_failed(self) -> None:
        """Record that the library has a graph that cannot be used."""
        self._failed = True

    def _new_graph(self, graph: Graph) -> VendorGraphDriver:
        if not self._process.alive:
            raise self._process.gone("context")
        return VendorGraphDriver(self, graph)

    def register(self, descriptors: Sequence[seam.MemDescriptor]) -> Sequence[seam.Registration]:
        return self.memory.register(descriptors)

    def get_binary(self) -> bytes:
        for graph in self._graphs:
            if not graph.finalized:
                graph.finalize()
        _, sections = self.process().call("binary")
        return bytes(sections["binary"])

    def restore(self, binary: seam.Source) -> Sequence[VendorGraphDriver]:
        self._process.call("close_context")
        description, _ = self._process.call(
            "restore", {"binary": contents(binary)}, target=self.config.target.to_json(), seconds=self.config.timeout
        )
        for graph in description["graphs"]:
            figures = None if graph["figures"] is None else figures_from_json(graph["figures"])
            self._graphs.append(VendorGraphDriver(self, outline(graph), figures, is_restored=True))
        return list(self._graphs)

    @property
    def seconds_to_finish(self) -> float | None:
        return self.config.timeout

    def abort_now(self) -> None:
        self._process.kill("its context was freed during an execution")

    def close(self) -> None:
        self._close_graphs()
        self.memory.close()
        self._process.close()


def contents(binary: seam.Source) -> bytes | memoryview:
    """Return the bytes of a context binary that a client passes as a path, or as an object with its bytes."""
    try:
        if isinstance(binary, (str, os.PathLike)):
            return reading.contents(binary, MAX_BYTES)
        return memoryview(binary).cast("B")
    except OSError as problem:
        rule = f"it cannot be read: {problem.strerror}"
    except (TypeError, ValueError):
        rule = f"a {type(binary).__name__} is neither a path nor bytes"
    raise QnnError(Code.CONTEXT_CREATE_FROM_BINARY, "context binary", rule)


def outline(description: dict[str, Any]) -> Graph:
    """Return a graph of a binary as a client sees it: its inputs and outputs."""
    graph = Graph(description["name"])
    for kind, side in ((TensorType.APP_WRITE, "inputs"), (TensorType.APP_READ, "outputs")):
        for each in description[side]:
            quantization = None
            if each["scales"]:
                quantization = Quantization(
                    tuple(map(float, np.float32(each["scales"]))), tuple(map(int, each["offsets"])), each["axis"]
                )
            graph.create_tensor(each["name"], kind, DataType(each["dtype"]), each["dims"], quantization)
    graph.finalized = True
    return graph


ENTRY = BackendEntry(
    name=NAME, library="", driver=VendorBackend, read_config=read_config, float_type=DataType.FLOAT_16, keys=KEYS
)
