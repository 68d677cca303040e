"""Programs forged by someone who gets the checksum right are refused, or do no harm.

``ISTHMUS_FORGERIES=10000`` tries as many; ``ISTHMUS_FORGERY_SEED`` others.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.suites import long

HERE = Path(__file__).parent
COUNT = int(os.environ.get("ISTHMUS_FORGERIES", "2000"))
SEED = os.environ.get("ISTHMUS_FORGERY_SEED", "1")


def environment():
    search = [str(HERE.parents[1]), str(HERE.parents[2] / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(search)}


@pytest.mark.parametrize("count", [100, long(COUNT)])
def test_a_forged_program_is_refused_or_stays_inside_its_memory(count) -> None:
    script = HERE / "forged_programs.py"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(script), str(count), SEED],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    *_, last = done.stdout.splitlines() or [""]
    assert done.returncode == 0, f"ended with {done.returncode} at: {last}\n{done.stderr[-3000:]}"
    outcomes = json.loads(last)
    print(outcomes)
    assert sum(outcomes.values()) == count
    assert outcomes["refused as COMMON_LOADING_BINARIES"] > count / 2
    assert outcomes["accepted and ran"] > count / 10, "forgeries that are all refused prove little"
