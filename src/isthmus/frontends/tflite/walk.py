"""The walk over a model's operators in execution order: tensors get values, subgraphs are called, loops unrolled.

Operators that cannot be converted are collected, and their results are unknown. The walk continues, so that one error
can list all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.tflite.entries import OperatorEntry, Subgraph, TfliteModel
from isthmus.frontends.tflite.operator_context import (
    Complex,
    OperatorContext,
    Resource,
    data_type,
    declared_quantization,
)
from isthmus.frontends.tflite.operators import CONVERTERS
from isthmus.frontends.tflite.spectrum import convert_complex
from isthmus.frontends.tflite.variables import Variables, handle
from isthmus.frontends.unsupported import Unsupported, unsupported
from isthmus.graph import Graph, Tensor
from isthmus.system.shield import check as check_interrupted

MAX_DEPTH = 16
"""The deepest nesting of subgraph calls."""
MAX_ITERATIONS = 1000
"""The most iterations of a loop that are unrolled."""
MAX_STEPS = 50_000
"""The most operators that a model may run in all, with loops unrolled."""
MAX_FOLDED_BYTES = 1 << 30
"""The most bytes of constants that a model may compute from its constants, in addition to 8 times its own size."""


class Unknown:
    """The value of a result that could not be converted."""


UNKNOWN = Unknown()
Value = Tensor | Complex | Resource | Unknown | None
"""The value of a tensor of the file; None for an absent operand."""


@dataclass
class TfliteScope:
    """A call of a subgraph: the values of its tensors so far, and the suffix that makes its names unique.

    - `suffix`: appended to the names of tensors and operators; it identifies the calls around this one.
    - `depth`: the number of calls around this one.
    - `initializing`: whether an initialization runs, which sets the initial values of variables.
    - `names`: names in the graph, by tensor number, that replace the file's names with the suffix.
    """

    subgraph: Subgraph
    values: dict[int, Value]
    suffix: str = ""
    depth: int = 0
    initializing: bool = False
    names: dict[int, str] = field(default_factory=dict)
    stored: dict[int, Tensor] = field(default_factory=dict)
    """New values of the variables that the subgraph's caller keeps."""

    def name(self, index: int) -> str:
        """Return the graph's name for a tensor of the file."""
        return self.names.get(index) or self.subgraph.tensor(index).name + self.suffix

    def what(self, entry: OperatorEntry) -> str:
        """Return an operator of this call in messages."""
        return f"operator '{self.subgraph.operator_name(entry)}{self.suffix}' ({entry.code})"


