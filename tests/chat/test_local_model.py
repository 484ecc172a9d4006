"""Chats with a model in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import LLM, SamplingParams
from penstock.chat.conversation import Conversation
from penstock.chat.local_model import LocalModel
from penstock.chat.parameters import ChatParameters
from penstock.errors import RequestError
from penstock.sampling.defaults import INTERACTIVE

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if not add_generation_prompt %}</think>{% endif %}<think>\n"
)
"""A chat template of a model that reasons: a prompt ends with the opening of the reasoning."""


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(threads=1, kv_cache_bytes=1 << 24, max_model_len=256) as llm:
        yield llm


QUESTIONS = ["Write a function that reverses a list. " * n for n in (4, 5, 6)]


def greedy(**options: object) -> Conversation:
    given = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True, **options}
    return Conversation(parameters=ChatParameters(**given))  # type: ignore[arg-type]


def test_the_answer_is_that_of_the_chat(llm: LLM) -> None:
    conversation = greedy(seed=3, temperature=1.0, top_k=5).with_system("Be brief.").ask("Hello")
    deltas = list(LocalModel(llm).stream(conversation))
    params = SamplingParams(**{**INTERACTIVE.sampled, **conversation.parameters.given})
    (expected,) = llm.chat(conversation.as_messages(), params)
    assert "".join(delta.content for delta in deltas) == expected.outputs[0].text
    assert [delta.finish_reason for delta in deltas][-1] == "length"
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens == 16


def test_a_turn_finds_the_ones_before_in_the_cache(llm: LLM) -> None:
    model, conversation = LocalModel(llm), greedy()
    cached = []
    for question in QUESTIONS:
        *deltas, last = model.stream(conversation.ask(question))
        text = "".join(delta.content for delta in (*deltas, last))
        conversation = conversation.ask(question).answer(text)
        assert last.usage is not None
        cached.append(last.usage.cached_tokens)
    assert 0 < cached[1] < cached[2]


def test_a_turn_finds_the_whole_answer_before_in_the_cache() -> None:
    template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    with LLM(threads=1, kv_cache_bytes=1 << 24, max_model_len=256, chat_template=template) as llm:
        model = LocalModel(llm)
        for seed in range(16):  # which answer would be spelled otherwise differs between kernels
            conversation = greedy(temperature=2.0, seed=seed, max_tokens=70)
            *deltas, last = model.stream(conversation.ask("a"))
            text = "".join(delta.content for delta in (*deltas, last))
            assert last.usage is not None
            if len(llm.tokenizer.encode(text, False)) != last.usage.completion_tokens == 70:
                break
        else:
            raise AssertionError("every answer is spelled as it would be encoded")
        *_, second = model.stream(conversation.ask("a").answer(text).ask("b"))
    assert second.usage is not None
    computed = last.usage.prompt_tokens + last.usage.completion_tokens - 1
    assert second.usage.cached_tokens == computed // 32 * 32
    assert second.usage.prompt_tokens == computed + 1 + last.usage.prompt_tokens


def test_reasoning_is_told_apart() -> None:
    with LLM(threads=1, kv_cache_bytes=1 << 24, max_model_len=256, chat_template=TEMPLATE) as llm:
        deltas = list(LocalModel(llm).stream(greedy().ask("Hello")))
    assert "".join(delta.reasoning_content for delta in deltas).strip()
    assert "".join(delta.content for delta in deltas) == ""


@pytest.mark.parametrize(("channel", "thinks"), [("analysis", True), ("final", False)])
def test_messages_for_channels(channel: str, thinks: bool) -> None:
    template = (
        "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
        f"<|start|>assistant<|channel|>{channel}<|message|>"
    )
    with LLM(threads=1, kv_cache_bytes=1 << 24, max_model_len=256, chat_template=template) as llm:
        deltas = list(LocalModel(llm).stream(greedy().ask("Hello")))
    assert bool("".join(delta.reasoning_content for delta in deltas)) is thinks
    assert bool("".join(delta.content for delta in deltas)) is not thinks


def test_variables_of_the_template() -> None:
    template = "{{ tone }}" * 8 + TEMPLATE + "{{ raise_exception('') if bos_token is odd }}"
    template = template.replace(" is odd", " == '?'")
    with LLM(threads=1, kv_cache_bytes=1 << 24, max_model_len=256, chat_template=template) as llm:
        model = LocalModel(llm)
        assert model.chat_template_kwargs == ("tone",)
        plain = list(model.stream(greedy(max_tokens=1).ask("a")))[-1].usage
        dry = greedy(max_tokens=1).with_chat_template_kwarg("tone", "x y").ask("a")
        longer = list(model.stream(dry))[-1].usage
    assert plain is not None
    assert longer is not None
    assert longer.prompt_tokens > plain.prompt_tokens


def test_an_answer_that_is_left_stops(llm: LLM) -> None:
    deltas = LocalModel(llm).stream(greedy(max_tokens=200).ask("Hello"))
    next(deltas)
    assert llm.stats().running == 1
    deltas.close()
    assert llm.stats().running == 0
    llm.check_integrity()


def test_names_of_special_tokens_are_text(llm: LLM) -> None:
    tokenizer = llm.tokenizer
    name = tokenizer.token_text(min(tokenizer.special_ids))
    plain = list(LocalModel(llm).stream(greedy(max_tokens=1).ask("abc")))[-1].usage
    named = list(LocalModel(llm).stream(greedy(max_tokens=1).ask(f"abc{name}")))[-1].usage
    assert plain is not None
    assert named is not None
    assert named.prompt_tokens > plain.prompt_tokens + 1


@pytest.mark.parametrize(
    ("conversation", "words"),
    [
        (greedy(max_tokens=1000).ask("Hello"), "lower max_tokens to at most"),
        (greedy().ask("x " * 400), "context"),
        (greedy(temperature=-1.0).ask("x"), "temperature"),
    ],
)
def test_what_cannot_be_answered(llm: LLM, conversation: Conversation, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        list(LocalModel(llm).stream(conversation))
    assert llm.stats().running == 0
