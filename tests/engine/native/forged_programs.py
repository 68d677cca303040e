"""Forges programs with right checksums and runs what is accepted between guard pages.

A process of its own, since one wrong byte ends it: `python forged_programs.py COUNT SEED` says what became of each
forgery, a line for each before it is run and a summary at the end. The specimens are forged, and the models of the zoo
that `MODELS` names where they are here. `ISTHMUS_FORGERIES=10000 pytest test_forged_programs.py` runs as many.
"""

from __future__ import annotations

import ctypes
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable

import numpy as np
from support import zoo

from engine.native import specimens
from engine.native.harness import Guard, GuardedBuffer
from isthmus import QnnError
from isthmus.backends.seam import native
from isthmus.compiled import children
from isthmus.engine.native import cache, control, loader
from isthmus.engine.native.executor import Executor
from isthmus.engine.native.program import CURSORS, OPERAND_BITS, Program
from isthmus.engine.native.serialization import FORMAT, assemble, from_bytes, to_bytes
from isthmus.engine.native.signatures import KERNELS
from isthmus.engine.native.target import by_name
from isthmus.engine.native.words import OffsetTable, OffsetTables
from isthmus.frontends import load
from isthmus.memory import window
from isthmus.prepare.schedule import Pool

MODELS = (
    "okay_nabu", "kws_qdq", "kws_fp32", "mixed_ops", "silero_vad_16k", "hand_recrop", "face_detection_short_range",
)  # fmt: skip
MAX_BYTES = 1 << 28
"""Bytes of memory that are set aside for a forgery at most."""
SECONDS = 60
"""How long an accepted forgery of a small program may run: far longer than an honest one."""
_ENTRY = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
_ARRAYS = ("table", "words", "constants", "state_initial")


def originals() -> list[Program]:
    """The honest programs: all specimens, and the models that are here."""
    found = [program for _, program in specimens.programs()]
    for key in MODELS:
        try:
            path = zoo.path(key)
        except zoo.Unavailable:
            continue
        model = zoo.MODELS[key]
        constants = {name: np.array(value, np.int64) for name, value in model.constants.items()}
        graph = load(path, dict(model.shapes) or None, constants or None)
        found.append(native.prepare(graph, threads=2).program)
    return found


