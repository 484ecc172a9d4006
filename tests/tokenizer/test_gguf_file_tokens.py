"""Control tokens, ends, and what a GGUF file says around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.gguf_files import write_metadata

from penstock.errors import RequestError, TokenizerError
from penstock.parsing.styles import Styles
from penstock.tokenizer import Tokenizer, load_tokenizer
from penstock.tokenizer.pieces import byte_alphabet

CONTROL, USER, UNUSED = 3, 4, 5


def load(folder: Path, special: dict[str, int], pairs: Any = (), **ggml: Any) -> Tokenizer:
    """A tokenizer of bytes, of ``ab``, and of special tokens with their kinds."""
    alphabet = [*byte_alphabet()]
    return load_tokenizer(
        write_metadata(
            folder / "model.gguf",
            dict(pairs),
            model="gpt2",
            pre="gpt-2",
            tokens=[*alphabet, "ab", *special],
            token_type=[1] * 257 + list(special.values()),
            merges=["a b"],
            **ggml,
        )
    )


def test_kinds(tmp_path: Path) -> None:
    kinds = {"<|a|>": CONTROL, "<tag>": USER, "[PAD]0": UNUSED, "<?>": 2, "odd": 9}
    tokenizer = load(tmp_path, kinds)
    a, tag, pad, unknown, odd = range(257, 262)
    assert tokenizer.special_ids == {a, unknown}
    assert tokenizer.encode("<|a|><tag>[PAD]0<?>")[:2] == [a, tag]
    plain = tokenizer.encode("<|a|><tag>[PAD]0<?>", parse_special=False)
    assert not {a, pad, unknown, odd} & {*plain}
    assert tag in plain  # of any text
    assert tokenizer.decode(plain) == "<|a|><tag>[PAD]0<?>"
    assert [tokenizer.token_text(token) for token in (a, tag, pad, odd)] == [
        "<|a|>",
        "<tag>",
        "",
        "",
    ]
    assert tokenizer.decode([256, pad, a, odd, 256]) == "abab"


def test_ends_by_field_and_by_name(tmp_path: Path) -> None:
    names = {
        "<end>": CONTROL,
        "<turn>": CONTROL,
        "<more>": CONTROL,
        "<|im_end|>": 1,
        "<|x|>": CONTROL,
    }
    tokenizer = load(tmp_path, names, eos_token_id=258, eot_token_id=257, eom_token_id=259)
    assert tokenizer.eos_token_ids == (258, 257, 259, 260)
    assert 260 in tokenizer.special_ids  # by its name, whatever the file calls it
    assert tokenizer.encode("<|im_end|>") == [260]
    assert 260 not in tokenizer.encode("<|im_end|>", parse_special=False)


def test_around_a_text(tmp_path: Path) -> None:
    kinds = {"<s>": CONTROL, "<end>": CONTROL}
    both = load(tmp_path, kinds, bos_token_id=257, eos_token_id=258, add_bos_token=True)
    assert both.encode("ab") == [257, 256]
    assert both.encode("ab", add_special_tokens=False) == [256]
    suffix = load(tmp_path, kinds, bos_token_id=257, eos_token_id=258, add_eos_token=True)
    assert suffix.encode("ab") == [256, 258]
    assert suffix.settings.special_tokens == {"bos_token": "<s>", "eos_token": "<end>"}
    with pytest.raises(TokenizerError, match=r"add_eos_token is true, and .* no .*eos_token_id"):
        load(tmp_path, kinds, add_eos_token=True)


def test_phi_3_takes_the_space_behind_its_marks(tmp_path: Path) -> None:
    kinds = {"<|user|>": CONTROL, "<s>": CONTROL}
    phi = load(tmp_path, kinds, {"general.name": "Phi-3 mini"})
    assert phi.encode("<|user|>\n ab<s> ab")[:4] == [257, 256, 258, phi.encode(" ")[0]]
    other = load(tmp_path, kinds)
    assert len(other.encode("<|user|>\n ab")) == 4


def test_empty_tokens_have_names(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, {"": 1})
    assert tokenizer.token_id("[EMPTY_257]") == 257


def test_chat_templates(tmp_path: Path) -> None:
    key = "tokenizer.chat_template"
    hello = [{"role": "user", "content": "hi"}]
    pairs = {key: "{{ messages[0].content }}{{ eos_token }}", f"{key}.tool_use": "tools"}
    pairs |= {"tokenizer.chat_templates": ["tool_use", "rag"], f"{key}.rag": "documents"}
    tokenizer = load(tmp_path, {"<end>": CONTROL}, pairs, eos_token_id=257)
    assert tokenizer.settings.chat_templates.keys() == {"default", "tool_use", "rag"}
    assert tokenizer.apply_chat_template(hello) == "hi<end>"
    assert tokenizer.apply_chat_template(hello, tools=[{"name": "f"}]) == "tools"
    bare = load(tmp_path, {})
    with pytest.raises(RequestError, match="no chat template"):
        bare.apply_chat_template(hello)
    with pytest.raises(TokenizerError, match=f"{key} is not a text"):
        load(tmp_path, {}, {key: 3})
    with pytest.raises(TokenizerError, match=r"not valid Jinja.*--chat-template"):
        load(tmp_path, {}, {key: "{% for"})
    broken = load_tokenizer(tmp_path / "model.gguf", check_templates=False)
    other = broken.with_chat_template("{{ messages[0].content }}!")
    assert other.apply_chat_template(hello) == "hi!"
    with pytest.raises(TokenizerError, match="not valid Jinja"):
        broken.apply_chat_template(hello)


def test_parts_of_a_split_model(tmp_path: Path) -> None:
    first = load(tmp_path, {"<end>": CONTROL}, {"split.no": 0, "split.count": 2}, eos_token_id=257)
    assert first.eos_token_ids == (257,)
    second = write_metadata(tmp_path / "second.gguf", {"split.no": 1, "split.count": 2})
    with pytest.raises(TokenizerError, match="later part of a split model"):
        load_tokenizer(second)
    named = second.rename(tmp_path / "m-00002-of-00002.gguf")
    with pytest.raises(TokenizerError, match="later part of a split model"):
        load_tokenizer(named)  # the first is elsewhere
    (tmp_path / "model.gguf").rename(tmp_path / "m-00001-of-00002.gguf")
    assert load_tokenizer(named).eos_token_ids == (257,)


def test_parsers_are_chosen_by_the_template(tmp_path: Path) -> None:
    template = "{% for tool in tools %}<tool_call>{{ tool | tojson }}</tool_call>{% endfor %}"
    template += "<think>{{ enable_thinking }}</think>"
    tokenizer = load(tmp_path, {}, {"tokenizer.chat_template": template})
    found = Styles.choose("auto", "auto", tokenizer.settings.chat_templates)
    assert found == Styles.choose("auto", "auto", {"default": template})
    assert found != Styles.choose("auto", "auto", {})
