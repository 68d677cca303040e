/* The build that these headers belong to, as QnnBackend_getBuildId tells it. */
#ifndef QNN_SDK_BUILD_ID_H
#define QNN_SDK_BUILD_ID_H


#ifdef __cplusplus
extern "C" {
#endif

#define QNN_SDK_BUILD_ID "isthmus"

#ifdef __cplusplus
}
#endif
#endif
