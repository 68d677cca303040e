"""Puts headers and libraries for C into a wheel; where there is no compiler, the libraries are compiled when needed.

Variables that `make wheel` sets make a wheel that needs no compiler: ISTHMUS_SHIPPED is a folder of compiled code for
it, ISTHMUS_PLATFORM is the platform in its name, and CC compiles for that platform. Everything else is in
pyproject.toml.
"""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

PLATFORM = os.environ.get("ISTHMUS_PLATFORM") or f"linux_{platform.machine()}"
SHIPPED = os.environ.get("ISTHMUS_SHIPPED")


def building(capi):
    """The module that compiles, without the package around it and what that needs."""
    spec = importlib.util.spec_from_file_location("building", capi / "building.py")
    module = sys.modules["building"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_headers(package):
    """Make the package that was built print its headers; the handwritten ones are then among them."""
    path = os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-m", "isthmus.capi.headers"], env=environment, check=True)
    shutil.rmtree(package / "capi" / "handwritten")


class BuildWithLibraries(build_py):
    """Builds the package, and the headers and libraries beside it."""

    def run(self):
        package = Path(self.build_lib) / "isthmus"
        if not self.editable_mode:
            # An earlier build may have been for another architecture.
            shutil.rmtree(package, ignore_errors=True)
        super().run()
        if self.editable_mode:
            return
        if SHIPPED:
            shutil.copytree(SHIPPED, package / "compiled" / "archives")
        write_headers(package)
        module = building(package / "capi")
        target = package / "capi" / "libraries"
        target.mkdir(parents=True, exist_ok=True)
        try:
            module.compile_all(target)
        except module.NoCompiler as problem:
            if SHIPPED:
                raise
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
            return "py3", "none", PLATFORM

    commands["bdist_wheel"] = AnyPython
except ImportError:
    pass

setup(distclass=PlatformDistribution, cmdclass=commands)
