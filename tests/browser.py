"""A real browser for tests: Debian's chromium, headless, spoken to over the DevTools protocol with what Python brings."""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

BINARY = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
TIMEOUT_S = 60


class WebSocket:
    """Text messages over one connection to a server on this machine."""

    def __init__(self, url: str) -> None:
        host, _, path = url.removeprefix("ws://").partition("/")
        name, _, port = host.partition(":")
        self.socket = socket.create_connection((name, int(port)), timeout=TIMEOUT_S)
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        lines = [f"GET /{path} HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", ""]
        self.socket.sendall("\r\n".join(lines).encode())
        self.file = self.socket.makefile("rb")
        while self.file.readline() not in (b"\r\n", b""):
            pass

    def send(self, text: str) -> None:
        data, mask = text.encode(), secrets.token_bytes(4)
        size = len(data)
        head = bytes([0x81]) + (
            bytes([0x80 | size]) if size < 126 else bytes([0xFE]) + size.to_bytes(2) if size < 1 << 16 else bytes([0xFF]) + size.to_bytes(8)
        )
        padded = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(data) ^ int.from_bytes(padded)).to_bytes(size)
        self.socket.sendall(head + mask + masked)

    def receive(self) -> str:
        parts = []
        while True:
            first, second = self.file.read(2)
            size = second & 0x7F
            size = int.from_bytes(self.file.read(2 if size == 126 else 8)) if size > 125 else size
            data = self.file.read(size)
            if first & 0x0F in (0, 1, 2):
                parts.append(data)
                if first & 0x80:
                    return b"".join(parts).decode()

    def close(self) -> None:
        self.file.close()
        self.socket.close()


class Browser:
    """One page. ``problems``: what the console reported; ``requests``: addresses that the page asked for."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="browser-")
        self.downloads = Path(self.folder) / "downloads"
        self.downloads.mkdir()
        command = [str(BINARY), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-port=0", f"--user-data-dir={self.folder}/profile"]
        self.process = subprocess.Popen([*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.last, self.problems, self.requests = 0, [], []  # type: ignore[var-annotated]
        self.socket = WebSocket(self._address())
        found = self.call("Target.getTargets")["targetInfos"]
        target = next(info["targetId"] for info in found if info["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))

    def _address(self) -> str:
        port = Path(self.folder) / "profile" / "DevToolsActivePort"
        end = time.monotonic() + TIMEOUT_S
        while not port.exists() or len(port.read_text().split()) < 2:
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError("chromium did not start")
            time.sleep(0.05)
        number, path = port.read_text().split()
        return f"ws://127.0.0.1:{number}{path}"

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        session = getattr(self, "session", None)
        self.socket.send(
            json.dumps(message | ({"sessionId": session} if session and not method.startswith(("Target.", "Browser.")) else {}))
        )
        while True:
            answer = json.loads(self.socket.receive())
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, page: Path, width: int = 1280, height: int = 1000, theme: str = "light") -> None:
        self.problems.clear()
        self.requests.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.call("Page.navigate", url=page.resolve().as_uri())
        end = time.monotonic() + TIMEOUT_S
        while self.run("document.readyState + location.href") != f"complete{page.resolve().as_uri()}":
            assert time.monotonic() < end, "the page did not load"
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """The value of ``script``, awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", script[:200]))
        return answer["result"].get("value")

    def downloaded(self, name: str) -> bytes:
        """The file ``name`` that the page saved, once it is whole."""
        path, end = self.downloads / name, time.monotonic() + TIMEOUT_S
        while not path.exists() or path.with_suffix(path.suffix + ".crdownload").exists() or not path.stat().st_size:
            assert time.monotonic() < end, f"{name} was not downloaded: {os.listdir(self.downloads)}"
            time.sleep(0.02)
        content = path.read_bytes()
        path.unlink()
        return content

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(TIMEOUT_S)
        shutil.rmtree(self.folder, ignore_errors=True)
