"""Gaps in texts that models fill: ``suffix`` of completions, and llama-server's ``/infill``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support import byte_tokenizer
from support.http_client import Server, running

from penstock.server.errors import ApiError
from penstock.server.fill import Gap

COMPLETIONS = "/v1/completions"

EXTRA = [{"filename": "a.py", "text": "x = 1"}]


@pytest.fixture(scope="module", params=["<|fim_{}|>", "[{}]"])
def filling_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One whose tokenizer has tokens for gaps, of the numbers 256, 258 and 259."""
    folder = byte_tokenizer.write(tmp_path_factory.mktemp("filling"))
    path = folder / "tokenizer.json"
    text = path.read_text()
    for name, other in (("<s>", "prefix"), ("<|im_start|>", "suffix"), ("<|im_end|>", "middle")):
        mark = request.param.format(other if "fim" in request.param else other.upper())
        text = text.replace(f'"{name}"', f'"{mark}"')
    path.write_text(text.replace("</s>", "<|endoftext|>"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    with running(folder, 1) as server:
        yield server


def completed(server: Server, tokens: list[int]) -> Any:
    body = {"prompt": tokens, "n_predict": 6, "temperature": 0}
    return server.post("/completion", body).json()


def test_a_gap_is_filled(filling_server: Server) -> None:
    """Names of the tokens in what a client writes are text."""
    text = "a<|fim_suffix|>[SUFFIX]"
    body = {
        "input_prefix": text,
        "input_suffix": "b",
        "input_extra": EXTRA,
        "prompt": "c",
        "n_predict": 6,
        "temperature": 0,
    }
    answer = filling_server.post("/infill", body)
    assert answer.status_code == 200, answer.text
    if answer.json()["prompt"].startswith("x = 1\n[SUFFIX]"):
        tokens = [*b"x = 1\n", 258, *b"b", 256, *text.encode(), *b"c"]
    else:
        tokens = [*b"x = 1\n", 256, *text.encode(), 258, *b"b", 259, *b"c"]
    same = completed(filling_server, tokens)
    assert answer.json()["content"] == same["content"]
    assert answer.json()["prompt"] == same["prompt"]
    assert answer.json()["tokens_evaluated"] == len(tokens)


def test_a_model_that_cannot_fill_in(server: Server) -> None:
    answer = server.post("/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert answer.status_code == 400
    assert "cannot fill in" in answer.json()["error"]["message"]


def filled(server: Server, **fields: Any) -> Any:
    return server.http.post(COMPLETIONS, json={"max_tokens": 6, "temperature": 0, **fields})


@pytest.mark.parametrize("stream", [False, True])
def test_a_suffix(filling_server: Server, stream: bool) -> None:
    """Each of several prompts has a gap of its own before the same text."""
    name = "<|fim_suffix|>"
    prompts: list[Any] = [f"a{name}", ""]
    answer = filled(filling_server, prompt=prompts, suffix="b", stream=stream)
    assert answer.status_code == 200, answer.text
    texts = ["", ""]
    if stream:
        for line in answer.text.split("\n\n")[:-2]:
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                texts[choice["index"]] += choice["text"]
    else:
        texts = [choice["text"] for choice in answer.json()["choices"]]
    for prompt, text in zip(prompts, texts, strict=True):
        tokens = [256, *prompt.encode(), 258, *b"b", 259]
        if filling_server.post("/tokenize", {"content": name}).json()["tokens"] != [258]:
            tokens = [258, *b"b", 256, *prompt.encode()]
        assert text == completed(filling_server, tokens)["content"]
    of_tokens = filled(filling_server, prompt=list(prompts[0].encode()), suffix="b").json()
    assert of_tokens["choices"][0]["text"] == texts[0]


@pytest.mark.parametrize("prompt", ["a", ""])
def test_ollamas_suffix(filling_server: Server, prompt: str) -> None:
    options = {"num_predict": 6, "temperature": 0}
    body = {"model": "fake", "prompt": prompt, "suffix": "b", "options": options, "stream": False}
    answer = filling_server.post("/api/generate", body)
    assert answer.status_code == 200, answer.text
    (choice,) = filled(filling_server, prompt=prompt, suffix="b").json()["choices"]
    assert answer.json()["response"] == choice["text"]
    ended = filling_server.post("/api/generate", {**body, "prompt": "SAY<<x>>"}).json()
    assert (ended["response"], ended["done_reason"]) == ("x", "stop")
    bad = filling_server.post("/api/generate", {**body, "system": "Be brief."})
    assert (bad.status_code, "system" in bad.json()["error"]) == (400, True)


def test_what_ends_a_gap(filling_server: Server) -> None:
    fields: dict[str, Any] = {"prompt": "SAY<<x>>", "suffix": "b"}
    (choice,) = filled(filling_server, **fields).json()["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("x", "stop", 257)
    (choice,) = filled(filling_server, **fields, ignore_eos=True).json()["choices"]
    assert choice["stop_reason"] is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True}, "echo"),
        ({"truncate_prompt_tokens": 2}, "truncate_prompt_tokens"),
        ({"suffix": 3}, "suffix"),
        ({"suffix": ["b"]}, "suffix"),
        ({"suffix": "b" * 4096}, "prompt"),
        ({"prompt": []}, "prompt"),
    ],
)
def test_bad_input(filling_server: Server, fields: dict[str, Any], param: str) -> None:
    answer = filled(filling_server, **{"prompt": "a", "suffix": "b", **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_model_without_tokens_for_gaps(server: Server) -> None:
    answer = filled(server, prompt="a", suffix="b")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "suffix")
    assert error["code"] == "unsupported_parameter"
    assert filled(server, prompt="a", suffix="").status_code == 200


class Vocabulary:
    """A tokenizer's names alone."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def token_id(self, name: str) -> int | None:
        return self._names.index(name) if name in self._names else None


@pytest.mark.parametrize(
    ("names", "order", "ends"),
    [
        # Qwen2.5-Coder; DeepSeek-Coder; Code Llama; Codestral
        (("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|file_sep|>"),
         [0, 10, 1, 11, 2], (3, 4)),
        (("<｜fim▁end｜>", "<｜fim▁begin｜>", "<｜fim▁hole｜>"), [1, 10, 2, 11, 0], ()),
        (("▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>"), [0, 10, 2, 11, 1], (3,)),
        (("[SUFFIX]", "[PREFIX]"), [0, 11, 1, 10], ()),
    ],
)  # fmt: skip
def test_each_makers_order(names: tuple[str, ...], order: list[int], ends: tuple[int, ...]) -> None:
    vocabulary: Any = Vocabulary(*names)
    gap = Gap.of(vocabulary, "suffix", "")
    assert gap.prompt([10], [11], before=[9]) == [9, *order]
    assert gap.ends == ends
    with pytest.raises(ApiError):
        Gap.of(Vocabulary(*names[:1]), "suffix", "")  # type: ignore[arg-type]
