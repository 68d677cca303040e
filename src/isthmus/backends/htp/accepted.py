"""The table of what HTP accepts: what the native engine computes, and of that what the vendor's library validates.

Validation refuses what the vendor's library refuses. A graph may still have such nodes, and executes them here: models
that are not made for HTP run, and documents mark what a device would refuse. Operations of our own package are not
known to the vendor, so the engine alone decides about them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from isthmus.backends.htp.datatype_sets import parse
from isthmus.backends.seam import native
from isthmus.engine.native import accepted
from isthmus.graph.operation import QTI, Call
from isthmus.graph.ops import OPERATIONS

TABLE = Path(__file__).with_name("datatype_sets.txt")
RULES = parse(TABLE.read_text("ascii"))
ACCEPTED = replace(
    accepted.ACCEPTED, vendor={op: rule.principal_types(op) for op, rule in RULES.items() if op in OPERATIONS}
)


def refusal(call: Call) -> str | None:
    """Return why the engine or the vendor's library refuses a node; None if both accept it."""
    reason = native.supports(call)
    if reason is not None or OPERATIONS[call.op].package != QTI:
        return reason
    rule = RULES.get(call.op)
    return "HTP does not have this operation" if rule is None else rule.refusal(call)