class Forgery:
    """A program taken apart, changed in one to three ways, and put together again."""

    def __init__(self, program: Program, chance: random.Random) -> None:
        self.chance = chance
        self.program = program
        self.header, sections = FORMAT.unpack(to_bytes(program))
        self.segments = bytes(sections["segments"])
        self.arrays = {name: getattr(program, name).copy() for name in _ARRAYS}
        ways = chance.choices(list(_WAYS), list(_WAYS.values()), k=chance.choice((1, 1, 1, 2, 3)))
        self.said = "; ".join(way(self) for way in ways)

    def bytes(self) -> bytes:
        """The forged program as the bytes of a file."""
        return assemble(self.header, self.arrays, self.segments)

    def _number(self, old: int) -> int:
        """A number to put in the place of another: near it, far off, or like an operand."""
        chance = self.chance
        pools = Pool.IO + len(self.program.inputs) + len(self.program.outputs)
        return chance.choice((
            lambda: old + chance.choice((-64, -8, -4, -1, 1, 4, 8, 64)),
            lambda: old ^ 1 << chance.randrange(63),
            lambda: old * chance.choice((-1, 0, 2, 3)),
            lambda: old // 2,
            lambda: chance.choice((0, 1, 2, 3, -1, 255, 1 << 20, 1 << 31, 1 << 40, 1 << 47, 1 << 62, -(1 << 63))),
            lambda: chance.randrange(pools + 1) << OPERAND_BITS | chance.randrange(4096),
            lambda: (self.program.first_segment + chance.randrange(3)) << OPERAND_BITS | chance.randrange(4096),
            lambda: (old & -1 << OPERAND_BITS) | chance.randrange(1 << 20),
        ))()  # fmt: skip

    def word(self) -> str:
        words = self.arrays["words"]
        if not len(words):
            return "no word"
        index = self.chance.randrange(len(words))
        words[index] = np.int64((self._number(int(words[index])) + (1 << 63)) % (1 << 64) - (1 << 63))
        return f"word {index}: {words[index]}"

    def swapped_words(self) -> str:
        words = self.arrays["words"]
        if not len(words):
            return "no words"
        one, other = (self.chance.randrange(len(words)) for _ in range(2))
        if self.chance.random() < 0.7:
            other = min(one + 1, len(words) - 1)
        words[[one, other]] = words[[other, one]]
        return f"words {one} and {other} exchanged"

    def table_entry(self) -> str:
        table = self.arrays["table"]
        if not len(table):
            return "no instruction"
        row, column = self.chance.randrange(len(table)), self.chance.randrange(3)
        table[row, column] = self.chance.choice((
            self.chance.randrange(max(len(self.program.kernels), 1)),
            int(table[row, column]) + self.chance.choice((-1, 1)),
            self.chance.randrange(-2, 70),
        ))  # fmt: skip
        return f"instruction {row}, column {column}: {table[row, column]}"

    def index_in_constants(self) -> str:
        """Another number in a constant whose entries decide which memory is touched."""
        found = []
        words = self.program.words.tolist()
        for number, start, _ in self.program.table.tolist():
            signature = KERNELS[self.program.kernels[number]]
            values, _ = signature.decode(words, start)
            for word in signature.words:
                if isinstance(word, OffsetTable) and values[word.name]:
                    found.append((values[word.name], word.kind))
                elif isinstance(word, OffsetTables):
                    found += [(operand, "i64") for operand in values[word.name]]
        if not found:
            return "no table"
        operand, kind = self.chance.choice(found)
        size = 8 if kind == "i64" else 4
        place = operand.offset + size * self.chance.randrange(4)
        content = self.arrays["constants"][place : place + size]
        old = int.from_bytes(content.tobytes(), "little", signed=True)
        new = self._number(old) % (1 << 8 * size)
        content[:] = np.frombuffer(new.to_bytes(size, "little"), np.uint8)[: content.size]
        return f"table entry at {place}: {old} to {new}"

    def constants(self) -> str:
        """Any other bytes among the constants."""
        content = self.arrays["constants"]
        if content.size:
            at = self.chance.randrange(content.size)
            content[at : at + 8] = self.chance.choice((0, 1, 127, 255))
        return "other constants"

    def kernel_twice(self) -> str:
        names, declarations, table = self.header["kernels"], self.header["declarations"], self.arrays["table"]
        if not names or not declarations:
            return "no kernel"
        # Another way of this forgery may have taken one of them away.
        number = self.chance.randrange(min(len(names), len(declarations)))
        table[table[:, 0] == number, 0] = len(names)
        names.append(names[number])
        # An earlier forgery may have taken declarations away.
        declarations += declarations[number : number + 1]
        return f"kernel '{names[number]}' twice"

    def kernel_name(self) -> str:
        kernels = self.header["kernels"]
        if not kernels:
            return "no kernel"
        index = self.chance.randrange(len(kernels))
        kernels[index] = self.chance.choice((
            "matmul:packed.300x300", "matmul:packed.8x4", "executor:run", "doorbell:serve", "os:system", "base:word",
            "elementwise:unary.exp_f8", "movement:copy.16", "matmul:packed.8x3.8x3", "", kernels[index] + "0",
            self.chance.choice(kernels),
        ))  # fmt: skip
        if self.chance.random() < 0.5 and kernels[index] in KERNELS:
            self.header["declarations"][index] = KERNELS[kernels[index]].digest
        return f"kernel {index}: {kernels[index]}"

    def segment(self) -> str:
        entries = self.header["segments"]
        if not entries:
            return "no segment"
        index, place = self.chance.randrange(len(entries)), self.chance.randrange(2)
        entries[index][place] = max(-1, entries[index][place] + self.chance.choice((-64, -1, 1, 64, 1 << 20, 1 << 62)))
        return f"segment {index}: {entries[index]}"

    def size(self) -> str:
        header, chance = self.header, self.chance
        which = chance.choice(("scratch_bytes", "threads", "alignment", "target", "dims", "length", "declarations"))
        if which == "dims":
            tensors = [t for kind in ("inputs", "outputs", "states") for t in header[kind] if t["dims"]]
            if tensors:
                tensor = chance.choice(tensors)
                tensor["dims"][chance.randrange(len(tensor["dims"]))] = chance.choice((0, 1, 3, -1, 1 << 20, 1 << 62))
        elif which == "length":
            name = chance.choice(_ARRAYS)
            array = self.arrays[name]
            self.arrays[name] = array[: chance.randrange(len(array) + 1)]
        elif which == "declarations":
            header[which] = header[which][1:]
        elif which == "target":
            header[which] = chance.choice(("portable", "avx2", "z80", ""))
        else:
            header[which] = chance.choice((0, 1, 2, 63, 64, -1, 1 << 50, max(0, header[which] - chance.randrange(65))))
        return f"another {which}"


