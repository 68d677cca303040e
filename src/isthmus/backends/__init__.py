"""The backends: a package for each device, what they share (`seam`), and the process of two of them (`accelerator`)."""

BUILT_IN = {name: f"isthmus.backends.{name}.driver:ENTRY" for name in ("cpu", "htp", "lpai", "gpu")}
"""Where the registry finds each backend that is always there; it is imported when it is first asked for."""
DEFAULT = "cpu"
"""The backend of sessions and tools that name none."""
