"""Operations on sparse tensors, which are held dense: an element that is not specified is 0.

The structures of a sparse tensor in QNN's C interface (coordinates beside values) are not supported. A tensor that is
sparse in a model is an ordinary tensor here, with zeros. So elements that were specified as 0 do not count as
specified any more. The first axes of a tensor are its sparse ones; their number follows from the shapes.
"""

from __future__ import annotations

from isthmus.graph.datatypes import INDICES, DataType
from isthmus.graph.operation import Call, Dims, define, like, optional


def _create_sparse(call: Call) -> list[Dims]:
    """Check indices [count, sparse axes] and values [count, dense axes…] of the declared result."""
    call.check_rank(0, 2)
    out, (count, axes) = call.declared_dims(), call.dims(0)
    if not 1 <= axes <= len(out):
        call.refuse(f"indices of {axes} coordinates do not fit {list(out)}")
    call.check_dims(1, count, *out[axes:])
    return [out]


def _count(call: Call, out: Dims) -> int:
    """Return the number of rows of the declared result; the parameter must agree with it if it is given."""
    if call.params["num_specified_elements"] not in (None, out[0]):
        call.refuse(f"num_specified_elements {call.params['num_specified_elements']} differs from out[0] {list(out)}")
    return out[0]


def _get_sparse_indices(call: Call) -> list[Dims]:
    out, rank = call.declared_dims(), len(call.dims(0))
    if len(out) != 2 or not 1 <= out[1] <= rank:
        call.refuse(f"out[0] {list(out)} must be [count, 1 to {rank} coordinates]")
    return [(_count(call, out), out[1])]


def _get_sparse_values(call: Call) -> list[Dims]:
    out, dims = call.declared_dims(), call.dims(0)
    axes = len(dims) + 1 - len(out)
    if not out or axes < 1 or out[1:] != dims[axes:]:
        call.refuse(f"out[0] {list(out)} must be [count] and the last dimensions of in[0] {list(dims)}")
    return [(_count(call, out), *dims[axes:])]


_SPECIFIED = optional("num_specified_elements", "u32")
_COORDINATES = (DataType.INT_32, DataType.UINT_32)

OPERATIONS = (
    define("CreateSparse", _create_sparse, inputs=2, types=(INDICES,), output_types={0: like(1)}),
    define("GetSparseIndices", _get_sparse_indices, _SPECIFIED, output_types={0: _COORDINATES}),
    define("GetSparseValues", _get_sparse_values, _SPECIFIED),
    define("SparseToDense", lambda call: [call.dims(0)]),
)
