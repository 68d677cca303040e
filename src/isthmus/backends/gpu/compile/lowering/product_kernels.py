"""The source of product kernels.

On a GPU a work-group computes a tile through local memory, and each work-item a square of it in registers. If there are
too few tiles to fill the device, the work-items of a group share the depth of a thin tile and add their sums at the
end. On a CPU each work-item computes a small tile alone, because local memory and barriers only cost time there.

In the kernels, x is the left operand with M rows, w the packed right one with N columns, K the length of a sum, and NP
the number of columns with padding. Parameters that all bodies have: `left`, `right` and `target` are the operands and
the destination of results, `tail` is what happens to a sum before it is stored, `batched` tells whether there is a
table of batches, and `aligned` whether vectors of four elements are aligned to their size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus.backends.gpu.compile.lowering.tiles import CPU_WIDTH, ClTile, batch_lines, result_row

if TYPE_CHECKING:
    from isthmus.backends.gpu.compile.lowering.chains import Epilogue
    from isthmus.backends.gpu.compile.lowering.product import Left, ResultTarget, Right

# Floats of padding between rows of local memory, to avoid bank conflicts.
_PAD = 4


def _rows(left: Left, rows: str, count: int) -> list[str]:
    """Return statements that compute where each of `count` rows begins in the left operand."""
    # `rows` is a format for the number of row r. Rows behind the last are replaced by the last. For windows, x, y and z
    # are the position of the first element, which may be outside the image.
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


def _suffix(width: int) -> str:
    """Return the suffix of a vector type's name."""
    return "" if width == 1 else str(width)


