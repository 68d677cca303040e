"""Memory: where it comes from, and the buffers that hand it out."""

from isthmus.memory.host import HostBuffer, host
from isthmus.memory.region import Region

__all__ = ["HostBuffer", "Region", "host"]
