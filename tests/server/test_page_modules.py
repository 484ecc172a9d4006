"""The page's modules, called in a browser: Markdown of any length and kind, and the storage."""

from __future__ import annotations

import re

import pytest
from support.browser import Browser

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("line", ["A line with **bold** and `code`.", "", "- an item", "| a | b |"])
@pytest.mark.parametrize("opening", ["", "```\n", "| x | y |\n|---|---|\n"])
def test_ten_thousand_lines_stay_smooth(page: Browser, line: str, opening: str) -> None:
    """However long an answer is, as few nodes change with its next lines."""
    changes, count = page.run(
        """
        const { MarkdownStream } = await import('/page/markdown/stream.js');
        const root = document.querySelector('.messages');
        const node = document.createElement('div');
        node.className = 'markdown';
        root.replaceChildren(node);
        const stream = new MarkdownStream(node);
        stream.add(given[1]);
        let changes = 0, lines = 0;
        const observer = new MutationObserver(() => {});
        observer.observe(node, { childList: true, characterData: true, subtree: true });
        const text = given[0] + (given[0] && !/^[-|]/.test(given[0]) ? '\\n\\n' : '\\n');
        while (lines < 10_000) {
          for (let i = 0; i < 100; i += 1, lines += 1) stream.add(text);
          stream.flush();
          const records = observer.takeRecords();
          const nodes = records.map((one) => 1 + one.addedNodes.length + one.removedNodes.length);
          changes = Math.max(changes, nodes.reduce((sum, many) => sum + many, 0));
        }
        return [changes, node.textContent.replace(/[-|*` ]/g, '').length];
        """,
        line,
        opening,
    )
    assert changes < 1_000  # with 100 lines
    assert changes > 0 or not line
    assert count >= 10_000 * len(re.sub(r"[-|*` ]", "", line))


def test_pieces_make_what_the_whole_makes(page: Browser) -> None:
    """Wherever a stream is cut, the nodes are those of the whole text."""
    text = "# A\n\npara *one*\ntwo\n- a\n  - b\n    c\n\n1. x\n2. y\n\n```py\na\n\nb\n```\n" * 2
    text += "| a | b |\n|--|:-:|\n| 1 | **2** |\n\n> quote\n> - in it\nlazy\n\n---\n- [x] done\n"
    same = page.run(
        """
        const { MarkdownStream, showMarkdown } = await import('/page/markdown/stream.js');
        const whole = document.createElement('div');
        showMarkdown(whole, given[0]);
        const serialize = (node) => new XMLSerializer().serializeToString(node);
        for (const size of [1, 2, 3, 7]) {
          const node = document.createElement('div');
          const stream = new MarkdownStream(node);
          for (let i = 0; i < given[0].length; i += size) {
            stream.add(given[0].slice(i, i + size));
            stream.flush();
          }
          const made = serialize(node);
          if (made !== serialize(whole)) return [size, made, serialize(whole)];
        }
        return true;
        """,
        text,
    )
    assert same is True


@pytest.mark.parametrize(
    "text", ["`" + " " * 400_000 + "x`", "https://" + "." * 400_000, "https://x/" + ")" * 400_000]
)
def test_a_hostile_line_is_read_in_time(page: Browser, text: str) -> None:
    """Time that grew with the square of a line's length would outlast the browser's patience."""
    script = (
        "const { inlineNodes } = await import('/page/markdown/inline.js');"
        "return inlineNodes(given[0]).reduce((sum, node) => sum + node.textContent.length, 0);"
    )
    assert page.run(script, text) >= len(text) - 2


def test_what_did_not_fit_outlives_what_other_tabs_write(page: Browser) -> None:
    kept = page.run(
        """
        const { Store } = await import('/page/chat/store.js');
        const { Conversation } = await import('/page/chat/conversation.js');
        const full = { length: 0, setItem() { throw new Error('full'); }, removeItem() {} };
        const store = new Store(full);
        const conversation = new Conversation();
        conversation.add(null, { role: 'user', content: 'large' });
        const fits = store.save(conversation);
        store.reload();
        const kept = store.list().length;
        store.remove(conversation);
        store.reload();
        return [fits, kept, store.list().length];
        """
    )
    assert kept == [False, 1, 0]
