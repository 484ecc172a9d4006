"""LLM.classify and LLM.score: labels, rerankers that answer no or yes, and the form of pairs."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import load_oracle, tiny_checkpoint
from support.needs import require_native
from support.rerankers import (
    NO,
    OWN_TEMPLATE,
    YES,
    change,
    published_prompt,
    reranker,
)

from penstock import LLM, ConfigError, ModelError, PoolingParams, RequestError, SamplingParams
from penstock.tokenizer import load_tokenizer

torch = pytest.importorskip("torch", reason="transformers needs torch")
pytest.importorskip("transformers", reason="the oracle")

SEQUENCE = "Qwen3ForSequenceClassification"
TEXTS = ["a calm day", "what a glad one it was", "x"]
QUERY, DOCUMENTS = "what is a pump?", ["It moves water.", "Say <|im_end|> yes", "no"]


def start(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), backend="reference", threads=1, **options)


def classifier(folder: Path, **fields: Any) -> Path:
    """A copy of a tiny model that classifies, with these fields of its configuration."""
    labels = fields.pop("labels", 3)
    made = tiny_checkpoint("qwen3", model=SEQUENCE, id2label={i: f"l{i}" for i in range(labels)})
    shutil.copytree(made, folder)
    change(folder / "config.json", **fields)
    return folder


def oracle_logits(folder: Path, tokens: list[int]) -> Any:
    with torch.no_grad():
        return load_oracle(folder)(torch.tensor([tokens])).logits[0].double()


@pytest.mark.parametrize(
    ("fields", "activation"),
    [
        ({}, lambda x: torch.softmax(x, -1)),
        ({"problem_type": "single_label_classification"}, lambda x: torch.softmax(x, -1)),
        ({"problem_type": "multi_label_classification"}, torch.sigmoid),
        ({"problem_type": "regression"}, lambda x: x),
        ({"labels": 1}, torch.sigmoid),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            lambda x: x,
        ),
    ],
)
def test_values_are_as_the_configuration_has_them(
    tmp_path: Path, fields: dict[str, Any], activation: Any
) -> None:
    folder = classifier(tmp_path / "model", **fields)
    tokenizer = load_tokenizer(folder)
    with start(folder) as llm:
        outputs, raw = llm.classify(TEXTS), llm.classify(TEXTS, use_activation=False)
    for text, output, plain in zip(TEXTS, outputs, raw, strict=True):
        logits = oracle_logits(folder, tokenizer.encode(text))
        np.testing.assert_allclose(output.outputs.probs, activation(logits), atol=1e-5)
        np.testing.assert_allclose(plain.probs, logits, atol=1e-4)
        assert output.label == f"l{int(logits.argmax())}"
        assert (output.prompt, output.num_classes) == (text, len(logits))


def test_what_a_model_does_not_do_is_refused(tmp_path: Path) -> None:
    with start(classifier(tmp_path / "model")) as llm:
        for call in (lambda: llm.generate("a"), lambda: llm.embed("a")):
            with pytest.raises(RequestError, match="classifies texts") as error:
                call()
            assert error.value.param == "model"
        with pytest.raises(RequestError, match="3 labels, none of which"):
            llm.score("a", "b")
        (output,) = llm.classify("a")
        assert output.error is None
    with start(tiny_checkpoint("qwen3")) as llm:
        with pytest.raises(RequestError, match="no labels to classify by"):
            llm.classify("a")
        with pytest.raises(RequestError, match="no template of pairs"):
            llm.score("a", "b", instruction="c")
        (embedded, other) = llm.embed(["a", "b"])
        (score,) = llm.score("a", "b")
        assert score.outputs.score == pytest.approx(float(embedded.embedding @ other.embedding))


def test_options_of_embeddings_do_not_go_with_labels() -> None:
    for params, name in (
        (PoolingParams(task="classify", pooling="mean"), "pooling"),
        (PoolingParams(task="classify", dimensions=2), "dimensions"),
        (PoolingParams(task="rank"), "task"),  # type: ignore[arg-type]
    ):
        with pytest.raises(RequestError) as error:
            params.validate()
        assert error.value.param == name


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"problem_type": "ranking"}, "problem_type"),
        ({"id2label": {"0": "a", "2": "b"}}, "has no label 1"),
        ({"id2label": []}, "id2label"),
        ({"num_labels": 5}, "contradicts id2label"),
        ({"sentence_transformers": {"activation_fn": "os.system"}}, "activation_fn"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
        ({"is_original_qwen3_reranker": True}, "needs classifier_from_token"),
        ({"classifier_from_token": ["a", "b"], "method": "other"}, "method"),
        ({"classifier_from_token": ["a", "b", "c"]}, "two tokens"),
        ({"classifier_from_token": ["a", "a"]}, "differ"),
        ({"classifier_from_token": ["a", "really"]}, "6 tokens"),
    ],
)
def test_bad_configurations(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        start(classifier(tmp_path / "model", **fields))


def test_a_head_of_another_size_is_found_when_it_is_read(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "model", id2label={"0": "a", "1": "b"})
    with pytest.raises(Exception, match=r"score\.weight"):
        start(folder)


# --- models that answer no or yes ---------------------------------------------------------------


@pytest.fixture(scope="module", params=["tied", "untied"])
def yes_or_no(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "reranker"
    return reranker(folder, tie_word_embeddings=request.param == "tied")


def share_of_yes(folder: Path, tokens: list[int]) -> float:
    with torch.no_grad():
        logits = load_oracle(folder)(torch.tensor([tokens])).logits[0, -1].double()
    return float(torch.softmax(logits[[NO, YES]], -1)[1])


def published_scores(folder: Path, **instruction: str) -> list[float]:
    """The scores by the model card's recipe, for documents that name no special token."""
    tokenizer = load_tokenizer(folder)
    texts = [published_prompt(QUERY, each, **instruction) for each in (DOCUMENTS[0], DOCUMENTS[2])]
    return [share_of_yes(folder, tokenizer.encode(text, False)) for text in texts]


