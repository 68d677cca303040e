"""Random calls of the system library's functions for DLC files: a program for `test_random_calls.py`.

    python random_dlc_calls.py LIBRARY BACKEND_LIBRARY FILE.dlc SEED COUNT

As `random_calls.py`, with handles of DLC files, records and descriptions. The table that composing is given is a right
one: any library jumps to wherever the entries of a wrong one lead. Whatever is saved goes into the file's folder.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from pathlib import Path
from typing import Any

from capi.qnn_calls import Client
from capi.random_calls import CALLS, MAX_CODE, Mess
from isthmus.cabi import system
from isthmus.cabi import tables as interface


class DlcMess(Mess):
    """A client of the system library that does anything."""

    def __init__(self, client: Client, backend: Client, file: bytes, seed: int) -> None:
        super().__init__(client, seed)
        self.backend, self.file = backend, file

    def argument(self, name: str, index: int, kind: Any) -> Any:
        if kind is interface.Interface:
            return self.backend.provider
        if kind is ctypes.c_char_p:
            return self.random.choice([None, b"model", b"model.params", b"", b"saved.dlc", self.file])
        return super().argument(name, index, kind)

    def sequence(self) -> None:
        """A DLC with its descriptions, and then anything."""
        dlc, graphs, count = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_uint32()
        client = self.client
        assert client.systemDlcCreateFromFile(None, self.file, ctypes.byref(dlc)) == 0
        assert client.systemDlcGetComposableGraphInfoHandles(dlc, ctypes.byref(graphs), ctypes.byref(count)) == 0
        backend = self.backend.make("backendCreate", None, None)
        context = self.backend.make("contextCreate", backend, None, None)
        self.handles = [dlc.value or 0, *(handle or 0 for handle in graphs[: count.value]), backend, context]
        names = [name for name in interface.SYSTEM_FUNCTIONS if name in interface.ARGUMENTS and "Dlc" in name]
        for _ in range(CALLS):
            self.fill()
            self.call(self.random.choice(names))
        self.backend.do("backendFree", backend)
        client.systemDlcFree(dlc)


def main(library: str, backend_library: str, file: str, seed: str, count: str) -> None:
    """Run sequences, then compose rightly."""
    logging.getLogger("isthmus").setLevel(logging.CRITICAL)
    client, backend = Client(Path(library)), Client(Path(backend_library))
    os.chdir(Path(file).parent)
    for number in range(int(count)):
        DlcMess(client, backend, file.encode(), int(seed) + number).sequence()
    dlc, graphs, found = ctypes.c_void_p(), ctypes.POINTER(system.GraphInfo)(), ctypes.c_uint32()
    made = backend.make("backendCreate", None, None)
    context = backend.make("contextCreate", made, None, None)
    assert client.systemDlcCreateFromFile(None, file.encode(), ctypes.byref(dlc)) == 0
    answer = (None, 0, made, context, backend.provider, 1, ctypes.byref(graphs), ctypes.byref(found))
    assert client.systemDlcComposeGraphs(dlc, *answer) == 0 < found.value < MAX_CODE
    backend.do("backendFree", made)
    print("composed")


if __name__ == "__main__":
    main(*sys.argv[1:])
