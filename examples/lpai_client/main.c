/* A model on LPAI, in memory of the client's: alignment and sizes are asked for, scratch and persistent memory are set
 * before the graph is finalized, and inputs and outputs are buffers of the client's own.
 *
 *     client MODEL.bin              buffers of ordinary memory
 *     client MODEL.bin shared       buffers that both sides refer to, registered as such
 *
 * Every input gets the numbers 1, 2, 3, …; three frames are executed, so that a model with state shows it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "LPAI/QnnLpaiBackend.h"
#include "LPAI/QnnLpaiGraph.h"
#include "LPAI/QnnLpaiMem.h"
#include "QnnInterface.h"
#include "System/QnnSystemInterface.h"
#include "rpcmem.h"

enum { FRAMES = 3, MAX_TENSORS = 16 };
static int shared;

/* End with the library's own reason. */
static void check(Qnn_ErrorHandle_t error, const char *what) {
  const char *reason = NULL;
  if (error == QNN_SUCCESS) return;
  QnnError_getVerboseMessage(error, &reason);
  fprintf(stderr, "%s: %s\n", what, reason ? reason : "no reason is known");
  exit(1);
}
#define CHECK(call) check(call, #call)

static size_t padded(size_t size, size_t alignment) { return (size + alignment - 1) / alignment * alignment; }

static void *allocated(size_t size, QnnLpaiBackend_BufferAlignmentReq_t alignment) {
  size = padded(size, alignment.sizeAlignment);
  void *memory = shared ? rpcmem_alloc2(RPCMEM_HEAP_ID_SYSTEM, RPCMEM_DEFAULT_FLAGS, size)
                        : aligned_alloc(alignment.startAddrAlignment, padded(size, alignment.startAddrAlignment));
  if (!memory) exit(fprintf(stderr, "no memory\n"));
  return memset(memory, 0, size);
}

static void freed(void *memory) { shared ? rpcmem_free(memory) : free(memory); }

/* -- what the backend asks for ------------------------------------------------------------------------------------- */

static QnnLpaiBackend_BufferAlignmentReq_t alignment_of(Qnn_BackendHandle_t backend) {
  QnnLpaiBackend_BufferAlignmentReq_t alignment = QNN_LPAI_BACKEND_ALIGNMENT_REQ_INIT;
  QnnLpaiBackend_CustomProperty_t custom = {QNN_LPAI_BACKEND_GET_PROP_ALIGNMENT_REQ, &alignment};
  QnnBackend_Property_t property = {QNN_BACKEND_PROPERTY_OPTION_CUSTOM, {&custom}}, *properties[] = {&property, NULL};
  CHECK(QnnBackend_getProperty(backend, properties));
  return alignment;
}

static uint32_t size_of(Qnn_GraphHandle_t graph, uint32_t option) {
  uint32_t size = 0;
  QnnLpaiGraph_CustomProperty_t custom = {option, &size};
  QnnGraph_Property_t property = {QNN_GRAPH_PROPERTY_OPTION_CUSTOM, {&custom}}, *properties[] = {&property, NULL};
  CHECK(QnnGraph_getProperty(graph, properties));
  return size;
}

static void *set_memory(Qnn_GraphHandle_t graph, uint32_t option, uint32_t size,
                        QnnLpaiBackend_BufferAlignmentReq_t alignment) {
  if (!size) return NULL;
  QnnLpaiGraph_Mem_t memory = {QNN_LPAI_MEM_TYPE_DDR, size, allocated(size, alignment)};
  QnnLpaiGraph_CustomConfig_t custom = {option, &memory};
  QnnGraph_Config_t config = {QNN_GRAPH_CONFIG_OPTION_CUSTOM, {&custom}};
  const QnnGraph_Config_t *configs[] = {&config, NULL};
  CHECK(QnnGraph_setConfig(graph, configs));
  return memory.addr;
}

/* -- inputs and outputs -------------------------------------------------------------------------------------------- */

typedef struct { void *memory; size_t bytes; Qnn_MemHandle_t handle; } Buffer;

