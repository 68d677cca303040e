"""The text of product kernels for a CPU: a work-item computes a few rows by a few vectors in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus.backends.gpu.compile.lowering.tiles import CPU_WIDTH, ClTile, batch_lines, result_tile

if TYPE_CHECKING:
    from isthmus.backends.gpu.compile.lowering.chains import Epilogue
    from isthmus.backends.gpu.compile.lowering.product import Left, ResultTarget, Right


def cpu_body(tile: ClTile, left: Left, right: Right, target: ResultTarget, tail: Epilogue, batched: bool) -> str:
    """The text of a kernel whose work-items compute whole tiles."""
    height, vectors, panel = tile.rows, tile.columns // CPU_WIDTH, tile.panel
    vector = f"float{CPU_WIDTH}"
    lines = [
        f"  int n_tile = get_global_id(1) * {tile.columns}, m_first = get_global_id(0) * strips * {height};",
        *batch_lines(batched),
        f"  int m_end = min(m_first + strips * {height}, M);",
    ]
    # Each batch has a bias of whole panels.
    own = f"z * ((N + {panel - 1}) / {panel} * {panel}) + " if batched else ""
    starts = [
        f"*(global const {vector}_u *)(bias + {own}n_tile + {j * CPU_WIDTH})" if right.bias is not None else "0.0f"
        for j in range(vectors)
    ]
    if left.window is not None:
        lines += _window_start(left)
    lines += [
        f"  for (int m_tile = m_first; m_tile < m_end; m_tile += {height}) {{",
        f"  const int rows = min(m_end - m_tile, {height});",
        f"  global const {right.storage.c_type} *b = w + n_tile * K;",
    ]
    lines += [f"  {vector} a0_{j} = {start};" for j, start in enumerate(starts)]
    for r in range(1, height):
        lines += [f"  {vector} a{r}_{j} = a0_{j};" for j in range(vectors)]
    if left.window is None:
        for r in range(height):
            lines.append(f"  global const {left.storage.c_type} *p{r} = x + min(m_tile + {r}, M - 1) * x_step;")
        lines += _core(tile, left, right, "K", "  ")
    else:
        lines += _window(tile, left, right)
    lines.append(f"  float sums[{height * tile.columns}];")
    for r in range(height):
        for j in range(vectors):
            lines.append(f"  *({vector}_u *)(sums + {r * tile.columns + j * CPU_WIDTH}) = a{r}_{j};")
    lines += result_tile(tile, target, tail, f"*({vector}_u *)(sums + {{0}})", "sums[{0}]")
    lines.append("  }")
    return "\n".join(lines)


def _is_flat(left: Left) -> bool:
    w = left.window
    return w is not None and w.size[0] == w.kernel[0] == w.out[0] == 1 and w.pad[0] == 0


def _window_start(left: Left) -> list[str]:
    """Where the first row of results lies; rows after it are counted up, for to divide takes longer than to add."""
    if not _is_flat(left):
        return [
            "  int ox = m_first % OW, oy = m_first / OW % OH, oz = m_first / (OW * OH) % OD;",
            "  int ob = m_first / (OW * OH * OD);",
        ]
    return ["  int ox = m_first % OW, oy = m_first / OW % OH, oz = 0, ob = m_first / (OW * OH);"]


def _core(tile: ClTile, left: Left, right: Right, run: str, indent: str) -> list[str]:
    """Multiply a run of each row by as many rows of the panel."""
    vectors = tile.columns // CPU_WIDTH
    vector = f"float{CPU_WIDTH}"
    lines = [f"for (int c = 0; c < {run}; ++c) {{"]
    for j in range(vectors):
        lines.append(f"  {vector} b{j} = {right.storage.load('b', str(j * CPU_WIDTH), CPU_WIDTH)};")
    lines.append(f"  b += {tile.columns};")
    for r in range(tile.rows):
        value = left.storage.load(f"p{r}", "c") if not left.storage.quantized else f"(float)p{r}[c] - x_zero"
        lines.append(f"  {{ {vector} s = ({vector})({value});")
        lines.append("    " + " ".join(f"a{r}_{j} = s * b{j} + a{r}_{j};" for j in range(vectors)) + " }")
    lines.append("}")
    return [indent + line for line in lines]


def _window(tile: ClTile, left: Left, right: Right) -> list[str]:
    """Walk over the taps of windows. A row of taps that lies inside the image is one run for all rows of the tile."""
    w = left.window
    assert w is not None
    flat = _is_flat(left)
    stored = left.storage.c_type
    lines = []
    for r in range(tile.rows):
        lines.append(f"  int x{r} = ox * sw - pw, y{r} = oy * sh - ph, z{r} = oz * sd - pd, i{r} = ob * D;")
        lines.append(
            f"  if (m_tile + {r + 1} < M && ++ox == OW) {{"
            " ox = 0; if (++oy == OH) { oy = 0; if (++oz == OD) { oz = 0; ++ob; } } }"
        )
    inside = " && ".join(f"x{r} >= 0 && x{r} + KW <= W" for r in range(tile.rows))
    lines.append(f"  int joined = dw == 1 && C == channels && {inside};")
    lines.append("  int taps = joined ? 1 : KW, run = joined ? KW * C : C;")
    if not flat:
        lines.append("  for (int kz = 0; kz < KD; ++kz)")
    lines.append("  for (int ky = 0; ky < KH; ++ky)")
    lines.append("  for (int kx = 0; kx < taps; ++kx) {")
    for r in range(tile.rows):
        checks = [f"(uint)(y{r} + ky * dh) < (uint)H", f"(joined || (uint)(x{r} + kx * dw) < (uint)W)"]
        line = f"i{r} * H + y{r} + ky * dh"
        if not flat:
            checks.append(f"(uint)(z{r} + kz * dd) < (uint)D")
            line = f"(i{r} + z{r} + kz * dd) * H + y{r} + ky * dh"
        lines.append(
            f"    global const {stored} *p{r} = {' && '.join(checks)} "
            f"? x + (({line}) * W + x{r} + kx * dw) * channels : nothing;"
        )
    # The run of a whole row of taps that lies above or below the image is longer than what stands for it.
    outside = " || ".join(f"p{r} == nothing" for r in range(tile.rows))
    lines.append(f"    if (joined && ({outside})) {{")
    lines.append("      for (int kt = 0; kt < KW; ++kt) {")
    lines += _core(tile, left, right, "C", "        ")
    lines += [f"        if (p{r} != nothing) p{r} += C;" for r in range(tile.rows)]
    lines.append("      }")
    lines.append("    } else {")
    lines += _core(tile, left, right, "run", "      ")
    lines.append("    }")
    lines.append("  }")
    return lines
