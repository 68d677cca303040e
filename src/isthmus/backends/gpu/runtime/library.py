"""The OpenCL library of this process: its file, and its functions with the types of their arguments.

The client's objects and ours must belong to one library, so a library that the process has already loaded is used.
Otherwise it is the library that the package pyopencl contains, if that is installed; the package is not imported for
this. Otherwise it is the system's library, which needs no package.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable, Iterator
from ctypes import c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

from isthmus.backends.gpu.runtime import numbers
from isthmus.backends.gpu.runtime.status import check
from isthmus.errors import Code, QnnError
from isthmus.system.lock import Lock

VARIABLE = "ISTHMUS_OPENCL_LIBRARY"
REMEDY = "pip install 'isthmus[gpu]' brings OpenCL and a driver for processors (PoCL)."

# The number of events that a command waits for, their address, and the address for its own event.
_WAITING = (c_uint32, c_void_p, c_void_p)
# The arguments of a query: an object, the number of the property, the size and address of the room for the answer, and
# the address to which the answer's size is written.
_QUERY = (c_void_p, c_uint32, c_size_t, c_void_p, c_void_p)
# Functions that return a status, with the types of their arguments.
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "clGetPlatformIDs": (c_uint32, c_void_p, c_void_p),
    "clGetDeviceIDs": (c_void_p, c_uint64, c_uint32, c_void_p, c_void_p),
    **dict.fromkeys(
        ("clGetPlatformInfo", "clGetDeviceInfo", "clGetContextInfo", "clGetCommandQueueInfo", "clGetMemObjectInfo",
         "clGetProgramInfo", "clGetEventInfo", "clGetEventProfilingInfo"),
        _QUERY,
    ),
    **dict.fromkeys(
        ("clRetainContext", "clReleaseContext", "clRetainCommandQueue", "clReleaseCommandQueue", "clRetainMemObject",
         "clReleaseMemObject", "clRetainEvent", "clReleaseEvent", "clReleaseProgram", "clReleaseKernel", "clFlush"),
        (c_void_p,),
    ),
    "clBuildProgram": (c_void_p, c_uint32, c_void_p, c_char_p, c_void_p, c_void_p),
    "clGetProgramBuildInfo": (c_void_p, *_QUERY),
    "clSetKernelArg": (c_void_p, c_uint32, c_size_t, c_void_p),
    "clEnqueueNDRangeKernel": (c_void_p, c_void_p, c_uint32, c_void_p, c_void_p, c_void_p, *_WAITING),
    "clEnqueueWriteBuffer": (c_void_p, c_void_p, c_uint32, c_size_t, c_size_t, c_void_p, *_WAITING),
    "clEnqueueReadBuffer": (c_void_p, c_void_p, c_uint32, c_size_t, c_size_t, c_void_p, *_WAITING),
    "clEnqueueUnmapMemObject": (c_void_p, c_void_p, c_void_p, *_WAITING),
    "clEnqueueMarkerWithWaitList": (c_void_p, *_WAITING),
    "clSetEventCallback": (c_void_p, c_int32, c_void_p, c_void_p),
}  # fmt: skip
# Functions that return a status and that older libraries lack, with the types of their arguments.
_LATER: dict[str, tuple[Any, ...]] = {"clGetDeviceAndHostTimer": (c_void_p, c_void_p, c_void_p)}
# Functions that return an object or an address and write their status to the last argument, with the types of their
# arguments.
_MAKERS: dict[str, tuple[Any, ...]] = {
    "clCreateContext": (c_void_p, c_uint32, c_void_p, c_void_p, c_void_p, c_void_p),
    "clCreateCommandQueue": (c_void_p, c_void_p, c_uint64, c_void_p),
    "clCreateBuffer": (c_void_p, c_uint64, c_size_t, c_void_p, c_void_p),
    "clCreateProgramWithSource": (c_void_p, c_uint32, c_void_p, c_void_p, c_void_p),
    "clCreateProgramWithBinary": (c_void_p, c_uint32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
    "clCreateKernel": (c_void_p, c_char_p, c_void_p),
    "clEnqueueMapBuffer": (
        c_void_p, c_void_p, c_uint32, c_uint64, c_size_t, c_size_t, *_WAITING, c_void_p,
    ),
}  # fmt: skip
# The functions of cl_khr_command_buffer, with the types of their arguments; each driver has its own.
_EXTENSION = {
    "clCreateCommandBufferKHR": (c_uint32, c_void_p, c_void_p, c_void_p),
    "clFinalizeCommandBufferKHR": (c_void_p,),
    "clReleaseCommandBufferKHR": (c_void_p,),
    "clCommandNDRangeKernelKHR": (
        c_void_p, c_void_p, c_void_p, c_void_p, c_uint32, c_void_p, c_void_p, c_void_p, c_uint32, c_void_p, c_void_p,
        c_void_p,
    ),
    "clEnqueueCommandBufferKHR": (c_uint32, c_void_p, c_void_p, *_WAITING),
}  # fmt: skip


class ClLibrary:
    """The functions of an OpenCL library.

    - `path`: The path of the file, or a name that the system's loader finds.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = ctypes.CDLL(path)
        self.functions: dict[str, Any] = {}
        """All functions by name."""
        later = {name: types for name, types in _LATER.items() if hasattr(self._file, name)}
        for name, types in (*_PROTOTYPES.items(), *later.items(), *_MAKERS.items()):
            function = getattr(self._file, name)
            function.argtypes = types
            function.restype = c_void_p if name in _MAKERS else c_int32
            self.functions[name] = function
        self._extended: dict[int, dict[str, Any]] = {}
        """Functions of cl_khr_command_buffer by name, by the handle of the platform that provides them."""
        # OpenCL's threads and locks do not survive a fork, so a child calls nothing.
        self._process = os.getpid()

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that loaded the library, so that nothing may be called any
        more.
        """
        return os.getpid() != self._process

    def call(self, what: str, name: str, *arguments: Any) -> None:
        """Call a function that returns a status; `what` names the object in an error."""
        check(self.functions[name](*arguments), what, name)

    def address(self, name: str) -> int:
        """Return the address of a function, for native code."""
        return ctypes.cast(self.functions[name], c_void_p).value or 0

    def text(self, what: str, name: str, *which: Any) -> str:
        """Return the result of a query as text; the arguments are those of `content`."""
        return self.content(what, name, *which).split(b"\0")[0].decode(errors="replace").strip()

    def content(self, what: str, name: str, *which: Any) -> bytes:
        """Return the result of a query, of any size.

        - `name`: The query's name, such as "clGetDeviceInfo".
        - `which`: Its first arguments: the object's handle, and the number of the property.
        """
        size = c_size_t()
        self.call(what, name, *which, 0, None, ctypes.byref(size))
        content = ctypes.create_string_buffer(max(size.value, 1))
        self.call(what, name, *which, size.value, content, None)
        return content.raw[: size.value]

    def number(self, what: str, name: str, *which: Any, kind: Any = c_size_t) -> int:
        """Return the result of a query as a number of the C type `kind`; the arguments are those of `content`."""
        value = kind()
        self.call(what, name, *which, ctypes.sizeof(kind), ctypes.byref(value), None)
        return int(value.value or 0)

    def extension(self, platform: int) -> dict[str, Any] | None:
        """Return a platform's functions of cl_khr_command_buffer, or None if it lacks one."""
        if platform not in self._extended:
            find = self._file.clGetExtensionFunctionAddressForPlatform
            find.argtypes, find.restype = (c_void_p, c_char_p), c_void_p
            functions: dict[str, Any] = {}
            for name, types in _EXTENSION.items():
                address = find(platform, name.encode())
                if address:
                    result = c_void_p if name == "clCreateCommandBufferKHR" else c_int32
                    functions[name] = ctypes.CFUNCTYPE(result, *types)(address)
            self._extended[platform] = functions
        functions = self._extended[platform]
        return functions if len(functions) == len(_EXTENSION) else None


