"""The layer of call sequences: result codes of wrong, unusual and right orders of calls. Each has its own process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from differential import argument_sequences, graph_sequences, object_sequences
from differential.calls import Calls
from differential.client import Refused

SEQUENCES = {**object_sequences.SEQUENCES, **graph_sequences.SEQUENCES, **argument_sequences.SEQUENCES}


def cases() -> list[str]:
    """Name the sequences."""
    return list(SEQUENCES)


def opened(library: Path, chip: int | None) -> Callable[[str], Any]:
    """Return the function that calls a sequence on a new context; `chip` has no effect.

    A process of several sequences goes on with the backend and the device of the previous one, unless these are freed:
    starting an accelerator takes most of the time.
    """
    # Loaded once, before the processes of single sequences begin.
    loaded = ctypes.CDLL(str(library))
    before: list[Calls] = []

    def answer(name: str) -> Any:
        q = Calls(Path(loaded._name))
        for last in before:
            q.code("contextFree", last.context, None)
            if not q.code("backendSetConfig", last.backend, None) and not q.code("deviceSetConfig", last.device, None):
                q.backend, q.device = last.backend, last.device
        before[:] = [q]
        try:
            # Some functions of the vendor's library return another code as long as there is no backend.
            assert q.context
            return SEQUENCES[name](q)
        except Refused as problem:
            return f"{problem.function} before it returns {problem.code}"

    return answer