def _depth_width(left: Left) -> int:
    """Return how many elements of the depth are read at a time: four if they are adjacent, else one."""
    window = left.window
    neighbours = left.depth % 4 == 0 and (window is None or window.channels // window.groups % 4 == 0)
    return 4 if neighbours else 1


def _load(left: Left, r: int, k: str, width: int, aligned: bool, tap: str) -> str:
    """Return an expression for `width` elements of row r from element k on, with zeros outside the operand."""
    # `tap` names the entry of the table of taps for element k: its position in the window, and its offset in memory.
    inside, index = f"{k} < K", f"at{r} + {k}"
    if left.window is not None:
        inside += f" && (uint)(y{r} + {tap}.y) < (uint)H && (uint)(x{r} + {tap}.z) < (uint)W"
        inside, index = f"{inside} && (uint)(z{r} + {tap}.x) < (uint)D", f"at{r} + {tap}.w"
    value = left.storage.load_whole("x", index, width, aligned)
    return f"({inside} ? {value} : (float{_suffix(width)})(0.0f))"


def _slice_memory(tile: ClTile, threads: int) -> list[str]:
    """Return statements that declare local memory: for each slice two buffers per operand, at the end its sums."""
    # `threads` is the number of work-items of a slice. ``As`` and ``Bs`` are the buffers of the left and right operand,
    # and ``t`` is the number of the work-item in its slice.
    bm, bn, bk = tile.rows, tile.columns, tile.depth
    if tile.slices == 1:
        return [
            f"  local float As[2][{bk}][{bm + _PAD}] __attribute__((aligned(16)));",
            f"  local float Bs[2][{bk}][{bn}] __attribute__((aligned(16)));",
            "  const int t = get_local_id(0);",
        ]
    per_slice = 2 * bk * (bm + _PAD + bn)
    sums = tile.slices // 2 * tile.item_rows * tile.item_columns * threads
    return [
        f"  local float memory[{max(per_slice * tile.slices, sums)}] __attribute__((aligned(16)));",
        f"  const int t = get_local_id(0) % {threads}, slice = get_local_id(0) / {threads};",
        f"  local float (*As)[{bk}][{bm + _PAD}] =",
        f"    (local float (*)[{bk}][{bm + _PAD}])(memory + slice * {per_slice});",
        f"  local float (*Bs)[{bk}][{bn}] =",
        f"    (local float (*)[{bk}][{bn}])(memory + slice * {per_slice} + {2 * bk * (bm + _PAD)});",
    ]


def _slice_sums(tile: ClTile, threads: int) -> list[str]:
    """Return statements that add the sums of all slices into the first, whose work-items continue alone."""
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


def gpu_body(
    tile: ClTile, left: Left, right: Right, target: ResultTarget, tail: Epilogue, batched: bool, aligned: bool
) -> str:
    """Return the body of a kernel whose work-groups compute tiles through local memory.

    The depth is processed in parts of `bk` elements. While a part is multiplied, the next one is fetched into
    registers, and then stored in the other of two buffers. Each slice of a work-group takes every n-th part.
    """
    # A work-group's tile is bm x bn, a work-item's part of it tm x tn.
    bm, bn, bk, tm, tn = tile.rows, tile.columns, tile.depth, tile.item_rows, tile.item_columns
    slices, threads = tile.slices, tile.group[0] // tile.slices
    width = _depth_width(left)
    # Loads of each work-item for a part of the left (a) and right (b) operand, and work-items for a row of it.
    a_loads, b_loads = bm * bk // width // threads, bk * bn // 4 // threads
    a_per_row, b_per_row = bk // width, bn // 4
    lines = [
        *_slice_memory(tile, threads),
        f"  const int m_tile = get_group_id(0) * {bm}, n_tile = get_group_id(1) * {bn};",
        *batch_lines(batched),
        f"  const int ka = t % {a_per_row} * {width}, ra = t / {a_per_row};",
        f"  const int nb = t % {b_per_row} * 4, rb = t / {b_per_row};",
        "  const int NP = (N + 3) / 4 * 4;",
    ]
    assert threads % a_per_row == 0 and threads % b_per_row == 0  # noqa: PT018
    lines += _rows(left, f"m_tile + ra + {{r}} * {threads // a_per_row}", a_loads)
    vector = "float4" if width == 4 else "float"
    lines += [f"  {vector} la{i};" for i in range(a_loads)]
    lines += [f"  float4 lb{i};" for i in range(b_loads)]
    # A work-item's part consists of blocks of up to 4 x 4, `rows` by `columns` of them, spread over the tile so that
    # work-items read adjacent vectors of local memory.
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
        """Return statements that load the part from element k on into registers."""
        loads = [f"int4 tap = taps[min({k} + ka, K - 1)];"] if left.window is not None else []
        loads += [f"la{i} = {_load(left, i, f'({k} + ka)', width, aligned, 'tap')};" for i in range(a_loads)]
        for i in range(b_loads):
            row = f"({k} + rb + {i * (threads // b_per_row)})"
            value = right.storage.load("w", f"{row} * NP + n_tile + nb", 4, right.storage.kind == "f32")
            loads.append(f"lb{i} = {row} < K && n_tile + nb < NP ? {value} : (float4)(0.0f);")
        return loads

    def keep(buffer: str) -> list[str]:
        """Return statements that store the loaded part in a buffer of local memory, the left operand transposed."""
        stores = []
        for i in range(a_loads):
            row = f"ra + {i * (threads // a_per_row)}"
            if width == 4:
                stores += [f"As[{buffer}][ka + {j}][{row}] = la{i}.s{j};" for j in range(4)]
            else:
                stores.append(f"As[{buffer}][ka][{row}] = la{i};")
        for i in range(b_loads):
            stores.append(f"*(local float4 *)&Bs[{buffer}][rb + {i * (threads // b_per_row)}][nb] = lb{i};")
        return stores

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
        *(f"      {line}" for line in result_row(target, "m")),
        "      #pragma unroll",
        f"      for (int g = 0; g < {columns}; ++g) {{",
        f"        const int n = n_tile + g * {bn // columns} + tx * {cw};",
    ]
    lines += _store(right, tail, batched, aligned, cw, [f"acc[i][g * {cw} + {j}]" for j in range(cw)], "        ")
    lines += ["      }", "    }", "  }"]
    return "\n".join(lines)


def _store(
    right: Right, tail: Epilogue, batched: bool, aligned: bool, count: int, values: list[str], indent: str
) -> list[str]:
    """Return statements that finish and store `count` adjacent sums from column n on."""
    # `values` are expressions for the sums. Four are stored as a vector, unless some are behind the last column.
    bias = "z * NP + n" if batched else "n"
    lines = []
    if count == 4:
        lines += ["if (n + 4 <= N) {", f"  float4 v = (float4)({', '.join(values)});"]
        if right.bias is not None:
            lines.append(f"  v += *(global const float4 *)(bias + {bias});")
        lines += [f"  {line}" for line in tail.lines(4, "y_at + n", "channel + n", aligned)]
        lines.append("} else {")
    else:
        lines.append("{")
    for j, value in enumerate(values):
        lines.append(f"  if (n + {j} < N) {{ float v = {value};")
        if right.bias is not None:
            lines.append(f"    v += bias[{bias} + {j}];")
        lines += [f"    {line}" for line in tail.lines(1, f"y_at + n + {j}", f"channel + n + {j}")]
        lines.append("  }")
    lines.append("}")
    return [indent + line for line in lines]


