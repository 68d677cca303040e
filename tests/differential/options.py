"""The layer of provider options: ONNX Runtime's QNN provider generates, loads and runs a context with each option.

The options and their values are those of `tests/capi/test_provider_options.py`, which tests our library alone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

OK, REFUSED = "runs", "refused"


def cases() -> list[str]:
    """Name the options with their values."""
    from capi.test_provider_options import REFUSED as NEVER
    from capi.test_provider_options import TAKEN

    named = [f"{name}={value}" for name, choice in TAKEN.items() for value in choice.values]
    return [*named, *(f"{name}={value}" for name, value in NEVER)]


def opened(library: Path, chip: int | None) -> Callable[[str], Any]:
    """Return the function that generates, loads and runs with an option; `chip` has no effect.

    An answer has what came of each of the three steps; a step that is refused ends the case.
    """
    from capi import ort_provider
    from capi.test_provider import convolution, image
    from capi.test_provider_options import TAKEN, Choice

    folder = Path(tempfile.mkdtemp())
    model = convolution(folder / "model.onnx")
    # Some options leave files where the program runs.
    os.chdir(folder)

    def answer(case: str) -> list[str]:
        name, _, value = case.partition("=")
        choice = TAKEN.get(name, Choice())
        options, settings = choice.options(name, value, folder), choice.run_options()
        config = {"session.disable_cpu_ep_fallback": "1", **choice.config}
        cache = folder / f"{abs(hash(case))}.onnx"
        caching = {"ep.context_enable": "1", "ep.context_embed_mode": "0", "ep.context_file_path": str(cache)}
        found: list[str] = []
        try:
            ort_provider.session(model, library, options, {**config, **caching})
            found.append(OK)
            session = ort_provider.session(cache, library, options, config)
            found.append(OK)
            session.run(None, image(), settings)
            found.append(OK)
        except Exception:
            found.append(REFUSED)
        return found

    return answer
