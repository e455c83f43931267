"""Headless Chromium (Debian's): shows the look of a page and the requests that it makes."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

_SWITCHES = (
    *("headless=new", "disable-dev-shm-usage", "disable-gpu", "hide-scrollbars", "no-first-run"),
    *("disable-background-networking", "disable-component-update", "disable-default-apps", "disable-sync"),
    "no-sandbox",  # the sandbox refuses root, as in a container
    "force-device-scale-factor=1",
)
_PATIENCE_SECONDS = 300  # for a machine busy with other processes
_OUTSIDE = ("http:", "https:", "ws:", "wss:", "ftp:")
Scheme = Literal["light", "dark"]


@dataclass(frozen=True)
class Browser:
    """One window; `driver` is Selenium's, for operations not wrapped here."""

    driver: Chrome

    def open(self, address: str | Path, *, width: int = 1280, height: int = 900, scheme: Scheme = "light") -> None:
        """Load a file or an address on a screen of this size; earlier errors and requests are dropped."""
        # Not `mobile`: a phone zooms out until a page fits, so nothing would overflow.
        self._tell("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.requests()
        self.console_errors()
        self.driver.get(address.resolve().as_uri() if isinstance(address, Path) else address)

    def console_errors(self) -> list[str]:
        """Return the console messages since the last call: script errors, failed loads, policy violations."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in {"SEVERE", "WARNING"}]

    def requests(self) -> list[str]:
        """Return the addresses that the page requested since the last call, its own included."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        # The browser's own pages, such as a new tab, are not requests of the page.
        return [told["request"]["url"] for told in asked if not told["documentURL"].startswith("chrome:")]

    def requests_outside(self) -> list[str]:
        """Requests to other machines."""
        return [address for address in self.requests() if address.startswith(_OUTSIDE)]

    def overflow(self) -> int:
        """Pixels by which the page is wider than the screen."""
        return int(self.ask("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def faint_texts(self, least_contrast: float = 4.5) -> list[str]:
        """Texts that are hard to read: 4.5 is what WCAG 2.2 (1.4.3) asks for."""
        script = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")
        return list(self.driver.execute_script(script, least_contrast))

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        return self.driver.execute_script(f"return {expression}")

    def screenshot(self, path: Path) -> Path:
        """The whole page as PNG, down to its end."""
        size = self._tell("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16_000), "scale": 1}
        taken = self._tell("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return _write(path, taken["data"])

    def printed(self, path: Path) -> Path:
        """The page as a PDF of A4 paper."""
        taken = self._tell("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=True)
        return _write(path, taken["data"])

    def _tell(self, command: str, **arguments: object) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)


@contextmanager
def running_browser(profile: Path) -> Iterator[Browser]:
    """A browser with a fresh profile in the folder `profile`."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert program, "`make system` installs Chromium"
    assert driver, "`make system` installs its driver"
    options = ChromeOptions()
    options.binary_location = program
    for switch in (*_SWITCHES, f"user-data-dir={profile}"):
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = Service(driver, log_output=subprocess.DEVNULL, env={**os.environ, "HOME": str(profile)})
    window = Chrome(options=options, service=service)
    try:
        window.set_page_load_timeout(_PATIENCE_SECONDS)
        window.command_executor.client_config.timeout = _PATIENCE_SECONDS
        yield Browser(window)
    finally:
        window.quit()


def _write(path: Path, encoded: str) -> Path:
    path.write_bytes(base64.b64decode(encoded))
    return path
