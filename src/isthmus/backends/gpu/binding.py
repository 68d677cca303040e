"""A binding of a graph on an OpenCL device: memory used in place, memory that is transferred, and execution."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from isthmus.backends.gpu.buffers import HostSharedBuffer
from isthmus.backends.gpu.memory import GpuRegistration
from isthmus.backends.gpu.options import GpuGraphOption
from isthmus.backends.gpu.program import DeviceProgram, IoPlace
from isthmus.backends.gpu.runtime import clock, commands, event
from isthmus.backends.gpu.runtime.clock import CommandTimes
from isthmus.backends.gpu.runtime.commands import Command
from isthmus.backends.gpu.runtime.event import ClEvent
from isthmus.backends.gpu.runtime.execution import Commands, Outcome, RunLimits
from isthmus.backends.gpu.staging import HostSide, Stage
from isthmus.backends.seam import driver as seam
from isthmus.backends.seam.binding import BindingBase
from isthmus.backends.seam.execution_deadline import ExecutionDeadline, abort_error
from isthmus.backends.seam.staging import Copy, require_memory, traffic
from isthmus.errors import Code, QnnError
from isthmus.graph import TensorInfo
from isthmus.memory import Window

if TYPE_CHECKING:
    from isthmus.backends.gpu.graph import GpuGraphDriver

IN_PLACE, SHARED = "opencl", "opencl shared"
"""Kinds of memory that is used in place: the device's own, and host memory that the device works in."""
# The alignment in bytes of a tensor's start on a GPU, whose kernels load vectors.
_VECTOR = 16


