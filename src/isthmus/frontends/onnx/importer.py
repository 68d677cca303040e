"""Conversion of an ONNX graph, node by node, with the converter of each operator.

A node that cannot be converted is recorded and the conversion continues, so that one error can name all such nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.onnx.builder import RUNTIME_TYPES, OnnxBuilder
from isthmus.frontends.onnx.definitions import converted, definition, is_defined
from isthmus.frontends.onnx.finish import finished
from isthmus.frontends.onnx.layout import OnnxValue, identity
from isthmus.frontends.onnx.node import Converter, OnnxNode, Results
from isthmus.frontends.onnx.node_order import in_order
from isthmus.frontends.onnx.operators import CONVERTERS, KEEPS_CHANNELS, TAKES_FIXED_POINT
from isthmus.frontends.onnx.quantization import four_bits, input_quantizations
from isthmus.frontends.onnx.signature import bound_arrays, graph_inputs
from isthmus.frontends.onnx.tensors import attribute_value, data_type, to_array
from isthmus.frontends.unsupported import Unsupported
from isthmus.graph import DataType, Graph, Tensor, TensorType
from isthmus.system.shield import check as check_interrupted

OLDEST_OPSET = 7
"""Converters know the operators since this set; models of older ones are converted to it first."""
MAX_DEPTH = 24
"""The deepest nesting of subgraphs."""
MAX_STEPS = 50_000
"""The most nodes of a model after loops and functions are expanded."""
_STANDARD = ("", "ai.onnx")
"""The names of the domain of ONNX's own operators."""
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)
"""The exceptions that malformed attributes and operands cause in converters."""


def _standard_opset(opsets: Mapping[str, int]) -> int | None:
    """Return the version of ONNX's own operator set, or None if a model does not use it."""
    return opsets.get("", opsets.get("ai.onnx"))


class OnnxScope:
    """The values known at one level of nested graphs. None marks the result of an unsupported node.

    A subgraph sees its parent's values. A function does not: it has its own arguments, attributes and operator sets.

    Parameters
    ----------
    opsets
        Versions of the operator sets, by domain.
    attributes
        Attributes of the function call, to which nodes of the function may refer; empty outside functions.
    parent
        The scope around a subgraph.
    depth
        The number of scopes around it.

    Attributes
    ----------
    absent
        Names of a function's arguments that its caller leaves out.
    """

    def __init__(
        self, opsets: Mapping[str, int], attributes: Mapping[str, Any], parent: OnnxScope | None = None, depth: int = 0
    ) -> None:
        self.opsets = opsets
        self.attributes = attributes
        self.parent = parent
        self.depth = depth
        self.values: dict[str, OnnxValue | None] = {}
        self.absent: set[str] = set()

    def inside(self) -> OnnxScope:
        """Return the scope of a subgraph."""
        inner = OnnxScope(self.opsets, self.attributes, self, self.depth + 1)
        inner.absent = self.absent
        return inner

    def opset(self, domain: str) -> int:
        """Return the version of a domain's operator set."""
        if domain not in _STANDARD:
            return self.opsets.get(domain, 1)
        opset = _standard_opset(self.opsets)
        if opset is None:
            raise QnnError(
                Code.GRAPH_CREATE_FAILED, "ONNX's own operators", "the model does not say which set of them it uses"
            )
        return opset

    def define(self, name: str, value: OnnxValue | None, what: str) -> None:
        """Assign a value to a name, which must not be defined already. `what` names the place in errors."""
        if not isinstance(name, str):
            raise QnnError(Code.GRAPH_CREATE_FAILED, what, f"the name {name!r} is not text")
        if name in self.values:
            raise QnnError(Code.GRAPH_CREATE_FAILED, what, f"'{name}' is defined twice")
        self.values[name] = value

    def find(self, name: str, what: str) -> OnnxValue | None:
        """Return the value of a name in this scope or an enclosing one."""
        scope: OnnxScope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        raise QnnError(
            Code.GRAPH_UNCONNECTED_NODE,
            what,
            f"no earlier node computes '{name}'",
            "ONNX lists nodes in the order of their data; a cycle has no such order.",
        )


class _Lost(Exception):
    """A subgraph lacks a result because of an unsupported node, which has been recorded already."""


