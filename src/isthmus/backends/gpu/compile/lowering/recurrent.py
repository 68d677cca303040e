"""Lowering of recurrent layers: one product for the input's share of all gates, then one or two launches per step.

Gates are stored one after the other, the units of each padded to whole vectors. Each work-item of a launch computes
some units. It reads the hidden state that the previous launch wrote to the sequence of results.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from isthmus.backends.gpu.compile.kernel_source import KernelSource
from isthmus.backends.gpu.compile.lowering import product
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter, KernelLowering
from isthmus.backends.gpu.compile.program import BufferRef
from isthmus.backends.gpu.compile.storage import FLOAT, OperandStorage
from isthmus.backends.gpu.compile.traits import DeviceTraits
from isthmus.graph import DataType, Tensor, TensorType
from isthmus.prepare.geometry import recurrent as geometry
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step

# Units of a vector on a CPU, to whole numbers of which gates are padded.
_WIDTH = 8
# The shape of a work-group on a GPU: adjacent units, and work-items that share the sums of one.
_LANES, _SLICES = 32, 8
# The alignment in bytes of parts of the work space.
_ALIGNMENT = 128


@dataclass(frozen=True)
class VectorizedLayer(geometry.RecurrentLayer):
    """A recurrent layer whose gates are padded to whole vectors of units."""

    @property
    def padded(self) -> int:
        """The number of units with padding."""
        return -(-self.units // _WIDTH) * _WIDTH

    @property
    def columns(self) -> int:
        """The number of elements of all gates of one batch element."""
        return self.gates * self.padded

    def places(self) -> dict[str, int]:
        """Return the offsets in the work space: the input's share of all gates, an LSTM's cell (a GRU's update gate),
        and a GRU's hidden state after its reset; "end" is the size.
        """
        cell = self.batch * self.padded * 4
        return geometry.offsets(
            {"input_gates": self.steps * self.batch * self.columns * 4, "cell": cell, "held": cell}, _ALIGNMENT
        )


def _layer(step: Step) -> VectorizedLayer:
    """Return the sizes of a recurrent step."""
    return VectorizedLayer(**asdict(geometry.recurrent_layer(step)))


def _emit_inputs(step: Step, e: KernelEmitter, layer: VectorizedLayer) -> BufferRef:
    """Emit the input's share of all gates, for all steps of the sequence; return where it is."""
    x, rows = operand(step, 0), layer.steps * layer.batch
    width = product.panel_width(e.traits, rows, layer.columns)
    place, storage = e.weights(product.pack(geometry.input_weights(step, layer.padded)[None], width))
    bias = product.pad_bias(geometry.input_biases(step, layer.padded), layer.columns, width)
    right = product.Right(place, storage, layer.columns, width, e.constant(bias))
    goal = Tensor("input gates", TensorType.NATIVE, DataType.FLOAT_32, (rows, layer.columns))
    e.place_in_work(goal, layer.places()["input_gates"])
    left = product.Left(e.at(x), e.storage(x), rows, layer.inputs, layer.inputs)
    product.emit_product(e, left, right, product.ResultTarget(goal, layer.columns))
    return e.at(goal)


class _Steps:
    """A writer of the launches of all steps of the sequence: what they have in common, and where each begins.

    - `width`, `real`: Units that statements compute at a time, and the type of such a vector.
    - `initial`: As a parameter, the number of the operand with the initial hidden state (zeros if it is absent); as an
      attribute, the location and storage of that state.
    """

    def __init__(self, step: Step, e: KernelEmitter, layer: VectorizedLayer, inputs: BufferRef, initial: int) -> None:
        self.step, self.e, self.layer, self.inputs = step, e, layer, inputs
        self.out = step.outputs[0]
        self.storage = e.storage(self.out)
        self.width = _WIDTH if not e.gpu and layer.units % _WIDTH == 0 else 1
        self.real = "float" if self.width == 1 else f"float{self.width}"
        first = geometry.optional(step, initial)
        self.initial = (
            (e.constant(np.zeros(layer.batch * layer.units, np.float32)), FLOAT)
            if first is None
            else (e.at(first), e.storage(first))
        )

    def load(self, name: str, index: str = "b * units + u", storage: OperandStorage = FLOAT) -> str:
        """Return an expression that loads the values of the current units."""
        return storage.load(name, index, self.width)

    def store(self, name: str, value: str, storage: OperandStorage = FLOAT) -> str:
        """Return the statement that stores the values of the current units."""
        return storage.store(name, "b * units + u", value, self.width)

    def x(self, gate: int) -> str:
        """Return an expression for the input's share of a gate."""
        return self.load("gates", f"b * columns + {gate} * padded + u")

    def time(self, number: int) -> int:
        """Return the position of a step in the sequence."""
        return self.layer.steps - 1 - number if int(self.step.params["direction"]) else number

    def kernel(self, number: int, weights: BufferRef, stored: OperandStorage) -> tuple[KernelSource, OperandStorage]:
        """Start a kernel with what every launch has: input gates, previous hidden state, weights [units, gates *
        padded]. Return it with the storage of the previous hidden state.
        """
        layer, time = self.layer, self.time(number)
        row = layer.batch * layer.columns
        kernel = self.e.kernel()
        part = BufferRef(self.inputs.pool, 0, self.inputs.offset + time * row * 4, row * 4, False)
        kernel.memory("gates", part, "float")
        place, storage = self.initial
        if number:
            previous = self.time(number - 1) * layer.batch * layer.units
            place, storage = self.e.at(self.out, previous), self.storage
        kernel.memory("h", place, storage.c_type)
        kernel.memory("w", weights, stored.c_type)
        kernel.ints(units=layer.units, padded=layer.padded, columns=layer.columns, batch=layer.batch)
        return kernel, storage

    def launch(
        self,
        name: str,
        kernel: KernelSource,
        source: str,
        storage: OperandStorage,
        stored: OperandStorage,
        gates: int,
        after: list[str],
    ) -> None:
        """Emit a kernel that adds up products of weights with a state, and computes new states from the sums.

        - `source`, `storage`: The kernel's name of the state, and how it is stored.
        - `gates`: The number of gates; ``s0``, ``s1`` and so on are their sums.
        - `after`: Statements for the units from ``u`` on of batch element ``b``, which use these sums.
        """
        e, layer = self.e, self.layer
        width = gates * layer.padded
        names = [f"s{g}" for g in range(gates)]
        if e.gpu:
            lines = [
                f"  local float parts[{_SLICES}][{gates}][{_LANES}];",
                "  int lane = get_local_id(0), slice = get_local_id(1), b = get_global_id(2);",
                f"  int u = get_group_id(0) * {_LANES} + lane, column = min(u, padded - 1);",
                f"  float {', '.join(f'{n} = 0.0f' for n in names)};",
                f"  for (int k = slice; k < units; k += {_SLICES}) {{",
                f"    float a = {storage.load(source, 'b * units + k')};",
                *(
                    f"    {n} = fma(a, {stored.load('w', f'k * {width} + {g * layer.padded} + column')}, {n});"
                    for g, n in enumerate(names)
                ),
                "  }",
                *(f"  parts[slice][{g}][lane] = {n};" for g, n in enumerate(names)),
                "  barrier(CLK_LOCAL_MEM_FENCE);",
                "  if (slice != 0 || u >= units) return;",
                f"  for (int s = 1; s < {_SLICES}; ++s) {{",
                *(f"    {n} += parts[s][{g}][lane];" for g, n in enumerate(names)),
                "  }",
                *(f"  {line}" for line in after),
            ]
            kernel.launch(name, lines, (-(-layer.units // _LANES) * _LANES, _SLICES, layer.batch),
                (_LANES, _SLICES, 1),
            )  # fmt: skip
            return
        wide = f"float{_WIDTH}"

        def multiply_add(k: str, sums: str) -> list[str]:
            """Return statements that add the products of element k to the sums whose names begin with `sums`."""
            products = (
                f"{sums}{n} = a * {stored.load('panel', f'(({k}) * {gates} + {g}) * {_WIDTH}', _WIDTH)} + {sums}{n};"
                for g, n in enumerate(names)
            )
            return [f"    {{ {wide} a = ({wide})({storage.load(source, f'b * units + {k}')});", *products, "    }"]

        lines = [
            f"  int u0 = get_global_id(0) * {_WIDTH}, b = get_global_id(1), k = 0;",
            f"  global const {stored.c_type} *panel = w + u0 * units * {gates};",
            # Twice as many sums as gates, because the latency of one product is longer than issuing a product for each
            # gate.
            *(f"  {wide} {', '.join(f'{sums}{n} = 0.0f' for n in names)};" for sums in ("v", "w")),
            "  for (; k + 2 <= units; k += 2) {",
            *multiply_add("k", "v"),
            *multiply_add("k + 1", "w"),
            "  }",
            "  if (k < units) {",
            *multiply_add("k", "v"),
            "  }",
            *(f"  v{n} += w{n};" for n in names),
        ]
        if self.width > 1:
            lines.append("  const int u = u0;")
            lines.append(f"  {wide} {', '.join(f'{n} = v{n}' for n in names)};")
            lines += [f"  {line}" for line in after]
        else:
            lines.append(f"  float sums[{gates * _WIDTH}];")
            lines += [f"  *({wide}_u *)(sums + {g * _WIDTH}) = v{n};" for g, n in enumerate(names)]
            lines += [
                f"  for (int u = u0; u < min(u0 + {_WIDTH}, units); ++u) {{",
                f"    float {', '.join(f'{n} = sums[{g * _WIDTH} + u - u0]' for g, n in enumerate(names))};",
                *(f"    {line}" for line in after),
                "  }",
            ]
        kernel.launch(name, lines, (layer.padded // _WIDTH, layer.batch), (1, 1))


def _recurrent(e: KernelEmitter, matrix: np.ndarray) -> np.ndarray:
    """Arrange a matrix [units, gates * padded] for launches: on a CPU as panels [vector of units, unit, gate, lane]."""
    if e.gpu:
        return matrix
    units, padded = matrix.shape[0], -(-matrix.shape[0] // _WIDTH) * _WIDTH
    return matrix.reshape(units, -1, padded // _WIDTH, _WIDTH).transpose(2, 0, 1, 3)


def _gate(text: str) -> str:
    """Return the sigmoid of an expression."""
    return f"(1.0f / (1.0f + exp(-({text}))))"


def _outputs(
    e: KernelEmitter, kernel: KernelSource, steps: _Steps, number: int, last: Tensor | None, name: str
) -> list[str]:
    """Declare the destination of a step's hidden state; return the statements that store ``h_new`` of a unit."""
    # `last` is the tensor for the hidden state of the last step, if the layer has such an output, and `name` is its
    # name in the kernel.
    layer = steps.layer
    place = e.at(steps.out, steps.time(number) * layer.batch * layer.units, writes=True)
    kernel.memory("out", place, steps.storage.c_type)
    lines = [steps.store("out", "h_new", steps.storage)]
    if number == layer.steps - 1 and last is not None:
        storage = e.storage(last)
        kernel.memory(name, e.at(last, writes=True), storage.c_type)
        lines.append(steps.store(name, "h_new", storage))
    return lines


def _emit_lstm(step: Step, e: KernelEmitter) -> None:
    """Emit an LSTM with one launch for each step of the sequence."""
    # Operands are numbered as QNN's Lstm: recurrent weights are 4 to 6 and 17, the initial hidden state is 10, the
    # initial cell 11, and the weights from the cell to the gates (peepholes) are 18 to 20.
    layer = _layer(step)
    inputs = _emit_inputs(step, e, layer)
    recurrent = geometry.gate_matrix(step, (4, 5, 6, 17)[: layer.gates], layer.padded)
    weights, stored = e.weights(_recurrent(e, recurrent))
    steps = _Steps(step, e, layer, inputs, 10)
    real, x = steps.real, steps.x
    peepholes = [geometry.constant(step, index) for index in (18, 19, 20)]
    cell_bytes, cell_at = layer.batch * layer.units * 4, layer.places()["cell"]
    last_cell, last = (step.outputs[i] if i < len(step.outputs) else None for i in (1, 2))
    for number in range(layer.steps):
        kernel, storage = steps.kernel(number, weights, stored)
        # The cell before this step: the layer's operand for the first one, then work space.
        first = geometry.optional(step, 11)
        if number:
            old, old_storage = e.work(cell_at, cell_bytes), FLOAT
        else:
            assert first is not None
            old, old_storage = e.at(first), e.storage(first)
        kernel.memory("old", old, old_storage.c_type)
        kernel.memory("cell", e.work(cell_at, cell_bytes, writes=True), "float")
        kernel.floats(clip=geometry.clip(step, "cell_clip_threshold"))
        peeped = []
        for name, values in zip(("enter_peep", "forget_peep", "out_peep"), peepholes, strict=True):
            peeped.append("0.0f" if values is None else steps.load(name, "u"))
            if values is not None:
                kernel.memory(name, e.constant(np.asarray(values, np.float32)), "float")
        store = _outputs(e, kernel, steps, number, last, "last")
        if number == layer.steps - 1 and last_cell is not None:
            kernel.memory("last_cell", e.at(last_cell, writes=True), e.storage(last_cell).c_type)
            store.append(steps.store("last_cell", "c", e.storage(last_cell)))
        entering = "1.0f - forget" if layer.is_coupled else _gate(f"{x(3)} + s3 + c * {peeped[0]}")
        after = [
            f"{real} c = {steps.load('old', storage=old_storage)};",
            f"{real} forget = {_gate(f'{x(0)} + s0 + c * {peeped[1]}')};",
            f"{real} enter = {entering};",
            f"c = forget * c + enter * tanh({x(1)} + s1);",
            f"c = c < -clip ? ({real})(-clip) : (c > clip ? ({real})(clip) : c);",
            steps.store("cell", "c"),
            f"{real} h_new = {_gate(f'{x(2)} + s2 + c * {peeped[2]}')} * tanh(c);",
            *store,
        ]
        steps.launch("lstm", kernel, "h", storage, stored, layer.gates, after)


def _emit_gru(step: Step, e: KernelEmitter) -> None:
    """Emit a GRU. Its reset gate applies to the previous hidden state, or to the product with it (linear)."""
    # The latter takes one launch for each step of the sequence. The former takes two, because the product needs all
    # units of the hidden state after the reset. Operands are numbered as QNN's Gru: recurrent weights are 4 to 6, the
    # new gate's recurrent bias is 12, and the initial hidden state is 13.
    layer = _layer(step)
    linear, padded = bool(step.params["linear_before_reset"]), layer.padded
    steps = _Steps(step, e, layer, _emit_inputs(step, e, layer), 13)
    real, x = steps.real, steps.x
    last = step.outputs[1] if len(step.outputs) > 1 else None
    weights, stored = e.weights(_recurrent(e, geometry.gate_matrix(step, (4, 5, 6) if linear else (4, 5), padded)))
    new_weights, new_stored = (
        (weights, stored) if linear else e.weights(_recurrent(e, geometry.gate_matrix(step, (6,), padded)))
    )
    new_bias = e.constant(geometry.gate_biases(step, ((12,),), padded))
    held_bytes, held_at = layer.batch * layer.units * 4, layer.places()["held"]
    cell_at = layer.places()["cell"]
    for number in range(layer.steps):
        kernel, storage = steps.kernel(number, weights, stored)
        old = steps.load("h", storage=storage)
        if linear:
            kernel.memory("new_bias", new_bias, "float")
            after = [
                f"{real} update = {_gate(f'{x(0)} + s0')}, reset = {_gate(f'{x(1)} + s1')};",
                f"{real} fresh = tanh({x(2)} + reset * (s2 + {steps.load('new_bias', 'u')}));",
                f"{real} h_new = update * ({old} - fresh) + fresh;",
                *_outputs(e, kernel, steps, number, last, "last"),
            ]
            steps.launch("gru", kernel, "h", storage, stored, 3, after)
            continue
        kernel.memory("held", e.work(held_at, held_bytes, writes=True), "float")
        kernel.memory("kept", e.work(cell_at, held_bytes, writes=True), "float")
        after = [
            steps.store("kept", _gate(f"{x(0)} + s0")),
            steps.store("held", f"{_gate(f'{x(1)} + s1')} * {old}"),
        ]
        steps.launch("gru_gates", kernel, "h", storage, stored, 2, after)
        kernel, storage = steps.kernel(number, new_weights, new_stored)
        kernel.memory("held", e.work(held_at, held_bytes), "float")
        kernel.memory("kept", e.work(cell_at, held_bytes), "float")
        after = [
            f"{real} update = {steps.load('kept')}, fresh = tanh({x(2)} + s0);",
            f"{real} h_new = update * ({steps.load('h', storage=storage)} - fresh) + fresh;",
            *_outputs(e, kernel, steps, number, last, "last"),
        ]
        steps.launch("gru_new", kernel, "held", FLOAT, new_stored, 1, after)


def _work(step: Step, traits: DeviceTraits) -> int:
    """Return the bytes of work space, which are the same on every device."""
    return _layer(step).places()["end"]


def _refuses(step: Step) -> str | None:
    """Return why a recurrent layer cannot be executed, or None."""
    if step.op == "Lstm" and geometry.optional(step, 22) is not None:
        return "a projection in[22] is not supported"
    return geometry.refuses_recurrent(step)


LOWERINGS: dict[str, KernelLowering] = {
    "Lstm": KernelLowering(_emit_lstm, _work, _refuses),
    "Gru": KernelLowering(_emit_gru, _work, _refuses),
}
