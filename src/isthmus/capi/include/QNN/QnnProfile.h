/* Profiles: times, bytes and counts of calls.
 * Written by `python -m isthmus.capi.headers`; change that, not this. */
#ifndef QNN_PROFILE_H
#define QNN_PROFILE_H

#include "QnnTypes.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  QNN_PROFILE_NO_ERROR = 0, QNN_PROFILE_ERROR_UNSUPPORTED = 1000, QNN_PROFILE_ERROR_MEM_ALLOC = 1002,
  QNN_PROFILE_ERROR_INVALID_ARGUMENT = 1004, QNN_PROFILE_ERROR_INVALID_HANDLE = 12000,
  QNN_PROFILE_ERROR_HANDLE_IN_USE = 12001, QNN_PROFILE_ERROR_INCOMPATIBLE_EVENT = 12002,
  QNN_PROFILE_MIN_ERROR = QNN_MIN_ERROR_PROFILE, QNN_PROFILE_MAX_ERROR = QNN_MAX_ERROR_PROFILE,
  QNN_PROFILE_ERROR_UNDEFINED = QNN_UNDEFINED
} QnnProfile_Error_t;
typedef uint32_t QnnProfile_Level_t, QnnProfile_EventType_t, QnnProfile_EventUnit_t;
typedef uint64_t QnnProfile_EventId_t, QnnProfile_EventValue_t;
#define QNN_PROFILE_LEVEL_BASIC 1
#define QNN_PROFILE_LEVEL_DETAILED 2
#define QNN_PROFILE_LEVEL_BACKEND 1000
#define QNN_PROFILE_EVENTTYPE_INIT 100
#define QNN_PROFILE_EVENTTYPE_FINALIZE 300
#define QNN_PROFILE_EVENTTYPE_EXECUTE 400
#define QNN_PROFILE_EVENTTYPE_NODE 404
#define QNN_PROFILE_EVENTTYPE_EXECUTE_QUEUE_WAIT 405
#define QNN_PROFILE_EVENTTYPE_EXECUTE_PREPROCESS 406
#define QNN_PROFILE_EVENTTYPE_EXECUTE_DEVICE 407
#define QNN_PROFILE_EVENTTYPE_EXECUTE_POSTPROCESS 408
#define QNN_PROFILE_EVENTTYPE_DEINIT 500
#define QNN_PROFILE_EVENTTYPE_TRACE 600
#define QNN_PROFILE_EVENTTYPE_BACKEND 1000
#define QNN_PROFILE_EVENTUNIT_MICROSEC 1
#define QNN_PROFILE_EVENTUNIT_BYTES 2
#define QNN_PROFILE_EVENTUNIT_CYCLES 3
#define QNN_PROFILE_EVENTUNIT_COUNT 4
#define QNN_PROFILE_EVENTUNIT_OBJECT 5
#define QNN_PROFILE_EVENTUNIT_BACKEND 1000
typedef void *QnnProfile_CustomConfig_t;
typedef enum {
  QNN_PROFILE_CONFIG_OPTION_CUSTOM = 0, QNN_PROFILE_CONFIG_OPTION_MAX_EVENTS = 1,
  QNN_PROFILE_CONFIG_OPTION_ENABLE_OPTRACE = 2, QNN_PROFILE_CONFIG_OPTION_UNDEFINED = QNN_UNDEFINED
} QnnProfile_ConfigOption_t;
typedef struct {
  QnnProfile_ConfigOption_t option;
  union { QnnProfile_CustomConfig_t customConfig; uint64_t numMaxEvents; uint8_t enableOptrace; };
} QnnProfile_Config_t;
QNN_LAYOUT(QnnProfile_Config_t, 16);
#define QNN_PROFILE_CONFIG_INIT {QNN_PROFILE_CONFIG_OPTION_UNDEFINED, {NULL}}
typedef struct {
  QnnProfile_EventType_t type; QnnProfile_EventUnit_t unit; QnnProfile_EventValue_t value; const char *identifier;
} QnnProfile_EventData_t;
QNN_LAYOUT(QnnProfile_EventData_t, 24);
#define QNN_PROFILE_EVENT_DATA_INIT {0, 0, 0, NULL}
typedef struct { void *data; uint64_t len; const char *fileName; } QnnProfile_BackendOpaqueObject_t;
QNN_LAYOUT(QnnProfile_BackendOpaqueObject_t, 24);
#define QNN_PROFILE_BACKEND_OPAQUE_OBJECT_INIT {NULL, 0, NULL}
typedef struct {
  QnnProfile_EventType_t type; QnnProfile_EventUnit_t unit;
  union { Qnn_Scalar_t value; QnnProfile_BackendOpaqueObject_t backendOpaqueObject; };
  uint64_t timestamp; const char *identifier;
} QnnProfile_ExtendedEventDataV1_t;
QNN_LAYOUT(QnnProfile_ExtendedEventDataV1_t, 48);
#define QNN_PROFILE_EXTENDED_EVENT_DATA_V1_INIT {0, 0, {QNN_SCALAR_INIT}, 0, NULL}
typedef enum {
  QNN_PROFILE_DATA_VERSION_1 = 1, QNN_PROFILE_DATA_VERSION_UNDEFINED = QNN_UNDEFINED
} QnnProfile_DataVersion_t;
typedef struct {
  QnnProfile_DataVersion_t version;
  union { QnnProfile_ExtendedEventDataV1_t v1; };
} QnnProfile_ExtendedEventData_t;
QNN_LAYOUT(QnnProfile_ExtendedEventData_t, 56);
#define QNN_PROFILE_EXTENDED_EVENT_DATA_INIT {QNN_PROFILE_DATA_VERSION_1, {QNN_PROFILE_EXTENDED_EVENT_DATA_V1_INIT}}
QNN_API Qnn_ErrorHandle_t QnnProfile_create(
    Qnn_BackendHandle_t backend, QnnProfile_Level_t level, Qnn_ProfileHandle_t *profile);
QNN_API Qnn_ErrorHandle_t QnnProfile_setConfig(Qnn_ProfileHandle_t profile, const QnnProfile_Config_t **config);
QNN_API Qnn_ErrorHandle_t QnnProfile_getEvents(
    Qnn_ProfileHandle_t profile, const QnnProfile_EventId_t **profileEventIds, uint32_t *numEvents);
QNN_API Qnn_ErrorHandle_t QnnProfile_getSubEvents(
    QnnProfile_EventId_t eventId, const QnnProfile_EventId_t **subEventIds, uint32_t *numSubEvents);
QNN_API Qnn_ErrorHandle_t QnnProfile_getEventData(QnnProfile_EventId_t eventId, QnnProfile_EventData_t *eventData);
QNN_API Qnn_ErrorHandle_t QnnProfile_getExtendedEventData(
    QnnProfile_EventId_t eventId, QnnProfile_ExtendedEventData_t *eventData);
QNN_API Qnn_ErrorHandle_t QnnProfile_free(Qnn_ProfileHandle_t profile);

#ifdef __cplusplus
}
#endif
#endif
