"""Compiles the libraries for C into a wheel, where there is a compiler; one without them compiles when it is asked to.

Two variables, which `make wheel` sets, make a wheel that needs no compiler: ISTHMUS_SHIPPED is a folder of compiled
code for it, and ISTHMUS_ARCHITECTURE is its architecture. Everything else is in pyproject.toml.
"""

import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ARCHITECTURE = os.environ.get("ISTHMUS_ARCHITECTURE") or platform.machine()
BUILDING = Path(__file__).parent / "src" / "isthmus" / "capi" / "building.py"


def building():
    """The module that compiles, without the package around it and what that needs."""
    spec = importlib.util.spec_from_file_location("building", BUILDING)
    module = sys.modules["building"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildWithLibraries(build_py):
    """Builds the package, and the libraries beside it."""

    def run(self):
        package = Path(self.build_lib) / "isthmus"
        if not self.editable_mode:
            # An earlier build may have been for another architecture.
            shutil.rmtree(package, ignore_errors=True)
        super().run()
        if self.editable_mode:
            return
        if os.environ.get("ISTHMUS_SHIPPED"):
            shutil.copytree(os.environ["ISTHMUS_SHIPPED"], package / "compiled" / "archives")
        module = building()
        target = package / "capi" / "libraries"
        target.mkdir(parents=True, exist_ok=True)
        own = platform.machine() == ARCHITECTURE
        try:
            module.compile_all(target, names=() if own else (f"{ARCHITECTURE}-linux-gnu-gcc",))
        except module.NoCompiler as problem:
            self.announce(f"the libraries for C are left out: {problem}", 3)


class PlatformDistribution(Distribution):
    """A distribution with libraries of this platform."""

    def has_ext_modules(self):
        return True


commands = {"build_py": BuildWithLibraries}
try:
    from setuptools.command.bdist_wheel import bdist_wheel

    class AnyPython(bdist_wheel):
        """The libraries know no version of Python."""

        def get_tag(self):
            return "py3", "none", f"linux_{ARCHITECTURE}"

    commands["bdist_wheel"] = AnyPython
except ImportError:
    pass

setup(distclass=PlatformDistribution, cmdclass=commands)
