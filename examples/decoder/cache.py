"""A decoder's tensors and cache of keys and values in one buffer that is shared with the accelerator.

Every input and output of every graph is a piece of one rpcmem buffer, registered with its descriptor and offset. So the
accelerator reads and writes what this process reads and writes, and nothing is copied but the new columns of the
cache, by `Runner` itself. There are two ways to put them among the others:

- `smart-mask`: the cache stays where it is. The column of token 7 becomes column 7, and the mask shows it.
- `shift-pointer`: new columns go behind the last one, and the tensor begins one column later than before: it is a piece
  of the same buffer at another offset. The mask shows the last columns. All offsets are bound beforehand.

Graphs of several context lengths share the cache: short sentences are computed by the graph for short ones, and when
the sentence becomes too long for it, the cache is arranged for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from model import ROPE_THETA

from isthmus import qnn
from isthmus.graph import TensorInfo
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor, htp

SMART_MASK, SHIFT_POINTER = UPDATES = ("smart-mask", "shift-pointer")
ALIGNMENT = 64
HIDDEN = -1000
"""What a mask adds to the scores of tokens that are not seen."""


class Buffer:
    """One rpcmem buffer, whose pieces are registered for tensors of a context."""

    def __init__(self, context: qnn.Context, nbytes: int) -> None:
        self.context = context
        self.memory = rpcmem.alloc(rpcmem.HEAP_ID_SYSTEM, rpcmem.DEFAULT_FLAGS, nbytes)
        self._handles: dict[tuple[Any, ...], qnn.MemHandle] = {}

    def view(self, info: TensorInfo, offset: int) -> np.ndarray:
        """Return a tensor's piece as an array."""
        return np.frombuffer(self.memory, info.dtype.numpy, np.prod(info.dims), offset).reshape(info.dims)

    def tensors(self, offsets: Mapping[TensorInfo, int]) -> list[ClientTensor]:
        """Return tensors with the memory handles of their pieces; each piece is registered once."""
        keys = {(offset, info.dims, info.dtype): offset for info, offset in offsets.items()}
        new = [key for key in keys if key not in self._handles]
        descriptors = [
            MemDescriptor(dims, dtype, DescriptorType.CUSTOM, custom=self._place(at)) for at, dims, dtype in new
        ]
        self._handles |= zip(new, self.context.mem_register(descriptors) if new else (), strict=True)
        return [
            ClientTensor(info.name, mem_handle=handle)
            for info, handle in zip(offsets, (self._handles[key] for key in keys), strict=True)
        ]

    def _place(self, offset: int) -> htp.Descriptor:
        """Return where a piece is: size and descriptor of the whole buffer, and an offset."""
        return htp.Descriptor(self.memory.nbytes, rpcmem.to_fd(self.memory), offset)


@dataclass(frozen=True)
class Variant:
    """A graph for a number of tokens at once and a context length."""

    graph: qnn.Graph
    tokens: int
    context: int

    @property
    def past(self) -> int:
        """The number of columns of its cache."""
        return self.context - self.tokens


@dataclass(frozen=True)
class Bound:
    """A variant with its tensors in memory, and arrays of their pieces by name."""

    variant: Variant
    binding: qnn.Binding
    views: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class MaskLevels:
    """What a mask holds for tokens that are seen or not, and how many it shows (0: all)."""

    shown: int
    hidden: int
    window: int


