"""HTP's custom memory structure and configs, with the names used in QNN's headers."""

from isthmus.backends.htp import options as _options

BackendProperty = _options.HtpBackendProperty
ContextConfig = _options.HtpContextConfigOption
Descriptor = _options.HtpDescriptor
FloatPrecision = _options.HtpFloatPrecision
GraphConfig = _options.HtpGraphConfigOption
MemType = _options.HtpMemType
Reregistration = _options.Reregistration

REREGISTRATION = ContextConfig.REREGISTRATION
PRECISION = GraphConfig.PRECISION
ACCELERATOR_PID = BackendProperty.ACCELERATOR_PID
