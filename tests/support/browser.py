"""A real browser for tests: Chromium without a window, from the system's packages, driven by Selenium."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Browser", "browser"]

_INSTALL = Path(__file__).parents[2] / "scripts" / "system-install"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        self.driver.get(address)

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """On a screen of this width; up to 600 it is a phone's."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width <= 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements("css selector", selector)
        return found

    def click(self, selector: str) -> None:
        self._steady(lambda: self.find(selector).click())

    def confirm(self, selector: str) -> None:
        """Open the question whether it is meant, and say yes; a page that renewed itself has closed it again."""

        def act() -> None:
            if not self.all(f"{selector}[open]"):
                self.find(f"{selector} summary").click()
            self.find(f"{selector} button").click()

        self._steady(act)

    def write(self, selector: str, words: str) -> None:
        self._steady(lambda: self.find(selector).send_keys(words))

    def press(self, key: str) -> None:
        """A key of the keyboard, for whatever has the focus."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(key).perform()

    @property
    def text(self) -> str:
        return str(self._steady(lambda: self.find("body").text))

    def wait_for(self, words: str, seconds: float = 20) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, seconds, poll_frequency=0.1).until(lambda _: words in self.text)

    def _steady(self, act: Callable[[], Any], seconds: float = 10) -> Any:
        """Pages renew themselves: what was found a moment ago may belong to the page before this one by now."""
        from selenium.common.exceptions import WebDriverException

        deadline = time.monotonic() + seconds
        while True:
            try:
                return act()
            except WebDriverException as error:
                if not _of_another_page(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def complaints(self) -> list[str]:
        """What is on the browser's own console since it was last asked."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]


def _of_another_page(error: Exception) -> bool:
    """Whether the driver had an element that is no longer shown. It acts on none then, so trying again is safe."""
    from selenium.common import exceptions

    gone = (
        exceptions.StaleElementReferenceException,
        exceptions.NoSuchElementException,
        exceptions.ElementNotInteractableException,
    )
    # Chromium's driver has no class for an element whose page went away while it was looked at.
    return isinstance(error, gone) or "inspector error" in str(error)


@contextmanager
def browser(*, script: bool = True) -> Iterator[Browser]:
    """A browser, or skip the test with the reason why there is none. Without ``script`` pages cannot run any."""
    pytest.importorskip("selenium")
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = _program(_BROWSERS)
    # Root may not have a sandbox, and containers have little shared memory.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    if not script:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(_program(("chromedriver",))))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def _program(names: tuple[str, ...]) -> str:
    found = _found(names)
    if found is None and os.geteuid() == 0:
        package = "chromium-driver" if names == ("chromedriver",) else "chromium"
        other = "chromedriver" if names == ("chromedriver",) else "chromium"
        packages = (
            f"apt-get={package}",
            f"dnf={other}",
            f"apk={'chromium-chromedriver' if package != other else other}",
        )
        subprocess.run([str(_INSTALL), *packages], check=False, timeout=300, capture_output=True)
        found = _found(names)
    if found is None:
        pytest.skip("Chromium is not installed and cannot be: on Debian, apt-get install chromium chromium-driver")
    return found


def _found(names: tuple[str, ...]) -> str | None:
    places = [shutil.which(name) or shutil.which(name, path="/usr/lib/chromium") for name in names]
    return next((place for place in places if place), None)
