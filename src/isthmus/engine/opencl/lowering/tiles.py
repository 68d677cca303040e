"""The text of product kernels: how a product is cut into tiles, for processors with vectors and for GPUs.

On a CPU a work-item computes a few rows by a few vectors in registers. On a GPU a work-group computes a tile through
local memory, a work-item of it a square in registers; where there are too few tiles to fill the device, work-items of a
group share the depth of a thin tile and add up at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from isthmus.engine.opencl.traits import DeviceTraits

if TYPE_CHECKING:
    from isthmus.engine.opencl.lowering.chains import Tail
    from isthmus.engine.opencl.lowering.product import Left, Right, Target

_CPU_WIDTH = 8
_CPU_WORTH = 40_000
"""Products that a work-item should have at least."""
_CPU_ITEMS = 16
"""Work-items that a launch should have at least."""
_GPU_PAD = 4


@dataclass(frozen=True)
class Tile:
    """How a product is cut.

    Parameters
    ----------
    rows, columns
        Of a work-group's tile; on a CPU a work-group is one work-item.
    item_rows, item_columns
        Of a work-item's part.
    depth
        How much of a sum is in local memory at a time; 0 without local memory.
    slices
        Work-items that share a sum, each with a part of its depth.
    panel
        Columns of a panel of the right matrix.
    """

    cpu: bool
    rows: int
    columns: int
    item_rows: int
    item_columns: int
    depth: int
    slices: int
    panel: int

    @property
    def thin(self) -> bool:
        """Whether it does without local memory."""
        return not self.cpu and self.depth == 0

    @property
    def group(self) -> tuple[int, int, int]:
        """The size of a work-group."""
        if self.cpu:
            return 1, 1, 1
        if self.thin:
            return self.columns, self.slices, 1
        return self.rows // self.item_rows * (self.columns // self.item_columns) * self.slices, 1, 1

    def strips(self, rows: int, columns: int, batches: int, depth: int) -> int:
        """How many tiles below one another a work-item of a CPU computes: enough to be worth its start."""
        down, across = -(-rows // self.rows), -(-columns // self.columns) * batches
        worth = max(1, _CPU_WORTH // (self.rows * self.columns * max(depth, 1)))
        return max(1, min(worth, down * across // _CPU_ITEMS, down))

    def items(self, rows: int, columns: int, batches: int, depth: int) -> tuple[int, int, int]:
        """Work-items of a launch: rows vary first, then columns, then batches."""
        across, down = -(-columns // self.columns), -(-rows // self.rows)
        group = self.group
        if self.cpu:
            return -(-down // self.strips(rows, columns, batches, depth)), across, batches
        if self.thin:
            return across * group[0], down * group[1], batches
        return down * group[0], across, batches


def product_tile(traits: DeviceTraits, rows: int, columns: int, batches: int, depth: int = 0) -> Tile:
    """The tile for a product of so many rows and columns."""
    if traits.kind == "cpu":
        return _cpu_tile(rows, columns)
    panel = -(-columns // 4) * 4

    def groups(tile: GpuTile) -> int:
        return -(-rows // tile.rows) * -(-columns // tile.columns) * batches

    fitting = [tile for tile in GPU_TILES if groups(tile) * 2 >= traits.compute_units]
    if fitting:
        # Work-groups come in rounds, as many at a time as the device has units.
        best = min(fitting, key=lambda t: -(-groups(t) // traits.compute_units) * t.rows * t.columns / t.speed)
        return Tile(False, best.rows, best.columns, best.item_rows, best.item_columns, best.depth, best.slices, panel)
    height = 1 if rows == 1 else 2
    return Tile(False, height, 32, height, 1, 0, 8 if depth < 256 else 16, panel)


@dataclass(frozen=True)
class GpuTile:
    """A tile of a GPU's work-group, and how fast it is per element beside the fastest, as measured on an H200."""

    rows: int
    columns: int
    depth: int
    item_rows: int
    item_columns: int
    slices: int
    speed: float


GPU_TILES = (
    GpuTile(64, 64, 16, 8, 8, 2, 1.0),
    GpuTile(32, 64, 8, 8, 8, 4, 0.95),
    GpuTile(64, 32, 16, 8, 4, 2, 0.9),
    GpuTile(32, 32, 16, 4, 4, 4, 0.6),
)


