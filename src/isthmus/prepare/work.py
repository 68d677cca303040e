"""The mutable graph that passes rewrite: steps, and the writer and readers of each tensor.

Every change keeps both maps consistent, so that a rule finds its neighbours without searching the other steps. A change
also records the steps around it, because only there may another rule have become applicable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from isthmus.graph import DataType, Graph, Quantization, Tensor, TensorType
from isthmus.prepare.schedule import Step

T = TypeVar("T")


def post_order(roots: Iterable[T], needed: Callable[[T], Iterable[T]]) -> list[T]:
    """Order roots and all that they need depth first: each item after those that it needs, in their order.

    Examples
    --------
    >>> post_order(["y"], {"y": "ba", "b": "a", "a": ""}.__getitem__)
    ['a', 'b', 'y']
    """
    done: set[T] = set()
    order: list[T] = []
    for root in roots:
        stack = [root]
        while stack:
            item = stack[-1]
            missing = [] if item in done else [other for other in needed(item) if other not in done]
            stack.extend(reversed(missing))
            if not missing:
                stack.pop()
                if item not in done:
                    done.add(item)
                    order.append(item)
    return order


class Work:
    """A graph that is being rewritten.

    - `graph`: a finalized graph; it is not changed.
    - `steps`: each step with its rank in the order of the model; a new step takes the rank of the step that it
      replaces.
    - `updates`: for each state, its value after an execution.
    - `numerics`: the rounding mode of fixed-point results: that of the graph, unless another is given.
    """

    def __init__(self, graph: Graph, numerics: str | None = None) -> None:
        self.name = graph.name
        self.numerics = numerics or graph.numerics
        self.inputs = tuple(graph.inputs)
        self.outputs = tuple(graph.outputs)
        self.states = tuple(graph.states)
        self.updates: dict[Tensor, Tensor] = {graph.tensors[name]: value for name, value in graph.state_updates.items()}
        self.steps: dict[Step, float] = {}
        self._producer: dict[Tensor, Step] = {}
        self._consumers: dict[Tensor, dict[Step, None]] = {}
        # The steps around changes, in order; a dict serves as an ordered set.
        self._touched: dict[Step, None] = {}
        # Every name in use, and the last number that was appended to it.
        self._names: dict[str, int] = dict.fromkeys(graph.tensors, 0)
        self._of_model = frozenset(graph.tensors.values())
        self._outputs = set(self.outputs)
        for node in graph.nodes:
            self.add(node.op, node.name, node.inputs, node.outputs, node.params)
        self._touched.clear()

    def producer(self, tensor: Tensor | None) -> Step | None:
        """Return the step that writes a tensor; None for constants, graph inputs and states."""
        return self._producer.get(tensor) if tensor is not None else None

    def consumers(self, tensor: Tensor) -> list[Step]:
        """Return the steps that read a tensor."""
        return list(self._consumers.get(tensor, ()))

    def is_output(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a graph output."""
        return tensor in self._outputs

    def is_of_model(self, tensor: Tensor) -> bool:
        """Return whether the model has a tensor; the others were added by passes."""
        return tensor in self._of_model

    def is_kept(self, tensor: Tensor) -> bool:
        """Return whether a tensor is used by more than steps: by the client, or by a state that takes its value."""
        return tensor in self._outputs or tensor in self.updates.values()

    def sole_consumer(self, tensor: Tensor) -> Step | None:
        """Return the only step that reads a tensor, if there is no other use."""
        readers = self._consumers.get(tensor, {})
        return next(iter(readers)) if len(readers) == 1 and not self.is_kept(tensor) else None

    def sole_producer(self, tensor: Tensor | None) -> Step | None:
        """Return the step that writes a tensor, if exactly one step reads the tensor and there is no other use."""
        return self.producer(tensor) if tensor is not None and self.sole_consumer(tensor) is not None else None

    def add(
        self,
        op: str,
        name: str,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        params: Mapping[str, Any] | None = None,
        clamp: tuple[float, float] | None = None,
        near: Step | None = None,
    ) -> Step:
        """Add a step, at the rank of `near` or at the end."""
        step = Step(op, name, list(inputs), list(outputs), dict(params or {}), clamp)
        self.steps[step] = self.steps[near] if near is not None else float(len(self.steps))
        self._attach(step)
        return step

    def remove(self, step: Step) -> None:
        """Remove a step; its outputs then have no writer."""
        self._detach(step)
        del self.steps[step]

    def change(
        self,
        step: Step,
        *,
        op: str | None = None,
        inputs: Sequence[Tensor | None] | None = None,
        outputs: Sequence[Tensor] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        """Change some fields of a step."""
        self._detach(step)
        step.op = op or step.op
        step.inputs = list(step.inputs if inputs is None else inputs)
        step.outputs = list(step.outputs if outputs is None else outputs)
        step.params = dict(step.params if params is None else params)
        self._attach(step)

    def replace(
        self, step: Step, op: str, inputs: Sequence[Tensor | None], params: Mapping[str, Any] | None = None
    ) -> None:
        """Compute the outputs of a step with another operation."""
        self.change(step, op=op, inputs=inputs, params=params or {})

    def set_clamp(self, step: Step, clamp: tuple[float, float] | None) -> None:
        """Limit the results of a step."""
        step.clamp = clamp
        self._touch(step)

    def reread(self, old: Tensor, new: Tensor) -> None:
        """Make everything that reads `old`, including states, read `new`."""
        for step in self.consumers(old):
            self.change(step, inputs=[new if t is old else t for t in step.inputs])
        for state, value in self.updates.items():
            if value is old:
                self.updates[state] = new

    def absorb(self, first: Step, second: Step) -> None:
        """Make `first` write the outputs of `second`, and remove `second`."""
        outputs = second.outputs
        self.remove(second)
        self.change(first, outputs=outputs)

    def bypass(self, step: Step) -> None:
        """Remove a step whose result equals its first input; keep it as a copy if the result has its own memory.

        A graph output is then written by the step that wrote the input, if there is one.
        """
        source, result = step.input(), step.outputs[0]
        writer = self.producer(source)
        if not self.is_output(result):
            self.remove(step)
            self.reread(result, source)
        elif writer is not None and source.type is TensorType.NATIVE:
            self.remove(step)
            self.reread(source, result)
            self.change(writer, outputs=[result if t is source else t for t in writer.outputs])
        elif step.op != "Reshape":
            self.replace(step, "Reshape", [source])

    def native(
        self, name: str, dims: Sequence[int], dtype: DataType, quantization: Quantization | None = None
    ) -> Tensor:
        """Return a new intermediate tensor."""
        return Tensor(self._fresh(name), TensorType.NATIVE, dtype, tuple(dims), quantization)

    def alike(self, name: str, like: Tensor) -> Tensor:
        """Return a new intermediate tensor that is stored in the same way as another."""
        return type(like)(self._fresh(name), TensorType.NATIVE, like.dtype, like.dims, like.quantization)

    def constant(
        self, name: str, value: np.ndarray, quantization: Quantization | None = None, dtype: DataType | None = None
    ) -> Tensor:
        """Return a new constant; fixed point if a quantization is given."""
        value = np.ascontiguousarray(value).reshape(np.shape(value))
        if dtype is None:
            dtype = DataType.of(value.dtype) if quantization is None else DataType.fixed_point(value.dtype)
        return Tensor(self._fresh(name), TensorType.STATIC, dtype, value.shape, quantization, value)

    def floats(self, name: str, numbers: np.ndarray, dtype: DataType) -> Tensor:
        """Return a new constant of numbers, rounded to a type of floats."""
        return self.constant(name, dtype.encode(numbers), dtype=dtype)

    def with_rank(self, tensor: Tensor, rank: int) -> Tensor:
        """Return a constant with the same elements and another rank, which adds or removes first dimensions of 1."""
        assert tensor.data is not None
        added = rank - tensor.rank
        dims = (1,) * added + tensor.dims[max(-added, 0) :]
        quantization = tensor.quantization
        if quantization is not None and quantization.axis is not None:
            quantization = replace(quantization, axis=quantization.axis + added)
        result = self.constant(tensor.name, tensor.data.reshape(dims), quantization, tensor.dtype)
        # The elements that the constant was dequantized from get the rank too, so that they stay usable in its place.
        result.source = None if tensor.source is None else self.with_rank(tensor.source, rank)
        return result

    def insert(
        self,
        op: str,
        near: Step,
        inputs: Sequence[Tensor | None],
        dims: Sequence[int],
        like: Tensor,
        params: Mapping[str, Any] | None = None,
        quantization: Quantization | None = None,
    ) -> Tensor:
        """Add a step at the rank of `near`, and return its new output with these dimensions and the type of `like`."""
        result = self.native(near.name, dims, like.dtype, quantization or like.quantization)
        self.add(op, result.name, inputs, [result], params, near=near)
        return result

    def add_state(self, name: str, dims: Sequence[int], like: Tensor) -> Tensor:
        """Return a new state with the type of `like`, 0 before the first execution; `updates` takes its next value."""
        quantization = like.quantization if like.dtype.is_fixed_point else None
        state = Tensor(self._fresh(name), TensorType.APP_READWRITE, like.dtype, tuple(dims), quantization)
        self.states += (state,)
        return state

    def ordered(self) -> list[Step]:
        """Return the steps ordered after the steps that they read from, close to the order of the model."""
        roots = sorted(self.steps, key=self.steps.__getitem__)
        return post_order(roots, lambda step: filter(None, map(self.producer, step.inputs)))

    @property
    def has_changed(self) -> bool:
        """Whether anything has changed since the last call of `take_touched`."""
        return bool(self._touched)

    def take_touched(self) -> list[Step]:
        """Return the steps around all changes since the last call, and clear the record."""
        touched = [step for step in self._touched if step in self.steps]
        self._touched.clear()
        return touched

    def _fresh(self, name: str) -> str:
        """Return a new name: this one, with a number appended if it is in use."""
        base = name
        while name in self._names:
            self._names[base] += 1
            name = f"{base}.{self._names[base]}"
        self._names[name] = 0
        return name

    def _attach(self, step: Step) -> None:
        """Enter a step as reader and writer of its tensors."""
        for tensor in step.inputs:
            if tensor is not None:
                self._consumers.setdefault(tensor, {})[step] = None
        for tensor in step.outputs:
            self._producer[tensor] = step
        self._touch(step)

    def _detach(self, step: Step) -> None:
        """Remove a step as reader and writer of its tensors; the reverse of `_attach`."""
        self._touch(step)
        for tensor in step.inputs:
            if tensor is not None:
                self._consumers[tensor].pop(step, None)
        for tensor in step.outputs:
            self._producer.pop(tensor, None)

    def _touch(self, step: Step) -> None:
        """Record a step and its neighbours: the steps that write what it reads, or read what it reads or writes."""
        touched = self._touched
        touched[step] = None
        for tensor in step.inputs:
            if tensor is not None:
                writer = self._producer.get(tensor)
                if writer is not None:
                    touched[writer] = None
                if not tensor.is_static:
                    touched.update(self._consumers.get(tensor, {}))
        for tensor in step.outputs:
            touched.update(self._consumers.get(tensor, {}))
