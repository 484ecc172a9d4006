"""Loading checkpoint folders, encoding, and the errors of what is missing or damaged."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.errors import RequestError, TokenizerError, as_error
from penstock.tokenizer import Tokenizer, load_tokenizer
from penstock.tokenizer.codec import LibraryCodec

MakeFolder = Callable[..., Path]


def test_stories(stories: Tokenizer) -> None:
    assert stories.encode("Once upon a time") == [1, 403, 407, 261, 378]
    assert stories.bos_token_id == 1
    assert stories.eos_token_ids == (2,)
    assert stories.eos_token_id == 2
    assert stories.vocab_size == 512
    assert not stories.has_chat_template
    with pytest.raises(RequestError, match="no chat template"):
        stories.apply_chat_template([{"role": "user", "content": "hi"}])


def test_a_tokenizer_of_another_model(byte_level_backend: str, make_folder: MakeFolder) -> None:
    """Tokens that were added may lie beyond the model's vocabulary, and others not."""
    tokenizer = load_tokenizer(make_folder(byte_level_backend))
    own = tokenizer.vocab_size - 1  # but for <think>
    for vocab_size in (own + 10, own + 1, own):
        tokenizer.check_model(vocab_size)
    with pytest.raises(
        TokenizerError, match=rf"has {own} tokens, and the model {own - 1}: .*--tok"
    ):
        tokenizer.check_model(own - 1)


def test_special_tokens_around_a_text_follow_the_configuration(
    spm_backend: str, stories: Tokenizer, make_folder: MakeFolder
) -> None:
    names = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"}

    def ids(**config: object) -> list[int]:
        folder = make_folder(spm_backend, tokenizer_config={**names, **config})
        return load_tokenizer(folder).encode("a")

    a = ids()
    assert ids(add_bos_token=True) == [1, *a]
    assert ids(add_bos_token=True, add_eos_token=True) == [1, *a, 2]
    assert isinstance(stories.codec, LibraryCodec)
    with_template = stories.codec.library.to_str()  # its post-processor adds BOS
    folder = make_folder(with_template, tokenizer_config={**names, "add_bos_token": False})
    assert load_tokenizer(folder).encode("a")[0] != 1
    folder = make_folder(with_template, special_tokens_map=names)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("a")[0] == tokenizer.bos_token_id == 1
    assert tokenizer.encode("a", add_special_tokens=False)[0] != 1


def test_all_end_tokens_are_collected(byte_level_backend: str, make_folder: MakeFolder) -> None:
    config = {"eos_token": "</s>"}
    for declared, expected in ((None, (1,)), (2, (1, 2)), ([2, 1], (1, 2)), ([2, 0], (1, 2, 0))):
        folder = make_folder(
            byte_level_backend,
            tokenizer_config=config,
            generation_config={"eos_token_id": declared},
        )
        assert load_tokenizer(folder).eos_token_ids == expected
    folder = make_folder(byte_level_backend, generation_config={"eos_token_id": ["x"]})
    with pytest.raises(TokenizerError, match="eos_token_id"):
        load_tokenizer(folder)


def test_special_tokens_in_foreign_text(byte_level: Tokenizer) -> None:
    text = "a<|end of turn|>b</s><think>"
    parsed = byte_level.encode(text, add_special_tokens=False)
    plain = byte_level.encode(text, add_special_tokens=False, parse_special=False)
    assert {1, 2} < set(parsed)
    assert not byte_level.special_ids & set(plain)
    assert byte_level.decode(plain) == text
    assert byte_level.encode(text, add_special_tokens=False) == parsed  # no state is left behind


def test_saved_truncation_and_padding_are_not_applied(
    byte_level_backend: str, make_folder: MakeFolder
) -> None:
    state = json.loads(byte_level_backend)
    state["truncation"] = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    tokenizer = load_tokenizer(make_folder(json.dumps(state)))
    assert tokenizer.decode(tokenizer.encode("not one word is lost")) == "not one word is lost"


def test_lone_surrogates_are_a_request_error(byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"U\+D800.*character 3"):
        byte_level.encode("abc\ud800")


def test_threads_share_a_tokenizer(byte_level_backend: str, make_folder: MakeFolder) -> None:
    tokenizer = load_tokenizer(make_folder(byte_level_backend))
    expected = [tokenizer.encode("x</s>" * 50, parse_special=flag) for flag in (True, False)]
    fresh = load_tokenizer(make_folder(byte_level_backend))
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(
            lambda i: fresh.encode("x</s>" * 50, parse_special=i % 2 == 0), range(100)
        )
        assert all(ids == expected[i % 2] for i, ids in enumerate(results))


def test_token_text(byte_level: Tokenizer) -> None:
    (the,) = byte_level.encode(" the", add_special_tokens=False)
    assert byte_level.token_text(the) == " the"
    assert byte_level.token_id("</s>") == 1
    assert byte_level.token_id("absent entry") is None


