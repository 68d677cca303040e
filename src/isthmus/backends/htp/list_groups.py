"""What the contexts of a list of binaries share (SHARE_RESOURCES, an option of the list).

Their spill-fill is one buffer, as large as the largest need among them, and they execute in turns: they are a group
(`spill_fill_groups`) that is founded by the first that is loaded. With type 0 a context gets a process domain that has
room for its inputs and outputs too, beside those of the others of its list there. With type 2 contexts of equal
priority share, and those of another priority have a buffer of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.htp.options import HtpContextConfigOption, HtpResourceOptimization
from isthmus.backends.htp.spill_fill_groups import SpillFillGroup
from isthmus.backends.seam.driver import ListEntry, member
from isthmus.backends.seam.provided import scratch_of
from isthmus.errors import Code, QnnError

MIN_ARCH_OF_CONCURRENT = 81
"""The first version of the processor that has concurrent groups, by a registration or by type 2 of a list."""
LIST_ONLY = (HtpContextConfigOption.SHARE_RESOURCES, HtpContextConfigOption.SHARE_RESOURCES_OPTIMIZATION_TYPE)
"""Options of a list of binaries that no context has by itself."""


class SharedResources:
    """What some contexts of one list share.

    - `kind`: How they share it.
    - `nbytes`: The largest spill-fill memory that one of them needs.
    """

    def __init__(self, kind: HtpResourceOptimization, nbytes: int) -> None:
        self.kind, self.nbytes = kind, nbytes
        self.io: dict[int, int] = {}
        """The bytes of inputs and outputs that its contexts will register, by the number of their process domain."""
        self._group: SpillFillGroup | None = None

    @property
    def reserves_io(self) -> bool:
        """Whether a process domain must have room for inputs and outputs."""
        return self.kind is HtpResourceOptimization.SEQUENTIAL_WITH_VA_OPTIMIZATION

    def group_on(self, accelerator: Accelerator) -> SpillFillGroup:
        """Return the group of its contexts, founding it if no member of it is there."""
        if self._group is None or not self._group.is_open:
            self._group = SpillFillGroup(accelerator, self.nbytes)
        return self._group


def shared_by(
    configs: Mapping[Any, Any], entries: Sequence[ListEntry], arch: int
) -> tuple[dict[Any, Any], list[SharedResources | None]]:
    """Return the configs that each context of a list gets, and what each shares with others.

    - `configs`: Those of the list.
    - `arch`: The version of the processor.

    Errors: CONTEXT_INVALID_CONFIG for a type that does not exist, COMMON_NOT_SUPPORTED for type 2 before v81.
    """
    common = {option: value for option, value in configs.items() if option not in LIST_ONLY}
    if not configs.get(HtpContextConfigOption.SHARE_RESOURCES, False):
        return common, [None] * len(entries)
    number = configs.get(HtpContextConfigOption.SHARE_RESOURCES_OPTIMIZATION_TYPE, 0)
    what = HtpContextConfigOption.SHARE_RESOURCES_OPTIMIZATION_TYPE.name.lower()
    kind = member(number, HtpResourceOptimization, what, Code.CONTEXT_INVALID_CONFIG)
    is_concurrent = kind is HtpResourceOptimization.CONCURRENT_OPTIMIZATION
    if is_concurrent and arch < MIN_ARCH_OF_CONCURRENT:
        rule = f"it is for processors from v{MIN_ARCH_OF_CONCURRENT} on, the device is v{arch}"
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"{what} {kind.name}", rule)
    keys = [entry.priority if is_concurrent else 0 for entry in entries]
    needs: dict[int, int] = {}
    for key, entry in zip(keys, entries, strict=True):
        needs[key] = max(needs.get(key, 0), _spill_fill(entry))
    shared = {key: SharedResources(kind, nbytes) for key, nbytes in needs.items()}
    return common, [shared[key] for key in keys]


def refuse_list_only(option: IntEnum) -> None:
    """Refuse an option that only a list of binaries has."""
    if option in LIST_ONLY:
        rule, hint = f"HTP Config option: {int(option)} not supported", "It is for the configs of a list of binaries."
        raise QnnError(Code.CONTEXT_INVALID_CONFIG, f"HTP context option {option.name}", rule, hint)


def _spill_fill(entry: ListEntry) -> int:
    """Return the spill-fill memory of a binary; 0 for one that cannot be read, which its loading will refuse."""
    try:
        # All scratch is spill-fill here.
        needs = scratch_of(entry.open(), "htp")
    except QnnError:
        return 0
    return max((need for name, need in needs.items() if entry.enabled is None or name in entry.enabled), default=0)