_WAYS: dict[Callable[[Forgery], str], float] = {
    Forgery.word: 60, Forgery.swapped_words: 8, Forgery.table_entry: 6, Forgery.index_in_constants: 14,
    Forgery.constants: 4, Forgery.kernel_name: 3, Forgery.kernel_twice: 3, Forgery.size: 5,
    Forgery.segment: 4,
}  # fmt: skip


def _sizes(program: Program) -> list[int]:
    """The bytes of each pool, from the constants on."""
    tensors = [info.nbytes for info in (*program.inputs, *program.outputs)]
    return [program.constants.nbytes, program.scratch_bytes, program.state_bytes, *tensors]


def run(program: Program, guard: Guard, chance: random.Random) -> None:
    """Execute a program once: every pool and tensor flush with a guard page, every share of an instruction in turn."""
    if program.pipelines or program.branches:
        _run_by_turns(program, guard)
        return
    found = loader.addresses(program.kernels, by_name(program.target))
    pools = [GuardedBuffer(size, guard) for size in _sizes(program)]
    for pool in pools:
        pool.bytes[:] = np.frombuffer(chance.randbytes(pool.bytes.size), np.uint8)
    pools[0].bytes[:] = program.constants
    segments = [GuardedBuffer(segment.nbytes, guard) for segment in program.segments]
    for buffer, segment in zip(segments, program.segments, strict=True):
        buffer.bytes[:] = segment
    # Kernels find words to change and the control block to report to before the pools, and cursors behind them.
    words = GuardedBuffer(max(program.words.nbytes, 8), guard)
    words.bytes[: program.words.nbytes] = program.words.view(np.uint8)
    block = GuardedBuffer(control.control_bytes(program.threads), guard)
    header = [0, block.address, words.address]
    cursors = [0] * CURSORS
    addresses = [*(pool.address for pool in pools), *cursors, *(segment.address for segment in segments)]
    bases = np.array([*header, 0, *addresses], np.int64)[len(header) :]
    for number, start, shares in program.table.tolist():
        entry = _ENTRY(found[program.kernels[number]])
        for share in range(shares):
            entry(words.address + 8 * start, bases.ctypes.data, share, shares)


def _run_by_turns(program: Program, guard: Guard) -> None:
    """Execute a program whose instructions run others once, in guarded memory, on the threads that it is for."""
    sizes = _sizes(program)[1:]
    pools = [GuardedBuffer(-(-size // 64) * 64 if place < 2 else size, guard) for place, size in enumerate(sizes)]
    scratch, state, *io = (window(pool.bytes) for pool in pools)
    executor = Executor(program, scratch if sizes[0] else None, state if sizes[1] else None, io)
    executor.run()
    executor.close()


def main(count: int, seed: int) -> None:
    honest = originals()
    known = {(kernel, program.target) for program in honest for kernel in program.kernels}
    for target in {target for _, target in known}:
        loader.ensure([kernel for kernel, of in known if of == target], by_name(target))

    def never(*arguments: object) -> None:
        raise SystemExit("a forged program had something compiled")

    children.compile_missing = never  # type: ignore[assignment]
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for number in range(count):
        forgery = Forgery(chance.choice(honest), chance)
        try:
            program = from_bytes(forgery.bytes())
        except QnnError as refusal:
            outcomes["refused as " + refusal.code.name] += 1
            continue
        if any(cache.read(kernel, by_name(program.target)) is None for kernel in program.kernels):
            outcomes["accepted, for another target"] += 1
            continue
        if sum(_sizes(program)) + program.constant_bytes > MAX_BYTES:
            outcomes["accepted, but too large to try"] += 1
            continue
        print(f"{number} {forgery.program.labels[:1]} {forgery.said}", flush=True)
        signal.alarm(SECONDS)
        for guard in ("after", "before"):
            run(program, guard, chance)  # type: ignore[arg-type]
        signal.alarm(0)
        outcomes["accepted and ran"] += 1
    print(json.dumps(outcomes), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
