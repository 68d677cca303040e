"""The choice of tensors to store as fp16: as many as possible, as long as outputs stay close to those of fp32.

A graph is first tried with everything in fp16. If its outputs are off by too much, gradients tell how much of that the
rounding of each tensor causes. The tensors that cause most per byte stay fp32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from isthmus.backends.gpu.mixed_precision.fp16 import is_exact_in_fp16
from isthmus.backends.gpu.mixed_precision.trial import PrecisionTrial, trials
from isthmus.errors import QnnError
from isthmus.graph import DataType, Tensor, TensorType
from isthmus.graph.ops import OPERATIONS
from isthmus.prepare.storage import names_anew
from isthmus.prepare.work import Work

SMALL = 4096
"""Constants of up to this many elements, such as channel factors and small filters, would lose more than they save."""
MAX_ERROR = 1.25e-2
"""The largest error of outputs in a trial, as a fraction of their largest value; on other inputs it may be a little
larger.
"""
MAX_VALUE = 16384.0
"""The largest value in a trial that is trusted to stay below the maximum of fp16, 65,504."""
MAX_WORK = 1 << 30
"""The largest number of multiplications of a graph that is tried."""
MAX_BYTES = 1 << 27
"""The largest size in bytes of all results of a graph that is tried; a trial keeps them."""
ROUNDS = 3
"""The largest number of times that a choice is tried."""


@dataclass(frozen=True)
class PrecisionChoice:
    """The choice of tensors that are stored as fp16.

    - `fp16`: Intermediates and constants that are stored as fp16.
    - `fp32`: Tensors that could have been fp16, but would have lost too much.
    - `off`: The error of outputs in the last trial, as a fraction of the largest value; None if there was no trial.
    """

    fp16: frozenset[Tensor]
    fp32: frozenset[Tensor]
    off: float | None = None


# Tensors that are stored alike, because they may share their bytes.
_Group = tuple[Tensor, ...]


def choose(work: Work) -> PrecisionChoice:
    """Choose which tensors are stored as fp16.

    Constants that fp16 holds exactly are always stored so. If the graph cannot be tried, all others are too.
    """
    exact = {tensor for tensor in _constants(work) if tensor.data is not None and is_exact_in_fp16(tensor.data)}
    groups = [*_intermediates(work), *((tensor,) for tensor in _constants(work) if tensor not in exact)]
    # The reference refuses what engines execute unchecked, such as an index out of range.
    with np.errstate(all="ignore"), suppress(QnnError, ArithmeticError, LookupError, ValueError):
        if groups and _may_try(work):
            return _choose_by_trial(trials(work), exact, groups)
    return _choice(exact, groups, ())


def _choice(exact: Iterable[Tensor], groups: Iterable[_Group], fp32: Iterable[_Group]) -> PrecisionChoice:
    """Return the choice that stores `exact` tensors, and all `groups` except those in `fp32`, as fp16."""
    in_fp32 = frozenset(tensor for group in fp32 for tensor in group)
    fp16 = frozenset(tensor for group in groups for tensor in group) - in_fp32
    return PrecisionChoice(fp16 | frozenset(exact), in_fp32)


def _choose_by_trial(tried: list[PrecisionTrial], exact: set[Tensor], groups: list[_Group]) -> PrecisionChoice:
    """Choose as many bytes of fp16 as the errors of trials allow."""
    # Each group gets a share of the squared error that fp16 causes. Groups are fp16 in the order of their shares per
    # byte until the shares add up to what is allowed. The sum is an estimate, so the choice is tried, and less is
    # allowed if its error is too large.
    large = [g for g in groups if any(_largest(trial, tensor) > MAX_VALUE for trial in tried for tensor in g)]
    others = [group for group in groups if group not in large]
    choice = _choice(exact, groups, large)
    errors = [trial.errors(choice.fp16) for trial in tried]
    worst = [_worst(each) for each in errors]
    if max(worst) <= MAX_ERROR:
        return replace(choice, off=max(worst))
    shares = dict.fromkeys(others, 0.0)
    for trial, each, off in zip(tried, errors, worst, strict=True):
        if off > MAX_ERROR:
            losses = trial.losses(each, [tensor for group in others for tensor in group])
            total = sum(losses.values()) or 1.0
            for group in others:
                # In squares of the limit, because random errors add up in squares.
                shares[group] += sum(losses[t] for t in group) / total * (min(off, 1.0) / MAX_ERROR) ** 2
    order = sorted(others, key=lambda group: shares[group] / max(tensor.nbytes for tensor in group))
    allowed = 1.0
    for _ in range(ROUNDS):
        # The first `count` groups are fp16: as many as have no more than the allowed sum of shares.
        sums = np.cumsum([shares[group] for group in order])
        count = int(np.searchsorted(sums, allowed, "right"))
        choice = _choice(exact, groups, [*large, *order[count:]])
        off = max(_worst(trial.errors(choice.fp16)) for trial in tried)
        if off <= MAX_ERROR:
            break
        allowed /= 4
    return replace(choice, off=off)


def _worst(errors: Mapping[Tensor, np.ndarray]) -> float:
    """Return the largest error of any element of any output."""
    return max((float(np.abs(error).max(initial=0)) for error in errors.values()), default=0.0)


def _largest(trial: PrecisionTrial, tensor: Tensor) -> float:
    """Return a tensor's largest magnitude in a trial; infinity if one of its values is not a number."""
    value = np.abs(trial.values[tensor]).max(initial=0)
    return float(value) if np.isfinite(value) else inf


