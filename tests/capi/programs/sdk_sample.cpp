// A program as QNN's own samples are written: the SDK's headers by their names, its macros, and the usual sequence of
// calls. It composes the graphs of a model library, finalizes, executes, saves a context binary, loads it and executes
// again; both results have to agree.
//
//     sdk_sample libQnnHtp.so libqnn_model.so libQnnSystem.so
#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "HTP/QnnHtpDevice.h"
#include "HTP/QnnHtpGraph.h"
#include "HTP/QnnHtpPerfInfrastructure.h"
#include "HTP/QnnHtpProfile.h"
#include "QnnBackend.h"
#include "QnnCommon.h"
#include "QnnContext.h"
#include "QnnInterface.h"
#include "QnnLog.h"
#include "QnnOpDef.h"
#include "QnnProperty.h"
#include "QnnSdkBuildId.h"
#include "QnnTypeMacros.hpp"
#include "QnnTypes.h"
#include "System/QnnSystemContext.h"
#include "System/QnnSystemInterface.h"

typedef struct GraphInfo {
  Qnn_GraphHandle_t graph;
  char *graphName;
  Qnn_Tensor_t *inputTensors;
  uint32_t numInputTensors;
  Qnn_Tensor_t *outputTensors;
  uint32_t numOutputTensors;
} GraphInfo_t;
typedef struct GraphConfigInfo {
  char *graphName;
  const QnnGraph_Config_t **graphConfigs;
} GraphConfigInfo_t;

typedef Qnn_ErrorHandle_t (*QnnInterfaceGetProvidersFn_t)(const QnnInterface_t ***, uint32_t *);
typedef Qnn_ErrorHandle_t (*QnnSystemInterfaceGetProvidersFn_t)(const QnnSystemInterface_t ***, uint32_t *);
typedef uint32_t (*ComposeGraphsFnHandleType_t)(Qnn_BackendHandle_t, QNN_INTERFACE_VER_TYPE, Qnn_ContextHandle_t,
                                                const GraphConfigInfo_t **, const uint32_t, GraphInfo_t ***, uint32_t *,
                                                bool, QnnLog_Callback_t, QnnLog_Level_t);
typedef uint32_t (*FreeGraphInfoFnHandleType_t)(GraphInfo_t ***, uint32_t);

static QNN_INTERFACE_VER_TYPE qnn;
static QNN_SYSTEM_INTERFACE_VER_TYPE qnnSystem;

#define EXPECT(condition)                                                                    \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);     \
      std::exit(1);                                                                          \
    }                                                                                        \
  } while (0)
#define SUCCEED(call) EXPECT((call) == QNN_SUCCESS)

static void logCallback(const char *format, QnnLog_Level_t, uint64_t, va_list arguments) {
  char line[4096];
  std::vsnprintf(line, sizeof line, format, arguments);
}

template <class Function>
static Function symbol(void *library, const char *name) {
  Function found = reinterpret_cast<Function>(dlsym(library, name));
  EXPECT(found != nullptr);
  return found;
}

static size_t elementSize(Qnn_DataType_t dataType) {
  switch (dataType) {
    case QNN_DATATYPE_FLOAT_32:
    case QNN_DATATYPE_INT_32:
    case QNN_DATATYPE_UINT_32: return 4;
    case QNN_DATATYPE_FLOAT_16:
    case QNN_DATATYPE_UFIXED_POINT_16: return 2;
    default: return 1;
  }
}

