"""The page in a browser where two things happen at once: an answer comes while something else is
done, or two tabs have one conversation open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.browser import CONTROL, ENTER, ESCAPE, Browser
from support.chat_page import answered, ask, give_tool
from support.http_client import Server

pytestmark = pytest.mark.slow

TEXT = ".message.assistant .text"


@contextmanager
def another_tab(page: Browser) -> Iterator[None]:
    """What is done within happens in a second tab, which then closes."""
    [first] = page.driver.window_handles
    address = page.driver.current_url
    page.driver.switch_to.new_window("tab")
    second = page.driver.current_window_handle
    page.open(address)
    try:
        yield
    finally:
        page.driver.switch_to.window(second)
        page.driver.close()
        page.driver.switch_to.window(first)


def length(page: Browser) -> int:
    return len(page.texts(TEXT)[0])


def edit(page: Browser) -> None:
    page.find(".message.user [aria-label=Edit]").click()
    page.until(lambda: page.focused() == "Edit the message", "the editor")


def test_a_reload_interrupts_an_answer(page: Browser) -> None:
    """The server is not to blame, and what came until then is kept."""
    ask(page, "Hello")
    page.until(lambda: length(page) > 20, "the answer begins")
    page.driver.refresh()
    page.find(".conversation").click()
    assert length(page) > 20
    assert page.texts(".message .error") == []
    assert "interrupted" in page.texts(".message.assistant .figures")[0]


def test_two_tabs_show_each_others_branches(page: Browser) -> None:
    ask(page, "SAY<<one>>")
    answered(page)
    first = page.driver.current_window_handle
    with another_tab(page):
        page.find(".conversation").click()
        edit(page)
        page.press_with(CONTROL, "a")
        page.press("SAY<<two>>", ENTER)
        page.until(lambda: page.texts(TEXT) == ["two"], "the other branch")
        answered(page)
        second = page.driver.current_window_handle
        page.driver.switch_to.window(first)
        page.until(lambda: page.texts(".user .branches span") == ["1/2"], "there is another")
        assert page.texts(TEXT) == ["one"]
        ask(page, "SAY<<three>>")
        page.until(lambda: page.texts(TEXT) == ["one", "three"], "what follows")
        answered(page)
        page.driver.switch_to.window(second)
        page.find("[data-branch=left]").click()
        page.until(lambda: page.texts(TEXT) == ["one", "three"], "what the first tab was answered")


def test_a_conversation_is_deleted_in_all_tabs(page: Browser) -> None:
    ask(page, "a" * 200)
    page.until(lambda: length(page) > 20, "it streams")
    first = page.driver.current_window_handle
    with another_tab(page):
        page.find('[aria-label^="Delete"]').click()
        page.driver.switch_to.window(first)
        page.until(lambda: page.all(".welcome"), "another conversation")
        page.until(lambda: "stopped" in page.texts("#announcements")[0], "its answer has ended")
        assert not page.all(".conversation")
        assert page.texts(".notice span") == ["The conversation was deleted in another tab."]
        page.find(".notice button").click()
    page.find(".conversation").click()
    page.until(lambda: "stopped" in page.texts(".figures")[0], "it can be had back")


def test_an_import_that_does_not_fit_is_shown(page: Browser, tmp_path: Path) -> None:
    exported = page.run(
        """
        const { Conversation } = await import('/page/chat/conversation.js');
        const large = () => {
          const made = new Conversation();
          made.add(null, { role: 'user', content: 'x'.repeat(1_000_000) });
          return made.data();
        };
        const rest = 'x'.repeat(1_000_000);
        for (let i = 0; ; i += 1) try { localStorage.setItem(i, rest); } catch { break; }
        localStorage.removeItem(0);
        return JSON.stringify({ conversations: [large(), large(), large()] });
        """
    )
    file = tmp_path / "conversations.json"
    file.write_text(exported)
    page.run("document.querySelector('.sidebar input[type=file]').hidden = false")
    page.find(".sidebar input[type=file]").send_keys(str(file))
    page.until(lambda: len(page.all(".conversation")) == 3, "all of them")
    said = page.texts(".notice span")[0]
    page.driver.execute_script("localStorage.clear()")
    assert said == (
        "3 conversations imported; 2 did not fit in the browser's storage, and will be kept until "
        "the page is closed."
    )


def test_only_texts_are_attached(page: Browser, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ä" * 100)
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    page.run("document.querySelector('.composer input[type=file]').hidden = false")
    files = f"{tmp_path / 'a.png'}\n{tmp_path / 'a.txt'}"
    page.find(".composer input[type=file]").send_keys(files)
    page.until(lambda: page.all(".composer .attachments li"), "an attachment")
    assert page.texts(".composer .attachments li span") == ["a.txt", "200 bytes"]
    assert "a.png is no text" in page.texts(".notice span")[0]


def test_an_answer_that_was_cut_in_a_call_can_be_followed(
    chrome: Browser, tool_server: Server
) -> None:
    chrome.open(tool_server.url)
    give_tool(chrome)
    ask(chrome, 'SAY<<<tool_call>{"name": "f", "arguments": {"city": "U>>')
    answered(chrome)
    assert not chrome.all(".call")
    assert chrome.texts(TEXT) == ['f {"city": "U']
    assert chrome.focused().startswith("Message")
    ask(chrome, "SAY<<Fine.>>")
    chrome.until(lambda: chrome.texts(TEXT)[1:] == ["Fine."], "an answer")
    assert chrome.complaints() == []


def test_the_end_of_an_answer_takes_no_focus(page: Browser) -> None:
    ask(page, "SAY<<" + "word " * 100 + ">>")
    page.until(lambda: page.texts(TEXT)[0], "it streams")
    edit(page)
    answered(page)
    assert page.focused() == "Edit the message"


@pytest.mark.parametrize("away", [".conversation", "[data-branch=left]"])
def test_an_answer_goes_on_while_it_is_not_looked_at(page: Browser, away: str) -> None:
    """Opened once more, or found again beside another branch."""
    ask(page, "SAY<<one>>")
    answered(page)
    edit(page)
    page.press_with(CONTROL, "a")
    page.press("b" * 200, ENTER)
    page.until(lambda: page.texts(".user .branches span") == ["2/2"], "the other branch")
    page.until(lambda: length(page) > 20, "it streams")
    page.find(away).click()
    if "branch" in away:
        page.until(lambda: page.texts(TEXT) == ["one"], "the branch before")
        page.find("[data-branch=right]").click()
    came = length(page)
    page.until(lambda: length(page) > came + 50, "it still streams")
    page.press(ESCAPE)
    page.until(lambda: "stopped" in page.texts(".assistant .figures")[0], "it was stopped")


def test_another_answer_to_an_earlier_message_stops_the_one_that_comes(page: Browser) -> None:
    ask(page, "SAY<<one>>")
    answered(page)
    ask(page, f"SAY<<{'word ' * 200}>>")
    page.until(lambda: len(page.texts(TEXT)) == 2 and page.texts(TEXT)[1], "it streams")
    page.find('[aria-label="Another answer"]').click()
    page.until(lambda: page.texts(".assistant .branches span") == ["2/2"], "another answer")
    answered(page)
    assert page.texts(TEXT) == ["one"]
    page.find(".assistant [data-branch=left]").click()
    page.until(lambda: len(page.texts(TEXT)) == 2, "what was there before")
    assert "stopped" in page.texts(".assistant .figures")[1]
    page.press(ESCAPE)
