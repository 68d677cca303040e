"""``isthmus capi``: libraries that C clients of QNN load instead of the vendor's.

``isthmus capi install DIR`` installs a library for each backend (libQnnHtp.so and so on), libQnnSystem.so, libQnnIr.so,
libQnnSaver.so, libQnnLpaiNetRunExtensions.so, libQnnTFLiteDelegate.so and libcdsprpc.so into a folder, and the headers
of QNN's interface into its subfolder include. ``isthmus capi install --sdk DIR`` puts them and QNN's tools where QNN's
SDK has them, so that clients use the folder as an SDK (``QNN_SDK_ROOT=DIR``).

``isthmus capi include`` prints where these headers are.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from isthmus.capi import installation
from isthmus.errors import invalid_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    actions = ("install", "include")
    parser.add_argument("action", choices=actions, metavar=f"{{{','.join(actions)}}}", help="what to do")
    parser.add_argument("directory", nargs="?", metavar="DIR", help="where to put the libraries")
    parser.add_argument("--sdk", metavar="DIR", help="where to put them as QNN's SDK has them, with QNN's tools")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.action == "include":
        if options.directory is not None or options.sdk is not None:
            raise invalid_argument("isthmus capi include", "it takes no folder")
        print(installation.include())
        return 0
    if (options.directory is None) == (options.sdk is None):
        rule = "no folder is given" if options.sdk is None else "give one folder, with --sdk or without"
        raise invalid_argument("isthmus capi install", rule)
    if options.sdk is not None:
        files = installation.install_sdk(options.sdk)
    else:
        files = installation.install(options.directory)
        files.append(Path(options.directory) / "include")
        shutil.copytree(installation.INCLUDE, files[-1], dirs_exist_ok=True)
    for file in files:
        print(file)
    if installation.libpython() is None:
        print("This Python has no shared libpython: programs without Python need one. Install python3-dev, or a Python")
        print("built with --enable-shared, and install again. Programs that run Python are not concerned.")
    return 0
