"""Chats over OpenAI's API, as servers in the field speak it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from support.scripted_api import ScriptedApi, delta, end, scripted_api

from penstock.chat.chat_model import Usage
from penstock.chat.conversation import Conversation
from penstock.chat.parameters import ChatParameters
from penstock.chat.remote_model import Endpoint, RemoteModel
from penstock.errors import ConfigError, PenstockError, RequestError

ASKED = Conversation(system="S", parameters=ChatParameters(temperature=0.5, stop=("x",))).ask("U")


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with scripted_api() as api:
        yield api


def test_an_answer(api: ScriptedApi) -> None:
    api.events = [
        delta(role="assistant", content=""),
        delta(reasoning_content="Hm."),
        delta(reasoning="So."),
        delta(content="Hel"),
        delta(content="lo", unknown=3),
        *end(prompt_tokens=7, completion_tokens=2),
    ]
    model = RemoteModel(Endpoint(api.url, "key"))
    assert model.name == "small"
    deltas = list(model.stream(ASKED))
    assert "".join(d.content for d in deltas) == "Hello"
    assert "".join(d.reasoning_content for d in deltas) == "Hm.So."
    assert deltas[-1].finish_reason == "stop"
    assert deltas[-1].usage == Usage(7, 2)
    (asked,) = api.asked
    assert asked["messages"] == ASKED.as_messages()
    assert (asked["model"], asked["stream"], asked["temperature"]) == ("small", True, 0.5)
    assert asked["stop"] == ["x"]
    assert "top_p" not in asked
    assert "chat_template_kwargs" not in asked
    assert api.keys == ["Bearer key", "Bearer key"]


def test_variables_of_the_template(api: ScriptedApi) -> None:
    api.events = end()
    model = RemoteModel(Endpoint(api.url), "small")
    assert model.chat_template_kwargs is None
    list(model.stream(ASKED.with_chat_template_kwarg("tone", "dry")))
    assert api.asked[0]["chat_template_kwargs"] == {"tone": "dry"}
    api.chat_template_kwargs = ("tone",)
    assert RemoteModel(Endpoint(api.url)).chat_template_kwargs == ("tone",)
    assert RemoteModel(Endpoint(api.url), "other").chat_template_kwargs is None


def test_a_model_that_recommends_nothing(api: ScriptedApi) -> None:
    api.events = end()
    list(RemoteModel(Endpoint(api.url)).stream(ASKED.seeded()))
    assert not {"top_k", "seed"} & set(api.asked[0])
    api.sampling_defaults = {}
    list(RemoteModel(Endpoint(api.url)).stream(ASKED.seeded()))
    assert {"top_k", "seed"} <= set(api.asked[1])
    assert (api.asked[1]["temperature"], api.asked[1]["min_p"]) == (0.5, 0.05)


def test_without_usage(api: ScriptedApi) -> None:
    api.events = [delta(content="a"), end()[0], "[DONE]"]
    *_, last = RemoteModel(Endpoint(api.url), "m").stream(ASKED)
    assert last.usage is None
    assert api.keys == [None, None]  # the model's defaults, and the answer


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (400, b'{"error": {"message": "no top_k"}}', "status 400: no top_k$"),
        (401, b'{"error": "who?"}', "status 401: who.; name the environment variable"),
        (404, b'{"message": "no model"}', "status 404: no model; check the URL and the model"),
        (422, b'{"detail": [{"loc": 1}]}', r'status 422: \[{"loc":1}\]'),
        (500, b"<html>", "status 500: Internal Server Error"),
        (429, b"", "status 429: Too Many Requests"),
        (500, b"[" * 20_000, "status 500: Internal Server Error"),
        (500, b'{"error": %s1%s}' % (b"[" * 500, b"]" * 500), "status 500: Internal Server Error"),
        (307, b"", "redirects to http://elsewhere/"),
    ],
)
def test_refusals(api: ScriptedApi, status: int, body: bytes, words: str) -> None:
    api.status, api.body, api.headers = status, body, {"Location": "http://elsewhere/"}
    with pytest.raises(PenstockError, match=words):
        list(RemoteModel(Endpoint(api.url), "m").stream(ASKED))


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([delta(content="a")], "broke off its answer"),
        ([], "broke off its answer"),
        ([delta(content="a"), '{"error": {"message": "the engine died"}}'], "the engine died"),
        (["[" * 20_000], "does not stream as OpenAI's API does: it is nested more than 100"),
        (['{"error": ' + "[" * 500 + "1" + "]" * 500 + "}"], "it is nested more than 100 levels"),
        (["{"], "does not stream as OpenAI's API does"),
        (['{"choices": [{"delta": {"content": 5}}]}'], "does not stream as OpenAI's API does"),
    ],
)
def test_answers_that_fail(api: ScriptedApi, events: list[str], words: str) -> None:
    api.events = events
    with pytest.raises(PenstockError, match=words):
        list(RemoteModel(Endpoint(api.url), "m").stream(ASKED))


def test_models_that_break_off(api: ScriptedApi) -> None:
    api.models_body, api.cut = b'{"data": [', True
    with pytest.raises(PenstockError, match="/v1/models broke off its answer: IncompleteRead"):
        RemoteModel(Endpoint(api.url))


def test_models_that_are_nested_too_deeply(api: ScriptedApi) -> None:
    api.models = ("[" * 20_000,)  # in a text it is no nesting
    assert RemoteModel(Endpoint(api.url)).name == "[" * 20_000
    api.models_body = b'{"data": [], "x": %s}' % (b"[" * 20_000)
    with pytest.raises(PenstockError, match="does not list models as OpenAI's API does: it is nes"):
        RemoteModel(Endpoint(api.url))


@pytest.mark.parametrize(
    ("url", "at"),
    [
        ("http://h:1", "http://h:1/v1"),
        ("h:1", "http://h:1/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("https://h/api/v1/", "https://h/api/v1"),
        ("http://h/v1/chat/completions", "http://h/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_urls(url: str, at: str) -> None:
    assert Endpoint(url).url == at


@pytest.mark.parametrize(
    "url",
    ["", "ftp://h", "http://", "http://h/v1?x=1", "http://u:p@h", "http://h:port", "http://["],
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ConfigError, match=r"no URL|--api-key-env"):
        Endpoint(url)


@pytest.mark.parametrize("key", ["secret\n", "sec\x00ret", "secr☃t"])
def test_a_key_that_no_header_can_have_is_not_shown(key: str) -> None:
    with pytest.raises(ConfigError, match="has characters that no key has") as raised:
        Endpoint("http://h", key)
    assert "sec" not in str(raised.value)


def test_a_name_that_is_no_text(api: ScriptedApi) -> None:
    with pytest.raises(RequestError, match="not UTF-8 text"):
        list(RemoteModel(Endpoint(api.url), "caf\udce9").stream(ASKED))
    assert api.asked == []


def test_which_model(api: ScriptedApi) -> None:
    api.models = ("a", "b")
    with pytest.raises(ConfigError, match="has a, b; name one as MODEL"):
        RemoteModel(Endpoint(api.url))
    api.models = ()
    for named in (None, "a"):
        with pytest.raises(ConfigError, match="has no model; load one there"):
            RemoteModel(Endpoint(api.url), named)


def test_a_model_that_the_server_does_not_list(api: ScriptedApi) -> None:
    model = RemoteModel(Endpoint(api.url), "alias")
    assert model.describe() == f"at {api.url}/v1, which does not list it"
    assert RemoteModel(Endpoint(api.url), "small").describe() == f"at {api.url}/v1"


@pytest.mark.parametrize("status", [404, 403])
def test_a_server_without_a_list(api: ScriptedApi, status: int) -> None:
    api.models_status, api.events = status, [delta(content="a"), *end()]
    with pytest.raises(PenstockError, match=f"status {status}"):
        RemoteModel(Endpoint(api.url))
    model = RemoteModel(Endpoint(api.url), "m")
    assert model.describe() == f"at {api.url}/v1"
    assert "".join(delta.content for delta in model.stream(ASKED)) == "a"


@pytest.mark.parametrize("named", [None, "m"])
@pytest.mark.parametrize("status", [401, 503])
def test_a_server_that_refuses_at_once(api: ScriptedApi, status: int, named: str | None) -> None:
    api.models_status = status
    with pytest.raises(PenstockError, match=f"status {status}"):
        RemoteModel(Endpoint(api.url), named)


@pytest.mark.parametrize("named", [None, "m"])
def test_nobody_there(named: str | None) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(PenstockError, match=r"cannot be reached: Connection refused; check"):
            RemoteModel(Endpoint(url), named)
