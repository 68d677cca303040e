"""The shared-memory tutorial of QNN's TFLite delegate, line by line, inside the real LiteRT interpreter.

The comments are the steps of that tutorial; each stands over what it says in Python. The model is the one on the
command line, or a wake word.
"""

from __future__ import annotations

import sys

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from wake_word import find_model

from isthmus.delegate import modify_graph_with_delegate, set_custom_allocation
from isthmus.delegate.c_names import (
    TfLiteCustomAllocation,
    TfLiteQnnDelegateAllocCustomMem,
    TfLiteQnnDelegateCreate,
    TfLiteQnnDelegateDelete,
    TfLiteQnnDelegateFreeCustomMem,
    TfLiteQnnDelegateOptionsDefault,
    kDefaultTensorAlignment,
    kHtpBackend,
)


def main(model: str | None = None) -> None:
    """Run a model once, its input and output in shared memory."""
    # Set the interpreter up. TFLite's default delegate would take all nodes when tensors are allocated.
    interpreter = Interpreter(
        str(model or find_model()),
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )

    # Create the options structure.
    options = TfLiteQnnDelegateOptionsDefault()

    # Set the mandatory backend type.
    options.backend_type = kHtpBackend

    # Instantiate the delegate. It must not be deleted before the interpreter is gone.
    delegate = TfLiteQnnDelegateCreate(options)

    custom_ptrs = []
    for detail in (*interpreter.get_input_details(), *interpreter.get_output_details()):
        # Allocate enough memory space on shared memory.
        num_bytes = int(np.prod(detail["shape"])) * np.dtype(detail["dtype"]).itemsize
        custom_ptr = TfLiteQnnDelegateAllocCustomMem(num_bytes, kDefaultTensorAlignment)

        # Assign a custom memory allocation for the given tensor.
        tensor_alloc = TfLiteCustomAllocation(custom_ptr, num_bytes)
        set_custom_allocation(interpreter, detail["index"], tensor_alloc)
        custom_ptrs.append(custom_ptr)

    # Allocate the tensors again, which checks the memory.
    interpreter.allocate_tensors()

    # Register the delegate with the interpreter, to delegate nodes.
    modify_graph_with_delegate(interpreter, delegate)

    # Perform inference as usual.
    interpreter.invoke()
    print(f"{delegate.stats.copied_bytes} bytes copied, {delegate.stats.in_place_bytes['shared']} used in place")

    # The user frees the memory. The interpreter still has it: it ends with that.
    for custom_ptr in custom_ptrs:
        TfLiteQnnDelegateFreeCustomMem(custom_ptr)

    # Delete the delegate after the interpreter, which is no longer needed.
    del interpreter
    TfLiteQnnDelegateDelete(delegate)


if __name__ == "__main__":
    main(*sys.argv[1:2])
