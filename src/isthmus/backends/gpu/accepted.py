"""The table of what the GPU accepts. A test compares it with the answers of the OpenCL engine's lowerings."""

from __future__ import annotations

from isthmus.backends.gpu.compile.lowering.elementwise import accepts
from isthmus.graph.acceptance import Acceptance, load

ACCEPTED = Acceptance(load(__file__, "accepted.txt", accepts))
