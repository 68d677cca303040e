/* QNN's GPU tutorial: each tensor in an OpenCL buffer of the client's own, registered, executed on, mapped.
 *
 * Its slips are put right: what is registered is the OpenCL buffer and not the memory that malloc gave, all bytes of
 * it are mapped and not the size of a size, and each call's own answer is looked at.
 *
 *     gpu_opencl FOLDER OPENCL_LIBRARY [late|forget]
 *
 * With "late" the graph is finalized, and executed once in raw memory, before the first buffer is registered. With
 * "forget" nothing is freed at the end. */
#include "QNN/GPU/QnnGpuGraph.h"
#include "QNN/GPU/QnnGpuMem.h"
#include "opencl_client.h"

enum { ROWS = 64, COLUMNS = 128, ELEMENTS = ROWS * COLUMNS };
static const size_t bufferSize = ELEMENTS * sizeof(float);
static QNN_INTERFACE_VER_TYPE qnn;

/* What the application itself does on the device: it writes the input there. */
static const char *SOURCE = "kernel void fill(global float *x, float first) {\n"
                            "  size_t i = get_global_id(0);\n"
                            "  x[i] = first + (float)i * 0.5f;\n"
                            "}\n";

static Qnn_MemDescriptor_t descriptor_of(const Qnn_Tensor_t *tensor, QnnGpu_MemInfoCustom_t *customInfo, cl_mem buffer) {
  Qnn_MemDescriptor_t memDescriptor;
  memset(&memDescriptor, 0, sizeof memDescriptor);
  memset(customInfo, 0, sizeof *customInfo);
  customInfo->memType = QNN_GPU_MEM_OPENCL;
  customInfo->buffer = (QnnGpuMem_Buffer_t)buffer;
  memDescriptor.memShape.numDim = tensor->v1.rank;
  memDescriptor.memShape.dimSize = tensor->v1.dimensions;
  memDescriptor.dataType = tensor->v1.dataType;
  memDescriptor.memType = QNN_MEM_TYPE_CUSTOM;
  memDescriptor.customInfo = customInfo;
  return memDescriptor;
}

static cl_uint references(cl_mem buffer) {
  cl_uint count = 0;
  CHECK(cl.GetMemObjectInfo(buffer, CL_MEM_REFERENCE_COUNT, sizeof count, &count, NULL));
  return count;
}

static void fill(cl_command_queue queue, cl_kernel kernel, cl_mem buffer, float first) {
  const size_t items = ELEMENTS;
  CHECK(cl.SetKernelArg(kernel, 0, sizeof buffer, &buffer));
  CHECK(cl.SetKernelArg(kernel, 1, sizeof first, &first));
  CHECK(cl.EnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, NULL, 0, NULL, NULL));
  CHECK(cl.Finish(queue)); /* executions go into a queue of the back end's own */
}

/* Map the whole buffer and compare: the graph adds its input to itself. */
static void compare(cl_command_queue queue, cl_mem buffer, float first) {
  cl_int clStatus = 1;
  float *mappedPtr = (float *)cl.EnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ, 0, bufferSize, 0, NULL, NULL,
                                                  &clStatus);
  REQUIRE(clStatus == CL_SUCCESS && mappedPtr);
  for (int i = 0; i < ELEMENTS; i++) REQUIRE(mappedPtr[i] == 2 * (first + (float)i * 0.5f));
  CHECK(cl.EnqueueUnmapMemObject(queue, buffer, mappedPtr, 0, NULL, NULL));
  CHECK(cl.Finish(queue));
}

static void execute_raw(Qnn_GraphHandle_t graph, Qnn_Tensor_t input, Qnn_Tensor_t output) {
  float *memory = (float *)malloc(2 * bufferSize);
  REQUIRE(memory);
  for (int i = 0; i < ELEMENTS; i++) memory[i] = (float)i, memory[ELEMENTS + i] = -1.0f;
  input.v1.memType = output.v1.memType = QNN_TENSORMEMTYPE_RAW;
  input.v1.clientBuf.data = memory;
  output.v1.clientBuf.data = memory + ELEMENTS;
  input.v1.clientBuf.dataSize = output.v1.clientBuf.dataSize = (uint32_t)bufferSize;
  CHECK(qnn.graphExecute(graph, &input, 1, &output, 1, NULL, NULL));
  for (int i = 0; i < ELEMENTS; i++) REQUIRE(memory[ELEMENTS + i] == 2.0f * (float)i);
  free(memory);
}

