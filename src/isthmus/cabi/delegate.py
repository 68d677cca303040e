"""The structures of QNN's TFLite delegate, as a C program fills them (delegate API 0.20)."""

from __future__ import annotations

import ctypes

from isthmus.cabi.notation import declared


@declared("TfLiteQnnDelegateOptions")
class DelegateOptions(ctypes.Structure):
    """TfLiteQnnDelegateOptions, with the options of each backend inside."""


@declared("TfLiteQnnDelegateProfilingResult")
class ProfilingResult(ctypes.Structure):
    """TfLiteQnnDelegateProfilingResult."""
