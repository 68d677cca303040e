"""ExecuTorch reads the spill-fill of our binaries; its programs share one buffer, or are refused without room.

The library of its wheel for x86-64 passes no REGISTER_MULTI_CONTEXTS; a configuration of ours makes the group, with the
size that ExecuTorch has read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from clients_report import PASSES, Results, needs
from support.processes import answer
from test_executorch import environment

from isthmus import qnn
from isthmus.domains import ContextSizes, GraphNeeds

CLIENT = "ExecuTorch, spill-fill groups"
PROGRAM = Path(__file__).with_name("executorch_group.py")
TOLERANCE = 0.002
"""What float16 between layers changes."""

pytestmark = needs("executorch", "torch")


@dataclass(frozen=True)
class Programs:
    """ExecuTorch's programs: their folder, the SDK that made them, and what making them told and printed.

    - `needs`: what their binaries need, as their descriptions say.
    """

    folder: Path
    sdk: Path
    told: dict[str, list[int]]
    printed: str
    needs: list[ContextSizes]

    @property
    def group(self) -> int:
        """The size of a buffer for all."""
        return max(self.told["sizes"])

    @property
    def own(self) -> list[int]:
        """What each needs besides spill-fill and I/O, which ExecuTorch does not register here."""
        return [each.charge - each.spill_fill - sum(each.io) for each in self.needs]

    def run(self, count: int, capacity: int, group: int) -> subprocess.CompletedProcess[str]:
        """Run the first programs on a chip with one domain of a capacity, in a group with a buffer of a size."""
        chip, file = self.folder / "chip.json", self.folder / "config.json"
        chip.write_text(json.dumps({"name": "board", "domains": [0], "capacity": capacity}))
        context = {"group_id": 0, "max_spill_fill_buffer_for_group": group} if group else {}
        file.write_text(json.dumps({"htp": {"chip": str(chip)}, "context": context}))
        return called(self.sdk, "run", self.folder, count, ISTHMUS_HTP_CONFIG=str(file))


def called(sdk: Path, *words: object, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the program beside this module."""
    command = [sys.executable, str(PROGRAM), *map(str, words)]
    return subprocess.run(command, env=environment(sdk) | more, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def programs(sdk: Path, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    folder = tmp_path_factory.mktemp("programs")
    done = called(sdk, "make", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    system = qnn.SystemContext()
    graphs = [system.get_binary_info(file).graphs for file in sorted(folder.glob("program*.bin"))]
    sizes = [ContextSizes(str(number), tuple(map(GraphNeeds.of, each))) for number, each in enumerate(graphs)]
    return Programs(folder, sdk, answer(done.stdout), done.stdout + done.stderr, sizes)


def test_executorch_reads_the_spill_fill_that_our_binaries_state(programs: Programs, results: Results) -> None:
    results.used("executorch", "torch")
    stated = [each.spill_fill for each in programs.needs]
    read = programs.told["sizes"]
    results.row("reads spill-fill from binaries", PASSES if read == stated else f"{read} instead of {stated}")
    assert read == stated
    assert min(stated) > 0
    assert len({*stated}) == len(stated)
    assert programs.told["together"] == [max(stated)] * len(stated)
    # Its own log has no line with the size, only the option by which it asks.
    assert "[Qnn ExecuTorch]: use_multi_contexts in htp_options: 1" in programs.printed


def test_two_programs_run_in_a_group_where_they_have_no_room_apart(programs: Programs, results: Results) -> None:
    capacity = programs.group + sum(programs.own[:2])
    done = programs.run(2, capacity, programs.group)
    log = done.stdout + done.stderr
    results.row("two programs in a spill-fill group", PASSES if done.returncode == 0 else log[-300:])
    assert done.returncode == 0, log
    assert answer(done.stdout)["difference"] < TOLERANCE
    assert log.count("[Qnn ExecuTorch]: HTP context: its spill-fill buffer is that of group 1") == 2
    done = programs.run(2, capacity, 0)
    assert done.returncode != 0
    assert "[1002 COMMON_MEM_ALLOC]" in done.stdout + done.stderr


def test_a_third_program_that_does_not_fit_gets_1002_with_our_sentence(programs: Programs, results: Results) -> None:
    done = programs.run(3, programs.group + sum(programs.own) - 1, programs.group)
    log = done.stdout + done.stderr
    is_right = "[Qnn ExecuTorch]: Failed to find available PD for contextId 3" in log and done.returncode != 0
    results.row("a third program without room gets 1002", PASSES if is_right else log[-300:])
    assert is_right, log
    [sentence] = [line for line in log.splitlines() if "[Qnn ExecuTorch]" in line and "[1002 COMMON_MEM_ALLOC]" in line]
    assert f"spill-fill of the group {programs.group:,}" in sentence
    assert f"domain 0 has {programs.own[2] - 1:,} of " in sentence
    assert "`isthmus fit --contexts` finds an order that fits, or what would help" in sentence
    # One byte more, and all three run.
    done = programs.run(3, programs.group + sum(programs.own), programs.group)
    assert done.returncode == 0, done.stdout + done.stderr
    assert answer(done.stdout)["difference"] < TOLERANCE
