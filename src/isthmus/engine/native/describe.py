"""Human-readable instructions, for debugging and for reports of what a program does."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.engine.native.program import Operand, Program
from isthmus.engine.native.signatures import KERNELS
from isthmus.engine.native.signatures.tiles import changes
from isthmus.prepare.schedule import Pool


def describe(program: Program, index: int) -> str:
    """Return an instruction as text, with named words; an operand is shown as a pool or tensor and a byte offset."""
    number, start, shares = (int(n) for n in program.table[index])
    kernel = program.kernels[number]
    program_words = program.words.tolist()
    # Earlier instructions may have changed its words.
    for before in program.varies:
        if before < index:
            for changed in changes(program_words, int(program.table[before, 1])).values():
                for changed_index, value in changed.items():
                    program_words[changed_index] = value
    values, _ = KERNELS[kernel].decode(program_words, start)
    words = ", ".join(f"{name}={_text(program, value)}" for name, value in values.items())
    split = "" if shares == 1 else f" in {shares} shares"
    return f"{kernel}({words}){split}"


def _text(program: Program, value: object) -> str:
    """Return the decoded value of a word as text."""
    if isinstance(value, Operand):
        return _operand_text(program, value)
    if isinstance(value, Sequence):
        return f"[{', '.join(_text(program, each) for each in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _operand_text(program: Program, operand: Operand) -> str:
    """Return where an operand is: a pool, tensor or cursor, and the byte offset in it."""
    if operand == 0:
        return "none"
    tensors = (*program.inputs, *program.outputs)
    if operand.pool >= program.first_segment:
        return f"segment {operand.pool - program.first_segment}+{operand.offset}"
    if operand.pool >= Pool.IO + len(tensors):
        return f"cursor {operand.pool - Pool.IO - len(tensors)}+{operand.offset}"
    pool = tensors[operand.pool - Pool.IO].name if operand.pool >= Pool.IO else Pool(operand.pool).name.lower()
    return f"{pool}+{operand.offset}"
