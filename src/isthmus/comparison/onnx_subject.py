"""ONNX files: their nodes, all their tensors from ONNX Runtime, and files of some of their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from isthmus.comparison.subject import Arrays, ModelComposition, ModelOperation, StoredTensor, Subject
from isthmus.errors import QnnError
from isthmus.frontends import ModelSource
from isthmus.frontends.onnx import load_with_importer
from isthmus.frontends.onnx.node_order import in_order
from isthmus.frontends.onnx.schema import messages, parse_model
from isthmus.frontends.onnx.tensors import FOUR_BITS, NUMPY, ExternalData, embed_all_data
from isthmus.frontends.runtimes import ONNX_DATA_FOLDER, converted_errors, import_runtime

# The ONNX Runtime option that makes products of 8-bit integers exact on processors without VNNI.
_EXACT_PRODUCTS = "session.x64quantprecision"
# ONNX's numbers of numpy types.
_ELEMENT_TYPES = {dtype: number for number, dtype in NUMPY.items() if number not in FOUR_BITS}


class OnnxSubject(Subject):
    """An ONNX file.

    - `source`: the file, shapes for open dimensions, and values of inputs that are constants here.
    """

    runtime = "ONNX Runtime"

    def __init__(self, source: ModelSource, data: bytes) -> None:
        self.data = data
        self.proto = parse_model(data, source.path.name)
        ordered = in_order(self.proto.graph.node)
        self._nodes = [node for _, node in ordered]
        super().__init__(source, [
            ModelOperation(index, node.name or f"{node.op_type}_{number}", node.op_type, tuple(_read(node)),
                           tuple(filter(None, node.output)))
            for index, (number, node) in enumerate(ordered)
        ])  # fmt: skip

    def compose(self) -> ModelComposition:
        source = self.source
        graph, importer = load_with_importer(
            self.data, source.path.stem, source.shapes, source.constants, source.path.parent
        )
        values = importer.final_values(graph)
        stored = {name: StoredTensor(value.tensor.name, value.perm) for name, value in values.items()}
        return ModelComposition(graph, stored, importer.computed_constants())

    def reference(self, feeds: Arrays) -> dict[str, np.ndarray]:
        runtime = import_runtime("onnxruntime", "onnxruntime", "reference")
        what = f"model '{self.source.path.name}'"
        model = messages().ModelProto()
        model.CopyFrom(self.proto)
        declared = {value.name for value in model.graph.output}
        model.graph.output.extend(
            messages().ValueInfoProto(name=name)
            for operation in self.operations
            for name in operation.outputs
            if name not in declared
        )
        data = model.SerializeToString()
        try:
            session = self._session(runtime, data, exact=True, what=what)
        except QnnError:
            # It has no exact kernels for products of two signed operands, which are exact without them.
            session = self._session(runtime, data, exact=False, what=what)
        names = [output.name for output in session.get_outputs()]
        given = {name: np.asarray(value) for name, value in (self.source.constants or {}).items()}
        names_of_inputs = {entry.name for entry in session.get_inputs()}
        arrays = {name: array for name, array in {**given, **feeds}.items() if name in names_of_inputs}
        with converted_errors(what, "ONNX Runtime cannot run it"):
            results = session.run(names, arrays)
        found = {name: result for name, result in zip(names, results, strict=True) if isinstance(result, np.ndarray)}
        return {**{name: np.asarray(array) for name, array in arrays.items()}, **found}

    def _session(self, runtime: Any, data: bytes, exact: bool, what: str) -> Any:
        """Open a model in ONNX Runtime. All tensors are outputs, so no optimization removes or fuses a node."""
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.add_session_config_entry(_EXACT_PRODUCTS, "1" if exact else "0")
        options.add_session_config_entry(ONNX_DATA_FOLDER, str(self.source.path.parent))
        with converted_errors(what, "ONNX Runtime cannot load it"):
            return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def extract(self, operations: Sequence[ModelOperation], given: Arrays, results: Sequence[str]) -> bytes:
        model = messages().ModelProto()
        model.CopyFrom(self.proto)
        graph = model.graph
        nodes = [self._nodes[operation.index] for operation in operations]
        read = {name for node in nodes for name in _read(node)} - set(given)
        initializers = [tensor for tensor in self.proto.graph.initializer if tensor.name in read]
        sparse = [tensor for tensor in self.proto.graph.sparse_initializer if tensor.values.name in read]
        for repeated in (graph.node, graph.input, graph.output, graph.value_info, graph.initializer,
                         graph.sparse_initializer, graph.quantization_annotation):  # fmt: skip
            del repeated[:]
        graph.node.extend(nodes)
        graph.initializer.extend(initializers)
        graph.sparse_initializer.extend(sparse)
        embed_all_data(graph, ExternalData(self.source.path.parent))
        for name, array in given.items():
            entry = graph.input.add(name=name)
            tensor_type = entry.type.tensor_type
            tensor_type.elem_type = _ELEMENT_TYPES[array.dtype]
            tensor_type.shape.SetInParent()
            for size in array.shape:
                tensor_type.shape.dim.add(dim_value=size)
        graph.output.extend(messages().ValueInfoProto(name=name) for name in results)
        return bytes(model.SerializeToString())


def _initial_names(graph: Any) -> set[str]:
    """Return the names that have a value before the first node."""
    return {
        *(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer),
        *(tensor.values.name for tensor in graph.sparse_initializer),
    }  # fmt: skip


def _read(node: Any) -> Iterable[str]:
    """Return the names that a node reads, including those that its subgraphs read from outside."""
    names = dict.fromkeys(filter(None, node.input))
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            inside = _initial_names(graph) | {name for inner in graph.node for name in inner.output}
            outside = [name for inner in graph.node for name in _read(inner)]
            names.update(dict.fromkeys(n for n in (*outside, *(v.name for v in graph.output)) if n not in inside))
    return names
