/* The DSP's infrastructure.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_DSP_DEVICE_H
#define QNN_DSP_DEVICE_H

#include "../QnnDevice.h"
#include "QnnDspPerfInfrastructure.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct _QnnDevice_Infrastructure_t {
  QnnDspPerfInfrastructure_CreatePowerConfigIdFn_t createPowerConfigId;
  QnnDspPerfInfrastructure_DestroyPowerConfigIdFn_t destroyPowerConfigId;
  QnnDspPerfInfrastructure_SetPowerConfigFn_t setPowerConfig;
  QnnDspPerfInfrastructure_SetMemoryConfigFn_t setMemoryConfig;
  QnnDspPerfInfrastructure_SetThreadConfigFn_t setThreadConfig;
 } QnnDspDevice_Infrastructure_t;
QNN_LAYOUT(QnnDspDevice_Infrastructure_t, 40);
#define QNN_DSP_DEVICE_INFRASTRUCTURE_INIT {NULL, NULL, NULL, NULL, NULL}

#ifdef __cplusplus
}
#endif
#endif
