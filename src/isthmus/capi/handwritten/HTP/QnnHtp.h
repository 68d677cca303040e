/* The former place of these declarations. */
#include "../QNN/HTP/QnnHtpCommon.h"
#include "../QNN/HTP/QnnHtpContext.h"
#include "../QNN/HTP/QnnHtpDevice.h"
#include "../QNN/HTP/QnnHtpGraph.h"
#include "../QNN/HTP/QnnHtpMem.h"
#include "../QNN/HTP/QnnHtpPerfInfrastructure.h"
#include "../QNN/HTP/QnnHtpProfile.h"
#include "../QNN/HTP/QnnHtpSystemContext.h"
