"""Backends: the accelerators that contexts are created on (QnnBackend_*), and their devices (QnnDevice_*)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from isthmus import audit_log, faults
from isthmus.backends.seam import registry
from isthmus.backends.seam.driver import ListEntry, Source
from isthmus.backends.seam.loading import LoadingOptions
from isthmus.backends.seam.provider import BinaryProvider, BinaryReader
from isthmus.errors import Code, QnnError, did_you_mean
from isthmus.graph import Tensor
from isthmus.graph.operation import Call
from isthmus.log import Log, LogLevel
from isthmus.qnn import options
from isthmus.qnn.handle import Handle, end_forgotten
from isthmus.system.shield import shielded
from isthmus.version import build_id

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from isthmus.qnn.context import Context
    from isthmus.qnn.profile import Profile

API_VERSION = (2, 40, 0)
"""The QNN core API version whose names and numbers are used here."""


def free_all(handles: Iterable[Handle]) -> None:
    """Free the handles that a call has created and that the client never receives."""
    for handle in handles:
        handle.free()


def check_provider(provider: Any) -> None:
    """Refuse what is no provider of constants."""
    if not isinstance(provider, BinaryProvider):
        rule = f"{provider!r} is not a BinaryProvider"
        hint = "Derive from qnn.BinaryProvider."
        raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "context", rule, hint)


def _same(binary: Source) -> Source:
    """Return a binary as it is."""
    return binary


class Backend(Handle):
    """A backend (QnnBackend_create).

    Parameters
    ----------
    name
        The name of a backend, as `isthmus.Session` takes it, or the file name of its QNN library (``libQnnHtp.so``).
    config
        The backend's configuration: a path, a mapping, or a list of them, in which later ones win.
    log
        A `Log`, or a callback that takes a level and a text.
    library
        The library file to use, for a backend that calls one: the same as the key ``library`` of its configuration.

    Examples
    --------
    >>> from isthmus import qnn
    >>> with qnn.Backend("lpai", {"lpai_backend": {"enable_hw_ver": "v5"}}) as backend:
    ...     backend.get_property(qnn.lpai.ALIGNMENT_REQ)
    BufferAlignmentReq(start_addr_alignment=64, size_alignment=64)
    """

    invalid = Code.BACKEND_INVALID_HANDLE

    @shielded(release=Handle.free)
    def __init__(
        self,
        name: str,
        config: Any = None,
        log: Log | Callable[[LogLevel, str], object] | None = None,
        library: str | os.PathLike[str] | None = None,
    ) -> None:
        faults.read_environment()
        self.entry = registry.entry(name)
        """The backend's registry entry: its description of itself."""
        self.name = self.entry.name
        self.log = log if isinstance(log, Log) else Log(log)
        if library is not None:
            own = {self.entry.name: {"library": os.fspath(library)}}
            config = [*(config if isinstance(config, (list, tuple)) else [config] if config else []), own]
        self.driver = self.entry.driver(self.entry.read_config(config, self.log), self.log)
        super().__init__(f"backend '{self.name}'")

    def get_property(self, option: Any) -> Any:
        """Return a property, or the current value of a config (QnnBackend_getProperty)."""
        self._check()
        return options.ask(self.driver, option, self._what, Code.BACKEND_NOT_SUPPORTED)

    @shielded
    def set_config(self, option: Any, value: Any = None) -> None:
        """Set a config, or several from a mapping: all or none (QnnBackend_setConfig)."""
        self._check()
        code = Code.BACKEND_NOT_SUPPORTED
        options.set_all(self.driver, options.pairs(option, value, self._what, code), self._what, code).keep()

    def get_api_version(self) -> tuple[int, int, int]:
        """Return the core API version (QnnBackend_getApiVersion)."""
        self._check()
        return API_VERSION

    def get_build_id(self) -> str:
        """Return the versions of the SDK and of this software, and the platform (QnnBackend_getBuildId)."""
        self._check()
        return build_id()

    def get_supported_operations(self) -> Sequence[str]:
        """Return the operations that the backend supports in some form (QnnBackend_getSupportedOperations)."""
        self._check()
        return tuple(self.driver.operations())

    @shielded
    def register_op_package(
        self, path: str | os.PathLike[str], interface_provider: str, target: str | None = None
    ) -> None:
        """Register a library with operations of its own (QnnBackend_registerOpPackage).

        Its operations are called ``package::operation`` in nodes. It is loaded into a process of its own.

        Parameters
        ----------
        path
            The library.
        interface_provider
            The name of the function that provides its interface (QnnOpPackage_InterfaceProvider_t).
        target
            What the library was compiled for; only the backend's own target is accepted.

        Raises
        ------
        QnnError
            COMMON_NOT_SUPPORTED if the backend takes no packages; otherwise the reason why this one is refused.
        """
        self._check()
        for what, text in (("path", os.fspath(path)), ("interface provider", interface_provider)):
            if not isinstance(text, str) or not text or "\0" in text:
                raise QnnError(Code.BACKEND_INVALID_ARGUMENT, "op package", f"its {what} {text!r} is none")
        self.driver.register_op_package(os.fspath(path), interface_provider, target)

    def validate_op_config(
        self,
        name: str,
        op: str,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        params: dict[str, Any] | None = None,
    ) -> None:
        """Refuse a node that a graph cannot take or the backend cannot execute (QnnBackend_validateOpConfig)."""
        self._check()
        operation = self.driver.definitions.get(op)
        what = f"node '{name}' ({op})"
        if operation is None:
            hint = did_you_mean(op, self.driver.definitions)
            raise QnnError(Code.BACKEND_OP_PACKAGE_NOT_FOUND, what, "there is no such operation", hint)
        for tensor in (*inputs, *outputs):
            if tensor is not None and not isinstance(tensor, Tensor):
                raise QnnError(Code.OP_PACKAGE_VALIDATION_FAILURE, what, f"{tensor!r} is not a tensor")
        try:
            complete = operation.complete(name, params or {})
            call = Call(name, op, list(inputs), complete, list(outputs), complete.keys() - (params or {}).keys())
            operation.verify(call)
        except QnnError as problem:
            # The codes of graphs are for adding a node to a graph; validation has a code of its own.
            code = Code.OP_PACKAGE_VALIDATION_FAILURE
            raise QnnError(code, problem.what, problem.rule, problem.hint) from None
        reason = self.driver.supports(call)
        if reason is not None:
            raise QnnError(Code.OP_PACKAGE_VALIDATION_FAILURE, what, reason)

    @shielded(release=Handle.free)
    def create_device(self) -> Device:
        """Create a device of this backend (QnnDevice_create)."""
        return Device(self)

    @shielded(release=Handle.free)
    def create_context(self, configs: Mapping[Any, Any] | None = None, device: Device | None = None) -> Context:
        """Create a context on this backend (QnnContext_create)."""
        from isthmus.qnn.context import Context

        return Context(self, configs, device)

    @shielded(release=Handle.free)
    @audit_log.reported
    def create_context_from_binary(
        self,
        binary: Source,
        configs: Mapping[Any, Any] | None = None,
        device: Device | None = None,
        graphs: Collection[str] | None = None,
        deferred: bool = False,
        **more: Unpack[BinaryOptions],
    ) -> Context:
        """Create a context with the graphs of a context binary (QnnContext_createFromBinary).

        Parameters
        ----------
        binary
            A file, or its contents. The format is private to the backend.
        graphs
            The graphs to load (QNN_CONTEXT_CONFIG_ENABLE_GRAPHS); if omitted those that the backend's configuration
            enables, or all.
        deferred
            Whether graphs are loaded by `Context.finalize` only (QNN_CONTEXT_CONFIG_OPTION_DEFER_GRAPH_INIT).
        persistent
            Whether the binary stays as it is until the context is freed (QNN_CONTEXT_CONFIG_PERSISTENT_BINARY): then it
            is not copied, and a file is mapped. If omitted what the backend's configuration says.
        memory_limit
            A memory limit hint in MB (QNN_CONTEXT_CONFIG_MEMORY_LIMIT_HINT); its size has no meaning. With a persistent
            binary it turns graph switching on: one graph is loaded at a time. If omitted what the configuration says.
        retained
            Graphs that stay loaded while there is room, the most important one first
            (QNN_CONTEXT_CONFIG_OPTION_GRAPH_RETENTION_ORDER). If omitted what the configuration says.
        priority, profile
            As for `Context`.
        """
        from isthmus.qnn.context import Context

        return Context(self, configs, device, binary, from_binary=True, graphs=graphs, deferred=deferred, **more)

    @shielded(release=Handle.free)
    @audit_log.reported
    def create_context_from_provider(
        self,
        binary: str | os.PathLike[str] | BinaryReader,
        provider: BinaryProvider,
        configs: Mapping[Any, Any] | None = None,
        device: Device | None = None,
        graphs: Collection[str] | None = None,
    ) -> Context:
        """Create a context with the graphs of a file, whose data come from callbacks.

        It is QnnContext_createFromBinaryWithCallback.

        Parameters
        ----------
        binary
            The file, or a `BinaryReader` of it. Only the header and the descriptions of the graphs are read.
        provider
            Brings its constants in buffers that the accelerator then uses in place, and gets them back when the context
            is freed.
        graphs
            As for `create_context_from_binary`.
        """
        from isthmus.qnn.context import Context

        check_provider(provider)
        return Context(self, configs, device, binary, from_binary=True, graphs=graphs, provider=provider)

    def check_device(self, device: Device | None) -> None:
        """Refuse what is no device of this backend; None stands for its only one."""
        if device is None:
            return
        if not isinstance(device, Device):
            raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "context", f"{device!r} is not a device")
        device._check()
        if device.backend is not self:
            raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "context", "its device belongs to another backend")

    def open_list(
        self, configs: Mapping[Any, Any], entries: Sequence[ListEntry], device: Device | None = None
    ) -> tuple[Mapping[Any, Any], Sequence[Any]]:
        """Return the configs that each context of a list of binaries gets, and what each shares with the others."""
        self._check()
        self.check_device(device)
        if not isinstance(configs, Mapping):
            rule = f"its configs are a mapping of options, are {configs!r}"
            raise QnnError(Code.CONTEXT_INVALID_CONFIG, "list of binaries", rule)
        return self.driver.open_list(configs, entries, None if device is None else device.driver)

    @shielded(release=free_all)
    @audit_log.reported
    def create_contexts_from_binaries(
        self,
        binaries: Sequence[Source],
        configs: Mapping[Any, Any] | None = None,
        device: Device | None = None,
        providers: Sequence[BinaryProvider | None] | None = None,
    ) -> list[Context]:
        """Create a context of each binary of a list, or none (QnnContext_createFromBinaryListAsync).

        Parameters
        ----------
        binaries
            Files, or their contents, in the order in which they are loaded.
        configs
            Custom configs of the list by option: those of lists, and configs that every context gets.
        providers
            What brings the constants of each binary, or None for one whose constants are in the binary.
        """
        from isthmus.qnn.context import Context

        for items, noun in ((binaries, "binaries"), (() if providers is None else providers, "providers")):
            if not isinstance(items, Sequence) or isinstance(items, (str, bytes, bytearray, memoryview)):
                raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "list of binaries", f"its {noun} are not a list")
        if not binaries or (providers is not None and len(providers) != len(binaries)):
            rule = "it is empty, or there is not one provider for each binary"
            raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "list of binaries", rule)
        for each in providers or ():
            if each is not None:
                check_provider(each)
        usual = self.driver.contexts
        entries = [ListEntry(partial(_same, each), usual.enabled, usual.priority) for each in binaries]
        common, shared = self.open_list({} if configs is None else configs, entries, device)
        contexts: list[Context] = []
        try:
            for binary, own, provider in zip(binaries, shared, providers or [None] * len(binaries), strict=True):
                contexts.append(Context(self, common, device, binary, from_binary=True, provider=provider, shared=own))
        except Exception:
            free_all(contexts)
            raise
        return contexts

    def _release(self) -> None:
        self.driver.close()

    def __del__(self, end: Callable[[Handle], None] = end_forgotten) -> None:
        # A parameter, since names of this module may be gone when the interpreter exits.
        end(self)


