"""What the HTP backend accepts: what the native engine computes, beside what the vendor's library accepts.

The vendor's types are facts, as its library for x86 answered for a chip of version 79. Types that only we accept are
not refused; documents mark them.
"""

from __future__ import annotations

from dataclasses import replace

from isthmus.engine.native import accepted
from isthmus.graph.acceptance import load

ACCEPTED = replace(accepted.ACCEPTED, vendor=load(__file__, "vendor_types.txt"))
