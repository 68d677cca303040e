"""Words of the kernels in `kernels.strips`: what computing by strips needs besides the kernels of whole steps.

`REPEAT` is the one instruction that is about others: those that follow it are executed several times. Cursors are
pools that move: operands in them are bytes of another pool, a stride further each time.
"""

from __future__ import annotations

from isthmus.engine.native.words import LARGEST, Count, Number, Numbers, Read, Real, Signature, Write, flag, signed

MOST_TIMES = 4096
"""No more repetitions: no tensor has so many rows that strips of them would be worth it."""
_INT32 = 1 << 31

REPEAT = Signature(
    "strips:repeat",
    (
        Number("instructions", 1),
        Number("times", 1, MOST_TIMES),
        Number("first_cursor"),
        Count("cursors"),
        Numbers("pools", "cursors", 2),
        Numbers("strides", "cursors", -LARGEST),
    ),
)
ADD_ROWS = Signature(
    "strips:add_rows",
    (
        Write("sums", "channels * 4"),
        Read("x", "pixels * channels * 4"),
        Number("pixels"),
        Number("channels", 1),
        flag("goes_on"),
        Real("factor"),
    ),
)
ADD_BYTES = Signature(
    "strips:add_bytes",
    (
        Write("sums", "channels * 4"),
        Read("x", "pixels * channels"),
        Number("pixels"),
        Number("channels", 1),
        flag("goes_on"),
    ),
    variants={"s8": {}, "u8": {}},
)
MEAN_OF_SUMS = Signature(
    "strips:mean_of_sums",
    (
        Read("sums", "channels * 4"),
        Write("y", "channels"),
        Number("channels", 1),
        Real("scale"),
        signed("offset"),
        Real("bias"),
        signed("zero", _INT32),
        signed("least", _INT32),
        signed("most", _INT32),
    ),
    variants={"s8": {}, "u8": {}},
)
SIGNATURES = (REPEAT, ADD_ROWS, ADD_BYTES, MEAN_OF_SUMS)
