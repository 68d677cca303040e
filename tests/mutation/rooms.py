"""Which tests must notice a mistake in which source file: the longest beginning of its path that is listed decides."""

from __future__ import annotations

_TESTS: dict[str, tuple[str, ...]] = {
    "accelerator/": ("accelerator", "backends"),
    "backends/": ("backends", "qnn", "test_session.py", "test_session_lpai.py"),
    "binary.py": ("test_binary.py", "test_binary_version.py", "backends"),
    "capi/": ("capi", "qnn/interface"),
    "compiled/": ("compiled", "engine/native/test_cache.py", "engine/native/test_compiler.py", "planning"),
    "delegate/": ("delegate", "frontends/tflite"),
    "engine/native/": ("engine/native", "random_operations"),
    "engine/native/kernels/doorbell.py": ("engine/native", "accelerator", "backends"),
    "engine/native/doorbell.py": ("engine/native", "accelerator", "backends"),
    "engine/opencl/": ("engine/opencl", "backends/test_gpu_models.py"),
    "errors.py": ("test_errors.py", "graph"),
    "frontends/": ("frontends",),
    "frontends/onnx/": ("frontends/onnx", "random_operations", "nodes"),
    "frontends/tflite/": ("frontends/tflite", "random_operations"),
    "graph/": ("graph", "frontends"),
    "graph/evaluation/": ("graph", "frontends", "engine/native"),
    "interrupts.py": ("test_interrupt_safety.py", "accelerator", "memory"),
    "isolated.py": ("test_isolated.py", "compiled", "accelerator"),
    "lock.py": ("qnn/test_forks.py", "accelerator"),
    "log.py": ("test_log.py", "backends"),
    "memory/": ("memory", "backends"),
    "opencl/": ("opencl", "backends"),
    "planning/": ("planning", "prepare"),
    "prepare/": ("prepare", "random_operations"),
    "qnn/": ("qnn", "backends"),
    "reading.py": ("test_reading.py", "tools"),
    "report/": ("report", "tools"),
    "session.py": ("test_session.py", "test_session_nan.py", "test_session_lpai.py", "tools"),
    "split/": ("split",),
    "tools/": ("tools",),
    "": ("test_rooms.py", "test_session.py", "tools"),
}


def watching(path: str) -> tuple[str, ...]:
    """Files and folders of tests that watch a source file, given relative to the package, the nearest first."""
    return _TESTS[max((start for start in _TESTS if path.startswith(start)), key=len)]
