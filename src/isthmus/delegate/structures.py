"""LiteRT's C structures, as its library lays them out: a delegate's arguments and results.

Layouts belong to versions of LiteRT (`LAYOUTS`); `probe` compares them with the running library before any is used.
Pointers are plain addresses here. Functions of a context are called with the context's own address.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from isthmus.frontends.tflite.schema import ElementType

# A pointer of any kind, int and size_t.
_P, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t

OK, ERROR, DELEGATE_ERROR = 0, 1, 2
"""TfLiteStatus."""
ALLOW_DYNAMIC_TENSORS = 1
"""kTfLiteDelegateFlagsAllowDynamicTensors: the graph's inputs can still be resized."""
DEFAULT_TENSOR_ALIGNMENT = 64
"""tflite::kDefaultTensorAlignment."""


class Allocation(IntEnum):
    """TfLiteAllocationType: who provides a tensor's memory."""

    NONE = 0
    MMAP_RO = 1
    ARENA_RW = 2
    ARENA_RW_PERSISTENT = 3
    DYNAMIC = 4
    PERSISTENT_RO = 5
    CUSTOM = 6
    VARIANT_OBJECT = 7
    NON_CPU = 8


TYPES: dict[int, ElementType] = {
    1: ElementType.FLOAT32,
    2: ElementType.INT32,
    3: ElementType.UINT8,
    4: ElementType.INT64,
    5: ElementType.STRING,
    6: ElementType.BOOL,
    7: ElementType.INT16,
    8: ElementType.COMPLEX64,
    9: ElementType.INT8,
    10: ElementType.FLOAT16,
    11: ElementType.FLOAT64,
    12: ElementType.COMPLEX128,
    13: ElementType.UINT64,
    14: ElementType.RESOURCE,
    15: ElementType.VARIANT,
    16: ElementType.UINT32,
    17: ElementType.UINT16,
    18: ElementType.INT4,
    19: ElementType.BFLOAT16,
}
"""TfLiteType, which is numbered differently from model files."""

AFFINE_QUANTIZATION = 1
"""kTfLiteAffineQuantization."""


class QuantizationParams(ctypes.Structure):
    """TfLiteQuantizationParams: scale and zero point of the whole tensor."""

    _fields_ = (("scale", ctypes.c_float), ("zero_point", ctypes.c_int32))


class Quantization(ctypes.Structure):
    """TfLiteQuantization."""

    _fields_ = (("type", _INT), ("params", _P))


class AffineQuantization(ctypes.Structure):
    """TfLiteAffineQuantization."""

    _fields_ = (("scale", _P), ("zero_point", _P), ("quantized_dimension", ctypes.c_int32))


class Sparsity(ctypes.Structure):
    """TfLiteSparsity."""

    _fields_ = (("traversal_order", _P), ("block_map", _P), ("dim_metadata", _P), ("dim_metadata_size", _INT))


class DimensionMetadata(ctypes.Structure):
    """TfLiteDimensionMetadata."""

    _fields_ = (("format", _INT), ("dense_size", _INT), ("array_segments", _P), ("array_indices", _P))


class Tensor(ctypes.Structure):
    """TfLiteTensor."""

    _fields_ = (
        ("type", _INT),
        ("data", _P),
        ("dims", _P),
        ("params", QuantizationParams),
        ("allocation_type", _INT),
        ("bytes", _SIZE),
        ("allocation", _P),
        ("name", ctypes.c_char_p),
        ("delegate", _P),
        ("buffer_handle", _INT),
        ("data_is_stale", ctypes.c_bool),
        ("is_variable", ctypes.c_bool),
        ("quantization", Quantization),
        ("sparsity", _P),
        ("dims_signature", _P),
    )


class Node(ctypes.Structure):
    """TfLiteNode."""

    _fields_ = (
        ("inputs", _P),
        ("outputs", _P),
        ("intermediates", _P),
        ("temporaries", _P),
        ("user_data", _P),
        ("builtin_data", _P),
        ("custom_initial_data", _P),
        ("custom_initial_data_size", _INT),
        ("delegate", _P),
        ("might_have_side_effect", ctypes.c_bool),
    )


class Registration(ctypes.Structure):
    """TfLiteRegistration."""

    _fields_ = (
        ("init", _P),
        ("free", _P),
        ("prepare", _P),
        ("invoke", _P),
        ("profiling_string", _P),
        ("builtin_code", ctypes.c_int32),
        ("custom_name", ctypes.c_char_p),
        ("version", _INT),
        ("registration_external", _P),
        ("async_kernel", _P),
        ("inplace_operator", ctypes.c_uint64),
    )


class DelegateParams(ctypes.Structure):
    """TfLiteDelegateParams: the nodes that a delegate's node replaces."""

    _fields_ = (("delegate", _P), ("nodes_to_replace", _P), ("input_tensors", _P), ("output_tensors", _P))


class Delegate(ctypes.Structure):
    """TfLiteDelegate."""

    _fields_ = (
        ("data", _P),
        ("prepare", _P),
        ("copy_from_buffer_handle", _P),
        ("copy_to_buffer_handle", _P),
        ("free_buffer_handle", _P),
        ("flags", ctypes.c_int64),
        ("opaque_delegate_builder", _P),
    )


