"""Memory: where it comes from, the buffers that hand it out, and who holds them."""

from isthmus.memory import rpcmem
from isthmus.memory.host import HostBuffer, host
from isthmus.memory.region import Region
from isthmus.memory.rpcmem import RpcBuffer

__all__ = ["HostBuffer", "Region", "RpcBuffer", "host", "rpcmem"]
