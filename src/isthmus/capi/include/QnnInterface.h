/* QNN's back-end functions: the table that a library hands to its client. Core API 2.40. */
#ifndef ISTHMUS_QNN_INTERFACE_H
#define ISTHMUS_QNN_INTERFACE_H

#include "QnnTypes.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QNN_API_VERSION_MAJOR 2
#define QNN_API_VERSION_MINOR 40
#define QNN_API_VERSION_PATCH 0

typedef enum {
  QNN_BACKEND_ID_REFERENCE = 1, QNN_BACKEND_ID_SAVER = 2, QNN_BACKEND_ID_CPU = 3, QNN_BACKEND_ID_GPU = 4,
  QNN_BACKEND_ID_DSP = 5, QNN_BACKEND_ID_HTP = 6, QNN_BACKEND_ID_IR = 9, QNN_BACKEND_ID_LPAI = 12
} Qnn_BackendId_t;

typedef Qnn_ErrorHandle_t (*Qnn_NotOffered_t)(void);

/* The names of functions stand in the order of the table. Nothing may come between. */
typedef struct {
  Qnn_ErrorHandle_t (*propertyHasCapability)(QnnProperty_Key_t key);
  Qnn_ErrorHandle_t (*backendCreate)(Qnn_LogHandle_t, const QnnBackend_Config_t **, Qnn_BackendHandle_t *);
  Qnn_ErrorHandle_t (*backendSetConfig)(Qnn_BackendHandle_t, const QnnBackend_Config_t **);
  Qnn_ErrorHandle_t (*backendGetApiVersion)(Qnn_ApiVersion_t *);
  Qnn_ErrorHandle_t (*backendGetBuildId)(const char **);
  Qnn_ErrorHandle_t (*backendRegisterOpPackage)(Qnn_BackendHandle_t, const char *path, const char *provider,
                                                const char *target);
  Qnn_ErrorHandle_t (*backendGetSupportedOperations)(Qnn_BackendHandle_t, uint32_t *,
                                                     const QnnBackend_OperationName_t **);
  Qnn_ErrorHandle_t (*backendValidateOpConfig)(Qnn_BackendHandle_t, Qnn_OpConfig_t);
  Qnn_ErrorHandle_t (*backendFree)(Qnn_BackendHandle_t);
  Qnn_ErrorHandle_t (*contextCreate)(Qnn_BackendHandle_t, Qnn_DeviceHandle_t, const QnnContext_Config_t **,
                                     Qnn_ContextHandle_t *);
  Qnn_ErrorHandle_t (*contextSetConfig)(Qnn_ContextHandle_t, const QnnContext_Config_t **);
  Qnn_ErrorHandle_t (*contextGetBinarySize)(Qnn_ContextHandle_t, Qnn_ContextBinarySize_t *);
  Qnn_ErrorHandle_t (*contextGetBinary)(Qnn_ContextHandle_t, void *, Qnn_ContextBinarySize_t,
                                        Qnn_ContextBinarySize_t *);
  Qnn_ErrorHandle_t (*contextCreateFromBinary)(Qnn_BackendHandle_t, Qnn_DeviceHandle_t, const QnnContext_Config_t **,
                                               const void *, Qnn_ContextBinarySize_t, Qnn_ContextHandle_t *,
                                               Qnn_ProfileHandle_t);
  Qnn_ErrorHandle_t (*contextFree)(Qnn_ContextHandle_t, Qnn_ProfileHandle_t);
  Qnn_ErrorHandle_t (*graphCreate)(Qnn_ContextHandle_t, const char *, const QnnGraph_Config_t **, Qnn_GraphHandle_t *);
  Qnn_ErrorHandle_t (*graphCreateSubgraph)(Qnn_GraphHandle_t, const char *, Qnn_GraphHandle_t *);
  Qnn_ErrorHandle_t (*graphSetConfig)(Qnn_GraphHandle_t, const QnnGraph_Config_t **);
  Qnn_ErrorHandle_t (*graphAddNode)(Qnn_GraphHandle_t, Qnn_OpConfig_t);
  Qnn_ErrorHandle_t (*graphFinalize)(Qnn_GraphHandle_t, Qnn_ProfileHandle_t, Qnn_SignalHandle_t);
  Qnn_ErrorHandle_t (*graphRetrieve)(Qnn_ContextHandle_t, const char *, Qnn_GraphHandle_t *);
  Qnn_ErrorHandle_t (*graphExecute)(Qnn_GraphHandle_t, const Qnn_Tensor_t *inputs, uint32_t, Qnn_Tensor_t *outputs,
                                    uint32_t, Qnn_ProfileHandle_t, Qnn_SignalHandle_t);
  Qnn_ErrorHandle_t (*graphExecuteAsync)(Qnn_GraphHandle_t, const Qnn_Tensor_t *inputs, uint32_t, Qnn_Tensor_t *outputs,
                                         uint32_t, Qnn_ProfileHandle_t, Qnn_SignalHandle_t, Qnn_NotifyFn_t, void *);
  Qnn_ErrorHandle_t (*tensorCreateContextTensor)(Qnn_ContextHandle_t, Qnn_Tensor_t *);
  Qnn_ErrorHandle_t (*tensorCreateGraphTensor)(Qnn_GraphHandle_t, Qnn_Tensor_t *);
  Qnn_ErrorHandle_t (*logCreate)(QnnLog_Callback_t, QnnLog_Level_t, Qnn_LogHandle_t *);
  Qnn_ErrorHandle_t (*logSetLogLevel)(Qnn_LogHandle_t, QnnLog_Level_t);
  Qnn_ErrorHandle_t (*logFree)(Qnn_LogHandle_t);
  Qnn_ErrorHandle_t (*profileCreate)(Qnn_BackendHandle_t, QnnProfile_Level_t, Qnn_ProfileHandle_t *);
  Qnn_ErrorHandle_t (*profileSetConfig)(Qnn_ProfileHandle_t, const QnnProfile_Config_t **);
  Qnn_ErrorHandle_t (*profileGetEvents)(Qnn_ProfileHandle_t, const QnnProfile_EventId_t **, uint32_t *);
  Qnn_ErrorHandle_t (*profileGetSubEvents)(QnnProfile_EventId_t, const QnnProfile_EventId_t **, uint32_t *);
  Qnn_ErrorHandle_t (*profileGetEventData)(QnnProfile_EventId_t, QnnProfile_EventData_t *);
  Qnn_ErrorHandle_t (*profileGetExtendedEventData)(QnnProfile_EventId_t, QnnProfile_ExtendedEventData_t *);
  Qnn_ErrorHandle_t (*profileFree)(Qnn_ProfileHandle_t);
  Qnn_ErrorHandle_t (*memRegister)(Qnn_ContextHandle_t, const Qnn_MemDescriptor_t *, uint32_t, Qnn_MemHandle_t *);
  Qnn_ErrorHandle_t (*memDeRegister)(const Qnn_MemHandle_t *, uint32_t);
  Qnn_ErrorHandle_t (*deviceGetPlatformInfo)(Qnn_LogHandle_t, const QnnDevice_PlatformInfo_t **);
  Qnn_ErrorHandle_t (*deviceFreePlatformInfo)(Qnn_LogHandle_t, const QnnDevice_PlatformInfo_t *);
  Qnn_ErrorHandle_t (*deviceGetInfrastructure)(const QnnDevice_Infrastructure_t *);
  Qnn_ErrorHandle_t (*deviceCreate)(Qnn_LogHandle_t, const QnnDevice_Config_t **, Qnn_DeviceHandle_t *);
  Qnn_ErrorHandle_t (*deviceSetConfig)(Qnn_DeviceHandle_t, const QnnDevice_Config_t **);
  Qnn_ErrorHandle_t (*deviceGetInfo)(Qnn_DeviceHandle_t, const QnnDevice_PlatformInfo_t **);
  Qnn_ErrorHandle_t (*deviceFree)(Qnn_DeviceHandle_t);
  Qnn_ErrorHandle_t (*signalCreate)(Qnn_BackendHandle_t, const QnnSignal_Config_t **, Qnn_SignalHandle_t *);
  Qnn_ErrorHandle_t (*signalSetConfig)(Qnn_SignalHandle_t, const QnnSignal_Config_t **);
  Qnn_ErrorHandle_t (*signalTrigger)(Qnn_SignalHandle_t);
  Qnn_ErrorHandle_t (*signalFree)(Qnn_SignalHandle_t);
  Qnn_ErrorHandle_t (*errorGetMessage)(Qnn_ErrorHandle_t, const char **);
  Qnn_ErrorHandle_t (*errorGetVerboseMessage)(Qnn_ErrorHandle_t, const char **);
  Qnn_ErrorHandle_t (*errorFreeVerboseMessage)(const char *);
  Qnn_ErrorHandle_t (*graphPrepareExecutionEnvironment)(Qnn_GraphHandle_t, QnnGraph_ExecuteEnvironment_t **, uint32_t);
  Qnn_ErrorHandle_t (*graphReleaseExecutionEnvironment)(Qnn_GraphHandle_t, const QnnGraph_ExecuteEnvironment_t **,
                                                        uint32_t);
  Qnn_ErrorHandle_t (*graphGetProperty)(Qnn_GraphHandle_t, QnnGraph_Property_t **);
  Qnn_ErrorHandle_t (*contextValidateBinary)(Qnn_BackendHandle_t, Qnn_DeviceHandle_t, const QnnContext_Config_t **,
                                             const void *, Qnn_ContextBinarySize_t);
  Qnn_ErrorHandle_t (*contextCreateFromBinaryWithSignal)(Qnn_BackendHandle_t, Qnn_DeviceHandle_t,
                                                         const QnnContext_Config_t **, const void *,
                                                         Qnn_ContextBinarySize_t, Qnn_ContextHandle_t *,
                                                         Qnn_ProfileHandle_t, Qnn_SignalHandle_t);
  Qnn_ErrorHandle_t (*contextCreateFromBinaryListAsync)(Qnn_BackendHandle_t, Qnn_DeviceHandle_t,
                                                        const QnnContext_Params_t **, const QnnContext_Config_t **,
                                                        Qnn_SignalHandle_t);
  Qnn_ErrorHandle_t (*tensorUpdateGraphTensors)(Qnn_GraphHandle_t, const Qnn_Tensor_t **, uint64_t);
  Qnn_ErrorHandle_t (*tensorUpdateContextTensors)(Qnn_ContextHandle_t, const Qnn_Tensor_t **, uint64_t);
  Qnn_ErrorHandle_t (*contextGetBinarySectionSize)(Qnn_ContextHandle_t, Qnn_GraphHandle_t, uint32_t,
                                                   Qnn_ContextBinarySize_t *);
  Qnn_ErrorHandle_t (*contextGetBinarySection)(Qnn_ContextHandle_t, Qnn_GraphHandle_t, uint32_t, const void *,
                                               Qnn_ContextBinarySize_t *, Qnn_ProfileHandle_t, Qnn_SignalHandle_t);
  Qnn_ErrorHandle_t (*contextApplyBinarySection)(Qnn_ContextHandle_t, Qnn_GraphHandle_t, uint32_t, const void *,
                                                 Qnn_ProfileHandle_t, Qnn_SignalHandle_t);
  Qnn_ErrorHandle_t (*backendGetProperty)(Qnn_BackendHandle_t, QnnBackend_Property_t **);
  Qnn_ErrorHandle_t (*contextGetProperty)(Qnn_ContextHandle_t, QnnContext_Property_t **);
  Qnn_ErrorHandle_t (*contextGetIncrementalBinary)(Qnn_ContextHandle_t, const void **, Qnn_ContextBinarySize_t *,
                                                   Qnn_ContextBinarySize_t *);
  Qnn_ErrorHandle_t (*contextReleaseIncrementalBinary)(Qnn_ContextHandle_t, const void *, Qnn_ContextBinarySize_t);
  Qnn_ErrorHandle_t (*contextFinalize)(Qnn_ContextHandle_t, Qnn_ProfileHandle_t);
  Qnn_ErrorHandle_t (*globalConfigSet)(const void **);
  Qnn_NotOffered_t contextCreateFromBinaryWithCallback, contextGetBinarySectionUpdate, contextFreeBinarySectionUpdate,
      contextAddToDlc, reserved72, reserved73, backendRegisterOpPackageFromBinary;
} QnnInterface_ImplementationV2_40_t;

#define QNN_TABLE_ENTRIES 75
#define QNN_INTERFACE_VER_TYPE QnnInterface_ImplementationV2_40_t
#define QNN_INTERFACE_VER_NAME v2_40
QNN_LAYOUT(QNN_INTERFACE_VER_TYPE, 8 * QNN_TABLE_ENTRIES);

typedef struct {
  uint32_t backendId;
  const char *providerName;
  Qnn_ApiVersion_t apiVersion;
  union { QNN_INTERFACE_VER_TYPE QNN_INTERFACE_VER_NAME; };
} QnnInterface_t;
QNN_LAYOUT(QnnInterface_t, 40 + 8 * QNN_TABLE_ENTRIES);

Qnn_ErrorHandle_t QnnInterface_getProviders(const QnnInterface_t ***providerList, uint32_t *numProviders);
typedef Qnn_ErrorHandle_t (*QnnInterface_getProvidersFn_t)(const QnnInterface_t ***, uint32_t *);

#ifdef __cplusplus
}
#endif
#endif
