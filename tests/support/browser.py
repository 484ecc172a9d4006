"""A headless Chromium, for tests of the page."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from support.needs import Need, lacking
from support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

# As WebDriver has them.
TAB, ENTER, SHIFT, CONTROL, ESCAPE = "\ue004", "\ue007", "\ue008", "\ue009", "\ue00c"

_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # a container's root may not make one
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
)


def require_browser() -> None:
    """Skip where Debian's ``chromium`` and ``chromium-driver`` are not installed."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            lacking(Need.PROGRAM, program)


class Browser:
    """One tab. Elements are found by CSS selectors, and waited for."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, url: str, ready: str = ".composer textarea") -> None:
        self.driver.get(url)
        self.find(ready)

    def run(self, script: str, *values: object) -> Any:
        """What an ``async`` function with this body returns; ``values`` are its ``given``."""
        wrapped = (
            "const done = arguments[arguments.length - 1]; const given = [...arguments];"
            f"(async () => {{ {script} }})().then((value) => done([value, null]),"
            " (error) => done([null, String(error.stack ?? error)]));"
        )
        value, error = self.driver.execute_async_script(wrapped, *values)
        assert error is None, error
        return value

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements("css selector", selector)

    def find(self, selector: str) -> WebElement:
        self.until(lambda: self.all(selector), selector)
        return self.all(selector)[0]

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(given[0])].map((e) => e.textContent)"
        found: list[str] = self.run(script, selector)
        return found

    def press(self, *keys: str) -> None:
        """Type into whatever has the focus."""
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.driver, duration=0).send_keys(key).perform()

    def press_with(self, held: str, key: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver, duration=0).key_down(held).send_keys(key).key_up(held).perform()

    def focused(self) -> str:
        """The name of what has the focus."""
        name: str = self.run(
            "const e = document.activeElement;"
            "return e.getAttribute('aria-label') ?? e.placeholder ?? e.textContent.trim();"
        )
        return name

    def tab_to(self, name: str, backwards: bool = False) -> None:
        """Move the focus by the keyboard alone."""
        seen = []
        for _ in range(60):
            if backwards:
                self.press_with(SHIFT, TAB)
            else:
                self.press(TAB)
            seen.append(self.focused())
            if seen[-1].startswith(name):
                return
        raise AssertionError(f"the keyboard does not reach {name!r}, but {seen}")

    def until(self, condition: Callable[[], object], what: str) -> None:
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < PATIENCE_S, f"{what}: not after {PATIENCE_S} s"
            time.sleep(0.05)

    def complaints(self) -> list[str]:
        """What the console has of errors and warnings since the last call, but for answers that are
        refusals, which browsers list as well."""
        entries: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [e["message"] for e in entries if e["source"] != "network" and e["level"] != "INFO"]


@contextmanager
def browser(width: int = 1280, height: int = 860) -> Iterator[Browser]:
    """A browser with nothing in its storage; skips the test where there is none."""
    require_browser()
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for each in (*_OPTIONS, f"--window-size={width},{height}"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(PATIENCE_S)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
