"""Isthmus: the memory system between an application and its AI accelerators, with models that really run in it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from isthmus.errors import Code, QnnError
from isthmus.version import __version__

if TYPE_CHECKING:
    from isthmus import memory, qnn
    from isthmus.session import Session

__all__ = ["Code", "QnnError", "Session", "__version__", "memory", "qnn"]


def __getattr__(name: str) -> Any:
    # What loads LLVM or a frontend is imported when it is first used.
    if name == "Session":
        return import_module("isthmus.session").Session
    if name in ("memory", "qnn"):
        return import_module(f"isthmus.{name}")
    raise AttributeError(f"module 'isthmus' has no attribute '{name}'")
