"""The backends: a package for each device, what they share (`seam`), and the process of two of them (`accelerator`)."""

_PACKAGES = {"cpu": "cpu", "htp": "htp", "lpai": "lpai", "gpu": "gpu", "qnn-htp": "vendor"}
BUILT_IN = {name: f"isthmus.backends.{package}.driver:ENTRY" for name, package in _PACKAGES.items()}
"""Where the registry finds each backend of this package; it is imported when it is first asked for."""
DEFAULT = "cpu"
"""The backend of sessions and tools that name none."""
