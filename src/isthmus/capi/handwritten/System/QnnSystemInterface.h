/* The former place of these declarations. */
#include "../QNN/System/QnnSystemInterface.h"
