"""Calls that a validation for HTP sees, with a client's options and buffers; nothing is executed."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from support.waiting import PATIENCE

from isthmus.backends.htp.headers import CONTEXT_CONFIG, DEVICE_CONFIG, GRAPH_CONFIG, MEM_DESCRIPTOR, HtpDeviceOption
from isthmus.backends.htp.options import HtpContextOption, HtpGraphOption, HtpMemType
from isthmus.backends.seam import registry
from isthmus.backends.seam.driver import DescriptorType
from isthmus.cabi import objects, types
from isthmus.cabi.objects import ContextOption, GraphOption
from isthmus.capi.validation import Validation
from isthmus.graph import DataType

Setting = tuple[Any, Any]
CREATE, FROM_BINARY, LIST = "contextCreate", "contextCreateFromBinary", "contextCreateFromBinaryListAsync"
WITH_CALLBACK = "contextCreateFromBinaryWithCallback"


class Calls:
    """Calls that succeed, as a client would make them, seen by a validation for HTP; nothing is executed."""

    def __init__(self) -> None:
        self.seen = Validation(facet=lambda: registry.c_facet("htp"))
        self._handles = itertools.count(1)
        self.broken: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """What the library does in a call."""
        self._kept: list[Any] = []
        self.binary = self.keep(ctypes.create_string_buffer(b"x" * 10000))
        self.backend = self.create("backendCreate", lambda out: (0, 0, out))

    def keep(self, thing: Any) -> Any:
        self._kept.append(thing)
        return thing

    def call(self, name: str, *values: int) -> list[str]:
        """Make a call; return the rules that it broke."""
        self.seen.before(name, values)
        self.meanwhile()
        self.seen.after(name, 0, values)
        self.broken = self.rules()
        return self.broken

    def rules(self) -> list[str]:
        found = [mistake.partition("): ")[2] for mistake in self.seen.mistakes]
        self.seen.mistakes.clear()
        return [rule for rule in found if "this library returns 0 anyway" not in rule]

    def create(self, name: str, arguments: Any) -> int:
        out = self.keep(ctypes.c_uint64(next(self._handles)))
        self.call(name, *arguments(ctypes.addressof(out)))
        return int(out.value)

    def configs(self, settings: tuple[Setting, ...]) -> int:
        """The address of a list of configs of a context."""
        found = [self.keep(context_config(self, *each)) for each in settings]
        pointers = (ctypes.c_uint64 * (len(found) + 1))(*map(ctypes.addressof, found), 0)
        return ctypes.addressof(self.keep(pointers))

    def context(self, how: str, *settings: Setting, device: int = 0, binary: tuple[int, int] | None = None) -> int:
        """A context; `binary` is the address and the size of another binary than the usual one."""
        listed = self.configs(settings)
        if how == CREATE:
            return self.create(how, lambda out: (self.backend, device, listed, out))
        place = binary or (ctypes.addressof(self.binary), len(self.binary))
        if how == WITH_CALLBACK:
            callbacks = ctypes.addressof(callbacks_of(self))
            return self.create(how, lambda out: (self.backend, device, listed, callbacks, *place, out, 0, 0))
        return self.create(how, lambda out: (self.backend, device, listed, *place, out, 0))

    def params(self, *own: Setting) -> int:
        """The address of a list with one binary, with configs of its own."""
        params = self.keep(objects.ContextParams(1))
        params.v1.config, params.v1.notifyFunc = ctypes.cast(self.configs(own), type(params.v1.config)), 1
        params.v1.binaryBuffer, params.v1.binaryBufferSize = ctypes.addressof(self.binary), len(self.binary)
        return ctypes.addressof(self.keep((ctypes.c_uint64 * 2)(ctypes.addressof(params), 0)))

    def from_list(self, *common: Setting) -> tuple[int, int]:
        """Two contexts of a list of binaries with these configs, whose handles only a callback could name."""
        self.call(LIST, self.backend, 0, self.params(), self.configs(common), 0)
        return next(self._handles), next(self._handles)

    def device(self, chip: int, device: int = 0) -> int:
        """A device of a chip, or the given one after it was set to that chip."""
        custom = self.keep(DEVICE_CONFIG(int(HtpDeviceOption.SOC)))
        custom.socModel = chip
        config = self.keep(objects.DeviceConfig(0))
        config.customConfig = ctypes.addressof(custom)
        listed = ctypes.addressof(self.keep((ctypes.c_uint64 * 2)(ctypes.addressof(config), 0)))
        if device:
            self.call("deviceSetConfig", device, listed)
            return device
        return self.create("deviceCreate", lambda out: (0, listed, out))

    def graph(self, context: int, name: bytes, *settings: Setting) -> int:
        custom = [self.keep(graph_config(self, *each)) for each in settings]
        pointers = self.keep((ctypes.c_uint64 * (len(custom) + 1))(*map(ctypes.addressof, custom), 0))
        text = ctypes.cast(self.keep(ctypes.create_string_buffer(name)), ctypes.c_void_p).value
        return self.create("graphCreate", lambda out: (context, text, ctypes.addressof(pointers), out))

    def retrieved(self, context: int) -> int:
        """A graph of a context from a binary."""
        text = ctypes.cast(self.keep(ctypes.create_string_buffer(b"g")), ctypes.c_void_p).value
        return self.create("graphRetrieve", lambda out: (context, text, out))

    def profile(self, level: int) -> int:
        return self.create("profileCreate", lambda out: (self.backend, level, out))

    def input(self, *dims: int) -> int:
        """The address of an input of these dimensions, in memory of the client's."""
        tensor, content = self.keep(types.Tensor()), self.keep(ctypes.create_string_buffer(4096))
        tensor.version, tensor.v1.id, tensor.v1.dataType = 1, 1, int(DataType.UINT_8)
        tensor.v1.rank, tensor.v1.dimensions = len(dims), self.keep((ctypes.c_uint32 * len(dims))(*dims))
        tensor.v1.clientBuf.data, tensor.v1.clientBuf.dataSize = ctypes.addressof(content), len(content)
        return ctypes.addressof(tensor)

    def execute(self, graph: int, *inputs: int, profile: int = 0, how: str = "graphExecute") -> list[str]:
        """Execute a graph; return the rules that this breaks. A graph whose nodes were not seen has no tensors."""
        graphs = self.seen.objects
        graphs["graph", graph].finalized = True
        rest = (0, 0) if how == "graphExecuteAsync" else ()
        return self.call(how, graph, inputs[0] if inputs else 0, len(inputs), 0, 0, profile, 0, *rest)

    def register(self, context: int, kind: int, fd: int, count: int = 1) -> list[str]:
        """Register the whole buffer of a file descriptor as a kind of memory, or several; the rules that it breaks."""
        descriptors = self.keep((objects.MemDescriptor * count)())
        for each in descriptors:
            content = self.keep(MEM_DESCRIPTOR(kind, os.fstat(fd).st_size))
            content.sharedBufferConfig.fd = fd
            each.memType, each.customInfo = DescriptorType.CUSTOM, ctypes.addressof(content)
            if kind == HtpMemType.SHARED_BUFFER:
                dims = self.keep((ctypes.c_uint32 * 1)(os.fstat(fd).st_size))
                each.dataType = int(DataType.UINT_8)
                each.memShape.numDim, each.memShape.dimSize = 1, dims
        self.handles = self.keep((ctypes.c_uint64 * count)(*(next(self._handles) for _ in range(count))))
        return self.call("memRegister", context, ctypes.addressof(descriptors), count, ctypes.addressof(self.handles))

    def deregister(self) -> list[str]:
        """Deregister what was registered last."""
        return self.call("memDeRegister", ctypes.addressof(self.handles), len(self.handles))


