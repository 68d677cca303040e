"""What LiteRT's compiler plugin has made of a model: a .tflite file with context binaries inside.

The plugin replaces each part of the model that it compiles by a custom operation, whose options (a flexbuffer) say
where in the file the context binary is and how its graph is called. Here the compiled parts run on our backend, and
each operation that is left in LiteRT's interpreter, so the whole model runs as on a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flatbuffers
import flatbuffers.flexbuffers as flexbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

from isthmus import qnn

DISPATCH = b"DISPATCH_OP"


class CompiledModel:
    """A compiled file.

    Attributes
    ----------
    partitions
        How many parts are compiled, in all subgraphs.
    left
        How many operations are not.
    """

    def __init__(self, file: Path) -> None:
        self._data = file.read_bytes()
        self._model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(self._data, 0))
        self._main = self._model.subgraphs[0]
        operators = [op for subgraph in self._model.subgraphs for op in subgraph.operators]
        self.partitions = sum(map(self._is_compiled, operators))
        self.left = len(operators) - self.partitions

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the model once and return its outputs by name."""
        tensors = self._main.tensors
        names = {tensors[index].name.decode(): index for index in (*self._main.inputs, *self._main.outputs)}
        values = {names[name]: value for name, value in feeds.items()}
        with qnn.Backend("htp") as backend:
            for op in self._main.operators:
                given = [values[index] for index in op.inputs if index in values]
                results = self._dispatch(backend, op, given) if self._is_compiled(op) else self._interpret(op, given)
                values |= zip(op.outputs, results, strict=True)
        return {name: values[index] for name, index in names.items() if index in self._main.outputs}

    def _is_compiled(self, op: Any) -> bool:
        """Return whether an operation stands for a compiled part."""
        return bool(self._model.operatorCodes[op.opcodeIndex].customCode == DISPATCH)

    def _dispatch(self, backend: qnn.Backend, op: Any, given: list[np.ndarray]) -> list[np.ndarray]:
        """Run a compiled part on our backend; its inputs and outputs have the order of the operation's."""
        options = flexbuffers.Loads(bytes(op.customOptions))
        start = options["bytecode_offset"]
        binary = self._data[start : start + options["bytecode_size"]]
        with backend.create_context_from_binary(binary) as context:
            memory = context.retrieve(options["name"]).allocate()
            for view, value in zip(memory.inputs.values(), given, strict=True):
                view[...] = value.reshape(view.shape)
            memory.binding.execute()
            return [view.copy() for view in memory.outputs.values()]

    def _interpret(self, op: Any, given: list[np.ndarray]) -> list[np.ndarray]:
        """Run one operation in LiteRT's interpreter, as a model of its own."""
        indices = list(dict.fromkeys([*(index for index in op.inputs if index >= 0), *op.outputs]))
        place = {index: number for number, index in enumerate(indices)}
        model, subgraph, alone = schema.ModelT(), schema.SubGraphT(), schema.OperatorT()
        vars(alone).update(vars(op))
        vars(model).update(vars(self._model) | {"metadata": None, "signatureDefs": None})
        alone.inputs = [place.get(index, -1) for index in op.inputs]
        alone.outputs = [place[index] for index in op.outputs]
        subgraph.tensors, model.buffers = [], [schema.BufferT()]
        for index in indices:
            tensor = schema.TensorT()
            vars(tensor).update(vars(self._main.tensors[index]))
            tensor.buffer = len(model.buffers)
            model.buffers.append(self._model.buffers[self._main.tensors[index].buffer])
            subgraph.tensors.append(tensor)
        constant = [self._model.buffers[self._main.tensors[index].buffer].data is not None for index in indices]
        read = [place[index] for index in op.inputs if index >= 0 and not constant[place[index]]]
        subgraph.inputs, subgraph.outputs, subgraph.operators = read, alone.outputs, [alone]
        model.subgraphs = [subgraph]
        builder = flatbuffers.Builder(1 << 20)
        builder.Finish(model.Pack(builder), b"TFL3")
        interpreter = Interpreter(model_content=bytes(builder.Output()))
        interpreter.allocate_tensors()
        for detail, value in zip(interpreter.get_input_details(), given, strict=True):
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]
