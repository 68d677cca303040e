"""The layers of the comparison, and which files the answers of each depend on.

A layer is a module here with two functions: `cases` names its cases, and `opened` takes a library and a chip and
returns the function that answers a case by name. The latter runs in a child process.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_INTERFACE = (
    "*.py", "cabi/*.py", "capi/*.py", "capi/*.c", "qnn/*.py", "graph/**/*.py", "backends/**/*.py",
    "frontends/composed/*.py",
)  # fmt: skip
_EVERYTHING = ("**/*.py", "capi/*.c")


@dataclass(frozen=True)
class Layer:
    """A way of comparing two libraries.

    Parameters
    ----------
    module
        The module that has its cases.
    sources
        Further files here that define the cases.
    rooms
        Patterns of our source files that the answers depend on.
    isolated
        Whether each case has a process of its own on the vendor's library, which keeps state in its process.
    """

    module: str
    sources: tuple[str, ...]
    rooms: tuple[str, ...]
    isolated: bool = False

    def load(self) -> Any:
        """Import the module of its cases."""
        return importlib.import_module(f"differential.{self.module}")


LAYERS = {
    "validation": Layer("validation", ("operations.py",), _INTERFACE),
    "options": Layer("options", ("../capi/test_provider_options.py", "../capi/ort_provider.py"), _INTERFACE),
    "sequences": Layer(
        "sequences", ("calls.py", "object_sequences.py", "graph_sequences.py", "argument_sequences.py"), _INTERFACE,
        isolated=True,
    ),
    "execution": Layer("execution", ("operations.py",), _EVERYTHING),
    "forms": Layer("forms", ("operations.py", "execution.py"), _EVERYTHING),
}  # fmt: skip
QUESTIONS = {**LAYERS, "datatype_sets": Layer("datatype_sets", ("operations.py",), ())}
"""All that a child process can answer: the layers, and what the vendor's library alone is asked for tables of ours."""
