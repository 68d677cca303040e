"""LPAI's custom properties, configs and structures, with the names used in QNN's headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isthmus.backends.lpai import options as _options

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


Affinity = _options.Affinity
BackendConfig = _options.LpaiBackendOption
BackendProperty = _options.LpaiBackendProperty
BufferAlignmentReq = _options.BufferAlignmentReq
ClientType = _options.ClientType
ContextConfig = _options.LpaiContextOption
CoreAffinity = _options.CoreAffinity
GraphConfig = _options.LpaiGraphOption
GraphProperty = _options.GraphProperty
Mem = _options.Mem
MemInfo = _options.MemInfo
MemType = _options.LpaiMemType
PerfCfg = _options.PerfCfg
Prepare = _options.Prepare

# Options, properties and structures of options are names of this module too, as in C.
_KINDS = (BackendProperty, ContextConfig, GraphProperty, GraphConfig)
globals().update({each.name: each for kind in _KINDS for each in kind})
globals().update({row.kind.__name__: row.kind for row in _options.GRAPH_STRUCTURES.values()})
