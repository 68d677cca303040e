"""Products of 8-bit rows with constant 8-bit matrices on a processor: whole numbers, four to a word.

A row's bytes are multiplied as 0 to 255 (signed ones have their first bit flipped), a matrix's as -128 to 127, and four
products at a time are added to a sum of 32 bits. What zero points contribute is known beforehand, and the sum begins
with it. The matrix is packed [panel][words of depth][columns][4]. Windows are gathered from an image row by row first,
so that they are runs of memory too.

Processors with AVX-512 VNNI have an instruction for it that OpenCL C knows no name for (`DeviceTraits.vnni`); others
add products of 16 bits in pairs. At most 2 * 255 * 128 is added at a time, which 32 bits hold with ease, and sums are
taken modulo 2**32, so that only the whole one must fit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isthmus.backends.gpu.compile.lowering.chains import Epilogue
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter, Link
from isthmus.backends.gpu.compile.lowering.product import Left, ResultTarget, declare_window
from isthmus.backends.gpu.compile.lowering.tiles import (
    CPU_WIDTH,
    ENOUGH_ITEMS,
    ClTile,
    batch_lines,
    product_tile,
    result_tile,
)
from isthmus.backends.gpu.compile.traits import DeviceTraits
from isthmus.graph import Tensor
from isthmus.prepare.geometry.windows import ConvWindow

DEEPEST = 1 << 15
"""Terms of a sum that fits into 32 bits, whatever the operands hold: 2**15 * 255 * 128 is below 2**30."""
_GATHERED = 1 << 16
"""Bytes of windows that a work-item gathers at most; they are on its stack."""

_COMMON = """typedef uint word_u __attribute__((aligned(1)));
typedef uchar16 bytes_u __attribute__((aligned(1)));
uint last_word(global const uchar *p, int count) {
  uint word = p[0];
  if (count > 1) word |= (uint)p[1] << 8;
  if (count > 2) word |= (uint)p[2] << 16;
  return word;
}
void take(uchar *to, global const uchar *from, int count) {
  int i = 0;
  for (; i + 16 <= count; i += 16) *(bytes_u *)(to + i) = *(global const bytes_u *)(from + i);
  for (; i + 4 <= count; i += 4) *(word_u *)(to + i) = *(global const word_u *)(from + i);
  for (; i < count; ++i) to[i] = from[i];
}
void fill(uchar *to, uchar value, int count) {
  int i = 0;
  for (; i + 16 <= count; i += 16) *(bytes_u *)(to + i) = (uchar16)(value);
  for (; i < count; ++i) to[i] = value;
}
"""
_PAIRS = """#define SPREAD(u, word) u = (uint8)(word)
#if defined(__AVX2__) && defined(__clang__)
int8 pairs(short16 a, short16 b) { return __builtin_ia32_pmaddwd256(a, b); }
#else
int8 pairs(short16 a, short16 b) {
  return convert_int8(a.even) * convert_int8(b.even) + convert_int8(a.odd) * convert_int8(b.odd);
}
#endif
int8 dot(int8 sum, uint8 u, int8 w) {
  short16 even = (as_short16(w) << (short16)(8)) >> (short16)(8), odd = as_short16(w) >> (short16)(8);
  int8 more = pairs(as_short16(u & 0x00ff00ffu), even) + pairs(as_short16(u >> 8 & 0x00ff00ffu), odd);
  return as_int8(as_uint8(sum) + as_uint8(more));
}
"""
# The compiler would flip bits before it spreads a word over a vector, in a register that is far from vectors.
_VNNI = """#define SPREAD(u, word) __asm__("vpbroadcastd %1, %0" : "=x"(u) : "m"(word))
int8 dot(int8 sum, uint8 u, int8 w) {
  __asm__("vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(u), "x"(w));
  return sum;
}
"""


def covers(traits: DeviceTraits, x: Tensor, weights: Tensor, depth: int) -> bool:
    """Whether a product of these operands is one of bytes; it depends on their types and zero points alone."""
    if traits.kind != "cpu" or not 0 < depth <= DEEPEST or not weights.is_static:
        return False
    if not all(t.dtype.is_fixed_point and t.dtype.itemsize == 1 for t in (x, weights)):
        return False
    assert x.quantization is not None
    assert weights.quantization is not None
    if not np.iinfo(x.dtype.numpy).min <= x.quantization.zero_point <= np.iinfo(x.dtype.numpy).max:
        return False
    limits, offsets = np.iinfo(weights.dtype.numpy), weights.quantization.offsets
    return bool(limits.min + min(offsets) >= -128 and limits.max + max(offsets) <= 127)


def emit_byte_product(
    e: KernelEmitter,
    left: Left,
    matrices: np.ndarray,
    biases: np.ndarray | None,
    target: ResultTarget,
    links: Sequence[Link],
    batches: Sequence[tuple[int, int, int]] = (),
) -> None:
    """Emit a product of bytes with whole numbers [count, depth, columns] from -128 to 127.

    Parameters
    ----------
    biases
        What is added to the sums of [count * columns], whole numbers.
    batches
        For each batch where it begins, in elements of the rows and of the result, and the first channel; none for a
        single one. There is a matrix for each.
    """
    matrices = matrices.astype(np.int8)
    count, depth, columns = matrices.shape
    tile = _tile(e.traits, left, columns)
    flip = left.storage.kind == "i8"
    words = -(-depth // 4)
    down, across, _ = tile.items(left.rows, columns, count, depth)
    draft = e.draft()
    draft.memory("x", left.place, "uchar")
    draft.memory("w", e.constant(_packed(matrices, tile.panel)), "char")
    starts = _starts(matrices, biases, left.zero + 128 * flip, tile.panel)
    draft.memory("bias", e.constant(starts), "int")
    draft.ints(
        M=left.rows, N=columns, K=depth, words=words, y_step=target.row_step, y_start=target.start,
        strips=tile.strips(left.rows, columns, count, depth),
    )  # fmt: skip
    if batches:
        panels = -(-columns // tile.panel) * tile.panel
        table = [(x, number * words * 4 * panels, y, c) for number, (x, y, c) in enumerate(batches)]
        draft.memory("table", e.constant(np.array(table, np.int32)), "int")
    if left.window is None:
        draft.ints(x_step=left.row_step)
    else:
        declare_window(draft, left.window)
        draft.ints(x_zero=left.zero & 0xFF)
    if target.pixels is not None:
        draft.ints(**dict(zip(("y_batch", "y_plane", "y_row", "y_pixel"), target.pixels, strict=True)))
    # Windows are gathered once for all columns, unless there are too few of them to go round.
    each = across if left.window is not None and down >= ENOUGH_ITEMS else 1
    draft.ints(columns_each=each * tile.columns)
    tail = Epilogue(e, draft, target.output, links, in_steps=True)
    e.launch(
        "byte_product",
        draft,
        _body(tile, left, target, tail, bool(batches), words, 0x80808080 if flip else 0),
        (down, -(-across // each), count),
        tile.group,
        _COMMON + (_VNNI if e.traits.vnni else _PAIRS),
        left.rows * columns * depth * count // 4,
    )


def _tile(traits: DeviceTraits, left: Left, columns: int) -> ClTile:
    """The tile for a product; windows that take much room are gathered by fewer at a time."""
    tile = product_tile(traits, left.rows, columns, 1)
    return tile if left.window is None else tile.with_rows(max(1, min(tile.rows, _GATHERED // left.depth)))


def _packed(matrices: np.ndarray, width: int) -> np.ndarray:
    """Matrices [count, depth, columns] as panels [count, panel, word, column, 4], filled up with zeros."""
    count, depth, columns = matrices.shape
    words, panels = -(-depth // 4), -(-columns // width)
    padded = np.zeros((count, words * 4, panels * width), np.int8)
    padded[:, :depth, :columns] = matrices
    return np.ascontiguousarray(padded.reshape(count, words, 4, panels, width).transpose(0, 3, 1, 4, 2))


def _starts(matrices: np.ndarray, biases: np.ndarray | None, zero: int, width: int) -> np.ndarray:
    """What sums begin with, [count, whole panels]: the bias, less what the zero point of the rows adds to all sums."""
    count, _, columns = matrices.shape
    given = np.zeros(1) if biases is None else np.asarray(biases, np.float64).reshape(count, columns)
    starts = np.rint(given).clip(-(2.0**62), 2.0**62).astype(np.int64) - zero * matrices.sum(axis=1, dtype=np.int64)
    limits = np.iinfo(np.int32)
    return np.pad(starts.clip(limits.min, limits.max), ((0, 0), (0, -columns % width))).astype(np.int32)


def _body(tile: ClTile, left: Left, target: ResultTarget, tail: Epilogue, batched: bool, words: int, flip: int) -> str:
    """The text of the kernel."""
    height, vectors, panel = tile.rows, tile.columns // CPU_WIDTH, tile.panel
    # Each batch has starts of whole panels.
    own = f"z * ((N + {panel - 1}) / {panel} * {panel}) + " if batched else ""
    lines = [
        f"  int n_first = get_global_id(1) * columns_each, m_first = get_global_id(0) * strips * {height};",
        *batch_lines(batched),
        f"  int m_end = min(m_first + strips * {height}, M), n_end = min(n_first + columns_each, N);",
    ]
    if left.window is not None:
        lines.append(f"  uchar taken[{height * words * 4}];")
        # The last word of a row may hold more than its bytes. What that is meets zeros, but is to be something.
        lines += [f"  *(word_u *)(taken + {(r + 1) * words * 4 - 4}) = 0;" for r in range(height)]
        lines.append("  int ox = m_first % OW, oy = m_first / OW % OH;")
        lines.append("  int oz = m_first / (OW * OH) % OD, ob = m_first / (OW * OH * OD);")
    lines += [
        f"  for (int m_tile = m_first; m_tile < m_end; m_tile += {height}) {{",
        f"  const int rows = min(m_end - m_tile, {height});",
        *([] if left.window is None else _gather(left.window, words)),
        f"  for (int n_tile = n_first; n_tile < n_end; n_tile += {tile.columns}) {{",
        "  global const char *b = w + n_tile * words * 4;",
    ]
    for j in range(vectors):
        lines.append(f"  int8 a0_{j} = *(global const int8_u *)(bias + {own}n_tile + {j * CPU_WIDTH});")
    for r in range(1, height):
        lines += [f"  int8 a{r}_{j} = a0_{j};" for j in range(vectors)]
    if left.window is None:
        for r in range(height):
            lines.append(f"  global const uchar *p{r} = x + min(m_tile + {r}, M - 1) * x_step;")
        lines += _words(tile, "K / 4", [f"*(global const word_u *)(p{r} + 4 * k)" for r in range(height)], flip)
        lines.append("  if (K % 4) {")
        lines.append("    const int k = K / 4;")
        lines += [f"    uint last{r} = last_word(p{r} + 4 * k, K % 4);" for r in range(height)]
        lines += _word(tile, [f"last{r}" for r in range(height)], flip)
        lines.append("  }")
    else:
        at = [f"*(word_u *)(taken + {r * words * 4} + 4 * k)" for r in range(height)]
        lines += _words(tile, "words", at, flip)
    lines.append(f"  int sums[{height * tile.columns}];")
    for r in range(height):
        for j in range(vectors):
            lines.append(f"  *(int8_u *)(sums + {r * tile.columns + j * CPU_WIDTH}) = a{r}_{j};")
    lines += result_tile(tile, target, tail, "convert_float8(*(int8_u *)(sums + {0}))", "convert_float(sums[{0}])")
    lines += ["  }", "  }"]
    return "\n".join(lines)


def _words(tile: ClTile, count: str, values: Sequence[str], flip: int) -> list[str]:
    return [f"  for (int k = 0; k < {count}; ++k) {{", *_word(tile, values, flip), "  }"]


def _word(tile: ClTile, values: Sequence[str], flip: int) -> list[str]:
    """Multiply a word of each row by the words of the panel."""
    vectors = tile.columns // CPU_WIDTH
    lines = [f"    int8 b{j} = *(global const int8_u *)(b + {j * CPU_WIDTH * 4});" for j in range(vectors)]
    lines.append(f"    b += {tile.columns * 4};")
    for r, value in enumerate(values):
        flipped = f" u ^= 0x{flip:08x}u;" if flip else ""
        sums = " ".join(f"a{r}_{j} = dot(a{r}_{j}, u, b{j});" for j in range(vectors))
        lines.append(f"    {{ uint8 u; SPREAD(u, {value});{flipped} {sums} }}")
    return lines


def _gather(window: ConvWindow, words: int) -> list[str]:
    """Copy the windows of a tile's rows; what lies outside the image is the zero point.

    Pixels are counted up, for to divide takes longer than to add, and lengths stand in the text, for copies of known
    length are loops no more.
    """
    channels = window.channels // window.groups
    row = window.kernel[2] * channels
    lines = [
        "  for (int r = 0; r < rows; ++r) {",
        "    int x0 = ox * sw - pw, y0 = oy * sh - ph, z0 = oz * sd - pd;",
        f"    uchar *to = taken + r * {words * 4};",
        f"    for (int kz = 0; kz < {window.kernel[0]}; ++kz)",
        f"    for (int ky = 0; ky < {window.kernel[1]}; ++ky, to += {row}) {{",
        "      int iz = z0 + kz * dd, iy = y0 + ky * dh;",
        f"      if ((uint)iz >= (uint)D || (uint)iy >= (uint)H) {{ fill(to, x_zero, {row}); continue; }}",
        "      global const uchar *line = x + ((ob * D + iz) * H + iy) * W * channels;",
    ]
    if window.dilation[2] == 1 and window.groups == 1:
        lines.append(
            f"      if (x0 >= 0 && x0 + {window.kernel[2]} <= W)"
            f" {{ take(to, line + x0 * {channels}, {row}); continue; }}"
        )
    lines += [
        f"      for (int kx = 0; kx < {window.kernel[2]}; ++kx) {{",
        "        int ix = x0 + kx * dw;",
        f"        if ((uint)ix < (uint)W) take(to + kx * {channels}, line + ix * channels, {channels});",
        f"        else fill(to + kx * {channels}, x_zero, {channels});",
        "      }",
        "    }",
        "    if (++ox == OW) { ox = 0; if (++oy == OH) { oy = 0; if (++oz == OD) { oz = 0; ++ob; } } }",
        "  }",
    ]
    return lines
