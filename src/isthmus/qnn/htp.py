"""HTP's custom memory structure and configs, with the names used in QNN's headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isthmus.backends.htp import options as _options

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


BackendProperty = _options.HtpBackendProperty
ContextConfig = _options.HtpContextConfigOption
Descriptor = _options.HtpDescriptor
FloatPrecision = _options.HtpFloatPrecision
GraphConfig = _options.HtpGraphConfigOption
MemType = _options.HtpMemType
Reregistration = _options.Reregistration

# Options and properties are names of this module too, as in C.
globals().update({each.name: each for kind in (BackendProperty, ContextConfig, GraphConfig) for each in kind})
