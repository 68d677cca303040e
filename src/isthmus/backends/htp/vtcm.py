"""The on-chip memory of a graph (VTCM), and the report of what moves between it and DDR memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from isthmus.backends.htp.chips import chip_of
from isthmus.backends.htp.options import HtpGraphConfigOption
from isthmus.backends.seam.device_record import GraphRecord
from isthmus.domains import ChipProfile
from isthmus.errors import Code, QnnError, counted
from isthmus.prepare.schedule import Schedule
from isthmus.prepare.spill_fill import SpillFill, spill_fill_of

# The first version of the processor for which the vendor's compiler takes VTCM in bytes.
_MIN_ARCH_OF_BYTES = 81
# Number of tensors that are named.
_NAMED = 8
# Maximum characters of a name.
_NAME = 48


def vtcm_bytes(options: Mapping[IntEnum, Any], soc: int, arch: int) -> int:
    """Return the on-chip memory that a graph's options ask for, on a chip that may be unknown (0)."""
    in_bytes = options[HtpGraphConfigOption.VTCM_SIZE_IN_BYTES]
    if in_bytes and arch >= _MIN_ARCH_OF_BYTES:
        return int(in_bytes)
    megabytes = options[HtpGraphConfigOption.VTCM_SIZE_IN_MB]
    if not megabytes:
        chip = chip_of(soc)
        megabytes = (chip.vtcm_mb if chip is not None else 0) or HtpGraphConfigOption.VTCM_SIZE_IN_MB.default
    return int(megabytes) << 20


def is_whole_vtcm(options: Mapping[IntEnum, Any], arch: int) -> bool:
    """Return whether a graph's options ask for all on-chip memory that the chip has."""
    in_bytes = options[HtpGraphConfigOption.VTCM_SIZE_IN_BYTES] and arch >= _MIN_ARCH_OF_BYTES
    return not in_bytes and not options[HtpGraphConfigOption.VTCM_SIZE_IN_MB]


def check_optimal(records: Mapping[str, GraphRecord], chip: ChipProfile | None) -> None:
    """Refuse graphs that were made for all VTCM of a chip if another amount is all that this chip has.

    A chip whose VTCM is not known refuses none.
    """
    vtcm = chip.vtcm_mb << 20 if chip is not None else 0
    for name, record in records.items():
        if vtcm and record.whole_vtcm and record.vtcm != vtcm:
            assert chip is not None
            rule = (
                f"graph '{name}' was made for all VTCM of a chip, {record.vtcm:,} bytes, and {chip.name} has {vtcm:,}"
            )
            hint = f"Make the binary for {chip.name}, or load it with the compatibility that is permissive."
            raise QnnError(Code.CONTEXT_BINARY_SUBOPTIMAL, "context binary", rule, hint)


@dataclass(frozen=True)
class VtcmReport:
    """The section of HTP in a report: our plan of VTCM, which does not predict that of the vendor's compiler.

    It is computed when it is asked for, since not every plan is printed.
    """

    schedule: Schedule
    vtcm: int

    @property
    def limits(self) -> tuple[dict[str, Any], ...]:
        """Nothing has to fit VTCM: what does not fit moves."""
        return ()

    @property
    def fits(self) -> bool:
        """Whether the graph can run with this VTCM, as any graph can."""
        return True

    @cached_property
    def spill_fill(self) -> SpillFill:
        """What moves in an execution."""
        return spill_fill_of(self.schedule, self.vtcm)

    def to_json(self) -> dict[str, Any]:
        """Return the section as plain data; all numbers but steps are bytes."""
        found = asdict(self.spill_fill)
        steps = self.schedule.steps
        moved = [
            {**each, "first": steps[each["first"]].name, "last": steps[each["last"]].name}
            for each in found.pop("tensors")
        ]
        return {**found, "traffic": self.spill_fill.traffic, "moved": moved}

    def lines(self) -> list[str]:
        """Return the section as lines of text."""
        found = self.spill_fill
        proof = "proved least" if found.status == "optimal" else f"not proved: at least {found.lower_bound:,}"
        lines = [
            f"VTCM of {found.vtcm:,} bytes, planned by Isthmus; the vendor's compiler plans it in another way",
            f"  spill-fill   {found.spill_fill:>13,}  of DDR memory; a run spills {found.spilled:,} bytes and fills "
            f"{found.filled:,}",
            f"  DDR traffic  {found.traffic:>13,}  {proof}: {found.written:,} written, {found.read:,} read; besides "
            f"{found.constants:,} of constants",
            f"  simple rule  {found.largest_first:>13,}  if the largest tensors that fit stay",
            f"  enough       {found.enough:>13,}  of VTCM for no spill-fill",
        ]
        if found.tensors:
            lines.append(f"  {'spills':>13}{'fills':>14}  because it does not stay")
        for each in found.tensors[:_NAMED]:
            what = f"{_shorten(each.name)}, {each.kind} of {counted(each.bytes, 'byte')}"
            lines.append(f"  {each.spilled:>13,}{each.filled:>14,}  {what}")
        if len(found.tensors) > _NAMED:
            lines.append(f"  {'':>27}  and {len(found.tensors) - _NAMED} more")
        if found.spill_fill:
            lines.append(f"  tiles may need less: --scratch-limit {found.vtcm}")
        return lines


def _shorten(name: str) -> str:
    """Return the end of a name, where names of converted models differ."""
    return name if len(name) <= _NAME else f"...{name[3 - _NAME :]}"
