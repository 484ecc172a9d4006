"""The page in a browser: what a reader sees, with the keyboard alone, and what never happens."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from support import byte_tokenizer
from support.browser import CONTROL, ENTER, ESCAPE, TAB, Browser
from support.chat_page import answered, ask, give_tool
from support.http_client import Server, running
from support.needs import needs_native
from support.served import serving

pytestmark = pytest.mark.slow

KEY = "users-key"
LENGTH = 20_000
HOSTILE = """<script>window.harmed = 1</script>
<img src=x onerror="window.harmed = 2"> <b onclick=alert(1)>bold</b>

# <svg onload="window.harmed = 3">

[click](javascript:window.harmed=4) [data](data:text/html,hi) [fine](https://example.org/a?b=1)
![picture](https://example.org/x.png)

```html
</code></pre><script>window.harmed = 5</script>
```

| <i>a</i> | `<u>b</u>` |
|---|---|
| <style>*{display:none}</style> | ok |
"""


def figures(page: Browser) -> str:
    return page.texts(".message.assistant:last-child .figures")[0]


def test_an_answer_streams_and_stops(page: Browser) -> None:
    ask(page, "Hello")
    page.until(lambda: len(page.texts(".assistant .text")[0]) > 20, "the answer begins")
    assert page.all("[aria-busy]")
    page.press(ESCAPE)
    answered(page)
    assert "stopped" in figures(page)
    assert "tokens/s" in figures(page)
    assert "first after" in figures(page)
    came = page.texts(".assistant .text")[0]
    page.open(page.driver.current_url)  # what was said is still there when the page is loaded anew
    page.find(".conversation").click()
    assert page.texts(".assistant .text")[0] == came


@pytest.mark.parametrize(
    ("path", "ready"), [("", ".composer"), ("engine", ".engine"), ("docs", ".api")]
)
def test_the_page_itself_does_not_scroll(
    page: Browser, long_server: Server, path: str, ready: str
) -> None:
    """What is longer than the window scrolls within the frame."""
    page.open(f"{long_server.url}/{path}", ready)
    beyond = page.run(
        "const { scrollHeight, clientHeight } = document.documentElement;"
        "return scrollHeight - clientHeight;"
    )
    assert beyond == 0


def test_the_keyboard_alone_suffices(page: Browser) -> None:
    assert page.focused().startswith("Message")
    page.press("SAY<<one>>", ENTER)
    answered(page)
    page.tab_to("Edit", backwards=True)
    page.press(ENTER)
    assert page.focused() == "Edit the message"
    page.press_with(CONTROL, "a")
    page.press("SAY<<two>>", ENTER)
    page.until(lambda: page.texts(".assistant .text") == ["two"], "the other branch")
    answered(page)
    assert page.texts(".user .branches span") == ["2/2"]
    page.tab_to("Branch before", backwards=True)
    page.press(ENTER)
    page.until(lambda: page.texts(".assistant .text") == ["one"], "the branch before")
    page.tab_to("Another answer")
    page.press(ENTER)
    page.until(lambda: page.texts(".assistant .branches span") == ["2/2"], "another answer")
    answered(page)
    page.tab_to("Options of this conversation")
    page.press(ENTER)
    page.find("dialog[open]")
    page.press(ESCAPE)
    page.until(lambda: not page.all("dialog"), "the dialog is closed")
    assert page.focused() == "Options of this conversation"
    page.tab_to("Engine", backwards=True)
    page.press(ENTER)
    page.until(lambda: page.focused() == "Engine", "the view of the engine")
    assert page.driver.current_url.endswith("/engine")


def test_what_has_the_focus_can_be_seen(page: Browser) -> None:
    """Every button, link and field has an outline, or its frame has another colour."""
    for _ in range(14):
        page.press(TAB)
        seen = page.run(
            "const e = document.activeElement, s = getComputedStyle(e);"
            "const framed = e === document.body || e.closest('.composer') !== null;"
            "return framed || s.outlineStyle !== 'none';"
        )
        assert seen, page.focused()


def test_hostile_answers_are_text(page: Browser) -> None:
    ask(page, f"SAY<<{HOSTILE}>>")
    answered(page)
    assert page.run("return window.harmed ?? null") is None
    made = page.run(
        "const made = document.querySelectorAll('.message .text *:not(.code-head *)');"
        "return [...new Set([...made].map((e) => e.tagName))].sort();"
    )
    assert not {"SCRIPT", "IMG", "STYLE", "B", "SVG", "I", "U", "svg"} & set(made)
    links = page.run("return [...document.querySelectorAll('.assistant a')].map((e) => e.href)")
    assert links == ["https://example.org/a?b=1", "https://example.org/x.png"]
    text = page.texts(".assistant .text")[0]
    for part in ("<script>window.harmed = 1</script>", "<svg onload=", "javascript:window.harmed"):
        assert part in text


def test_markup_cannot_be_made_of_text(page: Browser) -> None:
    refused = page.run(
        "try { document.body.innerHTML = '<p>x</p>'; return false; } catch { return true; }"
    )
    assert refused
    page.complaints()


def test_a_paste_of_megabytes_is_closed(page: Browser) -> None:
    page.run(
        """
        const input = document.querySelector('.composer textarea');
        const data = new DataTransfer();
        data.setData('text/plain', 'a line of some text\\n'.repeat(250_000));
        input.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, cancelable: true }));
        """
    )
    assert page.texts(".composer .attachments li span") == ["Pasted text", "5.0 MB"]
    page.press("What is this?", ENTER)
    page.find(".assistant .error")  # more than this server takes
    page.find(".user .attachment summary").click()
    page.until(lambda: page.texts(".attachment pre"), "its beginning")
    assert len(page.texts(".attachment pre")[0]) == 20_000
    page.find(".notice")  # nor does it fit into the storage


def test_search_export_and_import(page: Browser, tmp_path: Path) -> None:
    ask(page, "SAY<<of rivers and weirs>>")
    answered(page)
    page.find(".new").click()
    ask(page, "SAY<<of mountains>>")
    answered(page)
    search = page.find(".sidebar input[type=search]")
    search.send_keys("weirs rivers")
    page.until(lambda: len(page.all(".conversations .conversation")) == 1, "one is found")
    assert "weirs" in page.texts(".conversation .note")[0]
    exported = page.run(
        "const { Store } = await import('/page/chat/store.js');"
        "return new Store(localStorage).export();"
    )
    assert len(json.loads(exported)["conversations"]) == 2
    file = tmp_path / "conversations.json"
    file.write_text(exported)
    page.driver.execute_script("localStorage.clear()")
    page.open(page.driver.current_url)
    assert not page.all(".conversation")
    page.run("document.querySelector('.sidebar input[type=file]').hidden = false")
    page.find(".sidebar input[type=file]").send_keys(str(file))
    page.until(lambda: len(page.all(".conversation")) == 2, "both are back")
    file.write_text('{"conversations": [{"format": "other"}]}')
    page.find(".sidebar input[type=file]").send_keys(str(file))
    page.until(lambda: "cannot be imported" in page.texts("#notices")[0], "why it is refused")
    assert len(page.all(".conversation")) == 2


def test_a_deleted_conversation_can_be_had_back(page: Browser) -> None:
    ask(page, "SAY<<one>>")
    answered(page)
    page.tab_to("Delete", backwards=True)
    page.press(ENTER)
    page.until(lambda: not page.all(".conversation"), "it is gone")
    page.find(".notice button").click()
    page.until(lambda: page.all(".conversation"), "it is back")


def test_a_deleted_conversation_stays_away_from_its_answer(page: Browser) -> None:
    ask(page, "a" * 200)
    page.until(lambda: page.texts(".message.assistant .text")[0], "it streams")
    page.tab_to("Delete", backwards=True)
    page.press(ENTER)
    page.until(lambda: not page.all("[aria-busy]"), "nothing more comes")
    page.until(lambda: "stopped" in page.texts("#announcements")[0], "the answer has ended")
    assert not page.all(".conversation")
    assert page.run("return Object.keys(localStorage).filter((key) => key.includes('/'))") == []


def test_the_engines_view_moves(page: Browser, long_server: Server) -> None:
    page.open(f"{long_server.url}/engine", ".panel canvas")
    empty = page.run("return document.querySelector('.panel canvas').toDataURL()")
    body = {"model": "fake", "prompt": "abc", "max_tokens": 500}
    asking = threading.Thread(target=long_server.post, args=("/v1/completions", body))
    asking.start()
    page.until(lambda: page.texts(".headlines .value")[0][0] in "123456789", "tokens/s")
    page.until(lambda: page.texts(".headlines .value")[1] == "1", "one runs")
    asking.join()
    drawn = page.run("return document.querySelector('.panel canvas').toDataURL()")
    assert drawn != empty
    label = page.find(".panel canvas").get_attribute("aria-label")
    assert label is not None
    assert label.startswith("Throughput, tokens per second: Generated ")
    assert "tokens/s" in page.texts(".strip")[0]


def test_the_api_is_readable(page: Browser, long_server: Server) -> None:
    page.open(f"{long_server.url}/docs", ".operation")
    paths = page.texts(".operation .path")
    assert set(paths) == set(long_server.http.get("/openapi.json").json()["paths"])
    page.run("document.querySelectorAll('.operation').forEach((each) => { each.open = true; })")
    page.until(lambda: len(page.all(".operation-body")) == len(paths), "all are opened")
    fields = page.texts(".operation th code")
    assert {"messages", "temperature", "step_seconds"} <= set(fields)


@pytest.mark.parametrize("path", ["/", "/engine", "/docs"])
def test_nothing_is_wider_than_a_telephone(page: Browser, long_server: Server, path: str) -> None:
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False},
    )
    try:
        page.open(long_server.url + path, "main > :not([hidden])")
        assert page.run("return document.documentElement.scrollWidth") <= 400
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_key_is_asked_for_and_kept_in_memory(chrome: Browser, tokenizer_folder: Path) -> None:
    with running(tokenizer_folder, 1, api_keys=KEY) as server:
        chrome.open(server.url, "dialog input")
        assert chrome.focused() == "" or chrome.all("dialog input:focus")
        chrome.press("wrong-key", ENTER)
        chrome.until(lambda: chrome.texts("dialog .error"), "it is refused")
        chrome.press(KEY, ENTER)
        chrome.find(".composer textarea")
        chrome.until(lambda: not chrome.all("dialog"), "it is taken")
        ask(chrome, "SAY<<hello>>")
        chrome.until(lambda: chrome.texts(".assistant .text") == ["hello"], "the answer")
        kept = chrome.run(
            "return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie,"
            " location.href, history.state])"
        )
        assert "hello" in kept
        assert KEY not in kept
        chrome.open(server.url, "dialog input")  # a page that is loaded anew has forgotten it
        assert chrome.complaints() == []


def test_a_server_that_dies_and_returns(chrome: Browser, tokenizer_folder: Path) -> None:
    with running(tokenizer_folder, 20, max_model_len=LENGTH) as server:
        chrome.open(server.url)
        ask(chrome, "Hello")
        chrome.until(lambda: chrome.texts(".assistant .text") > [""], "the answer begins")
        port = int(server.url.rpartition(":")[2])
        server.process.kill()
        server.process.wait(10)
        chrome.until(lambda: chrome.texts(".assistant .error"), "the answer failed")
        chrome.until(lambda: "Trying again" in chrome.texts(".trouble")[0], "the page says so")
    with running(tokenizer_folder, 1, max_model_len=LENGTH, port=port):
        chrome.until(lambda: not chrome.texts(".trouble")[0], "the page has found it")
        chrome.find('[aria-label="Try again"]').click()
        chrome.until(lambda: len(chrome.texts(".assistant .text")[0]) > 20, "another answer")
        chrome.press(ESCAPE)
        answered(chrome)
        assert chrome.complaints() == []


def test_reasoning_and_calls_of_tools(chrome: Browser, tool_server: Server) -> None:
    call = '<tool_call>{"name": "f", "arguments": {"city": "Ulm"}}</tool_call>'
    chrome.open(tool_server.url)
    give_tool(chrome)
    ask(chrome, f"SAY<<<think>I think.</think>Wait. {call}>>")
    answered(chrome)
    assert chrome.texts(".reasoning .markdown") == ["I think."]
    assert chrome.texts(".call code") == ["f"]
    assert json.loads(chrome.texts(".call pre")[0]) == {"city": "Ulm"}
    chrome.until(lambda: chrome.focused() == "Result of f", "its result is asked for")
    ask(chrome, "sunny SAY<<It is sunny.>>")
    chrome.until(lambda: chrome.texts(".assistant .text")[-1] == "It is sunny.", "the answer")
    assert chrome.texts(".tool .text") == ["sunny SAY<<It is sunny.>>"]
    assert chrome.complaints() == []


def test_models_without_a_template_continue_texts(chrome: Browser, tmp_path: Path) -> None:
    folder = byte_tokenizer.write(tmp_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with running(folder, 1) as server:
        chrome.open(server.url, ".completion-text")
        chrome.press("SAY<< and so on>>")
        chrome.press_with(CONTROL, ENTER)
        text = lambda: chrome.run("return document.querySelector('.completion-text').value")  # noqa: E731
        chrome.until(lambda: text() == "SAY<< and so on>> and so on", "the continuation")
        chrome.until(lambda: "tokens/s" in chrome.texts(".completion .figures")[0], "its figures")
        [undo] = [each for each in chrome.all("button") if each.text == "Take back"]
        undo.click()
        assert text() == "SAY<< and so on>>"
        assert chrome.complaints() == []


@needs_native
def test_the_demo_model_has_a_template_and_continues_texts(chrome: Browser) -> None:
    with serving("--threads", "1") as served:
        chrome.open(served.url.removesuffix("/v1"), ".completion-text")
        assert not chrome.all(".composer")
