"""Which tensors are stored as fp16: all that lose little by it, none that outputs depend on to the last digit."""

from __future__ import annotations

import numpy as np
import pytest
from prepare.interpreter import Builder
from support.plans import plan_graph

from isthmus.backends.gpu.mixed_precision import Fp16Tensor, PrecisionChoice, choice, choose, store_as_fp16, trial
from isthmus.graph import DataType, Graph, Tensor
from isthmus.prepare.planner import rewritten
from isthmus.prepare.work import Work

_generator = np.random.default_rng(7)


def floats(*dims: int) -> np.ndarray:
    return _generator.standard_normal(dims).astype(np.float32)


def dense(b: Builder, x: Tensor, columns: int, scale: float = 0.2) -> Tensor:
    return b.op("FullyConnected", x, floats(columns, x.dims[-1]) * np.float32(scale))


def steep() -> Graph:
    """A network whose output is a small difference of large numbers, and a branch without such a difference."""
    b = Builder()
    x = b.input(32, 64)
    large = b.op("ElementWiseSin", dense(b, x, 100, 4))
    little = b.op("ElementWiseMultiply", b.op("Tanh", dense(b, x, 100)), np.float32([1e-2]))
    both = b.op("ElementWiseAdd", b.op("ElementWiseMultiply", large, np.float32([1000])), little)
    return b.finish(b.op("ElementWiseSubtract", both, b.op("ElementWiseMultiply", large, np.float32([1000]))))


def plain() -> Graph:
    b = Builder()
    x = b.op("Relu", dense(b, b.input(16, 64), 128))
    return b.finish(b.op("Softmax", dense(b, x, 80)))


def chosen(graph: Graph) -> tuple[Work, PrecisionChoice]:
    work = rewritten(graph)
    return work, choose(work)


def test_where_fp16_loses_little_everything_is_fp16() -> None:
    work, made = chosen(plain())
    assert made.off < choice.MAX_ERROR
    assert not made.fp32
    assert {t for step in work.steps for t in step.outputs} - set(work.outputs) <= made.fp16
    assert all(t in made.fp16 for step in work.steps for t in step.inputs if t.is_static and t.elements > choice.SMALL)


def test_the_operands_of_a_small_difference_stay_fp32() -> None:
    work, made = chosen(steep())
    everything = made.fp16 | made.fp32
    assert max(choice._worst(each.errors(everything)) for each in trial.trials(work)) > 0.1
    assert made.off <= choice.MAX_ERROR
    [sum_of_both] = [step.outputs[0] for step in work.steps if step.op == "ElementWiseAdd"]
    assert sum_of_both in made.fp32
    [bounded] = [step.outputs[0] for step in work.steps if step.op == "Tanh"]
    assert bounded in made.fp16


def test_the_choice_is_the_same_every_time() -> None:
    graph = steep()
    assert len({frozenset(tensor.name for tensor in chosen(graph)[1].fp16) for _ in range(3)}) == 1


def test_values_that_fp16_may_not_hold_stay_fp32() -> None:
    b = Builder()
    x = b.op("ElementWiseMultiply", b.op("ElementWiseSin", b.input(8, 16)), np.float32([20000]))
    work, made = chosen(b.finish(b.op("Softmax", b.op("ElementWiseMultiply", b.op("Tanh", x), np.float32([0.3])))))
    [large] = [step.outputs[0] for step in work.steps if step.op == "ElementWiseMultiply" and step.inputs[1].data > 1]
    assert large in made.fp32


def test_constants_that_fp16_holds_are_fp16_and_small_ones_and_biases_are_fp32() -> None:
    b = Builder()
    exact, inexact = np.rint(floats(128, 64) * 8) / 64, floats(5000, 128) / 64
    bias, few = floats(5000), floats(1, 1)
    x = b.op("FullyConnected", b.input(2, 64), exact)
    x = b.op("FullyConnected", x, inexact, bias)
    _, made = chosen(b.finish(b.op("ElementWiseMultiply", b.op("ElementWiseSin", x), few)))
    held = [t for t in made.fp16 if t.is_static]
    assert sorted(t.dims for t in held) == [(128, 64), (5000, 128)]


