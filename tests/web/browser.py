"""
A headless Chromium for tests, driven by Selenium: one for a whole module, since it takes a second to start.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("selenium")

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

__all__ = ("Browser", "browsing")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

ARGUMENTS = (
    "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
    "disable-component-update disable-sync disable-dev-shm-usage hide-scrollbars"
)

PATIENCE = 60.0
"""Seconds that something may take to appear."""


class Browser:
    """What tests ask of a page."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Open a page as somebody does who has never been there, and forget complaints of others."""
        self.driver.get("about:blank")
        self.complaints()  # of a server that is not there any more
        self.driver.get(url)

    def forget(self) -> None:
        """Forget what the page has stored."""
        self.run("sessionStorage.clear(); localStorage.clear()")

    def look(self, width: int = 1440, height: int = 1000, scheme: Literal["light", "dark"] = "light") -> None:
        """Be a screen of this size, with this preference, of somebody who wants nothing to move."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wishes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def reach(self, reachable: bool) -> None:
        """Let the network be there for the page, or not."""
        self.driver.execute_cdp_cmd("Network.enable", {})
        speed = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": not reachable} | speed)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """What an element says, whether it is in view or not."""
        found = self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector)
        assert isinstance(found, str)
        return found

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Wait until something holds; gives it."""
        return WebDriverWait(self.driver, PATIENCE, 0.1).until(lambda driver: holds(), what)

    def until_text(self, selector: str, wanted: str) -> None:
        """Wait until an element says something."""
        self.until(
            lambda: wanted in self.text(selector), f"{wanted!r} in {selector}: {self.text(selector)!r}"
        )

    def complaints(self) -> list[str]:
        """What the browser complained of since it was asked last: errors, and what the policy forbade."""
        log = self.driver.execute("getLog", {"type": "browser"})["value"]
        return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]

    def accessible_names(self, role: str) -> list[str]:
        """What a screen reader calls the things of this role."""
        nodes = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        shown = [node for node in nodes if not node.get("ignored") and node["role"]["value"] == role]
        return [node.get("name", {}).get("value", "") for node in shown]


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser with a fresh profile; the test is skipped where there is none."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)")
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (*ARGUMENTS.split(), f"user-data-dir={profile}"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
