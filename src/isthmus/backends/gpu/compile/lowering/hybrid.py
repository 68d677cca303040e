"""Products of float activations with constant 8-bit weights, as LiteRT executes them.

LiteRT rounds the activations to 8 bits while the model runs, each row by its own range, and the rounding is visible in
the results. A row is a whole image where the windows of a convolution overlap. Here each row is replaced in work space
by its rounded values, and the product is computed in floats.
"""

from __future__ import annotations

from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter, KernelLowering
from isthmus.backends.gpu.compile.traits import DeviceTraits
from isthmus.graph import DataType, Tensor, TensorType
from isthmus.prepare.geometry.fixed_point import is_hybrid
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.windows import window_of
from isthmus.prepare.schedule import Step

# Work-items of a work-group on a GPU, which share a row.
_GROUP = 128
# The alignment in bytes of what follows the rounded operand in the work space.
_ALIGNMENT = 128


def _rows(step: Step) -> int:
    """Return how many rows have a range of their own: vectors, pixels that no two windows share, or images."""
    x = operand(step)
    if step.op == "FullyConnected":
        return x.elements // operand(step, 1).dims[1]
    window = window_of(step)
    apart = window.kernel == window.stride == (1, 1, 1) and not any(window.pad) and window.out == window.size
    return window.pixels if apart else x.dims[0]


def _bytes(step: Step) -> int:
    """Return the bytes of the rounded operand in the work space."""
    return -(-operand(step).elements * 4 // _ALIGNMENT) * _ALIGNMENT


def _emit_rounded(e: KernelEmitter, x: Tensor, goal: Tensor, rows: int) -> None:
    """Emit a kernel that rounds each row of floats to 256 steps of its range, one of which is 0."""
    kernel, length, storage = e.kernel(), x.elements // rows, e.storage(x)
    kernel.memory("x", e.at(x), storage.c_type)
    kernel.memory("y", e.at(goal, writes=True), "float")
    kernel.ints(length=length, rows=rows)
    step = _GROUP if e.gpu else 1
    loop = f"for (int k = {'lane' if e.gpu else '0'}; k < length; k += {step})"
    lines = [
        f"  int row = {'get_group_id(0)' if e.gpu else 'get_global_id(0)'};",
        "  float low = 0.0f, high = 0.0f;",
        *(["  int lane = get_local_id(0);", f"  local float lows[{_GROUP}], highs[{_GROUP}];"] if e.gpu else []),
        f"  {loop} {{ float u = {storage.load('x', 'row * length + k')}; low = fmin(low, u); high = fmax(high, u); }}",
    ]
    if e.gpu:
        lines += [
            "  lows[lane] = low; highs[lane] = high;",
            "  barrier(CLK_LOCAL_MEM_FENCE);",
            f"  for (int n = 0; n < {_GROUP}; ++n) {{ low = fmin(low, lows[n]); high = fmax(high, highs[n]); }}",
        ]
    lines += [
        "  float span = high - low, factor = span > 0.0f ? 255.0f / span : 1.0f;",
        "  float down = low * factor, up = high * factor;",
        "  float place = (-128.0f + down) + (127.0f + up) > 0.0f ? -128.0f - down : 127.0f - up;",
        "  float zero = rint(fmin(fmax(place, -128.0f), 127.0f)), scale = 1.0f / factor;",
        f"  {loop} {{",
        f"    float u = {storage.load('x', 'row * length + k')};",
        "    u = fmin(fmax(rint(u * factor) + zero, -128.0f), 127.0f);",
        "    y[row * length + k] = (u - zero) * scale;",
        "  }",
    ]
    kernel.launch("round_rows", lines, (rows * step,), (step,))


def hybrid(plain: KernelLowering) -> KernelLowering:
    """Return the lowering of a product that first rounds its left operand if the weights require it.

    `plain` is the lowering of the product itself.
    """

    def inner(step: Step) -> Step:
        """Return the step with a temporary tensor, which holds the rounded values, as its left operand."""
        x = operand(step)
        rounded = Tensor(x.name, TensorType.NATIVE, DataType.FLOAT_32, x.dims)
        return Step(step.op, step.name, [rounded, *step.inputs[1:]], step.outputs, step.params, step.clamp)

    def emit(step: Step, e: KernelEmitter) -> None:
        if not is_hybrid(step):
            plain.emit(step, e)
            return
        with_rounded = inner(step)
        goal = operand(with_rounded)
        e.place_in_work(goal, 0)
        _emit_rounded(e, operand(step), goal, _rows(step))
        with e.shift_work(_bytes(step)):
            plain.emit(with_rounded, e)

    def work(step: Step, traits: DeviceTraits) -> int:
        return plain.work(step, traits) + (_bytes(step) if is_hybrid(step) else 0)

    return KernelLowering(emit, work, plain.refuses, plain.takes_chain)
