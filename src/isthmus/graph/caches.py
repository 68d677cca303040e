"""Caches of keys and values among the inputs and outputs of graphs, and how many tokens they hold.

A client keeps a cache between executions: an input has the columns of earlier tokens, an output those of new ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from isthmus.graph.info import GraphInfo, TensorInfo

_CACHES = {"past", "present", "cache"}
_SIDES = {"in", "out", "input", "output", "past", "present"}


@dataclass(frozen=True)
class GraphCache:
    """A cache in one graph.

    - `name`: what the names of its input and its output have in common.
    - `bits`: the bits of an element.
    - `nbytes`: the bytes of input and output together.
    - `tokens`: the tokens whose columns input and output have together, which is the context length of the graph; None
      if the shapes do not tell.
    """

    name: str
    bits: int
    nbytes: int
    tokens: int | None


def caches_of(graphs: Sequence[GraphInfo]) -> list[list[GraphCache]]:
    """Return the caches of each graph of a set.

    A cache is an input and an output of one graph of one element type. Their names differ only in ``in`` and ``out`` or
    ``past`` and ``present``, and have one of the words ``past``, ``present`` and ``cache``. Their shapes are equal, or
    differ along one axis, which is that of the tokens. In the other graphs, tensors of that name are the same cache,
    also where one has only the output, as a graph for the first tokens of a sentence.
    """
    axes: dict[str, set[int]] = {}
    for graph in graphs:
        for name, first, second in _pairs(graph):
            axes.setdefault(name, set()).update(_differing(first, second))
    return [list(_caches_of(graph, axes)) for graph in graphs]


def _caches_of(graph: GraphInfo, axes: dict[str, set[int]]) -> Iterator[GraphCache]:
    """Yield a graph's caches; `axes` has the axes along which those of the set vary, by name."""
    named = _by_name(graph.tensors)
    for name, varying in axes.items():
        tensors = named.get(name, [])
        if not tensors:
            continue
        # Two axes would be two different caches of one name in the set.
        [axis] = varying if len(varying) == 1 else [len(tensors[0].dims)]
        has_axis = all(axis < len(each.dims) for each in tensors)
        tokens = sum(each.dims[axis] for each in tensors) if has_axis else None
        yield GraphCache(name, 8 * tensors[0].dtype.itemsize, sum(each.nbytes for each in tensors), tokens)


def _pairs(graph: GraphInfo) -> Iterator[tuple[str, TensorInfo, TensorInfo]]:
    """Yield the caches that a graph has as an input and an output: the common name, and both."""
    outputs = _by_name(graph.outputs)
    for name, [first, *more] in _by_name(graph.inputs).items():
        others = outputs.get(name, [])
        if more or len(others) != 1:
            continue
        [second] = others
        alike = first.dtype == second.dtype and len(first.dims) == len(second.dims)
        if alike and len(_differing(first, second)) <= 1:
            yield name, first, second


def _by_name(tensors: Iterable[TensorInfo]) -> dict[str, list[TensorInfo]]:
    """Return the tensors whose names have a word for a cache, by what an input and an output have in common."""
    by_name: dict[str, list[TensorInfo]] = {}
    for tensor in tensors:
        if _CACHES & set(_words(tensor.name)):
            by_name.setdefault(_common_name(tensor.name), []).append(tensor)
    return by_name


def _differing(first: TensorInfo, second: TensorInfo) -> set[int]:
    """Return the axes along which two shapes of one rank differ."""
    return {axis for axis, (a, b) in enumerate(zip(first.dims, second.dims, strict=True)) if a != b}


def _common_name(name: str) -> str:
    """Return a name without the words in which an input and an output of a cache differ.

    >>> _common_name("past_key_0_in") == _common_name("past_key_0_out")
    True
    >>> _common_name("past_key_values.0.key") == _common_name("present.0.key")
    True
    """
    return "_".join(word for word in _words(name) if word not in _SIDES)


def _words(name: str) -> list[str]:
    """Return the words of a name. Exporters call the past ``past_key_values`` where the present has no such words."""
    return re.findall(r"[a-z0-9]+", name.lower().replace("past_key_values", "past"))
