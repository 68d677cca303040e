/* The backend's functions: the table that a library hands to its client.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_INTERFACE_H
#define QNN_INTERFACE_H

#include "QnnBackend.h"
#include "QnnContext.h"
#include "QnnDevice.h"
#include "QnnError.h"
#include "QnnGlobalConfig.h"
#include "QnnGraph.h"
#include "QnnLog.h"
#include "QnnMem.h"
#include "QnnOpDef.h"
#include "QnnOpPackage.h"
#include "QnnProfile.h"
#include "QnnProperty.h"
#include "QnnSignal.h"
#include "QnnTensor.h"
#include "CPU/QnnCpuCommon.h"
#include "DSP/QnnDspCommon.h"
#include "GPU/QnnGpuCommon.h"
#include "HTP/QnnHtpCommon.h"
#include "IR/QnnIrCommon.h"
#include "LPAI/QnnLpaiCommon.h"
#include "Saver/QnnSaverCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_INTERFACE_NO_ERROR = 0, QNN_INTERFACE_ERROR_NOT_SUPPORTED = 1000,
  QNN_INTERFACE_ERROR_INVALID_PARAMETER = 60000, QNN_INTERFACE_MIN_ERROR = QNN_MIN_ERROR_INTERFACE,
  QNN_INTERFACE_MAX_ERROR = QNN_MAX_ERROR_INTERFACE, QNN_INTERFACE_ERROR_UNDEFINED = QNN_UNDEFINED
} QnnInterface_Error_t;
typedef Qnn_ErrorHandle_t (*Qnn_NotOffered_t)(void);

typedef __typeof__(&QnnProperty_hasCapability) QnnProperty_HasCapabilityFn_t;
typedef __typeof__(&QnnBackend_create) QnnBackend_CreateFn_t;
typedef __typeof__(&QnnBackend_setConfig) QnnBackend_SetConfigFn_t;
typedef __typeof__(&QnnBackend_getApiVersion) QnnBackend_GetApiVersionFn_t;
typedef __typeof__(&QnnBackend_getBuildId) QnnBackend_GetBuildIdFn_t;
typedef __typeof__(&QnnBackend_registerOpPackage) QnnBackend_RegisterOpPackageFn_t;
typedef __typeof__(&QnnBackend_getSupportedOperations) QnnBackend_GetSupportedOperationsFn_t;
typedef __typeof__(&QnnBackend_validateOpConfig) QnnBackend_ValidateOpConfigFn_t;
typedef __typeof__(&QnnBackend_free) QnnBackend_FreeFn_t;
typedef __typeof__(&QnnContext_create) QnnContext_CreateFn_t;
typedef __typeof__(&QnnContext_setConfig) QnnContext_SetConfigFn_t;
typedef __typeof__(&QnnContext_getBinarySize) QnnContext_GetBinarySizeFn_t;
typedef __typeof__(&QnnContext_getBinary) QnnContext_GetBinaryFn_t;
typedef __typeof__(&QnnContext_createFromBinary) QnnContext_CreateFromBinaryFn_t;
typedef __typeof__(&QnnContext_free) QnnContext_FreeFn_t;
typedef __typeof__(&QnnGraph_create) QnnGraph_CreateFn_t;
typedef __typeof__(&QnnGraph_createSubgraph) QnnGraph_CreateSubgraphFn_t;
typedef __typeof__(&QnnGraph_setConfig) QnnGraph_SetConfigFn_t;
typedef __typeof__(&QnnGraph_addNode) QnnGraph_AddNodeFn_t;
typedef __typeof__(&QnnGraph_finalize) QnnGraph_FinalizeFn_t;
typedef __typeof__(&QnnGraph_retrieve) QnnGraph_RetrieveFn_t;
typedef __typeof__(&QnnGraph_execute) QnnGraph_ExecuteFn_t;
typedef __typeof__(&QnnGraph_executeAsync) QnnGraph_ExecuteAsyncFn_t;
typedef __typeof__(&QnnTensor_createContextTensor) QnnTensor_CreateContextTensorFn_t;
typedef __typeof__(&QnnTensor_createGraphTensor) QnnTensor_CreateGraphTensorFn_t;
typedef __typeof__(&QnnLog_create) QnnLog_CreateFn_t;
typedef __typeof__(&QnnLog_setLogLevel) QnnLog_SetLogLevelFn_t;
typedef __typeof__(&QnnLog_free) QnnLog_FreeFn_t;
typedef __typeof__(&QnnProfile_create) QnnProfile_CreateFn_t;
typedef __typeof__(&QnnProfile_setConfig) QnnProfile_SetConfigFn_t;
typedef __typeof__(&QnnProfile_getEvents) QnnProfile_GetEventsFn_t;
typedef __typeof__(&QnnProfile_getSubEvents) QnnProfile_GetSubEventsFn_t;
typedef __typeof__(&QnnProfile_getEventData) QnnProfile_GetEventDataFn_t;
typedef __typeof__(&QnnProfile_getExtendedEventData) QnnProfile_GetExtendedEventDataFn_t;
typedef __typeof__(&QnnProfile_free) QnnProfile_FreeFn_t;
typedef __typeof__(&QnnMem_register) QnnMem_RegisterFn_t;
typedef __typeof__(&QnnMem_deRegister) QnnMem_DeRegisterFn_t;
typedef __typeof__(&QnnDevice_getPlatformInfo) QnnDevice_GetPlatformInfoFn_t;
typedef __typeof__(&QnnDevice_freePlatformInfo) QnnDevice_FreePlatformInfoFn_t;
typedef __typeof__(&QnnDevice_getInfrastructure) QnnDevice_GetInfrastructureFn_t;
typedef __typeof__(&QnnDevice_create) QnnDevice_CreateFn_t;
typedef __typeof__(&QnnDevice_setConfig) QnnDevice_SetConfigFn_t;
typedef __typeof__(&QnnDevice_getInfo) QnnDevice_GetInfoFn_t;
typedef __typeof__(&QnnDevice_free) QnnDevice_FreeFn_t;
typedef __typeof__(&QnnSignal_create) QnnSignal_CreateFn_t;
typedef __typeof__(&QnnSignal_setConfig) QnnSignal_SetConfigFn_t;
typedef __typeof__(&QnnSignal_trigger) QnnSignal_TriggerFn_t;
typedef __typeof__(&QnnSignal_free) QnnSignal_FreeFn_t;
typedef __typeof__(&QnnError_getMessage) QnnError_GetMessageFn_t;
typedef __typeof__(&QnnError_getVerboseMessage) QnnError_GetVerboseMessageFn_t;
typedef __typeof__(&QnnError_freeVerboseMessage) QnnError_FreeVerboseMessageFn_t;
typedef __typeof__(&QnnGraph_prepareExecutionEnvironment) QnnGraph_PrepareExecutionEnvironmentFn_t;
typedef __typeof__(&QnnGraph_releaseExecutionEnvironment) QnnGraph_ReleaseExecutionEnvironmentFn_t;
typedef __typeof__(&QnnGraph_getProperty) QnnGraph_GetPropertyFn_t;
typedef __typeof__(&QnnContext_validateBinary) QnnContext_ValidateBinaryFn_t;
typedef __typeof__(&QnnContext_createFromBinaryWithSignal) QnnContext_CreateFromBinaryWithSignalFn_t;
typedef __typeof__(&QnnContext_createFromBinaryListAsync) QnnContext_CreateFromBinaryListAsyncFn_t;
typedef __typeof__(&QnnTensor_updateGraphTensors) QnnTensor_UpdateGraphTensorsFn_t;
typedef __typeof__(&QnnTensor_updateContextTensors) QnnTensor_UpdateContextTensorsFn_t;
typedef __typeof__(&QnnContext_getBinarySectionSize) QnnContext_GetBinarySectionSizeFn_t;
typedef __typeof__(&QnnContext_getBinarySection) QnnContext_GetBinarySectionFn_t;
typedef __typeof__(&QnnContext_applyBinarySection) QnnContext_ApplyBinarySectionFn_t;
typedef __typeof__(&QnnBackend_getProperty) QnnBackend_GetPropertyFn_t;
typedef __typeof__(&QnnContext_getProperty) QnnContext_GetPropertyFn_t;
typedef __typeof__(&QnnContext_getIncrementalBinary) QnnContext_GetIncrementalBinaryFn_t;
typedef __typeof__(&QnnContext_releaseIncrementalBinary) QnnContext_ReleaseIncrementalBinaryFn_t;
typedef __typeof__(&QnnContext_finalize) QnnContext_FinalizeFn_t;
typedef __typeof__(&QnnGlobalConfig_set) QnnGlobalConfig_SetFn_t;
typedef __typeof__(&QnnContext_addToDlc) QnnContext_AddToDlcFn_t;

/* The order is part of the interface. What is not declared above answers 1000. */
typedef struct {
  QnnProperty_HasCapabilityFn_t propertyHasCapability;
  QnnBackend_CreateFn_t backendCreate;
  QnnBackend_SetConfigFn_t backendSetConfig;
  QnnBackend_GetApiVersionFn_t backendGetApiVersion;
  QnnBackend_GetBuildIdFn_t backendGetBuildId;
  QnnBackend_RegisterOpPackageFn_t backendRegisterOpPackage;
  QnnBackend_GetSupportedOperationsFn_t backendGetSupportedOperations;
  QnnBackend_ValidateOpConfigFn_t backendValidateOpConfig;
  QnnBackend_FreeFn_t backendFree;
  QnnContext_CreateFn_t contextCreate;
  QnnContext_SetConfigFn_t contextSetConfig;
  QnnContext_GetBinarySizeFn_t contextGetBinarySize;
  QnnContext_GetBinaryFn_t contextGetBinary;
  QnnContext_CreateFromBinaryFn_t contextCreateFromBinary;
  QnnContext_FreeFn_t contextFree;
  QnnGraph_CreateFn_t graphCreate;
  QnnGraph_CreateSubgraphFn_t graphCreateSubgraph;
  QnnGraph_SetConfigFn_t graphSetConfig;
  QnnGraph_AddNodeFn_t graphAddNode;
  QnnGraph_FinalizeFn_t graphFinalize;
  QnnGraph_RetrieveFn_t graphRetrieve;
  QnnGraph_ExecuteFn_t graphExecute;
  QnnGraph_ExecuteAsyncFn_t graphExecuteAsync;
  QnnTensor_CreateContextTensorFn_t tensorCreateContextTensor;
  QnnTensor_CreateGraphTensorFn_t tensorCreateGraphTensor;
  QnnLog_CreateFn_t logCreate;
  QnnLog_SetLogLevelFn_t logSetLogLevel;
  QnnLog_FreeFn_t logFree;
  QnnProfile_CreateFn_t profileCreate;
  QnnProfile_SetConfigFn_t profileSetConfig;
  QnnProfile_GetEventsFn_t profileGetEvents;
  QnnProfile_GetSubEventsFn_t profileGetSubEvents;
  QnnProfile_GetEventDataFn_t profileGetEventData;
  QnnProfile_GetExtendedEventDataFn_t profileGetExtendedEventData;
  QnnProfile_FreeFn_t profileFree;
  QnnMem_RegisterFn_t memRegister;
  QnnMem_DeRegisterFn_t memDeRegister;
  QnnDevice_GetPlatformInfoFn_t deviceGetPlatformInfo;
  QnnDevice_FreePlatformInfoFn_t deviceFreePlatformInfo;
  QnnDevice_GetInfrastructureFn_t deviceGetInfrastructure;
  QnnDevice_CreateFn_t deviceCreate;
  QnnDevice_SetConfigFn_t deviceSetConfig;
  QnnDevice_GetInfoFn_t deviceGetInfo;
  QnnDevice_FreeFn_t deviceFree;
  QnnSignal_CreateFn_t signalCreate;
  QnnSignal_SetConfigFn_t signalSetConfig;
  QnnSignal_TriggerFn_t signalTrigger;
  QnnSignal_FreeFn_t signalFree;
  QnnError_GetMessageFn_t errorGetMessage;
  QnnError_GetVerboseMessageFn_t errorGetVerboseMessage;
  QnnError_FreeVerboseMessageFn_t errorFreeVerboseMessage;
  QnnGraph_PrepareExecutionEnvironmentFn_t graphPrepareExecutionEnvironment;
  QnnGraph_ReleaseExecutionEnvironmentFn_t graphReleaseExecutionEnvironment;
  QnnGraph_GetPropertyFn_t graphGetProperty;
  QnnContext_ValidateBinaryFn_t contextValidateBinary;
  QnnContext_CreateFromBinaryWithSignalFn_t contextCreateFromBinaryWithSignal;
  QnnContext_CreateFromBinaryListAsyncFn_t contextCreateFromBinaryListAsync;
  QnnTensor_UpdateGraphTensorsFn_t tensorUpdateGraphTensors;
  QnnTensor_UpdateContextTensorsFn_t tensorUpdateContextTensors;
  QnnContext_GetBinarySectionSizeFn_t contextGetBinarySectionSize;
  QnnContext_GetBinarySectionFn_t contextGetBinarySection;
  QnnContext_ApplyBinarySectionFn_t contextApplyBinarySection;
  QnnBackend_GetPropertyFn_t backendGetProperty;
  QnnContext_GetPropertyFn_t contextGetProperty;
  QnnContext_GetIncrementalBinaryFn_t contextGetIncrementalBinary;
  QnnContext_ReleaseIncrementalBinaryFn_t contextReleaseIncrementalBinary;
  QnnContext_FinalizeFn_t contextFinalize;
  QnnGlobalConfig_SetFn_t globalConfigSet;
  Qnn_NotOffered_t contextCreateFromBinaryWithCallback;
  Qnn_NotOffered_t contextGetBinarySectionUpdate;
  Qnn_NotOffered_t contextFreeBinarySectionUpdate;
  QnnContext_AddToDlcFn_t contextAddToDlc;
  Qnn_NotOffered_t reserved72;
  Qnn_NotOffered_t reserved73;
  Qnn_NotOffered_t backendRegisterOpPackageFromBinary;
} QnnInterface_ImplementationV2_40_t;

#define QNN_INTERFACE_VER_TYPE QnnInterface_ImplementationV2_40_t
#define QNN_INTERFACE_VER_TYPE_INIT \
  {NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
  NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
  NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
  NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
  NULL, NULL, NULL}
#define QNN_INTERFACE_VER_NAME v2_40
#define QNN_TABLE_ENTRIES 75
QNN_LAYOUT(QNN_INTERFACE_VER_TYPE, 8 * QNN_TABLE_ENTRIES);

typedef struct {
  uint32_t backendId; const char *providerName; Qnn_ApiVersion_t apiVersion;
  union { QNN_INTERFACE_VER_TYPE QNN_INTERFACE_VER_NAME; };
} QnnInterface_t;
QNN_LAYOUT(QnnInterface_t, 40 + 8 * QNN_TABLE_ENTRIES);

QNN_API Qnn_ErrorHandle_t QnnInterface_getProviders(const QnnInterface_t ***providerList, uint32_t *numProviders);
typedef __typeof__(&QnnInterface_getProviders) QnnInterface_getProvidersFn_t;

#ifdef __cplusplus
}
#endif
#endif
