"""Memory: where it comes from, the buffers that hand it out, and who holds them."""

from isthmus.memory.host import HostBuffer, host
from isthmus.memory.region import Region

__all__ = ["HostBuffer", "Region", "host"]
