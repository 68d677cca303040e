"""The tools of lowerings: operands for tensors, constants and work space, and instructions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.compiled.weights import Weights
from isthmus.engine.native.lowering.delta_encoding import Instruction, encode_deltas
from isthmus.engine.native.packing import Packing, as_stored, is_large
from isthmus.engine.native.program import ABSENT, MAX_SEGMENTS, PIPELINE, REPEAT, SEGMENT_BYTES, Operand
from isthmus.engine.native.signatures import KERNELS
from isthmus.engine.native.target import Target
from isthmus.engine.native.words import Value
from isthmus.errors import Code, QnnError
from isthmus.graph import Tensor
from isthmus.prepare.engine_model import Effort
from isthmus.prepare.schedule import Place, Pool, Repeat, Step

CONSTANT_ALIGNMENT = 64
"""The alignment of constants that kernels read as vectors, in bytes."""


@dataclass(frozen=True)
class Lowering:
    """The functions that turn one operation into instructions.

    Parameters
    ----------
    emit
        Emits the instructions of a step that is not refused.
    work
        The bytes of scratch that a step needs besides its tensors if this many threads share it; none by default.
    refuses
        Why a step cannot be executed, or None, which is the default. It depends on types, shapes, parameters and on
        which operands are constants, never on their contents.
    effort
        The cost of tiles of a step, by their number of rows along an axis of its result. It is not proportional if the
        kernel computes several rows together: those that are missing in the last group cost as much as the others. None
        if the cost is proportional.
    """

    emit: Callable[[Step, Emitter], None]
    work: Callable[[Step, Target, int], int] = lambda *_: 0
    refuses: Callable[[Step], str | None] = lambda _: None
    effort: Callable[[Step, int, Target], Effort | None] = lambda *_: None


def choose(test: Callable[[Step], bool], one: Lowering, other: Lowering) -> Lowering:
    """Return a lowering that is `one` for the steps that pass a test, and `other` for the rest."""

    def of(step: Step) -> Lowering:
        return one if test(step) else other

    return Lowering(
        lambda step, e: of(step).emit(step, e),
        lambda step, target, threads: of(step).work(step, target, threads),
        lambda step: of(step).refuses(step),
        lambda step, axis, target: of(step).effort(step, axis, target),
    )


class Emitter:
    """A collector of the instructions and constants of a program under construction.

    Parameters
    ----------
    threads
        The number of threads for which work space is laid out.
    places
        The location of every tensor that is not a constant.
    numerics
        The rounding mode of fixed-point results (see `Schedule`).
    by_tiles
        Whether the program has fused regions, whose instructions then share words (see `delta_encoding`).

    Attributes
    ----------
    kernels
        The numbers of the kernels by name.
    table, words, labels
        As in `Program`.
    segments
        As in `Program`, in a list.
    first_segment
        The pool number of the first segment; 0 for a program without segments.
    """

    def __init__(
        self,
        target: Target,
        threads: int,
        places: Mapping[Tensor, Place],
        numerics: str = "exact",
        by_tiles: bool = False,
    ) -> None:
        self.target = target
        self.threads = threads
        self.numerics = numerics
        self.kernels: dict[str, int] = {}
        self.table: list[tuple[int, int, int]] = []
        self.words: list[int] = []
        self.labels: list[str] = []
        self._places = dict(places)
        # The constants in order, their total size, and the offset of each by the checksum of its contents.
        self._chunks: list[np.ndarray] = []
        self._constant_bytes = 0
        self._constant_offsets: dict[bytes, int] = {}
        self.segments: list[np.ndarray] = []
        self.first_segment = 0
        # The pool number of each segment by the checksum of its contents.
        self._segment_pools: dict[bytes, int] = {}
        # Large packed constants, each made once, and their operands by what they are made of.
        self._packing = Packing()
        self._packed: dict[bytes, Operand] = {}
        self._by_tiles = by_tiles
        # The current step, the offset of its work space in scratch, and the shares of its instructions.
        self._step: Step | None = None
        self._work = 0
        self._shares = 1
        # The current repetition: by how many bytes tensors advance, the cursor for each pool and stride, the index of
        # the repeating instruction, the first instruction of each repeated step; and, if it is pipelined, the cursor of
        # the threads' arenas with the begin and end of the first arena in scratch.
        self._advances: dict[Tensor, int] = {}
        self._cursors: dict[tuple[int, int], int] = {}
        self._repeat = 0
        self._first_instructions: list[int] = []
        self._arena: tuple[int, int, int] | None = None

    def begin(self, step: Step, work_offset: int, shares: int = 1) -> None:
        """Start a step's instructions, each in this many shares; its work space is at `work_offset` in scratch."""
        self._step, self._work, self._shares = step, work_offset, shares
        self._first_instructions.append(len(self.table))

    def begin_repeat(self, repeat: Repeat, first_cursor: int) -> None:
        """Repeat the instructions up to `end_repeat`, with tensors that advance each time.

        The number of instructions and the lead are not known yet; `end_repeat` writes them.
        """
        self._advances, self._repeat, self._first_instructions = dict(repeat.advances), len(self.table), []
        moves = dict.fromkeys((self._places[tensor].pool, stride) for tensor, stride in repeat.advances.items())
        lists = {"pools": [pool for pool, _ in moves], "strides": [stride for _, stride in moves]}
        self._step, self._shares = None, repeat.threads
        if repeat.arena is None:
            self.emit(REPEAT, instructions=1, times=repeat.times, first_cursor=first_cursor, **lists)
        else:
            offset, bytes_ = repeat.arena
            # One thread runs an iteration, so its instructions and work space are laid out for one thread.
            self._arena, self.threads = (first_cursor, offset, offset + bytes_), 1
            pipelining = {"arena_bytes": bytes_, "lead": 0}
            self.emit(PIPELINE, instructions=1, times=repeat.times, first_cursor=first_cursor, **pipelining, **lists)
            first_cursor += 1
        self._cursors = {move: first_cursor + number for number, move in enumerate(moves)}

    def end_repeat(self, repeat: Repeat) -> None:
        """End the repetition: write how many instructions it repeats, and how far iterations must stay apart."""
        number, begin, _ = self.table[self._repeat]
        ends = [*self._first_instructions[1:], len(self.table)]
        signature, instructions = KERNELS[list(self.kernels)[number]], len(self.table) - self._repeat - 1
        self.words[begin + signature.at["instructions"]] = instructions
        if self._arena is not None:
            # A step waits until the iteration before has executed the last instruction of the step that it awaits.
            lead = max(ends[after] - 1 - self._first_instructions[step] for step, after in enumerate(repeat.awaited))
            self.words[begin + signature.at["lead"]] = min(lead, instructions)
            self.threads = repeat.threads
        self._advances, self._cursors, self._arena = {}, {}, None

    def end(self) -> None:
        """Let the instructions of one step in several tiles share words, after all were emitted."""
        if not self._by_tiles:
            return
        starts = sorted({begin for _, begin, _ in self.table})
        ends = dict(zip(starts, [*starts[1:], len(self.words)], strict=True))
        instructions = [
            Instruction(kernel, tuple(self.words[begin : ends[begin]]), shares, label)
            for (kernel, begin, shares), label in zip(self.table, self.labels, strict=True)
        ]
        shared = encode_deltas(instructions, self.kernels)
        self.table, self.words, self.labels = shared.table, shared.words, shared.labels

    @contextmanager
    def nested(self, step: Step, offset: int) -> Iterator[None]:
        """Lower another step in place of the current one, with its work space `offset` bytes into this one's."""
        outer = self._step, self._work
        self._step, self._work = step, self._work + offset
        yield
        self._step, self._work = outer

    def place_in_work(self, tensor: Tensor, offset: int) -> None:
        """Place a temporary tensor in the step's work space."""
        self._places[tensor] = Place(Pool.SCRATCH, self._work + offset)

    def place_within(self, part: Tensor, whole: Tensor, offset: int) -> None:
        """Place a tensor at an offset in bytes in another one."""
        place = self._places[whole]
        self._places[part] = Place(place.pool, place.offset + offset)
        if whole in self._advances:
            self._advances[part] = self._advances[whole]

    def emit(self, kernel: str, /, **words: Value) -> None:
        """Append an instruction, with its operands by the names in the kernel's signature."""
        if kernel not in KERNELS:
            raise QnnError(Code.COMMON_NOT_SUPPORTED, f"kernel '{kernel}'", "no such kernel is declared")
        encoded = KERNELS[kernel].encode(words)
        number = self.kernels.setdefault(kernel, len(self.kernels))
        self.table.append((number, len(self.words), self._shares))
        self.labels.append(f"{self._step.op} {self._step.name}" if self._step else kernel)
        self.words += encoded

    def at(self, tensor: Tensor | None, offset: int = 0) -> Operand:
        """Return the operand of a tensor, or of a byte offset in it; `ABSENT` for None."""
        if tensor is None:
            return ABSENT
        if tensor.is_static:
            assert tensor.data is not None
            return Operand(self.packed(as_stored, tensor.data) + offset)
        place = self._places[tensor]
        stride = self._advances.get(tensor)
        if stride is None:
            return self._operand_at(place, offset)
        return Operand.at(self._cursors[place.pool, stride], place.offset + offset)

    def _operand_at(self, place: Place, offset: int) -> Operand:
        """Return the operand of a location that does not advance; in the threads' arenas it is relative to a cursor."""
        if self._arena is not None and place.pool == Pool.SCRATCH:
            cursor, low, high = self._arena
            if low <= place.offset < high:
                return Operand.at(cursor, place.offset + offset)
        return Operand.at(place.pool, place.offset + offset)

    def constant(self, array: np.ndarray) -> Operand:
        """Return the operand of a constant; equal contents are stored once, large ones as a segment."""
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if content.size < SEGMENT_BYTES or not self.first_segment:
            return self.offset_table(content)
        return self._segment(Weights.of(content))

    def packed(self, pack: Callable[..., np.ndarray], *arguments: Any) -> Operand:
        """Return the operand of a constant that a function makes of its arguments, and of nothing else.

        It is made once, however many steps ask for it. A large one is kept for other processes (see `packing`).
        """
        if not self.first_segment or not is_large(arguments):
            return self.constant(pack(*arguments))
        key = self._packing.key(pack, arguments)
        if key not in self._packed:
            self._packed[key] = self._segment(self._packing.make(key, pack, arguments))
        return self._packed[key]

    def _segment(self, weights: Weights) -> Operand:
        """Return the operand of a segment; equal contents are stored once."""
        if weights.digest not in self._segment_pools:
            if len(self.segments) == MAX_SEGMENTS:
                return self.offset_table(weights.array)
            self._segment_pools[weights.digest] = self.first_segment + len(self.segments)
            self.segments.append(weights.array)
        return Operand.at(self._segment_pools[weights.digest], 0)

    def offset_table(self, array: np.ndarray) -> Operand:
        """Return the operand of a constant that is no segment: instructions that access memory by it are checked."""
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        key = hashlib.sha256(content.data).digest()
        if key not in self._constant_offsets:
            self._constant_offsets[key] = self._constant_bytes
            padding = -content.size % CONSTANT_ALIGNMENT
            self._chunks += (content, np.zeros(padding, np.uint8))
            self._constant_bytes += content.size + padding
        return Operand.at(Pool.CONSTANT, self._constant_offsets[key])

    def work(self, offset: int = 0) -> Operand:
        """Return the operand of the step's work space, or of a byte offset in it."""
        return self._operand_at(Place(Pool.SCRATCH, self._work), offset)

    def constants(self) -> np.ndarray:
        """Return the constants that are no segments in one array."""
        return np.concatenate(self._chunks) if self._chunks else np.zeros(0, np.uint8)
