"""The API as QNN names it: one object for each handle, one method for each function, over any backend.

Backends, devices, contexts, graphs, memory handles, logs and profiles. Custom properties and configs of a backend are
in a module of its name: `isthmus.qnn.gpu`, `isthmus.qnn.htp`, `isthmus.qnn.lpai`.
"""

from isthmus.backends.seam.driver import DescriptorType, GraphStats, MemDescriptor
from isthmus.graph import BinaryInfo, DataType, GraphInfo, MemType, Quantization, TensorInfo, TensorType
from isthmus.log import Log, LogLevel
from isthmus.qnn import gpu, htp, lpai
from isthmus.qnn.asynchronous import Execution
from isthmus.qnn.backend import Backend
from isthmus.qnn.binding import Binding
from isthmus.qnn.context import Context
from isthmus.qnn.device import Device
from isthmus.qnn.graph import Graph, GraphConfig, Priority
from isthmus.qnn.mem import MemHandle
from isthmus.qnn.memory import GraphMemory
from isthmus.qnn.profile import Event, Profile, ProfileLevel
from isthmus.qnn.signal import Signal, SignalConfig
from isthmus.qnn.system import SystemContext
from isthmus.qnn.tensor import ClientTensor

__all__ = [
    "Backend",
    "BinaryInfo",
    "Binding",
    "ClientTensor",
    "Context",
    "DataType",
    "DescriptorType",
    "Device",
    "Event",
    "Execution",
    "Graph",
    "GraphConfig",
    "GraphInfo",
    "GraphMemory",
    "GraphStats",
    "Log",
    "LogLevel",
    "MemDescriptor",
    "MemHandle",
    "MemType",
    "Priority",
    "Profile",
    "ProfileLevel",
    "Quantization",
    "Signal",
    "SignalConfig",
    "SystemContext",
    "TensorInfo",
    "TensorType",
    "gpu",
    "htp",
    "lpai",
]
