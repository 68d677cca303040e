"""The signatures of all kernels that programs may call, by name; there are no other kernels.

Each module here has those of the kernels' module with its name; `tiles` has those of `pipelining` too.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from isthmus.engine.native.words import Signature

_FAMILIES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
SIGNATURES = tuple(item for family in _FAMILIES for item in vars(family).values() if isinstance(item, Signature))
"""All signatures."""
KERNELS: Mapping[str, Signature] = {
    f"{signature.kernel}.{variant}" if variant else signature.kernel: signature
    for signature in SIGNATURES
    for variant in signature.variants
}
"""The signature of each kernel, by its name with its variant: a closed list."""


def parts_of(kernel: str) -> Mapping[str, int]:
    """Return the numbers that a kernel's variant stands for in its signature (see `Signature.variants`)."""
    return KERNELS[kernel].variants[kernel.partition(".")[2]]
