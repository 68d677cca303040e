/* Properties of HTP. Backends here have those of QnnProperty.h and none of their own. */
#ifndef QNN_HTP_PROPERTY_H
#define QNN_HTP_PROPERTY_H

#include "../QnnProperty.h"

#endif
