"""The membership of a context in a group of contexts with one spill-fill buffer."""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import Any

from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.htp import options
from isthmus.backends.htp.device import HtpDevice
from isthmus.backends.htp.list_groups import MIN_ARCH_OF_CONCURRENT, SharedResources
from isthmus.backends.htp.spill_fill_groups import GroupRegistration, MemberNeeds, SpillFillGroup, group_for
from isthmus.backends.seam import driver as seam
from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel
from isthmus.memory.integers import is_int

MULTI = options.HtpContextConfigOption.REGISTER_MULTI_CONTEXTS
CONCURRENT = options.HtpContextConfigOption.REGISTER_CONCURRENT_RESOURCE_SHARING
GROUPS = (MULTI, CONCURRENT)
"""The options that put a context into a group."""


class GroupMembership:
    """The group that a context is in or is to join: one that it registers, one of its list, or a configured one."""

    def __init__(self, config: options.HtpConfig, device: HtpDevice, accelerator: Accelerator, log: Log) -> None:
        self.group: SpillFillGroup | None = None
        self.shared: SharedResources | None = None
        """What the contexts of its list share."""
        # What the client has registered, by the option: the first or the second kind of group.
        self.registrations: dict[IntEnum, GroupRegistration | None] = dict.fromkeys(GROUPS)
        self._config, self._device, self._accelerator, self._log = config, device, accelerator, log

    @property
    def is_concurrent(self) -> bool:
        """Whether the context is registered for a concurrent group."""
        return self.registrations[CONCURRENT] is not None

    @property
    def is_asked_for(self) -> bool:
        """Whether the context is in a group, or is to be in one."""
        return any(self.registrations.values()) or bool(self._config.group_bytes) or self.shared is not None

    @property
    def reserving(self) -> SharedResources | None:
        """What the contexts of its list share, if they keep room for inputs and outputs."""
        return self.shared if self.shared is not None and self.shared.reserves_io else None

    def check(self, option: IntEnum, value: Any, has_buffers: bool) -> None:
        """Refuse a group that the context cannot be in."""
        seam.check_member(option, value, GroupRegistration, Code.CONTEXT_INVALID_CONFIG)
        rule = ""
        if option is CONCURRENT and self._device.arch < MIN_ARCH_OF_CONCURRENT:
            what = f"HTP context option {option.name} on v{self._device.arch}"
            rule = "Concurrent resource sharing config is not supported"
            hint = f"Chips from v{MIN_ARCH_OF_CONCURRENT} on have it."
            raise QnnError(Code.COMMON_NOT_SUPPORTED, what, rule, hint)
        if has_buffers:
            rule = "the client has registered buffers of its own for the context, which excludes groups"
        elif any(other is not None for kind, other in self.registrations.items() if kind is not option):
            rule = "a context is in one group"
        elif not is_int(value.nbytes) or value.nbytes < 0:
            rule = f"its size must be a number of bytes, is {value.nbytes!r}"
        if rule:
            raise QnnError(Code.CONTEXT_INVALID_CONFIG, "spill-fill group", rule)

    def join(self, context: object, need: int, priorities: Collection[int], switches: bool) -> None:
        """Join or found the group that is named.

        - `need`, `priorities`: The context's spill-fill, and the priorities of its graphs.
        - `switches`: Whether it switches graphs.
        """
        registration, group = self.registrations[CONCURRENT] or self.registrations[MULTI], None
        if self.shared is not None:
            rule = ""
            if registration is not None or self._config.group_bytes:
                rule = "contexts of a list that share resources are in no other group"
            elif switches:
                rule = "contexts of a list that share resources switch no graphs"
            if rule:
                raise QnnError(Code.CONTEXT_INVALID_CONFIG, "context of a list", rule)
            group = self.shared.group_on(self._accelerator)
        elif registration is not None:
            first = getattr(getattr(registration.first, "driver", None), "group", None)
            founders = first if isinstance(first, SpillFillGroup) else None
            member = MemberNeeds(need, _common(priorities) if self.is_concurrent else None)
            group = group_for(registration, founders, self._accelerator, member, self._log)
        elif self._config.group_bytes:
            group = self._device.groups.get(self._config.group_id)
            founders = None if group is None or not group.is_open else group
            registration = GroupRegistration(founders, self._config.group_bytes)
            group = group_for(registration, founders, self._accelerator, MemberNeeds(need), self._log)
            self._device.groups[self._config.group_id] = group
        if group is not None:
            group.join(context)
            self.group = group
            self._log(LogLevel.INFO, f"HTP context: its spill-fill buffer is that of group {group.number}")

    def leave(self, context: object) -> None:
        """Leave the group, when nothing of the context is loaded any more; safe to call again."""
        if self.group is not None:
            self.group.leave(context)
            self.group = None


def _common(priorities: Collection[int]) -> int:
    """Return the priority of all graphs of a concurrent group; refuse several."""
    if len(priorities) > 1:
        rule = f"its graphs must have one priority, they have {', '.join(map(str, sorted(priorities)))}"
        raise QnnError(Code.CONTEXT_CREATE_FROM_BINARY, "concurrent group", rule)
    return next(iter(priorities), seam.GraphDriver.priority)
