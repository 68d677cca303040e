"""The entry points of the commands. Interrupt handling comes before any import: Ctrl-C prints a line, no traceback.

Before this module runs, Python itself starts (about 0.05 s), and an interrupt shows Python's own message.
"""

from __future__ import annotations

import _thread
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

# How long a dropped interrupt is delayed: by then the callback that dropped it has usually ended.
_RETRY_SECONDS = 0.01


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``isthmus``; the exit status is 2 for bad input."""

    def run() -> int:
        from isthmus.tools import commands

        return commands.run(sys.argv[1:] if arguments is None else arguments)

    return _interruptible("isthmus", run)


def _tool(command: str) -> Callable[..., int]:
    """Return the entry point of the tool of QNN with the name of a subcommand, such as ``qnn-net-run``."""

    def tool(arguments: Sequence[str] | None = None) -> int:
        def run() -> int:
            from isthmus.tools import commands

            return commands.run_under_its_own_name(command, arguments)

        return _interruptible(f"qnn-{command}", run)

    tool.__name__ = command.replace("-", "_")
    return tool


net_run = _tool("net-run")
context_binary_generator = _tool("context-binary-generator")
throughput_net_run = _tool("throughput-net-run")
context_binary_utility = _tool("context-binary-utility")
profile_viewer = _tool("profile-viewer")


def _interruptible(prog: str, run: Callable[[], int]) -> int:
    """Run the command `prog` until it ends or is interrupted, perhaps while its modules are still being loaded."""
    before, sys.unraisablehook = sys.unraisablehook, _interrupt_again
    try:
        return run()
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return 130
    finally:
        sys.unraisablehook = before


def _interrupt_again(dropped: Any) -> None:
    """Repeat an interrupt that Python has dropped because it came in a weakref callback or a destructor."""
    if not issubclass(dropped.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
        return
    import signal

    def interrupt(thread: int) -> None:
        time.sleep(_RETRY_SECONDS)
        signal.pthread_kill(thread, signal.SIGINT)

    _thread.start_new_thread(interrupt, (_thread.get_ident(),))


if __name__ == "__main__":
    sys.exit(main())
