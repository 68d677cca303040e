"""An arm64 machine without the hardware: an emulator of its processor, and a Python with packages for it.

`python tests/arm64/arm64_machine.py` sets it up below `.cache/arm64`: the emulator and the system from Debian's
packages, which are unpacked and not installed, so that nobody needs to be root, and wheels of the very versions that
the tests use here. Its programs run in this system: they see its files, and those for their own processor first.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
STORE = PROJECT / ".cache" / "arm64"
PYTHON = STORE / "root/usr/bin/python"
"""The machine's Python, as a program of this system. It lies where Python looks for its library from."""

PROCESSORS = {"neon": "cortex-a53", "neon-dot": "neoverse-n1"}
"""For each target, a processor that picks it. What the first one lacks, it refuses to execute."""

_SYSTEM = ("python3", "libstdc++6")
_EMULATOR = STORE / "host/usr/bin/qemu-aarch64-static"
_EMULATOR_PACKAGE = "qemu-user-static"
# ONNX Runtime is not among them: it dies under the emulator when it is imported. LiteRT is there for its schema.
_WHEELS = ("numpy", "llvmlite", "numba", "onnx", "ai-edge-litert", "flatbuffers", "pytest", "hypothesis", "rich")
_PLATFORMS = tuple(f"manylinux{glibc}_aarch64" for glibc in ("_2_28", "_2_27", "_2_26", "_2_24", "_2_17", "2014"))
_SECONDS_FOR_A_CALL = 7200  # against a program that waits for ever
_COMPLETE = STORE / "complete"  # written last, with the versions: all is there


class Unavailable(Exception):
    """The machine cannot be had; the text says why in one line."""


def require() -> None:
    """Raise `Unavailable` unless the machine is set up with the versions that are in use here."""
    _require_host()
    if not _COMPLETE.exists() or _COMPLETE.read_text() != _versions():
        raise Unavailable("the emulated arm64 machine is not set up: make test-arm64")


def set_up() -> None:
    """Install the machine below `.cache/arm64`, unless it is there already."""
    _require_host()
    try:
        require()
    except Unavailable:
        for part in ("root", "host", "apt"):
            shutil.rmtree(STORE / part, ignore_errors=True)
        _COMPLETE.unlink(missing_ok=True)
        _unpack_packages()
        _install_wheels()
        _write_python()
        _COMPLETE.write_text(_versions())
    else:
        _write_python()  # it names our modules, which change


def environment(target: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment variables of a program that runs on the emulated processor of a target."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ISTHMUS_"))}
    return {
        **kept,
        "ISTHMUS_EMULATED_PROCESSOR": PROCESSORS[target],  # by this name it also reaches isolated children
        "ISTHMUS_CACHE_DIR": str(STORE / "kernels"),
        "PYTHONPATH": os.pathsep.join(str(PROJECT / part) for part in ("src", "tests", "tests/arm64")),
        **(extra or {}),
    }


def call(
    arguments: Sequence[str], target: str, extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the machine's Python with these arguments on a target's processor; what it says comes back."""
    command = [str(PYTHON), *arguments]
    return subprocess.run(
        command,
        env=environment(target, extra),
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS_FOR_A_CALL,
    )


def _require_host() -> None:
    if platform.machine() != "x86_64":
        raise Unavailable(f"arm64 is emulated on x86_64 alone, and this machine is {platform.machine()}")


def _versions() -> str:
    return "\n".join(f"{name}=={importlib.metadata.version(name)}" for name in _WHEELS)


def _unpack_packages() -> None:
    """The emulator and the arm64 system, by the package lists of this system but apart from all it has installed."""
    for tool in ("apt-get", "dpkg-deb", "dpkg"):
        if shutil.which(tool) is None:
            raise Unavailable(f"the emulated arm64 machine is made of Debian's packages, and {tool} is not here")
    apt = STORE / "apt"
    for part in ("lists/partial", "archives/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "status").touch()
    own = _output(["dpkg", "--print-architecture"])
    settings = {
        "APT::Architecture": "arm64",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "true",
        "Dir::Cache": apt,
        "Dir::Cache::archives": apt / "archives",
        "Dir::State": apt,
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
    }
    lines = [f'{name} "{value}";' for name, value in settings.items()]
    (apt / "apt.conf").write_text("\n".join((*lines, f'APT::Architectures {{ "arm64"; "{own}"; }};', "")))
    get = ["env", f"APT_CONFIG={apt / 'apt.conf'}", "apt-get", "--quiet=2", "--yes"]
    _output([*get, "update"])
    _output([*get, "--download-only", "install", *_SYSTEM])
    for package in sorted((apt / "archives").glob("*.deb")):
        _output(["dpkg-deb", "--extract", str(package), str(STORE / "root")])
    _output([*get, "download", f"{_EMULATOR_PACKAGE}:{own}"], cwd=apt)
    for package in apt.glob("*.deb"):
        _output(["dpkg-deb", "--extract", str(package), str(STORE / "host")])
    for other in set(_EMULATOR.parent.iterdir()) - {_EMULATOR}:
        other.unlink()  # emulators of other processors, ten times the size of all else
    shutil.rmtree(apt)


def _install_wheels() -> None:
    platforms = [f"--platform={platform}" for platform in _PLATFORMS]
    version = _python().name.removeprefix("python")
    site = STORE / "root/usr/lib/python3/dist-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"--target={site}"]
    _output([*pip, "--only-binary=:all:", f"--python-version={version}", *platforms, *_versions().split()])


def _write_python() -> None:
    """A script that is the machine's Python, also for the processes that Python starts by its own name."""
    PYTHON.write_text(
        f"""#!/bin/sh
# Kernels are compiled on the host, for whichever machine: it takes a tenth of the time there.
for word in "$@"; do
    case "$word" in
    isthmus.compiled.compile_server | "{PROJECT}/tests/arm64/host_compiler.py")
        PYTHONPATH="{PROJECT}/src" exec "{sys.executable}" "$@" ;;
    esac
done
exec "{_EMULATOR}" -cpu "${{ISTHMUS_EMULATED_PROCESSOR:-max}}" -L "{STORE}/root" -0 "$0" "{_python()}" "$@"
"""
    )
    PYTHON.chmod(0o755)
    try:
        _output([str(PYTHON), "-c", "import numpy, llvmlite.binding"])
    except Unavailable as reason:
        raise Unavailable(f"the emulated Python does not start: {reason}") from None


def _python() -> Path:
    """The machine's own Python, a program for its processor."""
    found = [p for p in (STORE / "root/usr/bin").glob("python3.*") if p.suffix[1:].isdigit()]
    if len(found) != 1:
        raise Unavailable("Debian's packages for arm64 hold no Python")
    return found[0]


def _output(command: Sequence[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        tool = next(word for word in command if "=" not in word and word != "env")
        raise Unavailable(f"{Path(tool).name}: {said[-1]}")
    return done.stdout.strip()


def main() -> int:
    """Set the machine up; where that fails, say why in one line."""
    try:
        set_up()
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 1
    print(f"the emulated arm64 machine is at {STORE.relative_to(PROJECT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
