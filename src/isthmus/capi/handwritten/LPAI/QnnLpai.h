/* The former place of these declarations. */
#include "../QNN/LPAI/QnnLpaiBackend.h"
#include "../QNN/LPAI/QnnLpaiCommon.h"
#include "../QNN/LPAI/QnnLpaiContext.h"
#include "../QNN/LPAI/QnnLpaiGraph.h"
#include "../QNN/LPAI/QnnLpaiMem.h"
