"""A headless Chromium, driven over WebDriver."""

import base64
import json
import os
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

from ch_sink.local import free_port
from tests.real.stand.daemon import Daemon
from tests.real.stand.programs import programs


class Browser:
    """One window. Every method raises RuntimeError with the browser's own message."""

    def __init__(self) -> None:
        """Raises Missing where there is neither Chromium nor a way to install it."""
        self._driver, self._chromium = programs("chromium-driver chromium", ["chromedriver", "chromium"])

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="ch_sink-browser-"))
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        self._daemon = Daemon("chromedriver", self._folder, [str(self._driver), f"--port={port}"])
        self._daemon.start(self._ready)
        arguments = [
            "--headless=new",
            "--disable-gpu",
            "--window-size=1280,900",
            f"--user-data-dir={self._folder}/user",
        ]
        if os.getuid() == 0:
            arguments.append("--no-sandbox")
        options = {"binary": shutil.which("chromium") or str(self._chromium), "args": arguments}
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        self._session = self._ask("POST", "/session", wanted)["sessionId"]
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._ask("DELETE", f"/session/{self._session}")
        finally:
            self._daemon.stop()
            shutil.rmtree(self._folder, ignore_errors=True)

    def open(self, url: str) -> None:
        """Load a page."""
        self._in("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of a function in the page; returns what it returns."""
        return self._in("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        """The visible text of the first element that matches, empty if there is none."""
        return str(self.run("const e = document.querySelector(arguments[0]); return e ? e.innerText : ''", selector))

    def click(self, selector: str) -> None:
        """Click the first element that matches."""
        self._in("POST", f"/element/{self._element(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Replace what an input holds."""
        found = self._element(selector)
        self._in("POST", f"/element/{found}/clear", {})
        self._in("POST", f"/element/{found}/value", {"text": text})

    def press(self, key: str) -> None:
        """Press a key on the element that has the focus; special keys are those of WebDriver."""
        found = next(iter(self._in("GET", "/element/active").values()))
        self._in("POST", f"/element/{found}/value", {"text": key})

    def devtools(self, command: str, parameters: Any) -> Any:
        """Run a command of the DevTools protocol."""
        return self._in("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def until(self, script: str, seconds: float = 20.0) -> Any:
        """Wait until an expression in the page is true; returns it."""
        deadline = time.monotonic() + seconds
        while not (found := self.run(f"return {script}")):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not true after {seconds:.0f} s: {script}\n{self.text('body')}")
            time.sleep(0.1)
        return found

    def screenshot(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self._in("GET", "/screenshot"))

    def _element(self, selector: str) -> str:
        found = self._in("POST", "/element", {"using": "css selector", "value": selector})
        return str(next(iter(found.values())))

    def _ready(self) -> bool:
        try:
            return bool(self._ask("GET", "/status")["ready"])
        except OSError:
            return False

    def _in(self, method: str, path: str, body: Any = None) -> Any:
        return self._ask(method, f"/session/{self._session}{path}", body)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data=data, method=method, headers={"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.loads(error.read())["value"]["message"]) from error
