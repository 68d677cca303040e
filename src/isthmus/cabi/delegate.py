"""The structures of QNN's TFLite delegate, as a C program fills them (delegate API 0.20)."""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_char_p, c_int, c_uint32, c_void_p


class GpuBackendOptions(ctypes.Structure):
    """TfLiteQnnDelegateGpuBackendOptions."""

    _fields_ = [("precision", c_uint32), ("performance_mode", c_uint32), ("kernel_repo_dir", c_char_p)]


class HtpBackendOptions(ctypes.Structure):
    """TfLiteQnnDelegateHtpBackendOptions."""

    _fields_ = [
        ("performance_mode", c_uint32),
        ("perf_ctrl_strategy", c_uint32),
        ("precision", c_uint32),
        ("pd_session", c_uint32),
        ("optimization_strategy", c_uint32),
        ("useConvHmx", c_bool),
        ("useFoldRelu", c_bool),
        ("vtcm_size", c_uint32),
        ("num_hvx_threads", c_uint32),
    ]


class DspBackendOptions(ctypes.Structure):
    """TfLiteQnnDelegateDspBackendOptions."""

    _fields_ = [
        ("performance_mode", c_uint32),
        ("perf_ctrl_strategy", c_uint32),
        ("pd_session", c_uint32),
        ("encoding", c_uint32),
    ]


class OpPackageOptions(ctypes.Structure):
    """TfLiteQnnDelegateOpPackageOptions."""

    _fields_ = [("num_op_package_infos", c_int), ("op_package_infos", c_void_p)]


class SkipOption(ctypes.Structure):
    """TfLiteQnnDelegateSkipOption."""

    _fields_ = [
        ("skip_delegate_ops", c_void_p),
        ("skip_delegate_ops_nr", c_uint32),
        ("skip_delegate_node_ids", c_void_p),
        ("skip_delegate_node_ids_nr", c_uint32),
    ]


class DelegateOptions(ctypes.Structure):
    """TfLiteQnnDelegateOptions."""

    _fields_ = [
        ("backend_type", c_uint32),
        ("library_path", c_char_p),
        ("skel_library_dir", c_char_p),
        ("gpu_options", GpuBackendOptions),
        ("htp_options", HtpBackendOptions),
        ("dsp_options", DspBackendOptions),
        ("log_level", c_uint32),
        ("profiling", c_uint32),
        ("op_package_options", OpPackageOptions),
        ("tensor_dump_output_path", c_char_p),
        ("cache_dir", c_char_p),
        ("model_token", c_char_p),
        ("skip_options", SkipOption),
        ("graph_priority", c_uint32),
    ]


class ProfilingResult(ctypes.Structure):
    """TfLiteQnnDelegateProfilingResult."""

    _fields_ = [("buffer", c_void_p), ("buffer_length", c_uint32)]
