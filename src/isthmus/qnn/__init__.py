"""The API under QNN's names: one class per handle, one method per function, for any backend.

It covers backends, devices, contexts, graphs, memory handles, logs and profiles. A backend's custom properties and
configs are in a module of its name: `isthmus.qnn.gpu`, `isthmus.qnn.htp`, `isthmus.qnn.lpai`, `isthmus.qnn.vendor`.
"""

from isthmus.backends.seam.driver import DescriptorType, GraphStats, MemDescriptor
from isthmus.backends.seam.provider import BinaryProvider, BinaryReader, BinarySection, ProvidedBuffer
from isthmus.graph import BinaryInfo, DataType, GraphInfo, Quantization, TensorInfo, TensorMemType, TensorType
from isthmus.log import Log, LogLevel
from isthmus.memory.auditing import audit_process
from isthmus.qnn import gpu, htp, lpai, vendor
from isthmus.qnn.asynchronous import Execution
from isthmus.qnn.backend import Backend, Device
from isthmus.qnn.binding import Binding
from isthmus.qnn.context import Context
from isthmus.qnn.graph import GraphConfig, Priority
from isthmus.qnn.graph import QnnGraph as Graph
from isthmus.qnn.mem import MemHandle
from isthmus.qnn.memory import GraphMemory
from isthmus.qnn.profile import Profile, ProfileLevel
from isthmus.qnn.profile import ProfilingEvent as Event
from isthmus.qnn.provider import FileProvider
from isthmus.qnn.signal import Signal, SignalConfig
from isthmus.qnn.system import SystemContext
from isthmus.qnn.tensor import ClientTensor

__all__ = [
    "Backend",
    "BinaryInfo",
    "BinaryProvider",
    "BinaryReader",
    "BinarySection",
    "Binding",
    "ClientTensor",
    "Context",
    "DataType",
    "DescriptorType",
    "Device",
    "Event",
    "Execution",
    "FileProvider",
    "Graph",
    "GraphConfig",
    "GraphInfo",
    "GraphMemory",
    "GraphStats",
    "Log",
    "LogLevel",
    "MemDescriptor",
    "MemHandle",
    "Priority",
    "Profile",
    "ProfileLevel",
    "ProvidedBuffer",
    "Quantization",
    "Signal",
    "SignalConfig",
    "SystemContext",
    "TensorInfo",
    "TensorMemType",
    "TensorType",
    "gpu",
    "htp",
    "lpai",
    "vendor",
]

audit_process()