@contextmanager
def under_way(calls: Calls, name: str, *values: int) -> Iterator[None]:
    """A call of another thread that has not returned yet, while others are made."""
    begun, end = threading.Event(), threading.Event()

    def make() -> None:
        calls.seen.before(name, values)
        begun.set()
        end.wait(PATIENCE)
        calls.seen.after(name, 0, values)

    thread = threading.Thread(target=make)
    thread.start()
    begun.wait(PATIENCE)
    calls.rules()
    try:
        yield
    finally:
        end.set()
        thread.join()


@contextmanager
def buffer(nbytes: int = 8192) -> Iterator[int]:
    """The file descriptor of a buffer of shared memory."""
    fd = os.memfd_create("buffer")
    os.truncate(fd, nbytes)
    try:
        yield fd
    finally:
        os.close(fd)


def callbacks_of(calls: Calls) -> objects.BinaryCallback:
    """Data callbacks that no library calls."""
    made = calls.keep(objects.BinaryCallback(2))
    made.dmaBufferCallback.version = 1
    made.dmaBufferCallback.v1.dataProvide = made.dmaBufferCallback.v1.dataRelease = 1
    return made


def context_config(calls: Calls, option: Any, value: Any) -> Any:
    if isinstance(option, HtpContextOption):
        custom = calls.keep(CONTEXT_CONFIG(int(option)))
        if option in (HtpContextOption.REGISTER_MULTI_CONTEXTS, HtpContextOption.REGISTER_CONCURRENT_RESOURCE_SHARING):
            getattr(custom, option.field).firstGroupHandle = value
        elif option is HtpContextOption.PARALLEL_WEIGHT_LOADING:
            custom.parallelWeightLoading.mode = value
        else:
            setattr(custom, option.field, value)
        made = objects.ContextConfig(ContextOption.CUSTOM)
        made.customConfig = ctypes.addressof(custom)
        return made
    made = objects.ContextConfig(option)
    field = {
        ContextOption.PRIORITY: "priority", ContextOption.PERSISTENT_BINARY: "isPersistentBinary",
        ContextOption.MEMORY_LIMIT_HINT: "memoryLimitHint",
        ContextOption.DEFER_GRAPH_INIT: "isGraphInitDeferred", ContextOption.ENABLE_GRAPHS: "enableGraphs",
        ContextOption.GRAPH_RETENTION_ORDER: "graphRetentionOrder",
    }[option]  # fmt: skip
    setattr(made, field, calls.keep((ctypes.c_char_p * 2)(b"g", None)) if value == "names" else value)
    return made


