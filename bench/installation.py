"""How long a new user waits: a wheel is installed into an empty environment, and a model runs there for the first time.

The environment has only the wheel and numpy, so nothing can be compiled, and the cache folder is empty. Every figure is
taken from the start of a process to its end. The model is given, or okay_nabu from the tests' models.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

INSTALL_AIM, FIRST_AIM, LATER_AIM, MEGABYTES_AIM = 20.0, 1.0, 0.5, 120.0
_COMPILERS = ("numba", "llvmlite")
_RUN = """
import sys, isthmus
with isthmus.Session(sys.argv[1], backend=sys.argv[2]) as session:
    session.run()
"""


def seconds(command: list[str], environment: dict[str, str]) -> float:
    """How long a command takes; it must succeed."""
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True)
    return time.perf_counter() - began


def main() -> int:
    """Print the figures; the status is 1 if an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--model", type=Path, default=Path(__file__).parents[1] / ".models" / "okay_nabu.tflite")
    parser.add_argument("--backend", default="cpu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ISTHMUS_"))}
        environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
        venv = Path(folder) / "venv"
        seconds([sys.executable, "-m", "venv", str(venv)], environment)
        python = str(venv / "bin" / "python")
        install = seconds([python, "-m", "pip", "install", "--quiet", str(options.wheel)], environment)
        packages = next(venv.glob("lib/python*/site-packages"))
        # What a new environment has anyway is not ours.
        ours = [path for path in packages.iterdir() if path.name.startswith(("isthmus", "numpy"))]
        files = [file for path in ours for file in path.rglob("*") if file.is_file()]
        megabytes = sum(file.stat().st_size for file in files) / 1e6
        compilers = [name for name in _COMPILERS if (packages / name).exists()]
        run = [python, "-c", _RUN, str(options.model), options.backend]
        first = seconds(run, environment)
        later = min(seconds(run, environment) for _ in range(3))
        compiled = [file.name for file in home.rglob("*.o")]
    rows = [
        ("installation and first inference, s", install + first, INSTALL_AIM),
        ("first inference, s", first, FIRST_AIM),
        ("later inference, s", later, LATER_AIM),
        ("installed with numpy, MB", megabytes, MEGABYTES_AIM),
        ("compilers installed", float(len(compilers)), 0.0),
        ("functions compiled", float(len(compiled)), 0.0),
    ]
    for name, figure, aim in rows:
        print(f"{name:<36} {figure:8.2f} {'' if figure <= aim else '!'} (aim {aim:g})")
    return int(any(figure > aim for _, figure, aim in rows))


if __name__ == "__main__":
    sys.exit(main())