_lock = Lock()
# The library of this process once it is loaded; empty before.
_loaded: list[ClLibrary] = []


def library() -> ClLibrary:
    """Return the library of this process; it is loaded on first use.

    Raises COMMON_PLATFORM_NOT_SUPPORTED if there is none, with the remedy.
    """
    with _lock:
        if not _loaded:
            _loaded.append(_load())
        return _loaded[0]


def own_library() -> ClLibrary:
    """Return the library for a new use, which a forked child may not begin.

    Raises `QnnError`: as `library`, and in a forked child whose parent has used it: a fork does not copy the threads of
    drivers, and drivers would wait for them for ever.
    """
    loaded = library()
    if loaded.is_inherited:
        rule = "the process that this one was forked from has used OpenCL, which works in one process only"
        raise QnnError(Code.COMMON_PLATFORM_NOT_SUPPORTED, "backend 'gpu'", rule, "Start a new process instead.")
    return loaded


def _load() -> ClLibrary:
    """Load the first library that can be opened and has all functions."""
    problems = []
    for path, prepare in _candidates():
        try:
            prepare()
            return ClLibrary(path)
        except (OSError, AttributeError) as problem:
            problems.append(str(problem))
    rule = f"there is no OpenCL library: {'; '.join(problems)}"
    raise QnnError(Code.COMMON_PLATFORM_NOT_SUPPORTED, "backend 'gpu'", rule, REMEDY)


