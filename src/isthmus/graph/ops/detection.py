"""Operations whose number of results depends on the data: the declared output says how many there is room for.

Rows beyond those found are filled with -1 (with the type's largest value where it is unsigned).
"""

from __future__ import annotations

import numpy as np

from isthmus.graph.datatypes import INDICES, REALS, DataType
from isthmus.graph.operation import Call, Dims, Operation, Param, optional


def _non_max_suppression(call: Call) -> list[Dims]:
    call.rank(0, 3)
    call.rank(1, 3)
    batch, boxes, _ = call.dims(0)
    call.shape(0, batch, boxes, 4)
    call.shape(1, batch, call.dims(1)[1], boxes)
    out = call.declared_dims()
    if len(out) != 2 or out[1] != 3:
        call.refuse(f"out[0] {list(out)} must be [max_selected_indices,3]")
    return [out, (1,)]


def _non_zero(call: Call) -> list[Dims]:
    tensor = call.tensor(0)
    if call.declared is None and tensor.is_static and tensor.data is not None:
        return [(int(np.count_nonzero(tensor.data)), tensor.rank)]
    out = call.declared_dims()
    if len(out) != 2 or out[1] != tensor.rank:
        call.refuse(f"out[0] {list(out)} must be [count,{tensor.rank}]")
    return [out]


OPERATIONS = (
    Operation(
        "NonMaxSuppression", (2, 2), (1, 2),
        (Param("iou_threshold", "f32"), optional("score_threshold", "f32", 0.0),
         optional("max_boxes_selected", "u32", 0)),
        _non_max_suppression, {0: REALS, 1: REALS},
        {0: (DataType.INT_32, DataType.INT_64), 1: (DataType.UINT_32, DataType.INT_32, DataType.INT_64)},
    ),
    Operation("NonZero", (1, 1), (1, 1), (), _non_zero, output_types={0: INDICES}),
)
