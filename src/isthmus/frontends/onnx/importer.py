"""Conversion of an ONNX graph, node by node, with the converter of each operator.

A node that cannot be converted is recorded and the conversion continues, so that one error can name all such nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.formats import malformed
from isthmus.frontends.onnx.builder import RUNTIME_TYPES, OnnxBuilder
from isthmus.frontends.onnx.definitions import convert_model, definition, is_defined
from isthmus.frontends.onnx.finish import finish_graph
from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.node import Converter, OnnxNode, Results
from isthmus.frontends.onnx.node_order import in_order, read_names
from isthmus.frontends.onnx.operators import CONVERTERS, KEEPS_CHANNELS, TAKES_FIXED_POINT, TAKES_SEQUENCES
from isthmus.frontends.onnx.quantization import four_bits, input_quantizations
from isthmus.frontends.onnx.schema import OnnxContents
from isthmus.frontends.onnx.sequences import OnnxSequence
from isthmus.frontends.onnx.signature import Input, bound_arrays, graph_inputs
from isthmus.frontends.onnx.stage import PENDING, Deferred, ModelStage, NeedsRows, NeedsValue, StageRecord
from isthmus.frontends.onnx.tensors import attribute_value, data_type, embed_all_data, to_array
from isthmus.frontends.unsupported import IN_STAGES, NeedsStages, Unsupported, unsupported
from isthmus.graph import DataType, Graph, Quantization, Tensor, TensorType
from isthmus.system.shield import check as check_interrupted

OLDEST_OPSET = 7
"""Converters know the operators since this set; models of older ones are converted to it first."""
MAX_DEPTH = 24
"""The deepest nesting of subgraphs."""
MAX_STEPS = 50_000
"""The most nodes of a model after loops and functions are expanded."""
# The names of the domain of ONNX's own operators.
_STANDARD = ("", "ai.onnx")
# Operators whose result is the tensor of their operand, whatever its shape is.
_VIEWS = ("Identity", "Transpose")
# The exceptions that malformed attributes and operands cause in converters.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


def _standard_opset(opsets: Mapping[str, int]) -> int | None:
    """Return the version of ONNX's own operator set, or None if a model does not use it."""
    return opsets.get("", opsets.get("ai.onnx"))


@dataclass(eq=False)
class OnnxScope:
    """The values known at one level of nested graphs. None marks the result of an unsupported node.

    A subgraph sees its parent's values. A function does not: it has its own arguments, attributes and operator sets.

    - `opsets`: versions of the operator sets, by domain.
    - `attributes`: attributes of the function call, to which nodes of the function may refer; empty outside functions.
    - `path`: what distinguishes its values from those of other scopes with the same names: a turn of a loop, say.
    - `absent`: names of a function's arguments that its caller leaves out.
    """

    opsets: Mapping[str, int]
    attributes: Mapping[str, Any]
    parent: OnnxScope | None = None
    depth: int = 0
    path: str = ""
    values: dict[str, OnnxValue | None] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)

    def inside(self, path: str) -> OnnxScope:
        """Return the scope of a subgraph, with a path of its own."""
        return OnnxScope(self.opsets, self.attributes, self, self.depth + 1, path, absent=self.absent)

    def opset(self, domain: str) -> int:
        """Return the version of a domain's operator set."""
        if domain not in _STANDARD:
            return self.opsets.get(domain, 1)
        opset = _standard_opset(self.opsets)
        if opset is None:
            raise malformed("ONNX's own operators", "the model does not say which set of them it uses")
        return opset

    def define(self, name: str, value: OnnxValue | None, what: str) -> None:
        """Assign a value to a name, which must not be defined already. `what` names the place in errors."""
        if not isinstance(name, str):
            raise malformed(what, f"the name {name!r} is not text")
        if name in self.values:
            raise malformed(what, f"'{name}' is defined twice")
        self.values[name] = value

    def scope_of(self, name: str) -> OnnxScope | None:
        """Return the scope, this or an enclosing one, that has a name; None if there is none."""
        scope: OnnxScope | None = self
        while scope is not None and name not in scope.values:
            scope = scope.parent
        return scope

    def find(self, name: str, what: str) -> OnnxValue | None:
        """Return the value of a name in this scope or an enclosing one."""
        scope = self.scope_of(name)
        if scope is None:
            hint = "ONNX lists nodes in the order of their data; a cycle has no such order."
            raise QnnError(Code.GRAPH_UNCONNECTED_NODE, what, f"no earlier node computes '{name}'", hint)
        return scope.values[name]


