"""Makes the pictures of docs/page.md from a real run: a server, a browser, and some load.

    python benchmarks/page_screenshots.py SmolLM2-135M-Instruct.Q4_1.gguf docs/images

Needs Debian's ``chromium`` and ``chromium-driver``, and PyPI's ``selenium``.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PATIENCE_S = 300.0
LOAD_S = 110.0
"""How long there are requests before the engine's view is taken: nearly all that it shows."""
QUESTIONS = (
    "Name three rivers of France, as a list.",
    "Write a Python function that returns the average of a list of numbers.",
)
TOPICS = ("rivers", "dams", "turbines", "canals", "weirs", "locks", "mills", "springs")
OPTIONS = {"temperature": 0, "max_tokens": 160}


class Page:
    """The page in a headless browser."""

    def __init__(self, url: str) -> None:
        from selenium.webdriver import Chrome, ChromeOptions, ChromeService

        options = ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for each in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
            options.add_argument(each)
        self.driver: Any = Chrome(options, ChromeService(shutil.which("chromedriver")))
        self.driver.get(url)
        self.run("localStorage.clear()")

    def run(self, script: str, *values: object) -> Any:
        return self.driver.execute_script(script, *values)

    def wait(self, condition: str) -> None:
        """Wait until an expression of JavaScript is true."""
        began = time.monotonic()
        while not self.run(f"return {condition}"):
            if time.monotonic() - began > PATIENCE_S:
                raise TimeoutError(f"not after {PATIENCE_S:g} s: {condition}")
            time.sleep(0.1)

    def go(self, path: str) -> None:
        """Follow a link of the frame: what was drawn stays."""
        self.run("document.querySelector(`nav a[href='${arguments[0]}']`).click()", path)

    def look(self, width: int, height: int, scheme: str) -> None:
        command = self.driver.execute_cdp_cmd
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        command("Emulation.setDeviceMetricsOverride", size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        command("Emulation.setEmulatedMedia", {"features": [feature]})
        time.sleep(1)

    def picture(self, path: Path) -> None:
        made = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        path.write_bytes(base64.b64decode(made["data"]))
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")

    def ask(self, question: str) -> None:
        self.run(
            "const input = document.querySelector('.composer textarea');"
            "input.value = arguments[0];"
            "input.form.requestSubmit()",
            question,
        )
        self.wait("document.querySelector('[aria-busy]') !== null")
        self.wait("document.querySelector('[aria-busy]') === null")


@contextlib.contextmanager
def served(model: str, threads: int) -> Iterator[str]:
    """The address of a server of ``model`` that drafts from what was written before."""
    command = [sys.executable, "-m", "penstock", "serve", model, "--port", "0"]
    command += ["--threads", str(threads), "--speculative", "ngram", "--no-access-log"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"(http://\S+?)/v1", line):
                yield found[1]
                return
        raise RuntimeError("the server did not start")
    finally:
        process.terminate()
        process.wait()


def request(url: str, topic: str, number: int) -> None:
    system = "You are a guide to the waterways of Europe. " * 12
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": f"Say something about {topic}, number {number}."},
    ]
    body = json.dumps({"messages": messages, **OPTIONS}).encode()
    headers = {"content-type": "application/json"}
    asked = urllib.request.Request(f"{url}/v1/chat/completions", body, headers)
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
        answer.read()


def load(url: str, stop: threading.Event) -> None:
    """Requests in waves, until told to stop."""
    with ThreadPoolExecutor(len(TOPICS)) as pool:
        number = 0
        while not stop.is_set():
            number += 1
            wave = 2 + number % (len(TOPICS) - 1)
            list(pool.map(lambda topic: request(url, topic, number), TOPICS[:wave]))  # noqa: B023
            stop.wait(1.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("model", help="a model for chats")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    with served(args.model, args.threads) as url:
        page = Page(url)
        try:
            take(page, url, args.folder)
        finally:
            page.driver.quit()


def take(page: Page, url: str, folder: Path) -> None:
    # The options that the dialog would set, so that pictures of two runs are alike.
    page.run(
        "const id = 'docs';"
        "localStorage.setItem('penstock.conversation/' + id, JSON.stringify({"
        "format: 'penstock.conversation.1', id, title: '', nodes: {}, chosen: {},"
        "options: arguments[0]}))",
        OPTIONS,
    )
    page.driver.get(url)
    page.wait("document.querySelector('.conversation') !== null")
    page.run("document.querySelector('.conversation').click()")
    for question in QUESTIONS:
        page.ask(question)
    page.look(1280, 800, "light")
    page.picture(folder / "chat.png")
    page.look(400, 800, "dark")
    page.picture(folder / "chat-narrow.png")
    page.look(1280, 800, "dark")
    page.go("/engine")
    stop = threading.Event()
    loading = threading.Thread(target=load, args=(url, stop))
    loading.start()
    try:
        time.sleep(LOAD_S)
        page.picture(folder / "engine.png")
        page.look(400, 800, "light")
        page.picture(folder / "engine-narrow.png")
    finally:
        stop.set()
        loading.join()
    page.look(1280, 800, "light")
    page.go("/docs")
    page.wait("document.querySelectorAll('.operation').length > 1")
    page.run("document.querySelectorAll('.operation summary')[1].click()")
    page.look(1280, 800, "light")
    page.picture(folder / "api.png")


if __name__ == "__main__":
    main()
