/* The backend's functions: the table that a library hands to its client. */
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
GENERATED(backend_ids)

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_INTERFACE_NO_ERROR = 0, QNN_INTERFACE_ERROR_NOT_SUPPORTED = 1000,
  QNN_INTERFACE_ERROR_INVALID_PARAMETER = 60000, QNN_INTERFACE_MIN_ERROR = QNN_MIN_ERROR_INTERFACE,
  QNN_INTERFACE_MAX_ERROR = QNN_MAX_ERROR_INTERFACE, QNN_INTERFACE_ERROR_UNDEFINED = QNN_UNDEFINED
} QnnInterface_Error_t;
typedef Qnn_ErrorHandle_t (*Qnn_NotOffered_t)(void);

GENERATED(backend_table)
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
