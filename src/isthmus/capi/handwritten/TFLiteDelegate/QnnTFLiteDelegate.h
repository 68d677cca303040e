/* The former place of these declarations. */
#include "../QNN/TFLiteDelegate/QnnTFLiteDelegate.h"