static size_t element_size(Qnn_DataType_t type) {
  return (type & 0xff) == 0x64 ? 8 : (type & 0xff) == 0x32 ? 4 : (type & 0xff) == 0x16 ? 2 : 1;
}

/* Give a tensor memory: its pointer, or a handle of what is registered. */
static Buffer provided(Qnn_ContextHandle_t context, Qnn_Tensor_t *tensor,
                       QnnLpaiBackend_BufferAlignmentReq_t alignment) {
  Buffer buffer = {NULL, element_size(tensor->v1.dataType), NULL};
  for (uint32_t i = 0; i < tensor->v1.rank; i++) buffer.bytes *= tensor->v1.dimensions[i];
  buffer.memory = allocated(buffer.bytes, alignment);
  if (!shared) {
    tensor->v1.memType = QNN_TENSORMEMTYPE_RAW;
    tensor->v1.clientBuf = (Qnn_ClientBuffer_t){buffer.memory, (uint32_t)buffer.bytes};
    return buffer;
  }
  QnnLpaiMem_MemInfoCustom_t place = {rpcmem_to_fd(buffer.memory), 0};
  Qnn_MemDescriptor_t descriptor = QNN_MEM_DESCRIPTOR_INIT;
  descriptor.memShape = (Qnn_MemShape_t){tensor->v1.rank, tensor->v1.dimensions, NULL};
  descriptor.dataType = tensor->v1.dataType;
  descriptor.memType = QNN_MEM_TYPE_CUSTOM;
  descriptor.customInfo = &place;
  CHECK(QnnMem_register(context, &descriptor, 1, &buffer.handle));
  tensor->v1.memType = QNN_TENSORMEMTYPE_MEMHANDLE;
  tensor->v1.memHandle = buffer.handle;
  return buffer;
}

static void fill(const Qnn_Tensor_t *tensor, const Buffer *buffer) {
  for (size_t i = 0; i < buffer->bytes / element_size(tensor->v1.dataType); i++)
    if (tensor->v1.dataType == QNN_DATATYPE_FLOAT_32) ((float *)buffer->memory)[i] = (float)(i + 1);
    else ((uint8_t *)buffer->memory)[i * element_size(tensor->v1.dataType)] = (uint8_t)(i + 1);
}

static void show(const Qnn_Tensor_t *tensor, const Buffer *buffer, int frame) {
  printf("frame %d: %s[0] = ", frame, tensor->v1.name);
  if (tensor->v1.dataType == QNN_DATATYPE_FLOAT_32) printf("%g\n", ((float *)buffer->memory)[0]);
  else printf("%u\n", ((uint8_t *)buffer->memory)[0]);
}

/* What the profile says was copied. */
static unsigned long long copied(Qnn_ProfileHandle_t profile) {
  const QnnProfile_EventId_t *events = NULL, *parts = NULL;
  uint32_t count = 0;
  unsigned long long bytes = 0;
  CHECK(QnnProfile_getEvents(profile, &events, &count));
  CHECK(QnnProfile_getSubEvents(events[0], &parts, &count));
  for (uint32_t i = 0; i < count; i++) {
    QnnProfile_EventData_t data = QNN_PROFILE_EVENT_DATA_INIT;
    CHECK(QnnProfile_getEventData(parts[i], &data));
    if (!strncmp(data.identifier, "copied", 6)) bytes += data.value;
  }
  return bytes;
}

/* -- the program --------------------------------------------------------------------------------------------------- */

static void *content_of(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) exit(fprintf(stderr, "%s cannot be read\n", path));
  *size = (size_t)ftell(file);
  rewind(file);
  void *content = malloc(*size);
  if (!content || fread(content, 1, *size, file) != *size) exit(fprintf(stderr, "%s cannot be read\n", path));
  fclose(file);
  return content;
}

