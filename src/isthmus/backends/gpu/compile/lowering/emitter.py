"""The emitter that lowerings write to: locations of tensors, constants and work space, and launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from isthmus.backends.gpu.compile.kernel_source import KernelOperand, KernelSource
from isthmus.backends.gpu.compile.program import Argument, BufferRef, KernelPool, Launch, Unit
from isthmus.backends.gpu.compile.storage import FLOAT, FP16, OperandStorage, stored_kind
from isthmus.backends.gpu.compile.traits import DeviceTraits, FloatStorage
from isthmus.backends.gpu.mixed_precision import Fp16Tensor, is_exact_in_fp16, to_fp16
from isthmus.graph import DataType, Tensor
from isthmus.prepare.schedule import Place as Planned
from isthmus.prepare.schedule import Pool as PlannedPool
from isthmus.prepare.schedule import Step

if TYPE_CHECKING:
    from isthmus.backends.gpu.compile.lowering.rearrangement import Rearrangement

CONSTANT_ALIGNMENT = 128
"""The alignment in bytes of constants in their pool."""
LARGE_CONSTANT = 16 << 10
"""The bytes from which equal constants of a context's graphs are one buffer on the device."""


def _no_work(step: Step, traits: DeviceTraits) -> int:
    """Return that a step needs no work space."""
    return 0


def _nothing(step: Step) -> str | None:
    """Return that a step is not refused."""
    return None


@dataclass(frozen=True)
class KernelLowering:
    """The lowering of one operation to launches.

    - `emit`: Writes the launches of a step that is not refused.
    - `work`: The bytes of scratch that a step needs besides its tensors.
    - `refuses`: Returns why a step cannot be executed, or None. It examines types, shapes, parameters and which
      operands are constants, never the values of constants.
    - `takes_chain`: Whether `emit` applies `KernelEmitter.chain` to its result, so that element-wise steps can follow
      in one kernel.
    """

    emit: Callable[[Step, KernelEmitter], None]
    work: Callable[[Step, DeviceTraits], int] = _no_work
    refuses: Callable[[Step], str | None] = _nothing
    takes_chain: bool = False


@dataclass(frozen=True)
class Link:
    """One function in a chain.

    - `function`: Its name in `functions.REALS`.
    - `operands`: Its operands in order, with None for the value that runs through the chain.
    - `a`, `b`: Its parameters, such as the limits of a clamp; functions without parameters ignore them.
    """

    function: str
    operands: tuple[Tensor | None, ...] = (None,)
    a: float = 0.0
    b: float = 0.0


@dataclass(frozen=True)
class Chain:
    """Functions applied one after the other to a result before it is stored in `output`.

    - `moves`: Where channels of the output go instead, if it is not to be in memory.
    """

    links: tuple[Link, ...]
    output: Tensor
    moves: Rearrangement | None = None