// Copies a tensor's description, as a program does that outlives the model library, and gives it memory.
static Qnn_Tensor_t setupTensor(const Qnn_Tensor_t &source, std::vector<std::unique_ptr<char[]>> &owned) {
  Qnn_Tensor_t tensor = QNN_TENSOR_INIT;
  QNN_TENSOR_SET_ID(tensor, QNN_TENSOR_GET_ID(source));
  owned.emplace_back(strcpy(new char[strlen(QNN_TENSOR_GET_NAME(source)) + 1], QNN_TENSOR_GET_NAME(source)));
  QNN_TENSOR_SET_NAME(&tensor, owned.back().get());
  QNN_TENSOR_SET_TYPE(tensor, QNN_TENSOR_GET_TYPE(&source));
  QNN_TENSOR_SET_DATA_FORMAT(tensor, QNN_TENSOR_GET_DATA_FORMAT(source));
  QNN_TENSOR_SET_DATA_TYPE(tensor, QNN_TENSOR_GET_DATA_TYPE(source));
  Qnn_QuantizeParams_t quantization = QNN_QUANTIZE_PARAMS_INIT;
  if (QNN_TENSOR_GET_QUANT_PARAMS(source).quantizationEncoding == QNN_QUANTIZATION_ENCODING_SCALE_OFFSET)
    quantization = QNN_TENSOR_GET_QUANT_PARAMS(source);
  QNN_TENSOR_SET_QUANT_PARAMS(tensor, quantization);
  const uint32_t rank = QNN_TENSOR_GET_RANK(source);
  QNN_TENSOR_SET_RANK(tensor, rank);
  owned.emplace_back(new char[rank * sizeof(uint32_t)]);
  uint32_t *dimensions = reinterpret_cast<uint32_t *>(owned.back().get());
  size_t bytes = elementSize(QNN_TENSOR_GET_DATA_TYPE(source));
  for (uint32_t i = 0; i < rank; i++) bytes *= dimensions[i] = QNN_TENSOR_GET_DIMENSIONS(source)[i];
  QNN_TENSOR_SET_DIMENSIONS(tensor, dimensions);
  QNN_TENSOR_SET_MEM_TYPE(tensor, QNN_TENSORMEMTYPE_RAW);
  Qnn_ClientBuffer_t buffer = QNN_CLIENT_BUFFER_INIT;
  owned.emplace_back(new char[bytes]());
  buffer.data = owned.back().get();
  buffer.dataSize = static_cast<uint32_t>(bytes);
  QNN_TENSOR_SET_CLIENT_BUF(tensor, buffer);
  EXPECT(QNN_TENSOR_GET_IS_DYNAMIC_DIMENSIONS(source) == nullptr);
  return tensor;
}

static std::string executed(Qnn_GraphHandle_t graph, const Qnn_Tensor_t &input, const Qnn_Tensor_t &output,
                            Qnn_ProfileHandle_t profile) {
  std::vector<std::unique_ptr<char[]>> owned;
  Qnn_Tensor_t x = setupTensor(input, owned), y = setupTensor(output, owned);
  const Qnn_ClientBuffer_t data = QNN_TENSOR_GET_CLIENT_BUF(x);
  if (QNN_TENSOR_GET_DATA_TYPE(x) == QNN_DATATYPE_FLOAT_32)
    for (uint32_t i = 0; i < data.dataSize / 4; i++) static_cast<float *>(data.data)[i] = static_cast<float>(i % 7) - 3;
  else
    for (uint32_t i = 0; i < data.dataSize; i++) static_cast<uint8_t *>(data.data)[i] = static_cast<uint8_t>(i * 5);
  SUCCEED(qnn.graphExecute(graph, &x, 1, &y, 1, profile, nullptr));
  const Qnn_ClientBuffer_t result = QNN_TENSOR_GET_CLIENT_BUF(&y);
  return std::string(static_cast<char *>(result.data), result.dataSize);
}

static unsigned events(Qnn_ProfileHandle_t profile) {
  const QnnProfile_EventId_t *profileEvents = nullptr;
  uint32_t numEvents = 0;
  SUCCEED(qnn.profileGetEvents(profile, &profileEvents, &numEvents));
  for (uint32_t i = 0; i < numEvents; i++) {
    QnnProfile_EventData_t eventData = QNN_PROFILE_EVENT_DATA_INIT;
    SUCCEED(qnn.profileGetEventData(profileEvents[i], &eventData));
  }
  return numEvents;
}

