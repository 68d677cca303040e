"""Conversion of TFLite files to graphs of QNN operations, with the file's own input and output names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isthmus.errors import Code, QnnError, did_you_mean
from isthmus.frontends.tflite.entries import Subgraph, TfliteModel, TfliteTensor
from isthmus.frontends.tflite.model import ModelFile
from isthmus.frontends.tflite.operator_context import data_type, declared_quantization
from isthmus.frontends.tflite.walk import TfliteScope, Value, Walk
from isthmus.graph import DataType, Graph, Tensor, TensorType

__all__ = ["convert", "load", "next_value", "tensor_names"]


def load(data: bytes | memoryview, name: str, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
    """Convert a TFLite file.

    - `data`: The bytes of the file. Constants of the graph may be views of them.
    - `name`: The name of the file, for messages. The graph has it without the suffix.
    - `shapes`: Shapes of inputs by name. An input that is not named takes the file's shape, in which open dimensions
      have a default, usually 1.

    Returns the finalized graph; inputs and outputs have the file's names, types and order.

    Raises `QnnError`: COMMON_LOADING_BINARIES for a damaged file, COMMON_NOT_SUPPORTED with a list of all operations
    that cannot be converted, or the graph's own code for an invalid operator.
    """
    return convert(ModelFile(data, name), shapes)


def convert(model: TfliteModel, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
    """Convert a model from any source; otherwise as `load`.

    Variables that the caller keeps become additional outputs, named after them, if the model assigns them.
    """
    main = model.subgraph(0)
    graph = Graph(model.name)
    graph.numerics = "litert"
    values = _inputs(graph, model, main, dict(shapes or {}))
    scope = TfliteScope(main, values, names=_names(graph, main))
    walk = Walk(graph, model, frozenset(scope.names.values()))
    walk.scan()
    outputs = walk.run(scope)
    walk.unsupported.check()
    walk.variables.finish()
    _outputs(graph, scope, outputs)
    for index in main.kept_variables:
        if index in scope.stored:
            _output(graph, graph.fresh(next_value(main.tensor(index).name)), scope.stored[index])
    graph.finalize()
    return graph


def next_value(name: str) -> str:
    """Return the name of the output that holds the new value of a variable."""
    return f"{name}/next"


def _inputs(graph: Graph, model: TfliteModel, main: Subgraph, shapes: dict[str, Sequence[int]]) -> dict[int, Value]:
    """Create the graph's inputs; return their tensors by the file's tensor numbers.

    `shapes` are the caller's dimensions by name. Refuse a name that no input has.
    """
    values: dict[int, Value] = {}
    for index in main.inputs:
        if index == -1 or index in values:
            model.refuse(f"the inputs name tensor {index} which is not a tensor, or more than once")
        entry = main.tensor(index)
        name = graph.fresh(entry.name)
        dims = _dims(entry, shapes.pop(name, None))
        values[index] = graph.create_tensor(
            name, TensorType.APP_WRITE, data_type(entry), dims, declared_quantization(entry)
        )
    if shapes:
        wrong, names = next(iter(shapes)), [tensor.name for tensor in graph.inputs]
        rule = f"a shape is given for '{wrong}', which is not an input"
        hint = f"{did_you_mean(wrong, names)} Its inputs are {', '.join(map(repr, names))}.".lstrip()
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"model '{graph.name}'", rule, hint)
    return values


def _dims(entry: TfliteTensor, asked: Sequence[int] | None) -> tuple[int, ...]:
    """Return the dimensions of an input: those the caller asked for, or the file's with a default for open ones."""
    if asked is None:
        return tuple(d if s == -1 else s for d, s in zip(entry.shape, entry.signature, strict=True))
    dims = tuple(int(d) for d in asked)
    # LiteRT can resize any input, so a fixed dimension is only a default. An unsuitable size fails later, at the
    # operator that it does not fit.
    if len(dims) != len(entry.signature) or any(d < 1 for d in dims):
        rule = f"the shape {list(dims)} does not fit the file's {list(entry.signature)}"
        hint = "Give as many dimensions as the file has, each at least 1."
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"input '{entry.name}'", rule, hint)
    return dims


def _names(graph: Graph, main: Subgraph) -> dict[int, str]:
    """Return new names, by tensor number, for tensors whose names collide with others.

    Outputs keep the file's names, with a number appended to duplicates; tensors inside the model get their number
    appended.
    """
    names: dict[int, str] = {}
    taken = set(graph.tensors)
    for index in main.outputs:
        if index == -1 or index in names:
            continue
        base = name = main.tensor(index).name
        count = 0
        while name in taken:
            count += 1
            name = f"{base}.{count}"
        names[index] = name
        taken.add(name)
    for operator in main.operators():
        for index in operator.outputs:
            if index != -1 and index not in names and main.tensor(index).name in taken:
                names[index] = f"{main.tensor(index).name}/{index}"
    return names


def tensor_names(main: Subgraph) -> dict[int, str]:
    """Return the graph's names, by tensor number, of the tensors of the main subgraph that its operators write or read.

    Constants have the file's names here; in a graph they may be named otherwise.
    """
    graph, names = Graph("names"), {}
    for index in main.inputs:
        if index != -1 and index not in names:
            entry = main.tensor(index)
            names[index] = graph.fresh(entry.name)
            graph.create_tensor(names[index], TensorType.APP_WRITE, DataType.FLOAT_32, ())
    renamed = _names(graph, main)
    for operator in main.operators():
        for index in (*operator.inputs, *operator.outputs):
            if index != -1 and index not in names:
                names[index] = renamed.get(index) or main.tensor(index).name
    return names


def _outputs(graph: Graph, scope: TfliteScope, values: Sequence[Value]) -> None:
    """Turn the outputs into graph outputs, in the file's order."""
    for index, value in zip(scope.subgraph.outputs, values, strict=True):
        if not isinstance(value, Tensor):
            rule, hint = "it is not a tensor of real numbers", "A handle, or complex numbers, cannot leave a graph."
            raise QnnError(Code.GRAPH_INVALID_TENSOR, f"output {index} of '{graph.name}'", rule, hint)
        name = scope.name(index)
        if value.type is TensorType.NATIVE and value.name == name:
            value.type = TensorType.APP_READ
            graph.tensors[name] = graph.tensors.pop(name)  # outputs are ordered as they are listed
        else:
            _output(graph, graph.fresh(name), value)


def _output(graph: Graph, name: str, value: Tensor) -> None:
    """Add a graph output that is a copy of a value."""
    copy = graph.create_tensor(name, TensorType.APP_READ, value.dtype, value.dims, value.quantization)
    graph.add_node(graph.fresh_node(name), "Reshape", [value], [copy])
