"""Headless Chromium over its debugging pipe: open a file, look, run a script, take pictures. Standard library only."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Json = dict[str, object]

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)
PHONE, DESKTOP = (390, 844), (1280, 900)


def find_chromium() -> str | None:
    """Path of a Chromium on this machine."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


class Page:
    """One tab. Every message of the console, every exception and every request is kept."""

    def __init__(self, to_browser: int, from_browser: int, timeout_s: float = 30.0) -> None:
        self._write_fd, self._read_fd, self._timeout_s = to_browser, from_browser, timeout_s
        self._buffer, self._next_id, self._session = b"", 0, ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = str(self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, path: Path, size: tuple[int, int] = DESKTOP, dark: bool = False) -> None:
        """Show a file at a width and height in CSS pixels; returns when it has loaded and drawn."""
        self.complaints.clear()
        self.requests.clear()
        self._loaded = False
        width, height = size
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=size == PHONE)
        scheme = "dark" if dark else "light"
        self._call("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._call("Page.navigate", url=path.absolute().as_uri())
        deadline = time.monotonic() + self._timeout_s
        while not self._loaded:
            assert time.monotonic() < deadline, f"{path} did not load"
            self._dispatch(self._receive())
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def evaluate(self, script: str) -> object:
        """Value of an expression in the page; a promise is waited for."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        result = answer["result"]
        assert isinstance(result, dict)
        return result.get("value")

    def press(self, key: str) -> None:
        """Press a key where the focus is."""
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, path: Path) -> None:
        """PNG of the whole page."""
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(str(answer["data"])))

    def print_pdf(self) -> bytes:
        """The page as it prints on A4."""
        answer = self._call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(str(answer["data"]))

    def _call(self, method: str, **params: object) -> Json:
        self._next_id += 1
        number = self._next_id
        message: Json = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write_fd, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result = answer["result"]
                assert isinstance(result, dict)
                return result
            self._dispatch(answer)

    def _receive(self) -> Json:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read_fd], [], [], self._timeout_s)
            assert ready, f"no answer from the browser in {self._timeout_s} s"
            piece = os.read(self._read_fd, 1 << 16)
            assert piece, "the browser ended"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer = json.loads(message)
        assert isinstance(answer, dict)
        return answer

    def _dispatch(self, event: Json) -> None:
        params = event.get("params")
        assert isinstance(params, dict), event
        match event.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(params["args"]))
            case "Log.entryAdded":
                self.complaints.append(str(params["entry"]["text"]))
            case "Network.requestWillBeSent":
                self.requests.append(str(params["request"]["url"]))


@contextmanager
def browser_page(executable: str, profile: Path) -> Iterator[Page]:
    """A tab of a new browser with an empty profile; the browser is gone afterwards."""
    child_in, to_browser = os.pipe()
    from_browser, child_out = os.pipe()
    # The debugging pipe is fixed at descriptors 3 and 4; bash puts ours there, first moved out of its way.
    high_in, high_out = (fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (child_in, child_out))
    script = f'exec "$@" 3<&{high_in} 4>&{high_out}'
    command = ["bash", "-c", script, "bash", executable, *FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        command,
        pass_fds=(high_in, high_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
    )
    for descriptor in (child_in, child_out, high_in, high_out):
        os.close(descriptor)
    try:
        yield Page(to_browser, from_browser)
    finally:
        for descriptor in (to_browser, from_browser):  # a closed pipe ends the browser
            os.close(descriptor)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        process.kill()
        process.wait()
