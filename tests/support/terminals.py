"""Commands with a terminal as their standard error."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Each command without a delay, so that a short one shows what a long one would.
PROGRAM = """
import sys
from isthmus.system import progress
progress._DELAY = progress._INTERVAL = 0
from isthmus.tools.cli import main
sys.exit(main(sys.argv[1:]))
"""


def shown(folder: Path, arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> str:
    """Return what a command writes to a terminal as its standard error."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, *arguments]
    environment = {**environment, "TERM": "xterm"}
    child = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 1 << 12):
            text += piece
    except OSError:
        pass  # Linux reports the end of a terminal as an error.
    finally:
        os.close(ours)
    assert child.wait() == 0, text
    return text.decode()