class Walk:
    """The conversion of one model into one graph.

    - `reserved`: names that constants must not take.
    """

    def __init__(self, graph: Graph, model: TfliteModel, reserved: frozenset[str] = frozenset()) -> None:
        self.graph = graph
        self.model = model
        self.reserved = reserved
        self.unsupported = Unsupported(graph.name)
        self.variables = Variables(graph, model)
        # The constants of the file that were read, by subgraph and tensor number.
        self._constants: dict[tuple[int, int], Tensor] = {}
        # Constants that converters derived from others; see `OperatorContext.derive`.
        self._derived: dict[Hashable, Tensor] = {}
        # The numbers of the initialization subgraphs that ran.
        self._initialized: set[int] = set()
        self._steps = 0
        # The bytes of constants that were computed.
        self._folded = 0

    def scan(self) -> None:
        """Find every operator without a conversion, also in subgraphs that the walk may not reach because of it."""
        for subgraph in self.model.reachable(initializers=True):
            for entry in subgraph.operators():
                if entry.code not in CONVERTERS and entry.code not in SPECIAL:
                    self.unsupported.add(entry.code, subgraph.operator_name(entry))

    def run(self, scope: TfliteScope) -> list[Value]:
        """Convert the operators of a subgraph and return the values of its outputs."""
        if scope.depth > MAX_DEPTH:
            rule = f"subgraphs call subgraphs more than {MAX_DEPTH} deep"
            raise QnnError(Code.COMMON_LOADING_BINARIES, f"subgraph '{scope.subgraph.name}'", rule)
        for entry in scope.subgraph.operators():
            check_interrupted()
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise unsupported(f"model '{self.graph.name}'", f"it runs more than {MAX_STEPS} operators")
            results = self._convert(scope, entry)
            if len(results) != len(entry.outputs):
                self._refuse(scope, entry, f"it has {len(entry.outputs)} outputs instead of {len(results)}")
            for index, value in zip(entry.outputs, results, strict=True):
                if index in scope.values:
                    self._refuse(scope, entry, f"it writes tensor {index}, which has a value already")
                if index != -1:
                    scope.values[index] = value
                self._count(value)
        return [self.value(scope, index) for index in scope.subgraph.outputs]

    def _count(self, value: Value) -> None:
        """Count bytes of computed constants; refuse a model that computes far more than its size justifies."""
        if isinstance(value, Tensor) and value.is_static:
            self._folded += value.nbytes
            if self._folded > MAX_FOLDED_BYTES + 8 * self.model.nbytes:
                rule = f"the constants that it computes take {self._folded} bytes so far"
                raise QnnError(Code.COMMON_MEM_ALLOC, f"model '{self.graph.name}'", rule)

    def value(self, scope: TfliteScope, index: int) -> Value:
        """Return the value of a tensor at this point of the walk."""
        if index == -1:
            return None
        if index in scope.values:
            return scope.values[index]
        key = (scope.subgraph.index, index)
        if key not in self._constants:
            entry = scope.subgraph.tensor(index)
            if entry.is_variable:
                return self.variables.read(entry.name + scope.suffix, entry, entry.shape)
            data = self.model.contents(scope.subgraph, entry)
            if data is None:
                rule = "it is read before any operator writes it"
                hint = "The operators of a model must be in the order of their data; a cycle has no such order."
                raise QnnError(Code.GRAPH_UNCONNECTED_NODE, f"tensor '{entry.name}'", rule, hint)
            name = f"{entry.name}/{index}" if entry.name in self.reserved else entry.name
            self._constants[key] = self.graph.constant(name, data, declared_quantization(entry), data_type(entry))
        return self._constants[key]

    def _refuse(self, scope: TfliteScope, entry: OperatorEntry, rule: str) -> NoReturn:
        """Refuse an invalid operator."""
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, scope.what(entry), rule)

    def _convert(self, scope: TfliteScope, entry: OperatorEntry) -> Sequence[Value]:
        """Convert one operator; if it is not supported, record why and return unknown results."""
        if entry.code not in SPECIAL and entry.code not in CONVERTERS:
            return [UNKNOWN] * len(entry.outputs)  # `scan` has reported it
        try:
            return self.attempt(scope, entry)
        except QnnError as error:
            if error.code is not Code.COMMON_NOT_SUPPORTED:
                raise
            self.unsupported.add(entry.code, scope.subgraph.operator_name(entry), error.rule)
        return [UNKNOWN] * len(entry.outputs)

    def attempt(self, scope: TfliteScope, entry: OperatorEntry) -> Sequence[Value]:
        """Convert one operator; return its results, which are unknown if an operand is.

        Raises `QnnError`: COMMON_NOT_SUPPORTED for an operator that cannot be converted, another code for an invalid
        one.
        """
        special = SPECIAL.get(entry.code)
        if special is None and entry.code not in CONVERTERS:
            raise unsupported(scope.what(entry), "the operator is not supported")
        try:
            operands = [self.value(scope, index) for index in entry.inputs]
            if any(isinstance(value, Unknown) for value in operands):
                return [UNKNOWN] * len(entry.outputs)
            if special is not None:
                return special(self, scope, entry, operands)
            return self._emit(scope, entry, operands)
        except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
            # The last safeguard against untrusted models: an exception in a converter or a reference computation is a
            # fault of the operator, and is reported as one.
            too_large = isinstance(error, MemoryError)
            rule = "it needs more memory than there is" if too_large else "its operands and options do not fit together"
            hint = "The file is damaged, or was not written by TensorFlow's converter."
            raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, scope.what(entry), rule, hint) from error

    def _emit(self, scope: TfliteScope, entry: OperatorEntry, operands: Sequence[Value]) -> Sequence[Value]:
        """Convert one operator by its converter, and store the new values of variables that it changes."""
        if any(isinstance(value, Resource) for value in operands):
            self._refuse(scope, entry, "a resource handle is not a value")
        inputs = [value if isinstance(value, Tensor) else None for value in operands]
        present = [index for index in entry.outputs if index != -1]
        outputs, names = [scope.subgraph.tensor(index) for index in present], [scope.name(index) for index in present]
        declared = [None if index == -1 else scope.subgraph.tensor(index) for index in entry.inputs]
        node = OperatorContext(self.graph, entry, inputs, outputs, names, self._derived, declared)
        if any(isinstance(value, Complex) for value in operands):
            return convert_complex(node, operands)
        results = CONVERTERS[entry.code](node)
        for position, value in node.variables.items():
            index = entry.inputs[position]
            variable = scope.subgraph.tensor(index)
            if index in scope.subgraph.kept_variables:
                scope.values[index] = scope.stored[index] = value
            elif variable.is_variable:
                self.variables.assign(variable.name + scope.suffix, value)
        return results

    # Operators that call subgraphs

    def _call(self, scope: TfliteScope, index: int, operands: Sequence[Value], suffix: str, what: str) -> list[Value]:
        """Convert a call of subgraph `index` and return its outputs; `what` names the calling operator in errors."""
        subgraph = self.model.subgraph(index)
        if len(subgraph.inputs) != len(operands):
            rule = f"it gives {len(operands)} values to subgraph '{subgraph.name}', which takes {len(subgraph.inputs)}"
            raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, rule)
        values = dict(zip(subgraph.inputs, operands, strict=True))
        return self.run(TfliteScope(subgraph, values, suffix, scope.depth + 1, scope.initializing))

    def _if(self, scope: TfliteScope, entry: OperatorEntry, operands: Sequence[Value]) -> Sequence[Value]:
        """Convert the branch that a constant condition selects."""
        what = scope.what(entry)
        chosen = "then_subgraph" if _truth(what, operands[0] if operands else None) else "else_subgraph"
        return self._call(scope, entry.options[chosen], operands[1:], f"{scope.suffix}@{entry.index}", what)

    def _while(self, scope: TfliteScope, entry: OperatorEntry, operands: Sequence[Value]) -> Sequence[Value]:
        """Unroll a loop: convert its condition, which must be constant, and its body for each iteration."""
        what = scope.what(entry)
        values = list(operands)
        for iteration in range(MAX_ITERATIONS + 1):
            suffix = f"{scope.suffix}@{entry.index}#{iteration}"
            conditions = self._call(scope, entry.options["cond_subgraph"], values, f"{suffix}?", what)
            if any(isinstance(value, Unknown) for value in conditions):
                return [UNKNOWN] * len(entry.outputs)
            if not _truth(what, conditions[0] if conditions else None):
                return values
            values = self._call(scope, entry.options["body_subgraph"], values, suffix, what)
        raise unsupported(what, f"the loop runs more than {MAX_ITERATIONS} times")

    def _composite(self, scope: TfliteScope, entry: OperatorEntry, operands: Sequence[Value]) -> Sequence[Value]:
        """Convert a composite operator by the subgraph that defines it."""
        return self._call(
            scope, entry.options["subgraph"], operands, f"{scope.suffix}@{entry.index}", scope.what(entry)
        )

    def _call_once(self, scope: TfliteScope, entry: OperatorEntry, operands: Sequence[Value]) -> Sequence[Value]:
        """Run an initialization, on its first call only."""
        index = entry.options["init_subgraph"]
        if index not in self._initialized:
            self._initialized.add(index)
            suffix = f"{scope.suffix}@{entry.index}"
            self.run(TfliteScope(self.model.subgraph(index), {}, suffix, scope.depth + 1, True))
        return []

    # Variables

    def _var_handle(self, scope: TfliteScope, entry: OperatorEntry, operands: Sequence[Value]) -> Sequence[Value]:
        """Return the handle of a variable."""
        return [handle(entry.options)]

    def _read_variable(self, scope: TfliteScope, entry: OperatorEntry, operands: Sequence[Value]) -> Sequence[Value]:
        """Return the value of a variable at this point of the walk."""
        resource = self._resource(scope, entry, operands)
        if not entry.outputs:
            self._refuse(scope, entry, "its output is missing")
        declared = scope.subgraph.tensor(entry.outputs[0])
        return [self.variables.read(resource, declared, declared.shape)]

    def _assign_variable(self, scope: TfliteScope, entry: OperatorEntry, operands: Sequence[Value]) -> Sequence[Value]:
        """Assign a variable: its initial value in an initialization, otherwise its new value."""
        resource = self._resource(scope, entry, operands)
        value = operands[1] if len(operands) > 1 else None
        if not isinstance(value, Tensor):
            self._refuse(scope, entry, "it needs a value to assign")
        (self.variables.initialize if scope.initializing else self.variables.assign)(resource, value)
        return []

    def _resource(self, scope: TfliteScope, entry: OperatorEntry, operands: Sequence[Value]) -> Resource:
        """Return the handle that is the first operand."""
        if not operands or not isinstance(operands[0], Resource):
            self._refuse(scope, entry, "its first input must be a resource handle")
        return operands[0]


def _truth(what: str, condition: Value) -> bool:
    """Return a condition, which must be a constant, as a truth value."""
    if not isinstance(condition, Tensor) or condition.elements != 1:
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, "its condition must be one value")
    if condition.data is None or not condition.is_static:
        raise unsupported(what, "its condition depends on data; only conditions known from shapes and constants work")
    return bool(np.asarray(condition.data).reshape(()))


Special = Callable[[Walk, TfliteScope, OperatorEntry, Sequence[Value]], Sequence[Value]]
"""Converts an operator of a call, given the values of its operands; returns its results."""

SPECIAL: dict[str, Special] = {
    "ASSIGN_VARIABLE": Walk._assign_variable,
    "CALL_ONCE": Walk._call_once,
    "IF": Walk._if,
    "READ_VARIABLE": Walk._read_variable,
    "STABLEHLO_COMPOSITE": Walk._composite,
    "VAR_HANDLE": Walk._var_handle,
    "WHILE": Walk._while,
}
"""Operators that are not a single computation on tensors."""
