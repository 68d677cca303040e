"""Our own plan of a chip's fast memory, beside which the compiler's figures are shown.

The compiler plans in a way of its own, so that ours does not predict its figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isthmus.backends.seam import registry
from isthmus.backends.seam.entry import PlanRequest
from isthmus.errors import QnnError
from isthmus.graph import Graph
from isthmus.log import Log

SIMULATED = "htp"
"""The backend that simulates what the vendor's library compiles for."""


def spill_fill_here(graphs: Sequence[Graph], vtcm_mb: int) -> dict[str, int]:
    """Return what our plans of graphs take and move with so much VTCM; nothing if we cannot plan one of them.

    Floats are planned in 16 bits, as the compiler stores them.
    """
    entry = registry.entry(SIMULATED)
    assert entry.prepare is not None
    config = entry.read_config({SIMULATED: {"precision": "float16", "vtcm_mb": vtcm_mb}}, Log())
    found: dict[str, int] = dict.fromkeys(("spill_fill", "spilled", "filled", "written", "read"), 0)
    try:
        for graph in graphs:
            report = entry.prepare(graph, config, PlanRequest())
            assert report.section is not None
            section: dict[str, Any] = report.section.to_json()
            for name in found:
                found[name] += section[name]
            found["read"] += section["constants"]
    except QnnError:
        return {}
    return found
