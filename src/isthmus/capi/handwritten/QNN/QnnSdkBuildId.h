/* The build that these headers belong to, as QnnBackend_getBuildId tells it. */
#ifndef QNN_SDK_BUILD_ID_H
#define QNN_SDK_BUILD_ID_H

GENERATED(build_id)

#endif