def test_what_shares_bytes_with_an_input_or_output_is_stored_as_that_is() -> None:
    b = Builder()
    x = b.op("Reshape", b.input(4, 8), dims=(32,))
    graph = b.finish(b.op("Reshape", b.op("ElementWiseSin", b.op("ElementWiseSin", x)), dims=(8, 4)))
    work, made = chosen(graph)
    assert [step.op for step in work.ordered() if step.outputs[0] in made.fp16] == ["ElementWiseSin"]
    steps = plan_graph(graph, store=lambda w: store_as_fp16(w, choose(w).fp16)).steps
    assert [step.op for step in steps] == ["ElementWiseSin", "ElementWiseSin"]


def test_inputs_of_any_shape_and_type_are_made_up() -> None:
    b = Builder()
    scale, nothing, which = b.input(), b.input(0, 4), b.input(3, dtype=DataType.INT_32)
    rows = b.op("Gather", floats(2, 4), which, axis=0)
    scaled = b.op("ElementWiseSin", b.op("ElementWiseMultiply", rows, scale))
    _, made = chosen(b.finish(b.op("Softmax", scaled), b.op("ElementWiseSin", nothing)))
    assert made.off is not None


@pytest.mark.parametrize("bound", ["MAX_WORK", "MAX_BYTES"])
def test_a_graph_that_is_too_large_for_a_trial_is_fp16(monkeypatch, bound) -> None:
    monkeypatch.setattr(choice, bound, 0)
    _, made = chosen(steep())
    assert made.off is None
    assert not made.fp32


def test_a_graph_that_the_reference_refuses_is_fp16(monkeypatch) -> None:
    def fails(work: Work) -> list:
        raise IndexError("an index that leads nowhere")

    monkeypatch.setattr(choice, "trials", fails)
    _, made = chosen(steep())
    assert made.fp16
    assert not made.fp32


def test_a_constant_that_is_stored_as_fp16_has_values_that_fp16_holds() -> None:
    work, made = chosen(plain())
    store_as_fp16(work, made.fp16)
    constants = [t for step in work.steps for t in step.inputs if isinstance(t, Fp16Tensor) and t.is_static]
    assert constants
    for tensor in constants:
        assert tensor.nbytes == tensor.elements * 2
        assert np.array_equal(tensor.data, tensor.data.astype(np.float16))


class StrictTrial:
    """A trial whose outputs are near enough only if so many tensors or more are fp32, each with a loss of its own."""

    def __init__(self, work: Work, fp32: int) -> None:
        self.values = {t: np.ones(1, np.float32) for step in work.steps for t in (*step.inputs, *step.outputs) if t}
        self.losses_by_tensor: dict[Tensor, float] = {}
        self._fp32, self._all = fp32, 0

    def errors(self, fp16: frozenset[Tensor]) -> dict[Tensor, np.ndarray]:
        self._all = max(self._all, len(fp16))
        near = self._all - len(fp16) >= self._fp32
        return {next(iter(self.values)): np.array([(0.5 if near else 2.0) * choice.MAX_ERROR])}

    def losses(self, errors: object, tensors: list[Tensor]) -> dict[Tensor, float]:
        self.losses_by_tensor = {tensor: tensor.nbytes * 8.0**-place for place, tensor in enumerate(tensors)}
        return self.losses_by_tensor


@pytest.mark.parametrize("needed", [1, 2, 3])
def test_the_tensors_that_lose_most_are_fp32_until_outputs_are_near_enough(monkeypatch, needed) -> None:
    work = rewritten(steep())
    strict = StrictTrial(work, needed)
    monkeypatch.setattr(choice, "trials", lambda work: [strict])
    made = choose(work)
    assert made.off < choice.MAX_ERROR
    lost = {tensor: loss / tensor.nbytes for tensor, loss in strict.losses_by_tensor.items()}
    assert len(made.fp32) >= needed
    assert min(lost[t] for t in made.fp32) > max(lost[t] for t in lost if t in made.fp16)
    assert made.fp16 >= lost.keys() - made.fp32