def _candidates() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the files that may be the library, the preferred one first, each with a function to call before opening."""
    # pyopencl's library finds the drivers beside it only after such a call.
    explicit = os.environ.get(VARIABLE)
    if explicit:
        yield explicit, lambda: None
        return
    home = _pyopencl()
    bundled = [] if home is None else [str(path) for path in sorted((home / ".libs").glob("libOpenCL*.so*"))]
    for path in dict.fromkeys((*_mapped_libraries(), *bundled)):
        if home is not None and path in bundled:
            yield path, lambda: _show_drivers(home)
        else:
            yield path, lambda: None
    yield "libOpenCL.so.1", lambda: None


def _mapped_libraries() -> list[str]:
    """Return the OpenCL libraries that this process has loaded; a client in C may already use one."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    paths = [line.split(maxsplit=5)[5] for line in lines if "/libOpenCL" in line]
    return list(dict.fromkeys(path for path in paths if Path(path).name.startswith("libOpenCL")))


@lru_cache(maxsize=1)
def _pyopencl() -> Path | None:
    """Return the folder of the package pyopencl, if it is installed, without importing it."""
    try:
        spec = importlib.util.find_spec("pyopencl")
    except (ImportError, ValueError):
        spec = None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _show_drivers(home: Path) -> None:
    """Make drivers that packages have installed beside the library visible to it, as importing pyopencl does."""
    # `home` is the folder of the package pyopencl. If OCL_ICD_VENDORS names a folder of drivers, only those are used.
    os.environ["PYOPENCL_HOME"] = str(home)
    if os.environ.get("OCL_ICD_VENDORS"):
        return
    for registered in sorted((home / ".libs").glob("*.icd")):
        driver = home / ".libs" / registered.read_text(errors="replace").strip()
        # Drivers are named without a folder, which only pyopencl's own module finds. A driver that is already loaded is
        # found by its name.
        if driver.parent == home / ".libs" and driver.is_file():
            ctypes.CDLL(str(driver))


def platforms() -> list[int]:
    """Return the handles of the platforms that the library finds; none if no driver is installed."""
    return _handles(numbers.PLATFORM_NOT_FOUND_KHR, "clGetPlatformIDs")


def device_handles(platform: int) -> list[int]:
    """Return the handles of a platform's devices, of any kind."""
    return _handles(numbers.DEVICE_NOT_FOUND, "clGetDeviceIDs", platform, numbers.DEVICE_TYPE_ALL)


def _handles(none: int, name: str, *arguments: int) -> list[int]:
    """Return the handles that a function of OpenCL lists; `none` is its status if there are none."""
    opencl, count = library(), c_uint32()
    status = opencl.functions[name](*arguments, 0, None, ctypes.byref(count))
    if status == none or (status == numbers.SUCCESS and not count.value):
        return []
    check(status, "OpenCL", name)
    handles = (c_void_p * count.value)()
    opencl.call("OpenCL", name, *arguments, count.value, handles, None)
    return [int(handle or 0) for handle in handles]