class BinaryOptions(LoadingOptions, total=False):
    """More options of contexts from binaries, as `Context` describes them."""

    priority: int | None
    profile: Profile | None


class Device(Handle):
    """A device (QnnDevice_create). Its `driver` is None if the backend has no devices."""

    invalid = Code.DEVICE_INVALID_HANDLE

    @shielded(release=Handle.free)
    def __init__(self, backend: Backend) -> None:
        backend._check()
        self.backend = backend
        self.contexts: set[Handle] = set()
        """The contexts on this device."""
        self.driver = backend.driver.create_device()
        try:
            super().__init__(f"device of {backend._what}", backend)
        except QnnError:
            self._release()
            raise

    @shielded
    def set_config(self, option: Any, value: Any = None) -> None:
        """Set a config, or several from a mapping: all or none (QnnDevice_create, QnnDevice_setConfig)."""
        self._check()
        code = Code.DEVICE_INVALID_CONFIG
        if self.driver is None:
            raise QnnError(code, self._what, "it has no configs")
        options.set_all(self.driver, options.pairs(option, value, self._what, code), self._what, code).keep()

    def _may_end(self) -> None:
        """Refuse to free a device that a context uses."""
        # A backend that is being freed has already ended its contexts, since they are younger than their device.
        if self.contexts:
            raise QnnError(
                Code.DEVICE_ASSOCIATED_TO_CONTEXT, self._what, "a context still uses it", "Free the context first."
            )

    def _release(self) -> None:
        if self.driver is not None:
            self.driver.close()
