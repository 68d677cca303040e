"""HTP's custom memory structure and configs, with the names used in QNN's headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isthmus.backends.htp import native_kv
from isthmus.backends.htp import options as _options
from isthmus.backends.htp import spill_fill_groups as _groups

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


BackendProperty = _options.HtpBackendProperty
ContextConfig = _options.HtpContextConfigOption
ContextProperty = _options.HtpContextProperty
Descriptor = _options.HtpDescriptor
DeviceConfig = _options.HtpDeviceConfigOption
FloatPrecision = _options.HtpFloatPrecision
GroupRegistration = _groups.GroupRegistration
GraphConfig = _options.HtpGraphConfigOption
MemType = _options.HtpMemType
NativeCache = native_kv.NativeCache
Reregistration = _options.Reregistration
native_offset, to_native, to_flat = native_kv.native_offset, native_kv.to_native, native_kv.to_flat
token_budget = native_kv.token_budget

# Options and properties are names of this module too, as in C.
_KINDS = (BackendProperty, ContextConfig, ContextProperty, DeviceConfig, GraphConfig)
globals().update({each.name: each for kind in _KINDS for each in kind})
