"""Lowering of element-wise operations: functions, comparisons, selections and casts, all as walks."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.backends.gpu.compile.functions import INTEGERS, REALS, TESTS
from isthmus.backends.gpu.compile.lowering.chains import apply_links, declare, function_of, limit_links, links_of, plain
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter, KernelLowering, Link
from isthmus.backends.gpu.compile.lowering.walk import as_stored, emit_broadcast, emit_walk
from isthmus.backends.gpu.compile.storage import stored_kind
from isthmus.graph import DataType, Tensor
from isthmus.graph.operation import Operation
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.ops.elementwise import FUNCTIONS, NUMBERED
from isthmus.prepare.geometry.byte_arithmetic import ByteProduct, WeightedSum, byte_product, weighted_sum
from isthmus.prepare.geometry.fixed_point import quantization_of, stored_limits
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step


def is_real(tensor: Tensor) -> bool:
    """Return whether a tensor's elements represent reals that kernels compute with."""
    return _is_of_reals(tensor.dtype)


def _is_of_reals(dtype: DataType) -> bool:
    return dtype in (DataType.FLOAT_32, DataType.FLOAT_16) or dtype.is_fixed_point


def accepts(function: Operation, dtype: DataType) -> bool:
    """Return whether an elementwise function is computed in one of its data types."""
    if stored_kind(dtype) is None:
        return False
    if _is_of_reals(dtype) and (function.traits.limits is not None or function.name in (*REALS, "ReluMinMax")):
        return True
    return function.name in TESTS or (function.name in INTEGERS and dtype.is_integer)


def emit_links(e: KernelEmitter, links: Sequence[Link], output: Tensor) -> None:
    """Emit a chain of functions (links) as its own kernel. The first link names all its operands, since no value
    runs into it.
    """
    kernel = e.kernel()
    declare(kernel, links)
    # The operands by their names in the kernel, and those names by (index of the link, index of the operand in it).
    tensors: dict[str, Tensor] = {}
    names: dict[tuple[int, int], str] = {}
    for number, link in enumerate(links):
        for j, source in enumerate(link.operands):
            tensor = plain(source)
            if tensor is not None:
                names[number, j] = f"x{len(tensors)}"
                tensors[names[number, j]] = tensor

    def compute(width: int, loaded: dict[str, str]) -> list[str]:
        real = "float" if width == 1 else f"float{width}"
        return [f"{real} v;", *apply_links(links, width, lambda number, j: loaded[names[number, j]])]

    emit_broadcast(e, "chain", output, tensors, compute, kernel)


def _emit_reals(step: Step, e: KernelEmitter) -> None:
    """Emit a function of reals, with the chain behind it."""
    links = links_of(step)
    assert links is not None
    output = step.outputs[0]
    if e.chain is not None:
        links, output = [*links, *e.chain.links], e.chain.output
    emit_links(e, links, output)


def _emit_scalars(step: Step, e: KernelEmitter, text: str, flags: tuple[float, float] = (0.0, 0.0)) -> None:
    """Emit a function or a comparison of scalars of one type."""
    # `text` is its expression in `functions`, and `flags` are the parameters a and b.
    output, kernel = step.outputs[0], e.kernel()
    if "{a}" in text:
        kernel.floats(a=flags[0], b=flags[1])
    tensors = {f"x{i}": tensor for i, t in enumerate(step.inputs) if (tensor := plain(t)) is not None}
    computed = e.storage(output).computed

    def compute(width: int, loaded: dict[str, str]) -> list[str]:
        return [f"{computed} v = {text.format(*loaded.values(), a='a', b='b')};"]

    emit_broadcast(e, "function", output, tensors, compute, kernel, widest=1)


def _emit_bytes(step: Step, e: KernelEmitter, steps: WeightedSum | ByteProduct) -> None:
    """Emit a sum or product of 8-bit tensors, from stored values to stored values, rounded as on other engines."""
    # `steps` has the integer factors or the scale, and the zero points, that this arithmetic takes.
    output, kernel = step.outputs[0], e.kernel()
    least, most = stored_limits(step, output)
    kernel.ints(least=least, most=most, zero=quantization_of(output).zero_point)
    if isinstance(steps, WeightedSum):
        kernel.ints(first_factor=steps.factors[0], second_factor=steps.factors[1], bias=steps.bias, shift=steps.shift)
        text = "((({0}) * first_factor + ({1}) * second_factor + bias) >> shift)"
    else:
        kernel.ints(first_zero=steps.zeros[0], second_zero=steps.zeros[1])
        kernel.floats(scale=float(steps.scale))
        # Do not round by adding a large number: a compiler may fuse that addition with the product before it is
        # rounded.
        text = "convert_int{w}_rte(convert_float{w}((({0}) - first_zero) * (({1}) - second_zero)) * scale)"
    stored = e.storage(output).c_type

    def compute(width: int, loaded: dict[str, str]) -> list[str]:
        w = "" if width == 1 else str(width)
        value = text.format(*(f"convert_int{w}({name})" for name in loaded.values()), w=w)
        return [f"{stored}{w} v = convert_{stored}{w}(clamp({value} + zero, (int{w})least, (int{w})most));"]

    tensors = {f"x{i}": operand(step, i) for i in (0, 1)}
    emit_broadcast(e, "bytes", output, tensors, compute, kernel, stored=True)


