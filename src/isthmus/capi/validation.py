"""Looks on while a client calls another library, and names its mistakes: order, lifetimes, shapes, handles, leaks.

Nothing is changed on the way. A mistake is said when it is made, with the number of the call; what was called, what was
answered and what was never freed is said at the end, and written as JSON to the file that ``ISTHMUS_QNN_REPORT`` names.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from isthmus.capi.client import BadPointer, read, text
from isthmus.capi.functions import serves
from isthmus.capi.protocol import CREATES, FREES, HANDLES, NEEDED
from isthmus.capi.values import ClientTensorInfo, node_at, tensor_at
from isthmus.errors import QnnError
from isthmus.graph import TensorType
from isthmus.qnn.interface.types import Tensor, TensorMemType

if TYPE_CHECKING:
    from isthmus.capi.serve import Server

MOST_MISTAKES = 1000
_logger = logging.getLogger("isthmus.validation")


@dataclass
class Object:
    """Something that the client has a handle of.

    Parameters
    ----------
    born, ended
        The calls that made and freed it.
    owner
        The handle of what it ends with: of a context for graphs and memory handles, of a backend for the others.
    tensors
        A graph's, by id.
    """

    kind: str
    handle: int
    born: str
    owner: int = 0
    ended: str = ""
    finalized: bool = False
    tensors: dict[int, ClientTensorInfo] = field(default_factory=dict)
    complete: bool = True

    @property
    def what(self) -> str:
        """Its name in messages."""
        return f"{self.kind} {self.handle:#x}"

    @property
    def owners_kind(self) -> str:
        """What it ends with."""
        return "context" if self.kind in ("graph", "memory handle") else "backend"


@dataclass
class Call:
    """What is known of one function."""

    count: int = 0
    errors: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0


class Validation:
    """What a client did so far, through one library."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self.mistakes: list[str] = []
        self.objects: dict[tuple[str, int], Object] = {}
        """What the client has, by kind and number: a library may count each kind for itself."""
        self.raw_bytes = self.shared_bytes = 0
        self._number = 0
        self._begun = threading.local()
        self._lock = threading.RLock()

    # -- before and after a call ---------------------------------------------------------------------------------------

    def before(self, name: str, values: tuple[int, ...]) -> None:
        """Look at a call that is about to be made."""
        with self._lock:
            self._number += 1
            self._begun.number, self._begun.mistaken = self._number, False
            self._check_handles(name, values)
            for index in NEEDED.get(name, ()):
                if not values[index]:
                    self._mistake(name, f"argument {index + 1} is null")
            looker = getattr(self, f"_before_{name}", None)
            if looker is not None:
                try:
                    looker(name, values)
                except BadPointer as problem:
                    self._mistake(name, str(problem))
                except QnnError as problem:
                    self._mistake(name, f"{problem.what}: {problem.rule}")
        self._begun.at = time.perf_counter()

    def after(self, name: str, error: int, values: tuple[int, ...]) -> None:
        """Look at what a call answered."""
        taken = time.perf_counter() - self._begun.at
        with self._lock:
            call = self.calls.setdefault(name, Call())
            call.count += 1
            call.seconds += taken
            if error:
                call.errors[error] += 1
                return
            if self._begun.mistaken:
                self._mistake(name, "the library answers 0 all the same; another one may not")
            for index, kind, owner in CREATES.get(name, ()):
                count = values[2] if name == "memRegister" else 1
                for each in range(count):
                    self._born(name, kind, values[index] + 8 * each, values[owner] if owner is not None else 0)
            for index, kind in FREES.get(name, ()):
                self._end(name, kind, values[index])
            looker = getattr(self, f"_after_{name}", None)
            if looker is not None:
                try:
                    looker(values)
                except (BadPointer, QnnError):
                    # What cannot be read was said before the call.
                    return

    def _label(self, name: str) -> str:
        return f"call {self._begun.number} ({name})"

    def _mistake(self, name: str, rule: str) -> None:
        self._begun.mistaken = True
        if len(self.mistakes) < MOST_MISTAKES:
            self.mistakes.append(f"{self._label(name)}: {rule}")
            _logger.warning("%s", self.mistakes[-1])

    # -- handles -------------------------------------------------------------------------------------------------------

    def _check_handles(self, name: str, values: tuple[int, ...]) -> None:
        for index, kind, optional in HANDLES.get(name, ()):
            number = values[index]
            if number or not optional:
                self._known(name, number, kind)

    def _known(self, name: str, number: int, kind: str) -> Object | None:
        known = self.objects.get((kind, number))
        if known is None:
            others = [each.kind for each in self.objects.values() if each.handle == number and not each.ended]
            more = f"; a {others[0]} has that number" if others else ""
            self._mistake(name, f"{kind} {number:#x}: no call has made it{more}")
        elif known.ended:
            self._mistake(name, f"{known.what}: it was freed by {known.ended}")
        else:
            return known
        return None

    def _born(self, name: str, kind: str, address: int, owner: int) -> None:
        try:
            number = read(address, ctypes.c_uint64).value
        except BadPointer:
            return
        if number:
            known = self.objects.get((kind, number))
            # A graph may be retrieved more than once.
            if known is None or known.ended:
                retrieved = name == "graphRetrieve"
                self.objects[kind, number] = Object(
                    kind, number, self._label(name), owner, finalized=retrieved, complete=not retrieved
                )

    def _end(self, name: str, kind: str, number: int) -> None:
        known = self.objects.get((kind, number))
        if known is None or known.ended:
            return
        known.ended = self._label(name)
        for each in list(self.objects.values()):
            if each.owner == number and each.owners_kind == kind and not each.ended:
                self._end(name, each.kind, each.handle)

    def _living(self, kind: str, owner: int | None = None) -> list[Object]:
        return [
            each
            for each in self.objects.values()
            if each.kind == kind and not each.ended and (owner is None or each.owner == owner)
        ]

    def _before_backendFree(self, name: str, values: tuple[int, ...]) -> None:
        for each in self._living("context", values[0]):
            self._mistake(name, f"{each.what} of it lives still ({each.born})")

    def _before_deviceFree(self, name: str, values: tuple[int, ...]) -> None:
        for each in self._living("context"):
            self._mistake(name, f"{each.what} may be on it and lives still ({each.born})")

    def _before_logFree(self, name: str, values: tuple[int, ...]) -> None:
        for each in self._living("backend"):
            self._mistake(name, f"{each.what} may speak to it and lives still ({each.born})")

    def _before_contextFree(self, name: str, values: tuple[int, ...]) -> None:
        for each in self._living("memory handle", values[0]):
            self._mistake(name, f"{each.what} of it is registered still ({each.born})")

    def _before_memDeRegister(self, name: str, values: tuple[int, ...]) -> None:
        for index in range(min(values[1], 1 << 16)):
            self._known(name, read(values[0], ctypes.c_uint64, index).value, "memory handle")

    def _after_memDeRegister(self, values: tuple[int, ...]) -> None:
        for index in range(min(values[1], 1 << 16)):
            self._end("memDeRegister", "memory handle", read(values[0], ctypes.c_uint64, index).value)

    # -- graphs --------------------------------------------------------------------------------------------------------

    def _graph(self, number: int) -> Object | None:
        return self.objects.get(("graph", number))

    def _open_graph(self, name: str, number: int) -> Object | None:
        graph = self._graph(number)
        if graph is not None and graph.finalized and not graph.ended:
            self._mistake(name, f"{graph.what}: it is finalized and cannot be changed")
        return graph

    def _before_tensorCreateGraphTensor(self, name: str, values: tuple[int, ...]) -> None:
        graph = self._open_graph(name, values[0])
        info = tensor_at(values[1])
        if graph is not None and info.name in {each.name for each in graph.tensors.values()}:
            self._mistake(name, f"{info.what}: {graph.what} has one of that name")
        if info.type is TensorType.STATIC:
            info.contents()
            if not info.data:
                self._mistake(name, f"{info.what}: a static tensor without data")

    def _after_tensorCreateGraphTensor(self, values: tuple[int, ...]) -> None:
        info = tensor_at(values[1])
        self.objects["graph", values[0]].tensors[info.id] = info

    def _before_graphAddNode(self, name: str, values: tuple[int, ...]) -> None:
        graph = self._open_graph(name, values[0])
        if graph is None:
            return
        node = node_at(values[1], lambda number: graph.tensors[number].contents() if number in graph.tensors else None)
        for info in (*node.inputs, *node.outputs):
            if info.type is TensorType.NULL:
                continue
            known = graph.tensors.get(info.id)
            what = f"node '{node.name}' ({node.op}): {info.what}"
            if known is None:
                self._mistake(name, f"{what} has the id {info.id}, and the graph none of that id")
            elif (known.name, known.dims, known.dtype) != (info.name, info.dims, info.dtype):
                self._mistake(
                    name, f"{what} is {info.dtype.name}{list(info.dims)}, and was created as '{known.name}' "
                    f"{known.dtype.name}{list(known.dims)}",
                )  # fmt: skip

    def _before_graphFinalize(self, name: str, values: tuple[int, ...]) -> None:
        graph = self._graph(values[0])
        if graph is not None and graph.finalized and graph.complete:
            self._mistake(name, f"{graph.what}: it is finalized already")

    def _after_graphFinalize(self, values: tuple[int, ...]) -> None:
        self.objects["graph", values[0]].finalized = True

    def _before_graphExecute(self, name: str, values: tuple[int, ...]) -> None:
        graph = self._graph(values[0])
        if graph is None:
            return
        if not graph.finalized:
            self._mistake(name, f"{graph.what}: it is not finalized")
        places: list[tuple[int, int, str]] = []
        for kind, wanted, address, count in (
            ("input", TensorType.APP_WRITE, values[1], values[2]),
            ("output", TensorType.APP_READ, values[3], values[4]),
        ):
            given = set()
            for index in range(min(count, 4096)):
                given.add(self._check_operand(name, graph, kind, wanted, address, index, places))
            if graph.complete:
                for number, tensor in graph.tensors.items():
                    if tensor.type is wanted and number not in given:
                        self._mistake(name, f"{kind} '{tensor.name}' of {graph.what} is not given")

    def _check_operand(
        self, name: str, graph: Object, kind: str, wanted: TensorType, address: int, index: int,
        places: list[tuple[int, int, str]],
    ) -> int:  # fmt: skip
        tensor = read(address, Tensor, index)
        fields = tensor.v1
        known = graph.tensors.get(fields.id)
        if graph.complete and (known is None or known.type is not wanted):
            self._mistake(name, f"{kind} {index}: {graph.what} has no {kind} of the id {fields.id}")
            return int(fields.id)
        info = tensor_at(address, index)
        what = f"{kind} '{info.name}'"
        count = info.dtype.itemsize
        for dim in (known or info).dims:
            count *= dim
        if fields.memType == TensorMemType.MEMHANDLE:
            memory = self._known(name, fields.memHandle or 0, "memory handle")
            if memory is not None and memory.owner != graph.owner:
                self._mistake(name, f"{what}: {memory.what} is registered with another context")
            self.shared_bytes += count
        else:
            data, nbytes = fields.clientBuf.data or 0, fields.clientBuf.dataSize
            self.raw_bytes += count
            if not data:
                self._mistake(name, f"{what}: its buffer is null")
            elif nbytes < count:
                self._mistake(name, f"{what}: its buffer has {nbytes} bytes, {count} are needed")
            for first, last, other in places if kind == "output" else ():
                if data < last and first < data + nbytes:
                    self._mistake(name, f"{what}: its buffer overlaps that of {other}")
            places.append((data, data + nbytes, what))
        return int(fields.id)

    # -- the end -------------------------------------------------------------------------------------------------------

    def leaks(self) -> list[str]:
        """What was never freed; what its owner would take along is told with the owner."""
        with self._lock:
            return [
                f"{each.what} of {each.born} was never freed"
                for each in self.objects.values()
                if not each.ended and each.kind != "graph" and not self._has_living_owner(each)
            ]

    def _has_living_owner(self, each: Object) -> bool:
        owner = self.objects.get((each.owners_kind, each.owner))
        return owner is not None and not owner.ended

    def report(self) -> dict[str, Any]:
        """All of it, as plain data."""
        leaks = self.leaks()
        with self._lock:
            return {
                "calls": {
                    name: {"count": call.count, "seconds": round(call.seconds, 6), "errors": dict(call.errors)}
                    for name, call in sorted(self.calls.items())
                },
                "mistakes": list(self.mistakes),
                "leaks": leaks,
                "raw_bytes": self.raw_bytes,
                "shared_bytes": self.shared_bytes,
            }

    def tell(self) -> None:
        """Say at the end what there was, and write it where the user wants it."""
        report = self.report()
        if not report["calls"]:
            return
        total = sum(call["count"] for call in report["calls"].values())
        print(
            f"isthmus: {total} calls of {len(report['calls'])} functions were forwarded; "
            f"{len(report['mistakes'])} mistakes, {len(report['leaks'])} leaks",
            file=sys.stderr,
        )
        for leak in report["leaks"]:
            print(f"isthmus: {leak}", file=sys.stderr)
        file = os.environ.get("ISTHMUS_QNN_REPORT")
        if file:
            with open(file, "w") as stream:
                json.dump(report, stream, indent=1)


_names: dict[int, str] = {}


def _named(address: int) -> str:
    if address not in _names:
        _names[address] = text(address) or ""
    return _names[address]


@serves("validationBefore")
def validation_before(server: Server, name: int, error: int, *values: int) -> None:
    """Look at a call that is about to be forwarded."""
    server.validation.before(_named(name), values)


@serves("validationAfter")
def validation_after(server: Server, name: int, error: int, *values: int) -> None:
    """Look at what was answered."""
    server.validation.after(_named(name), error, values)
