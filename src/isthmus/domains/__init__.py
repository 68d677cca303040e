"""Process domains of HTP's chips: a pure model of what fits into them together, and a search for a loading order.

A process sees a chip's memory through a few process domains, each with less than 4 GB of addresses. A context and its
inputs and outputs lie in one of them. So contexts can be refused (error 1002) while gigabytes are free.
docs/contexts.md tells what of this is documented, measured or assumed.

Examples
--------
>>> from isthmus.domains import ContextSizes, profile, search
>>> contexts = [ContextSizes(name, file_bytes=int(size * 2**30)) for name, size in (("a", 2.5), ("b", 1.5), ("c", 2))]
>>> result = search(contexts, profile("default"))
>>> result.verdict.value, {step.context: step.domain for step in result.steps}
('fits', {'a': 0, 'b': 1, 'c': 1})
"""

from __future__ import annotations

from isthmus.domains.advice import Remedy, applied, remedies
from isthmus.domains.model import DomainMapping, Domains, Placement, Refusal
from isthmus.domains.profile import ChipProfile, Domain, Fact, profile, profile_names
from isthmus.domains.search import FitVerdict, SearchResult, search
from isthmus.domains.sizes import Choice, ContextSizes, GraphNeeds, SpillGroup, choices, choices_at_creation

__all__ = [
    "ChipProfile",
    "Choice",
    "ContextSizes",
    "Domain",
    "DomainMapping",
    "Domains",
    "Fact",
    "FitVerdict",
    "GraphNeeds",
    "Placement",
    "Refusal",
    "Remedy",
    "SearchResult",
    "SpillGroup",
    "applied",
    "choices",
    "choices_at_creation",
    "profile",
    "profile_names",
    "remedies",
    "search",
]
