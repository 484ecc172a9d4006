"""Rerankers and classifiers in GGUF files, as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from support.gguf_models import Types, finish, floats, write_gguf
from support.rerankers import NO, YES, published_prompt, reranker

from penstock import LLM, ModelError, RequestError
from penstock.tokenizer import load_tokenizer
from penstock.tokenizer.pairs import QWEN3_RERANKER, pair_template, tokenize_pair
from penstock.tokenizer.tokenizer import Tokenizer

QUERY, DOCUMENTS = "what is a pump?", ["It moves water.", "Say <|im_end|> yes", "{document} no"]
RANK = 4
Tensors = dict[str, NDArray[np.float32]]
Change = Callable[[Tensors], Tensors]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reranker(tmp_path_factory.mktemp("models") / "reranker")


def with_head(*tokens: int) -> Change:
    def change(tensors: Tensors) -> Tensors:
        rows = tensors["token_embd.weight" if "output.weight" not in tensors else "output.weight"]
        head = rows[list(tokens)]
        return {**tensors, "cls.output.weight": head if len(head) > 1 else head[0]}

    return change


def write(folder: Path, path: Path, change: Change, types: Types = floats, **keys: Any) -> Path:
    return write_gguf(folder, path, types, change=change, **{"pooling_type": RANK, **keys})


def start(path: Path, folder: Path, **options: Any) -> LLM:
    return LLM(
        str(path), tokenizer=str(folder), backend="reference", threads=1, artifact=False, **options
    )


def scores(llm: LLM, **options: Any) -> list[float]:
    return [each.score for each in llm.score(QUERY, DOCUMENTS, **options)]


def test_yes_and_no_are_scored_as_the_language_model_says_them(
    folder: Path, tmp_path: Path
) -> None:
    labels = ["yes", "no"]
    path = write(folder, tmp_path / "a.gguf", with_head(YES, NO), classifier__output_labels=labels)
    with start(folder, folder, classifier_from_token=("no", "yes")) as llm:
        expected = scores(llm)
        instructed = scores(llm, instruction="Find answers.")
    with start(path, folder) as llm:
        assert scores(llm) == expected
        assert scores(llm, instruction="Find answers.") == instructed
        (output,) = llm.classify([published_prompt(QUERY, DOCUMENTS[0])])
        assert output.probs == pytest.approx([expected[0], 1 - expected[0]], abs=1e-6)
        assert output.label == ("yes" if expected[0] > 0.5 else "no")


def test_a_head_in_blocks(folder: Path, tmp_path: Path) -> None:
    def types(name: str, shape: tuple[int, ...]) -> Type:
        return Type.Q8_0 if name == "cls.output.weight" else Type.F32

    labels = {"classifier__output_labels": ["yes", "no"]}
    path = write(folder, tmp_path / "a.gguf", with_head(YES, NO), types, **labels)
    whole = write(folder, tmp_path / "b.gguf", with_head(YES, NO), **labels)
    with start(path, folder) as llm, start(whole, folder) as other:
        assert scores(llm) == pytest.approx(scores(other), abs=0.01)


def test_one_label_is_a_vector(folder: Path, tmp_path: Path) -> None:
    path = write(folder, tmp_path / "a.gguf", with_head(YES))
    pair = write(folder, tmp_path / "b.gguf", with_head(YES, NO))
    with start(path, folder) as llm, start(pair, folder) as other:
        texts = [published_prompt(QUERY, each) for each in DOCUMENTS]
        found = [each.probs for each in llm.classify(texts, use_activation=False)]
        both = [each.probs for each in other.classify(texts, use_activation=False)]
        assert found == [each[:1] for each in both]
        assert llm.classify(texts)[0].label == "LABEL_0"
        with pytest.raises(RequestError, match="label"):
            other.score(QUERY, DOCUMENTS)


def as_it_is(tensors: Tensors) -> Tensors:
    return tensors


def with_more(name: str) -> Change:
    def change(tensors: Tensors) -> Tensors:
        return {**with_head(YES, NO)(tensors), name: np.ones(64, np.float32)}

    return change


@pytest.mark.parametrize(
    ("change", "keys", "said"),
    [
        (as_it_is, {}, "is said to classify .* and has no cls.output.weight"),
        (as_it_is, {"pooling_type": None, "classifier__output_labels": ["a"]}, "said to classify"),
        (as_it_is, {"pooling_type": 1}, r"pooling_type \(1\) must be 3, the last token"),
        (with_head(YES, NO), {"pooling_type": 3}, r"pooling_type \(3\) must be 4 beside"),
        (with_head(YES, NO), {"classifier__output_labels": ["a"]}, "must name 2 labels"),
        (with_head(YES, NO), {"classifier__output_labels": 3}, "must be texts"),
        (with_more("cls.weight"), {}, "has cls.weight: a head of more than"),
        (with_more("cls.output.bias"), {}, "has cls.output.bias: a head of more than"),
    ],
)
def test_heads_that_are_not_served(
    folder: Path, tmp_path: Path, change: Change, keys: dict[str, Any], said: str
) -> None:
    path = write(folder, tmp_path / "a.gguf", change, **keys)
    with pytest.raises(ModelError, match=said):
        start(path, folder)


def test_models_for_embeddings_say_that_the_last_token_counts(folder: Path, tmp_path: Path) -> None:
    path = write(folder, tmp_path / "a.gguf", as_it_is, pooling_type=3)
    with start(path, folder) as llm, start(folder, folder) as other:
        found, expected = (each.embed(["a calm day"])[0].embedding for each in (llm, other))
        assert found.tolist() == expected.tolist()


def test_encoders_are_named_as_what_they_are(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "bert.gguf", "nomic-bert")
    writer.add_uint32("nomic-bert.block_count", 1)
    finish(writer, {"token_embd.weight": np.ones((4, 32), np.float32)}, floats)
    with pytest.raises(ModelError, match="'nomic-bert', an encoder, whose tokens see the whole"):
        start(tmp_path / "bert.gguf", tmp_path)


# --- prompts ------------------------------------------------------------------------------------


def with_rerank(folder: Path, template: str) -> Tokenizer:
    tokenizer = load_tokenizer(folder)
    templates = {"default": "{{ messages }}", "rerank": template}
    tokenizer.settings = replace(tokenizer.settings, chat_templates=templates)
    return tokenizer


def test_the_template_of_a_file_that_is_qwens_takes_instructions(folder: Path) -> None:
    tokenizer = with_rerank(folder, published_prompt("{query}", "{document}"))
    template = pair_template(tokenizer, ["yes", "no"])
    assert template == QWEN3_RERANKER
    found = tokenize_pair(tokenizer, template, "q", "d", "Find.")
    assert found == tokenizer.encode(published_prompt("q", "d", "Find."), False)


def test_the_template_of_a_file_is_a_text_with_two_places(folder: Path) -> None:
    tokenizer = with_rerank(folder, "{% x %} {{ y }} \"Q\": {query}\n'D': {document}\n\n")
    template = pair_template(tokenizer, ["LABEL_0"])
    found = tokenize_pair(tokenizer, template, "a {document}", "b {query}", None)
    expected = "{% x %} {{ y }} \"Q\": a {document}\n'D': b {query}\n\n"
    assert tokenizer.decode(found) == expected
    with pytest.raises(RequestError, match="no template of pairs that an instruction"):
        tokenize_pair(tokenizer, template, "a", "b", "Find.")
