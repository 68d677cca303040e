"""Run, size and debug code for Qualcomm's NPU memory API (QNN) on any Linux machine.

- `Session` loads a model file and runs it on a backend.
- `qnn` is QNN's API: backends, contexts, graphs, tensors, registered memory.
- `memory` allocates the memory that graphs use: host, shared (rpcmem) and tightly coupled (TCM).
- `audit` records what a program does with memory, and the mistakes it makes.
- `compare` compares every operation of a model with its own runtime, another backend or another type.
- `QnnError` is the error of every refusal, with one of the numbers in `Code`.

Examples
--------
::

    with isthmus.Session("model.onnx", backend="htp") as session:
        outputs = session.run({"x": array})
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from isthmus import memory, qnn
    from isthmus.comparison import compare
    from isthmus.errors import Code, QnnError
    from isthmus.memory.auditing import audit
    from isthmus.session import Session
    from isthmus.version import __version__

__all__ = ["Code", "QnnError", "Session", "__version__", "audit", "compare", "memory", "qnn"]
# The module that defines each public name, other than the packages.
_MODULES = {
    "Code": "errors",
    "QnnError": "errors",
    "Session": "session",
    "__version__": "version",
    "audit": "memory.auditing",
    "compare": "comparison",
}


def __dir__() -> list[str]:
    """List the public names, which are imported when they are first used; modules that those import are left out."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> object:
    """Import a public name when it is first used.

    Importing many of them loads LLVM or a frontend. A command imports only what it uses, after it can handle Ctrl-C.
    """
    from importlib import import_module

    if name in _MODULES:
        return getattr(import_module(f"isthmus.{_MODULES[name]}"), name)
    if name in ("memory", "qnn"):
        return import_module(f"isthmus.{name}")
    raise AttributeError(f"module 'isthmus' has no attribute '{name}'")
