"""``LLM`` as vLLM's users write it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import LLM, GrammarSpec, GuidedDecodingParams, SamplingParams, StructuredOutputsParams
from penstock.errors import ConfigError, RequestError
from penstock.vllm_names import OF_LLM, OF_PACKAGE, OF_TOKENIZER

PROMPT = "import os\nimport "
CHAT = [{"role": "user", "content": "Reverse a list."}]
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    "{% if tools %}{{ tools[0].function.name }}{% endif %}{{ word }}"
    "{% if add_generation_prompt %}def {% endif %}"
)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(
        model="",
        threads=1,
        kv_cache_bytes=1 << 24,
        max_model_len=128,
        tensor_parallel_size=1,
        trust_remote_code=False,
        seed=None,
    ) as llm:
        yield llm


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"structured_outputs": StructuredOutputsParams(json=SCHEMA)}, "json_schema"),
        ({"guided_decoding": GuidedDecodingParams(regex="a+")}, "regex"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "choice"),
        ({"structured_outputs": {"json_object": True}}, "json_object"),
        ({"guided_decoding": {"grammar": 'start: "a"'}}, "lark"),
    ],
)
def test_structured_outputs(given: dict[str, Any], kind: str) -> None:
    params = SamplingParams(**given)
    assert params.grammar is not None
    assert params.grammar.kind == kind
    assert params == SamplingParams(grammar=params.grammar)


def test_a_grammar_that_is_none_is_refused_by_a_check(llm: LLM) -> None:
    params = SamplingParams(grammar=GrammarSpec(kind="regex", text="(["))
    for call in (llm.check, llm.generate):
        with pytest.raises(RequestError, match="the regular expression cannot be used"):
            call(PROMPT, params)
    llm.check(PROMPT, SamplingParams(grammar=GrammarSpec(kind="regex", text="[a]")))


def test_an_output_of_a_choice(llm: LLM) -> None:
    params: Any = {"structured_outputs": StructuredOutputsParams(choice=["yes", "no"])}
    (output,) = llm.generate(PROMPT, greedy(**params))
    assert output.outputs[0].text in ("yes", "no")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"best_of": 2}, "best_of=2 cannot be honoured: n makes as many"),
        ({"length_penalty": 2.0}, "it is an option of BeamSearch"),
        ({"logits_processors": [print]}, "logit_bias, bad_words and grammar"),
        ({"temprature": 1}, "has no option 'temprature'; did you mean temperature?"),
        ({"xyzzy": 1}, "there are n, temperature"),
        ({"structured_outputs": {}}, "not none of them"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "not regex and choice"),
        ({"structured_outputs": {"json": 5}}, "json must be a schema"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs: Expected `str"),
        ({"structured_outputs": 5}, "must be StructuredOutputsParams, not 5"),
        ({"structured_outputs": {"regex": "a"}, "guided_decoding": {"regex": "a"}}, "give one"),
    ],
)
def test_sampling_options_that_ask_for_something_else(options: Any, words: str) -> None:
    with pytest.raises(RequestError, match=re.escape(words)):
        SamplingParams(**options)


def test_sampling_options_that_ask_for_nothing() -> None:
    given: Any = {"use_beam_search": False, "length_penalty": 1.0, "best_of": None}
    assert SamplingParams(**given, detokenize=True, extra_args=None) == SamplingParams()  # type: ignore[call-arg]


def test_names_of_vllms(llm: LLM) -> None:
    assert llm.get_default_sampling_params() == SamplingParams()
    prompts = [penstock.TextPrompt(prompt="a"), penstock.TokensPrompt(prompt_token_ids=[1, 2])]
    assert len(llm.generate(prompts, greedy(max_tokens=1), lora_request=None)) == 2
    (output,) = llm.embed("a", pooling_params=penstock.PoolingParams(normalize=False))
    assert output.outputs.embedding is output.embedding
    llm.reset_prefix_cache()
    tokenizer = llm.get_tokenizer()
    assert len(tokenizer) == tokenizer.vocab_size
    assert tokenizer.eos_token == tokenizer.token_text(tokenizer.eos_token_id or 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt_token_ids": [[1, 2]]}, 'as dicts: {"prompt_token_ids": [...]}'),
        ({"chat_template_content_format": "string"}, "content as it is: a text, or its parts"),
        ({"temperature": 0.5}, "temperature is an option of SamplingParams, not of "),
        ({"xyzzy": 1}, "() has no option 'xyzzy'"),
    ],
)
def test_keywords_of_calls_that_are_none_here(
    llm: LLM, options: dict[str, Any], words: str
) -> None:
    for call in (llm.generate, llm.chat, llm.embed):
        with pytest.raises(RequestError, match=re.escape(words)) as seen:
            call(CHAT, **options)  # type: ignore[operator]
        assert [seen.value.param] == list(options)


def test_keywords_of_calls_that_ask_for_nothing(llm: LLM) -> None:
    options: Any = {"lora_request": None, "prompt_token_ids": None, "mm_processor_kwargs": {}}
    assert llm.generate("a", greedy(max_tokens=1), **options)[0].finished
    options["chat_template_content_format"] = "auto"
    assert llm.chat(CHAT, greedy(max_tokens=1), **options)[0].finished


def test_names_that_are_none_here(llm: LLM) -> None:
    for owner, names in ((llm, OF_LLM), (penstock, OF_PACKAGE), (llm.tokenizer, OF_TOKENIZER)):
        for name, hint in names.items():
            with pytest.raises(AttributeError, match=re.escape(f"{name!r}: {hint}")):
                getattr(owner, name)
        with pytest.raises(AttributeError, match=r"no attribute 'xyzzy'$"):
            getattr(owner, "xyzzy")  # noqa: B009


def greedy(**options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, **{"max_tokens": 12, **options})


def text(llm: LLM, prompt: Any = PROMPT, **options: Any) -> str:
    (output,) = llm.generate(prompt, greedy(**options))
    return output.outputs[0].text


def test_sampling_params_by_their_name(llm: LLM) -> None:
    outputs = llm.generate([PROMPT], sampling_params=greedy())
    assert outputs[0].outputs[0].text == text(llm)
    assert llm.chat(CHAT, sampling_params=greedy())[0].finished
    for call in (llm.generate, llm.chat):
        with pytest.raises(RequestError, match="params and sampling_params are the same; give one"):
            call(CHAT, greedy(), sampling_params=greedy())  # type: ignore[operator]
    pooling = penstock.PoolingParams()
    with pytest.raises(RequestError, match="pooling and pooling_params are the same; give one"):
        llm.embed(PROMPT, pooling, pooling_params=pooling)


def test_one_stop_string_is_one(llm: LLM) -> None:
    whole = text(llm)
    assert "\nimport" in whole
    assert text(llm, stop="\nimport") == whole.partition("\nimport")[0]


def test_the_tokenizer(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer.decode(tokenizer.encode("def f")) == "def f"
    shown = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert "Reverse a list." in shown
    with pytest.raises(RequestError, match="gives text"):
        tokenizer.apply_chat_template(CHAT, tokenize=True)


def test_numpys_ids(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode(PROMPT)
    expected = text(llm)
    for given in (np.array(ids), list(np.array(ids)), tuple(ids), np.array(ids, np.int32)):
        assert text(llm, {"prompt_token_ids": given}) == expected
    for wrong in ([1.0], [True], ["1"], np.array([1.5]), [np.float64(1)], [np.bool_(True)]):
        with pytest.raises(RequestError, match="token ids are integers"):
            llm.generate({"prompt_token_ids": wrong})  # type: ignore[typeddict-item]


class Bar:
    """Stands in for tqdm."""

    made: list[dict[str, Any]] = []  # noqa: RUF012
    done = 0

    def __init__(self, **options: Any) -> None:
        Bar.made.append(options)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing."""

    def update(self) -> None:
        Bar.done += 1