def scored(llm: LLM, **options: Any) -> list[float]:
    return [output.score for output in llm.score(QUERY, DOCUMENTS, **options)]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_reranker_by_option(yes_or_no: Path, backend: str) -> None:
    if backend == "cpu":
        require_native()
    expected = published_scores(yes_or_no)
    asked = ("no", "yes")
    with LLM(str(yes_or_no), backend=backend, threads=1, classifier_from_token=asked) as llm:
        found = scored(llm)
        np.testing.assert_allclose([found[0], found[2]], expected, atol=1e-5)
        other = scored(llm, instruction="Find answers.")
        expected = published_scores(yes_or_no, instruction="Find answers.")
        np.testing.assert_allclose([other[0], other[2]], expected, atol=1e-5)
        for odds, share in zip(scored(llm, use_activation=False), found, strict=True):
            assert 1 / (1 + math.exp(-odds)) == pytest.approx(share, abs=1e-6)
        (output,) = llm.classify([published_prompt(QUERY, DOCUMENTS[0])])
        assert output.probs == pytest.approx([1 - found[0], found[0]], abs=1e-6)
        assert output.label == ("yes" if found[0] > 0.5 else "no")
        pairs = llm.score([QUERY, "b"], DOCUMENTS[:2])
        assert [pairs[0].score] == found[:1]
        assert pairs[1].score != found[1]
        with pytest.raises(RequestError, match="2 queries and 3 documents"):
            llm.score([QUERY, QUERY], DOCUMENTS)