def graph_config(calls: Calls, option: Any, value: Any) -> Any:
    if option is GraphOption.PRIORITY:
        made = objects.GraphConfig(option)
        made.priority = value
        return made
    custom = calls.keep(GRAPH_CONFIG(int(option)))
    if option is HtpGraphOption.OPTIMIZATION:
        custom.optimizationOption.type, custom.optimizationOption.floatValue = value, 1
    elif option is HtpGraphOption.PARALLEL_GRAPH_EXECUTION_CONFIG:
        custom.parallelGraphExecutionConfig.concurrency = value
    else:
        setattr(custom, option.field, value)
    made = objects.GraphConfig(0)
    made.customConfig = ctypes.addressof(custom)
    return made


SWITCHING = ((ContextOption.PERSISTENT_BINARY, 1), (ContextOption.MEMORY_LIMIT_HINT, 64))
RETENTION = (ContextOption.GRAPH_RETENTION_ORDER, "names")
GROUP = (HtpContextOption.REGISTER_MULTI_CONTEXTS, 0)
CONCURRENT = (HtpContextOption.REGISTER_CONCURRENT_RESOURCE_SHARING, 0)
RESOURCES = (HtpContextOption.SHARE_RESOURCES, True)
WEIGHTS = (HtpContextOption.WEIGHT_SHARING_ENABLED, True)
DEFERRED = (ContextOption.DEFER_GRAPH_INIT, 1)
