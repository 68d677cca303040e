"""No model reads or writes a byte outside the memory it was given: guard pages around it end the trespasser.

Scratch, persistent memory, and every input and output lie flush with a guard page, at their start and then at their
end, with IO inside scratch and outside. These are the models that are quantized or smaller than 2 MB.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import zoo
from support.suites import MODELS, only

HERE = Path(__file__).parent
SMALL = 2_000_000


def present():
    """The keys of the models that are on this machine and count as small."""
    keys = []
    for key, model in zoo.MODELS.items():
        try:
            path = zoo.path(key)
        except zoo.Unavailable:
            continue
        if model.numerics == "int8" or path.stat().st_size < SMALL:
            keys.append(key)
    return keys


def environment():
    search = os.pathsep.join([str(HERE.parents[1]), str(HERE.parents[2] / "src")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([search, os.environ.get("PYTHONPATH", "")])}


@pytest.fixture(scope="module")
def ran(request):
    """Return what each model did, by key; the last one begun is the one that ended the process, if any did."""
    here = [item for item in request.session.items if item.path == Path(__file__) and hasattr(item, "callspec")]
    asked = {item.callspec.params.get("key") for item in here}
    keys = [key for key in present() if key in asked]
    if not keys:
        pytest.skip("no model is here: python tests/support/zoo.py fetch")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(HERE / "guard_pages.py"), *keys],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    for key in keys[len(lines) : len(lines) + 1]:
        lines[key] = f"ended the process ({done.returncode}): {done.stderr[-2000:]}"
    return lines


@pytest.mark.parametrize("key", only(MODELS, zoo.MODELS))
def test_a_model_stays_inside_its_memory(ran, key) -> None:
    if key not in present():
        pytest.skip("not here, or larger than 2 MB and not quantized")
    reported = ran.get(key, "was not reached")
    if reported.startswith("refused") and zoo.MODELS[key].tier == "extra":
        pytest.skip(reported)
    assert reported == "ran"


@pytest.mark.parametrize(("at_end", "distance"), [(True, 100), (False, -1)])
def test_an_access_to_a_guard_page_ends_the_process(at_end, distance) -> None:
    script = (
        "import ctypes\n"
        "from backends.lpai import guard_pages\n"
        f"buffer = guard_pages.Guarded(100, {at_end})\n"
        "ctypes.string_at(buffer.address, 100)\n"
        "print('inside', flush=True)\n"
        f"ctypes.string_at(buffer.address + {distance}, 1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment(), check=False
    )
    assert (done.stdout, done.returncode) == ("inside\n", -signal.SIGSEGV)
