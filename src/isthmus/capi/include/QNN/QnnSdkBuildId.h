/* The build that these headers belong to, as QnnBackend_getBuildId tells it. */
#ifndef QNN_SDK_BUILD_ID_H
#define QNN_SDK_BUILD_ID_H


#ifdef __cplusplus
extern "C" {
#endif

#define QNN_SDK_BUILD_ID "v2.51.0.0-isthmus-0.3.0"

#ifdef __cplusplus
}
#endif
#endif
