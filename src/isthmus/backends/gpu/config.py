"""The GPU backend's configuration: a file, a dictionary or several of them are merged into one checked `GpuConfig`.

The top-level keys are those of QNN's tools for its GPU backend; the keys under ``gpu`` are this project's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isthmus.backends.gpu.options import GRAPH_OPTIONS, GpuGraphOption, PrecisionMode
from isthmus.backends.seam import config as keys
from isthmus.backends.seam.deadlines import Deadlines
from isthmus.log import Log
from isthmus.memory.integers import is_int

_MAX_SECONDS = 7 * 24 * 3600
_MAX_DEVICES = 255


# What selects a device.
_NAME_OR_NUMBER = keys.must_be(
    f"part of a name, or a number from 0 to {_MAX_DEVICES}",
    lambda value: value if isinstance(value, str) else is_int(value) and 0 <= value <= _MAX_DEVICES,
    lambda value: value if isinstance(value, str) else int(value),
)
# Objects of pyopencl have an `int_ptr`, and handles are numbers.
_OBJECT = keys.must_be(
    "an object of OpenCL or its handle", lambda value: hasattr(value, "int_ptr") or (is_int(value) and value > 0)
)


@dataclass(frozen=True)
class GpuConfig:
    """The GPU backend's configuration.

    - `graphs`: Options of graphs, by option.
    - `graph_names`: The graphs that the options apply to; all graphs if None.
    - `kernel_repo_path`: The folder for built kernels; the user's own folder if None.
    - `invalidate_kernel_repo`: Whether the kernels in that folder are built again and replaced.
    - `platform`, `device`: Part of the platform's name; part of the device's name, or its number.
    - `context`, `queue`: The client's own OpenCL context and queue.
    - `follow_client`: Whether a QNN context moves to the OpenCL context of the first buffer that is registered in it.
      This is for clients that cannot name the OpenCL context in advance, such as those in C.
    - `timeout`: Seconds that an execution may take before the device counts as lost.
    - `contexts`: What the tools' own file says of contexts.
    """

    graphs: Mapping[GpuGraphOption, Any] = field(default_factory=dict)
    graph_names: tuple[str, ...] | None = keys.setting(None, keys.list_of(keys.text, "names"))
    kernel_repo_path: str | None = keys.setting(None, keys.file_name)
    invalidate_kernel_repo: bool = keys.setting(False, keys.truth)
    platform: str | None = keys.setting(None, keys.text, group="gpu")
    device: str | int | None = keys.setting(None, _NAME_OR_NUMBER, group="gpu")
    context: Any = keys.setting(None, _OBJECT, group="gpu")
    queue: Any = keys.setting(None, _OBJECT, group="gpu")
    follow_client: bool = keys.setting(False, keys.truth, group="gpu")
    timeout: int | None = keys.setting(None, keys.number(1, _MAX_SECONDS), group="gpu")
    contexts: keys.ContextSettings = field(default_factory=keys.ContextSettings)

    @property
    def patience(self) -> float:
        """Seconds that an execution may take: the `timeout`, or that of the environment if there is none."""
        return Deadlines.from_environment().execution if self.timeout is None else float(self.timeout)

    def options(self, graph: str) -> dict[GpuGraphOption, Any]:
        """Return the options that apply to the graph of this name."""
        chosen = self.graph_names is None or graph in self.graph_names
        return dict(self.graphs) if chosen else {}


_PRECISIONS = keys.choice({mode.name.lower(): mode for mode in PrecisionMode})
# Keys in a configuration file, with the graph option that each sets and the function that checks its value.
_GRAPH_KEYS = {
    rule.key: (option, keys.truth if rule.is_flag else _PRECISIONS) for option, rule in GRAPH_OPTIONS.items()
}
KEYS: keys.Table = {
    **keys.keys_of(GpuConfig),
    "perf_hint": keys.unused(keys.word("low", "normal", "high")),
    **{name: keys.Key(name, check) for name, (_, check) in _GRAPH_KEYS.items()},
    "gpu": keys.keys_of(GpuConfig, "gpu"),
}


def read_config(config: Any, log: Log) -> GpuConfig:
    """Check and merge configurations; later ones take precedence.

    >>> read_config({"precision_mode": "fp16", "gpu": {"timeout": 5}}, Log()).patience
    5.0
    """
    merged = keys.settings(config, KEYS)
    merged.log_unused(log)
    graphs = {option: merged.values[name] for name, (option, _) in _GRAPH_KEYS.items() if name in merged.values}
    return GpuConfig(graphs, **merged.of(GpuConfig), contexts=keys.ContextSettings.of(merged))
