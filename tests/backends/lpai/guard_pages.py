"""Runs models on LPAI with every pool and every IO buffer between pages that must not be touched.

A process of its own, since one wrong byte ends it: `python guard_pages.py KEY...` prints a line for each model.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np
from support import zoo

from backends.lpai.harness import pools
from isthmus import QnnError, qnn
from isthmus.graph import DataType
from isthmus.qnn import ClientTensor, lpai

PAGE = mmap.PAGESIZE
ALIGNMENT = 4
# The smallest alignment leaves the fewest bytes between the end of a buffer and its guard.
BACKEND = {"start_addr_alignment": ALIGNMENT, "size_alignment": 1}
_libc = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """Memory between two guard pages, at the very beginning or at the very end of its span."""

    def __init__(self, nbytes: int, at_end: bool) -> None:
        span = -(-max(nbytes, 1) // PAGE) * PAGE
        self._map = mmap.mmap(-1, span + 2 * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for page in (start, start + PAGE + span):
            if _libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        address = start + PAGE
        if at_end:
            address += span - -(-nbytes // ALIGNMENT) * ALIGNMENT
        # Counted from the start of the mapping, whose first byte must not be read.
        whole = np.frombuffer(self._map, np.uint8)
        self.array = whole[address - start : address - start + nbytes]
        self.array[:] = 0xA5
        self.address = address


def tensors(infos: tuple, at_end: bool) -> tuple[list[ClientTensor], list[Guarded]]:
    buffers = [Guarded(info.nbytes, at_end) for info in infos]
    return [ClientTensor(i.name, b.array) for i, b in zip(infos, buffers, strict=True)], buffers


def run(key: str, at_end: bool, exclude_io: bool) -> list[bytes]:
    """Two executions in guarded memory; the bytes of all outputs."""
    config = {"lpai_backend": BACKEND, "lpai_graph": {"prepare": {"exclude_io": exclude_io}}}
    model = zoo.MODELS[key]
    constants = {}
    if model.constants:
        constants = {name: np.array(value, np.int64) for name, value in model.constants.items()}
    with qnn.Backend("lpai", config) as backend:
        graph = backend.create_context().compose(zoo.path(key), None, dict(model.shapes) or None, constants or None)
        sizes = [buffer.nbytes for buffer in pools(backend, graph)]
        held = [Guarded(size, at_end) for size in sizes]
        for option, pool, size in zip((lpai.SCRATCH_MEM, lpai.PERSISTENT_MEM), held, sizes, strict=True):
            graph.set_config(option, lpai.Mem(lpai.MemType.DDR, size, pool.array if size else None))
        graph.finalize()
        if exclude_io:
            inputs, given = tensors(graph.input_tensors, at_end)
            outputs, results = tensors(graph.output_tensors, at_end)
            views = [b.array.view(i.dtype.numpy) for i, b in zip(graph.input_tensors, given, strict=True)]
            answers_in: list[np.ndarray] = [buffer.array for buffer in results]
        else:
            inputs, outputs = [], []
            views = [view.reshape(-1) for view in graph.inputs.values()]
            answers_in = list(graph.outputs.values())
        chance = np.random.default_rng(1)
        answers = []
        for _ in range(2):
            for info, view in zip(graph.input_tensors, views, strict=True):
                is_float = info.dtype in (DataType.FLOAT_32, DataType.FLOAT_16)
                view[:] = chance.random(view.shape) if is_float else chance.integers(0, 2, view.shape)
            graph.execute(inputs, outputs)
            answers += [answer.tobytes() for answer in answers_in]
        return answers


def main() -> None:
    for key in sys.argv[1:]:
        try:
            answers = [run(key, at_end, exclude_io) for at_end in (False, True) for exclude_io in (False, True)]
        except QnnError as refusal:
            print(f"{key} refused {refusal}", flush=True)
            continue
        print(f"{key} {'ran' if all(a == answers[0] for a in answers) else 'differs'}", flush=True)


if __name__ == "__main__":
    main()