def test_a_bar(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate([PROMPT] * 3, greedy(), use_tqdm=Bar)
    assert Bar.made[0]["total"] == Bar.done == 3
    assert capsys.readouterr().err == ""
    llm.generate([PROMPT] * 3, greedy(), use_tqdm=True)
    assert "3/3" in capsys.readouterr().err


def rendered(llm: LLM, **options: Any) -> str:
    (output,) = llm.chat(CHAT, greedy(max_tokens=1), **options)
    return llm.get_tokenizer().decode(output.prompt_token_ids, skip_special_tokens=False)


def test_chats(llm: LLM) -> None:
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {}}}
    own = "Reverse a list.\n"
    assert rendered(llm, chat_template=TEMPLATE) == own + "def "
    assert rendered(llm, chat_template=TEMPLATE, add_generation_prompt=False) == own
    assert rendered(llm, chat_template=TEMPLATE, tools=[tool]) == own + "look_updef "
    options = {"word": "a "}
    assert rendered(llm, chat_template=TEMPLATE, chat_template_kwargs=options) == own + "a def "
    assert rendered(llm) != own + "def "
    with pytest.raises(ConfigError, match="chat_template must be"):
        llm.chat(CHAT, chat_template=" ")


USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "messages must hold at least one message"),
        ([[]], "messages[0] must hold at least one message"),
        ([[USER], []], "messages[1] must hold at least one message"),
        ("Hi", "messages must be a list of messages such as"),
        (USER, "messages must be a list of messages such as"),
        (None, "messages must be a list of messages such as"),
        ([[USER], "Hi"], "messages[1] must be a list of messages such as"),
        (["Hi"], "messages[0] must be a dict such as"),
        ([USER, 5], "messages[1] must be a dict such as"),
        ([{"role": "user"}], "messages[0].content is required"),
        ([[{"content": "Hi"}]], "messages[0][0].role is required"),
    ],
)
def test_what_is_no_conversation(llm: LLM, messages: Any, words: str) -> None:
    with pytest.raises(RequestError, match=re.escape(words)) as refused:
        llm.chat(messages, chat_template=TEMPLATE)
    assert refused.value.param == "messages"


