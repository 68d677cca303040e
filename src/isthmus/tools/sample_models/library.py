"""A model library as QNN's converters write it: C code that composes a graph by the functions of its caller."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from isthmus.capi.building import compilers
from isthmus.capi.installation import include

SOURCE = """\
/* A model library with one graph: the mean colour of a picture, as probabilities. */
#include <stdbool.h>
#include <stddef.h>

#include "QNN/QnnInterface.h"

typedef struct {
  Qnn_GraphHandle_t graph; char *graphName; Qnn_Tensor_t *inputTensors; uint32_t numInputTensors;
  Qnn_Tensor_t *outputTensors; uint32_t numOutputTensors;
} GraphInfo_t;
typedef struct { char *graphName; const QnnGraph_Config_t **graphConfigs; } GraphConfigInfo_t;

static Qnn_Tensor_t tensor(const char *name, Qnn_TensorType_t type, Qnn_DataType_t kind, uint32_t rank,
                           uint32_t *dimensions, void *data, uint32_t size) {
  Qnn_Tensor_t made = QNN_TENSOR_INIT;
  made.v1.name = name;
  made.v1.type = type;
  made.v1.dataType = kind;
  made.v1.rank = rank;
  made.v1.dimensions = dimensions;
  made.v1.memType = QNN_TENSORMEMTYPE_RAW;
  made.v1.clientBuf = (Qnn_ClientBuffer_t){data, size};
  return made;
}

static Qnn_OpConfig_t node(const char *name, const char *type, uint32_t count, Qnn_Param_t *params, Qnn_Tensor_t *input,
                           Qnn_Tensor_t *output) {
  Qnn_OpConfig_t made = QNN_OPCONFIG_INIT;
  made.v1 = (Qnn_OpConfigV1_t){name, "qti.aisw", type, count, params, 1, input, 1, output};
  return made;
}

__attribute__((visibility("default"))) uint32_t QnnModel_composeGraphs(
    Qnn_BackendHandle_t backend, QNN_INTERFACE_VER_TYPE qnn, Qnn_ContextHandle_t context,
    const GraphConfigInfo_t **configs, const uint32_t numConfigs, GraphInfo_t ***graphs, uint32_t *numGraphs,
    bool debug, QnnLog_Callback_t callback, QnnLog_Level_t level) {
  static uint32_t picture[] = {1, 8, 8, 3}, colours[] = {1, 3}, two[] = {2}, rows_and_columns[] = {1, 2};
  static Qnn_Tensor_t x, mean, y, axes;
  static GraphInfo_t info, *found[1] = {&info};
  const Qnn_DataType_t real = QNN_DATATYPE_FLOAT_32, whole = QNN_DATATYPE_UINT_32;
  (void)backend, (void)configs, (void)numConfigs, (void)debug, (void)callback, (void)level;
  if (qnn.graphCreate(context, "image", NULL, &info.graph)) return 4;
  x = tensor("x", QNN_TENSOR_TYPE_APP_WRITE, real, 4, picture, NULL, 0);
  mean = tensor("mean", QNN_TENSOR_TYPE_NATIVE, real, 2, colours, NULL, 0);
  y = tensor("probabilities", QNN_TENSOR_TYPE_APP_READ, real, 2, colours, NULL, 0);
  axes = tensor("axes", QNN_TENSOR_TYPE_STATIC, whole, 1, two, rows_and_columns, sizeof rows_and_columns);
  Qnn_Tensor_t *all[] = {&x, &mean, &y, &axes};
  for (int i = 0; i < 4; i++) if (qnn.tensorCreateGraphTensor(info.graph, all[i])) return 1;
  Qnn_Param_t average[] = {{QNN_PARAMTYPE_TENSOR, "axes", {.tensorParam = axes}}};
  if (qnn.graphAddNode(info.graph, node("average", "ReduceMean", 1, average, &x, &mean))) return 3;
  if (qnn.graphAddNode(info.graph, node("softmax", "Softmax", 0, NULL, &mean, &y))) return 3;
  info = (GraphInfo_t){info.graph, "image", &x, 1, &y, 1};
  *graphs = found;
  *numGraphs = 1;
  return 0;
}
"""


def compile_library() -> bytes | None:
    """Return the library for this machine; None if there is no compiler, or none that can compile it."""
    compiler = next(filter(None, map(shutil.which, compilers())), None)
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="isthmus-samples-") as folder:
        Path(folder, "qnn_model.c").write_text(SOURCE)
        options = ["-shared", "-fPIC", "-O1", "-fvisibility=hidden", f"-I{include()}", "-o", "made"]
        command = [compiler, *options, "qnn_model.c"]
        done = subprocess.run(command, cwd=folder, capture_output=True, start_new_session=True)
        return Path(folder, "made").read_bytes() if done.returncode == 0 else None
