/* The system library's functions. */
#ifndef QNN_SYSTEM_INTERFACE_H
#define QNN_SYSTEM_INTERFACE_H

#include "../QnnInterface.h"
#include "QnnSystemContext.h"
#include "QnnSystemDlc.h"
#include "QnnSystemLog.h"
#include "QnnSystemProfile.h"
#include "QnnSystemTensor.h"

#ifdef __cplusplus
extern "C" {
#endif

GENERATED(system_table)
QNN_LAYOUT(QNN_SYSTEM_INTERFACE_VER_TYPE, 8 * QNN_SYSTEM_TABLE_ENTRIES);

typedef struct {
  uint32_t backendId; const char *providerName; Qnn_Version_t systemApiVersion;
  union { QNN_SYSTEM_INTERFACE_VER_TYPE QNN_SYSTEM_INTERFACE_VER_NAME; };
} QnnSystemInterface_t;
QNN_LAYOUT(QnnSystemInterface_t, 32 + 8 * QNN_SYSTEM_TABLE_ENTRIES);
typedef const QNN_SYSTEM_INTERFACE_VER_TYPE *QnnSystemInterface; /* as QNN's documents call the table */

QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemInterface_getProviders(const QnnSystemInterface_t ***providerList,
                                                                 uint32_t *numProviders);
typedef __typeof__(&QnnSystemInterface_getProviders) QnnSystemInterface_getProvidersFn_t;

#ifdef __cplusplus
}
#endif
#endif