int main(int argc, char **argv) {
  EXPECT(argc == 4);
  void *backendLibrary = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), *model = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL),
       *systemLibrary = dlopen(argv[3], RTLD_NOW | RTLD_LOCAL);
  EXPECT(backendLibrary && model && systemLibrary);
  auto composeGraphs = symbol<ComposeGraphsFnHandleType_t>(model, "QnnModel_composeGraphs");
  auto freeGraphInfo = symbol<FreeGraphInfoFnHandleType_t>(model, "QnnModel_freeGraphsInfo");

  // The provider whose version fits these headers.
  const QnnInterface_t **providers = nullptr;
  uint32_t numProviders = 0;
  SUCCEED(symbol<QnnInterfaceGetProvidersFn_t>(backendLibrary, "QnnInterface_getProviders")(&providers, &numProviders));
  bool found = false;
  for (uint32_t i = 0; i < numProviders && !found; i++)
    if (QNN_API_VERSION_MAJOR == providers[i]->apiVersion.coreApiVersion.major &&
        QNN_API_VERSION_MINOR <= providers[i]->apiVersion.coreApiVersion.minor) {
      found = true;
      qnn = providers[i]->QNN_INTERFACE_VER_NAME;
    }
  EXPECT(found);
  const QnnSystemInterface_t **systemProviders = nullptr;
  SUCCEED(symbol<QnnSystemInterfaceGetProvidersFn_t>(systemLibrary, "QnnSystemInterface_getProviders")(&systemProviders,
                                                                                                     &numProviders));
  EXPECT(systemProviders[0]->systemApiVersion.major == QNN_SYSTEM_API_VERSION_MAJOR);
  qnnSystem = systemProviders[0]->QNN_SYSTEM_INTERFACE_VER_NAME;

  Qnn_LogHandle_t logHandle = nullptr;
  SUCCEED(qnn.logCreate(logCallback, QNN_LOG_LEVEL_VERBOSE, &logHandle));
  const char *buildId = nullptr;
  SUCCEED(qnn.backendGetBuildId(&buildId));
  EXPECT(!strncmp(buildId, QNN_SDK_BUILD_ID, strlen(QNN_SDK_BUILD_ID)));
  Qnn_BackendHandle_t backendHandle = nullptr;
  SUCCEED(qnn.backendCreate(logHandle, nullptr, &backendHandle));
  Qnn_ErrorHandle_t capability = qnn.propertyHasCapability(QNN_PROPERTY_GROUP_DEVICE);
  EXPECT(capability != QNN_PROPERTY_ERROR_UNKNOWN_KEY);
  Qnn_DeviceHandle_t deviceHandle = nullptr;
  Qnn_ErrorHandle_t deviceError = qnn.deviceCreate(logHandle, nullptr, &deviceHandle);
  EXPECT(deviceError == QNN_SUCCESS || deviceError == QNN_DEVICE_ERROR_UNSUPPORTED_FEATURE);
  Qnn_ProfileHandle_t profile = nullptr;
  SUCCEED(qnn.profileCreate(backendHandle, QNN_PROFILE_LEVEL_DETAILED, &profile));

  // Clocks and voltages, where the backend has them.
  QnnDevice_Infrastructure_t deviceInfra = nullptr;
  if (qnn.deviceGetInfrastructure(&deviceInfra) == QNN_SUCCESS) {
    auto *htpInfra = static_cast<QnnHtpDevice_Infrastructure_t *>(deviceInfra);
    EXPECT(htpInfra->infraType == QNN_HTP_DEVICE_INFRASTRUCTURE_TYPE_PERF);
    uint32_t powerConfigId = 0;
    SUCCEED(htpInfra->perfInfra.createPowerConfigId(0, 0, &powerConfigId));
    QnnHtpPerfInfrastructure_PowerConfig_t powerConfig = QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIG_INIT;
    powerConfig.option = QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_DCVS_V3;
    powerConfig.dcvsV3Config.contextId = powerConfigId;
    powerConfig.dcvsV3Config.setDcvsEnable = 1;
    powerConfig.dcvsV3Config.powerMode = QNN_HTP_PERF_INFRASTRUCTURE_POWERMODE_PERFORMANCE_MODE;
    powerConfig.dcvsV3Config.busVoltageCornerTarget = DCVS_VOLTAGE_VCORNER_MAX_VOLTAGE_CORNER;
    const QnnHtpPerfInfrastructure_PowerConfig_t *powerConfigs[] = {&powerConfig, nullptr};
    SUCCEED(htpInfra->perfInfra.setPowerConfig(powerConfigId, powerConfigs));
    SUCCEED(htpInfra->perfInfra.destroyPowerConfigId(powerConfigId));
  }

  QnnContext_Config_t priority = QNN_CONTEXT_CONFIG_INIT;
  priority.option = QNN_CONTEXT_CONFIG_OPTION_PRIORITY;
  priority.priority = QNN_PRIORITY_DEFAULT;
  const QnnContext_Config_t *contextConfigs[] = {&priority, nullptr};
  Qnn_ContextHandle_t context = nullptr;
  SUCCEED(qnn.contextCreate(backendHandle, deviceHandle, contextConfigs, &context));
  GraphInfo_t **graphsInfo = nullptr;
  uint32_t graphsCount = 0;
  EXPECT(composeGraphs(backendHandle, qnn, context, nullptr, 0, &graphsInfo, &graphsCount, false, logCallback,
                       QNN_LOG_LEVEL_VERBOSE) == 0);
  EXPECT(graphsCount == 2);
  std::vector<std::string> before;
  for (uint32_t i = 0; i < graphsCount; i++) {
    const GraphInfo_t &info = *graphsInfo[i];
    SUCCEED(qnn.graphFinalize(info.graph, profile, nullptr));
    EXPECT(events(profile) > 0);
    before.push_back(executed(info.graph, info.inputTensors[0], info.outputTensors[0], profile));
    EXPECT(events(profile) > 0);
  }

  uint64_t requiredSize = 0, writtenSize = 0;
  SUCCEED(qnn.contextGetBinarySize(context, &requiredSize));
  std::vector<uint8_t> binary(requiredSize);
  SUCCEED(qnn.contextGetBinary(context, binary.data(), requiredSize, &writtenSize));
  EXPECT(0 < writtenSize && writtenSize <= requiredSize);
  freeGraphInfo(&graphsInfo, graphsCount);
  SUCCEED(qnn.contextFree(context, profile));

  QnnSystemContext_Handle_t systemContext = nullptr;
  const QnnSystemContext_BinaryInfo_t *binaryInfo = nullptr;
  Qnn_ContextBinarySize_t binaryInfoSize = 0;
  SUCCEED(qnnSystem.systemContextCreate(&systemContext));
  SUCCEED(qnnSystem.systemContextGetBinaryInfo(systemContext, binary.data(), writtenSize, &binaryInfo, &binaryInfoSize));
  QnnSystemContext_GraphInfo_t *graphs = nullptr;
  uint32_t numGraphs = 0;
  if (binaryInfo->version == QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_1) {
    graphs = binaryInfo->contextBinaryInfoV1.graphs;
    numGraphs = binaryInfo->contextBinaryInfoV1.numGraphs;
  } else if (binaryInfo->version == QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_3) {
    graphs = binaryInfo->contextBinaryInfoV3.graphs;
    numGraphs = binaryInfo->contextBinaryInfoV3.numGraphs;
  }
  EXPECT(numGraphs == before.size());
  SUCCEED(qnn.contextCreateFromBinary(backendHandle, deviceHandle, nullptr, binary.data(), writtenSize, &context, profile));
  for (uint32_t i = 0; i < numGraphs; i++) {
    Qnn_GraphHandle_t graph = nullptr;
    SUCCEED(qnn.graphRetrieve(context, graphs[i].graphInfoV1.graphName, &graph));
    EXPECT(executed(graph, graphs[i].graphInfoV1.graphInputs[0], graphs[i].graphInfoV1.graphOutputs[0], profile) ==
           before[i]);
  }
  SUCCEED(qnnSystem.systemContextFree(systemContext));
  SUCCEED(qnn.contextFree(context, profile));
  SUCCEED(qnn.profileFree(profile));
  if (deviceHandle) SUCCEED(qnn.deviceFree(deviceHandle));
  SUCCEED(qnn.backendFree(backendHandle));
  SUCCEED(qnn.logFree(logHandle));
  std::printf("done\n");
  return 0;
}