def thin_body(
    tile: ClTile, left: Left, right: Right, target: ResultTarget, tail: Epilogue, batched: bool, aligned: bool
) -> str:
    """Return the body of a kernel whose work-items share the depth of each sum.

    A work-item (lane, slice) adds up every n-th element of the sums of one column; then the slices are added.
    """
    height, lanes, slices = tile.rows, tile.columns, tile.slices
    width = _depth_width(left)
    lines = [
        f"  local float parts[{slices}][{height}][{lanes}];",
        "  const int lane = get_local_id(0), slice = get_local_id(1);",
        f"  const int n = get_group_id(0) * {lanes} + lane, m_tile = get_group_id(1) * {height};",
        *batch_lines(batched),
        "  const int NP = (N + 3) / 4 * 4;",
        *_rows(left, "m_tile + {r}", height),
        *(f"  float a{r} = 0.0f;" for r in range(height)),
        "  const int column = min(n, N - 1);",
        f"  for (int k = slice * {width}; k < K; k += {slices * width}) {{",
    ]
    if left.window is not None:
        lines.append("    const int4 tap = taps[k];")
    for j in range(width):
        lines.append(f"    const float b{j} = {right.storage.load('w', f'(k + {j}) * NP + column')};")
    vector = "float4" if width == 4 else "float"
    for r in range(height):
        lines.append(f"    const {vector} v{r} = {_load(left, r, 'k', width, aligned, 'tap')};")
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
        *(f"      {line}" for line in result_row(target, "m")),
    ]
    if right.bias is not None:
        lines.append(f"      v += bias[{'z * NP + n' if batched else 'n'}];")
    lines += [f"      {line}" for line in tail.lines(1, "y_at + n", "channel + n")]
    lines += ["    }", "  }"]
    return "\n".join(lines)


def cpu_body(tile: ClTile, left: Left, right: Right, target: ResultTarget, tail: Epilogue, batched: bool) -> str:
    """Return the body of a kernel whose work-items compute whole tiles, in variables that stay in registers."""
    height, columns, vector = tile.rows, tile.columns, f"float{CPU_WIDTH}"
    width = _depth_width(left)
    sums = [(r, j) for r in range(height) for j in range(columns // CPU_WIDTH)]
    lines = [
        f"  const int m_tile = get_global_id(0) * {height}, n_tile = get_global_id(1) * {columns};",
        *batch_lines(batched),
        f"  const int NP = (N + {columns - 1}) / {columns} * {columns};",
        *_rows(left, "m_tile + {r}", height),
        *(f"  {vector} a{r}_{j} = ({vector})(0.0f);" for r, j in sums),
        f"  for (int k = 0; k < K; k += {width}) {{",
        *(["    const int4 tap = taps[k];"] if left.window is not None else []),
    ]
    for r in range(height):
        lines.append(f"    const float{_suffix(width)} v{r} = {_load(left, r, 'k', width, False, 'tap')};")
    for i in range(width):
        part = f".s{i}" if width > 1 else ""
        for j in range(columns // CPU_WIDTH):
            place = f"(k + {i}) * NP + n_tile + {j * CPU_WIDTH}"
            lines.append(f"    {{ const {vector} b = {right.storage.load('w', place, CPU_WIDTH)};")
            lines.append("      " + " ".join(f"a{r}_{j} = v{r}{part} * b + a{r}_{j};" for r in range(height)) + " }")
    lines += ["  }", f"  float sums[{height * columns}];"]
    lines += [f"  *({vector}_u *)(sums + {r * columns + j * CPU_WIDTH}) = a{r}_{j};" for r, j in sums]
    lines += [
        f"  for (int r = 0; r < {height} && m_tile + r < M; ++r) {{",
        *(f"    {line}" for line in result_row(target, "(m_tile + r)")),
        f"    for (int n = n_tile; n < min(n_tile + {columns}, N); n += 4) {{",
        f"      const float *s = sums + r * {columns} + n - n_tile;",
        *_store(right, tail, batched, False, 4, [f"s[{i}]" for i in range(4)], "      "),
        "    }",
        "  }",
    ]
    return "\n".join(lines)
