"""Chromium without a window, driven through its DevTools protocol: widths of telephones, both themes, screenshots.

The protocol is spoken over two pipes, so nothing but the standard library is needed, and no port.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHROMIUM: Final = shutil.which("chromium")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (apt-get install chromium)")

_FREE: Final = 64
"""Descriptors from here on are nobody's."""
# Chromium reads commands from 3 and answers on 4.
_START: Final = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execvp(sys.argv[3], sys.argv[3:])"
)
_OPTIONS: Final = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--hide-scrollbars")


class Browser:
    """One page; whatever it asks of a network or writes to its console is kept."""

    def __init__(self, commands: int, answers: int) -> None:
        self.errors: list[str] = []
        """What went wrong on the page, in its own words."""
        self.requests: list[str] = []
        """All that the page has loaded."""
        self._commands = os.fdopen(commands, "wb")
        self._answers = os.fdopen(answers, "rb")
        self._unread = b""
        self._count = 0
        self._session = ""
        self._fired: set[str] = set()
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def look(self, width: int, *, height: int = 900, dark: bool = False, calm: bool = False) -> None:
        """What the screen is like, and what its user prefers."""
        phone = width < 600
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        features = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce" if calm else "no-preference",
        }
        self._call(
            "Emulation.setEmulatedMedia", features=[{"name": name, "value": value} for name, value in features.items()]
        )

    def open(self, page: Path) -> None:
        """Opens a file and waits until it is loaded."""
        self._fired.discard("Page.loadEventFired")
        self._call("Page.navigate", url=page.resolve().as_uri())
        while "Page.loadEventFired" not in self._fired:
            self._take()

    def run(self, script: str) -> Any:
        """The value of an expression, or what its promise comes to."""
        done = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise AssertionError(done["exceptionDetails"])
        return done["result"].get("value")

    def wait_for(self, condition: str, timeout_s: float = 20) -> None:
        """Waits until an expression is true, also across a reload of the page."""
        limit = time.monotonic() + timeout_s
        while time.monotonic() < limit:
            with suppress(AssertionError):  # of a page that is just being left, or not all there yet
                if self.run(condition):
                    return
            time.sleep(0.05)
        raise AssertionError(f"not in {timeout_s} s: {condition}")

    def picture(self, path: Path) -> None:
        """A screenshot of the whole page."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        done = self._call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(done["data"]))

    def close(self) -> bool:
        """Has the browser end; false if it does not listen any more."""
        with suppress(AssertionError, OSError):
            self._session = ""
            self._call("Browser.close")
            return True
        return False

    def _call(self, method: str, **given: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": given}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while (answer := self._take()).get("id") != self._count:
            pass
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _take(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            more = os.read(self._answers.fileno(), 1 << 20)
            assert more, "chromium has ended"
            self._unread += more
        first, self._unread = self._unread.split(b"\0", 1)
        message: dict[str, Any] = json.loads(first)
        given = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(given["exceptionDetails"]))
            case "Log.entryAdded" if given["entry"]["level"] == "error":
                self.errors.append(given["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(given["request"]["url"])
            case str(event):
                self._fired.add(event)
        return message


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser of its own, which ends with the block."""
    assert CHROMIUM is not None
    theirs_in, ours_out = _pipe()
    ours_in, theirs_out = _pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [sys.executable, "-c", _START, str(theirs_in), str(theirs_out), CHROMIUM, *_OPTIONS]
        process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}"], pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        shown = None
        try:
            shown = Browser(ours_out, ours_in)
            yield shown
        finally:
            # One that is killed leaves its own children to others.
            if shown is None or not shown.close():
                process.terminate()
            process.wait(20)


def _pipe() -> tuple[int, int]:
    """Read and write ends, out of the way of the descriptors that the browser is given."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FREE) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
