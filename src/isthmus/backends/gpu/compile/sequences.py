"""Small launches in a row as one, for processors: a kernel that goes through a table of them.

To start a kernel takes a processor's driver some microseconds, longer than most steps of a small network. Kernels for
processors have work-items that know nothing of one another, so a single work-item can be all of them in turn. What each
launch is given stands in a table among the constants; which kernels there are, is the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from isthmus.backends.gpu.compile.inlined import INLINED
from isthmus.backends.gpu.compile.kernel_source import Draft
from isthmus.backends.gpu.compile.program import BufferRef, KernelPool, Launch, Local, Unit
from isthmus.backends.gpu.compile.storage import VECTORS

WORTH_A_LAUNCH = 150_000
"""Operations that are worth a launch of their own, as far as one can tell: about what a launch takes."""
HEAD = VECTORS + INLINED
"""What all kernels for processors begin with."""
_FEWEST = 2
_KERNEL = re.compile(
    r"(?P<before>.*?)__attribute__\(\(reqd_work_group_size\([^)]*\)\)\) kernel void "
    r"\w+\((?P<parameters>[^)]*)\)\n(?P<body>.*)",
    re.DOTALL,
)


def merged(
    units: Sequence[Unit],
    launches: Sequence[Launch],
    costs: Sequence[int],
    labels: list[str],
    whole: Callable[[KernelPool, int], BufferRef],
    constant: Callable[[np.ndarray], BufferRef],
) -> tuple[list[Unit], list[Launch]]:
    """The same launches with runs of small ones made one.

    Parameters
    ----------
    costs
        Operations of each launch.
    labels
        What launches are called; those of merged ones are added.
    whole
        All of a pool, as a place that is written.
    constant
        Puts a table among the constants.
    """
    kept: dict[Unit, int] = {}
    result: list[Launch] = []
    run: list[Launch] = []

    def number(unit: Unit) -> int:
        return kept.setdefault(unit, len(kept))

    def end_run() -> None:
        if len(run) < _FEWEST:
            result.extend(replace(launch, unit=number(units[launch.unit])) for launch in run)
        else:
            unit, launch = _sequence(units, run, whole, constant)
            labels.append("; ".join(dict.fromkeys(labels[each.step] for each in run)))
            result.append(replace(launch, unit=number(unit), step=len(labels) - 1))
        run.clear()

    for launch, cost in zip(launches, costs, strict=True):
        if cost < WORTH_A_LAUNCH and _fits(launch):
            run.append(launch)
            continue
        end_run()
        result.append(replace(launch, unit=number(units[launch.unit])))
    end_run()
    return list(kept), result


def _fits(launch: Launch) -> bool:
    """Whether the arguments of a launch can be words of a table."""
    limit = 1 << 31
    for argument in launch.arguments:
        if isinstance(argument, BufferRef):
            if argument.offset >= limit:
                return False
        elif isinstance(argument, Local) or (isinstance(argument, np.integer) and abs(int(argument)) >= limit):
            return False
    return True


def _sequence(
    units: Sequence[Unit],
    run: Sequence[Launch],
    whole: Callable[[KernelPool, int], BufferRef],
    constant: Callable[[np.ndarray], BufferRef],
) -> tuple[Unit, Launch]:
    pools: dict[tuple[KernelPool, int], int] = {}
    kinds: dict[int, int] = {}
    words: list[int] = []
    for launch in run:
        arguments: list[int] = []
        for argument in launch.arguments:
            if isinstance(argument, BufferRef):
                arguments += [pools.setdefault((argument.pool, argument.index), len(pools)), argument.offset]
            elif isinstance(argument, np.float32):
                arguments.append(int(argument.view(np.int32)))
            else:
                arguments.append(int(argument))  # type: ignore[arg-type]
        sizes = (*launch.global_size, 1, 1)[:3]
        kind = kinds.setdefault(launch.unit, len(kinds))
        words += [kind, 5 + len(arguments), *sizes, *arguments]
    functions, cases = [], []
    for unit, kind in kinds.items():
        text, call = _function(units[unit], kind)
        functions.append(text)
        cases.append(f"    case {kind}: EACH({call}) break;")
    draft = Draft()
    for (pool, index), number in pools.items():
        draft.memory(f"pool{number}", whole(pool, index), "uchar")
    draft.memory("table", constant(np.array(words, np.int32)), "int")
    draft.ints(count=len(run))
    body = "\n".join(
        [
            f"  global uchar *pools[{len(pools)}] = {{{', '.join(f'pool{n}' for n in range(len(pools)))}}};",
            "  global const int *t = table;",
            "  for (int i = 0; i < count; ++i) {",
            "    global const int *a = t + 5;",
            "    switch (t[0]) {",
            *cases,
            "    }",
            "    t += t[1];",
            "  }",
        ]
    )
    each = (
        "#define EACH(call) for (int g2 = 0; g2 < t[4]; ++g2) for (int g1 = 0; g1 < t[3]; ++g1)"
        " for (int g0 = 0; g0 < t[2]; ++g0) call;\n"
    )
    preludes = "".join(dict.fromkeys(_parts(units[unit])[0] for unit in kinds))
    source = HEAD + preludes + "".join(functions) + each + draft.source("isthmus_sequence", body, (1,))
    made = Unit(source, units[run[0].unit].options)
    return made, Launch(0, "isthmus_sequence", tuple(draft.arguments), (1,), (1,), run[0].step)


def _parts(unit: Unit) -> tuple[str, str, str]:
    """What stands before the kernel of a unit, its parameters, and its body."""
    found = _KERNEL.fullmatch(unit.source.removeprefix(HEAD))
    assert found is not None
    return found["before"], found["parameters"], found["body"]


def _function(unit: Unit, kind: int) -> tuple[str, str]:
    """A kernel as a function of one work-item, and how the table's words become its arguments."""
    _, parameters, body = _parts(unit)
    arguments = []
    for word, parameter in enumerate(parameters.split(", ")):
        if parameter.endswith("_base"):
            arguments.append(f"pools[a[{word}]]")
        elif parameter.startswith("float"):
            arguments.append(f"as_float(a[{word}])")
        else:
            arguments.append(f"a[{word}]")
    for axis in range(3):
        body = body.replace(f"get_global_id({axis})", f"g{axis}")
    text = f"void f{kind}({parameters}, const int g0, const int g1, const int g2)\n{body}"
    return text, f"f{kind}({', '.join(arguments)}, g0, g1, g2)"


def cost_of(launch: Launch) -> int:
    """Operations of a launch, by the bytes that it touches, where nobody knows better."""
    return prod(launch.global_size) + sum(a.nbytes for a in launch.arguments if isinstance(a, BufferRef))