class GpuBinding(BindingBase):
    """Memory for a graph on an OpenCL device: registered buffers are used in place, raw memory is transferred."""

    def __init__(self, graph: GpuGraphDriver, memories: seam.Memories) -> None:
        self._graph = graph
        self._commands: Commands | None = None
        # Buffers that are the device's during an execution and the host's between executions.
        self._shared: list[HostSharedBuffer] = []
        # Copies between the client's memory and ours, before and after an execution: target, source, bytes.
        self._copies_in: list[Copy] = []
        self._copies_out: list[Copy] = []
        # The host memory of transferred tensors, which is kept as long as commands use it.
        self._sides: list[HostSide] = []
        # The name of the first tensor in raw memory, for a message; empty if there is none.
        self._raw = ""
        super().__init__(graph.what, memories, graph.counts)

    def _basis(self) -> object:
        """Return what the binding depends on: it is bound again when another object is returned."""
        return self._graph.loaded()

    # -- binding -------------------------------------------------------------------------------------------------------

    def _bind(self) -> tuple[seam.Traffic, list[tuple[str, Window]]]:
        """Check all memory and create the commands; return the traffic, and each tensor's name with its memory."""
        graph, (loaded, staging) = self._graph, self._graph.ready()
        infos, inputs = graph.info.tensors, len(graph.info.inputs)
        memories = [
            self._check_memory(index, info, memory, loaded)
            for index, (info, memory) in enumerate(zip(infos, self.memories, strict=True))
        ]
        windows = [memory.window.part(0, info.nbytes) for info, memory in zip(infos, memories, strict=True)]
        self._check_one_tensor_each(infos, memories)
        raw = [index for index, memory in enumerate(memories) if memory.registration is None]
        # Raw inputs are transferred before the kernels run and raw outputs after them, so they may be the same memory.
        for source, goal in seam.check_overlaps(graph.what, infos, inputs, windows):
            if source not in raw or inputs + goal not in raw:
                what = f"tensor '{infos[inputs + goal].name}' of {self._what}"
                rule = f"its buffer overlaps that of tensor '{infos[source].name}'"
                raise QnnError(Code.GRAPH_INVALID_TENSOR, what, rule, "An OpenCL buffer serves one tensor.")
        before = staging.reserved
        staging.reserve(infos, raw)
        self._raw = infos[raw[0]].name if raw else ""
        self._copies_in, self._copies_out, self._shared, self._sides = [], [], [], []
        # For each tensor: its place for kernels, commands before and behind the kernels, and the kind of memory that
        # is used in place (None if bytes are transferred).
        places, ahead, behind, kinds = [], [], [], list[str | None]()
        for index, (info, memory) in enumerate(zip(infos, memories, strict=True)):
            label, is_input = f"tensor '{info.name}'", index < inputs
            if isinstance(memory.registration, GpuRegistration):
                place, first, last = self._use_in_place(memory.registration, label)
                # Host memory that the device does not share is transferred by the driver.
                own_kind = IN_PLACE if memory.registration.shared is None else None
                kinds.append(SHARED if memory.registration.buffer.is_shared else own_kind)
            else:
                stage = staging[index]
                place, first, last = self._transfer(stage, memory.window, label, is_input)
                kinds.append(None)
            places.append(place)
            ahead += first
            behind += last
        # Checks that may refuse go first, before anything is enqueued.
        ahead.sort(key=lambda command: command.kind is not commands.CommandKind.UNMAPPED)
        self._count_staging(staging.reserved - before)
        self._use([*ahead, *loaded.launches(places), *behind], loaded)
        named = [(info.name, window) for info, window in zip(infos, windows, strict=True)]
        return traffic(infos, inputs, kinds), named

    def _use(self, ordered: list[Command], loaded: DeviceProgram) -> None:
        """Make these the commands of an execution; `loaded` is the program whose kernels they launch."""
        if self._commands is not None:
            self._commands.close()
        record = not self._graph.options[GpuGraphOption.DISABLE_QUEUE_RECORDING]
        self._commands = Commands(
            loaded.context, ordered, self._what, loaded.patience, record, keeps=(self.memories, loaded, self._sides)
        )

    def _use_in_place(self, registration: GpuRegistration, label: str) -> tuple[IoPlace, list[Command], list[Command]]:
        """Use a registered buffer in place; our own host memory is handed to the device and back.

        Return the place for kernels, and the commands before and behind them.
        """
        buffer, shared = registration.buffer, registration.shared
        place = IoPlace(buffer.handle)
        if shared is None:
            return place, [commands.refuse_mapped(buffer.handle, label)], []
        self._shared.append(shared)
        size = shared.facts.nbytes
        return (
            place,
            [commands.unmap(buffer.handle, shared.address, label)],
            [commands.map_at(buffer.handle, size, shared.address, label)],
        )

    def _transfer(
        self, stage: Stage, window: Window, label: str, is_input: bool
    ) -> tuple[IoPlace, list[Command], list[Command]]:
        """Transfer raw memory through a stage; return the place for kernels, and the commands around them."""
        side = stage.host_side(window)
        self._sides.append(side)
        for part in side.parts:
            client_address = window.address + part.offset
            if part.address != client_address and is_input:
                self._copies_in.append((part.address, client_address, part.nbytes))
            elif part.address != client_address:
                self._copies_out.append((client_address, part.address, part.nbytes))
        if stage.shared is not None:
            self._shared.append(stage.shared)
        return IoPlace(stage.handle), stage.before(side, label, is_input), stage.after(side, label, is_input)

    def _check_memory(
        self, index: int, info: TensorInfo, memory: seam.TensorMemory | None, loaded: DeviceProgram
    ) -> seam.TensorMemory:
        """Return the memory of tensor `index` (inputs come first); refuse memory that kernels cannot use as needed."""
        what, code = f"tensor '{info.name}' of {self._what}", Code.GRAPH_INVALID_TENSOR
        memory = require_memory(self._what, info, memory, "the GPU")
        if not isinstance(memory.registration, GpuRegistration):
            if not memory.window.buffer.has_host_view:
                rule = f"its {memory.window.buffer.what} is not registered"
                raise QnnError(code, what, rule, "Register it, and pass its handle.")
            return memory
        # The number of the output, or a negative number for an input.
        facts, output = memory.registration.buffer.facts, index - len(loaded.program.inputs)
        if (output < 0 or loaded.reads(output)) and not facts.kernels_read:
            raise QnnError(code, what, "its OpenCL buffer is WRITE_ONLY, and kernels read it")
        if output >= 0 and not facts.kernels_write:
            raise QnnError(code, what, "its OpenCL buffer is READ_ONLY, and kernels write it")
        if loaded.context.device.kind != "cpu" and facts.host_address % _VECTOR:
            rule = f"its OpenCL buffer begins at {facts.host_address:#x}, which is not a multiple of {_VECTOR}"
            raise QnnError(code, what, rule)
        return memory

    def _check_one_tensor_each(self, infos: Sequence[TensorInfo], memories: Sequence[seam.TensorMemory]) -> None:
        """Refuse a memory handle that two tensors use."""
        seen: dict[int, str] = {}
        for info, memory in zip(infos, memories, strict=True):
            if memory.registration is not None:
                first = seen.setdefault(id(memory.registration), info.name)
                if first != info.name:
                    what = f"tensor '{info.name}' of {self._what}"
                    rule = f"its memory handle is already used by tensor '{first}'; each tensor needs its own"
                    raise QnnError(Code.GRAPH_INVALID_TENSOR, what, rule)

    # -- running -------------------------------------------------------------------------------------------------------

    def _run(self, run: Callable[[], Any] | None = None) -> Any:
        """Execute with the copies before and after; `run` executes the commands, and its result is returned."""
        for target, source, nbytes in self._copies_in:
            ctypes.memmove(target, source, nbytes)
        assert self._commands is not None
        run = run or self._commands.run
        result = self._run_guarded(run) if self._shared else run()
        for target, source, nbytes in self._copies_out:
            ctypes.memmove(target, source, nbytes)
        return result

    def _run_within(self, limit: ExecutionDeadline) -> None:
        # No command is timed, so there are no times to return.
        self._run_commands_within(limit, lambda ordered, limits: (ordered.run_within(limits), None))

    def execute_timed(self, limit: ExecutionDeadline | None = None) -> seam.Timings:
        """Execute within a deadline, if there is one, and return when kernels, copies and waiting ran."""
        between = list[int]()  # when the copies of inputs had ended, and when the copies of outputs began

        def timed(ordered: Commands, limits: RunLimits) -> tuple[int, CommandTimes]:
            between.append(clock.now())
            result = ordered.timed(limits)
            between.append(clock.now())
            return result

        def run() -> seam.Timings:
            if limit is not None:
                limit.check(self._what)
            begin = clock.now()
            times: CommandTimes = self._run_commands_within(limit, timed)
            copies = ((self._copies_in, begin, between[0]), (self._copies_out, between[1], clock.now()))
            return _timings(times, [(first, last) for some, first, last in copies if some])

        return self._run_under_lock(run)

    def _run_commands_within(
        self, limit: ExecutionDeadline | None, run: Callable[[Commands, RunLimits], tuple[int, Any]]
    ) -> Any:
        """Run the commands by `run`, which returns an `Outcome` and a result, until they end or the deadline passes."""
        assert self._commands is not None
        ordered, stopped = self._commands, threading.Event()
        limits = RunLimits(lambda: None if limit is None else limit.left, stopped.is_set)

        def run_to_the_end() -> Any:
            # An abort from another thread sets `stopped`.
            with nullcontext() if limit is None else limit.watched(stopped.set):
                outcome, result = run(ordered, limits)
            if limit is not None and outcome == Outcome.TIMED_OUT:
                raise limit.timeout_error(self._what)
            if outcome == Outcome.STOPPED:
                raise abort_error(self._what)
            return result

        return self._run(run_to_the_end)

    def enqueue(self, wait_for: Any) -> ClEvent:
        """Enqueue an execution after a client's events without waiting; return the event of its end."""

        def run() -> ClEvent:
            assert self._commands is not None
            # The host must copy raw memory or map shared memory after the execution, whose end nothing here awaits.
            if self._raw or self._shared:
                which = f"tensor '{self._raw}' of {self._what}" if self._raw else self._what
                rule = "it is in host memory, which is copied or mapped after the execution"
                hint = "wait_for requires registered OpenCL buffers."
                raise QnnError(Code.GRAPH_INVALID_TENSOR, which, rule, hint)
            return self._commands.enqueue(event.event_handles(wait_for, self._commands.context, self._what))

        return self._run_under_lock(run)

    def abort_now(self) -> None:
        """Wait only a grace period longer for an execution in progress; may be called from any thread."""
        # Read once: another thread may set it to None.
        ordered = self._commands
        if ordered is not None:
            ordered.abort_now()

    def _forget(self) -> None:
        """Release the commands, and everything that is kept for them."""
        if self._commands is not None:
            self._commands.close()
            self._commands = None
        self._copies_in, self._copies_out, self._shared, self._sides = [], [], [], []

    def _run_guarded(self, run: Any) -> Any:
        """Run, and give the host its memory back if anything goes wrong."""
        try:
            return run()
        except BaseException:
            if self._commands is not None and self._commands.context.lost is None:
                for buffer in self._shared:
                    buffer.ensure_mapped()
            raise


def _timings(times: CommandTimes, copies: Sequence[tuple[int, int]]) -> seam.Timings:
    """Return the times of an execution: its commands, and the host's copies before and after them."""
    launches = [each for each in times.commands if each.command.kind is commands.CommandKind.LAUNCH]
    others = [each for each in times.commands if each.command.kind is not commands.CommandKind.LAUNCH]
    transfers = [(each.begin, each.end) for each in others]
    phases = [("copy", *copy) for copy in (*copies, *transfers)] + [("wait", times.begin, times.end)]
    return seam.Timings(
        [seam.OperationTime(each.command.label, (each.end - each.begin) / 1e3) for each in launches],
        times.preparation / 1e3,
        [seam.TimeSpan(each.command.label, each.begin * 1e-9, each.end * 1e-9) for each in launches],
        seam.ON_DEVICE,
        [seam.TimeSpan(name, begin * 1e-9, end * 1e-9) for name, begin, end in phases],
    )
