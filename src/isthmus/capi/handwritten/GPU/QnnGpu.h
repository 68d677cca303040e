/* The former place of these declarations. */
#include "../QNN/GPU/QnnGpuCommon.h"
#include "../QNN/GPU/QnnGpuGraph.h"
#include "../QNN/GPU/QnnGpuMem.h"