class Runner:
    """A decoder that takes the likeliest token, one after the other.

    Parameters
    ----------
    context
        The context with the decoder's graphs.
    update
        One of `UPDATES`.
    window
        The tokens that a mask of a sliding window shows.
    """

    def __init__(self, context: qnn.Context, update: str = SMART_MASK, window: int = 0) -> None:
        # Graphs of other context lengths have tensors of other shapes in the same place.
        context.set_config(htp.REREGISTRATION, htp.Reregistration.OTHER_SHAPE)
        sizes = {name: map(int, name[2:].split("_cl")) for name in context.graphs}
        self.variants = sorted(
            (Variant(context.graphs[name], *size) for name, size in sizes.items()),
            key=lambda each: (each.context, -each.tokens),
        )
        self.shifting = update == SHIFT_POINTER
        self.position = self.shift = 0
        self._bound: dict[tuple[str, int], Bound] = {}
        self._current: Bound | None = None
        self._lay_out(context)
        infos = {info.name: info for info in self.variants[0].graph.input_tensors}
        positions = np.arange(self.variants[-1].context)[:, None]
        width = infos["position_ids_cos"].dims[3]
        angles = positions / ROPE_THETA ** (np.arange(width) / width)
        turns = {"position_ids_cos": np.cos(angles), "position_ids_sin": np.sin(angles)}
        # Genie rounds positions down; whoever wants its tokens does the same.
        self._angles = {name: stored(infos[name], turn, np.floor) for name, turn in turns.items()}
        windows = {"attention_mask": 0, "window_attention_mask": window}
        self._levels = {
            name: MaskLevels(*stored(infos[name], np.array([0, HIDDEN])), size)
            for name, size in windows.items()
            if name in infos
        }

    # -- memory --------------------------------------------------------------------------------------------------------

    def _lay_out(self, context: qnn.Context) -> None:
        """Give each tensor its piece: caches of the same name share one, with room to move by a whole context."""
        sizes: dict[str, int] = {}
        for variant in self.variants:
            for info in (*variant.graph.input_tensors, *variant.graph.output_tensors):
                sizes[info.name] = max(
                    sizes.get(info.name, 0), info.nbytes + self._column(info) * self.variants[-1].context
                )
        self._offsets: dict[str, int] = {}
        end = 0
        for name, nbytes in sizes.items():
            self._offsets[name] = end
            end += -(-nbytes // ALIGNMENT) * ALIGNMENT
        self.buffer = Buffer(context, end)

    def _column(self, info: TensorInfo) -> int:
        """Return by how many bytes a cache moves for a token: 0 for other tensors, and where caches stay."""
        if not self.shifting or not info.name.endswith("_in"):
            return 0
        return info.dtype.itemsize * (info.dims[3] if "value" in info.name else 1)

    def bind(self, variant: Variant, shift: int) -> Bound:
        """Return a variant with its caches moved by some columns, bound to memory once."""
        key = (variant.graph.name, shift)
        if key not in self._bound:
            sides = [
                {info: self._offsets[info.name] + shift * self._column(info) for info in infos}
                for infos in (variant.graph.input_tensors, variant.graph.output_tensors)
            ]
            views = {info.name: self.buffer.view(info, offset) for side in sides for info, offset in side.items()}
            tensors = [self.buffer.tensors(side) for side in sides]
            self._bound[key] = Bound(variant, variant.graph.bind(*tensors), views)
        return self._bound[key]

    # -- a step --------------------------------------------------------------------------------------------------------

    def prepare(self, count: int) -> None:
        """Bind all that the next tokens need, so that they allocate nothing."""
        variant, shift = None if self._current is None else self._current.variant, self.shift
        for position in range(self.position, self.position + count):
            wanted = self._variant(1, position)
            if wanted is not variant:
                variant, shift = wanted, 0
            self.bind(variant, shift)
            shift += self.shifting
            self.bind(variant, shift)

    def _variant(self, tokens: int, position: int) -> Variant:
        """Return the graph for the shortest context that has room for tokens, with the best number of them at once."""
        fitting = [each for each in self.variants if each.past >= position and position + tokens <= each.context]
        if not fitting:
            raise ValueError(f"{position + tokens} tokens are more than a context of {self.variants[-1].context}")
        shortest = [each for each in fitting if each.context == fitting[0].context]
        return next((each for each in reversed(shortest) if each.tokens >= tokens), shortest[0])

    # -- a step --------------------------------------------------------------------------------------------------------

    def read(self, prompt: Sequence[int]) -> int:
        """Compute a prompt in pieces as large as a graph takes, and return the likeliest next token."""
        most = max(each.tokens for each in self.variants)
        return [self.step(prompt[begin : begin + most]) for begin in range(0, len(prompt), most)][-1]

    def step(self, tokens: Sequence[int]) -> int:
        """Compute some tokens behind those so far, and return the likeliest next one."""
        bound, count = self._switch(self._variant(len(tokens), self.position)), len(tokens)
        views = bound.views
        views["input_ids"][0, :count] = tokens
        for name, table in self._angles.items():
            views[name][0, 0, :count] = table[self.position : self.position + count]
        for name, levels in self._levels.items():
            self._show(views[name], levels, self._columns(bound.variant), bound.variant.past, count)
        bound.binding.execute()
        self._keep(bound, count)
        return int(views["logits"][0, count - 1].argmax())

    def _columns(self, variant: Variant) -> slice:
        """Return which columns of a variant's cache have the tokens so far."""
        return slice(variant.past - self.position, variant.past) if self.shifting else slice(0, self.position)

    def _show(self, mask: np.ndarray, levels: MaskLevels, old: slice, past: int, count: int) -> None:
        """Let each new token see the earlier ones and the new ones up to itself, or those of the window alone."""
        mask[...] = levels.hidden
        for row in range(count):
            unseen = max(0, self.position + row + 1 - levels.window) if levels.window else 0
            mask[0, 0, row, old.start + min(unseen, self.position) : old.stop] = levels.shown
            mask[0, 0, row, past + max(0, unseen - self.position) : past + row + 1] = levels.shown

    def _keep(self, bound: Bound, count: int) -> None:
        """Put the new columns into the cache."""
        end, new = self.position + count, bound.views
        if end < self.variants[-1].context:
            if end > bound.variant.past:
                bound = self._switch(self._variant(1, end))
            self.position = end
            if self.shifting:
                self.shift += count
                bound = self._current = self.bind(bound.variant, self.shift)
            columns = self._columns(bound.variant)
            columns = slice(columns.stop - count, columns.stop)
            for name, cache in caches(bound.views):
                column_view(name, cache, columns)[...] = column_view(name, new[f"{name[:-3]}_out"], slice(0, count))
        self.position = end

    def _switch(self, variant: Variant) -> Bound:
        """Return a variant's memory, with the cache arranged as it has it."""
        before = self._current
        if before is None or before.variant is not variant:
            kept = {}
            if before is not None:
                old = self._columns(before.variant)
                kept = {name: column_view(name, cache, old).copy() for name, cache in caches(before.views)}
            self.shift = 0
            self._current = self.bind(variant, 0)
            for name, columns in kept.items():
                column_view(name, self._current.views[name], self._columns(variant))[...] = columns
        return self._current


def stored(info: TensorInfo, values: np.ndarray, rounded: Callable[..., np.ndarray] = np.rint) -> np.ndarray:
    """Return real values as a tensor stores them."""
    if info.quantization is None:
        return values.astype(info.dtype.numpy)
    scale, zero = info.quantization.scale, info.quantization.zero_point
    steps = rounded(values.astype(np.float32) / np.float32(scale)) + zero
    limits = np.iinfo(info.dtype.numpy)
    return steps.clip(limits.min, limits.max).astype(info.dtype.numpy)


def caches(views: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the caches among the tensors of a graph."""
    return ((name, view) for name, view in views.items() if name.startswith("past") and name.endswith("_in"))


def column_view(name: str, cache: np.ndarray, columns: slice) -> np.ndarray:
    """Return a cache's view of some tokens: keys have them along the last axis, values along the one before it."""
    return cache[..., columns] if "key" in name else cache[..., columns, :]