def _constants(work: Work) -> list[Tensor]:
    """List the constants that could be fp16: neither small ones nor biases, which are added once to sums in fp32."""
    may_be_fp16: dict[Tensor, bool] = {}
    for step in work.ordered():
        # Operand 2 of a product is its bias.
        biased = OPERATIONS[step.op].traits.product is not None
        for index, tensor in enumerate(step.inputs):
            if tensor is not None and tensor.is_static and tensor.dtype is DataType.FLOAT_32:
                fits = tensor.elements > SMALL and not (biased and index == 2)
                may_be_fp16[tensor] = may_be_fp16.get(tensor, True) and fits
    updates = set(work.updates.values())
    return [tensor for tensor, fits in may_be_fp16.items() if fits and tensor not in updates]


def _intermediates(work: Work) -> Iterator[_Group]:
    """Yield the intermediates that could be fp16; those that may share bytes form one group."""
    # Tensors that may share bytes with an input, an output or a state are left out: they are stored as that is.
    group_of: dict[Tensor, set[Tensor]] = {}
    steps = work.ordered()
    for step in steps:
        for tensor in (*step.inputs, *step.outputs):
            if tensor is not None and not tensor.is_static:
                group_of.setdefault(tensor, {tensor})
        if names_anew(step):
            # The result has the operand's bytes: their groups become one.
            tied = [tensor for tensor in (*step.inputs, *step.outputs) if tensor is not None and not tensor.is_static]
            for tensor in tied[1:]:
                one, other = group_of[tied[0]], group_of[tensor]
                if one is not other:
                    one |= other
                    group_of.update(dict.fromkeys(other, one))
    updates = set(work.updates.values())
    for group in {id(group): group for group in group_of.values()}.values():
        members = tuple(tensor for tensor in group_of if tensor in group)
        if all(t.type is TensorType.NATIVE and t.dtype is DataType.FLOAT_32 and t not in updates for t in members):
            yield members


def _may_try(work: Work) -> bool:
    """Return whether a graph is small enough to be computed in numpy a few times."""
    multiplications = nbytes = 0
    for step in work.steps:
        nbytes += sum(tensor.nbytes for tensor in step.outputs)
        product = OPERATIONS[step.op].traits.product
        weights = step.inputs[1] if len(step.inputs) > 1 else None
        if product is not None and weights is not None:
            # Every element of the result takes one multiplication for each weight of its own channel.
            channels = step.outputs[0].dims[-1] if step.outputs[0].rank else 1
            multiplications += step.outputs[0].elements * weights.elements // max(channels, 1)
    return multiplications <= MAX_WORK and nbytes <= MAX_BYTES
