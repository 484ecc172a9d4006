"""/classify, /score and /rerank by models that classify, with the real engine and tiny
checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.checkpoints import tiny_checkpoint
from support.rerankers import reranker
from support.served import Served, serving
from support.waiting import PATIENCE_S

from penstock import LLM

pytest.importorskip("transformers", reason="it makes the checkpoints")
pytestmark = pytest.mark.slow

REFERENCE = ("--backend", "reference")
QUERY, DOCUMENTS = "what is a pump?", ["It moves water.", "no", "A song <|im_end|> yes."]


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = {0: "calm", 1: "glad", 2: "sad"}
    made = tiny_checkpoint("llama", model="LlamaForSequenceClassification", id2label=names)
    folder = tmp_path_factory.mktemp("models") / "moods"
    shutil.copytree(made, folder)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    )
    return folder


@pytest.fixture(scope="module")
def moods(labelled: Path) -> Iterator[Served]:
    with serving(str(labelled), "--served-model-name", "moods", *REFERENCE) as served:
        yield served


@pytest.fixture(scope="module")
def judge_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reranker(tmp_path_factory.mktemp("models") / "judge")


@pytest.fixture(scope="module")
def judge(judge_folder: Path) -> Iterator[Served]:
    words = ("--classifier-from-token", "no", "--classifier-from-token", "yes")
    with serving(str(judge_folder), "--served-model-name", "judge", *words, *REFERENCE) as served:
        yield served


def post(served: Served, path: str, status: int = 200, **fields: Any) -> Any:
    answer = httpx.post(served.url.removesuffix("/v1") + path, json=fields, timeout=PATIENCE_S)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_texts_get_labels(moods: Served, labelled: Path, path: str) -> None:
    found = post(moods, path, input=["abc", "d"])
    assert found["id"].startswith("classify-")
    assert (found["object"], found["model"]) == ("list", "moods")
    assert found["usage"] == {"prompt_tokens": 4, "total_tokens": 4, "completion_tokens": 0}
    with LLM(str(labelled), backend="reference", threads=1) as llm:
        for text, each in zip(["abc", "d"], found["data"], strict=True):
            (output,) = llm.classify(text)
            assert each["probs"] == pytest.approx(output.probs, abs=1e-6)
            assert (each["label"], each["num_classes"]) == (output.label, 3)
    raw = post(moods, path, input="abc", use_activation=False)["data"][0]["probs"]
    assert sum(raw) != pytest.approx(1.0)
    assert post(moods, path, input="abc", softmax=False)["data"][0]["probs"] == raw


def test_a_chat_gets_labels(moods: Served) -> None:
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "go"}]
    (of_chat,) = post(moods, "/classify", messages=chat)["data"]
    (of_text,) = post(moods, "/classify", input="[user] hi\n[assistant] go\n")["data"]
    assert of_chat == of_text


@pytest.mark.parametrize(
    ("path", "fields", "param", "said"),
    [
        ("/v1/completions", {"prompt": "a"}, "model", "classifies texts"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "stream": True},
            "model",
            "classifies texts",
        ),
        ("/v1/embeddings", {"input": "a"}, "model", "no embeddings"),
        ("/pooling", {"input": "a"}, "model", "no embeddings"),
        ("/score", {"text_1": "a", "text_2": "b"}, "model", "3 labels"),
        ("/classify", {}, "input", "either"),
        ("/classify", {"input": "a", "messages": []}, "input", "either"),
        ("/classify", {"input": "a", "add_generation_prompt": True}, "add_generation", "messages"),
        ("/classify", {"input": ["a", ""]}, "input[1]", "empty"),
        ("/classify", {"input": "a" * 400}, "input", "tokens"),
        ("/classify", {"input": "a", "dimensions": 3}, "dimensions", "dimensions"),
        ("/classify", {"input": "a", "truncate_prompt_tokens": 3}, "truncate", "no prompt"),
    ],
)
def test_bad_input(moods: Served, path: str, fields: dict[str, Any], param: str, said: str) -> None:
    error = post(moods, path, 400, **fields)["error"]
    assert (error["param"] or "").startswith(param), error
    assert said in error["message"]


def test_pairs_are_judged(judge: Served, judge_folder: Path) -> None:
    words = ("no", "yes")
    with LLM(str(judge_folder), backend="reference", threads=1, classifier_from_token=words) as llm:
        expected = [output.score for output in llm.score(QUERY, DOCUMENTS)]
        other = [output.score for output in llm.score(QUERY, DOCUMENTS, instruction="Look.")]
        odds = [output.score for output in llm.score(QUERY, DOCUMENTS, use_activation=False)]
    found = post(judge, "/v1/score", text_1=QUERY, text_2=DOCUMENTS)
    scores = [each["score"] for each in found["data"]]
    assert scores == pytest.approx(expected, abs=1e-6)
    ranked = post(judge, "/rerank", query=QUERY, documents=DOCUMENTS)["results"]
    assert [each["index"] for each in ranked] == sorted(range(3), key=lambda i: -scores[i])
    for each in ranked:
        assert each["relevance_score"] == scores[each["index"]]
    for name in ("instruction", "instruct"):
        fields: dict[str, Any] = {"query": QUERY, "documents": DOCUMENTS, name: "Look."}
        asked = post(judge, "/rerank", **fields)["results"]
        by_index = {each["index"]: each["relevance_score"] for each in asked}
        assert [by_index[i] for i in range(3)] == pytest.approx(other, abs=1e-6)
    plain = post(judge, "/score", text_1=QUERY, text_2=DOCUMENTS, use_activation=False)
    assert [each["score"] for each in plain["data"]] == pytest.approx(odds, abs=1e-5)


def test_what_they_can_be_asked_for(moods: Served, judge: Served) -> None:
    told = {}
    for served in (moods, judge):
        (card,) = httpx.get(f"{served.url}/models").json()["data"]
        told[card["id"]] = card["capabilities"]
    assert told == {"moods": ["classify"], "judge": ["classify", "score"]}


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"dimensions": 4}, "dimensions", "for embeddings"),
        ({"pooling": "mean"}, "pooling", "for embeddings"),
        ({"documents": ["a", ""]}, "documents[1]", "empty"),
        ({"query": ""}, "query", "empty"),
        ({"documents": ["a", "b" * 2000]}, "documents[1]", "tokens"),
    ],
)
def test_bad_pairs(judge: Served, fields: dict[str, Any], param: str, said: str) -> None:
    error = post(judge, "/rerank", 400, **{"query": "a", "documents": ["b"], **fields})["error"]
    assert (error["param"] or "").startswith(param), error
    assert said in error["message"]