class Importer:
    """The conversion of one model.

    Parameters
    ----------
    model
        ONNX's ModelProto.
    name
        The name of the graph.
    folder
        The folder of the model's external data; None if it may have none.

    Attributes
    ----------
    opsets
        Versions of the model's operator sets, by domain.
    functions
        The model's functions, by domain and name.
    """

    def __init__(self, model: Any, name: str, folder: Path | None) -> None:
        opset = _standard_opset({entry.domain: entry.version for entry in model.opset_import})
        if opset is not None and opset < OLDEST_OPSET:
            model = converted(model, OLDEST_OPSET, name)
        self.model = model
        self.folder = folder
        self.name = name
        self.builder = OnnxBuilder(name, model.ByteSize())
        self.unsupported = Unsupported(name)
        self.opsets = {entry.domain: entry.version for entry in model.opset_import}
        self.functions = {(function.domain, function.name): function for function in model.functions}
        self.values: Mapping[str, OnnxValue | None] = {}
        """The values of the model's names, complete after conversion."""
        # The nodes converted so far, counted by `_step`.
        self._steps = 0
        # The tensors of the final graph, by their names in the working graph.
        self._final: Mapping[str, Tensor] = {}

    def convert(self, shapes: Mapping[str, Sequence[int]], constants: Mapping[str, Any]) -> Graph:
        """Convert the model and return the finalized graph.

        Parameters
        ----------
        shapes
            Dimensions of inputs by name, where the model leaves some open.
        constants
            Values of inputs that become constants, by name.
        """
        self._check_opset()
        graph = self.model.graph
        scope = OnnxScope(self.opsets, {})
        self.values = scope.values
        self._declare_inputs(graph, scope, shapes, constants)
        self._walk(graph, scope)
        outputs = [(value.name, self._output(value.name, scope)) for value in graph.output]
        self.unsupported.check()
        if not outputs or len({name for name, _ in outputs}) != len(outputs):
            raise QnnError(
                Code.GRAPH_CREATE_FAILED, f"model '{self.name}'", "its graph needs outputs, each with a name of its own"
            )
        stored = [(name, self._stored(name, value)) for name, value in outputs]
        result, self._final = finished(self.builder.graph, stored)
        # A tensor with several names, because nodes only view it, has that of the first.
        for name, value in reversed(scope.values.items()):
            tensor = None if value is None else self._final.get(value.tensor.name)
            if tensor is not None and tensor.type is TensorType.NATIVE:
                result.source_names[tensor.name] = name
        return result

    def final_values(self, graph: Graph) -> dict[str, OnnxValue]:
        """Return where the graph that `convert` returned has the model's values, without constants and unused values.

        Outputs are the graph's own, which have ONNX's axis order.
        """
        values = {
            name: OnnxValue(self._final[value.tensor.name], value.perm)
            for name, value in self.values.items()
            if value is not None and value.tensor.name in self._final and not self.builder.is_constant(value)
        }
        return values | {tensor.name: OnnxValue(tensor, identity(tensor.rank)) for tensor in graph.outputs}

    def computed_constants(self) -> dict[str, np.ndarray]:
        """Return the results of the model's nodes that are known when it is loaded, in ONNX's axis order."""
        found = {}
        for name in (name for node in self.model.graph.node for name in node.output if name):
            value = self.values.get(name)
            array = None if value is None else self.builder.array(value)
            if array is not None:
                found[name] = array
        return found

    def _check_opset(self) -> None:
        """Refuse a model without operator sets."""
        if not self.opsets:
            raise QnnError(
                Code.GRAPH_CREATE_FAILED, f"model '{self.name}'", "it does not say which operator sets it uses"
            )

    def _declare_inputs(
        self, graph: Any, scope: OnnxScope, shapes: Mapping[str, Sequence[int]], constants: Mapping[str, Any]
    ) -> None:
        """Define the graph's inputs: those with a value in `constants` as constants, all others as inputs."""
        bound = bound_arrays(graph, constants)
        types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
        for name, array in bound.items():
            tensor = self.builder.constant(array, four_bits(types[name]), name=name)
            self.builder.given_bytes += tensor.nbytes
            scope.define(name, OnnxValue(tensor, identity(tensor.rank)), f"constant '{name}'")
        quantizations = input_quantizations(graph, self.folder)
        for entry in graph_inputs(graph, shapes, bound):
            quantization = quantizations.get(entry.name) or four_bits(types[entry.name])
            dtype = data_type(entry.dtype) if quantization is None else DataType.fixed_point(entry.dtype)
            if dtype not in RUNTIME_TYPES:
                self.unsupported.add("input", entry.name, f"data type {dtype.name}")
                scope.define(entry.name, None, f"input '{entry.name}'")
                continue
            tensor = self.builder.graph.create_tensor(
                entry.name, TensorType.APP_WRITE, dtype, entry.dims, quantization
            )
            scope.define(entry.name, OnnxValue(tensor, identity(tensor.rank)), f"input '{entry.name}'")

    def _output(self, name: str, scope: OnnxScope) -> OnnxValue | None:
        """Return the value of an output; record an unsupported data type. None if it could not be computed."""
        what = f"output '{name}' of model '{self.name}'"
        value = scope.find(name, what)
        if any(tensor.name == name for tensor in self.builder.graph.inputs):
            rule, hint = "it is an input, and a tensor of QNN is one or the other", "Copy it by an Identity node."
            raise QnnError(Code.GRAPH_CREATE_FAILED, what, rule, hint)
        if value is not None and value.tensor.dtype not in RUNTIME_TYPES:
            self.unsupported.add("output", name, f"data type {value.tensor.dtype.name}")
        return value

    def _stored(self, name: str, value: OnnxValue | None) -> Any:
        """Return the tensor of an output, stored in ONNX's axis order."""
        self.builder.node = name
        if value is None:
            raise QnnError(Code.GRAPH_CREATE_FAILED, f"output '{name}'", "nothing computes it")
        return self.builder.materialized(value)

    # --- nodes --------------------------------------------------------------------------------------------------

    def _walk(self, graph: Any, scope: OnnxScope) -> None:
        """Define a graph's initializers and convert its nodes."""
        if len(graph.sparse_initializer):
            self.unsupported.add("sparse initializer", graph.sparse_initializer[0].values.name)
        for tensor in graph.initializer:
            if tensor.name not in scope.values:
                scope.define(tensor.name, self._initializer(tensor, scope), f"initializer '{tensor.name}'")
        self._walk_nodes(graph, scope)

    def _walk_nodes(self, graph: Any, scope: OnnxScope) -> None:
        """Convert the nodes of a graph or function, each after those whose results it reads.

        A node without a name is named by its index in the file.
        """
        if scope.depth > MAX_DEPTH:
            raise QnnError(Code.GRAPH_CREATE_FAILED, f"graph '{graph.name}'", f"it nests deeper than {MAX_DEPTH}")
        for index, proto in in_order(graph.node):
            check_interrupted()
            named = isinstance(proto.name, str) and proto.name
            self._convert(proto, proto.name if named else f"{proto.op_type}_{index}", scope)

    def _step(self, what: str) -> None:
        """Count a step. Folded and repeated nodes count too: they add no node to the graph, but they take time."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            rule = f"with its loops and functions expanded the model has over {MAX_STEPS} nodes"
            raise QnnError(Code.GRAPH_CREATE_FAILED, what, rule)

    def _initializer(self, proto: Any, scope: OnnxScope) -> OnnxValue | None:
        """Create the constant of an initializer; record an unsupported one and return None."""
        if not proto.name:
            raise QnnError(Code.GRAPH_CREATE_FAILED, "initializer", "it has no name")
        try:
            tensor = self.builder.constant(to_array(proto, self.folder), four_bits(proto.data_type), name=proto.name)
        except QnnError as error:
            if error.code is not Code.COMMON_NOT_SUPPORTED:
                raise
            self.unsupported.add("initializer", proto.name, error.rule)
            return None
        if scope.depth:
            # A subgraph's initializers are read again each time it is converted.
            self._step(f"initializer '{proto.name}'")
            self.builder.count_folded(tensor.nbytes)
        else:
            self.builder.given_bytes += tensor.nbytes
        return OnnxValue(tensor, identity(tensor.rank))

    def _convert(self, proto: Any, name: str, scope: OnnxScope) -> None:
        """Convert a node and assign its results to their names."""
        what = f"node '{name}' ({proto.op_type})"
        self._step(what)
        input_names = ["" if name in scope.absent else name for name in proto.input]
        inputs = [scope.find(name, what) if name else None for name in input_names]
        # A node that reads the result of an unsupported node is skipped without an error of its own.
        reads_lost = any(value is None and name for value, name in zip(inputs, input_names, strict=True))
        results: Sequence[OnnxValue | None] = []
        key = proto.op_type if proto.domain in _STANDARD else f"{proto.domain}:{proto.op_type}"
        function = self.functions.get((proto.domain, proto.op_type))
        if function is not None:
            converter: Converter | None = self._calls(function, scope)
        else:
            converter = CONVERTERS.get(key) or self._by_definition(proto, scope)
        if converter is None:
            self.unsupported.add(key, name)
        elif not reads_lost:
            self.builder.node = name
            try:
                node = self._node(proto, name, inputs, scope, key)
                converted = converter(node)
                results = [converted] if isinstance(converted, OnnxValue) else converted
                if len(results) < sum(1 for i, _ in enumerate(proto.output) if node.wants(i)):
                    node.unsupported(f"only its first {len(results)} outputs are supported")
            except _Lost:
                results = []
            except QnnError as error:
                if error.code is not Code.COMMON_NOT_SUPPORTED:
                    raise
                self.unsupported.add(key, name, error.rule)
                results = []
            except _MALFORMED as error:
                raise QnnError(
                    Code.GRAPH_INVALID_OP_CONFIG, what, f"its attributes or operands are malformed ({error})"
                ) from error
            except MemoryError as error:
                raise QnnError(Code.COMMON_MEM_ALLOC, what, "its constants need more memory than there is") from error
        for index, output in enumerate(proto.output):
            if output:
                scope.define(output, results[index] if index < len(results) else None, what)

    def _node(self, proto: Any, name: str, inputs: list[OnnxValue | None], scope: OnnxScope, key: str) -> OnnxNode:
        """Return the node as its converter sees it.

        `key` is the operator's name in `CONVERTERS`. Fixed-point inputs become plain integers if the converter does not
        take them. A reference to an attribute of the calling function is resolved; if the caller omits it, so does the
        node.
        """
        if key not in KEEPS_CHANNELS:
            inputs = [value and self._integers(value, key) for value in inputs]

        def run(graph: Any, arguments: Sequence[OnnxValue]) -> list[OnnxValue]:
            return self._run_subgraph(graph, arguments, scope, name)

        attributes = {}
        for attribute in proto.attribute:
            if not attribute.ref_attr_name:
                attributes[attribute.name] = attribute_value(attribute, self.folder)
                if attribute.name == "value" and four_bits(attribute.t.data_type) is not None:
                    attributes["encoding"] = four_bits(attribute.t.data_type)
            elif attribute.ref_attr_name in scope.attributes:
                attributes[attribute.name] = scope.attributes[attribute.ref_attr_name]
        opset = scope.opset(proto.domain)
        return OnnxNode(name, proto.op_type, opset, attributes, inputs, list(proto.output), self.builder, run)

    def _by_definition(self, proto: Any, scope: OnnxScope) -> Converter | None:
        """Return a converter by ONNX's definition of the operator in terms of others, or None if there is none."""
        if proto.domain not in _STANDARD or not is_defined(proto.op_type, scope.opset(proto.domain)):
            return None

        def convert(node: OnnxNode) -> Results:
            function = definition(node.op, node.opset, node.attributes, node.inputs, node.outputs, node.what)
            return self._calls(function, scope)(node)

        return convert

    def _calls(self, function: Any, scope: OnnxScope) -> Converter:
        """Return a converter that replaces a calling node by the body of the function."""

        def convert(node: OnnxNode) -> list[OnnxValue | None]:
            defaults = {a.name: attribute_value(a, self.folder) for a in function.attribute_proto}
            opsets = {entry.domain: entry.version for entry in function.opset_import}
            body = OnnxScope(opsets, {**defaults, **node.attributes}, depth=scope.depth + 1)
            for index, name in enumerate(function.input):
                if node.optional(index) is None:
                    body.absent.add(name)
                else:
                    body.define(name, node.value(index), node.what)
            self._walk_nodes(function, body)
            self.builder.node = node.name
            # A function need not compute an optional result that its caller does not use.
            names = enumerate(function.output)
            return [body.find(name, node.what) if node.wants(index) else None for index, name in names]

        return convert

    def _integers(self, value: OnnxValue, key: str) -> OnnxValue:
        """Return a fixed-point value as its stored integers, if the operator with this key does not support it.

        Operators in `KEEPS_CHANNELS` support every quantization and are not asked; no other one supports per-channel
        ones.
        """
        quantization = value.tensor.quantization
        if key in TAKES_FIXED_POINT and (quantization is None or quantization.axis is None):
            return value
        return self.builder.plain(value)

    def _run_subgraph(self, graph: Any, arguments: Sequence[OnnxValue], scope: OnnxScope, name: str) -> list[OnnxValue]:
        """Convert a subgraph inline; its unsupported nodes are recorded like the model's own."""
        inner = scope.inside()
        what = f"subgraph of node '{name}'"
        self._step(what)
        if len(arguments) != len(graph.input):
            raise QnnError(
                Code.GRAPH_CREATE_FAILED, what, f"it takes {len(graph.input)} inputs, {len(arguments)} are given"
            )
        for declared, value in zip(graph.input, arguments, strict=True):
            inner.define(declared.name, value, what)
        self._walk(graph, inner)
        self.builder.node = name
        values = [inner.find(output.name, what) for output in graph.output]
        if any(value is None for value in values):
            raise _Lost
        return [value for value in values if value is not None]
