/* The former place of these declarations. */
#include "QNN/QnnTypes.h"
