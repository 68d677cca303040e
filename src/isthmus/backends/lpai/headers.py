"""LPAI's structures of C, as ``headers.txt`` declares them for C and Python at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.backends.lpai import options
from isthmus.cabi.notation import declare_headers, type_named


def _defaults(members: Mapping[str, int]) -> dict[str, int]:
    """Return the default version of each option: there is one version of each."""
    return {f"{name}_DEFAULT": number for name, number in members.items()}


_GRAPH_OPTIONS = dict(options.LpaiGraphOption.__members__)
_PREPARE = {"PREPARE": options.LpaiGraphOption.PREPARE}
HEADERS = declare_headers(
    Path(__file__).parent,
    {
        **vars(options),
        "BackendPropertyDefaults": _defaults(options.LpaiBackendProperty.__members__),
        "ContextOptionDefaults": _defaults(options.LpaiContextOption.__members__),
        "GraphPropertyDefaults": _defaults(options.GraphProperty.__members__),
        "GraphOption": {name: number for name, number in _GRAPH_OPTIONS.items() if name not in _PREPARE},
        "GraphOptionDefaults": _defaults(_GRAPH_OPTIONS),
        "PerfDefaults": {"FPS": options.PerfCfg.fps, "FTRT_RATIO": options.PerfCfg.ftrt_ratio},
        "PrepareOption": _PREPARE,
    },
)
MEM_INFO: Any = type_named("QnnLpaiMem_MemInfoCustom_t")
HW_INFO: Any = type_named("QnnLpaiBackend_CustomConfigHwInfo_t")
ALIGNMENT: Any = type_named("QnnLpaiBackend_BufferAlignmentReq_t")
CUSTOM: Any = type_named("QnnLpaiBackend_CustomConfig_t")
"""The structure of a custom config or property; those of backends, contexts and graphs are the same in all but name."""
STRUCTURES = {each: type_named(row.name) for each, row in options.GRAPH_STRUCTURES.items()}
"""The structures that graph options point to."""
PREPARE: Any = type_named("QnnLpaiGraph_CustomConfigPrepare_t")