int main(int argc, char **argv) {
  if (argc < 2) return fprintf(stderr, "usage: %s MODEL.bin [shared]\n", argv[0]), 2;
  shared = argc > 2 && !strcmp(argv[2], "shared");
  size_t size;
  void *binary = content_of(argv[1], &size);

  /* The binary tells its graph, with inputs and outputs. */
  QnnSystemContext_Handle_t system_context = NULL;
  const QnnSystemContext_BinaryInfo_t *info = NULL;
  Qnn_ContextBinarySize_t info_size = 0;
  check(QnnSystemContext_create(&system_context), "QnnSystemContext_create");
  if (QnnSystemContext_getBinaryInfo(system_context, binary, size, &info, &info_size))
    return fprintf(stderr, "%s is no context binary\n", argv[1]), 1;
  const QnnSystemContext_GraphInfoV1_t *told = &info->contextBinaryInfoV1.graphs[0].graphInfoV1;
  if (told->numGraphInputs > MAX_TENSORS || told->numGraphOutputs > MAX_TENSORS) return 1;

  Qnn_BackendHandle_t backend = NULL;
  Qnn_ContextHandle_t context = NULL;
  Qnn_GraphHandle_t graph = NULL;
  Qnn_ProfileHandle_t profile = NULL;
  CHECK(QnnBackend_create(NULL, NULL, &backend));
  CHECK(QnnContext_createFromBinary(backend, NULL, NULL, binary, size, &context, NULL));
  CHECK(QnnGraph_retrieve(context, told->graphName, &graph));
  CHECK(QnnProfile_create(backend, QNN_PROFILE_LEVEL_DETAILED, &profile));

  const QnnLpaiBackend_BufferAlignmentReq_t alignment = alignment_of(backend);
  const uint32_t scratch_size = size_of(graph, QNN_LPAI_GRAPH_GET_PROP_SCRATCH_MEM_SIZE);
  const uint32_t persistent_size = size_of(graph, QNN_LPAI_GRAPH_GET_PROP_PERSISTENT_MEM_SIZE);
  printf("%s: scratch %u, persistent %u, alignment %u\n", told->graphName, scratch_size, persistent_size,
         alignment.startAddrAlignment);
  void *scratch = set_memory(graph, QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM, scratch_size, alignment);
  void *persistent = set_memory(graph, QNN_LPAI_GRAPH_SET_CFG_PERSISTENT_MEM, persistent_size, alignment);
  CHECK(QnnGraph_finalize(graph, NULL, NULL));

  Qnn_Tensor_t inputs[MAX_TENSORS], outputs[MAX_TENSORS];
  Buffer given[MAX_TENSORS], answered[MAX_TENSORS];
  for (uint32_t i = 0; i < told->numGraphInputs; i++) {
    inputs[i] = told->graphInputs[i];
    given[i] = provided(context, &inputs[i], alignment);
    fill(&inputs[i], &given[i]);
  }
  for (uint32_t i = 0; i < told->numGraphOutputs; i++) {
    outputs[i] = told->graphOutputs[i];
    answered[i] = provided(context, &outputs[i], alignment);
  }
  for (int frame = 0; frame < FRAMES; frame++) {
    CHECK(QnnGraph_execute(graph, inputs, told->numGraphInputs, outputs, told->numGraphOutputs, profile, NULL));
    for (uint32_t i = 0; i < told->numGraphOutputs; i++) show(&outputs[i], &answered[i], frame);
  }
  printf("%llu bytes copied in the last frame\n", copied(profile));

  for (uint32_t i = 0; i < told->numGraphInputs + told->numGraphOutputs; i++) {
    Buffer *buffer = i < told->numGraphInputs ? &given[i] : &answered[i - told->numGraphInputs];
    if (buffer->handle) CHECK(QnnMem_deRegister(&buffer->handle, 1));
    freed(buffer->memory);
  }
  /* Scratch and persistent memory are the graph's until the context is freed. */
  CHECK(QnnProfile_free(profile));
  CHECK(QnnContext_free(context, NULL));
  CHECK(QnnBackend_free(backend));
  check(QnnSystemContext_free(system_context), "QnnSystemContext_free");
  if (scratch) freed(scratch);
  if (persistent) freed(persistent);
  free(binary);
  return 0;
}
