"""LPAI's custom properties, configs and structures, under the names of its headers."""

from isthmus.backends.lpai.options import (
    Affinity,
    BufferAlignmentReq,
    ClientType,
    CoreAffinity,
    GraphProperty,
    Mem,
    MemInfo,
    PerfCfg,
    Prepare,
)
from isthmus.backends.lpai.options import (
    LpaiBackendProperty as BackendProperty,
)
from isthmus.backends.lpai.options import (
    LpaiContextOption as ContextConfig,
)
from isthmus.backends.lpai.options import (
    LpaiGraphOption as GraphConfig,
)
from isthmus.backends.lpai.options import (
    LpaiMemType as MemType,
)

ALIGNMENT_REQ = BackendProperty.ALIGNMENT_REQ
REQUIRE_PERSISTENT_BINARY = BackendProperty.REQUIRE_PERSISTENT_BINARY
SHARED_POOLS = BackendProperty.SHARED_POOLS
MODEL_BUFFER_MEM_TYPE = ContextConfig.MODEL_BUFFER_MEM_TYPE
ENABLE_ISLAND = ContextConfig.ENABLE_ISLAND
SCRATCH_MEM_SIZE = GraphProperty.SCRATCH_MEM_SIZE
PERSISTENT_MEM_SIZE = GraphProperty.PERSISTENT_MEM_SIZE
IO_OFFSETS = GraphProperty.IO_OFFSETS
SCRATCH_MEM = GraphConfig.SCRATCH_MEM
PERSISTENT_MEM = GraphConfig.PERSISTENT_MEM
PERF_CFG = GraphConfig.PERF_CFG
CORE_AFFINITY = GraphConfig.CORE_AFFINITY
PREPARE = GraphConfig.PREPARE
RESET_STATE = GraphConfig.RESET_STATE

__all__ = [
    "ALIGNMENT_REQ",
    "CORE_AFFINITY",
    "ENABLE_ISLAND",
    "IO_OFFSETS",
    "MODEL_BUFFER_MEM_TYPE",
    "PERF_CFG",
    "PERSISTENT_MEM",
    "PERSISTENT_MEM_SIZE",
    "PREPARE",
    "REQUIRE_PERSISTENT_BINARY",
    "RESET_STATE",
    "SCRATCH_MEM",
    "SCRATCH_MEM_SIZE",
    "SHARED_POOLS",
    "Affinity",
    "BufferAlignmentReq",
    "ClientType",
    "CoreAffinity",
    "GraphConfig",
    "GraphProperty",
    "Mem",
    "MemInfo",
    "MemType",
    "PerfCfg",
    "Prepare",
]
