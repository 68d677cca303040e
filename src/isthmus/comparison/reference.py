"""References to compare a model with: its format's runtime, another file, another backend, or another float type."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from isthmus.backends.seam import registry
from isthmus.comparison.execution import GraphRunner, keep, to_stored
from isthmus.comparison.subject import Arrays, ModelOperation, Subject, open_model, read_model
from isthmus.comparison.values import reals
from isthmus.errors import QnnError, did_you_mean, invalid_argument
from isthmus.graph import DataType, Graph

FLOAT_TYPES = {"fp32": DataType.FLOAT_32, "fp16": DataType.FLOAT_16, "bf16": DataType.BFLOAT_16}
"""The float types to compare with, by the names of options."""
_SUFFIXES = (".onnx", ".tflite")


@dataclass(frozen=True)
class Reference:
    """The other side of a comparison.

    - `run`: computes the model's tensors from the inputs: called with the inputs, and with the names of the graph's
      tensors that the model itself has when it runs.
    - `unit`: the unit roundoff of the floats that it computes with; 0 for that of the model's own types.
    - `other`: the model that computes the reference, if it is another file.
    - `name`: the float type or backend that `find_reference` was called with; None otherwise.
    """

    title: str
    run: Callable[[Arrays, Iterable[str]], dict[str, np.ndarray]]
    unit: float = 0.0
    other: Subject | None = None
    name: str | None = None


def find_reference(subject: Subject, against: str | os.PathLike[str] | None, backend: str, threads: int) -> Reference:
    """Return what a model is to be compared with.

    - `against`: none for the format's own runtime; a float type ("fp16"); a model file; or the name of a backend.
    - `backend`, `threads`: the backend that runs the model, and the threads it uses.
    """
    if against is None:
        return Reference(subject.runtime, lambda feeds, observed: subject.reference(feeds))
    name = os.fspath(against)
    if name in FLOAT_TYPES:
        return _other_type(subject, name, backend, threads)
    if Path(name).suffix in _SUFFIXES or Path(name).is_file():
        source = subject.source
        other = open_model(replace(source, path=Path(name)))
        _check_inputs(subject, other)
        title = f"{Path(name).name} in {other.runtime}"
        return Reference(title, lambda feeds, observed: other.reference(_convert(subject, other, feeds)), other=other)
    names = (*registry.names(), *FLOAT_TYPES)
    if name not in names:
        rule = f"must be a model file, a float type or a backend: {', '.join(names)}"
        raise invalid_argument(f"--against {name}", rule, did_you_mean(name, names))
    entry = registry.entry(name)
    return Reference(
        f"backend {entry.name}",
        lambda feeds, observed: _run_here(subject, feeds, observed, entry.name, None, threads),
        entry.float_type.roundoff,
        name=name,
    )


def recompute(other: Subject, target: str, given: Arrays, others: Arrays) -> np.ndarray | None:
    """Compute a tensor of another model from other values of some of its tensors.

    - `given`: the values from which it is computed.
    - `others`: the values of the model's own run, for inputs that are needed besides.
    """
    writers = {name: each for each in other.operations for name in each.outputs}
    needed: dict[int, ModelOperation] = {}
    feeds: dict[str, np.ndarray] = {}
    pending = [target]
    while pending:
        name = pending.pop()
        if name != target and (name in given or (name not in writers and name in others)):
            feeds[name] = given[name] if name in given else others[name]
        elif name in writers and writers[name].index not in needed:
            needed[writers[name].index] = writers[name]
            pending += writers[name].inputs
    if not needed:
        return None
    try:
        data = other.extract([needed[index] for index in sorted(needed)], feeds, [target])
        return read_model(replace(other.source, shapes=None), data).reference(feeds).get(target)
    except QnnError:
        return None


def _check_inputs(subject: Subject, other: Subject) -> None:
    """Refuse another model whose inputs cannot take those of a model, and say which differ."""
    dims = {tensor.name: tensor.dims for tensor in subject.compose().graph.inputs}
    name = subject.source.path.name
    differences = []
    for tensor in other.compose().graph.inputs:
        if tensor.name not in dims:
            differences.append(f"it has an input '{tensor.name}' {list(tensor.dims)}, '{name}' has not")
            continue
        own_dims = dims[tensor.name]
        # A dimension that a file leaves open is 1 here, and any size in its runtime.
        fits = (own in (1, size) for own, size in zip(tensor.dims, own_dims, strict=False))
        if tensor.rank != len(own_dims) or not all(fits):
            shapes = f"{list(tensor.dims)}, in '{name}' {list(own_dims)}"
            differences.append(f"its input '{tensor.name}' is {shapes}")
    if differences:
        what = f"--against {other.source.path}"
        raise invalid_argument(what, "; ".join(differences), "Compare models with equal inputs.")


def _convert(subject: Subject, other: Subject, feeds: Arrays) -> dict[str, np.ndarray]:
    """Return a model's inputs for another one: as real numbers where the other has floats and the model fixed point."""
    types = {tensor.name: tensor.dtype for tensor in other.compose().graph.inputs}
    return {
        tensor.name: reals(tensor, feeds[tensor.name])
        if types.get(tensor.name, tensor.dtype).is_float
        else feeds[tensor.name]
        for tensor in subject.compose().graph.inputs
    }


def _other_type(subject: Subject, name: str, backend: str, threads: int) -> Reference:
    """Return the same model with its floats in another type, on the same backend."""
    dtype = FLOAT_TYPES[name]
    return Reference(
        f"{name} on {backend}",
        lambda feeds, observed: _run_here(subject, feeds, observed, backend, dtype, threads),
        dtype.roundoff,
        name=name,
    )


def _store_floats(graph: Graph, dtype: DataType) -> None:
    """Give every float tensor of a graph another float type, with its constants rounded to it."""
    tensors = dict.fromkeys((*graph.tensors.values(), *(t for node in graph.nodes for t in node.outputs)))
    for tensor in tensors:
        if tensor.dtype.is_float and tensor.dtype is not DataType.FLOAT_64:
            if tensor.data is not None:
                tensor.data = dtype.encode(tensor.dtype.decode(tensor.data))
            tensor.dtype = dtype


def _run_here(
    subject: Subject, feeds: Arrays, observed: Iterable[str], backend: str, dtype: DataType | None, threads: int
) -> dict[str, np.ndarray]:
    """Run the model's graph, with floats of another type if given; return its tensors in the model's axis order."""
    composition = subject.compose()
    graph = composition.graph
    if dtype is not None:
        _store_floats(graph, dtype)
    keep(graph, observed)
    inputs = {tensor.name: to_stored(feeds[tensor.name], tensor) for tensor in graph.inputs}
    with GraphRunner(graph, backend, threads=threads) as runner:
        results = runner.run(inputs)
    tensors = graph.tensors
    found = {
        name: place.to_model(tensors[place.tensor].dtype.decode(results[place.tensor]))
        for name, place in composition.stored.items()
        if place.tensor in results
    }
    return {**feeds, **found}
