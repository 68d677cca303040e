"""A backend: the accelerator that contexts are created on (QnnBackend_*)."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import isthmus
from isthmus.backends.driver import BackendDriver
from isthmus.binary import Source
from isthmus.errors import Code, QnnError
from isthmus.graph import Tensor
from isthmus.graph.operation import Call
from isthmus.graph.ops import OPERATIONS
from isthmus.log import Log, LogLevel
from isthmus.qnn.handle import Handle

if TYPE_CHECKING:
    from isthmus.qnn.context import Context
    from isthmus.qnn.device import Device

DRIVERS = {
    "cpu": ("isthmus.backends.cpu", "CpuBackend"),
    "htp": ("isthmus.backends.htp", "HtpBackend"),
    "lpai": ("isthmus.backends.lpai", "LpaiBackend"),
}
API_VERSION = (2, 40, 0)
"""The version of QNN's core API whose names and numbers these are."""


class Backend(Handle):
    """A backend (QnnBackend_create).

    Parameters
    ----------
    name
        "cpu", "htp" or "lpai".
    config
        The backend's configuration: a path, a dictionary, or for LPAI a list of them of which later ones win.
    log
        A `Log`, or a callback that is given a level and a text.

    Examples
    --------
    >>> from isthmus import qnn
    >>> with qnn.Backend("lpai", {"lpai_backend": {"enable_hw_ver": "v5"}}) as backend:
    ...     backend.get_property(qnn.lpai.ALIGNMENT_REQ)
    BufferAlignmentReq(start_addr_alignment=64, size_alignment=64)
    """

    invalid = Code.BACKEND_INVALID_HANDLE

    def __init__(
        self, name: str, config: Any = None, log: Log | Callable[[LogLevel, str], object] | None = None
    ) -> None:
        if name not in DRIVERS:
            raise QnnError(Code.BACKEND_INVALID_ARGUMENT, f"backend '{name}'", f"must be one of {', '.join(DRIVERS)}")
        super().__init__(f"backend '{name}'")
        self.name = name
        self.log = log if isinstance(log, Log) else Log(log)
        module, kind = DRIVERS[name]
        driver: type[BackendDriver] = getattr(import_module(module), kind)
        self.driver = driver(config, self.log)

    def get_property(self, option: int) -> Any:
        """A custom property (QnnBackend_getProperty)."""
        self._check()
        return self.driver.get_property(int(option))

    def set_config(self, option: int, value: Any) -> None:
        """A custom config (QnnBackend_setConfig)."""
        self._check()
        self.driver.set_config(int(option), value)

    def get_api_version(self) -> tuple[int, int, int]:
        """The core API version (QnnBackend_getApiVersion)."""
        self._check()
        return API_VERSION

    def get_build_id(self) -> str:
        """This software's version and platform (QnnBackend_getBuildId)."""
        self._check()
        return f"isthmus-{isthmus.__version__}-{platform.machine()}"

    def get_supported_operations(self) -> Sequence[str]:
        """The operations that graphs may hold (QnnBackend_getSupportedOperations)."""
        self._check()
        return tuple(OPERATIONS)

    def validate_op_config(
        self,
        name: str,
        op: str,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        params: dict[str, Any] | None = None,
    ) -> None:
        """Refuse a node that no graph could take, without a graph (QnnBackend_validateOpConfig)."""
        self._check()
        operation = OPERATIONS.get(op)
        if operation is None:
            raise QnnError(Code.BACKEND_OP_PACKAGE_NOT_FOUND, f"node '{name}' ({op})", "there is no such operation")
        operation.verify(Call(name, op, list(inputs), operation.complete(name, params or {}), list(outputs)))

    def create_device(self) -> Device:
        """A device of this backend (QnnDevice_create)."""
        from isthmus.qnn.device import Device

        return Device(self)

    def create_context(self, configs: Mapping[int, Any] | None = None, device: Device | None = None) -> Context:
        """A context on this backend (QnnContext_create)."""
        from isthmus.qnn.context import Context

        return Context(self, configs, device)

    def create_context_from_binary(
        self, binary: Source, configs: Mapping[int, Any] | None = None, device: Device | None = None
    ) -> Context:
        """A context with the graphs of a context binary (QnnContext_createFromBinary).

        Parameters
        ----------
        binary
            A file, which is mapped, or the contents of one.
        """
        from isthmus.qnn.context import Context

        return Context(self, configs, device, binary)

    def _release(self) -> None:
        self.driver.close()
