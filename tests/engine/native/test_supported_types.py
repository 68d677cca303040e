"""Which types the engine takes for each operation, and which kernels compute them, written down a second time.

`supported.txt` has the calls of `test_supports` in all data types: those that are executed, by the kernels that do so
for one target, and how many are refused. So a refusal that moves, or a case that falls back to a slower kernel, shows
as a changed line. To write it again: `PYTHONPATH=tests python tests/engine/native/test_supported_types.py`.
"""

from __future__ import annotations

from pathlib import Path

from support.suites import LONG

from engine.native.test_supports import CASES, calls, graph_of
from isthmus.engine.native import lower
from isthmus.engine.native.target import by_name
from isthmus.graph import DataType
from isthmus.graph.operation import Call
from isthmus.prepare import Planner, PlanOptions

TARGET = by_name("avx2")
WRITTEN = Path(__file__).with_name("supported.txt")
_LETTERS = {
    "FLOAT": "F", "BFLOAT": "BF", "INT": "I", "UINT": "U", "SFIXED_POINT": "S", "UFIXED_POINT": "Q", "BOOL": "B",
}  # fmt: skip


def short(dtype: DataType) -> str:
    """A data type in few letters: F32, BF16, I8, U8, S8 for signed and Q8 for unsigned fixed point."""
    kind, _, bits = dtype.name.rpartition("_")
    return _LETTERS[kind] + bits


def types(call: Call) -> str:
    """The type of in[0], a mark for constant operands, the type of the result, a mark for another scale."""
    first, result = call.inputs[0], (call.declared or ())[0]
    assert first is not None
    constant = "=" if any(t is not None and t.is_static for t in call.inputs) else ""
    other = result.quantization is not None and first.quantization != result.quantization
    return f"{short(first.dtype)}{constant}>{short(result.dtype)}{'~' if other else ''}"


def kernels(call: Call) -> str:
    """The kernels that a call needs, without their variants."""
    planned = Planner(graph_of(call), PlanOptions(), lower.NativeEngine(TARGET)).schedule()
    program = lower.lower(planned, TARGET, 1)
    return " ".join(sorted({kernel.partition(".")[0] for kernel in program.kernels})) or "nothing"


def account() -> list[str]:
    """For each call the types that each set of kernels computes."""
    lines = []
    for number, case in enumerate(CASES):
        taken: dict[str, dict[str, None]] = {}
        refused, asked = 0, set()
        for call in calls(*case):
            reported = types(call)
            if lower.supports(call) is not None:
                refused += 1
            elif reported not in asked:
                asked.add(reported)
                taken.setdefault(kernels(call), {})[reported] = None
        lines.append(f"{number} {case[0]}: {refused} refused")
        lines += [f"    {by}: {' '.join(reported)}" for by, reported in sorted(taken.items())]
    return lines


@LONG
def test_the_engine_takes_the_types_and_uses_the_kernels_that_are_written_down() -> None:
    assert account() == WRITTEN.read_text().splitlines()


if __name__ == "__main__":
    WRITTEN.write_text("\n".join(account()) + "\n")
