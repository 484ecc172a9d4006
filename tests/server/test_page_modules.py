"""The page's modules, called in a browser: Markdown of any length, sizes, the engine."""

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


@pytest.mark.parametrize(
    ("text", "size"),
    [("a", "1 byte"), ("ä" * 300, "600 bytes"), ("ä" * 600, "1.2 kB"), ("a" * 999_960, "1.0 MB")],
)
def test_sizes_are_of_bytes(page: Browser, text: str, size: str) -> None:
    script = "return (await import('/page/ui/format.js')).size(given[0])"
    assert page.run(script, text) == size


SNAPSHOTS = """
    const { History } = await import('/page/engine/history.js');
    const counts = (...counts) => ({ bounds: [1], counts, total: 1 });
    const snapshot = (time, tokens, first = [0, 0]) => ({
      time, trouble: null, step_seconds: 0,
      engine: {
        running: 0, waiting: 0, generated_tokens: tokens, prefix_queries: tokens, prefix_hits: 0,
        kv_blocks: { total: 10, used: 1, cached: 2 },
        steps: {
          steps: tokens, seconds: tokens, prefill_tokens: 0, decode_tokens: tokens, draft_tokens: 0,
        },
        drafts: null,
      },
      first_token_seconds: counts(...first), inter_token_seconds: counts(0, tokens),
    });
    const history = new History();
"""


def test_a_restart_is_a_gap_in_the_charts(page: Browser) -> None:
    """Even where the new server has done more meanwhile, but for one thing."""
    samples, share = page.run(
        SNAPSHOTS
        + """
        for (const each of [snapshot(1, 0), snapshot(2, 10, [5, 0])]) history.add(each);
        for (const each of [snapshot(9, 30, [0, 6]), snapshot(10, 40, [0, 7])]) history.add(each);
        const { PANELS } = await import('/page/engine/panels.js');
        for (const { most } of PANELS) if (most && !(most(history.samples) > 0)) throw most;
        const { samples } = history;
        const drawn = samples.map(({ from, to, generated = null }) => [from, to, generated]);
        return [drawn, history.over(Infinity).generated];
        """
    )
    assert samples == [[1, 2, 10], [2, 9, None], [9, 10, 10]]
    assert share == 10


def test_another_machines_clock_begins_the_charts_anew(page: Browser) -> None:
    samples = page.run(
        SNAPSHOTS
        + """
        for (const each of [snapshot(1000, 0), snapshot(1001, 10)]) history.add(each);
        for (const each of [snapshot(5, 20), snapshot(6, 30)]) history.add(each);
        return history.samples.map(({ from, to, generated }) => [from, to, generated]);
        """
    )
    assert samples == [[5, 6, 10]]


def test_another_model_is_said_until_the_page_is_loaded_again(page: Browser) -> None:
    told = page.run(
        """
        const { Frame } = await import('/page/frame.js');
        const root = document.createElement('div');
        const frame = new Frame(root);
        const trouble = root.querySelector('.trouble');
        frame.outdated('other');
        const button = trouble.querySelector('button');
        frame.outdated('other');
        const told = [trouble.textContent, button === trouble.querySelector('button')];
        frame.lost('it is gone');
        frame.found();
        return [...told, trouble.hidden];
        """
    )
    assert told == ["This server now has another model, other.Load the page again", True, True]


def test_what_a_person_sets_comes_before_what_the_page_begins_with(page: Browser) -> None:
    sent, shown = page.run(
        """
        const { sampling } = await import('/page/chat/answer.js');
        const { samplingFields } = await import('/page/chat/settings.js');
        const begun = { temperature: 0.8, top_k: 40 };
        const card = { sampling_defaults: {}, interactive_defaults: begun };
        const fields = samplingFields({}, card, () => {});
        const shown = [...fields.querySelectorAll('input')].map((input) => input.placeholder);
        return [sampling({ top_k: 5, min_p: 0.1 }, card), shown];
        """
    )
    assert sent == {"temperature": 0.8, "top_k": 5, "min_p": 0.1}
    assert shown == ["0.8", "1", "40", "0", "not set", "not set"]
