"""Compiles the libraries for C into a wheel, where there is a compiler; one without them compiles when it is asked to.

Everything else is in pyproject.toml.
"""

import importlib.util
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

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
        super().run()
        if self.editable_mode:
            return
        module = building()
        target = Path(self.build_lib) / "isthmus" / "capi" / "libraries"
        target.mkdir(parents=True, exist_ok=True)
        try:
            module.compile_all(target)
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
            return "py3", "none", super().get_tag()[2]

    commands["bdist_wheel"] = AnyPython
except ImportError:
    pass

setup(distclass=PlatformDistribution, cmdclass=commands)
