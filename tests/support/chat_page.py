"""A chat on the page, as a reader has it."""

from __future__ import annotations

from support.browser import ENTER, ESCAPE, TAB, Browser


def ask(page: Browser, text: str) -> None:
    """Send a message."""
    page.run(
        "const input = document.querySelector('.composer textarea');"
        "input.focus(); input.value = given[0]",
        text,
    )
    page.press(" ", ENTER)


def answered(page: Browser) -> None:
    """Wait until an answer is there, and nothing more comes."""
    page.until(lambda: page.all(".message.assistant .figures"), "the answer is complete")
    page.until(lambda: not page.all("[aria-busy]"), "nothing more comes")


def give_tool(page: Browser) -> None:
    """Give the conversation a tool ``f``, by its options."""
    page.find('[aria-label="Options of this conversation"]').click()
    tools = '[{"type": "function", "function": {"name": "f", "parameters": {}}}]'
    page.find("dialog textarea.code").send_keys(tools, TAB)
    page.press(ESCAPE)
    page.until(lambda: not page.all("dialog"), "the options are closed")
