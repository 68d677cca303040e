"""Isthmus: the memory system between an application and its AI accelerators, with models that really run in it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from isthmus import memory, qnn
    from isthmus.errors import Code, QnnError
    from isthmus.session import Session
    from isthmus.version import __version__

__all__ = ["Code", "QnnError", "Session", "__version__", "memory", "qnn"]
_HOMES = {"Code": "errors", "QnnError": "errors", "Session": "session", "__version__": "version"}


def __getattr__(name: str) -> object:
    # Imported when it is first used: much of it loads LLVM or a frontend, and a command that is interrupted before it
    # has begun is to say so.
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"isthmus.{_HOMES[name]}"), name)
    if name in ("memory", "qnn"):
        return import_module(f"isthmus.{name}")
    raise AttributeError(f"module 'isthmus' has no attribute '{name}'")