def test_tokens_that_are_allowed(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    allowed = tokenizer.encode("abc", add_special_tokens=False)
    for temperature in (0.0, 1.0):
        params = SamplingParams(
            temperature=temperature, max_tokens=8, allowed_token_ids=allowed, seed=1
        )
        (output,) = llm.generate(PROMPT, params)
        assert set(output.outputs[0].token_ids) <= set(allowed)
    one = text(llm, allowed_token_ids=np.array(allowed[:1]), logit_bias={allowed[0]: -100.0})
    assert one == tokenizer.decode(allowed[:1]) * 12
    with pytest.raises(RequestError, match="outside the vocabulary"):
        llm.generate(PROMPT, SamplingParams(allowed_token_ids=[10**6]))


def test_words_that_are_bad(llm: LLM) -> None:
    whole = text(llm, max_tokens=40)
    word = whole.split()[0]
    for bad in (word, [word, "import"], ["é /(.*)\n|\\", word]):
        without = text(llm, max_tokens=40, bad_words=bad)
        assert word not in without
        assert len(without) > 10
    assert text(llm, max_tokens=40, bad_words=["never in it"]) == whole


def test_a_prompt_that_is_cut(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("x = 1\n" * 200)
    params = greedy(truncate_prompt_tokens=20)
    (output,) = llm.generate({"prompt_token_ids": ids}, params)
    assert output.prompt_token_ids == ids[-20:]
    (output,) = llm.generate("x = 1\n" * 200, greedy(truncate_prompt_tokens=-1))
    assert len(output.prompt_token_ids) == 128 - 12
    with pytest.raises(RequestError, match="128"):
        llm.generate({"prompt_token_ids": ids}, greedy())
