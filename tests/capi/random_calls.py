"""Random sequences of calls on a library, right and wrong in every way: a program for `test_random_calls.py`.

    python random_calls.py LIBRARY SEED COUNT

Handles are valid, freed, null, of another kind or invented; pointers right, null or wild; versions, counts, sizes and
options any number; lists have no end. Nothing is asked of the answers but that there is one: QNN's codes are below
40000. At the end a client that does right is served as if nothing had happened.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from capi.qnn_calls import Client, at, doubling, opened
from isthmus.cabi import objects, system, types
from isthmus.cabi import tables as interface
from isthmus.graph import DataType, TensorType

CALLS = 16
ARENA = 1 << 16
LPAI = 12
MAX_CODE = 40000
SKIPPED = {
    "graphExecuteAsync", "contextCreateFromBinaryListAsync", "contextCreateFromBinaryWithCallback",
    "systemDlcComposeGraphs",
}  # fmt: skip
"""Functions that call back: a wild pointer to code ends any process."""


class Mess:
    """A client that does anything."""

    def __init__(self, client: Client, seed: int) -> None:
        self.client, self.random = client, random.Random(seed)
        self.handles: list[int] = []
        # What is written beyond its end meets no memory, and hurts nobody.
        self.mapping = mmap.mmap(-1, ARENA + mmap.PAGESIZE)
        self.arena = (ctypes.c_char * ARENA).from_buffer(self.mapping)
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(ctypes.addressof(self.arena) + ARENA), mmap.PAGESIZE, 0)

    def handle(self) -> int:
        """A handle, or what passes for one."""
        choices: list[Any] = [
            lambda: 0,
            lambda: self.random.randrange(1 << 64),
            lambda: 0x10000 + 16 * self.random.randrange(200),
        ]
        if self.handles:
            choices += [lambda: self.random.choice(self.handles)] * 6
        return int(self.random.choice(choices)())

    def pointer(self) -> int:
        """A pointer: into memory, null, or wild."""
        return int(
            self.random.choice(
                [
                    lambda: ctypes.addressof(self.arena) + self.random.randrange(ARENA // 2),
                    lambda: ctypes.addressof(self.arena),
                    lambda: 0,
                    lambda: self.random.randrange(1 << 64),
                    lambda: ctypes.addressof(self.arena) + ARENA - self.random.randrange(64),
                ]
            )()
        )

    def number(self) -> int:
        """A count, a size, an option."""
        return int(self.random.choice([0, 1, 2, 3, 100, 1 << 31, (1 << 32) - 1, self.random.randrange(1 << 32)]))

    def tensor(self) -> types.Tensor:
        """A tensor that is nearly right, with something wrong."""
        pick = self.random.choice
        made = self.client.tensor(
            pick(["x", "y", ""]), pick(list(TensorType)), int(pick(list(DataType))), pick([(1, 8), (), (3,), (0,)])
        )
        for _ in range(self.random.randrange(3)):
            field = pick(["id", "type", "dataType", "dataFormat", "rank", "memType"])
            setattr(made.v1, field, self.number())
        if self.random.random() < 0.3:
            made.version = self.number()
        if self.random.random() < 0.3:
            made.v1.clientBuf.data = self.pointer() or None
            made.v1.clientBuf.dataSize = self.number()
        if self.random.random() < 0.2:
            offset = types.Tensor.v1.offset + pick([types.TensorV1.name.offset, types.TensorV1.dimensions.offset])
            ctypes.c_uint64.from_address(ctypes.addressof(made) + offset).value = self.pointer()
        if self.random.random() < 0.3:
            made.v1.quantizeParams.encodingDefinition = 1
            made.v1.quantizeParams.quantizationEncoding = pick([*range(8), self.number()])
            made.v1.quantizeParams.axisScaleOffsetEncoding.numScaleOffsets = self.number()
        return made

    def op(self) -> types.OpConfig:
        """A node that is nearly right."""
        pick = self.random.choice
        tensors = [self.tensor() for _ in range(3)]
        kind = pick(["Relu", "ElementWiseAdd", "Conv2d", "", "Nothing"])
        config = self.client.operation("n", kind, tensors[:2], tensors[2:])
        for _ in range(self.random.randrange(3)):
            field = pick(["numOfParams", "numOfInputs", "numOfOutputs"])
            setattr(config.v1, field, pick([0, 1, 2, self.number()]))
        if self.random.random() < 0.3:
            config.version = self.number()
        if self.random.random() < 0.3:
            field = pick(["name", "typeName", "params", "inputTensors", "outputTensors"])
            offset = types.OpConfig.v1.offset + getattr(types.OpConfigV1, field).offset
            ctypes.c_uint64.from_address(ctypes.addressof(config) + offset).value = self.pointer()
        return config

    def target(self) -> system.SerializationTarget:
        """A file for profiles, in the folder that this runs in, with something wrong."""
        made = system.SerializationTarget(self.random.choice([1, 1, self.number()]))
        for field in ("fileName", "fileDirectory"):
            if self.random.random() < 0.5:
                setattr(made.file, field, self.random.choice([b"", b"file", b"."]))
            else:
                offset = system.SerializationTarget.file.offset + getattr(type(made.file), field).offset
                ctypes.c_uint64.from_address(ctypes.addressof(made) + offset).value = self.pointer()
        return made

    def fill(self) -> None:
        """Put words into the arena: numbers, and pointers into it and out of it."""
        words = (ctypes.c_uint64 * (ARENA // 8)).from_buffer(self.arena)
        for _ in range(64):
            value = self.random.choice([self.pointer(), self.number(), self.handle()])
            words[self.random.randrange(ARENA // 8)] = value

    def argument(self, name: str, index: int, kind: Any) -> Any:
        """Something for an argument."""
        if kind is types.OpConfig:
            return self.op()
        if kind is types.Tensor:
            return self.tensor()
        if kind is system.SerializationTarget:
            return self.target()
        if kind in (ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint8):
            return self.number()
        if kind is ctypes.c_void_p:
            # A callback is right or missing; anything else ends any process.
            return None if name in ("logCreate", "systemLogCreate") else self.handle()
        if kind is ctypes.POINTER(types.Tensor) and self.random.random() < 0.6:
            return ctypes.cast(ctypes.pointer(self.client.keep(self.tensor())), kind)
        return ctypes.cast(ctypes.c_void_p(self.pointer()), kind)

    def call(self, name: str) -> None:
        """Call a function with anything."""
        kinds = interface.ARGUMENTS[name]
        arguments = [self.argument(name, index, kind) for index, kind in enumerate(kinds)]
        out = None
        # memRegister writes as many handles as it is asked for, wherever that leads.
        if kinds[-1] is ctypes.POINTER(ctypes.c_void_p) and name != "memRegister" and self.random.random() < 0.7:
            out = ctypes.c_void_p()
            arguments[-1] = ctypes.pointer(out)
        error = interface.function(self.client.provider.table, name)(*arguments)
        assert error < MAX_CODE, f"{name} answers {error}"
        if out is not None and out.value:
            self.handles.append(out.value)

    def sequence(self) -> None:
        """Something to begin with, and then anything."""
        self.handles = []
        if self.client.provider.backendId:
            self.on_a_back_end()
        else:
            self.on_the_system()

    def on_the_system(self) -> None:
        """A system context, a log, and then anything."""
        for name, *arguments in (("systemContextCreate",), ("systemLogCreate", None, 1)):
            self.handles.append(self.client.make(name, *arguments))
        self.call_any(interface.SYSTEM_FUNCTIONS)
        for number in self.handles:
            self.client.systemContextFree(number)
            self.client.systemLogFree(number)

    def call_any(self, functions: tuple[str, ...]) -> None:
        """Call functions, whichever come."""
        known = [name for name in functions if name in interface.ARGUMENTS and name not in SKIPPED]
        for _ in range(CALLS):
            self.fill()
            self.call(self.random.choice(known))

    def on_a_back_end(self) -> None:
        """A backend, a context and a graph, and then anything."""
        self.client._kept.clear()
        backend = self.client.make("backendCreate", None, None)
        self.handles += [backend]
        if self.random.random() < 0.8:
            context = self.client.make("contextCreate", backend, None, None)
            self.handles += [context]
            if self.random.random() < 0.7:
                self.handles.append(self.client.make("graphCreate", context, b"g", None))
            if self.random.random() < 0.1 and finalizes(self.client):
                self.handles.append(doubling(self.client, context)[0])
        self.call_any(interface.BACKEND_FUNCTIONS)
        self.client.backendFree(backend)


def finalizes(client: Client) -> bool:
    """Return whether its graphs can be finalized at once; those of LPAI need pools first."""
    return bool(client.provider.backendId != LPAI)


def main(library: str, seed: str, count: str) -> None:
    """Run sequences, then work rightly."""
    logging.getLogger("isthmus").setLevel(logging.CRITICAL)
    client = Client(Path(library))
    for number in range(int(count)):
        Mess(client, int(seed) + number).sequence()
    serve_rightly(client)
    print("served", objects.PropertyAnswer.SUPPORTED.name)


def serve_rightly(client: Client) -> None:
    """Do what any client does."""
    if not client.provider.backendId:
        nbytes = ctypes.c_uint64()
        client.do(
            "systemTensorGetMemoryFootprint", client.tensor("x", TensorType.NATIVE, DataType.FLOAT_32, (2, 8)),
            ctypes.byref(nbytes),
        )  # fmt: skip
        assert nbytes.value == 64
        client.do("systemContextFree", client.make("systemContextCreate"))
        return
    backend, context = opened(client)
    if finalizes(client):
        graph, x, y = doubling(client, context)
        given, found = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
        assert client.execute(graph, [at(x, given)], [at(y, found)]) == 0
        assert found.tolist() == [[2.0] * 8]
    client.do("backendFree", backend)


if __name__ == "__main__":
    main(*sys.argv[1:])
