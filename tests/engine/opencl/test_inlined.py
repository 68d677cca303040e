"""The functions that kernels for processors bring are the functions of OpenCL C."""

from __future__ import annotations

import numpy as np
import pytest
import runner
from support.opencl_device import cl

from isthmus.backends.gpu.compile.program import Unit
from isthmus.backends.gpu.compile.sequences import HEAD

_generator = np.random.default_rng(5)
ONE = {"fabs": np.abs, "rint": np.rint, "floor": np.floor, "exp": np.exp, "tanh": np.tanh}
TWO = {"fmin": np.fmin, "fmax": np.fmax}
_SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 1.5, -2.5, 8388607.5, -8388607.5, 16777217.0, 88.8, -103.9]


def _source() -> str:
    lines = [HEAD, "kernel void functions(global const float *x, global const float *z, global float *y, int n) {"]
    lines += ["  int i = get_global_id(0) * 8, at = 0;"]
    vector = "*(global const float8_u *)({0} + i)"
    for call in (*(f"{f}({{x}})" for f in ONE), *(f"{f}({{x}}, {{z}})" for f in TWO)):
        wide = call.format(x=vector.format("x"), z=vector.format("z"))
        lines.append(f"  *(global float8_u *)(y + at + i) = {wide}; at += n;")
        lines.append(f"  for (int j = i; j < i + 8; ++j) y[at + j] = {call.format(x='x[j]', z='z[j]')}; at += n;")
    return "\n".join([*lines, "}"])


@pytest.fixture(scope="module")
def computed() -> tuple[np.ndarray, np.ndarray, dict[str, list[np.ndarray]]]:
    """Operands, and what each function makes of them: of eight at a time, and one by one."""
    uniform = _generator.uniform
    drawn = [uniform(-110, 95, 4000), _generator.standard_normal(4000), 10 ** uniform(-40, 9, 4000)]
    x = np.concatenate([*drawn, np.repeat(_SPECIAL, 8)]).astype(np.float32)
    z = np.roll(x, 5)
    kernel = cl.Kernel(runner.built(Unit(_source(), ("-cl-std=CL1.2", "-cl-mad-enable"))), "functions")
    result = np.empty((2 * (len(ONE) + len(TWO)), x.size), np.float32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffers = [cl.Buffer(runner.queue().context, flags, hostbuf=array) for array in (x, z, result)]
    kernel.set_args(*buffers, np.int32(x.size))
    cl.enqueue_nd_range_kernel(runner.queue(), kernel, (x.size // 8,), (1,))
    cl.enqueue_copy(runner.queue(), result, buffers[2])
    return x, z, {name: [result[2 * i], result[2 * i + 1]] for i, name in enumerate((*ONE, *TWO))}


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_a_function_is_within_two_units_in_the_last_place(
    name: str, computed: tuple[np.ndarray, np.ndarray, dict[str, list[np.ndarray]]]
) -> None:
    x, z, results = computed
    with np.errstate(all="ignore"):
        exact = ONE[name](x.astype(np.float64)) if name in ONE else TWO[name](x, z).astype(np.float64)
        wanted = exact.astype(np.float32)
    for got in results[name]:
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(got[~finite], wanted[~finite])
        unit = np.spacing(np.maximum(np.abs(wanted[finite]), np.finfo(np.float32).tiny))
        allowed = 2 * unit if name in ("exp", "tanh") else 0
        assert (np.abs(got[finite].astype(np.float64) - exact[finite]) <= allowed).all()
