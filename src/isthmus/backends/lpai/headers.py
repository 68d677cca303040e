"""LPAI's headers for C: its options, structures and their initial values, each declared once."""

from __future__ import annotations

from isthmus.backends.lpai import options
from isthmus.cabi.layout import Enumeration, Header, Macros, Structure

_BACKEND_PROPERTIES = Enumeration(
    "QnnLpaiBackend_GetPropertyOption_t", "QNN_LPAI_BACKEND_GET_PROP", options.LpaiBackendProperty
)
_CONTEXT_OPTIONS = Enumeration(
    "QnnLpaiContext_SetConfigOption_t", "QNN_LPAI_CONTEXT_SET_CFG", options.LpaiContextOption
)
_GRAPH_PROPERTIES = Enumeration("QnnLpaiGraph_GetPropertyOption_t", "QNN_LPAI_GRAPH_GET_PROP", options.GraphProperty)
_GRAPH_OPTIONS = Enumeration(
    "QnnLpaiGraph_SetConfigOption_t",
    "QNN_LPAI_GRAPH_SET_CFG",
    {each.name: each for each in options.LpaiGraphOption if each is not options.LpaiGraphOption.PREPARE},
)
_PREPARE_OPTION = Enumeration(
    "QnnLpaiGraph_ConfigPrepareOption_t",
    "QNN_LPAI_GRAPH_SET_CFG",
    {"PREPARE": options.LpaiGraphOption.PREPARE},
    undefined="",
)


def _custom(noun: str, kind: str, unknown: str, value: str) -> Structure:
    """Return the structure of a custom config or property: the number of an option, and the address of its value."""
    return Structure(f"QnnLpai{noun}_Custom{kind}_t", f"uint32_t option; void *{value};", f"{{{unknown}, NULL}}")


def _defaults(*kinds: Enumeration) -> Macros:
    """Return the macros for the default version of each option: there is one version of each."""
    return Macros({f"{name}_DEFAULT": number for kind in kinds for name, number in kind.numbers().items()})


MEM_INFO = Structure("QnnLpaiMem_MemInfoCustom_t", "int32_t fd; uint32_t offset;")
_MEM = Header(
    "LPAI/QnnLpaiMem.h",
    "LPAI's kinds of memory, and its descriptor behind Qnn_MemInfoCustom_t.",
    ("../QnnMem.h",),
    (Enumeration("QnnLpaiMem_MemType_t", "QNN_LPAI_MEM_TYPE", options.LpaiMemType), MEM_INFO),
)

_TARGETS = Enumeration("QnnLpaiBackend_Target_t", "QNN_LPAI_BACKEND_TARGET", options.LpaiTarget, "UNKNOWN")
_VERSIONS = Enumeration("QnnLpaiBackend_HwVersion_t", "QNN_LPAI_BACKEND_HW_VERSION", options.LpaiHwVersion, "UNKNOWN")
HW_INFO = Structure(
    "QnnLpaiBackend_CustomConfigHwInfo_t",
    "QnnLpaiBackend_Target_t lpaiTarget; QnnLpaiBackend_HwVersion_t hwVersion;",
    "{QNN_LPAI_BACKEND_TARGET_ADSP, QNN_LPAI_BACKEND_HW_VERSION_DEFAULT}",
)
ALIGNMENT = Structure(
    "QnnLpaiBackend_BufferAlignmentReq_t",
    "uint32_t startAddrAlignment, sizeAlignment;",
    "{0, 0}",
    "QNN_LPAI_BACKEND_ALIGNMENT_REQ",
)
CUSTOM = _custom("Backend", "Config", "QNN_LPAI_BACKEND_CUSTOM_CFG_UNDEFINED", "config")
"""The structure of a custom config or property; those of backends, contexts and graphs are the same in all but name."""
_BACKEND = Header(
    "LPAI/QnnLpaiBackend.h",
    "LPAI's backend configs and properties.",
    ("../QnnBackend.h",),
    (
        Enumeration("QnnLpaiBackend_CustomConfigOption_t", "QNN_LPAI_BACKEND_CUSTOM_CFG", options.LpaiBackendOption),
        _TARGETS,
        _VERSIONS,
        HW_INFO,
        CUSTOM,
        _BACKEND_PROPERTIES,
        _defaults(_BACKEND_PROPERTIES),
        ALIGNMENT,
        _custom("Backend", "Property", "QNN_LPAI_BACKEND_GET_PROP_UNDEFINED", "property"),
    ),
)

_CONTEXT = Header(
    "LPAI/QnnLpaiContext.h",
    "LPAI's context configs.",
    ("../QnnContext.h",),
    (
        _CONTEXT_OPTIONS,
        _defaults(_CONTEXT_OPTIONS),
        _custom("Context", "Config", "QNN_LPAI_CONTEXT_SET_CFG_UNDEFINED", "config"),
    ),
)

_CLIENT_TYPES = Enumeration("QnnLpaiGraph_ClientPerfType_t", "QNN_LPAI_GRAPH_CLIENT_PERF_TYPE", options.ClientType)
_AFFINITIES = Enumeration("QnnLpaiGraph_CoreAffinityType_t", "QNN_LPAI_GRAPH_CORE_AFFINITY", options.Affinity)
STRUCTURES = {each: Structure(*row[1:4]) for each, row in options.GRAPH_STRUCTURES.items()}
"""The structures that graph options point to."""
_GRAPH = Header(
    "LPAI/QnnLpaiGraph.h",
    "LPAI's graph properties and configs: scratch and persistent memory, performance, affinity.",
    ("../QnnGraph.h", "QnnLpaiMem.h"),
    (
        _GRAPH_PROPERTIES,
        _GRAPH_OPTIONS,
        _defaults(_GRAPH_PROPERTIES, _GRAPH_OPTIONS, _PREPARE_OPTION),
        _CLIENT_TYPES,
        _AFFINITIES,
        Macros({
            "QNN_LPAI_GRAPH_DEFAULT_FPS": options.PerfCfg.fps,
            "QNN_LPAI_GRAPH_DEFAULT_FTRT_RATIO": options.PerfCfg.ftrt_ratio,
        }),
        *dict.fromkeys(STRUCTURES.values()),
        Macros({"QNN_LPAI_CORE_AFFINITY(core, affinity)": "{(affinity), 1U << (core)}"}),
        _custom("Graph", "Config", "QNN_LPAI_GRAPH_SET_CFG_UNDEFINED", "config"),
        _custom("Graph", "Property", "QNN_LPAI_GRAPH_GET_PROP_UNDEFINED", "property"),
    ),
)  # fmt: skip

PREPARE = Structure(
    "QnnLpaiGraph_CustomConfigPrepare_t", "uint32_t enablePerLayer; char *enableCoreSelection;", "{0, NULL}"
)
_GRAPH_PREPARE = Header(
    "LPAI/QnnLpaiGraphPrepare.h",
    "LPAI's options of preparation.",
    ("QnnLpaiGraph.h",),
    (_PREPARE_OPTION, PREPARE),
)

HEADERS = (_MEM, _BACKEND, _CONTEXT, _GRAPH, _GRAPH_PREPARE)