def _cpu_tile(rows: int, columns: int) -> Tile:
    if columns <= _CPU_WIDTH:
        vectors = 1
    elif rows <= 2:
        vectors = 4
    else:
        vectors = 3 if -(-columns // 24) * 24 < -(-columns // 16) * 16 else 2
    heights = {1: (1, 2, 4, 8), 2: (4, 6), 3: (4,), 4: (1, 2)}[vectors]
    # Low tiles are less busy than high ones, but may leave fewer rows idle.
    height = min(heights, key=lambda h: -(-rows // h) * (h + 0.6))
    return Tile(True, height, vectors * _CPU_WIDTH, height, vectors * _CPU_WIDTH, 0, 1, vectors * _CPU_WIDTH)


def tile_body(tile: Tile, left: Left, right: Right, target: Target, tail: Tail, batched: bool, whole: bool) -> str:
    """The text of a kernel that computes whole sums."""
    if tile.cpu:
        return _cpu_body(tile, left, right, target, tail, batched)
    return _gpu_body(tile, left, right, target, tail, batched, whole)


def _batch_lines(batched: bool) -> list[str]:
    if not batched:
        return ["  const int y_first = y_start, channel = 0;"]
    return [
        "  int z = get_global_id(2);",
        "  x += table[4 * z]; w += table[4 * z + 1];",
        "  const int y_first = y_start + table[4 * z + 2], channel = table[4 * z + 3];",
    ]


def _split_row(name: str, suffix: str = "") -> str:
    """Statements that take row `name` apart into batch, plane, line and pixel."""
    return (
        f"int ox{suffix} = {name} % OW, oy{suffix} = {name} / OW % OH, oz{suffix} = {name} / (OW * OH) % OD, "
        f"ob{suffix} = {name} / (OW * OH * OD);"
    )


def _result_row(target: Target, m: str) -> list[str]:
    """Statements that give ``y_at``, the first element of a row of results."""
    if target.pixels is None:
        return [f"int y_at = y_first + {m} * y_step;"]
    return [
        _split_row(m, "_y"),
        "int y_at = y_first + ob_y * y_batch + oz_y * y_plane + oy_y * y_row + ox_y * y_pixel;",
    ]


# -- a CPU -------------------------------------------------------------------------------------------------------------


def _cpu_body(tile: Tile, left: Left, right: Right, target: Target, tail: Tail, batched: bool) -> str:
    height, vectors, panel = tile.rows, tile.columns // _CPU_WIDTH, tile.panel
    vector = f"float{_CPU_WIDTH}"
    lines = [
        f"  int n_tile = get_global_id(1) * {tile.columns}, m_first = get_global_id(0) * strips * {height};",
        *_batch_lines(batched),
        f"  int m_end = min(m_first + strips * {height}, M);",
    ]
    # Each batch has a bias of whole panels.
    own = f"z * ((N + {panel - 1}) / {panel} * {panel}) + " if batched else ""
    starts = [
        f"*(global const {vector}_u *)(bias + {own}n_tile + {j * _CPU_WIDTH})" if right.bias is not None else "0.0f"
        for j in range(vectors)
    ]
    if left.window is not None:
        lines += _cpu_window_start(left)
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
        lines += _cpu_core(tile, left, right, "K", "  ")
    else:
        lines += _cpu_window(tile, left, right)
    lines.append(f"  float sums[{height * tile.columns}];")
    for r in range(height):
        for j in range(vectors):
            lines.append(f"  *({vector}_u *)(sums + {r * tile.columns + j * _CPU_WIDTH}) = a{r}_{j};")
    lines += [
        "  for (int r = 0; r < rows; ++r) {",
        *(f"    {line}" for line in _result_row(target, "(m_tile + r)")),
        f"    if (n_tile + {tile.columns} <= N) {{",
        f"      for (int j = 0; j < {tile.columns}; j += {_CPU_WIDTH}) {{",
        f"        {vector} v = *({vector}_u *)(sums + r * {tile.columns} + j);",
        *(f"        {line}" for line in tail.lines(_CPU_WIDTH, "y_at + n_tile + j", "channel + n_tile + j")),
        "      }",
        "    } else {",
        "      int j = 0;",
        f"      for (; j + {_CPU_WIDTH} <= N - n_tile; j += {_CPU_WIDTH}) {{",
        f"        {vector} v = *({vector}_u *)(sums + r * {tile.columns} + j);",
        *(f"        {line}" for line in tail.lines(_CPU_WIDTH, "y_at + n_tile + j", "channel + n_tile + j")),
        "      }",
        "      for (; j < N - n_tile; ++j) {",
        f"        float v = sums[r * {tile.columns} + j];",
        *(f"        {line}" for line in tail.lines(1, "y_at + n_tile + j", "channel + n_tile + j")),
        "      }",
        "    }",
        "  }",
        "  }",
    ]
    return "\n".join(lines)


def _is_flat(left: Left) -> bool:
    w = left.window
    return w is not None and w.size[0] == w.kernel[0] == w.out[0] == 1 and w.pad[0] == 0


def _cpu_window_start(left: Left) -> list[str]:
    """Where the first row of results lies; rows after it are counted up, for to divide takes longer than to add."""
    if not _is_flat(left):
        return [
            "  int ox = m_first % OW, oy = m_first / OW % OH, oz = m_first / (OW * OH) % OD;",
            "  int ob = m_first / (OW * OH * OD);",
        ]
    return ["  int ox = m_first % OW, oy = m_first / OW % OH, oz = 0, ob = m_first / (OW * OH);"]


def _cpu_core(tile: Tile, left: Left, right: Right, run: str, indent: str) -> list[str]:
    """Multiply a run of each row by as many rows of the panel."""
    vectors = tile.columns // _CPU_WIDTH
    vector = f"float{_CPU_WIDTH}"
    lines = [f"for (int c = 0; c < {run}; ++c) {{"]
    for j in range(vectors):
        lines.append(f"  {vector} b{j} = {right.storage.load('b', str(j * _CPU_WIDTH), _CPU_WIDTH)};")
    lines.append(f"  b += {tile.columns};")
    for r in range(tile.rows):
        value = left.storage.load(f"p{r}", "c") if not left.storage.quantized else f"(float)p{r}[c] - x_zero"
        lines.append(f"  {{ {vector} s = ({vector})({value});")
        lines.append("    " + " ".join(f"a{r}_{j} = s * b{j} + a{r}_{j};" for j in range(vectors)) + " }")
    lines.append("}")
    return [indent + line for line in lines]


def _cpu_window(tile: Tile, left: Left, right: Right) -> list[str]:
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
    lines += _cpu_core(tile, left, right, "C", "        ")
    lines += [f"        if (p{r} != nothing) p{r} += C;" for r in range(tile.rows)]
    lines.append("      }")
    lines.append("    } else {")
    lines += _cpu_core(tile, left, right, "run", "      ")
    lines.append("    }")
    lines.append("  }")
    return lines


# -- a GPU -------------------------------------------------------------------------------------------------------------


def _gpu_rows(left: Left, rows: str, count: int) -> list[str]:
    """Statements that find where each of `count` rows begins in the left operand; `rows` gives row r."""
    lines = []
    for r in range(count):
        lines.append(f"  int m{r} = min({rows.format(r=r)}, M - 1);")
        if left.window is None:
            lines.append(f"  int at{r} = m{r} * x_step;")
        else:
            lines.append(
                f"  int x{r} = m{r} % OW * sw - pw, y{r} = m{r} / OW % OH * sh - ph, "
                f"z{r} = m{r} / (OW * OH) % OD * sd - pd;"
            )
            lines.append(f"  int at{r} = (((m{r} / (OW * OH * OD) * D + z{r}) * H + y{r}) * W + x{r}) * channels;")
    return lines


def _gpu_load(left: Left, r: int, k: str, width: int, aligned: bool, tap: str | None = None) -> tuple[list[str], str]:
    """Statements and an expression for `width` elements of row r from element k on, zeros outside the operand."""
    wide = "" if width == 1 else str(width)
    if left.window is None:
        return [], f"({k} < K ? {_left_value(left, f'at{r} + {k}', width, aligned)} : (float{wide})(0.0f))"
    inside = f"(uint)(y{r} + {tap}.y) < (uint)H && (uint)(x{r} + {tap}.z) < (uint)W && (uint)(z{r} + {tap}.x) < (uint)D"
    return [], (
        f"({k} < K && {inside} ? {_left_value(left, f'at{r} + {tap}.w', width, aligned)} : (float{wide})(0.0f))"
    )


def _left_value(left: Left, index: str, width: int, aligned: bool) -> str:
    if not left.storage.quantized:
        return left.storage.load("x", index, width, aligned)
    if width == 1:
        return f"((float)x[{index}] - x_zero)"
    return f"(convert_float{width}(*(global const {left.storage.c_type}{width}_u *)(x + ({index}))) - x_zero)"


def _slice_memory(tile: Tile, threads: int) -> list[str]:
    """Local memory of all slices, each with two buffers for either operand; their sums meet there at the end."""
    bm, bn, bk = tile.rows, tile.columns, tile.depth
    if tile.slices == 1:
        return [
            f"  local float As[2][{bk}][{bm + _GPU_PAD}] __attribute__((aligned(16)));",
            f"  local float Bs[2][{bk}][{bn}] __attribute__((aligned(16)));",
            "  const int t = get_local_id(0);",
        ]
    per_slice = 2 * bk * (bm + _GPU_PAD + bn)
    sums = tile.slices // 2 * tile.item_rows * tile.item_columns * threads
    return [
        f"  local float memory[{max(per_slice * tile.slices, sums)}] __attribute__((aligned(16)));",
        f"  const int t = get_local_id(0) % {threads}, slice = get_local_id(0) / {threads};",
        f"  local float (*As)[{bk}][{bm + _GPU_PAD}] =",
        f"    (local float (*)[{bk}][{bm + _GPU_PAD}])(memory + slice * {per_slice});",
        f"  local float (*Bs)[{bk}][{bn}] =",
        f"    (local float (*)[{bk}][{bn}])(memory + slice * {per_slice} + {2 * bk * (bm + _GPU_PAD)});",
    ]


def _slice_sums(tile: Tile, threads: int) -> list[str]:
    """Statements that add the sums of all slices up in the first, whose work-items go on alone."""
    if tile.slices == 1:
        return []
    elements = tile.item_rows * tile.item_columns
    place = f"memory[(({{s}}) * {elements} + i * {tile.item_columns} + j) * {threads} + t]"
    every = (
        f'_Pragma("unroll") for (int i = 0; i < {tile.item_rows}; ++i) '
        f'_Pragma("unroll") for (int j = 0; j < {tile.item_columns}; ++j) '
    )
    lines, half = ["  barrier(CLK_LOCAL_MEM_FENCE);"], tile.slices // 2
    while half:
        lines += [
            f"  if (slice >= {half} && slice < {2 * half}) {{",
            f"    {every}{place.format(s=f'slice - {half}')} = acc[i][j]; }}",
            "  barrier(CLK_LOCAL_MEM_FENCE);",
            f"  if (slice < {half}) {{ {every}acc[i][j] += {place.format(s='slice')}; }}",
            "  barrier(CLK_LOCAL_MEM_FENCE);",
        ]
        half //= 2
    return [*lines, "  if (slice) return;"]


def _gpu_body(tile: Tile, left: Left, right: Right, target: Target, tail: Tail, batched: bool, whole: bool) -> str:
    bm, bn, bk, tm, tn = tile.rows, tile.columns, tile.depth, tile.item_rows, tile.item_columns
    slices, threads = tile.slices, tile.group[0] // tile.slices
    # The left operand is read four elements of the depth at a time where those are neighbours, else one by one.
    channels_whole = left.depth % 4 == 0 and (
        left.window is None or left.window.channels // left.window.groups % 4 == 0
    )
    width = 4 if channels_whole else 1
    a_loads, b_loads = bm * bk // width // threads, bk * bn // 4 // threads
    a_per_row, b_per_row = bk // width, bn // 4
    lines = [
        *_slice_memory(tile, threads),
        f"  const int m_tile = get_group_id(0) * {bm}, n_tile = get_group_id(1) * {bn};",
        *_batch_lines(batched),
        f"  const int ka = t % {a_per_row} * {width}, ra = t / {a_per_row};",
        f"  const int nb = t % {b_per_row} * 4, rb = t / {b_per_row};",
        "  const int NP = (N + 3) / 4 * 4;",
    ]
    assert threads % a_per_row == 0 and threads % b_per_row == 0  # noqa: PT018
    lines += _gpu_rows(left, f"m_tile + ra + {{r}} * {threads // a_per_row}", a_loads)
    vector = "float4" if width == 4 else "float"
    lines += [f"  {vector} la{i};" for i in range(a_loads)]
    lines += [f"  float4 lb{i};" for i in range(b_loads)]
    rows, columns = tm // 4 or 1, tn // 4 or 1
    rw, cw = min(tm, 4), min(tn, 4)
    lines += [
        f"  const int tx = t % {bn // tn}, ty = t / {bn // tn};",
        f"  float acc[{tm}][{tn}];",
        "  #pragma unroll",
        f"  for (int i = 0; i < {tm}; ++i)",
        "    #pragma unroll",
        f"    for (int j = 0; j < {tn}; ++j) acc[i][j] = 0.0f;",
    ]

    def fetch(k: str) -> list[str]:
        found = []
        tap = None
        if left.window is not None:
            found.append(f"int4 tap = taps[min({k} + ka, K - 1)];")
            tap = "tap"
        for i in range(a_loads):
            _, value = _gpu_load(left, i, f"({k} + ka)", width, whole, tap)
            found.append(f"la{i} = {value};")
        for i in range(b_loads):
            row = f"({k} + rb + {i * (threads // b_per_row)})"
            value = right.storage.load("w", f"{row} * NP + n_tile + nb", 4, right.storage.kind == "f32")
            found.append(f"lb{i} = {row} < K && n_tile + nb < NP ? {value} : (float4)(0.0f);")
        return found

    def keep(buffer: str) -> list[str]:
        kept = []
        for i in range(a_loads):
            row = f"ra + {i * (threads // a_per_row)}"
            if width == 4:
                kept += [f"As[{buffer}][ka + {j}][{row}] = la{i}.s{j};" for j in range(4)]
            else:
                kept.append(f"As[{buffer}][ka][{row}] = la{i};")
        for i in range(b_loads):
            kept.append(f"*(local float4 *)&Bs[{buffer}][rb + {i * (threads // b_per_row)}][nb] = lb{i};")
        return kept

    first = f"(slice * {bk})" if slices > 1 else "0"
    lines += ["  {", *(f"    {line}" for line in fetch(first)), "  }"]
    lines += [f"  {line}" for line in keep("0")]
    lines += [
        "  barrier(CLK_LOCAL_MEM_FENCE);",
        "  int now = 0;",
        f"  for (int k0 = 0; k0 < K; k0 += {bk * slices}) {{",
        f"    const int more = k0 + {bk * slices} < K;",
        "    if (more) {",
        *(f"      {line}" for line in fetch(f"(k0 + {first} + {bk * slices})")),
        "    }",
        "    #pragma unroll",
        f"    for (int kk = 0; kk < {bk}; ++kk) {{",
        f"      float a[{tm}], b[{tn}];",
    ]
    fa, fb = ("float" if n == 1 else f"float{n}" for n in (rw, cw))
    for g in range(rows):
        lines.append(f"      {{ {fa} q = *(local {fa} *)&As[now][kk][{g * (bm // rows)} + ty * {rw}];")
        lines.append(
            "        " + " ".join(f"a[{g * rw + i}] = {f'q.s{i}' if rw > 1 else 'q'};" for i in range(rw)) + " }"
        )
    for g in range(columns):
        lines.append(f"      {{ {fb} q = *(local {fb} *)&Bs[now][kk][{g * (bn // columns)} + tx * {cw}];")
        lines.append(
            "        " + " ".join(f"b[{g * cw + i}] = {f'q.s{i}' if cw > 1 else 'q'};" for i in range(cw)) + " }"
        )
    lines += [
        "      #pragma unroll",
        f"      for (int i = 0; i < {tm}; ++i)",
        "        #pragma unroll",
        f"        for (int j = 0; j < {tn}; ++j) acc[i][j] = fma(a[i], b[j], acc[i][j]);",
        "    }",
        "    if (more) {",
        "      now ^= 1;",
        *(f"      {line}" for line in keep("now")),
        "      barrier(CLK_LOCAL_MEM_FENCE);",
        "    }",
        "  }",
        *_slice_sums(tile, threads),
        "  #pragma unroll",
        f"  for (int i = 0; i < {tm}; ++i) {{",
        f"    const int m = m_tile + i / {rw} * {bm // rows} + ty * {rw} + i % {rw};",
        "    if (m < M) {",
        *(f"      {line}" for line in _result_row(target, "m")),
        "      #pragma unroll",
        f"      for (int g = 0; g < {columns}; ++g) {{",
        f"        const int n = n_tile + g * {bn // columns} + tx * {cw};",
    ]
    lines += _gpu_store(right, tail, batched, whole, cw, [f"acc[i][g * {cw} + {j}]" for j in range(cw)], "        ")
    lines += ["      }", "    }", "  }"]
    return "\n".join(lines)


def _gpu_store(
    right: Right, tail: Tail, batched: bool, whole: bool, count: int, values: list[str], indent: str
) -> list[str]:
    """Statements that finish and store `count` neighbouring sums from column n on."""
    bias = "z * NP + n" if batched else "n"
    lines = []
    scalar_values = values
    if count == 4:
        lines += ["if (n + 4 <= N) {", f"  float4 v = (float4)({', '.join(values)});"]
        if right.bias is not None:
            lines.append(f"  v += *(global const float4 *)(bias + {bias});")
        lines += [f"  {line}" for line in tail.lines(4, "y_at + n", "channel + n", whole)]
        lines.append("} else {")
    else:
        lines.append("{")
    for j, value in enumerate(scalar_values):
        lines.append(f"  if (n + {j} < N) {{ float v = {value};")
        if right.bias is not None:
            lines.append(f"    v += bias[{bias} + {j}];")
        lines += [f"    {line}" for line in tail.lines(1, f"y_at + n + {j}", f"channel + n + {j}")]
        lines.append("  }")
    lines.append("}")
    return [indent + line for line in lines]


def thin_body(tile: Tile, left: Left, right: Right, target: Target, tail: Tail, batched: bool, whole: bool) -> str:
    """The text of a kernel whose work-items share the depth of each sum."""
    height, lanes, slices = tile.rows, tile.columns, tile.slices
    channels_whole = left.depth % 4 == 0 and (
        left.window is None or left.window.channels // left.window.groups % 4 == 0
    )
    width = 4 if channels_whole else 1
    lines = [
        f"  local float parts[{slices}][{height}][{lanes}];",
        "  const int lane = get_local_id(0), slice = get_local_id(1);",
        f"  const int n = get_group_id(0) * {lanes} + lane, m_tile = get_group_id(1) * {height};",
        *_batch_lines(batched),
        "  const int NP = (N + 3) / 4 * 4;",
        *_gpu_rows(left, "m_tile + {r}", height),
        *(f"  float a{r} = 0.0f;" for r in range(height)),
        "  const int column = min(n, N - 1);",
        f"  for (int k = slice * {width}; k < K; k += {slices * width}) {{",
    ]
    tap = None
    if left.window is not None:
        lines.append("    const int4 tap = taps[k];")
        tap = "tap"
    for j in range(width):
        lines.append(f"    const float b{j} = {right.storage.load('w', f'(k + {j}) * NP + column')};")
    vector = "float4" if width == 4 else "float"
    for r in range(height):
        _, value = _gpu_load(left, r, "k", width, whole, tap)
        lines.append(f"    const {vector} v{r} = {value};")
        if width == 1:
            lines.append(f"    a{r} = fma(v{r}, b0, a{r});")
        else:
            lines += [f"    a{r} = fma(v{r}.s{j}, b{j}, a{r});" for j in range(4)]
    lines.append("  }")
    lines += [f"  parts[slice][{r}][lane] = a{r};" for r in range(height)]
    lines += [
        "  barrier(CLK_LOCAL_MEM_FENCE);",
        f"  for (int r = slice; r < {height}; r += {slices}) {{",
        "    const int m = m_tile + r;",
        "    if (m < M && n < N) {",
        "      float v = 0.0f;",
        f"      for (int s = 0; s < {slices}; ++s) v += parts[s][r][lane];",
        *(f"      {line}" for line in _result_row(target, "m")),
    ]
    if right.bias is not None:
        lines.append(f"      v += bias[{'z * NP + n' if batched else 'n'}];")
    lines += [f"      {line}" for line in tail.lines(1, "y_at + n", "channel + n")]
    lines += ["    }", "  }"]
    return "\n".join(lines)