class KernelEmitter:
    """A collector of the launches and constants of a program under construction.

    - `traits`, `precision`: The device, and the storage of floats between operations.
    - `places`: The planned places of all tensors that are not constants.
    - `inputs`: The number of inputs of the graph.
    - `numerics`: Whose rounding is followed: "exact", "litert" or "onnxruntime".
    - `units`: The units so far, with their indices; equal source is built once.
    - `launches`, `labels`: The launches so far, and the label of each step.
    """

    def __init__(
        self,
        traits: DeviceTraits,
        precision: FloatStorage,
        places: Mapping[Tensor, Planned],
        inputs: int,
        numerics: str = "exact",
    ) -> None:
        self.traits = traits
        self.precision = precision
        self.numerics = numerics
        self.units: dict[Unit, int] = {}
        self.launches: list[Launch] = []
        self.labels: list[str] = []
        self.chain: Chain | None = None
        """The chain that the current step applies to its result."""
        self._places = dict(places)
        self._inputs = inputs
        self._chunks: list[np.ndarray] = []
        """The contents of the constants, padded."""
        self._constant_bytes = 0
        self.large_constants: list[tuple[int, int]] = []
        """The offsets and sizes of those that graphs of a context may share on the device."""
        self._offsets: dict[bytes, int] = {}
        """The offsets of constants, by their contents."""
        self._work = 0
        """The offset in scratch of the current step's work space."""

    @property
    def gpu(self) -> bool:
        """Whether the device is a GPU, whose work-items run in parallel."""
        return self.traits.kind == "gpu"

    def kernel(self) -> KernelSource:
        """Start a new kernel."""
        return KernelSource(self)

    def begin(self, work_offset: int, chain: Chain | None, label: str) -> None:
        """Start the launches of a step: set the offset of its work space in scratch and the chain for its result."""
        self._work, self.chain = work_offset, chain
        self.labels.append(label)

    @contextmanager
    def shift_work(self, offset: int) -> Iterator[None]:
        """Use a work space that begins `offset` bytes into the step's, within this context."""
        outer, self._work = self._work, self._work + offset
        yield
        self._work = outer

    def place_in_work(self, tensor: Tensor, offset: int) -> None:
        """Give a temporary tensor an offset in the step's work space, stored as it is declared."""
        self._places[tensor] = Planned(PlannedPool.SCRATCH, self._work + offset)

    def storage(self, tensor: Tensor) -> OperandStorage:
        """Return how a tensor's elements are stored."""
        kind = stored_kind(tensor.dtype)
        assert kind is not None
        if tensor.dtype.is_fixed_point:
            steps: Literal["quotient", "product"] = "product" if self.numerics == "litert" else "quotient"
            return OperandStorage(kind, real=True, quantized=True, steps=steps)
        if tensor.dtype is not DataType.FLOAT_32:
            return OperandStorage(kind, real=tensor.dtype is DataType.FLOAT_16)
        return FP16 if isinstance(tensor, Fp16Tensor) else FLOAT

    def at(self, tensor: Tensor, offset: int = 0, writes: bool = False) -> BufferRef:
        """Return the location of a tensor from its element `offset` on; `writes` if a kernel writes there."""
        size = self.storage(tensor).size
        if tensor.is_static:
            assert tensor.data is not None
            place = self.constant(to_fp16(tensor.data) if isinstance(tensor, Fp16Tensor) else tensor.data)
            return BufferRef(place.pool, 0, place.offset + offset * size, (tensor.elements - offset) * size, False)
        where = self._places[tensor]
        pool, index = KernelPool.STATE if where.pool == PlannedPool.STATE else KernelPool.SCRATCH, 0
        if where.pool >= PlannedPool.IO:
            # Plans number the pools of inputs and then outputs from IO on.
            pool, index = KernelPool.INPUT, where.pool - PlannedPool.IO
            if index >= self._inputs:
                pool, index = KernelPool.OUTPUT, index - self._inputs
        return BufferRef(pool, index, where.offset + offset * size, (tensor.elements - offset) * size, writes)

    def operand(
        self, name: str, tensor: Tensor, strides: Sequence[int] = (1,), offset: int = 0, writes: bool = False
    ) -> KernelOperand:
        """Return a tensor as an operand of a kernel, from its element `offset` on."""
        place, storage, quantization = self.at(tensor, offset, writes), self.storage(tensor), tensor.quantization
        if not storage.quantized:
            return KernelOperand(name, place, storage, strides)
        assert quantization is not None
        return KernelOperand(name, place, storage, strides, quantization.scale, quantization.zero_point)

    def constant(self, array: np.ndarray) -> BufferRef:
        """Return the location of a constant; equal contents are stored once."""
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        key = content.tobytes()
        if key not in self._offsets:
            self._offsets[key] = self._constant_bytes
            padded = max(-(-content.size // CONSTANT_ALIGNMENT), 1) * CONSTANT_ALIGNMENT
            self._chunks.append(np.concatenate([content, np.zeros(padded - content.size, np.uint8)]))
            if padded >= LARGE_CONSTANT:
                self.large_constants.append((self._constant_bytes, padded))
            self._constant_bytes += padded
        return BufferRef(KernelPool.CONSTANTS, 0, self._offsets[key], content.size, False)

    def weights(self, array: np.ndarray) -> tuple[BufferRef, OperandStorage]:
        """Return the location and storage of weights: fp16 if that was requested and holds them exactly.

        Preparation has already rounded the weights that are to be fp16.
        """
        if self.precision is FloatStorage.FP16 and is_exact_in_fp16(array):
            return self.constant(to_fp16(array)), FP16
        return self.constant(np.asarray(array, np.float32)), FLOAT

    def work(self, offset: int, nbytes: int, writes: bool = False) -> BufferRef:
        """Return a range of bytes of the step's work space."""
        return BufferRef(KernelPool.SCRATCH, 0, self._work + offset, nbytes, writes)

    @property
    def constant_bytes(self) -> int:
        """Bytes of constants so far."""
        return self._constant_bytes

    def constants(self) -> np.ndarray:
        """Return all constants in one array."""
        return np.concatenate(self._chunks) if self._chunks else np.zeros(0, np.uint8)

    def launch(
        self, unit: Unit, kernel: str, arguments: Sequence[Argument], items: tuple[int, ...], group: tuple[int, ...]
    ) -> None:
        """Append a launch of a kernel of a unit."""
        number = self.units.setdefault(unit, len(self.units))
        self.launches.append(Launch(number, kernel, tuple(arguments), items, group, len(self.labels) - 1))