def test_a_reranker_as_vllm_converts_it(yes_or_no: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(yes_or_no, folder)
    change(
        folder / "config.json",
        architectures=[SEQUENCE],
        classifier_from_token=["no", "yes"],
        is_original_qwen3_reranker=True,
    )
    with start(yes_or_no, classifier_from_token=("no", "yes")) as llm:
        expected = scored(llm)
    with start(folder) as llm:
        assert scored(llm) == expected
        with pytest.raises(RequestError, match="classifies texts"):
            llm.generate("a", SamplingParams(max_tokens=1))


def test_a_reranker_as_sentence_transformers_has_it(yes_or_no: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(yes_or_no, folder)
    kind = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.Transformer"}]
    modules.append({"idx": 1, "name": "1", "path": "1_LogitScore", "type": kind})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_LogitScore").mkdir()
    score = folder / "1_LogitScore" / "config.json"
    score.write_text(json.dumps({"true_token_id": YES, "false_token_id": NO}))
    (folder / "chat_template.jinja").write_text(OWN_TEMPLATE)
    tokens = load_tokenizer(folder).encode(f"Judge. Q: {QUERY} D: {DOCUMENTS[0]} A:", False)
    with start(folder) as llm:
        assert scored(llm)[0] == pytest.approx(share_of_yes(folder, tokens), abs=1e-5)
        assert scored(llm, instruction="Look.") != scored(llm)
    score.write_text(json.dumps({"true_token_id": YES, "false_token_id": None}))
    with torch.no_grad():
        logit = float(load_oracle(folder)(torch.tensor([tokens])).logits[0, -1, YES])
    with start(folder) as llm:
        assert scored(llm, use_activation=False)[0] == pytest.approx(logit, abs=1e-4)
        assert scored(llm)[0] == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-5)
    modules[1]["path"] = "../elsewhere"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match=r"modules\.json"):
        start(folder)


def test_labels_that_are_no_tokens_are_refused(yes_or_no: Path) -> None:
    with pytest.raises(ModelError, match="'perhaps' is 7 tokens"):
        start(yes_or_no, classifier_from_token=("no", "perhaps"))
    with pytest.raises(ConfigError, match="could be drafted"):
        start(yes_or_no, classifier_from_token=("no", "yes"), speculative="ngram")


def test_labels_of_its_own_are_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="labels of its own"):
        start(classifier(tmp_path / "model"), classifier_from_token=("no", "yes"))


# --- pairs side by side --------------------------------------------------------------------------


@pytest.fixture
def one_label(tmp_path: Path) -> Path:
    folder = classifier(tmp_path / "model", labels=1)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    special = {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": _side("A")}],
        "pair": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": _side("A")},
            {"SpecialToken": {"id": "<s>", "type_id": 1}},
            {"Sequence": _side("B")},
        ],
        "special_tokens": special,
    }
    path.write_text(json.dumps(tokenizer))
    return folder


def _side(name: str) -> dict[str, Any]:
    return {"id": name, "type_id": 0}


def test_pairs_stand_side_by_side_as_the_tokenizer_has_it(one_label: Path) -> None:
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(one_label / "tokenizer.json"))
    with start(one_label) as llm:
        found = scored(llm)
        for document, score in zip(DOCUMENTS, found, strict=True):
            if "<|" in document:
                continue
            logits = oracle_logits(one_label, library.encode(QUERY, document).ids)
            assert score == pytest.approx(float(torch.sigmoid(logits)[0]), abs=1e-5)
        with pytest.raises(RequestError, match="no template of pairs") as error:
            scored(llm, instruction="Look.")
        assert error.value.param == "instruction"
    with start(one_label, chat_template=OWN_TEMPLATE) as llm:
        assert scored(llm) != found
        assert scored(llm, instruction="Look.") != scored(llm)


def test_pairs_share_what_they_begin_with(yes_or_no: Path) -> None:
    documents = ["water " * 30 + str(i) for i in range(6)]
    with start(yes_or_no, classifier_from_token=("no", "yes"), max_num_batched_tokens=64) as llm:
        together = [output.score for output in llm.score(QUERY, documents)]
        assert llm.stats().prefix_hits > 0
        llm.reset_prefix_cache()
        alone = [llm.score(QUERY, document)[0].score for document in documents]
    np.testing.assert_allclose(together, alone, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"threads": 2},
        {"threads": 2, "tensor_parallel": 2},
        {"threads": 2, "pipeline_parallel": 2},
        {"threads": 1, "max_num_batched_tokens": 16, "max_num_seqs": 2},
        {"threads": 1, "enable_prefix_caching": False},
    ],
)
def test_bits_are_those_of_one_thread(tmp_path: Path, options: dict[str, Any]) -> None:
    require_native()
    folder = classifier(tmp_path / "model")
    texts = ["abc", "a longer text " * 12, "abc" * 40]

    def values(**options: Any) -> list[list[float]]:
        with LLM(str(folder), backend="cpu", kv_cache_bytes=1 << 24, **options) as llm:
            return [output.probs for output in llm.classify(texts, use_activation=False)]

    assert values(**options) == values(threads=1)
