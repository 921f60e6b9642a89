"""Chromium without a window, driven by its own protocol over the websocket that it opens on loopback.

Reference: https://chromedevtools.github.io/devtools-protocol/
"""

import asyncio
import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from ateplace.errors import LocalError

T = TypeVar("T")

NAMES = ("chromium", "chromium-browser", "google-chrome")
WITHOUT = "there is no Chromium here: install the distribution's package `chromium`"
QUIET = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-features=DialMediaRouteProvider,MediaRouter,OptimizationHints,Translate",
    "--hide-scrollbars",
    "--mute-audio",
    "--force-color-profile=srgb",
    "--remote-debugging-port=0",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)


def program() -> str:
    """Chromium's path; empty where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), "")


class Page:
    """One tab. Everything that it asks for, and everything that it complains of, is kept."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser = browser
        self._session = session
        self.requests: list[str] = []
        self.complaints: list[str] = []
        browser.sessions[session] = self._on_event
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def goto(self, url: str) -> None:
        """Begin to load a page; wait for what it must show, not for its end."""
        error = self.call("Page.navigate", url=url).get("errorText")
        if error:
            raise LocalError(f"{url}: {error}")

    def reload(self) -> None:
        self.call("Page.reload")

    def evaluate(self, script: str) -> Any:
        """The value of an expression; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        failed = answer.get("exceptionDetails")
        if failed:
            raise LocalError(f"{script[:200]}: {failed}")
        return answer["result"].get("value")

    def wait(self, script: str, timeout: float = 20.0) -> Any:
        """Ask until an expression is truthy."""
        deadline = time.monotonic() + timeout
        while not (value := self.evaluate(f"(() => {{ try {{ return {script} }} catch {{ return null }} }})()")):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {timeout:.0f} s for {script}; {self.complaints}")
            time.sleep(0.05)
        return value

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def click(self, selector: str) -> None:
        """A real click in the middle of an element."""
        script = f"""(() => {{
            const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{ block: "center" }});
            const box = found.getBoundingClientRect();
            return [box.left + box.width / 2, box.top + box.height / 2];
        }})()"""
        self.click_at(*self.evaluate(script))

    def click_at(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """One key by its name, e.g. `ArrowRight`."""
        code = {"Enter": 13, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Escape": 27}[key]
        typed = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **typed)

    def size(self, width: int, height: int, *, scale: float = 1, mobile: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile
        )

    def scheme(self, name: str) -> None:
        """`light` or `dark`, as the system would say."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path: Path | None = None) -> bytes:
        image = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        if path:
            path.write_bytes(image)
        return image

    def _on_event(self, method: str, event: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.complaints.append(str(details.get("exception", {}).get("description") or details["text"]))
        elif method == "Runtime.consoleAPICalled" and event["type"] in {"error", "warning", "assert"}:
            self.complaints.append(" ".join(str(one.get("value", one.get("description"))) for one in event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in {"error", "warning"}:
            self.complaints.append(f"{event['entry']['text']} {event['entry'].get('url', '')}")


class Browser:
    """Calls wait for their answers; events arrive on a thread of their own."""

    def __init__(self, url: str) -> None:
        self.sessions: dict[str, Callable[[str, dict[str, Any]], None]] = {}
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._connect(url))

    def _run(self, work: Awaitable[T]) -> T:
        async def main() -> T:
            return await asyncio.wait_for(work, 60)

        return asyncio.run_coroutine_threadsafe(main(), self._loop).result()

    async def _connect(self, url: str) -> None:
        self._http = aiohttp.ClientSession()
        self._socket = await self._http.ws_connect(url, max_msg_size=0)
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            data = json.loads(message.data)
            if "id" in data:
                waiting = self._answers.pop(data["id"], None)
                if waiting and not waiting.done():
                    waiting.set_result(data)
            elif handler := self.sessions.get(data.get("sessionId", "")):
                handler(data["method"], data["params"])

    async def _call(self, method: str, session: str, parameters: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        where = {"sessionId": session} if session else {}
        await self._socket.send_json({"id": number, "method": method, "params": parameters, **where})
        found: dict[str, Any] = await answer
        return found

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        answer = self._run(self._call(method, session, parameters))
        if "error" in answer:
            raise LocalError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    @contextmanager
    def page(self) -> Iterator[Page]:
        """A tab with cookies and storage of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        try:
            yield Page(self, session)
        finally:
            self.sessions.pop(session, None)
            self.call("Target.disposeBrowserContext", browserContextId=context)

    def close(self) -> None:
        async def close() -> None:
            await self._socket.close()
            self._reader.cancel()
            await self._http.close()

        self._run(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def browsing() -> Iterator[Browser]:
    """A Chromium for the length of a block, with nothing of the user's."""
    with tempfile.TemporaryDirectory(prefix="ateplace-chromium-", ignore_cleanup_errors=True) as profile:
        argv = [program(), *QUIET, f"--user-data-dir={profile}"]
        if os.geteuid() == 0:
            argv.append("--no-sandbox")  # Chromium refuses to run as root with it
        process = subprocess.Popen([*argv, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port = Path(profile) / "DevToolsActivePort"
            deadline = time.monotonic() + 60
            while not (port.exists() and len(lines := port.read_text().split()) == 2):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise LocalError(f"Chromium did not open its port (exit code {process.returncode})")
                time.sleep(0.05)
            browser = Browser(f"ws://127.0.0.1:{lines[0]}{lines[1]}")
            try:
                yield browser
            finally:
                browser.close()
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