class CustomAllocation(ctypes.Structure):
    """TfLiteCustomAllocation: client memory for a tensor."""

    _fields_ = (("data", _P), ("bytes", _SIZE))


GetExecutionPlan = ctypes.CFUNCTYPE(_INT, _P, ctypes.POINTER(_P))
GetNodeAndRegistration = ctypes.CFUNCTYPE(_INT, _P, _INT, ctypes.POINTER(_P), ctypes.POINTER(_P))
# The registration is passed by value.
ReplaceNodeSubsets = ctypes.CFUNCTYPE(_INT, _P, Registration, _P, _P)
# The runtime owns the new dimensions from then on and frees them.
ResizeTensor = ctypes.CFUNCTYPE(_INT, _P, _P, _P)
ReportError = ctypes.CFUNCTYPE(None, _P, ctypes.c_char_p)
PreviewPartitioning = ctypes.CFUNCTYPE(_INT, _P, _P, ctypes.POINTER(_P), ctypes.POINTER(_INT))
AcquireSubgraph = ctypes.CFUNCTYPE(_INT, _P, _INT, ctypes.POINTER(_P))
ReleaseSubgraph = ctypes.CFUNCTYPE(_INT, _P, _INT)


class Context(ctypes.Structure):
    """TfLiteContext. Functions that a runtime lacks are null; which ones may be called depends on the moment."""

    _fields_ = (
        ("tensors_size", _SIZE),
        ("get_execution_plan", GetExecutionPlan),
        ("tensors", ctypes.POINTER(Tensor)),
        ("impl", _P),
        ("resize_tensor", ResizeTensor),
        ("report_error", ReportError),
        ("add_tensors", _P),
        ("get_node_and_registration", GetNodeAndRegistration),
        ("replace_node_subsets", ReplaceNodeSubsets),
        ("recommended_num_threads", _INT),
        ("get_external_context", _P),
        ("set_external_context", _P),
        ("allow_fp32_relax_to_fp16", ctypes.c_bool),
        ("profiler", _P),
        ("allocate_persistent_buffer", _P),
        ("allocate_buffer_for_eval", _P),
        ("request_scratch_buffer_in_arena", _P),
        ("get_scratch_buffer", _P),
        ("resize_tensor_explicit", _P),
        ("preview_delegate_partitioning", PreviewPartitioning),
        ("get_tensor", _P),
        ("get_eval_tensor", _P),
        ("get_model_metadata", _P),
        ("acquire_subgraph_context", AcquireSubgraph),
        ("release_subgraph_context", ReleaseSubgraph),
    )


# Functions that the runtime calls.
DelegatePrepare = ctypes.CFUNCTYPE(_INT, _P, _P)
KernelInit = ctypes.CFUNCTYPE(_P, _P, _P, _SIZE)
KernelFree = ctypes.CFUNCTYPE(None, _P, _P)
KernelCall = ctypes.CFUNCTYPE(_INT, _P, _P)
# Functions that compiled code calls on the runtime's behalf; the result is written to the last argument.
Asked = ctypes.CFUNCTYPE(None, _P, _P, _P)


@dataclass(frozen=True)
class Layout:
    """The structure sizes of some versions of LiteRT, in bytes; a wrong layout would show in them."""

    tensor: int
    node: int
    registration: int
    delegate: int
    context: int

    def fits(self) -> bool:
        """Return whether this module's structures have these sizes."""
        sizes = tuple(map(ctypes.sizeof, (Tensor, Node, Registration, Delegate, Context)))
        return sizes == (self.tensor, self.node, self.registration, self.delegate, self.context)


LAYOUTS: dict[tuple[int, int], Layout] = {
    (2, 3): Layout(tensor=112, node=80, registration=88, delegate=56, context=200),
}
"""The layout of each examined version of LiteRT (major, minor)."""


def integers(address: int | None) -> tuple[int, ...]:
    """Return the contents of a TfLiteIntArray: its length, then that many integers."""
    if not address:
        return ()
    count = ctypes.c_int.from_address(address).value
    return tuple((ctypes.c_int * count).from_address(address + 4)) if count > 0 else ()


def reals(address: int | None) -> np.ndarray:
    """Return the contents of a TfLiteFloatArray."""
    if not address:
        return np.zeros(0, np.float32)
    count = max(ctypes.c_int.from_address(address).value, 0)
    return np.array((ctypes.c_float * count).from_address(address + 4), np.float32)


def integer_array(values: Sequence[int]) -> ctypes.Array[ctypes.c_int]:
    """Return a TfLiteIntArray of our own, for the duration of a call."""
    return (ctypes.c_int * (len(values) + 1))(len(values), *values)


_libc = ctypes.CDLL(None)
_libc.malloc.restype = _P
_libc.malloc.argtypes = (_SIZE,)


def given_array(values: Sequence[int]) -> int:
    """Return a TfLiteIntArray that the runtime takes over and frees."""
    array = integer_array(values)
    address = _libc.malloc(ctypes.sizeof(array))
    if not address:
        raise MemoryError
    ctypes.memmove(address, array, ctypes.sizeof(array))
    return int(address)


def rows(address: int | None, kind: type[ctypes.Structure], count: int) -> Iterator[ctypes.Structure]:
    """Yield the structures of an array, as views; none for a null pointer."""
    for index in range(count if address else 0):
        assert address is not None
        yield kind.from_address(address + index * ctypes.sizeof(kind))
