"""Conversations are values; files of them are read as they were written, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.chat.conversation import (
    Conversation,
    Message,
    load_conversation,
    save_conversation,
)
from penstock.chat.parameters import ChatParameters
from penstock.errors import RequestError
from penstock.sampling.params import SamplingParams


def test_turns() -> None:
    empty = Conversation(system="Be brief.")
    asked = empty.ask("Hello")
    answered = asked.answer("Hi.", "They greet me.")
    assert empty.messages == ()
    assert asked.turns == answered.turns == 1
    assert answered.as_messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
    ]
    assert answered.clear() == empty
    assert answered.with_system("").as_messages()[0]["role"] == "user"


texts = st.text()


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(texts, texts, texts), max_size=3),
    texts,
    st.none() | st.floats(0, 100),
    st.none() | st.lists(st.text(min_size=1, max_size=5), max_size=2).map(tuple),
)
def test_files_keep_everything(
    tmp_path_factory: pytest.TempPathFactory,
    said: list[tuple[str, str, str]],
    system: str,
    temperature: float | None,
    stop: tuple[str, ...] | None,
) -> None:
    conversation = Conversation(
        system=system, parameters=ChatParameters(temperature=temperature, stop=stop)
    )
    for question, answer, reasoning in said:
        conversation = conversation.ask(question).answer(answer, reasoning)
    path = tmp_path_factory.getbasetemp() / "conversation.json"
    save_conversation(conversation, path, overwrite=True)
    assert load_conversation(path) == conversation


def test_a_file_is_not_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "kept.txt"
    path.write_text("mine")
    with pytest.raises(RequestError, match="exists; name another"):
        save_conversation(Conversation(), path, overwrite=False)
    assert path.read_text() == "mine"
    assert [each.name for each in tmp_path.iterdir()] == ["kept.txt"]


def test_an_array_of_messages_is_a_conversation(tmp_path: Path) -> None:
    path = tmp_path / "messages.json"
    path.write_text(
        json.dumps([{"role": "system", "content": "S"}, {"role": "user", "content": "U"}])
    )
    assert load_conversation(path) == Conversation(system="S", messages=(Message("user", "U"),))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no conversation"),
        ("{", "is no conversation"),
        ("5", "is no conversation"),
        ('{"mesages": []}', "mesages"),
        ('[{"role": "judge", "content": ""}]', "judge"),
        ('[{"role": "user"}]', "content"),
        ('[{"role": "user", "content": ""}, {"role": "system", "content": ""}]', "the first"),
        ('{"system": "a", "messages": [{"role": "system", "content": "b"}]}', "two system"),
        ('{"parameters": {"temperature": -1}}', "temperature"),
        ('{"parameters": {"temprature": 1}}', "temprature"),
    ],
)
def test_what_is_no_conversation(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(RequestError, match=words):
        load_conversation(path)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "0", 0.0),
        ("top-k", "20", 20),
        ("seed", "-3", -3),
        ("stop", "\\n", ("\\n",)),
        ("stop", '["a", "b"]', ("a", "b")),
        ("ignore_eos", "true", True),
        ("max_tokens", "default", None),
    ],
)
def test_parameters_as_a_person_writes_them(name: str, text: str, value: object) -> None:
    changed = ChatParameters(max_tokens=5).with_text(name, text)
    assert getattr(changed, name.replace("-", "_")) == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("temprature", "1", "there is no parameter 'temprature'; there are temperature"),
        ("temperature", "hot", "must be a number"),
        ("temperature", "-1", "temperature must be in"),
        ("temperature", "nan", "finite"),
        ("top_k", "1.5", "must be an integer"),
        ("ignore_eos", "yes", "true or false"),
        ("stop", "[1]", "JSON array of texts"),
        ("max_tokens", "0", "at least 1"),
    ],
)
def test_parameters_that_make_no_sense(name: str, text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        ChatParameters().with_text(name, text)


def test_parameters_are_sampling_params() -> None:
    ours = {f.name: f.type for f in msgspec.structs.fields(ChatParameters)}
    theirs = {f.name for f in msgspec.structs.fields(SamplingParams)}
    assert set(ours) <= theirs


@pytest.mark.parametrize(
    "text",
    ['{"chat_template_kwargs": {"x": %s}}', '[{"role": "user", "content": "", "x": %s}]', "%s"],
)
@pytest.mark.parametrize("depth", [101, 500, 20_000])
def test_a_file_that_is_nested_too_deeply(tmp_path: Path, text: str, depth: int) -> None:
    path = tmp_path / "deep.json"
    path.write_text(text % ("[" * depth + "]" * depth))
    with pytest.raises(RequestError, match="is no conversation: it is nested more than 100 levels"):
        load_conversation(path)


def test_what_can_be_set_can_be_saved(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    deepest = "[" * 50 + '"\\"[{"' + "]" * 50
    conversation = Conversation().with_chat_template_kwarg("x", deepest)
    assert isinstance(conversation.chat_template_kwargs["x"], list)
    save_conversation(conversation, path, overwrite=False)
    assert load_conversation(path) == conversation
