"""``isthmus view``: write a page on which plans are opened by drag and drop, and compared.

The page has no data. It opens what ``--json`` of plan and run printed, and pages of ``--html``, one or several at a
time. They are read in the browser and sent nowhere; the page loads nothing and needs no network.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from isthmus.errors import invalid_argument
from isthmus.system import reading
from isthmus.tools.files import file_name, refuse_unwritable, write_whole
from isthmus.tools.report_options import MAX_REPORT, SAVED

# The suffixes of pages.
_PAGES = (".html", ".htm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument("file", type=file_name, metavar="FILE", help="the page to write, such as view.html")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    from isthmus.report.page import Viewer, page

    what = f"page '{options.file}'"
    refuse_unwritable(what, options.file)
    _refuse_other_files(what, options.file)
    text = page("Plans", [Viewer()], subtitle="The memory of models, opened from files")
    write_whole(options.file, what, text.encode())
    return 0


def _refuse_other_files(what: str, path: Path) -> None:
    """Refuse a name that no page has, and a file to be opened rather than written; a device or a pipe loses nothing."""
    if path.exists() and not path.is_file():
        return
    if path.suffix.lower() not in _PAGES:
        rule = "is where the page is written, so it must end in .html"
    elif path.exists() and not _is_viewer(path):
        rule = f"would overwrite '{path}', which is no page of isthmus view"
    else:
        return
    other = "other.html" if path.name == "view.html" else "view.html"
    dropped = path.name if path.suffix.lower() in SAVED else "pages of --html or the output of --json"
    raise invalid_argument(what, rule, f"isthmus view {other}, then drop {dropped} on it")


def _is_viewer(path: Path) -> bool:
    """Return whether a file is a page of this command; one that cannot be read is none."""
    from isthmus.report.page.saved import is_viewer

    try:
        return is_viewer(reading.contents(path, MAX_REPORT).decode(errors="replace"))
    except OSError:
        return False
