/* The former place of these declarations. */
#include "QNN/QnnInterface.h"
