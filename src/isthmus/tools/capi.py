"""``isthmus capi``: libraries that C clients of QNN load instead of the vendor's.

``isthmus capi install DIR`` installs a library for each backend (libQnnHtp.so and so on), libQnnSystem.so,
libQnnLpaiNetRunExtensions.so, libQnnTFLiteDelegate.so and libcdsprpc.so into a folder, and the headers of QNN's
interface into its subfolder include.

``isthmus capi include`` prints where these headers are.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from isthmus.capi import installation
from isthmus.errors import Code, QnnError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument("action", choices=("install", "include"), help="what to do")
    parser.add_argument("directory", nargs="?", metavar="DIR", help="where to put the libraries")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.action == "include":
        print(installation.INCLUDE)
        return 0
    if options.directory is None:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "isthmus capi install", "no folder is given")
    libraries = installation.install(options.directory)
    include = Path(options.directory) / "include"
    shutil.copytree(installation.INCLUDE, include, dirs_exist_ok=True)
    for file in (*libraries, include):
        print(file)
    if installation.libpython() is None:
        print("This Python has no shared libpython: programs without Python need one. Install python3-dev, or a Python")
        print("built with --enable-shared, and install again. Programs that run Python are not concerned.")
    return 0
