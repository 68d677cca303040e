"""LPAI's custom properties, configs and structures, with the names used in QNN's headers."""

from isthmus.backends.lpai import options as _options

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