def _bytes_of(step: Step) -> WeightedSum | ByteProduct | None:
    """Return how a sum, difference or product of 8-bit tensors is rounded, or None for other steps."""
    name = function_of(step)
    if name == "ElementWiseMultiply":
        return byte_product(step)
    if name in ("ElementWiseAdd", "ElementWiseSubtract"):
        return weighted_sum(step, name == "ElementWiseSubtract")
    return None


def _emit_function(step: Step, e: KernelEmitter) -> None:
    """Emit an element-wise function: a comparison, 8-bit arithmetic, a function of reals or one of integers."""
    name, steps = function_of(step), _bytes_of(step)
    if name in TESTS:
        flags = tuple(float(bool(step.params.get(key))) for key in ("detect_negative", "detect_positive"))
        _emit_scalars(step, e, TESTS[name], (flags[0], flags[1]))
    elif steps is not None:
        _emit_bytes(step, e, steps)
    elif is_real(operand(step)):
        _emit_reals(step, e)
    else:
        _emit_scalars(step, e, INTEGERS[name])


def _refuses_function(step: Step) -> str | None:
    """Return why a function cannot be executed, or None: operands must all be reals, or integers of one type."""
    name, x, output = function_of(step), operand(step), step.outputs[0]
    if name in TESTS:
        return None
    operands = [t for t in step.inputs if t is not None]
    if all(map(is_real, (*operands, output))):
        return None if links_of(step) is not None else f"{name} is not supported"
    kinds = {t.dtype for t in (*operands, output)}
    if name not in INTEGERS or len(kinds) > 1 or not x.dtype.is_integer or step.clamp is not None:
        return f"{name} of {' and '.join(t.describe() for t in operands)} is not supported"
    return None


def _emit_select(step: Step, e: KernelEmitter) -> None:
    """Emit a choice between two operands for each element."""
    output, links, kernel = step.outputs[0], limit_links(step.clamp), e.kernel()
    declare(kernel, links)
    tensors = {name: plain(operand(step, i)) for i, name in enumerate(("condition", "yes", "no"))}
    computed = e.storage(output).computed

    def compute(width: int, loaded: dict[str, str]) -> list[str]:
        """Return the OpenCL statements for one element (`widest=1`, so `width` is 1) of the loaded operands."""
        return [
            f"{computed} v = {loaded['condition']} ? {loaded['yes']} : {loaded['no']};",
            # A link is a function that is applied to the result v: here only the fused clamp, without operands to load.
            *apply_links(links, 1, lambda number, j: ""),
        ]

    emit_broadcast(e, "choose", output, tensors, compute, kernel, widest=1)


def _refuses_select(step: Step) -> str | None:
    """Return why a choice cannot be executed, or None: both operands are reals, or plain elements of one type."""
    yes, no, output = operand(step, 1), operand(step, 2), step.outputs[0]
    if is_real(output) != is_real(yes) or (not is_real(yes) and (yes.dtype is not no.dtype or step.clamp is not None)):
        return f"a choice between {yes.describe()} and {no.describe()} is not supported"
    return None


def _emit_cast(step: Step, e: KernelEmitter) -> None:
    """Emit a cast of stored numbers; the quantization of fixed-point tensors is ignored."""
    x, output, kernel = operand(step), step.outputs[0], e.kernel()
    links = limit_links(step.clamp)
    declare(kernel, links)
    source, goal = e.operand("x", x), e.operand("y", output, writes=True)
    source, goal = (as_stored(o) for o in (source, goal))
    computed = goal.storage.computed

    def compute(width: int, loaded: dict[str, str]) -> list[str]:
        """Return the OpenCL statements for one element (`widest=1`, so `width` is 1) of the loaded operand."""
        value = loaded["x"]
        if output.dtype is DataType.BOOL_8:
            value = f"{value} != 0"
        elif source.storage.real and not goal.storage.real:
            # Floats become integers as on other engines: rounded towards zero, by way of the widest integer.
            value = f"convert_{computed}(convert_long_sat_rtz({value}))"
        return [f"{computed} v = ({computed})({value});", *apply_links(links, 1, lambda number, j: "")]

    emit_walk(e, "cast", (x.elements,), goal, [source], compute, kernel, widest=1)


def _refuses_cast(step: Step) -> str | None:
    """Return why a cast cannot be executed, or None; limits are floats, so only a float result can have some."""
    if step.clamp is not None and step.outputs[0].dtype is not DataType.FLOAT_32:
        return f"a fused activation of {step.outputs[0].describe()} needs float32"
    return None


_FUNCTION = KernelLowering(_emit_function, refuses=_refuses_function, takes_chain=True)
LOWERINGS: dict[str, KernelLowering] = {
    **{name: _FUNCTION for name in FUNCTIONS if name in OPERATIONS},
    **dict.fromkeys((*NUMBERED, "Convert", "Quantize", "Dequantize", "Batchnorm"), _FUNCTION),
    "ElementWiseSelect": KernelLowering(_emit_select, refuses=_refuses_select),
    "Cast": KernelLowering(_emit_cast, refuses=_refuses_cast),
}
