"""Functions of OpenCL C once more, for processors: PoCL calls its own, even ``min``, and a call in a loop is dear.

All registers of vectors are saved around a call, and no loop with one in it becomes a loop over vectors. These are part
of the kernels instead. Results are within two units in the last place of the exact ones, infinities and NaN as they
are.
"""

from __future__ import annotations

from isthmus.backends.gpu.compile.storage import BITS_OF_LARGE, LARGE

_CHOICES = """#undef min
#undef max
#undef fmin
#undef fmax
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define fmin(a, b) ((a) < (b) ? (a) : ((b) == (b) ? (b) : (a)))
#define fmax(a, b) ((a) > (b) ? (a) : ((b) == (b) ? (b) : (a)))
"""
_NAMES = ("fabs", "rint", "floor", "exp", "tanh")
# The sum with a large number rounds to whole ones, half to even; of still larger numbers nothing is to be rounded.
_FUNCTIONS = f"""T OVERLOADED in_fabs(T x) {{ return AS_T(AS_I(x) & 0x7fffffff); }}
T OVERLOADED in_rint(T x) {{
  T whole = AS_T(AS_I((in_fabs(x) + 8388608.0f) - 8388608.0f) | (AS_I(x) & (I)(0x80000000)));
  return in_fabs(x) < 8388608.0f ? whole : x;
}}
T OVERLOADED in_floor(T x) {{
  T whole = in_rint(x);
  return whole > x ? whole - 1.0f : whole;
}}
T OVERLOADED in_exp(T x) {{
  T y = x < -104.0f ? (T)(-104.0f) : (x > 89.0f ? (T)(89.0f) : x);
  T shifted = y * 1.44269504f + {LARGE}.0f;
  I n = AS_I(shifted) - {BITS_OF_LARGE}, half_n = n >> 1;
  T whole = shifted - {LARGE}.0f;
  T r = (y - whole * 0.693359375f) - whole * -2.12194440e-4f;
  T p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return p * AS_T((half_n + 127) << 23) * AS_T((n - half_n + 127) << 23);
}}
T OVERLOADED in_tanh(T x) {{
  T a = in_fabs(x), z = x * x;
  T p = -5.70498872745e-3f * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  T far = 1.0f - 2.0f / (in_exp(a + a) + 1.0f);
  far = AS_T(AS_I(far) | (AS_I(x) & (I)(0x80000000)));
  return a < 0.625f ? p * z * x + x : far;
}}
"""


def _of_width(width: str) -> str:
    names = {"T": f"float{width}", "I": f"int{width}", "AS_T": f"as_float{width}", "AS_I": f"as_int{width}"}
    defined = "".join(f"#define {name} {text}\n" for name, text in names.items())
    return defined + _FUNCTIONS + "".join(f"#undef {name}\n" for name in names)


INLINED = "".join(
    [
        _CHOICES,
        "#define OVERLOADED __attribute__((overloadable))\n",
        *(_of_width(width) for width in ("", "2", "4", "8")),
        *(f"#undef {name}\n#define {name}(x) in_{name}(x)\n" for name in _NAMES),
    ]
)
"""What stands before kernels for processors."""
