"""Figures of ONNX Runtime's QNN provider for a model: ``provider_figures.py MODEL OUT.json OPTIONS.json``.

A program of its own, since the vendor's library may end the process. The provider compiles the model with the vendor's
library and keeps the context binary; our reader of such binaries prints its figures.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from capi import ort_provider  # noqa: E402

from isthmus.backends.vendor.library import find  # noqa: E402
from isthmus.backends.vendor.measurement import describe  # noqa: E402


def main(model: str, out: str, options: str) -> None:
    """Compile the model and write what its binary says, and how many nodes the provider took."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder, "cached.onnx")
        config = {"ep.context_enable": "1", "ep.context_embed_mode": "0", "ep.context_file_path": str(cache)}
        opened = ort_provider.session(
            Path(model), ort_provider.vendor_library("QnnHtp"), json.loads(options), config, exact=False
        )
        taken, total = ort_provider.assigned(opened)
        binaries = [describe(file.read_bytes(), find()) for file in sorted(Path(folder).glob("*.bin"))]
    Path(out).write_text(json.dumps({"taken": taken, "total": total, "binaries": binaries}))


if __name__ == "__main__":
    main(*sys.argv[1:])