int main(int argc, char **argv) {
  int offline = argc > 3 && !strcmp(argv[3], "offline"), forget = argc > 3 && !strcmp(argv[3], "forget");
  int late = offline || (argc > 3 && !strcmp(argv[3], "late"));
  cl_platform_id platform = NULL;
  cl_device_id device = NULL;
  cl_int clStatus = 1;

  /* Generate OpenCL context */
  load_opencl(argv[2]);
  CHECK(cl.GetPlatformIDs(1, &platform, NULL));
  CHECK(cl.GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
  const intptr_t properties[] = {CL_CONTEXT_PLATFORM, (intptr_t)platform, 0};
  cl_context clContext = cl.CreateContext(properties, 1, &device, NULL, NULL, &clStatus);
  REQUIRE(clStatus == CL_SUCCESS);
  cl_command_queue queue = cl.CreateCommandQueue(clContext, device, 0, &clStatus);
  REQUIRE(clStatus == CL_SUCCESS);

  /* The input lies in memory of the device's choice, the output in memory of the client's, as in the tutorial. */
  float *outputTensorBuffer = (float *)aligned_alloc(4096, bufferSize);
  REQUIRE(outputTensorBuffer);
  cl_mem inputTensorCLBuffer = cl.CreateBuffer(clContext, CL_MEM_READ_WRITE, bufferSize, NULL, &clStatus);
  REQUIRE(clStatus == CL_SUCCESS);
  cl_mem outputTensorCLBuffer = cl.CreateBuffer(clContext, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bufferSize,
                                                outputTensorBuffer, &clStatus);
  REQUIRE(clStatus == CL_SUCCESS);

  qnn = table_of(argv[1], "libQnnGpu.so");
  Qnn_LogHandle_t log = NULL;
  Qnn_BackendHandle_t backend = NULL;
  Qnn_ContextHandle_t context = NULL;
  Qnn_GraphHandle_t graph = NULL;
  CHECK(qnn.logCreate(log_line, QNN_LOG_LEVEL_ERROR, &log));
  CHECK(qnn.backendCreate(log, NULL, &backend));

  /* PoCL 3.0 builds nothing on a processor that it does not know, until the back end has named it. */
  cl_program program = cl.CreateProgramWithSource(clContext, 1, &SOURCE, NULL, &clStatus);
  REQUIRE(clStatus == CL_SUCCESS);
  CHECK(cl.BuildProgram(program, 1, &device, "", NULL, NULL));
  cl_kernel kernel = cl.CreateKernel(program, "fill", &clStatus);
  REQUIRE(clStatus == CL_SUCCESS);

  CHECK(qnn.contextCreate(backend, NULL, NULL, &context));
  QnnGpuGraph_CustomConfig_t precise;
  memset(&precise, 0, sizeof precise);
  precise.precision = (QnnGpu_Precision_t)7; /* unknown handle */
  QnnGraph_Config_t graphConfig;
  memset(&graphConfig, 0, sizeof graphConfig);
  graphConfig.option = QNN_GRAPH_CONFIG_OPTION_CUSTOM;
  graphConfig.customConfig = &precise;
  const QnnGraph_Config_t *graphConfigs[] = {&graphConfig, NULL};
  REQUIRE(qnn.graphCreate(context, "double", graphConfigs, &graph) == QNN_GRAPH_ERROR_INVALID_ARGUMENT && !graph);
  precise.precision = QNN_GPU_PRECISION_FP32;
  CHECK(qnn.graphCreate(context, "double", graphConfigs, &graph));
  uint32_t dims[2] = {ROWS, COLUMNS};
  Qnn_Tensor_t inputTensor = described("x", QNN_TENSOR_TYPE_APP_WRITE, QNN_DATATYPE_FLOAT_32, 2, dims);
  Qnn_Tensor_t outputTensor = described("y", QNN_TENSOR_TYPE_APP_READ, QNN_DATATYPE_FLOAT_32, 2, dims);
  inputTensor.v1.memType = outputTensor.v1.memType = QNN_TENSORMEMTYPE_MEMHANDLE;
  add_double(&qnn, graph, &inputTensor, &outputTensor);
  if (late) {
    CHECK(qnn.graphFinalize(graph, NULL, NULL));
    execute_raw(graph, inputTensor, outputTensor);
  }
  if (offline) {
    Qnn_ContextBinarySize_t size = 0, written = 0;
    CHECK(qnn.contextGetBinarySize(context, &size));
    void *binary = malloc(size);
    CHECK(qnn.contextGetBinary(context, binary, size, &written));
    CHECK(qnn.contextFree(context, NULL));
    CHECK(qnn.contextCreateFromBinary(backend, NULL, NULL, binary, written, &context, NULL));
    CHECK(qnn.graphRetrieve(context, "double", &graph));
    free(binary);
  }

  /* Fill the info of Qnn_MemDescriptor_t and register the buffers to QNN */
  QnnGpu_MemInfoCustom_t customInfo[2], wrongInfo;
  Qnn_MemDescriptor_t memDescriptors[2] = {descriptor_of(&inputTensor, &customInfo[0], inputTensorCLBuffer),
                                           descriptor_of(&outputTensor, &customInfo[1], outputTensorCLBuffer)};
  Qnn_MemHandle_t memHandles[2] = {NULL, NULL}, none = NULL;
  Qnn_MemDescriptor_t slip = descriptor_of(&outputTensor, &wrongInfo, (cl_mem)(void *)outputTensorBuffer);
  REQUIRE(qnn.memRegister(context, &slip, 1, &none) == QNN_MEM_ERROR_INVALID_HANDLE && !none);
  wrongInfo.memType = QNN_GPU_MEM_UNDEFINED;
  REQUIRE(qnn.memRegister(context, &slip, 1, &none) == QNN_MEM_ERROR_UNSUPPORTED_MEMTYPE && !none);
  CHECK(qnn.memRegister(context, memDescriptors, 2, memHandles));
  REQUIRE(memHandles[0] && memHandles[1] && references(outputTensorCLBuffer) == 2);
  REQUIRE(qnn.memRegister(context, memDescriptors, 1, &none) == QNN_MEM_ERROR_ALREADY_REGISTERED && !none);
  if (!late) CHECK(qnn.graphFinalize(graph, NULL, NULL));

  /* Execute QNN graph with input tensor and output tensor */
  inputTensor.v1.memHandle = memHandles[0];
  outputTensor.v1.memHandle = memHandles[1];
  for (int round = 0; round < 3; round++) {
    fill(queue, kernel, inputTensorCLBuffer, (float)round);
    CHECK(qnn.graphExecute(graph, &inputTensor, 1, &outputTensor, 1, NULL, NULL));
    compare(queue, outputTensorCLBuffer, (float)round);
  }
  execute_raw(graph, inputTensor, outputTensor);
  printf("done\n");
  if (forget) return 0;

  /* Deregister and free all buffers if they are not being used */
  CHECK(qnn.memDeRegister(memHandles, 2));
  REQUIRE(qnn.memDeRegister(memHandles, 1) == QNN_MEM_ERROR_INVALID_HANDLE);
  CHECK(qnn.contextFree(context, NULL));
  REQUIRE(references(inputTensorCLBuffer) == 1 && references(outputTensorCLBuffer) == 1);
  CHECK(qnn.backendFree(backend));
  CHECK(qnn.logFree(log));
  CHECK(cl.ReleaseMemObject(inputTensorCLBuffer));
  CHECK(cl.ReleaseMemObject(outputTensorCLBuffer));
  CHECK(cl.ReleaseKernel(kernel));
  CHECK(cl.ReleaseProgram(program));
  CHECK(cl.ReleaseCommandQueue(queue));
  CHECK(cl.ReleaseContext(clContext));
  free(outputTensorBuffer);
  return 0;
}