class _Lost(Exception):
    """A subgraph lacks a result because of an unsupported node, which has been recorded already."""


class Importer:
    """The conversion of one model.

    - `stage`: the stage of the model to convert. By default all of the model becomes one graph, and nodes that need
      values which are known only at run time are refused.
    """

    def __init__(self, contents: OnnxContents, name: str, stage: StageRecord | None = None) -> None:
        model, self._external = contents.message, contents.external
        opset = _standard_opset({entry.domain: entry.version for entry in model.opset_import})
        if opset is not None and opset < OLDEST_OPSET:
            # The version converter cannot read external data: it does not know the model's folder.
            embed_all_data(model, self._external)
            model = convert_model(model, OLDEST_OPSET, name)
        self.model = model
        self.name = name
        self.stage = stage
        self.builder = OnnxBuilder(name, contents.nbytes)
        # Separator in paths between a node and the values of its subgraph or function body; in stages, no name has it.
        self._inside = "::" if stage is None else 2 * stage.mark
        self.unsupported = Unsupported(name)
        self.opsets = {entry.domain: entry.version for entry in model.opset_import}
        self.functions = {(function.domain, function.name): function for function in model.functions}
        # The values of the model's names, complete after conversion.
        self.values: Mapping[str, OnnxValue | None] = {}
        # The nodes converted so far, counted by `_step`.
        self._steps = 0
        # By tensor name: the path and value under which it was defined first. Later values with it are views.
        self._first: dict[str, tuple[str, OnnxValue]] = {}
        # By tensor name: the node that made a tensor whose number of rows is known only at run time. Without stages its
        # unused last rows are -1.
        self._filled: dict[str, str] = {}
        # The tensors of the final graph, by their names in the working graph.
        self._final: Mapping[str, Tensor] = {}

    def convert(self, shapes: Mapping[str, Sequence[int]], constants: Mapping[str, Any]) -> Graph:
        """Convert the model and return the finalized graph.

        - `shapes`: dimensions of inputs by name, where the model leaves some open.
        - `constants`: values of inputs that become constants, by name.
        """
        graph, scope = self.model.graph, self._walk_model(shapes, constants)
        outputs = [(value.name, self._output(value.name, scope)) for value in graph.output]
        self.unsupported.check()
        if not outputs or len({name for name, _ in outputs}) != len(outputs):
            raise malformed(f"model '{self.name}'", "its graph needs outputs, each with a name of its own")
        stored = [(name, self._store_output(name, value)) for name, value in outputs]
        result, self._final = finish_graph(self.builder.graph, stored)
        # A tensor with several names, because nodes only view it, has that of the first.
        for name, value in reversed(scope.values.items()):
            tensor = None if value is None else self._final.get(value.tensor.name)
            if tensor is not None and tensor.type is TensorType.NATIVE:
                result.source_names[tensor.name] = name
        return result

    def check_rows(self) -> None:
        """Refuse a model in which the number of rows of a tensor is known only at run time; see `_filled`."""
        for maker in self._filled.values():
            rule = "how many rows it has is known only at run time"
            raise NeedsStages(Code.COMMON_NOT_SUPPORTED, maker, rule, IN_STAGES)

    def convert_stage(self, shapes: Mapping[str, Sequence[int]], constants: Mapping[str, Any]) -> ModelStage:
        """Convert one stage of the model: all that can be computed from what earlier stages have computed."""
        assert self.stage is not None
        scope = self._walk_model(shapes, constants)
        names = [value.name for value in self.model.graph.output]
        results = {name: self._output(name, scope) for name in names if name not in self.stage.progress.outputs}
        self.unsupported.check()
        ready = {name: value for name, value in results.items() if value is not None and value is not PENDING}
        return self.stage.finish(self.builder, ready, len(ready) < len(results))

    def _walk_model(self, shapes: Mapping[str, Sequence[int]], constants: Mapping[str, Any]) -> OnnxScope:
        """Convert all nodes, and return the scope of their values."""
        if not self.opsets:
            raise malformed(f"model '{self.name}'", "it does not say which operator sets it uses")
        scope = OnnxScope(self.opsets, {})
        self.values = scope.values
        self._declare_inputs(self.model.graph, scope, shapes, constants)
        self._walk(self.model.graph, scope)
        return scope

    def final_values(self, graph: Graph) -> dict[str, OnnxValue]:
        """Return, by ONNX name, the tensor (and axis order) that holds each of the model's values in `graph`.

        `graph` is what `convert` returned. Constants and unused values are left out. Outputs are the graph's own
        tensors, which have ONNX's axis order.
        """
        values = {
            name: OnnxValue(self._final[value.tensor.name], value.perm)
            for name, value in self.values.items()
            if value is not None and value.tensor.name in self._final and not self.builder.is_constant(value)
        }
        return values | {tensor.name: OnnxValue.of(tensor) for tensor in graph.outputs}

    def computed_constants(self) -> dict[str, np.ndarray]:
        """Return the results of the model's nodes that are known when it is loaded, in ONNX's axis order."""
        values = {name: self.values.get(name) for node in self.model.graph.node for name in node.output if name}
        arrays = {name: self.builder.array(value) for name, value in values.items() if value is not None}
        return {name: array for name, array in arrays.items() if array is not None}

    def _declare_inputs(
        self, graph: Any, scope: OnnxScope, shapes: Mapping[str, Sequence[int]], constants: Mapping[str, Any]
    ) -> None:
        """Define the graph's inputs: those with a value in `constants` as constants, all others as inputs."""
        bound = bound_arrays(graph, constants)
        types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
        for name, array in bound.items():
            tensor = self.builder.constant(array, four_bits(types[name]), name=name)
            self.builder.given_bytes += tensor.nbytes
            scope.define(name, OnnxValue.of(tensor), f"constant '{name}'")
        quantizations = input_quantizations(graph, self._external)
        for entry in graph_inputs(graph, shapes, bound):
            quantization = quantizations.get(entry.name) or four_bits(types[entry.name])
            dtype = data_type(entry.dtype) if quantization is None else DataType.fixed_point(entry.dtype)
            if dtype not in RUNTIME_TYPES:
                self.unsupported.add("input", entry.name, f"data type {dtype.name}")
                scope.define(entry.name, None, f"input '{entry.name}'")
                continue
            self._define(scope, entry.name, self._input(entry, dtype, quantization), f"input '{entry.name}'")
        if self.stage is not None:
            self.stage.declare(self.builder)

    def _input(self, entry: Input, dtype: DataType, quantization: Quantization | None) -> OnnxValue:
        """Create an input; one without elements is a constant."""
        if self.stage is not None and 0 in entry.dims:
            return OnnxValue.of(self.builder.empty(dtype, entry.dims, quantization))
        tensor = self.builder.graph.create_tensor(entry.name, TensorType.APP_WRITE, dtype, entry.dims, quantization)
        return OnnxValue.of(tensor)

    def _output(self, name: str, scope: OnnxScope) -> OnnxValue | None:
        """Return the value of an output, None if it could not be computed; record an unsupported data type."""
        what = f"output '{name}' of model '{self.name}'"
        value = scope.find(name, what)
        if any(value.name == name for value in self.model.graph.input) and value is not None and not value.is_static:
            rule, hint = "it is an input, and a tensor of QNN is one or the other", "Copy it by an Identity node."
            raise malformed(what, rule, hint)
        if isinstance(value, OnnxSequence):
            self.unsupported.add("output", name, "a sequence")
        elif value is not None and value.tensor.dtype not in RUNTIME_TYPES:
            self.unsupported.add("output", name, f"data type {value.tensor.dtype.name}")
        return value

    def _store_output(self, name: str, value: OnnxValue | None) -> Any:
        """Return the tensor of an output, stored in ONNX's axis order."""
        self.builder.node = name
        if value is None:
            raise malformed(f"output '{name}'", "nothing computes it")
        return self.builder.materialize(value)

    # --- nodes --------------------------------------------------------------------------------------------------

    def _walk(self, graph: Any, scope: OnnxScope) -> None:
        """Define a graph's initializers and convert its nodes."""
        if len(graph.sparse_initializer):
            self.unsupported.add("sparse initializer", graph.sparse_initializer[0].values.name)
        needed = self._needed_names(graph, scope)
        for tensor in graph.initializer:
            if tensor.name not in scope.values and (needed is None or tensor.name in needed):
                scope.define(tensor.name, self._initializer(tensor, scope), f"initializer '{tensor.name}'")
        self._walk_nodes(graph, scope, needed)

    def _needed_names(self, graph: Any, scope: OnnxScope) -> set[str] | None:
        """Return the names that a stage reads or computes; None for all, if the model becomes one graph."""
        # What earlier stages have computed need not be computed again. Subgraphs are converted as a whole.
        stage = self.stage
        if stage is None or scope.depth:
            return None
        needed = {value.name for value in graph.output} - stage.progress.outputs
        for _, proto in reversed(list(in_order(graph.node))):
            results = [name for name in proto.output if name]
            if not needed.isdisjoint(results) and not all(map(stage.has, results)):
                needed.update(read_names(proto))
        return needed

    def _walk_nodes(self, graph: Any, scope: OnnxScope, needed: set[str] | None = None) -> None:
        """Convert the nodes of a graph or function, each after those whose results it reads."""
        # A node without a name is named by its index in the file. With `needed`, only those nodes are converted that
        # compute some of these names.
        if scope.depth > MAX_DEPTH:
            raise malformed(f"graph '{graph.name}'", f"it nests deeper than {MAX_DEPTH}")
        for index, proto in in_order(graph.node):
            check_interrupted()
            if needed is not None and needed.isdisjoint(proto.output):
                continue
            named = isinstance(proto.name, str) and proto.name
            self._convert(proto, proto.name if named else f"{proto.op_type}_{index}", f"{scope.path}{index}", scope)

    def _step(self, what: str) -> None:
        """Count a step. Folded and repeated nodes count too: they add no node to the graph, but they take time."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise malformed(what, f"with its loops and functions expanded the model has over {MAX_STEPS} nodes")

    def _initializer(self, proto: Any, scope: OnnxScope) -> OnnxValue | None:
        """Create the constant of an initializer; record an unsupported one and return None."""
        if not proto.name:
            raise malformed("initializer", "it has no name")
        try:
            tensor = self.builder.constant(to_array(proto, self._external), four_bits(proto.data_type), name=proto.name)
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
        return OnnxValue.of(tensor)

    def _convert(self, proto: Any, name: str, path: str, scope: OnnxScope) -> None:
        """Convert a node and assign its results to their names; `path` distinguishes it from all other nodes."""
        what = f"node '{name}' ({proto.op_type})"
        self._step(what)
        if self._take_given(proto, scope, what):
            return
        input_names = ["" if name in scope.absent else name for name in proto.input]
        inputs = [scope.find(name, what) if name else None for name in input_names]
        # A node that reads the result of an unsupported node is skipped without an error of its own.
        reads_lost = any(value is None and name for value, name in zip(inputs, input_names, strict=True))
        results: Sequence[OnnxValue | None] = []
        key = proto.op_type if proto.domain in _STANDARD else f"{proto.domain}:{proto.op_type}"
        function = self.functions.get((proto.domain, proto.op_type))
        if function is not None:
            converter: Converter | None = self._calls(function, scope, path)
        else:
            converter = CONVERTERS.get(key) or self._by_definition(proto, scope, path)
        if converter is None:
            self.unsupported.add(key, name)
        elif not reads_lost:
            self.builder.node = name
            try:
                if PENDING in inputs:
                    raise Deferred
                self._check_not_filled(inputs, key, what)
                if function is None and key not in TAKES_SEQUENCES and any(isinstance(v, OnnxSequence) for v in inputs):
                    raise unsupported(what, "an operand that is a sequence")
                node = self._node(proto, name, path, inputs, scope, key)
                converted = converter(node)
                results = [converted] if isinstance(converted, OnnxValue) else converted
                if self.stage is not None and key in CONVERTERS and key not in _VIEWS:
                    results = [self._own(value) for value in results]
                if len(results) < sum(1 for i, _ in enumerate(proto.output) if node.wants(i)):
                    node.unsupported(f"only its first {len(results)} outputs are supported")
            except Deferred as reason:
                self._defer(proto, scope, reason)
                results = [PENDING] * len(proto.output)
            except _Lost:
                results = []
            except QnnError as error:
                if error.code is not Code.COMMON_NOT_SUPPORTED:
                    raise
                self.unsupported.add(key, name, error.rule, isinstance(error, NeedsStages))
                results = []
            except _MALFORMED as error:
                rule = f"its attributes or operands are malformed ({error})"
                raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, rule) from error
            except MemoryError as error:
                raise QnnError(Code.COMMON_MEM_ALLOC, what, "its constants need more memory than there is") from error
        for index, output in enumerate(proto.output):
            if output:
                self._define(scope, output, results[index] if index < len(results) else None, what)

    def _own(self, value: OnnxValue | None) -> OnnxValue | None:
        """Return a result, copied if its tensor is already that of another value."""
        # At some shapes, a Slice that takes everything is its operand, or two results are one tensor. Which values are
        # stored between stages must not depend on that, because their memory is planned for one shape.
        if value is None or isinstance(value, OnnxSequence) or self.builder.is_constant(value):
            return value
        tensor = value.tensor
        if tensor.name not in self._first:
            return value
        copy = self.builder.one("Reshape", [tensor], dims=[tensor.dims], quantizations=[tensor.quantization])
        return OnnxValue(copy, value.perm)

    def _define(self, scope: OnnxScope, name: str, value: OnnxValue | None, what: str) -> None:
        """Assign a value to a name; what an earlier stage has computed for that name takes precedence."""
        path = f"{scope.path}{name}"
        if self.stage is not None:
            value = self.stage.value_at(path, self.builder) or value
        scope.define(name, value, what)
        if value is not None and value is not PENDING and not isinstance(value, OnnxSequence):
            self._first.setdefault(value.tensor.name, (path, value))

    def _take_given(self, proto: Any, scope: OnnxScope, what: str) -> bool:
        """Assign the results of a node that earlier stages have computed; return whether they have all of them."""
        names = [name for name in proto.output if name]
        if self.stage is None or not names or not all(self.stage.has(f"{scope.path}{name}") for name in names):
            return False
        for name in names:
            self._define(scope, name, None, what)
        return True

    def _defer(self, proto: Any, scope: OnnxScope, reason: Exception) -> None:
        """Leave a node to a later stage: record what it waits for, and keep the values that it reads."""
        assert self.stage is not None
        reads: list[OnnxValue | None] = []
        if isinstance(reason, NeedsValue):
            for needed, greatest in reason.needs:
                first = self._first.get(needed.tensor.name)
                if first is None:
                    raise unsupported(reason.what, reason.rule)
                self.stage.need(*first, reason, greatest)
            reads += reason.reads
        if not (isinstance(reason, NeedsRows) and reason.is_result):
            reads += [holder.values[name] for name in read_names(proto) if (holder := scope.scope_of(name)) is not None]
        for value in reads:
            if value is not None and value is not PENDING and not self.builder.is_constant(value):
                first = self._first.get(value.tensor.name)
                if first is not None:
                    self.stage.keep(*first)

    def _check_not_filled(self, inputs: Sequence[OnnxValue | None], key: str, what: str) -> None:
        """Refuse a node other than Identity that reads a tensor of `_filled`: its rows are counted only at run time."""
        maker = next((self._filled[v.tensor.name] for v in inputs if v and v.tensor.name in self._filled), None)
        if maker is not None and key != "Identity":
            rule = f"how many rows {maker} has is known only at run time"
            raise NeedsStages(Code.COMMON_NOT_SUPPORTED, what, rule)

    def _node(
        self, proto: Any, name: str, path: str, inputs: list[OnnxValue | None], scope: OnnxScope, key: str
    ) -> OnnxNode:
        """Return the node as its converter sees it."""
        # `path` distinguishes it from all other nodes, and `key` is the operator's name in `CONVERTERS`. Fixed-point
        # inputs become plain integers if the converter does not take them. A reference to an attribute of the calling
        # function is resolved; if the caller omits it, so does the node.
        if key not in KEEPS_CHANNELS:
            inputs = [value and self._integers(value, key) for value in inputs]

        attributes: dict[str, Any] = {}
        turns: dict[str, count[int]] = {}

        def run(graph: Any, arguments: Sequence[OnnxValue]) -> list[OnnxValue]:
            which = next(key for key, value in attributes.items() if value is graph)
            turn = next(turns.setdefault(which, count()))
            return self._run_subgraph(graph, arguments, scope.inside(f"{path}.{which}.{turn}{self._inside}"), name)

        for attribute in proto.attribute:
            if not attribute.ref_attr_name:
                attributes[attribute.name] = attribute_value(attribute, self._external)
                if attribute.name == "value" and four_bits(attribute.t.data_type) is not None:
                    attributes["encoding"] = four_bits(attribute.t.data_type)
            elif attribute.ref_attr_name in scope.attributes:
                attributes[attribute.name] = scope.attributes[attribute.ref_attr_name]
        opset = scope.opset(proto.domain)
        outputs = list(proto.output)
        return OnnxNode(
            name, proto.op_type, opset, attributes, inputs, outputs, self.builder, run, scope.path, self.stage,
            self._filled,
        )  # fmt: skip

    def _by_definition(self, proto: Any, scope: OnnxScope, path: str) -> Converter | None:
        """Return a converter by ONNX's definition of the operator in terms of others, or None if there is none."""
        if proto.domain not in _STANDARD or not is_defined(proto.op_type, scope.opset(proto.domain)):
            return None

        def convert(node: OnnxNode) -> Results:
            return self._calls(definition(node), scope, path)(node)

        return convert

    def _calls(self, function: Any, scope: OnnxScope, path: str) -> Converter:
        """Return a converter that replaces a calling node, which has this path, by the body of the function."""

        def convert(node: OnnxNode) -> list[OnnxValue | None]:
            defaults = {a.name: attribute_value(a, self._external) for a in function.attribute_proto}
            opsets = {entry.domain: entry.version for entry in function.opset_import}
            body = OnnxScope(opsets, {**defaults, **node.attributes}, depth=scope.depth + 1, path=path + self._inside)
            for index, name in enumerate(function.input):
                if node.optional(index) is None:
                    body.absent.add(name)
                else:
                    body.define(name, node.value(index), node.what)
            self._walk_nodes(function, body)
            self.builder.node = node.name
            # A function need not compute an optional result that its caller does not use.
            names = enumerate(function.output)
            values = [body.find(name, node.what) if node.wants(index) else None for index, name in names]
            if PENDING in values:
                raise Deferred
            return values

        return convert

    def _integers(self, value: OnnxValue, key: str) -> OnnxValue:
        """Return a fixed-point value as its stored integers, if the operator with this key does not support it."""
        # It is not called for operators in `KEEPS_CHANNELS`, which support every quantization; no other operator
        # supports per-channel quantization.
        quantization = value.tensor.quantization
        if key in TAKES_FIXED_POINT and (quantization is None or quantization.axis is None):
            return value
        return self.builder.plain(value)

    def _run_subgraph(self, graph: Any, arguments: Sequence[OnnxValue], inner: OnnxScope, name: str) -> list[OnnxValue]:
        """Convert a subgraph inline, in a new scope; its unsupported nodes are recorded like the model's own."""
        what = f"subgraph of node '{name}'"
        self._step(what)
        if len(arguments) != len(graph.input):
            raise malformed(what, f"it takes {len(graph.input)} inputs, {len(arguments)} are given")
        for declared, value in zip(graph.input, arguments, strict=True):
            inner.define(declared.name, value, what)
        self._walk(graph, inner)
        self.builder.node = name
        values = [inner.find(output.name, what) for output in graph.output]
        if any(value is None for value in values):
            raise _Lost
        if PENDING in values:
            raise Deferred
        return [value for value in values if value is not None]
