"""The structures of QNN's TFLite delegate, as a C program fills them (delegate API 0.20)."""

from __future__ import annotations

from isthmus.cabi.notation import CStructure


class DelegateOptions(CStructure, declares="TfLiteQnnDelegateOptions"):
    """TfLiteQnnDelegateOptions, with the options of each backend inside."""


class ProfilingResult(CStructure, declares="TfLiteQnnDelegateProfilingResult"):
    """TfLiteQnnDelegateProfilingResult."""
