/* Profiles in files. */
#ifndef QNN_SYSTEM_PROFILE_H
#define QNN_SYSTEM_PROFILE_H

#include "../QnnProfile.h"
#include "QnnSystemCommon.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void *QnnSystemProfile_SerializationTargetHandle_t;
typedef uint32_t QnnSystemProfile_SerializationTargetType_t, QnnSystemProfile_SerializationTargetConfigType_t,
    QnnSystemProfile_ProfileEventType_t, QnnSystemProfile_ProfileDataVersion_t, QnnSystemProfile_MethodType_t;
enum { QNN_SYSTEM_PROFILE_SERIALIZATION_TARGET_FILE = 1 };
enum {
  QNN_SYSTEM_PROFILE_SERIALIZATION_TARGET_CONFIG_MAX_NUM_MESSAGES = 0,
  QNN_SYSTEM_PROFILE_SERIALIZATION_TARGET_CONFIG_SERIALIZATION_HEADER = 1
};
enum { QNN_SYSTEM_PROFILE_EVENT_DATA = 0, QNN_SYSTEM_PROFILE_EXTENDED_EVENT_DATA = 1 };
enum { QNN_SYSTEM_PROFILE_DATA_VERSION_1 = 1 };
typedef struct { const char *fileName, *fileDirectory; } QnnSystemProfile_SerializationTargetFile_t;
typedef struct {
  QnnSystemProfile_SerializationTargetType_t type; union { QnnSystemProfile_SerializationTargetFile_t file; };
} QnnSystemProfile_SerializationTarget_t;
typedef struct { const char *appName, *appVersion, *backendVersion; } QnnSystemProfile_SerializationFileHeader_t;
typedef struct {
  QnnSystemProfile_SerializationTargetConfigType_t type;
  union { uint32_t maxNumMessages; QnnSystemProfile_SerializationFileHeader_t serializationHeader; };
} QnnSystemProfile_SerializationTargetConfig_t;
typedef struct QnnSystemProfile_ProfileEventV1_t {
  QnnSystemProfile_ProfileEventType_t type;
  union { QnnProfile_EventData_t eventData; QnnProfile_ExtendedEventData_t extendedEventData; };
  struct QnnSystemProfile_ProfileEventV1_t *profileSubEventData; uint32_t numSubEvents;
} QnnSystemProfile_ProfileEventV1_t;
typedef struct {
  uint64_t startTime, stopTime, startMem, stopMem; QnnSystemProfile_MethodType_t methodType; uint32_t visibility;
  const char *graphName;
} QnnSystemProfile_HeaderV1_t;
typedef struct {
  QnnSystemProfile_HeaderV1_t header; QnnSystemProfile_ProfileEventV1_t *profilingEvents; uint32_t numProfilingEvents;
} QnnSystemProfile_ProfileDataV1_t;
typedef struct {
  QnnSystemProfile_ProfileDataVersion_t version; union { QnnSystemProfile_ProfileDataV1_t v1; };
} QnnSystemProfile_ProfileData_t;

QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemProfile_createSerializationTarget(
    QnnSystemProfile_SerializationTarget_t target, QnnSystemProfile_SerializationTargetConfig_t *configs,
    uint32_t numConfigs, QnnSystemProfile_SerializationTargetHandle_t *handle);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemProfile_serializeEventData(
    QnnSystemProfile_SerializationTargetHandle_t handle, const QnnSystemProfile_ProfileData_t **data, uint32_t numData);
QNN_SYSTEM_API Qnn_ErrorHandle_t QnnSystemProfile_freeSerializationTarget(
    QnnSystemProfile_SerializationTargetHandle_t handle);

#ifdef __cplusplus
}
#endif
#endif
