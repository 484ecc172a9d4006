"""Chat templates: the conventions they are written for, and what a hostile one can do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from jinja2 import nodes

from penstock.errors import RequestError, TokenizerError
from penstock.tokenizer import Tokenizer
from penstock.tokenizer.chat import ChatTemplate
from penstock.tokenizer.chat_variables import chat_template_kwargs, variables_read

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": "Hi <b> & 'you' é"}


def render(source: str, messages: Any = (USER,), **options: Any) -> str:
    return ChatTemplate(source, TOKENS).render(messages, **options)


def test_conventions() -> None:
    source = """{{ bos_token }}
{%- for message in messages %}
    {% if message.role == 'skip' %}{% continue %}{% endif %}
    {% if message['role'] == 'end' %}
        {% break %}
    {% endif %}
[{{ message['role'] }}] {{ message.content | trim }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}[assistant]{% endif %}"""
    messages = [USER, {"role": "skip"}, {"role": "bot", "content": " ok "}, {"role": "end"}]
    assert render(source, messages) == ("<s>[user] Hi <b> & 'you' é</s>\n[bot] ok</s>\n[assistant]")
    assert render(source, messages, add_generation_prompt=False).endswith("ok</s>\n")


def test_to_json_keeps_html_and_unicode() -> None:
    assert render("{{ messages[0] | tojson }}") == (
        '{"role": "user", "content": "Hi <b> & \'you\' é"}'
    )
    assert render("{{ {'b': 1, 'a': [2]} | tojson(indent=2, sort_keys=true) }}") == (
        '{\n  "a": [\n    2\n  ],\n  "b": 1\n}'
    )


def test_tools_documents_and_options() -> None:
    source = "{{ tools }} {{ documents }} {{ enable_thinking is defined and enable_thinking }}"
    assert render(source) == "None None False"
    assert (
        render(
            source, tools=[{"a": 1}], documents=[], chat_template_kwargs={"enable_thinking": True}
        )
        == "[{'a': 1}] [] True"
    )


def test_options_cannot_replace_what_the_caller_passes() -> None:
    assert render("{{ messages | length }}", chat_template_kwargs={"messages": []}) == "1"


def test_time_and_generation_blocks() -> None:
    assert render("{{ strftime_now('%Y') }}") in {str(datetime.now().year + d) for d in (-1, 0)}
    assert render("a{% generation %}{{ messages[0].role }}{% endgeneration %}b") == "auserb"


def test_continue_final_message() -> None:
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}</s>{% endfor %}"
    messages = [USER, {"role": "assistant", "content": " The answer "}]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    assert render(source, messages, **options).endswith("[assistant]The answer")
    with pytest.raises(RequestError, match="exclude each other"):
        render(source, messages, continue_final_message=True)
    with pytest.raises(RequestError, match="text content"):
        render(source, [{"role": "assistant", "content": None}], **options)
    with pytest.raises(RequestError, match="changes the last message"):
        render("x", messages, **options)


def test_refusals_and_failures_carry_the_message() -> None:
    with pytest.raises(RequestError, match="refused: roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"
    for source in ("{{ nothing.attribute }}", "{{ messages[0].content + 1 }}", "{{ 1 / 0 }}"):
        with pytest.raises(RequestError, match="failed on these messages"):
            render(source)
    with pytest.raises(TokenizerError, match="line 2"):
        ChatTemplate("\n{% endfor %}", TOKENS)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ self.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(RequestError):
        render(source)


DOUBLE = (
    "{{% set n = namespace(s='x') %}}{{% for i in range(28) %}}{{% set n.s = {} %}}{{% endfor %}}"
)


@pytest.mark.parametrize(
    "source",
    [
        # Sizes are beyond the limits, but harmless to the machine if a limit is missing.
        "{% for i in range(10**7) %}x{% endfor %}",
        "{% for i in range(3000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}",
        "{% for i in range(400) %}{% for j in range(99) %}{{ 'x' * 1000 }}{% endfor %}{% endfor %}",
        "{{ 'x' * 10**8 }}",
        "{{ 10**8 * 'x' }}",
        "{{ [0] * 10**8 }}",
        "{{ 9 ** 2000 }}",
        "{{ 2000 ** 9 }}",
        "{{ '%99999999d' % 1 }}",
        "{{ '{:99999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 99999999) }}",
        "{{ '{a:99999999}'.format_map({'a': 1}) }}",
        "{{ '%99999999d' | format(1) }}",
        "{{ '%*d' % (99999999, 1) }}",
        "{{ 'x'.ljust(10**8) }}",
        "{{ 'x' | center(10**8) }}",
        "{{ 'x\ny' | indent(10**8) }}",
        DOUBLE.format("n.s ~ n.s"),
        DOUBLE.format("n.s + n.s"),
        "{% set n = namespace(i=9) %}{% for i in range(22) %}{% set n.i = n.i * n.i %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_bombs_are_defused(source: str) -> None:
    with pytest.raises(RequestError, match=r"too much|recurses"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ [[1]] | tojson(indent=9) }}",
        "{{ 'x' * 9 ~ 'y' }}{% if 'x' * 9 == [1] | length %}{% endif %}{% set a = ('b' * 9)[0] %}",
        "{% for a in 'x' * 9 %}{% for b in 'x'.ljust(9) %}{{ a }}{% endfor %}{% endfor %}",
        "{% autoescape [1] | length * 9 %}{{ 1 }}{% endautoescape %}",
        "{% call(a) b('x' * 9) %}{{ 2 ** 9 }}{% endcall %}",
        "{% filter center(9 * 9) %}x{% endfilter %}",
        "{% macro f(a='x' * 9) %}{{ (1, 'x' * 9) | join }}{% endmacro %}",
    ],
)
def test_what_is_only_loaded_computes_nothing(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []

    def compute(node: nodes.Node, eval_ctx: object = None) -> object:
        computed.append(type(node).__name__)
        raise nodes.Impossible

    operations = nodes.BinExpr, nodes.UnaryExpr, nodes.Filter, nodes.Test, nodes.Concat
    for kind in (*operations, nodes.Compare, nodes.Getitem, nodes.Getattr, nodes.List):
        monkeypatch.setattr(kind, "as_const", compute)
    variables_read(source)
    ChatTemplate(source, TOKENS)
    assert computed == []


def test_escapes_are_of_the_block_that_asks_for_them() -> None:
    source = "{% autoescape 1 == 1 %}{{ messages[0].content }}{% endautoescape %}{{ '<' }}"
    assert render(source) == "Hi &lt;b&gt; &amp; &#39;you&#39; é<"


def test_ordinary_sizes_pass() -> None:
    assert len(render("{{ '-' * 1000 }}{{ 'x'.ljust(500) }}{{ '%05d' % 7 }}")) == 1505
    assert render("{% for i in range(3, 0, -1) %}{{ i }}{% endfor %}{{ 2 ** 10 }}") == "3211024"
    assert render("{{ 'a' ~ 1 ~ none }}") == "a1None"
    long = "word " * 200_000
    assert render("{{ messages[0].content }}", [{"content": long}]) == long


def test_a_real_template(gguf_tokenizer: Callable[[str], Tokenizer]) -> None:
    qwen = gguf_tokenizer("qwen2")
    text = qwen.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert qwen.encode(text, add_special_tokens=False)[0] == 151644


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{" + "(" * 100_000, "nested too deep"),
        ("{{ " + "[" * 3000 + "]" * 3000 + " }}", "nested too deep"),
        ("{% for a in b %}" * 60 + "{% endfor %}" * 60, "nested too deep|cannot be compiled"),
        ("{{ " + "not " * 50_000 + "a }}", "nested too deep"),
        ("a" * (1 << 20) + "b", "1048577 characters"),
    ],
)
def test_sources_that_cannot_be_compiled(source: str, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        ChatTemplate(source, {})
    assert variables_read(source) <= {"a", "b"}


def test_variables_that_whoever_asks_may_set() -> None:
    source = """{{ bos_token }}{% for m in messages %}{{ m }}{{ loop.index }}{% endfor %}
{% set ns = namespace(x=1) %}{{ raise_exception('') if tools }}{{ strftime_now('%d') }}
{% set thinking = thinking | default(true) %}{% if tone is defined %}{% endif %}"""
    assert chat_template_kwargs([source, "{{ mood }}"]) == ("mood", "thinking", "tone")
    assert chat_template_kwargs(["{% if %}"]) == ()
