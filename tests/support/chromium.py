"""Headless Chromium, driven over two pipes by its DevTools protocol: messages of JSON, each ended by a zero byte."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.requirements import lacking

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
LAPTOP, PHONE = (1280, 800), (390, 844)
WITHOUT_NETWORK = ("file:", "about:", "data:")
SECONDS = 120
"""How long a page may take for anything, on a machine that is busy with other tests."""


def find() -> str:
    """Return the path of Chromium; without it the test is skipped, or fails if a browser is required."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        lacking("browser", "there is no Chromium on this machine")
    return found


class Page:
    """A page in a browser of its own.

    Attributes
    ----------
    problems
        What the page complained of so far: exceptions, errors on its console, and requests that it made.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session = ""
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer.get('error')}"
                return answer["result"]
            self._notice(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._answers, 1 << 20)
            assert data, "Chromium has ended"
            self._rest += data
        first, _, self._rest = self._rest.partition(b"\0")
        return json.loads(first)

    def _notice(self, event: dict[str, Any]) -> None:
        method, given = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = given["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning"):
            self.problems.append(str(given["args"]))
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.problems.append(given["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not given["request"]["url"].startswith(WITHOUT_NETWORK):
            self.problems.append(f"request for {given['request']['url']}")

    def open(self, path: Path, viewport: tuple[int, int] = LAPTOP, dark: bool = False, touch: bool = False) -> None:
        """Open a file at a size, in light or dark colours, and wait until it is drawn."""
        width, height = viewport
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=2 if touch else 1, mobile=touch,
        )  # fmt: skip
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.absolute().as_uri())
        self.wait("document.readyState === 'complete' && document.querySelector('main') !== null")
        self.settle()

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + SECONDS
        while not self.evaluate(condition):
            assert time.monotonic() < end, f"never true: {condition}; {self.problems}"

    def settle(self) -> None:
        """Wait until what was asked for is painted: two frames."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send an event of the mouse: mouseMoved, mousePressed, mouseReleased, mouseWheel."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """Click with the left button."""
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def touch(self, kind: str, *points: tuple[float, float]) -> None:
        """Send an event of fingers: touchStart, touchMove, touchEnd."""
        given = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
        self.call("Input.dispatchTouchEvent", type=kind, touchPoints=given)

    def key(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        code = {"Enter": 13, "Tab": 9}.get(key, 0)
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        """Type a text into the focused field."""
        self.call("Input.insertText", text=text)

    def screenshot(self, whole: bool = False) -> bytes:
        """Return what is shown, or the whole page, as PNG."""
        self.settle()
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])


@contextmanager
def browser() -> Iterator[Page]:
    """Start a browser, and end it with the block."""
    program = find()
    # Chromium reads commands from descriptor 3 and writes answers to 4.
    (its_in, commands), (answers, its_out) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--hide-scrollbars", "--disable-background-networking", f"--user-data-dir={profile}",
            "--remote-debugging-pipe", "--force-color-profile=srgb",
        ]  # fmt: skip

        def connect() -> None:
            # First to numbers above both, which may be 3 and 4 in another order.
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (its_in, its_out)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        process = subprocess.Popen(
            [program, *options], preexec_fn=connect, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            for fd in (its_in, its_out):
                os.close(fd)
            page = Page(commands, answers)
            yield page
            page._session = ""
            page.call("Browser.close")
        finally:
            for fd in (commands, answers):
                os.close(fd)
            # Without its pipe, Chromium ends by itself.
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
