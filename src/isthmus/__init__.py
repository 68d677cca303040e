"""Isthmus: the memory system between an application and its AI accelerators, with models that really run in it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from isthmus import memory, qnn
    from isthmus.errors import Code, QnnError
    from isthmus.session import Session
    from isthmus.version import __version__

__all__ = ["Code", "QnnError", "Session", "__version__", "memory", "qnn"]
_MODULES = {"Code": "errors", "QnnError": "errors", "Session": "session", "__version__": "version"}
"""The module that defines each public name, other than the packages."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used.

    Many of them load LLVM or a frontend. A command needs no more than it uses, and it must handle Ctrl-C before that.
    """
    from importlib import import_module

    if name in _MODULES:
        return getattr(import_module(f"isthmus.{_MODULES[name]}"), name)
    if name in ("memory", "qnn"):
        return import_module(f"isthmus.{name}")
    raise AttributeError(f"module 'isthmus' has no attribute '{name}'")
