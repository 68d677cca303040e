"""TFLite files: their operators, all their tensors from LiteRT, and files of some of their operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from isthmus.comparison.subject import Arrays, HybridWeights, ModelComposition, ModelOperation, Subject, named_tensors
from isthmus.frontends import ModelSource
from isthmus.frontends import tflite as frontend
from isthmus.frontends.runtimes import converted_errors, import_runtime
from isthmus.frontends.tflite.entries import OperatorEntry
from isthmus.frontends.tflite.model import ModelFile, SubgraphEntry
from isthmus.frontends.tflite.schema import ElementType

_IDENTIFIER = b"TFL3"
# The types of weights of hybrid operators, and their bits.
_WEIGHT_BITS = {ElementType.INT8: 8, ElementType.INT4: 4, ElementType.INT2: 2}
# The types of tensors that have no numbers.
_HANDLES = (ElementType.RESOURCE, ElementType.VARIANT, ElementType.STRING)


class TfliteSubject(Subject):
    """A TFLite file, of which the main subgraph is compared.

    A tensor's name is the one that the graph has for it: the file's, with the tensor's number if several share it.
    """

    runtime = "LiteRT"

    def __init__(self, source: ModelSource, data: bytes) -> None:
        self.data = data
        main = ModelFile(data, source.path.name).subgraph(0)
        names = frontend.tensor_names(main)
        self._names = names

        def names_of(indices: Sequence[int]) -> tuple[str, ...]:
            return tuple(names[index] for index in indices if index != -1)

        super().__init__(source, [
            ModelOperation(entry.index, main.operator_name(entry), entry.code, names_of(entry.inputs),
                           names_of(entry.outputs), _hybrid_weights(main, entry))
            for entry in main.operators()
        ])  # fmt: skip

    def compose(self) -> ModelComposition:
        graph = frontend.load(self.data, self.source.path.name, self.source.shapes)
        folded = {tensor.name: tensor.data for tensor in graph.tensors.values() if tensor.is_static}
        results = {name for operation in self.operations for name in operation.outputs}
        return ModelComposition(graph, named_tensors(graph), {
            name: data for name, data in folded.items() if data is not None and name in results
        })  # fmt: skip

    def reference(self, feeds: Arrays) -> dict[str, np.ndarray]:
        module = import_runtime("ai_edge_litert.interpreter", "ai-edge-litert", "reference")
        what = f"model '{self.source.path.name}'"
        # LiteRT runs hybrid operators in XNNPACK, which rounds activations by other ranges than its own kernels.
        is_hybrid = any(operation.hybrid for operation in self.operations)
        kinds = module.OpResolverType
        with converted_errors(what, "LiteRT cannot load it"):
            interpreter = module.Interpreter(
                model_content=self._with_all_outputs() if is_hybrid else self.data,
                experimental_op_resolver_type=kinds.AUTO if is_hybrid else kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
                experimental_preserve_all_tensors=not is_hybrid,
                num_threads=1,
            )
            inputs = {self._names[entry["index"]]: entry["index"] for entry in interpreter.get_input_details()}
            for entry in interpreter.get_input_details():
                name = self._names[entry["index"]]
                if feeds[name].shape != tuple(entry["shape"]):
                    interpreter.resize_tensor_input(entry["index"], feeds[name].shape)
            interpreter.allocate_tensors()
        with converted_errors(what, "LiteRT cannot run it"):
            for name, index in inputs.items():
                interpreter.set_tensor(index, feeds[name])
            interpreter.invoke()
        computed = self._compute() if is_hybrid else self.operations
        results = {name for operation in computed for name in operation.outputs}
        # Handles of variables have no elements; LiteRT may crash if it is asked for them.
        details = interpreter.get_tensor_details()
        numbers = {entry["index"] for entry in details if np.dtype(entry["dtype"]).kind in "fiub"}
        found = {name: index for index, name in self._names.items() if index in numbers and name in {*results, *inputs}}
        with converted_errors(what, "LiteRT cannot return its tensors"):
            return {name: interpreter.get_tensor(index) for name, index in found.items()}

    def _compute(self) -> list[ModelOperation]:
        """Return the operations that read an input; XNNPACK computes the others when it loads a model."""
        main = ModelFile(self.data, self.source.path.name).subgraph(0)
        constants = {name for index, name in self._names.items() if main.shared.buffer(main.tensor(index).buffer)}
        found = []
        for operation in self.operations:
            if constants.issuperset(operation.inputs):
                constants.update(operation.outputs)
            else:
                found.append(operation)
        return found

    def _with_all_outputs(self) -> bytes:
        """Return the file with all results of operators as outputs, since a delegate keeps only outputs."""
        model = self._parse()
        main = model.subgraphs[0]
        indices = {name: index for index, name in self._names.items()}
        results = (indices[name] for operation in self._compute() for name in operation.outputs)
        main.outputs = [index for index in dict.fromkeys(results) if main.tensors[index].type not in _HANDLES]
        return _pack(model)

    def _parse(self) -> Any:
        """Return the file as objects of its schema."""
        schema: Any = import_runtime("ai_edge_litert.schema_py_generated", "ai-edge-litert", "reference")
        return schema.ModelT.InitFromObj(schema.Model.GetRootAs(self.data, 0))

    def extract(self, operations: Sequence[ModelOperation], given: Arrays, results: Sequence[str]) -> bytes:
        model = self._parse()
        main = model.subgraphs[0]
        indices = {name: index for index, name in self._names.items()}
        main.operators = [main.operators[operation.index] for operation in operations]
        main.inputs = [indices[name] for name in given]
        main.outputs = [indices[name] for name in results]
        for name, array in given.items():
            tensor = main.tensors[indices[name]]
            tensor.shape, tensor.shapeSignature, tensor.isVariable = list(array.shape), None, False
        used_tensors = {*main.inputs, *main.outputs}
        for operator in main.operators:
            used_tensors |= {*operator.inputs, *operator.outputs}
        # Numbers of tensors stay as they are; contents that nothing reads are dropped.
        used = {tensor.buffer for index, tensor in enumerate(main.tensors) if index in used_tensors}
        used |= {tensor.buffer for subgraph in model.subgraphs[1:] for tensor in subgraph.tensors}
        for index, buffer in enumerate(model.buffers):
            if index not in used:
                buffer.data = None
        for index, tensor in enumerate(main.tensors):
            if index not in used_tensors:
                tensor.buffer = 0
        return _pack(model)


def _pack(model: Any) -> bytes:
    """Return the bytes of a file that is given as objects of its schema, without signatures and metadata."""
    flatbuffers: Any = import_runtime("flatbuffers", "flatbuffers", "reference")
    model.signatureDefs, model.metadata, model.metadataBuffer = [], [], None
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), _IDENTIFIER)
    return bytes(builder.Output())


def _hybrid_weights(main: SubgraphEntry, entry: OperatorEntry) -> HybridWeights | None:
    """Return the weights of a hybrid operator; None for other operators."""
    operands = [main.tensor(index) for index in entry.inputs if index != -1]
    results = [main.tensor(index) for index in entry.outputs]
    if not operands or any(tensor.type is not ElementType.FLOAT32 for tensor in (operands[0], *results)):
        return None
    for tensor in operands[1:]:
        is_constant = bool(main.shared.buffer(tensor.buffer))
        if is_constant and tensor.type in _WEIGHT_BITS and tensor.scales.size and len(tensor.shape) > 1:
            step = float(tensor.scales.max())
            axis = tensor.quantized_dimension if 0 <= tensor.quantized_dimension < len(tensor.shape) else 0
            terms = math.prod(tensor.shape) // max(tensor.shape[axis], 1)
            return HybridWeights(step, step * 2 ** (_WEIGHT_BITS[tensor.type] - 1), terms)
    return None
