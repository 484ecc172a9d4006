"""The page's conversations, in a browser: the storage that tabs share, and what is sent of them."""

from __future__ import annotations

import pytest
from support.browser import Browser

pytestmark = pytest.mark.slow


def test_what_did_not_fit_outlives_what_other_tabs_write(page: Browser) -> None:
    kept = page.run(
        """
        const { Store } = await import('/page/chat/store.js');
        const { Conversation } = await import('/page/chat/conversation.js');
        const full = {
          length: 0, getItem: () => null, setItem() { throw new Error('full'); }, removeItem() {},
        };
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


TABS = """
    const { Store } = await import('/page/chat/store.js');
    const { Conversation } = await import('/page/chat/conversation.js');
    localStorage.clear();
    const made = new Conversation();
    const first = made.add(null, { role: 'user', content: 'first' });
    new Store(localStorage).save(made);
    const key = `penstock.conversation/${made.id}`;
    const [a, b] = [new Store(localStorage), new Store(localStorage)]; // as of two tabs
    const [inA, inB] = [a.list()[0], b.list()[0]];
    const said = (store) => Object.values(store.list()[0].nodes).map((node) => node.content).sort();
    const stored = () => said(new Store(localStorage));
"""


def test_tabs_keep_each_others_branches(page: Browser) -> None:
    texts = page.run(
        TABS
        + """
        inA.add(inA.nodes[first.id], { role: 'user', content: 'of a' });
        a.save(inA);
        inB.add(inB.nodes[first.id], { role: 'user', content: 'of b' });
        b.save(inB);
        a.reload(key);
        return [stored(), said(a), said(b), inA.last().content, inB.last().content];
        """
    )
    everything = ["first", "of a", "of b"]
    assert texts == [everything, everything, everything, "of a", "of b"]


def test_tabs_that_write_at_once_lose_nothing(page: Browser) -> None:
    """Another tab may write after this one has looked at the storage, and before it writes."""
    texts = page.run(
        TABS
        + """
        inB.add(inB.nodes[first.id], { role: 'user', content: 'of b' });
        inA.add(inA.nodes[first.id], { role: 'user', content: 'of a' });
        b.save(inB);
        localStorage.setItem(key, JSON.stringify(inA.data()));
        b.reload(key); // as the event makes it
        return [stored(), said(b)];
        """
    )
    assert texts == [["first", "of a", "of b"]] * 2


def test_an_answer_in_another_tab_grows_and_ends(page: Browser) -> None:
    texts = page.run(
        TABS
        + """
        const answer = inA.add(inA.nodes[first.id], { role: 'assistant', content: 'half' });
        a.save(inA);
        b.reload(key);
        answer.content = 'half and more';
        a.save(inA);
        inB.add(inB.nodes[first.id], { role: 'user', content: 'of b' });
        b.save(inB);
        const grown = [stored(), said(b)];
        Object.assign(answer, { content: 'ended', figures: {} }); // if a call was cut, shorter
        a.save(inA);
        b.save(inB);
        return [...grown, stored(), said(b), inA.nodes[answer.id] === answer];
        """
    )
    grown, ended = ["first", "half and more", "of b"], ["ended", "first", "of b"]
    assert texts == [grown, grown, ended, ended, True]


def test_what_one_tab_deletes_no_other_brings_back(page: Browser) -> None:
    seen = page.run(
        TABS
        + """
        b.remove(inB);
        inA.add(inA.nodes[first.id], { role: 'user', content: 'of a' });
        a.save(inA);
        const seen = [a.isRemoved(inA), a.list().length, new Store(localStorage).list().length];
        a.save(a.restore(inA));
        b.reload(key);
        return [...seen, b.isRemoved(inB), said(b)];
        """
    )
    assert seen == [True, 0, 0, False, ["first", "of a"]]


def test_the_later_options_of_two_tabs_win(page: Browser) -> None:
    systems = page.run(
        TABS
        + """
        Object.assign(inB, { system: 'of b', configured: 20 });
        inB.options.seed = 3;
        b.save(inB);
        const { options } = inA; // as an open dialog has them
        a.save(inA);
        Object.assign(inA, { system: 'of a', configured: 30 });
        a.save(inA);
        b.reload(key);
        return [options.seed, new Store(localStorage).list()[0].system, inB.system];
        """
    )
    assert systems == [3, "of a", "of a"]


def test_room_that_a_deletion_makes_is_used(page: Browser) -> None:
    assert page.run(
        TABS
        + """
        const rest = 'x'.repeat(1_000_000);
        const large = new Conversation();
        large.add(null, { role: 'user', content: rest });
        for (let i = 0; ; i += 1) {
          try { localStorage.setItem(i, rest); } catch { break; }
        }
        const fits = a.save(large);
        localStorage.removeItem(0);
        localStorage.removeItem(1);
        a.remove(inA);
        const kept = new Store(localStorage).list().map((each) => each.id);
        localStorage.clear();
        return !fits && kept.length === 1 && kept[0] === large.id;
        """
    )


CALL = '{"id": "c", "function": {"name": "f", "arguments": "{\\"city\\": \\"U"}, "index": 0}'


@pytest.mark.parametrize("ending", ["stop", "length", "broken"])
def test_a_call_that_was_cut_is_text(page: Browser, ending: str) -> None:
    """The server would refuse its arguments, with every message that follows."""
    content, calls, pending, sent, shown = page.run(
        """
        const { answer } = await import('/page/chat/answer.js');
        const { Conversation, requestMessages } = await import('/page/chat/conversation.js');
        const controller = new AbortController();
        const whole = { index: 1, id: 'd', function: { name: 'g', arguments: '{}' } };
        const api = { async *events() {
          yield { choices: [{ delta: { content: 'Wait.' } }] };
          yield { choices: [{ delta: { tool_calls: [JSON.parse(given[0]), whole] } }] };
          if (given[1] === 'length') yield { choices: [{ delta: {}, finish_reason: 'length' }] };
          if (given[1] === 'stop') controller.abort();
          controller.signal.throwIfAborted();
        } };
        const conversation = new Conversation();
        const asked = conversation.add(null, { role: 'user', content: 'Ask.' });
        const made = conversation.add(asked, { role: 'assistant', content: '' });
        let shown = '';
        const shows = (piece) => (shown += piece.content ?? '');
        await answer(api, {}, {}, made, controller.signal, { now: false }, shows);
        const sent = requestMessages(conversation, made)[1].tool_calls.map((call) => call.id);
        const calls = made.calls.map((call) => call.name);
        return [made.content, calls, conversation.pendingCall(made).id, sent, shown];
        """,
        CALL,
        ending,
    )
    assert content == shown == 'Wait.\n\nf {"city": "U'
    assert calls == ["g"]
    assert [pending] == sent == ["d"]


@pytest.mark.parametrize(
    ("body", "tokens", "ended", "shown"),
    [
        ({}, 90, "context", "cut: the context is full · 90 tokens"),
        ({"max_tokens": 90}, 90, "context", "cut: the context is full · 90 tokens"),
        ({"max_tokens": 9}, 9, "max_tokens", 'cut at "most tokens" · 9 tokens'),
        ({}, 9, "length", "cut at the server's limit of tokens"),
    ],
)
def test_a_cut_answer_says_which_limit_it_was(
    page: Browser, body: dict[str, int], tokens: int, ended: str, shown: str
) -> None:
    got, figures = page.run(
        """
        const { answer } = await import('/page/chat/answer.js');
        const { MessageView } = await import('/page/chat/message.js');
        const api = { async *events() {
          yield { choices: [{ delta: { content: 'Well' }, finish_reason: 'length' }] };
          yield { choices: [], usage: { prompt_tokens: 10, completion_tokens: given[1] } };
        } };
        const made = { role: 'assistant', content: '' };
        const { signal } = new AbortController();
        await answer(api, { max_model_len: 100 }, given[0], made, signal, { now: false }, () => {});
        const view = new MessageView(made, [made], {});
        return [made.ended, view.element.querySelector('.figures').textContent];
        """,
        body,
        tokens,
    )
    assert got == ended
    assert figures.startswith(shown)


def test_a_call_that_a_closed_page_cut_is_passed_over(page: Browser) -> None:
    pending, sent = page.run(
        """
        const { Conversation, requestMessages } = await import('/page/chat/conversation.js');
        const conversation = new Conversation();
        const asked = conversation.add(null, { role: 'user', content: 'Ask.' });
        const calls = [{ id: 'c', name: 'f', text: '{"city"' }];
        const made = conversation.add(asked, { role: 'assistant', content: 'Wait.', calls });
        return [conversation.pendingCall(made), requestMessages(conversation, made)];
        """
    )
    assert pending is None
    assert sent == [{"role": "user", "content": "Ask."}, {"role": "assistant", "content": "Wait."}]


def test_an_answer_of_which_nothing_came_is_not_sent(page: Browser) -> None:
    sent = page.run(
        """
        const { Conversation, requestMessages } = await import('/page/chat/conversation.js');
        const conversation = new Conversation();
        const asked = conversation.add(null, { role: 'user', content: 'Ask.' });
        const failed = conversation.add(asked, { role: 'assistant', content: '', error: 'lost' });
        const again = conversation.add(failed, { role: 'user', content: 'Well?' });
        return requestMessages(conversation, again);
        """
    )
    assert sent == [{"role": "user", "content": "Ask.\n\nWell?"}]


def test_the_list_is_made_anew_only_where_it_changes(page: Browser) -> None:
    """A click that has begun on a button ends on none that has taken its place."""
    assert page.run(
        TABS
        + """
        const { Sidebar } = await import('/page/chat/sidebar.js');
        const sidebar = new Sidebar(a, {});
        const titles = () => [...sidebar.list.querySelectorAll('.title')];
        sidebar.show();
        const [before] = titles();
        a.reload();
        sidebar.show();
        const stays = titles()[0] === before;
        inA.title = 'another';
        sidebar.show();
        return stays && titles()[0].textContent === 'another';
        """
    )
