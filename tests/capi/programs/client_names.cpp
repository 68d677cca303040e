/* The names of QNN that public clients use: each is there, with its number, its size and its place. Nothing is run. */
#include "GPU/QnnGpuBackend.h"
#include "GPU/QnnGpuContext.h"
#include "GPU/QnnGpuGraph.h"
#include "HTP/QnnHtpContext.h"
#include "HTP/QnnHtpDevice.h"
#include "HTP/QnnHtpDeviceConfigShared.h"
#include "HTP/QnnHtpGraph.h"
#include "HTP/QnnHtpMem.h"
#include "IR/QnnIrCommon.h"
#include "IR/QnnIrGraph.h"
#include "LPAI/QnnLpaiBackend.h"
#include "LPAI/QnnLpaiContext.h"
#include "LPAI/QnnLpaiGraph.h"
#include "LPAI/QnnLpaiGraphPrepare.h"
#include "QnnInterface.h"
#include "Saver/QnnSaver.h"
#include "System/QnnSystemInterface.h"

#define NUMBER(name, value) static_assert((name) == (value), #name)
#define PLACE(type, field, offset) static_assert(offsetof(type, field) == (offset), #type "." #field)
#define RANGE(group, first, last) \
  NUMBER(QNN_##group##_MIN_ERROR, first); \
  NUMBER(QNN_##group##_MAX_ERROR, last)

/* A table of names indexed by errors of a range is what a client makes of it. */
RANGE(COMMON, 1000, 1999);
RANGE(PROPERTY, 2000, 2999);
RANGE(OP_PACKAGE, 3000, 3999);
RANGE(BACKEND, 4000, 4999);
RANGE(SAVER, 4950, 4998);
RANGE(CONTEXT, 5000, 5999);
RANGE(GRAPH, 6000, 6999);
RANGE(TENSOR, 7000, 7999);
RANGE(MEM, 8000, 8999);
RANGE(SIGNAL, 9000, 9999);
RANGE(ERROR, 10000, 10999);
RANGE(LOG, 11000, 11999);
RANGE(PROFILE, 12000, 12999);
RANGE(HTP_PERF_INFRASTRUCTURE, 13000, 13999);
RANGE(DEVICE, 14000, 14999);
RANGE(SYSTEM_COMMON, 30000, 30999);
RANGE(SYSTEM_CONTEXT, 30000, 49999);
RANGE(SYSTEM_PROFILE, 31000, 31999);
RANGE(INTERFACE, 60000, 60999);
static_assert(QNN_GRAPH_MIN_ERROR <= QNN_GRAPH_ERROR_INVALID_CONTEXT && QNN_GRAPH_ERROR_INVALID_CONTEXT < QNN_GRAPH_MAX_ERROR,
              "an error in its range");
NUMBER(QNN_PROFILE_ERROR_INCOMPATIBLE_EVENT, 12002);
NUMBER(QNN_OP_PACKAGE_ERROR_VALIDATION_FAILURE, 3110); /* by the interface's header alone, like operations' names */
static const char *const operations[] = {QNN_OP_PACKAGE_NAME_QTI_AISW, QNN_OP_MAT_MUL, QNN_OP_MAT_MUL_PARAM_TRANSPOSE_IN1};
NUMBER(QNN_OP_SCATTER_ELEMENTS_REDUCTION_MAX, 3);

NUMBER(QNN_BACKEND_ID_DSP, 5);
NUMBER(QNN_BACKEND_ID_IR, 9);
NUMBER(QNN_DSP_API_VERSION_MAJOR, 5);
NUMBER(QNN_IR_API_VERSION_MINOR, 1);

/* Whole tables without functions. */
QNN_INTERFACE_VER_TYPE table = QNN_INTERFACE_VER_TYPE_INIT;
QNN_SYSTEM_INTERFACE_VER_TYPE system_table = QNN_SYSTEM_INTERFACE_VER_TYPE_INIT;

NUMBER(QNN_HTP_DEVICE_ARCH_V89, 89);
NUMBER(QNN_HTP_DEVICE_CONFIG_OPTION_ASYNC_EXECUTE, 4);
NUMBER(QNN_HTP_DEVICE_CONFIG_OPTION_HTP_EXTENSION, 0x7fff0000);
NUMBER(QNN_HTP_GRAPH_OPTIMIZATION_TYPE_ENABLE_SPARSE_WEIGHTS_COMPRESSION, 6);
NUMBER(QNN_HTP_GRAPH_OPTIMIZATION_TYPE_ENABLE_SLC_ALLOCATOR, 7);
NUMBER(SEQUENTIAL_WITH_VA_OPTIMIZATION, 0);
NUMBER(SEQUENTIAL_WITHOUT_VA_OPTIMIZATION, 1);
NUMBER(CONCURRENT_OPTIMIZATION, 2);
NUMBER(QNN_HTP_MEM_WEIGHTS_BUFFER, 2);
NUMBER(QNN_HTP_MEM_SHARED_SPILLFILL_BUFFER, 3);
PLACE(QnnHtpContext_CustomConfig_t, shareResOptType, 8);
PLACE(QnnHtpDevice_CustomConfig_t, socModel, 8);
PLACE(QnnHtpDevice_CustomConfig_t, arch.arch, 12);
PLACE(QnnHtpDevice_CustomConfig_t, useSecureProcessDomain.useSecureProcessDomain, 12);
PLACE(QnnHtpDevice_CustomConfig_t, htpExtension, 8);

NUMBER(QNN_LPAI_BACKEND_CUSTOM_CFG_HW_INFO, 0);
NUMBER(QNN_LPAI_BACKEND_TARGET_TENSILICA, 3);
NUMBER(QNN_LPAI_BACKEND_HW_VERSION_V5_1, 0x00010005);
NUMBER(QNN_LPAI_BACKEND_HW_VERSION_V7, 7);
NUMBER(QNN_LPAI_BACKEND_HW_VERSION_DEFAULT, QNN_LPAI_BACKEND_HW_VERSION_V5);
NUMBER(QNN_LPAI_CONTEXT_SET_CFG_ENABLE_ISLAND_DEFAULT, 11);
NUMBER(QNN_LPAI_GRAPH_SET_CFG_PERSISTENT_MEM_DEFAULT, 101);
NUMBER(QNN_LPAI_GRAPH_SET_CFG_PREPARE_DEFAULT, QNN_LPAI_GRAPH_SET_CFG_PREPARE);
NUMBER(QNN_LPAI_GRAPH_DEFAULT_FPS, 1);
NUMBER(QNN_LPAI_GRAPH_DEFAULT_FTRT_RATIO, 10);
PLACE(QnnLpaiBackend_CustomConfig_t, config, 8);
PLACE(QnnLpaiBackend_CustomConfigHwInfo_t, hwVersion, 4);
PLACE(QnnLpaiGraph_CustomConfigPrepare_t, enableCoreSelection, 8);
static_assert(sizeof(QnnLpaiGraph_CustomConfigPrepare_t) == 16, "a number and an address");

NUMBER(QNN_GPU_BACKEND_CONFIG_OPTION_WEIGHT_SHARING_ENABLED, 3);
NUMBER(QNN_GPU_CONTEXT_CONFIG_OPTION_PERF_HINT, 0);
NUMBER(QNN_GPU_CONTEXT_PERF_HINT_HIGH, 0);
NUMBER(QNN_GPU_CONTEXT_PERF_HINT_LOW, 2);
PLACE(QnnGpuBackend_CustomConfig_t, performanceCacheDir, 8);
PLACE(QnnGpuContext_CustomConfig_t, kernelRepoDir, 8);
PLACE(QnnGpuGraph_CustomConfig_t, disableQueueRecording, 6);

PLACE(QnnIrGraph_CustomConfig_t, serializationOption.outputPath, 16);
NUMBER(QNN_IR_GRAPH_CONFIG_OPTION_SERIALIZATION, 1);

NUMBER(QNN_SYSTEM_PROFILE_ERROR_MEM_ALLOC, 31000);
NUMBER(QNN_SYSTEM_PROFILE_METHOD_TYPE_BACKEND_EXECUTE, 1);
NUMBER(QNN_SYSTEM_PROFILE_METHOD_TYPE_BACKEND_UPDATE_BINARY_SECTION, 17);
PLACE(QnnSystemProfile_HeaderV1_t, visibility, 36);

/* Enumerations are types with their members in scope, as wrappers for other languages take them. */
static_assert(Qnn_BlockwiseExpansionBlockScaleStorageType_t::QNN_BLOCKWISE_EXPANSION_BITWIDTH_SCALE_STORAGE_16 == 1, "");
QnnHtpGraph_OptimizationType_t optimization = QnnHtpGraph_OptimizationType_t(4);

int main() { return operations[0] == nullptr || table.graphExecute || system_table.systemLogFree || optimization != 4; }
