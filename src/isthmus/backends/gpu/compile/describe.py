"""Readable descriptions of launches, for debugging and for reports on a program."""

from __future__ import annotations

import re
from collections.abc import Iterator

from isthmus.backends.gpu.compile.program import BufferRef, KernelPool, KernelProgram


def describe(program: KernelProgram, index: int) -> str:
    """Describe a launch with the names of its arguments; memory is shown as a pool or tensor and a byte range."""
    launch = program.launches[index]
    names = _parameters(program.units[launch.unit].source, launch.kernel)
    words = []
    for argument in launch.arguments:
        name = next(names)
        if isinstance(argument, BufferRef):
            # Its second parameter is the offset.
            next(names)
            words.append(f"{name.removesuffix('_base')}={_place(program, argument)}")
        else:
            words.append(f"{name}={argument:g}")
    sizes = "x".join(map(str, launch.global_size)), "x".join(map(str, launch.local_size))
    return f"{launch.kernel}({', '.join(words)}) over {sizes[0]} in groups of {sizes[1]}"


def _parameters(source: str, kernel: str) -> Iterator[str]:
    """Return the names of a kernel's parameters, from its source."""
    declaration = re.search(rf"kernel void {kernel}\(([^)]*)\)", source)
    assert declaration is not None
    return iter(re.split(r"[\s*]+", parameter.strip())[-1] for parameter in declaration.group(1).split(","))


def _place(program: KernelProgram, place: BufferRef) -> str:
    """Describe memory: the name of a tensor or pool, the first byte, the number of bytes, whether it is written."""
    if place.pool is KernelPool.INPUT:
        name = program.inputs[place.index].name
    elif place.pool is KernelPool.OUTPUT:
        name = program.outputs[place.index].name
    else:
        name = place.pool.name.lower()
    return f"{name}+{place.offset}:{place.nbytes}{' written' if place.writes else ''}"
