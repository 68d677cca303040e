"""Which tests must notice a mistake in which source file: the longest beginning of its path that is listed decides.

They are few enough to be run for every single mistake, and the nearest come first: a mistake that is caught is caught
soon.
"""

from __future__ import annotations

_GPU = ("backends/gpu/test_*.py",)
_HTP = ("backends/htp", "backends/accelerator/test_public.py", "qnn/test_signals.py", "qnn/test_forks.py")
_LPAI = ("backends/lpai", "session/test_lpai.py", "qnn/test_bindings.py", "qnn/test_forks.py")
_IN_C = ("capi/test_custom_configs.py", "cabi", "capi")
_TESTS: dict[str, tuple[str, ...]] = {
    "backends/accelerator/": ("backends/accelerator", *_HTP, "backends/lpai/test_arm.py", "qnn/test_freed.py"),
    "backends/": ("backends", "qnn", "session/test_session.py", "session/test_lpai.py"),
    "backends/cpu/": (
        "qnn",
        "backends/cpu",
        "backends/seam/test_toy_backend.py",
        "session/test_session.py",
        "memory/test_adaptors.py",
        "tools",
    ),
    "backends/cpu/c.py": ("backends/cpu", *_IN_C),
    "backends/gpu/": _GPU,
    "backends/gpu/c.py": (*_IN_C, *_GPU),
    "backends/htp/": _HTP,
    "backends/htp/c.py": (*_IN_C, *_HTP),
    "backends/lpai/": _LPAI,
    "backends/lpai/c.py": (*_IN_C, *_LPAI),
    "backends/seam/execution_lock.py": ("backends/seam/test_execution_lock.py", *_LPAI),
    "backends/seam/binary.py": (
        "backends/seam/test_binary.py",
        "backends/seam/test_binary_version.py",
        "backends/*/test_binary.py",
        "tools/test_inspect.py",
    ),
    "capi/": ("capi", "cabi"),
    "compiled/": ("compiled", "engine/native/test_cache.py", "engine/native/test_compiler.py", "planning"),
    "delegate/": ("delegate", "frontends/tflite"),
    "engine/native/": ("engine/native", "random_operations"),
    "engine/native/kernels/doorbell.py": ("engine/native", "backends"),
    "engine/native/doorbell.py": ("engine/native", "backends"),
    "backends/gpu/compile/": ("backends/gpu/compile", "backends/gpu/test_models.py"),
    "errors.py": ("test_errors.py", "graph"),
    "frontends/": ("frontends",),
    "frontends/composed/": ("frontends/composed", "frontends/dlc", "qnn/test_model_library.py"),
    "frontends/dlc/": ("frontends/dlc", "tools/test_dlc.py"),
    "frontends/onnx/": ("frontends/onnx", "random_operations", "nodes"),
    "frontends/tflite/": ("frontends/tflite", "random_operations"),
    "graph/": ("graph", "frontends"),
    "graph/evaluation/": ("graph", "frontends", "engine/native"),
    "system/interrupts.py": ("system/test_interrupts.py", "backends/accelerator", "memory"),
    "system/isolated.py": ("system/test_isolated.py", "compiled", "backends/accelerator"),
    "system/child.py": ("system/test_isolated.py", "compiled", "backends/accelerator"),
    "system/channel.py": ("backends/accelerator/test_channel.py", "compiled", "backends/accelerator"),
    "system/lock.py": ("qnn/test_forks.py", "backends/accelerator"),
    "log.py": ("test_log.py", "backends"),
    "memory/": ("memory", "backends"),
    "backends/gpu/buffers.py": ("backends/gpu/runtime", *_GPU, "memory"),
    "backends/gpu/runtime/": ("backends/gpu/runtime", *_GPU),
    "planning/": ("planning", "prepare"),
    "prepare/": ("prepare", "random_operations"),
    "prepare/tiling/": (
        "prepare/test_tiles.py",
        "engine/native/test_tiles.py",
        "tools/test_fit.py",
        "qnn/test_scratch_limit.py",
    ),
    "qnn/": ("qnn", "backends"),
    "qnn/gpu.py": _GPU,
    "cabi/": ("cabi", "capi/test_headers.py", "capi"),
    "qnn/model_": ("qnn/test_model_library.py", "frontends/composed"),
    "qnn/recorder.py": ("qnn/test_model_library.py", "frontends/composed"),
    "system/reading.py": ("system/test_reading.py", "tools"),
    "report/": ("report", "tools"),
    "session.py": ("session", "tools"),
    "split/": ("split", "tools/test_split.py"),
    "comparison/": ("comparison", "tools/test_compare.py"),
    "tools/": ("tools",),
    "": ("test_rooms.py", "session/test_session.py", "tools"),
}


def watching(path: str) -> tuple[str, ...]:
    """Files and folders of tests that watch a source file, given relative to the package, the nearest first."""
    return _TESTS[max((start for start in _TESTS if path.startswith(start)), key=len)]