def test_missing_and_corrupt_files(tmp_path: Path, byte_level_backend: str) -> None:
    with pytest.raises(TokenizerError, match="neither a folder"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json; download"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a")
    with pytest.raises(TokenizerError, match="is no SentencePiece model, or corrupt"):
        load_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    for content in (b"", b"{", b"[]", b"\xff\xfe", byte_level_backend.encode()[:-100]):
        path.write_bytes(content)
        with pytest.raises(TokenizerError, match=re.escape(str(path))):
            load_tokenizer(tmp_path)
    path.write_text(byte_level_backend, encoding="utf-8")
    for name in ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        (tmp_path / name).write_bytes(b"[1]")
        with pytest.raises(TokenizerError, match=name):
            load_tokenizer(tmp_path)
        (tmp_path / name).unlink()
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"bos_token": "<absent>"}')
    with pytest.raises(TokenizerError, match="<absent>"):
        load_tokenizer(tmp_path)
    config.write_text('{"bos_token": 5}')
    with pytest.raises(TokenizerError, match="bos_token"):
        load_tokenizer(tmp_path)


def test_where_chat_templates_are_found(byte_level_backend: str, make_folder: MakeFolder) -> None:
    def render(tools: bool = False, **files: object) -> str:
        tokenizer = load_tokenizer(make_folder(byte_level_backend, **files))
        assert tokenizer.has_chat_template
        return tokenizer.apply_chat_template([], tools=[{}] if tools else None)

    config = {"chat_template": "from config {{ eos_token }}", "eos_token": "</s>"}
    assert render(tokenizer_config=config) == "from config </s>"
    assert render(tokenizer_config=config, chat_template="from file") == "from file"
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with tools"},
    ]
    assert render(tokenizer_config={"chat_template": named}) == "plain"
    assert render(tools=True, tokenizer_config={"chat_template": named}) == "with tools"
    folder = make_folder(byte_level_backend, tokenizer_config={"chat_template": [{"name": "a"}]})
    with pytest.raises(TokenizerError, match="malformed"):
        load_tokenizer(folder)
    folder = make_folder(byte_level_backend, chat_template="{% if %}")
    with pytest.raises(TokenizerError, match="not valid Jinja"):
        load_tokenizer(folder)


def test_a_panic_of_the_library_is_an_error_of_the_request(
    byte_level_backend: str, make_folder: Callable[..., Path]
) -> None:
    state = json.loads(byte_level_backend)
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    split["pattern"] = {"Regex": r"(?:a|aa)+b"}
    byte_level = {**state["pre_tokenizer"], "use_regex": False}
    state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    tokenizer = load_tokenizer(make_folder(json.dumps(state)))
    assert tokenizer.encode("aab", False)
    with pytest.raises(RequestError, match="cannot be tokenized") as caught:
        tokenizer.encode("a" * 60, False)
    assert caught.value.param == "prompt"
    assert tokenizer.encode("aab", False)


def test_only_panics_are_taken_for_errors() -> None:
    class Panic(BaseException):
        pass

    with pytest.raises(RequestError, match="broke"), as_error(RequestError):
        raise Panic("it broke\nhere")
    for other in (KeyboardInterrupt, SystemExit, GeneratorExit, ValueError):
        with pytest.raises(other), as_error(RequestError):
            raise other


def test_both_ways_of_special_tokens_in_turn_and_in_threads(byte_level: Tokenizer) -> None:
    text = "a</s>b"
    ways = {parse: byte_level.encode(text, False, parse) for parse in (True, False)}
    assert ways[True] != ways[False]

    def encode(i: int) -> bool:
        return byte_level.encode(text, False, i % 3 == 0) == ways[i % 3 == 0]

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(encode, range(400)))


@pytest.mark.parametrize("put", [os.mkdir, os.mkfifo])
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_what_is_there_and_no_file_is_not_taken_as_absent(
    spm_backend: str, make_folder: MakeFolder, put: Callable[[Path], None], name: str
) -> None:
    folder = make_folder(spm_backend)
    (folder / name).unlink(missing_ok=True)
    put(folder / name)
    with pytest.raises(TokenizerError, match=f"{name}: it is a .*, not a regular file"):
        load_tokenizer(folder)


def test_another_chat_template(byte_level: Tokenizer) -> None:
    other = byte_level.with_chat_template("<{{ messages[0].content }}>{{ eos_token }}")
    message = {"role": "user", "content": "hi"}
    assert other.apply_chat_template([message]) == "<hi></s>"
    assert other.apply_chat_template([message], tools=[{"name": "f"}]) == "<hi></s>"
    assert other.settings.chat_templates.keys() == {"default"}
    assert other.encode("the fox") == byte_level.encode("the fox")
    assert not byte_level.has_chat_template
    with pytest.raises(TokenizerError, match=r"not valid Jinja .*--chat-template"):
        byte_level.with_chat_template("{% if")
